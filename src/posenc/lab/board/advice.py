"""Which encoding to take, in plain words from the rows of the board: what carried, how sure, what is unknown."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posenc.foreign import quoted
from posenc.lab.board import scope
from posenc.lab.board.costs import Cost, Costs
from posenc.lab.board.tables import carried_by, evidence
from posenc.lab.results.statistics import FEWEST
from posenc.lab.results.summary import Record, Result, ask, count, listed, name, percent, results, times
from posenc.lab.results.summary.claims import Carried, Measure, carried, compare, exact_match_at, growth_at
from posenc.lab.tasks import TASKS

MOST_TASKS = 3
MOST_KEYS = 12
"""The keys that are written out in words; all of them are in the advice itself."""

BEYOND_BOARD = (
    "Never measured: larger models, longer training, and your data. The models have two layers of width 64, and only "
    "the multiple of the trained length is compared."
)


@dataclass(frozen=True)
class Question:
    """What is asked: the task in words or by its name, the lengths, what the model sees, and the encoding that it has.

    Raises ValueError for lengths below 1, and axes that no task has.
    """

    task: str
    train_length: int
    test_length: int
    causal: bool = True
    axes: int = 1
    encoding: str | None = None

    def __post_init__(self) -> None:
        for length in ("train_length", "test_length"):
            if getattr(self, length) < 1:
                raise ValueError(f"{length} must be 1 or more, got {getattr(self, length)}")
        if self.axes not in (1, 2):
            raise ValueError(f"the board has tasks of 1 and 2 axes, got {self.axes}")

    @property
    def factor(self) -> float:
        return self.test_length / self.train_length


@dataclass(frozen=True)
class Found:
    """One encoding on one task, at the tested multiple that the question asks for.

    at   how many seeds carry there
    """

    result: Result
    at: Carried

    @property
    def label(self) -> str:
        return self.result.label

    @property
    def enough(self) -> bool:
        """Whether there are seeds enough to say anything."""
        return self.at.of >= FEWEST

    @property
    def words(self) -> str:
        return f"{self.at.words} seeds on {self.result.task}"


@dataclass(frozen=True)
class Advice:
    """The answer.

    near          the tasks of the board that it rests on
    recommended   the encodings that carry so far on all of them, the cheapest first; ties unless a sentence says more
    carried_less  those that do not, on at least one
    unknown       those with too few seeds, or not measured on all of them
    rows          the keys of the rows behind it
    sentences     the answer in words
    """

    near: tuple[str, ...]
    recommended: tuple[str, ...]
    carried_less: tuple[str, ...]
    unknown: tuple[str, ...]
    rows: tuple[str, ...]
    sentences: tuple[str, ...]


def advise(question: Question, rows: Sequence[Record], costs: Costs) -> Advice:
    """What the rows say of a question. They are asked for nothing else, and no two that are ties are ranked.

    An encoding is recommended where at least three seeds were run and more than half of them carry to the asked
    multiple on every near task: to the next longer one that was tested. Beyond the longest tested one nothing is.
    """
    kept = evidence(rows)
    there = list(dict.fromkeys(result.task for result in results(kept)))
    near, how = nearest(question, there)
    if not near:
        return Advice((), (), (), (), (), (how, BEYOND_BOARD))
    by_task = {task: found_at(results(kept, task), question.factor) for task in near}
    labels = list(dict.fromkeys(one.label for found in by_task.values() for one in found.values()))
    known = [label for label in labels if all(label in found and found[label].enough for found in by_task.values())]
    carry = [label for label in known if all(found[label].at.most for found in by_task.values())]
    tested = min(next(iter(found.values())).at.factor for found in by_task.values() if found) if labels else 0.0
    beyond = tested < question.factor
    carry.sort(key=lambda label: (price(costs.of.get(label)), label))
    said = [how, in_what_multiple(question, by_task, beyond)]
    said += [who_carries(carry, by_task, beyond), *ties(carry, by_task), what_it_costs(carry, costs)]
    less = [label for label in known if label not in carry]
    unknown = [label for label in labels if label not in known]
    said += [f"Do not carry so far: {listed([name(x) for x in less])}."] if less else []
    said += [f"Not measured enough to say: {listed([name(x) for x in unknown])}."] if unknown else []
    cited = list(carry)
    if question.encoding is not None:
        said.append(about_own(question.encoding, carry, by_task))
        cited.append(scope.label(question.encoding))
    said.append(BEYOND_BOARD)
    keys = [
        run["key"]
        for found in by_task.values()
        for label in dict.fromkeys(cited)
        if label in found
        for run in found[label].result.runs
    ]
    said += [f"Rows: {listed_keys(keys)}."] if keys else []
    return Advice(
        tuple(near), () if beyond else tuple(carry), tuple(less), tuple(unknown), tuple(keys), tuple(filter(None, said))
    )


def nearest(question: Question, there: Sequence[str]) -> tuple[list[str], str]:
    """The tasks that a question is about, and in words how they were found; none where nothing is near."""
    reads = ("decoder", "encoder_decoder") if question.causal else ("encoder",)
    kind = f"{'a causal model' if question.causal else 'a model that sees all tokens'} on {question.axes} axes"
    kind = kind.replace("1 axes", "one axis").replace("2 axes", "two axes")
    if question.task in there:
        found = [question.task]
    else:
        scores = {task: len(words_of(question.task) & words_about(task)) for task in there}
        most = max(scores.values(), default=0)
        found = [task for task in there if scores[task] == most and most > 0]
    fits = [task for task in found if fits_kind(task, reads, question.axes)]
    if not found:
        asked = f"no task of the board is near {quoted(question.task)}"
        return [], f"Nothing can be said: {asked}; name one of {', '.join(there) or 'none, as it has no rows yet'}."
    if not fits:
        return [], f"Nothing can be said: {listed(found)} was never measured for {kind}."
    return fits[:MOST_TASKS], f"The nearest of what was measured, for {kind}: {listed(fits[:MOST_TASKS])}."


def fits_kind(task: str, reads: Sequence[str], axes: int) -> bool:
    """Whether a task is for such models; one of somebody's own, whose code is not run here, is taken to be."""
    cls = TASKS.get(task.partition("(")[0])
    return cls is None or (cls.reads in reads and cls.axes == axes)


