"""The figures of one encoding, chosen by its doors and attributes, with their numbers and notes.

Untrained tables are never drawn: random numbers look like a finding. Only which row each position or distance reads is
drawn; trained numbers come from runs (`after_training`).
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
from posenc.lab.runs.record import to_list
from posenc.model.attention import Attention, Call
from posenc.model.seeding import local_seed
from posenc.tokens.masks import bidirectional, causal
from posenc.tokens.positions import Positions

MOST_CELLS = 33
"""Cells on each axis of a grid at most; an odd number has a cell in the middle."""

MOST_TOKENS = 32
"""Tokens of an attention map at most."""

FARTHEST = 1_000_000
"""The range of the temperature figure (positions)."""


@dataclass
class Gallery:
    """Figures by name, their numbers (facts), tables (title, headers, rows), notes, and the text before them."""

    figures: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    text: str = ""

    def save(self, folder: Path) -> list[Path]:
        """Write the figures as PNG files, and return their paths."""
        return [lab.figures.save(figure, folder / f"{name}.png") for name, figure in self.figures.items()]


@dataclass(frozen=True)
class Sight:
    """The subject of the figures: an encoding in a model of a shape, over `tokens` positions.

    other_seed  the encoding with tables drawn from another seed; itself where it is trained
    """

    encoding: Encoding
    shape: Shape
    tokens: int
    twin: Encoding

    @property
    def name(self) -> str:
        return str(self.encoding)

    @property
    def is_grid(self) -> bool:
        return self.encoding.axes > 1

    @property
    def map(self) -> Encoding | None:
        """The distance map among the encoding's parts, or None."""
        return next((part for part in parts_of(self.encoding) if hasattr(part, "formula_positions")), None)

    def start(self) -> str:
        """The part of a title that says that the encoding is untrained."""
        return " (before training)" if any(True for _ in self.encoding.parameters()) else ""


@torch.no_grad()
def draw(encoding: Encoding, shape: Shape, tokens: int) -> Gallery:
    """Draw all figures of an encoding; a note says why where there are none."""
    gallery, sight = Gallery(), Sight(encoding, shape, tokens, copy_with_other_seed(encoding))
    doors = add_vectors, add_table_rows, add_spectrum, add_rotation, add_temperature, add_bias
    for picture in (*doors, add_buckets, add_mapped_distance, add_attention):
        try:
            picture(gallery, sight)
        except Exception as error:
            # The user's own encoding may raise anything, and the other figures are still useful.
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            words = " ".join(str(error).split())
            name = picture.__name__.removeprefix("add_").replace("_", " ")
            gallery.notes.append(f"No picture of its {name}: {kind}{words}.")
    if not gallery.figures and not gallery.notes:
        empty = "its doors hold nothing to draw"
        reason = empty if encoding.doors else "it opens no door, so attention sees no position"
        gallery.notes.append(f"No picture: {reason}.")
    return gallery


def copy_with_other_seed(encoding: Encoding) -> Encoding:
    """A copy with newly drawn tables; parameters below two dimensions, such as slopes of heads, stay."""
    encoding_copy = copy.deepcopy(encoding)
    with local_seed(1):
        for module in encoding_copy.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
    for parameter, new_parameter in zip(encoding.parameters(), encoding_copy.parameters(), strict=True):
        if parameter.dim() < 2:
            new_parameter.copy_(parameter)
    return encoding_copy


def is_known(gallery: Gallery, values: Tensor, other_values: Tensor, name: str) -> bool:
    """Whether values are meaningful before training: equal for two seeds, and not all zero; else add a note."""
    if values.equal(other_values) and bool(values.any()):
        return True
    start = "starts at zero" if values.equal(other_values) else "starts at random"
    gallery.notes.append(f"No picture of {name} before training: it {start}, and says nothing until it is trained.")
    return False


def add_vectors(gallery: Gallery, sight: Sight) -> None:
    """Draw door 1: the vector at each position, and the similarity of positions."""
    encoding, name = sight.encoding, sight.name
    if "embed" not in encoding.doors:
        return
    at = plane(sight) if sight.is_grid else Positions.count(sight.tokens)
    zeros = torch.zeros(1, at.tokens, sight.shape.dim)
    table = encoding.embed(zeros, at)[0]
    if not is_known(gallery, table, sight.twin.embed(zeros, at)[0], "what is added"):
        return
    gallery.facts["added"] = to_list(table)
    if sight.is_grid:
        title = f"{name}: what is added at each cell{sight.start()}"
        gallery.figures["heatmap"] = lab.figures.heatmap(table.numpy(), title)
        unit = torch.nn.functional.normalize(table.double(), dim=-1)
        centre_title = f"{name}: cosine with what the middle cell is given{sight.start()}"
        add_centre(gallery, sight, "centre", (unit @ unit[middle(sight)])[None], centre_title)
        return
    gallery.figures |= table_figures(table.numpy(), name, sight.start())


