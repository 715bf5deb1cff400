"""The numbers of the board, from its rows alone: how far each encoding carries on each task, and all tasks together."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.lab.board import scope
from posenc.lab.board.costs import Costs
from posenc.lab.experiments.recipes import FIRST_SEED
from posenc.lab.results.statistics import share_interval
from posenc.lab.results.summary import (
    FLAT,
    NOTHING,
    Cell,
    Record,
    Result,
    cell,
    count,
    get,
    how_flat,
    number,
    percent,
    ratio,
    results,
    spec_of,
    task_of,
    times,
)
from posenc.lab.results.summary.claims import carried, reach_by, reach_of, reaches


def evidence(rows: Sequence[Record]) -> list[Record]:
    """The rows that count: those of seeds that nothing was searched on."""
    return [row for row in rows if (number(get(row, "experiment", "seed")) or 0) >= FIRST_SEED]


def far_from_learned(rows: Sequence[Record]) -> set[tuple[str, str]]:
    """The pairs (task, label) of which as many seeds as there have to be were run, and none came near."""
    best: dict[tuple[str, str], list[float]] = {}
    for row in evidence(rows):
        score = number(row["in_distribution"].get("exact_match"))
        best.setdefault((task_of(row), spec_of(row)), []).append(1.0 if score is None else score)
    return {pair for pair, scores in best.items() if len(scores) >= scope.FIRST_SEEDS and max(scores) < scope.NEAR}


def carried_by(run: Record) -> float | None:
    """The multiple of the trained length up to which one run carries: as in summaries, and for text to which R is flat.

    1 where it carries no further, 0 where it has not learned; None where no longer length was measured.
    """
    flat = reach_by(run, "perplexity_ratio", lambda ratio: ratio <= FLAT)
    return reach_of(run) if flat is None else flat


def reach(result: Result) -> float:
    """The multiple to which more than half of the seeds carry; 1 where no further, 0 where most have not learned."""
    found = reaches(result, carried_by)
    return found.median if found else math.nan


@dataclass(frozen=True)
class Table:
    """One table: its title, a sentence, headings, and a row of cells for each encoding behind its label."""

    title: str
    says: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def task_table(rows: Sequence[Record], task: str) -> Table:
    """How many seeds carry to each length, or for text R(k); sorted by reach, which ranks nobody: see the intervals."""
    found = sorted(results(evidence(rows), task), key=lambda r: (-reach(r), -len(r.learned) / len(r.runs), r.label))
    text = any(result.is_text for result in found)
    lengths = sorted({(length, factor) for r in found for length, factor in r.lengths() if factor and factor > 1})
    trained = next((count(r.trained_length) for r in found if r.trained_length), NOTHING)
    headings = ["encoding", "learned", f"bits per byte at {trained}" if text else f"exact match at {trained}, %"]
    headings += [f"{'R at ' * text}{count(length)} ({times(factor or 1)})" for length, factor in lengths]
    headings += [] if text else ["steps to 99 %"]
    cells = tuple((r.label, tuple(cells_of(r, text, [length for length, _ in lengths]))) for r in found)
    return Table(task, scope.meaning(task), tuple(headings), cells)


def cells_of(result: Result, text: bool, lengths: Sequence[float]) -> list[Cell]:
    learned = Cell(f"{len(result.learned)} of {len(result.runs)}", goodness=len(result.learned) / len(result.runs))
    if text:
        in_range = cell(result.spread_of_all("in_distribution", "bits_per_byte"), lambda x: f"{x:.2f}")
        beyond = [cell(result.at(length, "perplexity_ratio"), ratio, how_flat) for length in lengths]
        return [learned, in_range, *beyond]
    at_length = {at.length: at for at in carried(result, carried_by)}
    cells = [learned, cell(result.in_range(), percent, lambda x: x)]
    for length in lengths:
        at = at_length.get(length)
        cells.append(Cell(NOTHING, missing=True) if at is None else Cell(at.words, goodness=at.count / at.of))
    return [*cells, cell(result.spread("steps_to_learned"), count)]


@dataclass(frozen=True)
class Standing:
    """One encoding over all tasks.

    tasks, learned   how many tasks with a mark to reach it was measured on, all but text, and on how many most seeds
                     learned
    reach            the geometric mean over those tasks and text of the multiple to which most seeds carry; who does
                     not learn carries no further than trained
    speed            the median over those tasks of its steps to learn, in units of the median of all that learned
                     there; infinite where it learned fewer than half of them
    """

    label: str
    tasks: int
    learned: int
    reach: float
    speed: float
    cpu_s: float


def standings(rows: Sequence[Record]) -> list[Standing]:
    """Of every encoding, the furthest reach first; those that were measured on half of the tasks or fewer come last."""
    found = results(evidence(rows))
    typical = {
        task: statistics.median(steps)
        for task in dict.fromkeys(r.task for r in found)
        if (steps := [s.median for r in found if r.task == task and (s := r.spread("steps_to_learned"))])
    }
    by_label: dict[str, list[Result]] = {}
    for result in found:
        by_label.setdefault(result.label, []).append(result)
    out = []
    for label, on in by_label.items():
        marked = [r for r in on if not r.is_text]
        speeds = [
            steps.median / typical[r.task] if learns(r) and (steps := r.spread("steps_to_learned")) else math.inf
            for r in marked
        ]
        reached = [x for r in on if not math.isnan(x := reach(r))]
        out.append(
            Standing(
                label,
                tasks=len(marked),
                learned=sum(map(learns, marked)),
                reach=statistics.geometric_mean(max(x, 1.0) for x in reached) if reached else math.nan,
                # The lower one, which is finite for who learned just half.
                speed=statistics.median_low(speeds) if speeds else math.inf,
                cpu_s=statistics.median(number(get(run, "train_cpu_s")) or 0.0 for r in on for run in r.runs),
            )
        )
    most = max((one.tasks for one in out), default=0)
    return sorted(out, key=lambda one: (2 * one.tasks <= most, -one.reach, -one.learned, one.label))


def learns(result: Result) -> bool:
    """Whether most seeds learn."""
    return 2 * len(result.learned) > len(result.runs)


def summary_table(rows: Sequence[Record], costs: Costs) -> Table:
    """All encodings, over all tasks, with what they cost."""
    headings = ("encoding", "tasks learned", "reach", "steps, relative", "CPU s")
    headings += ("parameters", "cache, bytes", "forward", "step")
    lines = []
    for one in standings(rows):
        priced = [NOTHING] * 4
        if cost := costs.get(one.label):
            priced = [count(cost.parameters), count(cost.cache_bytes), times(cost.forward), times(cost.step)]
        speed = NOTHING if math.isinf(one.speed) else times(one.speed)
        reached = NOTHING if math.isnan(one.reach) else times(one.reach)
        learned = Cell(f"{one.learned} of {one.tasks}", goodness=one.learned / max(one.tasks, 1))
        plain = (reached, speed, f"{one.cpu_s:.1f}", *priced)
        lines.append((one.label, (learned, *(Cell(words, missing=words == NOTHING) for words in plain))))
    says = (
        "Learned: on how many tasks most seeds did; text has no mark to reach. Reach: the geometric mean over all its "
        "tasks and text of the multiple of the trained length to which most seeds carry; 1x is no further than "
        "trained, or not learned. Steps: to learn, a median over its tasks, in units of the median encoding. CPU s: of "
        "one training. Parameters: its own. Cache: of one token in one layer of width 512 in bfloat16. Forward, step: "
        "CPU time of that layer, and of a training step of the small model, in units of `none`."
    )
    return Table("All tasks", says, headings, tuple(lines))


def intervals(rows: Sequence[Record]) -> list[tuple[str, str]]:
    """What so many of so many seeds say of all seeds, once for all tables: the 95 % interval of their share."""
    sizes = sorted({at.of for result in results(evidence(rows)) for at in carried(result, carried_by)})
    shares = [(f"{n} of {of}", share_interval(n / of, of)) for of in sizes for n in range(of + 1)]
    return [(words, f"{percent(low)} to {percent(high)} %") for words, (low, high) in shares]


def unmeasured(rows: Sequence[Record], seeds: int) -> list[str]:
    """Sentences on what the rows do not hold."""
    found = results(evidence(rows))
    labels = list(dict.fromkeys(r.label for r in found))
    far = far_from_learned(rows)
    out = []
    for task in dict.fromkeys(r.task for r in found):
        there = {r.label: len(r.runs) for r in found if r.task == task and (task, r.label) not in far}
        if without := [f"`{label}`" for label in labels if label not in there and (task, label) not in far]:
            out.append(f"{task}: {', '.join(without)}. They were not run there, or have no meaning there.")
        if fewer := [f"`{label}` ({n})" for label, n in there.items() if n < seeds]:
            out.append(f"{task}: fewer than {seeds} seeds of {', '.join(fewer)}.")
    return [
        *out,
        f"Where none of {scope.FIRST_SEEDS} seeds answers {percent(scope.NEAR)} % of the sequences of the trained "
        "length, no more were run.",
        "Larger models, longer training, and lengths beyond those of the tables: nothing here says what happens there.",
        "Learning rates were searched for each encoding on two tasks with one seed, and not for each task.",
    ]
