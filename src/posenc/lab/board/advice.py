"""Which encoding to take, by the rows of the board: what carried, how sure, what is unknown."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from posenc import checks
from posenc.foreign import quoted
from posenc.lab.board import scope
from posenc.lab.board.costs import Costs
from posenc.lab.board.tables import carried_by, evidence
from posenc.lab.results.statistics import FEWEST, LEVEL, Comparison
from posenc.lab.results.summary import NOTHING, Record, Result, Settled, count, listed, name, percent, results, times
from posenc.lab.results.summary.claims import Carried, Measure, bits_at, carried, compare, exact_match_at, growth_at
from posenc.lab.tasks import TASKS

MOST_TASKS, MOST_ROWS = 3, 5

NOT_MEASURED = (
    "Measured on small models, of two layers of width 64. Not measured: larger ones, longer training, your data; and "
    "lengths other than as multiples of the trained one."
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
        checks.sizes(train_length=self.train_length, test_length=self.test_length)
        if self.axes not in (1, 2):
            raise ValueError(f"the board has tasks of 1 and 2 axes, got {self.axes}")

    @property
    def factor(self) -> float:
        return self.test_length / self.train_length


Reached = Mapping[str, tuple[Result, Carried]]
"""Label -> what came out on one task, and how many seeds carry to the multiple that is asked for."""

Ranking = tuple[dict[str, tuple[str, ...]], list[str]]
"""Label -> its line of the table, the best first; and those that are recommended."""


@dataclass(frozen=True)
class Advice:
    """The answer.

    answer        what to take, in one line
    near          the tasks of the board that it rests on
    recommended   the encodings that carry so far on all of them, the cheapest first; on text the one with the fewest
                  bits per byte there, and those that tie with it
    others        those that are not recommended
    unknown       those with too few seeds, or not measured on all of them
    rows          the keys of the rows behind it
    headings, table   a line for the encoding that is asked about, and for each that is recommended, or on text for all
    sentences     what the table does not say
    """

    answer: str
    near: tuple[str, ...]
    recommended: tuple[str, ...]
    others: tuple[str, ...]
    unknown: tuple[str, ...]
    rows: tuple[str, ...]
    headings: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    sentences: tuple[str, ...]


def advise(question: Question, rows: Sequence[Record], costs: Costs) -> Advice:
    """What the rows say of a question. They are asked for nothing else, and no two that are ties are ranked.

    An encoding is recommended where at least three seeds were run and more than half of them carry to the asked
    multiple on every near task: to the next longer one that was tested. On text the one of the fewest bits per
    byte there is, and what ties with it. Beyond the longest tested multiple nothing is.

    Raises ValueError where no task of the board is near what is asked.
    """
    records = Settled(evidence(rows))
    near = nearest(question, list(dict.fromkeys(result.task for result in results(records))))
    by_task = {task: reached(results(records, task), question.factor) for task in near}
    labels = list(dict.fromkeys(label for outcomes in by_task.values() for label in outcomes))
    seeds = {label: [at[label][1].of if label in at else 0 for at in by_task.values()] for label in labels}
    measured = [label for label in labels if min(seeds[label]) >= FEWEST]
    on_text = all(result.is_text for outcomes in by_task.values() for result, _ in outcomes.values())
    lines, taken = bits_table(measured, by_task[near[0]], costs) if on_text else reach_table(measured, by_task, costs)
    own = None if question.encoding is None else scope.label(question.encoding)
    shown = [label for label in lines if label == own or on_text or label in taken]
    shown.sort(key=lambda label: label != own)
    far = min((at.factor for outcomes in by_task.values() for _, at in outcomes.values()), default=0.0)
    others = [label for label in measured if label not in taken]
    unknown = [label for label in labels if label not in measured]
    sentences = [f"{task}: {scope.meaning(task)}" for task in near]
    if own is not None and own not in measured:
        does = f"posenc board --encodings {question.encoding!r} does"
        sentences.insert(0, f"Yours, {name(own)}, was never measured enough there; {does}.")
    sentences += [f"Not recommended: {names(others)}."] if others else []
    sentences += [f"Too few seeds to say: {names(unknown)}."] if unknown else []
    cited = [outcomes[label][0] for outcomes in by_task.values() for label in shown if label in outcomes]
    means = f"seeds that carry to {times(far)} on {{}}" if far > 1 else "seeds that learned {}"
    measures = (f"bits at {times(far)}", f"R({times(far)[:-1]})") if on_text else [means.format(task) for task in near]
    return Advice(
        answer(question, own, taken, listed(near), on_text, far),
        tuple(near),
        () if far < question.factor else tuple(taken),
        tuple(others),
        tuple(unknown),
        tuple(run["key"] for result in cited for run in result.runs),
        ("encoding", *measures, "time of a layer", "cache, bytes", "why"),
        tuple((label, *lines[label]) for label in shown),
        tuple(sentences),
    )


def answer(question: Question, own: str | None, taken: Sequence[str], where: str, on_text: bool, tested: float) -> str:
    """What to take, in one line."""
    far = f"from {count(question.train_length)} to {count(question.test_length)}"
    if tested < question.factor:
        longest = f"{times(question.factor)} the trained length was never measured on {where}, {times(tested)} was"
        return f"Nothing to take {far}: {longest}."
    if not taken:
        return f"Nothing to take: no encoding carries {far} with most of its seeds on {where}."
    first = own if own is not None and own in taken else taken[0]
    fewest = "needs the fewest bits per byte" if first == taken[0] else "is not surely beaten in bits per byte"
    does = f"{fewest} {far}" if on_text else f"carries {far} on {where}"
    more = len(taken) - 1
    ties = f", a tie with {more} more" if on_text else f", with {more} more"
    cheapest = "" if on_text or not more or first != taken[0] else "; it is the cheapest of them"
    return f"{'Keep' if first == own else 'Take'} {name(first)}: it {does}{ties * (more > 0)}{cheapest}."


def price(label: str, costs: Costs) -> tuple[str, str]:
    """The time of a layer, a multiple of that of a layer without position, and the bytes of its cache."""
    cost = costs.get(label)
    return (times(cost.forward), count(cost.cache_bytes)) if cost else (NOTHING, NOTHING)


def reach_table(measured: Sequence[str], by_task: Mapping[str, Reached], costs: Costs) -> Ranking:
    """A line for each encoding, the cheapest first, and those that carry so far on every task."""
    ranked = sorted(measured, key=lambda label: (costs[label].forward if label in costs else math.inf, label))
    taken = [label for label in ranked if all(outcomes[label][1].most for outcomes in by_task.values())]
    ahead = {task: comparison(taken, outcomes).first() for task, outcomes in by_task.items() if len(taken) > 1}
    lines = {}
    for label in ranked:
        seeds = [outcomes[label][1] for outcomes in by_task.values()]
        shares = [f"{at.words} ({percent(at.low)} to {percent(at.high)} %)" for at in seeds]
        on = [task for task, first in ahead.items() if label in first]
        why = "the cheapest that carries" if [label] == taken[:1] else "carries, and costs more"
        why = f"ahead of all others on {listed(on)}" if on else why
        lines[label] = (*shares, *price(label, costs), why if label in taken else "does not carry so far")
    return lines, taken


def bits_table(measured: Sequence[str], outcomes: Reached, costs: Costs) -> Ranking:
    """A line for each encoding on a text, that of the fewest bits per byte first, and those that no other beats."""
    far = outcomes[measured[0]][1].factor if measured else 1.0
    bits, growth = bits_at(far), growth_at(far)

    def mean(label: str, measure: Measure) -> float:
        return fmean([x for run in outcomes[label][0].runs if (x := measure.of(run)) is not None] or [math.inf])

    ranked = sorted(measured, key=lambda label: mean(label, bits))
    first, *rest = ranked or [""]
    # Each against the first alone: corrected for these pairs, and not for all.
    pairs = [pair for label in rest for pair in compare([outcomes[first][0], outcomes[label][0]], bits).differences]
    ties = {label for pair in pairs if pair.p * len(pairs) >= LEVEL for label in (pair.first, pair.second)}
    taken = [label for label in ranked if label == first or label in ties]
    lines = {}
    for label in ranked:
        why = "the fewest bits" if label == first else "a tie with it" if label in taken else "more bits"
        flat = "stays flat" if outcomes[label][1].most else "does not stay flat"
        lines[label] = f"{mean(label, bits):.3f}", f"{mean(label, growth):.2f}", *price(label, costs), f"{why}; {flat}"
    return lines, taken


def names(labels: Sequence[str]) -> str:
    return listed([*map(name, labels)])


def nearest(question: Question, tasks: Sequence[str]) -> list[str]:
    """The tasks that a question is about. Raises ValueError where the board has none, or not for such a model."""
    reads = ("decoder", "encoder_decoder") if question.causal else ("encoder",)
    scores = {task: likeness(words_of(question.task), task) for task in tasks}
    scores = {question.task: 1.0} if question.task in tasks else scores
    best = [task for task, score in scores.items() if score == max(scores.values()) > 0]
    # A task of somebody's own, whose code is not run here, is taken to be for any model.
    kinds = {task: TASKS.get(task.partition("(")[0]) for task in best}
    fits = [task for task, cls in kinds.items() if cls is None or (cls.reads in reads and cls.axes == question.axes)]
    if not best:
        known = ", ".join(tasks) or "none, as the board has no rows yet"
        raise ValueError(f"no task of the board is near {quoted(question.task)}, and it says nothing; it has {known}")
    if not fits:
        model = "a causal model" if question.causal else "a model that sees all tokens"
        kind = f"{model} on {'one axis' if question.axes == 1 else 'two axes'}"
        raise ValueError(f"{listed(best)} was never measured for {kind}; see --bidirectional and --axes")
    return fits[:MOST_TASKS]


def words_of(text: str) -> set[str]:
    """The words of a text, without the endings of plurals."""
    return {word.removesuffix("s") if len(word) > 3 else word for word in re.findall(r"[a-z]+", text.lower())}


def likeness(words: set[str], task: str) -> float:
    """How much of a task's name stands in the words, and how many of the words that people ask for it by."""
    own = task.partition("(")[0]
    parts = words_of(own.replace("_", " "))
    also_called = words_of(" ".join(TASKS[own].also_called)) if own in TASKS else set[str]()
    return 2 * len(words & parts) / len(parts) + len(words & (also_called - parts))


def reached(task_results: Sequence[Result], factor: float) -> Reached:
    """How each encoding does at the first tested multiple that is not below the factor, or at the longest one.

    Within the trained length, to carry is to have learned.
    """
    if factor <= 1:
        return {
            r.label: (r, Carried.counted(r.trained_length or math.nan, 1.0, len(r.learned), len(r.runs)))
            for r in task_results
        }
    tested = sorted({at.factor for result in task_results for at in carried(result, carried_by)})
    multiple = next((longer for longer in tested if longer >= factor), tested[-1] if tested else None)
    return {r.label: (r, at) for r in task_results for at in carried(r, carried_by) if at.factor == multiple}


def comparison(labels: Sequence[str], outcomes: Reached) -> Comparison:
    """All pairs of encodings on one task, by their scores at the multiple that is asked for."""
    result, at = outcomes[labels[-1]]
    measure = growth_at(at.factor) if result.is_text else exact_match_at(at.factor)
    return compare([outcomes[label][0] for label in labels], measure)