def table_figures(table: np.ndarray, name: str, when: str) -> dict[str, Any]:
    """The figures of a table [positions, channels] that is added to embeddings."""
    count = len(table)
    positions = sorted({0, 1, 2, count // 4, count // 2, count - 1} & {*range(count)})
    return {
        "heatmap": lab.figures.heatmap(table, f"{name}: what is added at each position{when}"),
        "similarity": lab.figures.similarity_matrix(table, f"{name}: similarity of positions{when}"),
        "fingerprint": lab.figures.fingerprint(table, positions, f"{name}: how positions differ{when}"),
    }


def add_table_rows(gallery: Gallery, sight: Sight) -> None:
    """Draw, for tables with a row for each position, the row that each position reads."""
    for part in parts_of(sight.encoding):
        table, row = getattr(part, "table", None), getattr(part, "row", None)
        if "embed" not in part.doors or sight.is_grid or table is None or row is None:
            continue
        at = Positions.count(sight.tokens).with_horizon(sight.tokens)
        rows = row(at)[0].double()
        gallery.facts["rows"] = {"position": list(range(sight.tokens)), "row": rows.tolist()}
        gallery.notes.append(
            f"Each position reads a row of its own, of {len(table):,}: nothing ties it to its neighbours, and a "
            "row that training has not visited is noise."
        )
        title = f"{part}: the row of its table that each position reads"
        gallery.figures["rows"] = lab.figures.staircase(range(sight.tokens), rows.numpy(), title, "position", "row")


def add_spectrum(gallery: Gallery, sight: Sight) -> None:
    """Draw each pair's wavelength before and after a schedule, and which pairs turn fully in the context."""
    # A wrapper passes on the wavelengths of the encoding inside, which is drawn itself.
    inner = [module for module in sight.encoding.modules() if isinstance(module, Encoding)]
    waving = [e for e in inner if e.wavelengths is not None and sum(isinstance(m, Encoding) for m in e.modules()) == 1]
    for place, encoding in enumerate(waving):
        suffix = f"_{place + 1}" if place else ""
        old, new, schedule, horizon = waves_of(encoding)
        # The range of the coordinates, and their unit.
        context, unit = (sight.tokens, "positions") if not sight.is_grid else (cells_per_axis(sight), "cells")
        if sight.is_grid and needs_fine_grid(new):
            context, unit = 2, "units (coordinates from -1 to 1)"
        sentence = turns_in_words(new, context, unit)
        if old is None:
            gallery.notes.append(sentence[0].upper() + sentence[1:])
        else:
            gallery.notes += [f"Before {schedule}: {turns_in_words(old, context, unit)}", f"After{horizon}: {sentence}"]
        factor = 4 if horizon else getattr(schedule, "factor", 1)
        if factor > 1:
            gallery.notes.append(f"After, farther out: {turns_in_words(new, factor * context, unit)}")
        gallery.facts |= {
            f"wavelengths{suffix}": finite_or_none(new),
            f"wavelengths_before{suffix}": None if old is None else finite_or_none(old),
            f"pairs_without_a_turn{suffix}": int((new > context).sum()),
            f"context{suffix}": context,
        }
        plain, title = None if old is None else old.numpy(), f"{encoding}: wavelength of each pair"
        gallery.figures[f"wavelengths{suffix}"] = lab.figures.spectrum(
            new.numpy(), plain, context, title, sentence, unit
        )
        rows = [[str(i), f"{w:,.2f}", f"{context / w:,.3f}"] for i, w in enumerate(new.tolist())]
        headers = ["pair", f"wavelength ({unit})", f"turns in {context:,g} {unit}"]
        gallery.tables.append((f"Wavelengths of {encoding}", headers, rows[:8] + rows[8:][-2:]))
        if not sight.is_grid:
            hand = sight.tokens // 4
            title = f"{encoding}: the pairs of position {hand} as hands"
            gallery.figures[f"clock{suffix}"] = lab.figures.clock((2 * torch.pi / new).numpy(), hand, title)


def waves_of(encoding: Any) -> tuple[Tensor | None, Tensor, Any, str]:
    """Wavelengths before a schedule and after it, the schedule, and its horizon as text."""
    waves, schedule = encoding.wavelengths, getattr(encoding, "schedule", None)
    if schedule is None:
        return None, waves.detach(), None, ""
    plain = copy.copy(encoding)
    vars(plain).update(schedule=None, turns_when_attending=False)
    horizon_words = ""
    if encoding.turns_when_attending:
        # Within the trained length the schedule changes nothing.
        horizon_tokens = 4 * schedule.short_horizon
        frequencies, _ = encoding.spectrum(torch.tensor([horizon_tokens]))
        waves, horizon_words = 2 * math.pi / frequencies[0], f" (at a declared horizon of {horizon_tokens} positions)"
    return plain.wavelengths, waves, schedule, horizon_words


def turns_in_words(waves: Tensor, context: float, unit: str) -> str:
    """A sentence on how many pairs complete no turn in a context."""
    short, pairs = int((waves > context).sum()), len(waves)
    if not short:
        return f"every pair completes a turn in {context:,g} {unit}, {pairs} of {pairs}."
    never = int(waves.isinf().sum())
    rest = f", and {never} never turn{'s' * (never == 1)}" if never else ""
    return (
        f"{short} of {pairs} pairs {'does' if short == 1 else 'do'} not complete a turn in {context:,g} {unit}{rest}."
    )


def finite_or_none(waves: Tensor) -> list[float | None]:
    """Wavelengths for JSON, with None for infinity."""
    return [wave if math.isfinite(wave) else None for wave in waves.tolist()]


def add_rotation(gallery: Gallery, sight: Sight) -> None:
    """Draw door 2: the logit of a query and key of ones by distance, relative to distance 0."""
    encoding, name, shape = sight.encoding, sight.name, sight.shape
    if "turn" not in encoding.doors or encoding.turns == "queries":
        return
    at = plane(sight) if sight.is_grid else positions_up_to(2 * sight.tokens).with_horizon(2 * sight.tokens)
    here = middle(sight) if sight.is_grid else -1
    heads = logits_of_ones(encoding, shape, at, here)
    if not is_known(gallery, heads, logits_of_ones(sight.twin, shape, at, here), "what turning leaves of a logit"):
        return
    ylabel = "logit of a query and a key of ones, 1 at no distance"
    if sight.is_grid:
        add_centre(gallery, sight, "rotation", heads, f"{name}: {ylabel}, from the middle cell{sight.start()}")
        return
    distance, heads = (at.coords[0, -1, 0] - at.coords[0, :, 0]).flip(0).tolist(), heads.flip(1)
    gallery.facts["rotation"] = {"distance": distance, "heads": to_list(heads)}
    title, xlabel = f"{name}: what turning leaves of a logit{sight.start()}", "distance from the query at position"
    gallery.figures["rotation"] = lab.figures.curves(
        distance, by_head(heads), title, f"{xlabel} {distance[-1]:,g}", ylabel
    )


def logits_of_ones(encoding: Encoding, shape: Shape, at: Positions, here: int) -> Tensor:
    """Return the logits [H, T] of a query and keys of ones, 1 at the query's token. Equal heads give one row [1, T]."""
    x = torch.ones(1, shape.heads, at.tokens, shape.head_dim, dtype=torch.float64)
    q, k = encoding.turn(x, at, "query")[0, :, here], encoding.turn(x, at, "key")[0]
    logit = (k @ q[..., None])[..., 0]  # [H, T]
    return merge_equal_heads(logit / logit[:, here, None])


def add_temperature(gallery: Gallery, sight: Sight) -> None:
    """Draw door 2 for queries alone: the factor of a query at each position."""
    shape = sight.shape
    positions = torch.logspace(0, math.log10(FARTHEST), 240, dtype=torch.float64).round().long().unique() - 1
    for part in parts_of(sight.encoding):
        if "turn" not in part.doors or part.turns != "queries":
            continue
        x = torch.ones(1, shape.heads, len(positions), shape.head_dim, dtype=torch.float64)
        tau = merge_equal_heads(part.turn(x, Positions.of(positions), "query").mean(-1)[0])
        gallery.facts["temperature"] = {"position": positions.tolist(), "heads": to_list(tau)}
        labels = f"{part}: temperature of the query{sight.start()}", "tokens seen: position + 1", "factor of the query"
        curves = lab.figures.curves((positions + 1).tolist(), by_head(tau), *labels, log=True, mark=sight.tokens)
        gallery.figures["temperature"] = curves


def add_bias(gallery: Gallery, sight: Sight) -> None:
    """Draw door 3: each head's bias by signed distance. It is from a late query if distance is not enough."""
    encoding, name = sight.encoding, sight.name
    if not encoding.doors & BIASES:
        return
    first = ", before its network corrects it" if "attend" in encoding.doors and encoding.wraps else ""
    if "biases" not in encoding.doors:
        distance = torch.arange(1 - sight.tokens, 2 * sight.tokens)
        coords = plane(sight).coords[0] if sight.is_grid else distance[:, None]
        delta = coords[middle(sight)] - coords if sight.is_grid else distance if encoding.axes == 1 else coords
        values, other_values = encoding.by_distance(delta), sight.twin.by_distance(delta)
        assert values is not None and other_values is not None
        place, content = "from the middle cell" if sight.is_grid else "by distance, each head", ""
    else:
        at = late_query_positions(sight)
        values, other_tokens = (bias_of_random_tokens(encoding, sight, at, seed) for seed in (0, 1))
        other_values = bias_of_random_tokens(sight.twin, sight, at, 0)
        distance = (at.coords[0, -1, 0] - at.coords[0, :, 0]).flip(0)
        content = "" if values.equal(other_tokens) else ", random tokens (seed 0)"
        last = f"at position {at.coords[0, -1, 0].item():,g}"
        place = f"for the query {'in the middle cell' if sight.is_grid else last}"
    if not is_known(gallery, values, other_values, "the bias"):
        return
    if content:
        gallery.notes.append(
            "Its bias depends on what tokens say: it is drawn for tokens from N(0, 1) behind untrained "
            "projections, seed 0."
        )
    title = f"{name}: bias {place}{content}{first}{sight.start()}"
    if sight.is_grid:
        return add_centre(gallery, sight, "bias", values, title)
    values = values.flip(1) if "biases" in encoding.doors else values
    gallery.facts["bias"] = {"distance": distance.tolist(), "heads": to_list(values)}
    gallery.figures["bias"] = lab.figures.bias_curves(distance.tolist(), values.numpy(), title)


def add_buckets(gallery: Gallery, sight: Sight) -> None:
    """Draw, for tables by distance, the row that each distance reads."""
    for part in parts_of(sight.encoding):
        if (bucket := getattr(part, "bucket", None)) is None:
            continue
        # Without a max_distance, the last bucket is that of a very large distance.
        last = getattr(part, "max_distance", None) or bucket(torch.tensor([FARTHEST])).item()
        reach = 2 * max(sight.tokens, int(last))
        distance = torch.arange(-reach // 4, reach + 1)
        rows = bucket(distance)
        start = distance[rows == rows[-1]][0].item()
        gallery.facts["buckets"] = {"distance": distance.tolist(), "bucket": rows.tolist()}
        gallery.notes.append(f"From a distance of {start:,} on, all keys share one trained entry: order is lost there.")
        labels = f"{part}: the bucket of each distance", "distance, query - key (left of 0: keys that come later)"
        gallery.figures["buckets"] = lab.figures.staircase(distance.numpy(), rows.numpy(), *labels, "bucket")


def bias_of_random_tokens(encoding: Encoding, sight: Sight, at: Positions, seed: int) -> Tensor:
    """Return the bias [H, S] of the last of some random tokens on every key. On a grid it is the middle token's."""
    layer, x = untrained_layer(sight.shape, at.tokens, seed)
    here = slice(at.tokens // 2, at.tokens // 2 + 1) if sight.is_grid else slice(at.tokens - 1, at.tokens)
    q, keys = layer.queries_and_keys(x, None, None, Call(at, at, causal(), encoding))
    keys = replace(keys, query_memo={name: fact[:, :, here] for name, fact in keys.query_memo.items()})
    values = total(encoding.biases(q[:, :, here], at.rows(here), keys), torch.float32)
    assert values is not None
    return values[0, :, 0]


def add_mapped_distance(gallery: Gallery, sight: Sight) -> None:
    """Draw, for distance maps, the mapped distance by the true one, from a late query."""
    if sight.map is None:
        return
    *keys, query = late_query_positions(sight).coords[0, :, 0].tolist()
    distance = [query - key for key in reversed(keys)]
    maps = [map_distance(sight.map, query, query - true) for true in distance]
    gallery.facts["mapped_distance"] = {"query": query, "distance": distance, "mapped": maps}
    gallery.notes.append(f"From position {query:,g} no key is shown farther away than {max(maps):,g}.")
    title, lines = (f"{sight.map}: distances from the query at position {query:,g}", {"shown": maps, "true": distance})
    labels = title, "true distance", "distance shown to the encoding"
    gallery.figures["mapped_distance"] = lab.figures.curves(distance, lines, *labels)


def map_distance(encoding: Any, m: int, n: int) -> float:
    """The mapped distance of m - n."""
    query, key = encoding.formula_positions(m, n)
    return query - key


def add_attention(gallery: Gallery, sight: Sight) -> None:
    """Draw the attention of an untrained layer, with and without an encoding that changes the attention rule."""
    encoding = sight.encoding
    # A distance map has its own figure.
    if not encoding.doors & {"attend", "remember"} or sight.map is not None:
        return
    T = min(sight.tokens, MOST_TOKENS)
    at = plane(sight) if sight.is_grid else Positions.count(T).with_horizon(T)
    layer, x = untrained_layer(sight.shape, at.tokens, 0)
    mask = bidirectional() if sight.is_grid else causal()
    maps = [
        layer(x, positions=at, mask=mask, need_weights=True, encoding=e)[1][0]
        for e in (encoding, sight.twin, Encoding())
    ]
    if not is_known(gallery, maps[0], maps.pop(1), "where a layer looks"):
        return
    gallery.facts["attention"] = {"with": to_list(maps[0]), "without": to_list(maps[1])}
    gallery.notes.append(
        "The attention maps are of one untrained layer, seed 0, and random tokens: they show the rule, and nothing "
        "that a model has learned."
    )
    title = f"{sight.name}: one untrained layer on {at.tokens} random tokens (seed 0)"
    maps_by_title = {"with it": maps[0].numpy(), "the same layer without position": maps[1].numpy()}
    gallery.figures["attention"] = lab.figures.attention_maps(maps_by_title, None, title)


def untrained_layer(shape: Shape, tokens: int, seed: int) -> tuple[Attention, Tensor]:
    """A layer and token vectors, drawn from a seed; the global random state stays as it is."""
    with local_seed(seed):
        layer = Attention(shape.dim, shape.heads, head_dim=shape.head_dim, encoding=None).eval()
        return layer, torch.randn(1, tokens, shape.dim)


def late_query_positions(sight: Sight) -> Positions:
    """Return the positions up to a late query, the last. A distance map gets one far beyond the distances it keeps."""
    if sight.is_grid:
        return plane(sight)
    last = sight.tokens - 1
    if sight.map is None:
        return Positions.count(sight.tokens).with_horizon(sight.tokens)
    while last < FARTHEST // 32 and all(map_distance(sight.map, last, n) == last - n for n in range(0, last, 7)):
        last *= 2
    last *= 4
    return positions_up_to(last + 1)


def positions_up_to(reach: int) -> Positions:
    """At most 481 positions from 0 up to a reach."""
    return Positions.of(torch.linspace(0, reach - 1, min(reach, 481), dtype=torch.float64).round().long().unique())


def cells_per_axis(sight: Sight) -> int:
    """The number of cells on each axis of the figure."""
    return min(sight.tokens, MOST_CELLS)


def needs_fine_grid(waves: Tensor | None) -> bool:
    """Whether integer coordinates are too coarse: a wave needs two samples."""
    return waves is not None and float(waves.min()) <= 2


def plane(sight: Sight) -> Positions:
    """The cells of the last two axes, row by row; earlier axes are at their middle.

    Where waves are shorter than two cells, coordinates are the cells' centres from -1 to 1.
    """
    side, axes = cells_per_axis(sight), sight.encoding.axes
    grid = Positions.grid(side, side)
    coords = torch.full((1, grid.tokens, axes), side // 2)
    coords[..., -2:] = grid.coords
    if needs_fine_grid(sight.encoding.wavelengths):
        coords = (2 * coords + 1).double() / side - 1
    return grid.with_facts(coords=coords, extent=None if coords.is_floating_point() else side)


def middle(sight: Sight) -> int:
    """The index of the middle cell."""
    side = cells_per_axis(sight)
    return side // 2 * side + side // 2


def by_head(rows: Tensor) -> dict[str, np.ndarray]:
    return {f"head {head}" if len(rows) > 1 else "all heads": row.numpy() for head, row in enumerate(rows)}


def merge_equal_heads(heads: Tensor) -> Tensor:
    """Return one row for all heads where their rows [H, ...] are equal."""
    return heads[:1] if torch.allclose(heads, heads[:1].expand_as(heads)) else heads


def add_centre(gallery: Gallery, sight: Sight, name: str, heads: Tensor, title: str) -> None:
    """Add maps [H, cells of the plane] as seen from the middle cell."""
    maps = heads.detach().unflatten(-1, (cells_per_axis(sight), cells_per_axis(sight)))
    gallery.facts[name] = {"from": [cells_per_axis(sight) // 2] * 2, "heads": to_list(maps)}
    gallery.figures[name] = lab.figures.centre_maps(maps.numpy(), title)