def words_of(text: str) -> set[str]:
    """The words of a text, without the endings of plurals."""
    return {word.removesuffix("s") if len(word) > 3 else word for word in re.findall(r"[a-z]+", text.lower())} - COMMON


COMMON = frozenset(
    "a an and as at by for from in is it its of on or that the then them this to what which with say".split()
)


def words_about(task: str) -> set[str]:
    own = task.partition("(")[0]
    cls = TASKS.get(own)
    idea = (cls.__doc__ or "").strip().splitlines()[0].partition(":")[0] if cls else ""
    return words_of(" ".join((own.replace("_", " "), *(cls.also_called if cls else ()), idea)))


def found_at(found: Sequence[Result], factor: float) -> dict[str, Found]:
    """Label -> how it does at the first tested multiple that is not below the factor, or at the longest one.

    Within the trained length, to carry is to have learned.
    """
    if factor <= 1:
        return {
            r.label: Found(r, Carried.counted(r.trained_length or math.nan, 1.0, len(r.learned), len(r.runs)))
            for r in found
        }
    tested = sorted({at.factor for result in found for at in carried(result, carried_by)})
    chosen = next((one for one in tested if one >= factor), tested[-1] if tested else None)
    return {r.label: Found(r, at) for r in found for at in carried(r, carried_by) if at.factor == chosen}


