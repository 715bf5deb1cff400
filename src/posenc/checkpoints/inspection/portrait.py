"""Describe a reading in sentences and pictures."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.formats import load
from posenc.checkpoints.inspection.inspect import (
    POSITION_TABLE,
    RELATIVE_TABLE,
    distinct_encodings,
    has_learned_tables,
    has_tensors,
    layer_ranges,
)
from posenc.checkpoints.vocabulary.ledger import show_value
from posenc.checkpoints.vocabulary.reading import Part, Reading
from posenc.checkpoints.vocabulary.specs import as_whole, shorten_spec
from posenc.encoding.base import Encoding, parts_of, spec_options

LAYOUTS = {
    "half": "half: channel k and the one half the rotary width further on make a pair",
    "interleaved": "interleaved: channels 2k and 2k + 1 make a pair",
    "swapped": "swapped: the pairs of half, turned the other way round",
}

MOST_ROWS = 512
"""The most rows of a learned table that are drawn, evenly chosen."""

MOST_DISTANCES = 512
"""The longest distance at which biases are drawn (tokens)."""


def describe_reading(reading: Reading) -> str:
    """Return a text on a reading: contradictions, parts, unknown keys, and what no spec covers."""
    parts = [line for part in reading.parts for line in ("", *describe_part(part))]
    lists = {title: ["", f"{title}:", *(f"  {line}" for line in lines)] for title, lines in doubts(reading).items()}
    lines = [f"{reading.architecture} ({FORMATS[reading.format]})", *lists.pop("Contradictory", [])]
    lines += parts or ["", "No stack with positions could be read."]
    return "\n".join([*lines, *(line for block in lists.values() for line in block)])


def doubts(reading: Reading) -> dict[str, list[str]]:
    """Return the contradictions, unknown keys and uncovered code as sentences by title; empty lists are left out."""
    sentences = {
        "Contradictory": list(reading.contradictions),
        "Not understood": [f"{key}: {show_value(value)}" for key, value in reading.unknown.items()],
        "Not covered": list(reading.not_covered),
    }
    return {title: lines for title, lines in sentences.items() if lines}


FORMATS = {"transformers": "a config of transformers", "meta": "Meta's params.json", "gguf": "a GGUF file"}


def understood_keys(reading: Reading) -> tuple[list[str], list[list[str]], str]:
    """Return headers, rows and title of a table of the keys that were read."""
    return ["key", "says"], [[key, says] for key, says in reading.understood.items()], "Understood"


def describe_part(part: Part) -> Iterator[str]:
    """Yield the lines about one stack."""
    shape = part.shape
    heads = "heads not said" if part.kv_heads is None else f"{shape.heads} heads of {shape.head_dim}"
    if part.kv_heads not in (None, shape.heads):
        heads += f", {part.kv_heads} for keys and values"
    length = f"trained on {part.trained_length:,} tokens" if part.trained_length else "trained length not said"
    sight = "sees the past" if shape.causal else "sees both sides"
    yield (f"{part.name or 'The model'}: {len(part.layers)} layers, {shape.dim:,} channels, {heads}; {length}; {sight}")
    if part.embed != "none":
        yield f"  added to the embeddings: {part.embed}"
    for name, size in part.tables.items():
        yield f"  table {name}: {' x '.join(map(str, size))}"
    for sentence in part.remarks:
        yield f"  besides: {sentence}"
    ranges = layer_ranges(part)
    pattern = cycle_of(part)
    if pattern and len(ranges) > len(pattern):
        counts = " + ".join(f"{last - first + 1}" for first, last in pattern)
        yield f"  layers in a cycle of {pattern[-1][1] + 1} ({counts}):"
        ranges = pattern
    shown_specs: set[str] = set()
    for first, last in ranges:
        layer = part.layers[first]
        label = f"layer {first}" if first == last else f"layers {first} to {last}"
        spec = shorten_spec(layer.spec) if part.is_complete or layer.spec != "none" else "not known"
        yield f"  {label}: {spec}{layer_notes(part, first)}"
        if layer.spec not in shown_specs and spec != "not known":
            shown_specs.add(layer.spec)
            for encoding in parts_of(part.encoding(first)):
                yield from (f"      {line}" for line in describe_encoding(encoding, part))


def layer_notes(part: Part, index: int) -> str:
    """Return a note on what a layer has apart from its spec."""
    layer, notes = part.layers[index], []
    if not layer.attends:
        return "   [does not attend]"
    if layer.window:
        sides = "" if part.shape.causal else f": {layer.window - 1:,} to either side"
        notes.append(f"window of {layer.window:,} tokens{sides}")
    if layer.chunk:
        notes.append(f"chunks of {layer.chunk:,} tokens")
    if layer.head_dim > part.shape.head_dim:
        notes.append(f"heads of {layer.head_dim}")
    elif layer.head_dim < part.shape.head_dim:
        notes.append(f"on {layer.head_dim} of {part.shape.head_dim} channels of a head")
    if layer.scale is not None:
        notes.append(f"logits times {layer.scale:.6g}")
    return f"   [{'; '.join(notes)}]" if notes else ""


def cycle_of(part: Part) -> list[tuple[int, int]]:
    """Return the layer ranges of the shortest cycle that the layers repeat; empty without one."""
    count = len(part.layers)
    for step in range(2, count // 2 + 1):
        if all(part.layers[index] == part.layers[index % step] for index in range(count)):
            return [(first, min(last, step - 1)) for first, last in layer_ranges(part) if first < step]
    return []


def describe_encoding(encoding: Any, part: Part) -> Iterator[str]:
    """Yield the numbers of one encoding and their meaning."""
    options = spec_options(encoding)
    if "layout" in options:
        yield f"layout {LAYOUTS[options['layout']]}"
    if "base" in options:
        width = getattr(encoding, "width", encoding.head_dim)
        yield f"base {as_whole(encoding.base):,}; {width} of {encoding.head_dim} channels of a head turn"
    if getattr(encoding, "wavelengths", None) is not None:
        yield describe_wavelengths(encoding, part)
    if options.get("schedule") is not None:
        yield from describe_schedule(encoding.schedule)
    if hasattr(encoding, "slopes"):
        slopes = [float(slope) for slope in encoding.slopes]
        yield f"slopes from {max(slopes):.4g} to {min(slopes):.4g} a token"
    if "buckets" in options:
        yield f"{options['buckets']} buckets; from {options['max_distance']} tokens on all share the last"
    if "interval" in options:
        yield f"from {options['interval']:,} tokens on, queries grow by {options['strength']} times a logarithm"


def describe_wavelengths(encoding: Any, part: Part) -> str:
    """Return the range of wavelengths, and how many pairs rotate fully within the trained length."""
    waves = encoding.wavelengths
    moving = waves[waves.isfinite()]
    text = f"{len(waves)} pairs, wavelengths from {moving.min():.4g} to {moving.max():,.0f} tokens"
    if len(moving) < len(waves):
        text += f", {len(waves) - len(moving)} stand still"
    if part.trained_length:
        text += f"; {int((moving <= part.trained_length).sum())} turn whole within the trained length"
    return text


def describe_schedule(schedule: Any) -> Iterator[str]:
    """Yield every parameter of a schedule, and its temperature."""
    options = ((option.name.replace("_", " "), getattr(schedule, option.name)) for option in fields(schedule))
    text = ", ".join(f"{name} {show_value(value)}" for name, value in options if value is not None)
    yield f"schedule {schedule.spec_name}: {text or 'no parameters'}"
    if schedule.by_horizon:
        yield "    it depends on how long each sequence is"
    temperature = getattr(schedule, "temperature", None)
    if temperature is not None and not math.isclose(temperature, 1):
        yield f"    temperature {temperature:.6g}: logits are multiplied by {temperature**2:.6g}"
    if hasattr(schedule, "temperatures"):
        short, long = schedule.temperatures()
        yield f"    temperature {short:.6g} for short sequences, {long:.6g} for long ones"


def reading_pictures(reading: Reading, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """Return figures by name: spectra by trained length, similarities of learned tables, curves of biases.

    tensors  the weights, such as `open_tensors` returns; without them learned tables have no figure. Only the tables
             are read
    """
    drawings: dict[str, Any] = {}
    for part in reading.parts:
        prefix = f"{part.name.replace('.', '_')}_" if part.name else ""
        for encoding in distinct_encodings(part):
            for kind, figure in encoding_pictures(encoding, part):
                number = sum(name.startswith(f"{prefix}{kind}") for name in drawings)
                drawings[f"{prefix}{kind}{f'_{number + 1}' if number else ''}"] = figure
    for name in tensors or ():
        for kind, figure in table_pictures(reading, name, tensors or {}):
            drawings[f"{kind}_{name.removesuffix('.weight').replace('.', '_')}"] = figure
    return drawings


def save_pictures(reading: Reading, path: str | Path, folder: Path) -> list[Path]:
    """Write the figures of the checkpoint at a path into a folder, as PNG files; return their paths."""
    from posenc.lab.results import figures

    path = load.find_checkpoint(path, weights=has_learned_tables(reading))
    tensors = open_tensors(path) if has_tensors(path) else None
    return [figures.save(figure, folder / f"{name}.png") for name, figure in reading_pictures(reading, tensors).items()]


def encoding_pictures(encoding: Encoding, part: Part) -> Iterator[tuple[str, Any]]:
    """Yield the figures of an encoding that needs no weights."""
    from posenc.lab.description import pictures
    from posenc.lab.results import figures

    length = part.trained_length or 4096
    if encoding.wavelengths is not None:
        canvas = pictures.Gallery()
        pictures.add_spectrum(canvas, pictures.Sight(encoding, replace(part.shape, max_len=length), length, encoding))
        yield "spectrum", canvas.figures["wavelengths"]
    if hasattr(encoding, "slopes") and (curves := biases(encoding, part, part.trained_length)):
        distance, values = curves
        title = f"{encoding}: bias by distance, each head"
        yield "bias", figures.bias_curves(distance.tolist(), values.numpy(), title)


@torch.no_grad()
def biases(encoding: Encoding, part: Part, reach: int | None) -> tuple[Tensor, Tensor] | None:
    """Return signed distances [n] and the biases [heads, n] of an encoding; None if it has none."""
    reach = min(reach or MOST_DISTANCES, MOST_DISTANCES)
    distance = torch.arange(0 if part.shape.causal else 1 - reach, reach)
    values = encoding.by_distance(distance)
    return None if values is None else (distance, values)


def table_pictures(reading: Reading, name: str, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Any]]:
    """Yield the figure of a learned table."""
    from posenc.lab.results import figures

    if POSITION_TABLE.search(name):
        curves = sample_rows(tensors[name], MOST_ROWS)
        if curves is not None:
            rows, step = curves
            sampling = "" if step == 1 else f", one in {step}"
            yield "similarity", figures.similarity_matrix(rows.numpy(), f"{name}: cosine of its rows{sampling}")
    if RELATIVE_TABLE.search(name):
        if curves := table_bias(reading, name, tensors[name].float()):
            distance, values = curves
            yield "bias", figures.bias_curves(distance.tolist(), values.numpy(), f"{name}: bias by distance, each head")


def sample_rows(table: Tensor, limit: int) -> tuple[Tensor, int] | None:
    """Return at most `limit` evenly chosen rows of a table, and the step; None below two rows."""
    rows = table.float().flatten(0, -2) if table.dim() > 1 else table[:0]
    step = -(-len(rows) // limit)
    return (rows[::step], step) if len(rows) > 1 else None


@torch.no_grad()
def table_bias(reading: Reading, name: str, table: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the biases of a table of distances, as `biases` does; None if no encoding has that table."""
    for part in reading.parts:
        if len(reading.parts) > 1 and part.name.split(".")[-1][:3] not in name[:3]:
            continue
        for encoding in distinct_encodings(part):
            bias_table: Any = getattr(encoding, "table", None)
            if bias_table is None or not hasattr(encoding, "buckets"):
                continue
            table = table if table.shape == bias_table.shape else table.T
            if table.shape != bias_table.shape:
                return None
            bias_table.copy_(table)
            return biases(encoding, part, 2 * getattr(encoding, "max_distance", 128))
    return None
