"""Recommend encodings for a task and lengths, from the rows of the board."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from posenc import checks
from posenc.foreign import quote
from posenc.lab.board import scope
from posenc.lab.board.costs import Costs
from posenc.lab.board.tables import evidence, run_multiple
from posenc.lab.results.statistics import LEVEL, MIN_SEEDS, Comparison
from posenc.lab.results.summary import DASH, IndexedRecords, Record, Result, claims, results
from posenc.lab.results.summary.claims import Measure, SeedShare, seed_shares
from posenc.lab.results.summary.formatting import count, join_words, label_list, percent, times
from posenc.lab.tasks import TASKS

MAX_TASKS, MAX_ROWS = 3, 5

NOT_MEASURED = (
    "Measured on small models, of two layers of width 64. Not measured: larger ones, longer training, your data; and "
    "lengths other than as multiples of the trained one."
)


@dataclass(frozen=True)
class Question:
    """A question: a task in words or by name, the lengths, the model, and its encoding.

    Raises ValueError for lengths below 1, and for a number of axes that no task has.
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


TaskOutcomes = Mapping[str, tuple[Result, SeedShare]]
"""Label -> the result on one task, and the seeds that carry to the multiple of the question."""

Ranking = tuple[dict[str, tuple[str, ...]], list[str]]
"""Label -> its line of the table, the best first; and the recommended labels."""


