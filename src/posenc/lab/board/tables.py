"""The tables of the board, from its rows: each encoding's reach by task, and over all tasks."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.lab.board import scope
from posenc.lab.board.costs import Costs
from posenc.lab.experiments.recipes import FIRST_SEED
from posenc.lab.results.statistics import share_interval
from posenc.lab.results.summary import (
    DASH,
    FLAT_RATIO,
    Cell,
    Record,
    Result,
    count,
    flatness,
    get,
    number,
    percent,
    ratio,
    results,
    spec_of,
    task_of,
    times,
    to_cell,
)
from posenc.lab.results.summary.claims import reach_estimate, run_reach, run_reach_by, seed_shares


def evidence(rows: Sequence[Record]) -> list[Record]:
    """Return the rows of seeds that no search used."""
    return [row for row in rows if (number(get(row, "experiment", "seed")) or 0) >= FIRST_SEED]


def hopeless_pairs(rows: Sequence[Record]) -> set[tuple[str, str]]:
    """Return the pairs (task, label) whose first seeds were all run and did not come near to learning."""
    best: dict[tuple[str, str], list[float]] = {}
    for row in evidence(rows):
        score = number(row["in_distribution"].get("exact_match"))
        best.setdefault((task_of(row), spec_of(row)), []).append(1.0 if score is None else score)
    return {pair for pair, scores in best.items() if len(scores) >= scope.FIRST_SEEDS and max(scores) < scope.MIN_SCORE}


def run_multiple(run: Record) -> float | None:
    """Return the multiple of the trained length to which a run carries, or R stays flat on text.

    1 if it carries no further, 0 if it has not learned; None if no longer length was measured.
    """
    flat = run_reach_by(run, "perplexity_ratio", lambda ratio: ratio <= FLAT_RATIO)
    return run_reach(run) if flat is None else flat


def median_reach(result: Result) -> float:
    """Return the multiple to which more than half of the seeds carry; 0 if most have not learned."""
    estimate = reach_estimate(result, run_multiple)
    return estimate.median if estimate else math.nan


@dataclass(frozen=True)
class Table:
    """A table: its title, a sentence, headings, and (label, cells) for each encoding."""

    title: str
    says: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def task_table(rows: Sequence[Record], task: str) -> Table:
    """Return a task's table by reach: the seeds that carry to each length, or for text R(k)."""
    ranking = results(evidence(rows), task)
    ranking.sort(key=lambda r: (-median_reach(r), -len(r.learned) / len(r.runs), r.label))
    in_bits = any(result.is_text for result in ranking)
    lengths = sorted({(length, factor) for r in ranking for length, factor in r.lengths() if factor and factor > 1})
    trained = next((count(r.trained_length) for r in ranking if r.trained_length), DASH)
    headings = ["encoding", "learned", f"bits per byte at {trained}" if in_bits else f"exact match at {trained}, %"]
    headings += [f"{'R at ' * in_bits}{count(length)} ({times(factor or 1)})" for length, factor in lengths]
    headings += [] if in_bits else ["steps to 99 %"]
    cells = tuple((r.label, tuple(result_cells(r, in_bits, [length for length, _ in lengths]))) for r in ranking)
    return Table(task, scope.task_summary(task), tuple(headings), cells)


def result_cells(result: Result, in_bits: bool, lengths: Sequence[float]) -> list[Cell]:
    learned = Cell(f"{len(result.learned)} of {len(result.runs)}", goodness=len(result.learned) / len(result.runs))
    if in_bits:
        in_range = to_cell(result.estimate_of_all("in_distribution", "bits_per_byte"), lambda x: f"{x:.2f}")
        flatness_cells = [to_cell(result.at(length, "perplexity_ratio"), ratio, flatness) for length in lengths]
        return [learned, in_range, *flatness_cells]
    at_length = {share.length: share for share in seed_shares(result, run_multiple)}
    cells = [learned, to_cell(result.in_range(), percent, lambda x: x)]
    for length in lengths:
        share = at_length.get(length)
        dash = Cell(DASH, is_missing=True)
        cells.append(Cell(share.text, goodness=share.count / share.seeds) if share else dash)
    return [*cells, to_cell(result.estimate("steps_to_learned"), count)]


@dataclass(frozen=True)
class Standing:
    """One encoding over all tasks.

    tasks, learned   the number of exact tasks that it was measured on, and of those that most seeds learned
    reach            the geometric mean over those tasks and text of the multiple to which most seeds carry, at least 1
    speed            the median over those tasks of its steps to learn, in units of the median of all encodings that
                     learned there; infinite if it learned fewer than half of them
    """

    label: str
    tasks: int
    learned: int
    reach: float
    speed: float
    cpu_s: float