def in_what_multiple(question: Question, by_task: Mapping[str, Mapping[str, Found]], beyond: bool) -> str:
    if question.factor <= 1:
        return "That is within the trained length, where to carry means to have learned."
    lengths = f"{count(question.train_length)} to {count(question.test_length)}"
    asked = f"{lengths} is {times(question.factor)} the trained length"
    tested = [f"{times(next(iter(found.values())).at.factor)} on {task}" for task, found in by_task.items() if found]
    if beyond:
        return f"{asked}; never measured: that far. The longest that was tested is {listed(tested)}."
    return f"{asked}; the next that was tested is {listed(tested)}."


def who_carries(carry: Sequence[str], by_task: Mapping[str, Mapping[str, Found]], beyond: bool) -> str:
    if not carry:
        return "No encoding carries so far with most of its seeds."
    each = [f"{name(label)} ({'; '.join(found[label].words for found in by_task.values())})" for label in carry]
    least = min((found[label].at for found in by_task.values() for label in carry), key=lambda at: at.low)
    share = f"{percent(least.low)} to {percent(least.high)} %"
    sure = f"How sure: {least.words} seeds mean {share} of all seeds (95 % interval)."
    verb = "Carry as far as was tested, which does not say that they go on" if beyond else "Carry so far"
    return f"{verb}: {listed(each)}. {sure}"


def ties(carry: Sequence[str], by_task: Mapping[str, Mapping[str, Found]]) -> list[str]:
    """Who of those that carry is ahead on a task; of the others nobody is."""
    if len(carry) < 2:
        return []
    out = []
    for task, found in by_task.items():
        chosen = [found[label].result for label in carry]
        comparison = compare(chosen, measure_at(found[carry[0]]))
        if first := comparison.first():
            names = listed([name(label) for label in first])
            out.append(f"On {task}, {names} {ask('are', first)} ahead of all others that carry.")
        else:
            out.append(f"On {task} they are ties: the seeds do not put any ahead of all others; choose by cost.")
    return out


def measure_at(one: Found) -> Measure:
    return growth_at(one.at.factor) if one.result.is_text else exact_match_at(one.at.factor)


def price(cost: Cost | None) -> float:
    return cost.forward if cost else float("inf")


def what_it_costs(carry: Sequence[str], costs: Costs) -> str:
    known = [
        f"{name(label)} {times(one.forward)} the time of a layer without position, {count(one.cache_bytes)} bytes of "
        f"cache per token and layer, {count(one.parameters)} parameters"
        for label in carry
        if (one := costs.of.get(label))
    ]
    return f"What it costs, the cheapest first: {'; '.join(known)}." if known else ""


def about_own(given: str, carry: Sequence[str], by_task: Mapping[str, Mapping[str, Found]]) -> str:
    """What the encoding that somebody has does, and whether another is ahead of it."""
    own = scope.label(given)
    on = [found[own] for found in by_task.values() if own in found]
    if len(on) < len(by_task) or not all(one.enough for one in on):
        return f"Yours, {name(own)}, was never measured enough there; posenc board --encodings {given!r} does."
    does = f"Yours, {name(own)}, carries in {listed([one.words for one in on])}"
    if own in carry:
        return f"{does}: keep it."
    better = [label for label in carry if any(label in ahead_of(own, carry, found) for found in by_task.values())]
    if better:
        return f"{does}; ahead of it: {listed([name(label) for label in better])}."
    return f"{does}; the seeds put none that carries ahead of it." if carry else f"{does}."


def ahead_of(own: str, carry: Sequence[str], found: Mapping[str, Found]) -> list[str]:
    """Those that carry and are ahead of one encoding on a task.

    By their scores on the seeds where both learned; and by how many of all seeds carry, where the intervals lie apart.
    """
    comparison = compare([found[label].result for label in (*carry, own)], measure_at(found[own]))
    return [label for label in carry if own in comparison.above(label) or found[label].at.low > found[own].at.high]


def listed_keys(keys: Sequence[str]) -> str:
    more = len(keys) - MOST_KEYS
    return ", ".join(keys[:MOST_KEYS]) + (f" and {more} more (--json has all)" if more > 0 else "")
