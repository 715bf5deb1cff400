"""A reading in words and in pictures, for people."""

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
    distinct,
    has_learned_tables,
    has_tensors,
    runs,
)
from posenc.checkpoints.vocabulary.ledger import in_words
from posenc.checkpoints.vocabulary.reading import Part, Reading
from posenc.checkpoints.vocabulary.specs import short, whole
from posenc.encoding.base import Encoding, parts_of, settings_of

LAYOUTS = {
    "half": "half: channel k and the one half the rotary width further on make a pair",
    "interleaved": "interleaved: channels 2k and 2k + 1 make a pair",
    "swapped": "swapped: the pairs of half, turned the other way round",
}

MOST_ROWS = 512
"""Rows of a learned table that are drawn at most, evenly chosen."""

MOST_DISTANCES = 512
"""How far biases are drawn at most (tokens)."""


def words(reading: Reading) -> str:
    """What contradicts itself and what was understood, in plain sentences, with what was not and what has no spec."""
    parts = [line for part in reading.parts for line in ("", *of_part(part))]
    lists = {title: ["", f"{title}:", *(f"  {one}" for one in said)] for title, said in doubts(reading).items()}
    lines = [f"{reading.architecture} ({FORMATS[reading.format]})", *lists.pop("Contradictory", [])]
    lines += parts or ["", "No stack with positions could be read."]
    return "\n".join([*lines, *(line for said in lists.values() for line in said)])


def doubts(reading: Reading) -> dict[str, list[str]]:
    """What contradicts itself, what was not understood and what has no spec, in sentences; without empty ones."""
    sentences = {
        "Contradictory": list(reading.contradictions),
        "Not understood": [f"{key}: {in_words(value)}" for key, value in reading.unknown.items()],
        "Not covered": list(reading.not_covered),
    }
    return {title: said for title, said in sentences.items() if said}


FORMATS = {"transformers": "a config of transformers", "meta": "Meta's params.json", "gguf": "a GGUF file"}


def understood(reading: Reading) -> tuple[list[str], list[list[str]], str]:
    """Key by key what was taken to say what: headers, rows and title of a table."""
    return ["key", "says"], [[key, says] for key, says in reading.understood.items()], "Understood"


def of_part(part: Part) -> Iterator[str]:
    """The lines about one stack."""
    shape = part.shape
    heads = "heads not said" if part.kv_heads is None else f"{shape.heads} heads of {shape.head_dim}"
    if part.kv_heads not in (None, shape.heads):
        heads += f", {part.kv_heads} for keys and values"
    length = f"trained on {part.trained_length:,} tokens" if part.trained_length else "trained length not said"
    seen = "sees the past" if shape.causal else "sees both sides"
    yield (f"{part.name or 'The model'}: {len(part.layers)} layers, {shape.dim:,} channels, {heads}; {length}; {seen}")
    if part.embed != "none":
        yield f"  added to the embeddings: {part.embed}"
    for name, size in part.tables.items():
        yield f"  table {name}: {' x '.join(map(str, size))}"
    for sentence in part.besides:
        yield f"  besides: {sentence}"
    told = runs(part)
    pattern = cycle_of(part)
    if pattern and len(told) > len(pattern):
        counts = " + ".join(f"{last - first + 1}" for first, last in pattern)
        yield f"  layers in a cycle of {pattern[-1][1] + 1} ({counts}):"
        told = pattern
    explained: set[str] = set()
    for first, last in told:
        layer = part.layers[first]
        which = f"layer {first}" if first == last else f"layers {first} to {last}"
        said = short(layer.spec) if part.known or layer.spec != "none" else "not known"
        yield f"  {which}: {said}{about(part, first)}"
        if layer.spec not in explained and said != "not known":
            explained.add(layer.spec)
            for one in parts_of(part.encoding(first)):
                yield from (f"      {line}" for line in of_encoding(one, part))