def standings(rows: Sequence[Record]) -> list[Standing]:
    """Return the standing of each encoding by reach. Those measured on at most half of the tasks come last."""
    all_results = results(evidence(rows))
    steps_on: dict[str, list[float]] = {}
    for result in all_results:
        if steps := result.estimate("steps_to_learned"):
            steps_on.setdefault(result.task, []).append(steps.median)
    by_label: dict[str, list[Result]] = {}
    for result in all_results:
        by_label.setdefault(result.label, []).append(result)
    out = []
    for label, label_results in by_label.items():
        exact_results = [r for r in label_results if not r.is_text]
        speeds = [
            steps.median / statistics.median(steps_on[r.task])
            if is_learned(r) and (steps := r.estimate("steps_to_learned"))
            else math.inf
            for r in exact_results
        ]
        reaches = [x for r in label_results if not math.isnan(x := median_reach(r))]
        out.append(
            Standing(
                label,
                tasks=len(exact_results),
                learned=sum(map(is_learned, exact_results)),
                reach=statistics.geometric_mean(max(x, 1.0) for x in reaches) if reaches else math.nan,
                # The low median, which is finite if just half were learned.
                speed=statistics.median_low(speeds) if speeds else math.inf,
                cpu_s=statistics.median(number(run.get("train_cpu_s")) or 0.0 for r in label_results for run in r.runs),
            )
        )
    max_tasks = max((standing.tasks for standing in out), default=0)
    return sorted(out, key=lambda s: (2 * s.tasks <= max_tasks, -s.reach, -s.learned, s.label))


def is_learned(result: Result) -> bool:
    """Whether most seeds learned."""
    return 2 * len(result.learned) > len(result.runs)


def summary_table(rows: Sequence[Record], costs: Costs) -> Table:
    """Return the table of all encodings over all tasks, with their costs."""
    headings = ("encoding", "tasks learned", "reach", "steps, relative", "CPU s")
    headings += ("parameters", "cache, bytes", "forward", "step")
    lines = []
    for row in standings(rows):
        cost_texts = [DASH] * 4
        if cost := costs.get(row.label):
            cost_texts = [count(cost.parameters), count(cost.cache_bytes), times(cost.forward), times(cost.step)]
        speed = DASH if math.isinf(row.speed) else times(row.speed)
        reach = DASH if math.isnan(row.reach) else times(row.reach)
        learned = Cell(f"{row.learned} of {row.tasks}", goodness=row.learned / max(row.tasks, 1))
        texts = (reach, speed, f"{row.cpu_s:.1f}", *cost_texts)
        lines.append((row.label, (learned, *(Cell(words, is_missing=words == DASH) for words in texts))))
    says = (
        "Learned: on how many tasks most seeds did; text has no mark to reach. Reach: the geometric mean over all its "
        "tasks and text of the multiple of the trained length to which most seeds carry; 1x is no further than "
        "trained, or not learned. Steps: to learn, a median over its tasks, in units of the median encoding. CPU s: of "
        "one training. Parameters: its own. Cache: of one token in one layer of width 512 in bfloat16. Forward, step: "
        "CPU time of that layer, and of a training step of the small model, in units of `none`."
    )
    return Table("All tasks", says, headings, tuple(lines))


def share_intervals(rows: Sequence[Record]) -> list[tuple[str, str]]:
    """Return the 95 % interval of each share of seeds that the tables have."""
    all_results = results(evidence(rows))
    sizes = sorted({share.seeds for result in all_results for share in seed_shares(result, run_multiple)})
    shares = [(f"{n} of {seeds}", share_interval(n / seeds, seeds)) for seeds in sizes for n in range(seeds + 1)]
    return [(words, f"{percent(low)} to {percent(high)} %") for words, (low, high) in shares]


def gaps(rows: Sequence[Record], seeds: int) -> list[str]:
    """Return sentences on the measurements that the rows do not have."""
    all_results = results(evidence(rows))
    labels = list(dict.fromkeys(r.label for r in all_results))
    hopeless = hopeless_pairs(rows)
    sentences = []
    for task in dict.fromkeys(r.task for r in all_results):
        counts = {r.label: len(r.runs) for r in all_results if r.task == task and (task, r.label) not in hopeless}
        if absent := [f"`{label}`" for label in labels if label not in counts and (task, label) not in hopeless]:
            sentences.append(f"{task}: {', '.join(absent)}. They were not run there, or have no meaning there.")
        if short_labels := [f"`{label}` ({n})" for label, n in counts.items() if n < seeds]:
            sentences.append(f"{task}: fewer than {seeds} seeds of {', '.join(short_labels)}.")
    return [
        *sentences,
        f"Where none of {scope.FIRST_SEEDS} seeds answers {percent(scope.MIN_SCORE)} % of the sequences of the trained "
        "length, no more were run.",
        "Larger models, longer training, and lengths beyond those of the tables: nothing here says what happens there.",
        "Learning rates were searched for each encoding on two tasks with one seed, and not for each task.",
    ]
