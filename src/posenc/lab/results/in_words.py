"""What a figure of results shows, in words for those who do not see it: the result, from the numbers.

Each function takes what its figure takes. The caption says how a figure is read; this says what stands in it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from posenc.lab.results import figures, summary
from posenc.lab.results.summary import Record, Result, count, listed, percent, times


def short(label: str) -> str:
    return figures.short(label)


def stretch(first: float, last: float, form: Callable[[float], str], still: float) -> str:
    """How a number has changed: 'stays at 1.02', 'rises from 1.00 to 1.85'; up to `still` it stays.

    >>> stretch(1.0, 1.9, "{:.1f}".format, 0.05), stretch(1.0, 1.02, "{:.1f}".format, 0.05)
    ('rises from 1.0 to 1.9', 'stays at 1.0')
    """
    if abs(last - first) <= still:
        return f"stays at {form(last)}"
    return f"{'rises' if last > first else 'falls'} from {form(first)} to {form(last)}"


def sentence(beginning: str, parts: Iterable[str]) -> str:
    """'Beginning: part, part and part.'; nothing without parts."""
    said = list(parts)
    return f"{beginning}: {listed(said)}." if said else ""


def not_learned(found: Sequence[Result]) -> str:
    missed = [short(r.label) for r in found if not r.learned]
    return f"{listed(missed)} did not learn the task." if missed else ""


def extrapolation(records: Sequence[Record], task: str) -> str:
    """From the trained length to the longest tested, what each encoding's median does."""
    found = summary.results(records, task)
    if any(r.is_text for r in found):
        # Up to 1.05 is flat, as in the answer in words.
        ratios = along(found, "perplexity_ratio", summary.ratio, summary.FLAT - 1)
        bits = along(found, "sliding_bits_per_byte", "{:.2f}".format, 0.05)
        said = [sentence("Perplexity relative to the trained length", ratios)]
        said += [sentence("Bits per byte in sliding windows", bits)]
    else:
        said = [sentence("Exact match in percent", along(found, "exact_match", percent, 0.02))]
    return joined([*said, not_learned(found)])


def along(found: Sequence[Result], measure: str, form: Callable[[float], str], still: float) -> list[str]:
    out = []
    for r in found:
        known = [(factor, s.median) for length, factor in r.lengths() if (s := r.at(length, measure)) is not None]
        if len(known) > 1:
            factor, last = known[-1]
            words = stretch(known[0][1], last, form, still)
            where = f" {'up to' if words.startswith('stays') else 'at'} {times(factor)}" if factor else ""
            out.append(f"{short(r.label)} {words}{where}")
    return out


def learning(records: Sequence[Record], task: str) -> str:
    """When each encoding has learned the task, or how well it does at the end."""
    found = summary.results(records, task)
    if any(r.is_text for r in found):
        last = [(r, r.spread_of_all("in_distribution", "bits_per_byte")) for r in found]
        return sentence(
            "Bits per byte at the end of training", (f"{short(r.label)} {s.median:.2f}" for r, s in last if s)
        )
    steps = [(r, r.spread("steps_to_learned"), r.spread("cpu_s_to_learned")) for r in found]
    said = sentence(
        "99 % are right after",
        (f"{count(s.median)} steps, {c.median:.1f} CPU seconds with {short(r.label)}" for r, s, c in steps if s and c),
    )
    return joined([said, not_learned(found)])


def ablation(records: Sequence[Record], task: str) -> str:
    """What is left of each encoding's score under each damage."""
    said = []
    for r in summary.results(records, task):
        form = "{:.2f}".format if r.is_text else percent
        left = [
            f"{form(spread.median)} {words}"
            for kind, words in figures.ABLATIONS.items()
            if (spread := r.spread("ablation", kind)) is not None
        ]
        said += [f"{short(r.label)}: {', '.join(left)}"] if left else []
    unit = "Bits per byte" if any(r.is_text for r in summary.results(records, task)) else "Exact match in percent"
    return f"{unit}. {'; '.join(said[: summary.MOST_NAMES])}." if said else ""


def depths(records: Sequence[Record], task: str) -> str:
    """Where each encoding that learned finds least."""
    said = []
    for r in summary.results(records, task):
        if table := figures.found_by_place(r):
            (length, place), least = min(table.items(), key=lambda cell: cell[1])
            said.append(
                f"{short(r.label)} finds {percent(max(table.values()))} % at best and {percent(least)} % at length "
                f"{count(length)}, {100 * place:.0f} % into the text"
            )
    return sentence("Least is found", said)