@dataclass(frozen=True)
class Advice:
    """The answer to a question.

    answer        the recommendation in one line
    near          the tasks of the board that are close to the question
    recommended   the encodings that carry so far on all these tasks, the cheapest first; on text the one with the
                  fewest bits per byte, and its ties
    others        those that are not recommended
    unknown       those with too few seeds, or not measured on all these tasks
    rows          the keys of the rows behind the answer
    headings, table   a line for the encoding of the question and for each recommended one, or on text for all
    sentences     notes below the table
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
    """Answer a question from the rows of the board alone; ties are not ranked.

    An encoding is recommended if at least three seeds were run and more than half of them carry to the multiple of the
    question, or to the next longer tested one, on every near task. On text it is the one with the fewest bits per byte,
    and its ties. Beyond the longest tested multiple there is no recommendation.

    Raises ValueError if no task of the board is near the question.
    """
    records = IndexedRecords(evidence(rows))
    tasks = nearest_tasks(question, list(dict.fromkeys(result.task for result in results(records))))
    by_task = {task: task_outcomes(results(records, task), question.factor) for task in tasks}
    labels = list(dict.fromkeys(label for outcomes in by_task.values() for label in outcomes))
    candidates = [x for x in labels if all(x in o and o[x][1].seeds >= MIN_SEEDS for o in by_task.values())]
    on_text = all(result.is_text for outcomes in by_task.values() for result, _ in outcomes.values())
    table = bits_table(candidates, by_task[tasks[0]], costs) if on_text else reach_table(candidates, by_task, costs)
    (lines, picks), own_label = table, "" if question.encoding is None else scope.label(question.encoding)
    table_labels = [label for label in lines if label == own_label or on_text or label in picks]
    table_labels.sort(key=lambda label: label != own_label)
    factor = min((share.factor for outcomes in by_task.values() for _, share in outcomes.values()), default=0.0)
    rejects = [label for label in candidates if label not in picks]
    unknown = [label for label in labels if label not in candidates]
    sentences = [f"{task}: {scope.task_summary(task)}" for task in tasks]
    if own_label and own_label not in candidates:
        command = f"posenc board --encodings {question.encoding!r} does"
        sentences.insert(0, f"Yours, `{own_label}`, was never measured enough there; {command}.")
    sentences += [f"Not recommended: {label_list(rejects)}."] if rejects else []
    sentences += [f"Too few seeds to say: {label_list(unknown)}."] if unknown else []
    cited_results = [outcomes[label][0] for outcomes in by_task.values() for label in table_labels if label in outcomes]
    heading = f"seeds that carry to {times(factor)} on" if factor > 1 else "seeds that learned"
    text_measures = [f"bits at {times(factor)}", f"R({times(factor)[:-1]})"]
    measures = text_measures if on_text else [f"{heading} {task}" for task in tasks]
    return Advice(
        answer_line(question, own_label, picks, join_words(tasks), on_text, factor),
        tuple(tasks),
        () if factor < question.factor else tuple(picks),
        tuple(rejects),
        tuple(unknown),
        tuple(run["key"] for result in cited_results for run in result.runs),
        ("encoding", *measures, "time of a layer", "cache, bytes", "why"),
        tuple((label, *lines[label]) for label in table_labels),
        tuple(sentences),
    )


def answer_line(question: Question, label: str, picks: Sequence[str], tasks: str, text: bool, longest: float) -> str:
    """Return the recommendation in one line."""
    lengths = f"from {count(question.train_length)} to {count(question.test_length)}"
    if longest < question.factor:
        gap = f"{times(question.factor)} the trained length was never measured on {tasks}, {times(longest)} was"
        return f"Nothing to take {lengths}: {gap}."
    if not picks:
        return f"Nothing to take: no encoding carries {lengths} with most of its seeds on {tasks}."
    choice = label if label in picks else picks[0]
    standing = "needs the fewest bits per byte" if choice == picks[0] else "is not surely beaten in bits per byte"
    claim = f"{standing} {lengths}" if text else f"carries {lengths} on {tasks}"
    further = len(picks) - 1
    ties = f", a tie with {further} more" if text else f", with {further} more"
    cheapest = "" if text or not further or choice != picks[0] else "; it is the cheapest of them"
    verb = "Keep" if choice == label else "Take"
    return f"{verb} `{choice}`: it {claim}{ties * (further > 0)}{cheapest}."


def cost_cells(label: str, costs: Costs) -> tuple[str, str]:
    """Return the time of a layer, relative to one without position, and the bytes of its cache."""
    cost = costs.get(label)
    return (times(cost.forward), count(cost.cache_bytes)) if cost else (DASH, DASH)


def reach_table(candidates: Sequence[str], by_task: Mapping[str, TaskOutcomes], costs: Costs) -> Ranking:
    """Return a line for each encoding, the cheapest first, and those that carry so far on every task."""
    ranking = sorted(candidates, key=lambda label: (costs[label].forward if label in costs else math.inf, label))
    picks = [label for label in ranking if all(outcomes[label][1].is_majority for outcomes in by_task.values())]
    winners = {task: compare_labels(picks, outcomes).winners() for task, outcomes in by_task.items() if len(picks) > 1}
    lines = {}
    for label in ranking:
        seeds = [outcomes[label][1] for outcomes in by_task.values()]
        shares = [f"{at.text} ({percent(at.low)} to {percent(at.high)} %)" for at in seeds]
        won_tasks = [task for task, winning in winners.items() if label in winning]
        reason = "the cheapest that carries" if [label] == picks[:1] else "carries, and costs more"
        reason = f"ahead of all others on {join_words(won_tasks)}" if won_tasks else reason
        lines[label] = (*shares, *cost_cells(label, costs), reason if label in picks else "does not carry so far")
    return lines, picks


def bits_table(candidates: Sequence[str], outcomes: TaskOutcomes, costs: Costs) -> Ranking:
    """Return a line for each encoding on text, the fewest bits first, and the first with its ties."""
    factor = outcomes[candidates[0]][1].factor if candidates else 1.0
    bits, growth = claims.bits_at(factor), claims.growth_at(factor)

    def mean(label: str, measure: Measure) -> float:
        return fmean([x for run in outcomes[label][0].runs if (x := measure.value_of(run)) is not None] or [math.inf])

    ranking = sorted(candidates, key=lambda label: mean(label, bits))
    first, *rest = ranking or [""]
    # Each is compared with the first alone, so p is corrected for these pairs only.
    comparisons = [claims.compare_encodings([outcomes[first][0], outcomes[label][0]], bits) for label in rest]
    pairs = [pair for comparison in comparisons for pair in comparison.differences]
    ties = {label for pair in pairs if pair.p * len(pairs) >= LEVEL for label in (pair.first, pair.second)}
    picks = [label for label in ranking if label == first or label in ties]
    lines = {}
    for label in ranking:
        reason = "the fewest bits" if label == first else "a tie with it" if label in picks else "more bits"
        flat = "stays flat" if outcomes[label][1].is_majority else "does not stay flat"
        means = f"{mean(label, bits):.3f}", f"{mean(label, growth):.2f}"
        lines[label] = *means, *cost_cells(label, costs), f"{reason}; {flat}"
    return lines, picks


def nearest_tasks(question: Question, tasks: Sequence[str]) -> list[str]:
    """Return the tasks nearest to a question. Raises ValueError if there are none, or none for such a model."""
    readers = ("decoder", "encoder_decoder") if question.causal else ("encoder",)
    scores = {task: task_similarity(word_set(question.task), task) for task in tasks}
    scores = {question.task: 1.0} if question.task in tasks else scores
    best = [task for task, score in scores.items() if score == max(scores.values()) > 0]
    # The code of a user's own task is not run, so it is assumed to fit any model.
    classes = {task: TASKS.get(task.partition("(")[0]) for task in best}
    fitting = [task for task, t in classes.items() if t is None or (t.reads in readers and t.axes == question.axes)]
    if not best:
        names = ", ".join(tasks) or "none, as the board has no rows yet"
        raise ValueError(f"no task of the board is near {quote(question.task)}, and it says nothing; it has {names}")
    if not fitting:
        model = "a causal model" if question.causal else "a model that sees all tokens"
        kind = f"{model} on {'one axis' if question.axes == 1 else 'two axes'}"
        raise ValueError(f"{join_words(best)} was never measured for {kind}; see --bidirectional and --axes")
    return fitting[:MAX_TASKS]


def word_set(text: str) -> set[str]:
    """Return the words of a text, without plural endings."""
    return {word.removesuffix("s") if len(word) > 3 else word for word in re.findall(r"[a-z]+", text.lower())}


def task_similarity(words: set[str], task: str) -> float:
    """Return twice the share of a task's name in the words, plus the number of other names there."""
    task_name = task.partition("(")[0]
    parts = word_set(task_name.replace("_", " "))
    also_called = word_set(" ".join(TASKS[task_name].also_called)) if task_name in TASKS else set[str]()
    return 2 * len(words & parts) / len(parts) + len(words & (also_called - parts))


def task_outcomes(task_results: Sequence[Result], factor: float) -> TaskOutcomes:
    """Return each encoding's result at the first tested multiple from the factor on, or at the longest one.

    Within the trained length, the seeds that learned carry.
    """
    if factor <= 1:
        return {
            r.label: (r, SeedShare.from_counts(r.trained_length or math.nan, 1.0, len(r.learned), len(r.runs)))
            for r in task_results
        }
    shares = [(result, share) for result in task_results for share in seed_shares(result, run_multiple)]
    factors = sorted({share.factor for _, share in shares})
    multiple = next((longer for longer in factors if longer >= factor), factors[-1] if factors else None)
    return {result.label: (result, share) for result, share in shares if share.factor == multiple}


def compare_labels(labels: Sequence[str], outcomes: TaskOutcomes) -> Comparison:
    """Compare all pairs of encodings on one task, at the multiple of the question."""
    result, share = outcomes[labels[-1]]
    measure = claims.growth_at(share.factor) if result.is_text else claims.exact_match_at(share.factor)
    return claims.compare_encodings([outcomes[label][0] for label in labels], measure)
