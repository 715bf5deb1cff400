"""The pictures of one encoding, each chosen by its doors and attributes, with the numbers and the words behind it.

What training has yet to fill is never drawn: a table of random numbers looks like a finding. What is known of it is,
which row each position or distance reads; its numbers come from runs (`after_training`).
"""

import copy
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posenc import lab
from posenc.encoding.base import BIASES, Encoding, Shape, parts_of
from posenc.encoding.biases import total
from posenc.lab.runs.record import rounded
from posenc.model.attention import Attention, Call
from posenc.model.seeding import seeded
from posenc.tokens.masks import bidirectional, causal
from posenc.tokens.positions import Positions

MOST_CELLS = 33
"""Cells on each axis of a grid at most; an odd number has a cell in the middle."""

MOST_TOKENS = 32
"""Tokens of an attention map at most."""

FAR = 1_000_000
"""How far temperatures are drawn (positions)."""


@dataclass
class Drawn:
    """Figures by name, the numbers behind them, tables (title, headers, rows), and sentences about all of them.

    text  what `posenc show` says before them
    """

    figures: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text: str = ""

    def save(self, folder: Path) -> list[Path]:
        """Write the figures as PNG files."""
        return [lab.figures.save(figure, folder / f"{name}.png") for name, figure in self.figures.items()]


@dataclass(frozen=True)
class Sight:
    """What is drawn: an encoding in a model of a shape, over so many positions.

    other  the same with its tables drawn from another seed; itself where it is trained
    """

    encoding: Encoding
    shape: Shape
    tokens: int
    other: Encoding

    @property
    def name(self) -> str:
        return str(self.encoding)

    @property
    def gridded(self) -> bool:
        return self.encoding.axes > 1

    @property
    def map(self) -> Encoding | None:
        """The part that shows another encoding mapped distances, if there is one."""
        return next((part for part in parts_of(self.encoding) if hasattr(part, "formula_positions")), None)

    def start(self) -> str:
        """What a title says of an encoding that is trained."""
        return " (before training)" if any(True for _ in self.encoding.parameters()) else ""


@torch.no_grad()
def draw(encoding: Encoding, shape: Shape, tokens: int) -> Drawn:
    """All pictures that an encoding has; where there is none, a sentence says why."""
    drawn, sight = Drawn(), Sight(encoding, shape, tokens, of_another_seed(encoding))
    doors = added, rows_of_positions, spectrum, rotation, temperature, bias
    for picture in (*doors, buckets, mapped_distance, attention):
        try:
            picture(drawn, sight)
        except Exception as error:
            # Somebody's own encoding may fail in any way, and the other pictures are still worth seeing.
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            words = " ".join(str(error).split())
            drawn.notes.append(f"No picture of its {picture.__name__.replace('_', ' ')}: {kind}{words}.")
    if not drawn.figures and not drawn.notes:
        empty = "its doors hold nothing to draw"
        reason = empty if encoding.doors else "it opens no door, so attention sees no position"
        drawn.notes.append(f"No picture: {reason}.")
    return drawn


def of_another_seed(encoding: Encoding) -> Encoding:
    """A copy whose tables, if it has any, are drawn anew; single numbers for each head mean something, and stay."""
    other = copy.deepcopy(encoding)
    with seeded(1):
        for module in other.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    for kept, drawn in zip(encoding.parameters(), other.parameters(), strict=True):
        if kept.dim() < 2:
            drawn.copy_(kept)
    return other


def known(drawn: Drawn, values: Tensor, others: Tensor, what: str) -> bool:
    """Whether numbers say something before training; else a note says what they are."""
    if values.equal(others) and bool(values.any()):
        return True
    how = "starts at zero" if values.equal(others) else "starts at random"
    drawn.notes.append(f"No picture of {what} before training: it {how}, and says nothing until it is trained.")
    return False


def added(drawn: Drawn, sight: Sight) -> None:
    """Door 1: what is added at each position, and how alike positions look."""
    encoding, name = sight.encoding, sight.name
    if "embed" not in encoding.doors:
        return
    at = plane(sight) if sight.gridded else Positions.count(sight.tokens)
    zeros = torch.zeros(1, at.tokens, sight.shape.dim)
    table = encoding.embed(zeros, at)[0]
    if not known(drawn, table, sight.other.embed(zeros, at)[0], "what is added"):
        return
    drawn.facts["added"] = rounded(table)
    if sight.gridded:
        title = f"{name}: what is added at each cell{sight.start()}"
        drawn.figures["heatmap"] = lab.figures.heatmap(table.numpy(), title)
        unit = torch.nn.functional.normalize(table.double(), dim=-1)
        seen = f"{name}: cosine with what the middle cell is given{sight.start()}"
        add_centre(drawn, sight, "centre", (unit @ unit[middle(sight)])[None], seen)
        return
    drawn.figures |= of_positions(table.numpy(), name, sight.start())