def about(part: Part, index: int) -> str:
    """What a layer has besides its spec."""
    layer, said = part.layers[index], []
    if not layer.attends:
        return "   [does not attend]"
    if layer.window:
        sides = "" if part.shape.causal else f": {layer.window - 1:,} to either side"
        said.append(f"window of {layer.window:,} tokens{sides}")
    if layer.chunk:
        said.append(f"chunks of {layer.chunk:,} tokens")
    if layer.head_dim > part.shape.head_dim:
        said.append(f"heads of {layer.head_dim}")
    elif layer.head_dim < part.shape.head_dim:
        said.append(f"on {layer.head_dim} of {part.shape.head_dim} channels of a head")
    if layer.scale is not None:
        said.append(f"logits times {layer.scale:.6g}")
    return f"   [{'; '.join(said)}]" if said else ""


def cycle_of(part: Part) -> list[tuple[int, int]]:
    """The runs of the shortest cycle that the layers repeat, or nothing where they do not."""
    count = len(part.layers)
    for step in range(2, count // 2 + 1):
        if all(part.layers[index] == part.layers[index % step] for index in range(count)):
            return [(first, min(last, step - 1)) for first, last in runs(part) if first < step]
    return []


def of_encoding(encoding: Any, part: Part) -> Iterator[str]:
    """The numbers of one encoding, with what they mean."""
    options = settings_of(encoding)
    if "layout" in options:
        yield f"layout {LAYOUTS[options['layout']]}"
    if "base" in options:
        width = getattr(encoding, "width", encoding.head_dim)
        yield f"base {whole(encoding.base):,}; {width} of {encoding.head_dim} channels of a head turn"
    if getattr(encoding, "wavelengths", None) is not None:
        yield turns(encoding, part)
    if options.get("schedule") is not None:
        yield from of_schedule(encoding.schedule)
    if hasattr(encoding, "slopes"):
        slopes = [float(slope) for slope in encoding.slopes]
        yield f"slopes from {max(slopes):.4g} to {min(slopes):.4g} a token"
    if "buckets" in options:
        yield f"{options['buckets']} buckets; from {options['max_distance']} tokens on all share the last"
    if "interval" in options:
        yield f"from {options['interval']:,} tokens on, queries grow by {options['strength']} times a logarithm"


def turns(encoding: Any, part: Part) -> str:
    """From where to where the wavelengths go, and how many pairs turn whole in the trained length."""
    waves = encoding.wavelengths
    moving = waves[waves.isfinite()]
    said = f"{len(waves)} pairs, wavelengths from {moving.min():.4g} to {moving.max():,.0f} tokens"
    if len(moving) < len(waves):
        said += f", {len(waves) - len(moving)} stand still"
    if part.trained_length:
        said += f"; {int((moving <= part.trained_length).sum())} turn whole within the trained length"
    return said


def of_schedule(schedule: Any) -> Iterator[str]:
    """Every parameter of a schedule, and its temperature."""
    given = ((one.name, getattr(schedule, one.name)) for one in fields(schedule))
    said = ", ".join(f"{name.replace('_', ' ')} {in_words(value)}" for name, value in given if value is not None)
    yield f"schedule {schedule.spec_name}: {said or 'no parameters'}"
    if schedule.by_horizon:
        yield "    it depends on how long each sequence is"
    temperature = getattr(schedule, "temperature", None)
    if temperature is not None and not math.isclose(temperature, 1):
        yield f"    temperature {temperature:.6g}: logits are multiplied by {temperature**2:.6g}"
    if hasattr(schedule, "temperatures"):
        short, long = schedule.temperatures()
        yield f"    temperature {short:.6g} for short sequences, {long:.6g} for long ones"


def pictures(reading: Reading, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Any]:
    """Figures by name: spectra against the trained length, similarities of learned tables, curves of biases.

    tensors  the weights, such as `open_tensors` gives, from which learned tables are taken; without them these have
             no picture. Only the tables are read
    """
    drawn: dict[str, Any] = {}
    for part in reading.parts:
        prefix = f"{part.name.replace('.', '_')}_" if part.name else ""
        for encoding in distinct(part):
            for kind, figure in of_one(encoding, part):
                number = sum(name.startswith(f"{prefix}{kind}") for name in drawn)
                drawn[f"{prefix}{kind}{f'_{number + 1}' if number else ''}"] = figure
    for name in tensors or ():
        for kind, figure in of_tensor(reading, name, tensors or {}):
            drawn[f"{kind}_{name.removesuffix('.weight').replace('.', '_')}"] = figure
    return drawn


def save(reading: Reading, path: str | Path, folder: Path) -> list[Path]:
    """Write the pictures of the checkpoint at a path into a folder, as PNG files; returns their paths."""
    from posenc.lab.results import figures

    path = load.find(path, weights=has_learned_tables(reading))
    tensors = open_tensors(path) if has_tensors(path) else None
    return [figures.save(drawn, folder / f"{name}.png") for name, drawn in pictures(reading, tensors).items()]


def of_one(encoding: Encoding, part: Part) -> Iterator[tuple[str, Any]]:
    """The pictures of an encoding that needs no weights."""
    from posenc.lab.description import pictures
    from posenc.lab.results import figures

    trained = part.trained_length or 4096
    if encoding.wavelengths is not None:
        drawn = pictures.Drawn()
        pictures.spectrum(drawn, pictures.Sight(encoding, replace(part.shape, max_len=trained), trained, encoding))
        yield "spectrum", drawn.figures["wavelengths"]
    if hasattr(encoding, "slopes") and (found := biases(encoding, part, part.trained_length)):
        distance, values = found
        title = f"{encoding}: bias by distance, each head"
        yield "bias", figures.bias_curves(distance.tolist(), values.numpy(), title)


@torch.no_grad()
def biases(encoding: Encoding, part: Part, reach: int | None) -> tuple[Tensor, Tensor] | None:
    """What an encoding adds to logits, at each signed distance [n]: [heads, n]; None where it adds nothing."""
    reach = min(reach or MOST_DISTANCES, MOST_DISTANCES)
    distance = torch.arange(0 if part.shape.causal else 1 - reach, reach)
    values = encoding.by_distance(distance)
    return None if values is None else (distance, values)


def of_tensor(reading: Reading, name: str, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Any]]:
    """The picture of a learned table."""
    from posenc.lab.results import figures

    if POSITION_TABLE.search(name):
        found = rows_of(tensors[name], MOST_ROWS)
        if found is not None:
            rows, step = found
            every = "" if step == 1 else f", one in {step}"
            yield "similarity", figures.similarity_matrix(rows.numpy(), f"{name}: cosine of its rows{every}")
    if RELATIVE_TABLE.search(name):
        if found := bias_of(reading, name, tensors[name].float()):
            distance, values = found
            yield "bias", figures.bias_curves(distance.tolist(), values.numpy(), f"{name}: bias by distance, each head")


def rows_of(table: Tensor, most: int) -> tuple[Tensor, int] | None:
    """The vectors of a learned table, at most so many, evenly chosen: and one in how many; None for less than two."""
    rows = table.float().flatten(0, -2) if table.dim() > 1 else table[:0]
    step = -(-len(rows) // most)
    return (rows[::step], step) if len(rows) > 1 else None


@torch.no_grad()
def bias_of(reading: Reading, name: str, table: Tensor) -> tuple[Tensor, Tensor] | None:
    """What a table of distances adds to logits, as `biases` says it; None where it has no home."""
    for part in reading.parts:
        if len(reading.parts) > 1 and part.name.split(".")[-1][:3] not in name[:3]:
            continue
        for encoding in distinct(part):
            own: Any = getattr(encoding, "table", None)
            if own is None or not hasattr(encoding, "buckets"):
                continue
            table = table if table.shape == own.shape else table.T
            if table.shape != own.shape:
                return None
            own.copy_(table)
            return biases(encoding, part, 2 * getattr(encoding, "max_distance", 128))
    return None