def headline(records: Sequence[Record]) -> str:
    """For each task, how soon each encoding learns it and how far it carries."""
    said: dict[str, list[str]] = {}
    for row in summary.headline(records):
        if row.cpu_seconds is not None and row.reach is not None:
            far = max(row.reach.median, 1.0)
            said.setdefault(row.task, []).append(
                f"{short(row.label)} {row.cpu_seconds.median:.1f} CPU seconds and {times(far)}"
            )
    return joined(sentence(f"{task}, time to learn and reach", parts) for task, parts in said.items())


def added(records: Sequence[Record]) -> str:
    """How large what is added is, at the first and at the last position."""
    said = []
    for label, run, table in figures.tables_of(records, "added", 2):
        sizes = np.sqrt(np.nanmean(table**2, axis=1))
        said.append(
            f"{short(label)} on {summary.task_of(run)} adds values of size "
            f"{sizes[0]:.2f} at position 0 and {sizes[-1]:.2f} at position {count(len(table) - 1)}"
        )
    return sentence("Root mean square over channels", said)


def wavelengths(records: Sequence[Record]) -> str:
    """The shortest and the longest turn of each encoding."""
    said = []
    for label, _, waves in figures.tables_of(records, "wavelengths", 1):
        known = waves[np.isfinite(waves)]
        if len(known):
            said.append(
                f"{short(label)} needs from {count(round(known.min(), 1))} to {count(round(known.max()))} positions, "
                f"over {len(waves)} pairs"
            )
    return sentence("For one turn", said)


def similarity(records: Sequence[Record]) -> str:
    """How alike neighbours are, and how alike the first and the last position."""
    said = []
    for label, run, table in figures.tables_of(records, "added", 2):
        alike = figures.cosines(table)
        # Of a vector of zeros there is no cosine.
        if np.isfinite(neighbours := np.diagonal(alike, 1)).any() and np.isfinite(alike[0, -1]):
            near, far = float(np.nanmean(neighbours)), float(alike[0, -1])
            said.append(
                f"{short(label)} on {summary.task_of(run)} {near:.2f} of neighbours, {far:.2f} of first and last"
            )
    for label, _, turned in figures.tables_of(records, "rotation", 1):
        lowest = int(np.nanargmin(turned)) if np.isfinite(turned).any() else 0
        said.append(
            f"{short(label)} {turned[0]:.2f} at no distance, least at {count(lowest)} with {turned[lowest]:.2f}"
        )
    return sentence("Cosine", said)


def bias(records: Sequence[Record]) -> str:
    """What the heads add to the nearest key but the token itself, and to the farthest."""
    said = []
    for label, run, picture in figures.biases_of(records):
        heads, distances = figures.numbers(picture["heads"]), figures.numbers(picture.get("distance"))
        if heads.shape[1] < 2 or len(distances) != heads.shape[1]:
            continue
        near, far = (f"{signed(np.nanmin(heads[:, at]))} to {signed(np.nanmax(heads[:, at]))}" for at in (1, -1))
        where = count(float(distances[-1]))
        said.append(
            f"{short(label)} on {summary.task_of(run)} {near} at distance {count(distances[1])}, {far} at {where}"
        )
    return sentence("The heads add", said)


def signed(value: float) -> str:
    """Two digits; a tiny negative number would be -0.00."""
    return f"{round(value, 2) + 0.0:.2f}"


PLACES = ("the first token", "the token before", "the token itself")
MOSTLY = 0.3
"""The mean weight from which a head is said to look at a place."""


def attention(record: Record) -> str:
    """How many heads look mostly at the first token, the one before or themselves, with positions and without."""
    said = []
    for kind, words in (("with", "With position"), ("without", "Position removed")):
        weights = figures.numbers(summary.get(record, "attention", kind) or [])
        if weights.ndim == 4 and weights.shape[-1] == weights.shape[-2] > 2:
            said.append(f"{words}: {where_heads_look(weights)}.")
    return joined(said)


def where_heads_look(weights: np.ndarray) -> str:
    maps: Any = weights.reshape(-1, *weights.shape[-2:])
    # The first two queries have little to choose from.
    rows = np.arange(2, maps.shape[-1])
    shares = np.stack([maps[:, rows, at].mean(1) for at in (0 * rows, rows - 1, rows)])
    best = np.where(shares.max(0) >= MOSTLY, shares.argmax(0), len(PLACES))
    counted = [(int((best == place).sum()), f"mostly at {words}") for place, words in enumerate(PLACES)]
    counted.append((int((best == len(PLACES)).sum()), "at many tokens or at others"))
    return f"of {len(maps)} heads " + listed([f"{n} look{'s' * (n == 1)} {words}" for n, words in counted if n])


def joined(said: Iterable[str]) -> str:
    return " ".join(part for part in said if part)
