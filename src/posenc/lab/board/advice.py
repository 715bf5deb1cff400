"""Which encoding to take, by the rows of the board: what carried, how sure, what is unknown."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posenc import checks
from posenc.foreign import quoted
from posenc.lab.board import scope
from posenc.lab.board.costs import Costs
from posenc.lab.board.tables import carried_by, evidence
from posenc.lab.results.statistics import FEWEST, Comparison
from posenc.lab.results.summary import NOTHING, Record, Result, count, listed, name, percent, results, times
from posenc.lab.results.summary.claims import Carried, carried, compare, exact_match_at, growth_at
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


@dataclass(frozen=True)
class Advice:
    """The answer.

    answer        what to take, in one line
    near          the tasks of the board that it rests on
    recommended   the encodings that carry so far on all of them, the cheapest first; ties unless `why` says more
    carried_less  those that do not, on at least one
    unknown       those with too few seeds, or not measured on all of them
    rows          the keys of the rows behind it
    headings, table   a line for the encoding that is asked about, and for each that carries: how many seeds carry, with
                  the 95 % interval of the share of all, the time of a layer, the cache, and why it stands there
    sentences     what the table does not say
    """

    answer: str
    near: tuple[str, ...]
    recommended: tuple[str, ...]
    carried_less: tuple[str, ...]
    unknown: tuple[str, ...]
    rows: tuple[str, ...]
    headings: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    sentences: tuple[str, ...]


def advise(question: Question, rows: Sequence[Record], costs: Costs) -> Advice:
    """What the rows say of a question. They are asked for nothing else, and no two that are ties are ranked.

    An encoding is recommended where at least three seeds were run and more than half of them carry to the asked
    multiple on every near task: to the next longer one that was tested. Beyond the longest tested one nothing is.

    Raises ValueError where no task of the board is near what is asked.
    """
    records = evidence(rows)
    near = nearest(question, list(dict.fromkeys(result.task for result in results(records))))
    by_task = {task: reached(results(records, task), question.factor) for task in near}
    labels = list(dict.fromkeys(label for outcomes in by_task.values() for label in outcomes))
    measured = [label for label in labels if measured_enough(label, by_task)]
    carry = [label for label in measured if all(outcomes[label][1].most for outcomes in by_task.values())]
    carry.sort(key=lambda label: (costs.of[label].forward if label in costs.of else math.inf, label))
    less = [label for label in measured if label not in carry]
    unknown = [label for label in labels if label not in measured]
    tested = min((at.factor for outcomes in by_task.values() for _, at in outcomes.values()), default=0.0)
    beyond = tested < question.factor
    sentences = [multiple(question, by_task, beyond), *(f"{task}: {scope.meaning(task)}" for task in near)]
    sentences += [f"Do not carry so far: {names(less)}."] if less else []
    sentences += [f"Too few seeds to say: {names(unknown)}."] if unknown else []
    subjects = list(carry)
    if question.encoding is not None:
        sentences.insert(0, verdict(question.encoding, carry, by_task))
        own = scope.label(question.encoding)
        subjects = [own] * (own in labels) + [label for label in carry if label != own]
    ahead = {task: comparison(carry, outcomes).first() for task, outcomes in by_task.items() if len(carry) > 1}
    cited = [outcomes[label][0] for outcomes in by_task.values() for label in subjects if label in outcomes]
    return Advice(
        answer(question, carry, by_task, beyond),
        tuple(near),
        () if beyond else tuple(carry),
        tuple(less),
        tuple(unknown),
        tuple(run["key"] for result in cited for run in result.runs),
        ("encoding", *(f"seeds that carry on {task}" for task in near), "time of a layer", "cache, bytes", "why"),
        tuple(line(label, by_task, costs, why(label, carry, ahead)) for label in subjects),
        tuple(sentences),
    )


def answer(question: Question, carry: Sequence[str], by_task: Mapping[str, Reached], beyond: bool) -> str:
    """What to take, in one line."""
    where, far = listed(list(by_task)), f"from {count(question.train_length)} to {count(question.test_length)}"
    if not carry:
        return f"Nothing to take: no encoding carries {far} with most of its seeds on {where}."
    others = f", the cheapest of {len(carry)} that do" if len(carry) > 1 else ""
    if beyond:
        return f"Nothing to take for sure: {times(question.factor)} the trained length was never measured on {where}."
    return f"Take {name(carry[0])}: it carries {far} on {where}{others}."


def why(label: str, carry: Sequence[str], ahead: Mapping[str, Sequence[str]]) -> str:
    """Why an encoding stands in the table."""
    if label not in carry:
        return "yours; does not carry so far"
    on = [task for task, first in ahead.items() if label in first]
    cheapest = "the cheapest" if label == carry[0] else "carries as far, and costs more"
    return f"ahead of all others on {listed(on)}" if on else cheapest


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
    return len(words & parts) / len(parts) + len(words & (also_called - parts))


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


def measured_enough(label: str, by_task: Mapping[str, Reached]) -> bool:
    """Whether there are seeds enough on every task to say anything."""
    return all(label in outcomes and outcomes[label][1].of >= FEWEST for outcomes in by_task.values())


def multiple(question: Question, by_task: Mapping[str, Reached], beyond: bool) -> str:
    """A sentence on the multiple of the trained length that is asked for, and those that were tested."""
    if question.factor <= 1:
        return "That is within the trained length, where to carry means to have learned."
    lengths = f"{count(question.train_length)} to {count(question.test_length)}"
    tested = [
        f"{times(next(iter(of_task.values()))[1].factor)} on {task}" for task, of_task in by_task.items() if of_task
    ]
    which = "never measured: that far. The longest that was tested is" if beyond else "the next that was tested is"
    return f"{lengths} is {times(question.factor)} the trained length; {which} {listed(tested)}."


def comparison(labels: Sequence[str], outcomes: Reached) -> Comparison:
    """All pairs of encodings on one task, by their scores at the multiple that is asked for."""
    result, at = outcomes[labels[-1]]
    measure = growth_at(at.factor) if result.is_text else exact_match_at(at.factor)
    return compare([outcomes[label][0] for label in labels], measure)


def line(label: str, by_task: Mapping[str, Reached], costs: Costs, reason: str) -> tuple[str, ...]:
    """A line of the table; the time is a multiple of that of a layer without position."""
    seeds = [
        f"{at.words} ({percent(at.low)} to {percent(at.high)} %)" if (at := outcomes[label][1]) else NOTHING
        for outcomes in by_task.values()
    ]
    cost = costs.of.get(label)
    price = (times(cost.forward), count(cost.cache_bytes)) if cost else (NOTHING, NOTHING)
    return label, *seeds, *price, reason


def verdict(spec: str, carry: Sequence[str], by_task: Mapping[str, Reached]) -> str:
    """What the encoding that somebody has does, and whether another is ahead of it.

    By their scores on the seeds where both learned; and by how many of all seeds carry, where the intervals lie apart.
    """
    own = scope.label(spec)
    if not measured_enough(own, by_task):
        return f"Yours, {name(own)}, was never measured enough there; posenc board --encodings {spec!r} does."
    shares = listed([f"{outcomes[own][1].words} seeds on {task}" for task, outcomes in by_task.items()])
    does = f"Yours, {name(own)}, carries in {shares}"
    if own in carry:
        return f"{does}: keep it."
    better = set[str]()
    for outcomes in by_task.values():
        pairs = comparison([*carry, own], outcomes)
        apart = {label for label in carry if outcomes[label][1].low > outcomes[own][1].high}
        better |= apart | {label for label in carry if own in pairs.above(label)}
    if better:
        return f"{does}; ahead of it: {names([label for label in carry if label in better])}."
    return f"{does}; the seeds put none that carries ahead of it." if carry else f"{does}."
