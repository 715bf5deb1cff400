"""A checkpoint's own encoding, as numbers for the page: what was read, its spectra, learned tables and biases."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.files.tensors import Tensors, open_tensors
from posenc.checkpoints.formats import load
from posenc.checkpoints.inspection import portrait
from posenc.checkpoints.inspection.inspect import (
    POSITION_TABLE,
    RELATIVE_TABLE,
    distinct,
    has_learned_tables,
    has_tensors,
    inspect,
)
from posenc.checkpoints.vocabulary.reading import Part, Reading
from posenc.checkpoints.vocabulary.specs import short
from posenc.encoding import Encoding
from posenc.lab.views.sections import spectrum

# A page stays small whatever a checkpoint holds.
MOST_DRAWN = 4
"""Drawings of each kind."""
MOST_ROWS = 256
"""Positions of a learned table in one drawing."""
MOST_DISTANCES = 512
MOST_HEADS = 32
MOST_PAIRS = 1024
MOST_LINES = 200
MOST_LETTERS = 400

COMPONENTS = 3
"""Principal components that are drawn of a learned table."""


def of(path: str) -> dict[str, Any]:
    """The section of the page for a checkpoint: a folder in Hugging Face's form, a GGUF file, a name of the hub.

    Raises CannotRead for what is no checkpoint, as `inspect` does.
    """
    reading = inspect(path)
    where = load.find(path, weights=has_learned_tables(reading))
    tensors = open_tensors(where) if has_tensors(where) else None
    drawn: dict[str, list[dict[str, Any]]] = {
        "spectra": [one for part in reading.parts for one in spectra(part)],
        "tables": list(tables(tensors)) if tensors else [],
        "biases": [*slopes(reading), *(buckets(reading, tensors) if tensors else [])],
    }
    left_out = [f"{len(ones) - MOST_DRAWN} more {kind}" for kind, ones in drawn.items() if len(ones) > MOST_DRAWN]
    return {
        "name": clipped(path),
        "architecture": clipped(reading.architecture),
        "format": portrait.FORMATS[reading.format],
        "parts": [lines(portrait.of_part(part)) for part in reading.parts[:MOST_DRAWN]],
        "doubts": [{"title": title, "said": lines(said)} for title, said in portrait.doubts(reading).items()],
        **{kind: ones[:MOST_DRAWN] for kind, ones in drawn.items()},
        "left_out": left_out,
    }


def lines(said: Any) -> list[str]:
    """Sentences, as many and as long as a page can hold."""
    found = [clipped(line) for line in said]
    return found if len(found) <= MOST_LINES else [*found[:MOST_LINES], f"... {len(found) - MOST_LINES} more lines"]


def clipped(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}..."


def spectra(part: Part) -> Iterator[dict[str, Any]]:
    """The wavelengths of each rotary of a stack, and its trained length: null where nothing says it."""
    shape = replace(part.shape, max_len=part.trained_length or part.shape.max_len)
    for encoding in distinct(part):
        waves = encoding.wavelengths
        if waves is None or waves.numel() > MOST_PAIRS:
            continue
        for one in spectrum.of(encoding, shape) or [plain_waves(encoding, waves)]:
            own = (one["schedule"] or {}).get("trained_length")
            yield one | {
                "name": called(part, clipped(short(one["spec"]))),
                "trained_length": part.trained_length,
                "before": own if own != part.trained_length else None,
            }


def plain_waves(encoding: Encoding, waves: Tensor) -> dict[str, Any]:
    """The wavelengths of an encoding that no schedule changes."""
    same = waves.flatten().tolist()
    return {"spec": str(encoding), "schedule": None, "plain": same, "wavelengths": same, "temperature": 1.0}


def called(part: Part, name: str) -> str:
    return f"{clipped(part.name)}: {name}" if part.name else name


def tables(tensors: Tensors) -> Iterator[dict[str, Any]]:
    """The learned tables with a vector for each position."""
    for name in tensors:
        if not POSITION_TABLE.search(name):
            continue
        whole = tensors[name]
        found = portrait.rows_of(whole, MOST_ROWS)
        if found is None or not whole.isfinite().all():
            continue
        about = {"name": clipped(name), "size": list(tensors.shape(name))}
        rows, step = found
        if step > 1:
            # One in a few shows all of a long table, and waves that are shorter than the step wrongly.
            first, _ = portrait.rows_of(whole.flatten(0, -2)[:MOST_ROWS], MOST_ROWS) or found
            yield about | table(first, 1)
        yield about | table(rows, step)


def table(rows: Tensor, step: int) -> dict[str, Any]:
    """Some vectors of a table: how alike they are, and where they lie along the directions in which they differ most.

    similarity  cosines in hundredths, row by row, each up to and with the diagonal
    components  of each of the first principal components, the place of each vector
    shares      of the variance, of all components, largest first
    """
    alike = torch.nn.functional.normalize(rows.double(), dim=-1)
    cosines = (100 * alike @ alike.T).round().int().tolist()
    left, sizes, _ = torch.linalg.svd(rows.double() - rows.double().mean(0), full_matrices=False)
    places = (left * sizes)[:, :COMPONENTS].T
    # The sign of a component means nothing: its largest place is made positive.
    largest = places.gather(1, places.abs().argmax(1, keepdim=True))
    variances = sizes.square()
    shares = variances / variances.sum() if variances.sum() > 0 else variances
    return {
        "step": step,
        "similarity": [row[: n + 1] for n, row in enumerate(cosines)],
        "components": (places * torch.where(largest < 0, -1.0, 1.0)).tolist(),
        "shares": shares[:MOST_ROWS].tolist(),
    }


def slopes(reading: Reading) -> Iterator[dict[str, Any]]:
    """The biases of encodings with a slope for each head."""
    for part in reading.parts:
        for encoding in distinct(part):
            if hasattr(encoding, "slopes") and (found := portrait.biases(encoding, part, part.trained_length)):
                yield bias(called(part, str(encoding)), *found)


def buckets(reading: Reading, tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """The biases of trained tables with a number for each bucket of distances and head."""
    for name in tensors:
        found = portrait.bias_of(reading, name, tensors[name].float()) if RELATIVE_TABLE.search(name) else None
        if found is not None:
            yield bias(name, *found)


def bias(name: str, distance: Tensor, values: Tensor) -> dict[str, Any]:
    """A bias by distance, for some heads and distances, evenly chosen."""
    every_distance, every_head = math.ceil(len(distance) / MOST_DISTANCES), math.ceil(len(values) / MOST_HEADS)
    return {
        "name": clipped(name),
        "every_head": every_head,
        "distance": distance[::every_distance].tolist(),
        "heads": values[::every_head, ::every_distance].double().tolist(),
    }