def of_positions(table: np.ndarray, name: str, when: str) -> dict[str, Any]:
    """The figures of what is added at each position, [positions, channels]."""
    count = len(table)
    chosen = sorted({0, 1, 2, count // 4, count // 2, count - 1} & {*range(count)})
    return {
        "heatmap": lab.figures.heatmap(table, f"{name}: what is added at each position{when}"),
        "similarity": lab.figures.similarity_matrix(table, f"{name}: similarity of positions{when}"),
        "fingerprint": lab.figures.fingerprint(table, chosen, f"{name}: how positions differ{when}"),
    }


def rows_of_positions(drawn: Drawn, sight: Sight) -> None:
    """For tables with a row for each position: which row each reads, which is all that is known before training."""
    for part in parts_of(sight.encoding):
        table, row = getattr(part, "table", None), getattr(part, "row", None)
        if "embed" not in part.doors or sight.gridded or table is None or row is None:
            continue
        at = Positions.count(sight.tokens).with_horizon(sight.tokens)
        rows = row(at)[0].double()
        drawn.facts["rows"] = {"position": list(range(sight.tokens)), "row": rows.tolist()}
        drawn.notes.append(
            f"Each position reads a row of its own, of {len(table):,}: nothing ties it to its neighbours, and a "
            "row that training has not visited is noise."
        )
        title = f"{part}: the row of its table that each position reads"
        drawn.figures["rows"] = lab.figures.staircase(range(sight.tokens), rows.numpy(), title, "position", "row")


def spectrum(drawn: Drawn, sight: Sight) -> None:
    """The wavelength of each pair, before and after a schedule, and which pairs complete a turn in the context."""
    # Wrappers hand on the waves of what they wrap, which is drawn itself.
    inside = [module for module in sight.encoding.modules() if isinstance(module, Encoding)]
    waving = [e for e in inside if e.wavelengths is not None and sum(isinstance(m, Encoding) for m in e.modules()) == 1]
    for place, encoding in enumerate(waving):
        suffix = f"_{place + 1}" if place else ""
        before, after, schedule, horizon = waves_of(encoding)
        # How far coordinates reach, and their unit.
        context, unit = (sight.tokens, "positions") if not sight.gridded else (cells(sight), "cells")
        if sight.gridded and fine(after):
            context, unit = 2, "units (coordinates from -1 to 1)"
        said = turns_in_words(after, context, unit)
        if before is None:
            drawn.notes.append(said[0].upper() + said[1:])
        else:
            drawn.notes += [f"Before {schedule}: {turns_in_words(before, context, unit)}", f"After{horizon}: {said}"]
        factor = 4 if horizon else getattr(schedule, "factor", 1)
        if factor > 1:
            drawn.notes.append(f"After, farther out: {turns_in_words(after, factor * context, unit)}")
        drawn.facts |= {
            f"wavelengths{suffix}": finite(after),
            f"wavelengths_before{suffix}": None if before is None else finite(before),
            f"pairs_without_a_turn{suffix}": int((after > context).sum()),
            f"context{suffix}": context,
        }
        plain, title = None if before is None else before.numpy(), f"{encoding}: wavelength of each pair"
        drawn.figures[f"wavelengths{suffix}"] = lab.figures.spectrum(after.numpy(), plain, context, title, said, unit)
        rows = [[str(i), f"{w:,.2f}", f"{context / w:,.3f}"] for i, w in enumerate(after.tolist())]
        headers = ["pair", f"wavelength ({unit})", f"turns in {context:,g} {unit}"]
        drawn.tables.append((f"Wavelengths of {encoding}", headers, rows[:8] + rows[8:][-2:]))
        if not sight.gridded:
            hand = sight.tokens // 4
            title = f"{encoding}: the pairs of position {hand} as hands"
            drawn.figures[f"clock{suffix}"] = lab.figures.clock((2 * torch.pi / after).numpy(), hand, title)


def waves_of(encoding: Any) -> tuple[Tensor | None, Tensor, Any, str]:
    """Wavelengths before a schedule and after it, the schedule, and in words the horizon it was asked for."""
    after, schedule = encoding.wavelengths, getattr(encoding, "schedule", None)
    if schedule is None:
        return None, after.detach(), None, ""
    plain = copy.copy(encoding)
    vars(plain).update(schedule=None, turns_when_attending=False)
    horizon = ""
    if encoding.turns_when_attending:
        # Within the trained length nothing would be changed.
        declared = 4 * schedule.short_horizon
        frequencies, _ = encoding.spectrum(torch.tensor([declared]))
        after, horizon = 2 * math.pi / frequencies[0], f" (at a declared horizon of {declared} positions)"
    return plain.wavelengths, after, schedule, horizon


def turns_in_words(waves: Tensor, context: float, unit: str) -> str:
    """How many pairs complete no turn in a context."""
    short, pairs = int((waves > context).sum()), len(waves)
    if not short:
        return f"every pair completes a turn in {context:,g} {unit}, {pairs} of {pairs}."
    never = int(waves.isinf().sum())
    rest = f", and {never} never turn{'s' * (never == 1)}" if never else ""
    return (
        f"{short} of {pairs} pairs {'does' if short == 1 else 'do'} not complete a turn in {context:,g} {unit}{rest}."
    )


def finite(waves: Tensor) -> list[float | None]:
    """Wavelengths for JSON, which knows no infinity: None never turns."""
    return [wave if math.isfinite(wave) else None for wave in waves.tolist()]


def rotation(drawn: Drawn, sight: Sight) -> None:
    """Door 2: the logit of a query and a key of ones by distance, relative to that at no distance."""
    encoding, name, shape = sight.encoding, sight.name, sight.shape
    if "turn" not in encoding.doors or encoding.turns == "queries":
        return
    at = plane(sight) if sight.gridded else spread(2 * sight.tokens).with_horizon(2 * sight.tokens)
    here = middle(sight) if sight.gridded else -1
    heads = logits_of_ones(encoding, shape, at, here)
    if not known(drawn, heads, logits_of_ones(sight.other, shape, at, here), "what turning leaves of a logit"):
        return
    what = "logit of a query and a key of ones, 1 at no distance"
    if sight.gridded:
        add_centre(drawn, sight, "rotation", heads, f"{name}: {what}, from the middle cell{sight.start()}")
        return
    distance, heads = (at.coords[0, -1, 0] - at.coords[0, :, 0]).flip(0).tolist(), heads.flip(1)
    drawn.facts["rotation"] = {"distance": distance, "heads": rounded(heads)}
    title, xlabel = f"{name}: what turning leaves of a logit{sight.start()}", "distance from the query at position"
    drawn.figures["rotation"] = lab.figures.curves(distance, by_head(heads), title, f"{xlabel} {distance[-1]:,g}", what)


def logits_of_ones(encoding: Encoding, shape: Shape, at: Positions, here: int) -> Tensor:
    """The logit of a query of ones at one token with keys of ones at all, 1 with itself; [H, T], or [1, T] if alike."""
    ones = torch.ones(1, shape.heads, at.tokens, shape.head_dim, dtype=torch.float64)
    q, k = encoding.turn(ones, at, "query")[0, :, here], encoding.turn(ones, at, "key")[0]
    logit = (k @ q[..., None])[..., 0]  # [H, T]
    return one_if_equal(logit / logit[:, here, None])


def temperature(drawn: Drawn, sight: Sight) -> None:
    """Door 2 for queries alone: by what a query at each position is multiplied."""
    shape = sight.shape
    positions = torch.logspace(0, math.log10(FAR), 240, dtype=torch.float64).round().long().unique() - 1
    for part in parts_of(sight.encoding):
        if "turn" not in part.doors or part.turns != "queries":
            continue
        ones = torch.ones(1, shape.heads, len(positions), shape.head_dim, dtype=torch.float64)
        tau = one_if_equal(part.turn(ones, Positions.of(positions), "query").mean(-1)[0])
        drawn.facts["temperature"] = {"position": positions.tolist(), "heads": rounded(tau)}
        labels = f"{part}: temperature of the query{sight.start()}", "tokens seen: position + 1", "factor of the query"
        curves = lab.figures.curves((positions + 1).tolist(), by_head(tau), *labels, log=True, mark=sight.tokens)
        drawn.figures["temperature"] = curves


def bias(drawn: Drawn, sight: Sight) -> None:
    """Door 3: what each head adds to the logit, by signed distance, or from a late query where that is not enough."""
    encoding, name = sight.encoding, sight.name
    if not encoding.doors & BIASES:
        return
    first = ", before its network corrects it" if "attend" in encoding.doors and encoding.wraps else ""
    if "biases" not in encoding.doors:
        distance = torch.arange(1 - sight.tokens, 2 * sight.tokens)
        coords = plane(sight).coords[0] if sight.gridded else distance[:, None]
        delta = coords[middle(sight)] - coords if sight.gridded else distance if encoding.axes == 1 else coords
        values, other = encoding.by_distance(delta), sight.other.by_distance(delta)
        assert values is not None and other is not None
        where, content = "from the middle cell" if sight.gridded else "by distance, each head", ""
    else:
        at = late(sight)
        values, again = (bias_of_random_tokens(encoding, sight, at, seed) for seed in (0, 1))
        other = bias_of_random_tokens(sight.other, sight, at, 0)
        distance = (at.coords[0, -1, 0] - at.coords[0, :, 0]).flip(0)
        content = "" if values.equal(again) else ", random tokens (seed 0)"
        last = f"at position {at.coords[0, -1, 0].item():,g}"
        where = f"for the query {'in the middle cell' if sight.gridded else last}"
    if not known(drawn, values, other, "the bias"):
        return
    if content:
        drawn.notes.append(
            "Its bias depends on what tokens say: it is drawn for tokens from N(0, 1) behind untrained "
            "projections, seed 0."
        )
    title = f"{name}: bias {where}{content}{first}{sight.start()}"
    if sight.gridded:
        return add_centre(drawn, sight, "bias", values, title)
    values = values.flip(1) if "biases" in encoding.doors else values
    drawn.facts["bias"] = {"distance": distance.tolist(), "heads": rounded(values)}
    drawn.figures["bias"] = lab.figures.bias_curves(distance.tolist(), values.numpy(), title)


def buckets(drawn: Drawn, sight: Sight) -> None:
    """For tables by distance: which row each distance reads, a staircase that is known before training."""
    for part in parts_of(sight.encoding):
        if (bucket := getattr(part, "bucket", None)) is None:
            continue
        # Without a distance from which all share a row, there are as many rows as distances.
        last = getattr(part, "max_distance", None) or bucket(torch.tensor([FAR])).item()
        reach = 2 * max(sight.tokens, int(last))
        distance = torch.arange(-reach // 4, reach + 1)
        rows = bucket(distance)
        shared = distance[rows == rows[-1]][0].item()
        drawn.facts["buckets"] = {"distance": distance.tolist(), "bucket": rows.tolist()}
        drawn.notes.append(f"From a distance of {shared:,} on, all keys share one trained entry: order is lost there.")
        labels = f"{part}: the bucket of each distance", "distance, query - key (left of 0: keys that come later)"
        drawn.figures["buckets"] = lab.figures.staircase(distance.numpy(), rows.numpy(), *labels, "bucket")


def bias_of_random_tokens(encoding: Encoding, sight: Sight, at: Positions, seed: int) -> Tensor:
    """The bias [H, S] of the last token (on a grid: the middle one) on every key, for random tokens."""
    layer, x = untrained(sight.shape, at.tokens, seed)
    here = slice(at.tokens // 2, at.tokens // 2 + 1) if sight.gridded else slice(at.tokens - 1, at.tokens)
    q, keys = layer.queries_and_keys(x, None, None, Call(at, at, causal(), encoding))
    keys = replace(keys, query_memo={name: fact[:, :, here] for name, fact in keys.query_memo.items()})
    values = total(encoding.biases(q[:, :, here], at.rows(here), keys), torch.float32)
    assert values is not None
    return values[0, :, 0]


def mapped_distance(drawn: Drawn, sight: Sight) -> None:
    """For distance maps: the distance that is shown in place of the true one, from a late query."""
    if sight.map is None:
        return
    *keys, query = late(sight).coords[0, :, 0].tolist()
    distance = [query - key for key in reversed(keys)]
    mapped = [mapped_of(sight.map, query, query - true) for true in distance]
    drawn.facts["mapped_distance"] = {"query": query, "distance": distance, "mapped": mapped}
    drawn.notes.append(f"From position {query:,g} no key is shown farther away than {max(mapped):,g}.")
    title, lines = f"{sight.map}: distances from the query at position {query:,g}", {"shown": mapped, "true": distance}
    labels = title, "true distance", "distance shown to the encoding"
    drawn.figures["mapped_distance"] = lab.figures.curves(distance, lines, *labels)


def mapped_of(encoding: Any, m: int, n: int) -> float:
    """The distance that a map shows in place of m - n."""
    query, key = encoding.formula_positions(m, n)
    return query - key


def attention(drawn: Drawn, sight: Sight) -> None:
    """Rules of their own, and what reads facts of tokens: where an untrained layer looks, with and without it."""
    encoding = sight.encoding
    # A map of distances says more by the distances.
    if not encoding.doors & {"attend", "remember"} or sight.map is not None:
        return
    T = min(sight.tokens, MOST_TOKENS)
    at = plane(sight) if sight.gridded else Positions.count(T).with_horizon(T)
    layer, x = untrained(sight.shape, at.tokens, 0)
    mask = bidirectional() if sight.gridded else causal()
    maps = [
        layer(x, positions=at, mask=mask, need_weights=True, encoding=e)[1][0]
        for e in (encoding, sight.other, Encoding())
    ]
    if not known(drawn, maps[0], maps.pop(1), "where a layer looks"):
        return
    drawn.facts["attention"] = {"with": rounded(maps[0]), "without": rounded(maps[1])}
    drawn.notes.append(
        "The attention maps are of one untrained layer, seed 0, and random tokens: they show the rule, and nothing "
        "that a model has learned."
    )
    title = f"{sight.name}: one untrained layer on {at.tokens} random tokens (seed 0)"
    shown = {"with it": maps[0].numpy(), "the same layer without position": maps[1].numpy()}
    drawn.figures["attention"] = lab.figures.attention_maps(shown, None, title)


def untrained(shape: Shape, tokens: int, seed: int) -> tuple[Attention, Tensor]:
    """A layer and token vectors, drawn from a seed; the global random state stays as it is."""
    with seeded(seed):
        layer = Attention(shape.dim, shape.heads, head_dim=shape.head_dim, encoding=None).eval()
        return layer, torch.randn(1, tokens, shape.dim)


def late(sight: Sight) -> Positions:
    """The positions behind which a late query stands, itself the last; for a map, far beyond what it leaves alone."""
    if sight.gridded:
        return plane(sight)
    last = sight.tokens - 1
    if sight.map is None:
        return Positions.count(sight.tokens).with_horizon(sight.tokens)
    while last < FAR // 32 and all(mapped_of(sight.map, last, n) == last - n for n in range(0, last, 7)):
        last *= 2
    last *= 4
    return spread(last + 1)


def spread(reach: int) -> Positions:
    """Positions from 0 up to a reach, all of them where they are few."""
    return Positions.of(torch.linspace(0, reach - 1, min(reach, 481), dtype=torch.float64).round().long().unique())


def cells(sight: Sight) -> int:
    """Cells on each axis that is drawn."""
    return min(sight.tokens, MOST_CELLS)


def fine(waves: Tensor | None) -> bool:
    """Whether cells counted in whole numbers would be too coarse: a wave needs two samples."""
    return waves is not None and float(waves.min()) <= 2


def plane(sight: Sight) -> Positions:
    """The cells of the last two axes, row by row; the axes before them stand in the middle.

    Where waves are shorter than two cells, coordinates are the cells' centres from -1 to 1.
    """
    side, axes = cells(sight), sight.encoding.axes
    grid = Positions.grid(side, side)
    coords = torch.full((1, grid.tokens, axes), side // 2)
    coords[..., -2:] = grid.coords
    if fine(sight.encoding.wavelengths):
        coords = (2 * coords + 1).double() / side - 1
    return grid.changed(coords=coords, extent=None if coords.is_floating_point() else side)


def middle(sight: Sight) -> int:
    """The row of the cell in the middle."""
    side = cells(sight)
    return side // 2 * side + side // 2


def by_head(rows: Tensor) -> dict[str, np.ndarray]:
    return {f"head {head}" if len(rows) > 1 else "all heads": row.numpy() for head, row in enumerate(rows)}


def one_if_equal(heads: Tensor) -> Tensor:
    """One row for all heads where their rows [H, ...] are the same."""
    return heads[:1] if torch.allclose(heads, heads[:1].expand_as(heads)) else heads


def add_centre(drawn: Drawn, sight: Sight, name: str, heads: Tensor, title: str) -> None:
    """Maps [H, cells of the plane] as seen from the middle cell."""
    maps = heads.detach().unflatten(-1, (cells(sight), cells(sight)))
    drawn.facts[name] = {"from": [cells(sight) // 2] * 2, "heads": rounded(maps)}
    drawn.figures[name] = lab.figures.centre_maps(maps.numpy(), title)
