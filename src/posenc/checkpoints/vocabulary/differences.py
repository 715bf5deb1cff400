"""In what two readings differ: encodings by what they compute, never by how they are written."""

import functools
import math
from typing import Any

import torch

from posenc.checkpoints.vocabulary.reading import Reading
from posenc.checkpoints.vocabulary.specs import built, shape_of, short
from posenc.encoding.base import Shape, parts_of, settings_of


def differences(one: Reading, other: Reading) -> list[str]:
    """In what two readings differ, in sentences: encodings by what they compute, windows, scales, sizes, lengths."""
    if len(one.parts) != len(other.parts):
        return [f"{len(one.parts)} parts and {len(other.parts)}"]
    found = []
    for first, second in zip(one.parts, other.parts, strict=True):
        for what in ("kv_heads", "trained_length", "shape"):
            values = getattr(first, what), getattr(second, what)
            if values[0] != values[1]:
                found.append(f"{what.replace('_', ' ')} {values[0]} and {values[1]}")
        if not same(first.embed, first.shape, second.embed, second.shape):
            found.append(f"embed {first.embed} and {second.embed}")
        if len(first.layers) != len(second.layers):
            found.append(f"{len(first.layers)} layers and {len(second.layers)}")
            continue
        for index, (a, b) in enumerate(zip(first.layers, second.layers, strict=True)):
            if not same(a.spec, shape_of(first, a), b.spec, shape_of(second, b)):
                found.append(f"layer {index} {short(a.spec)} and {short(b.spec)}")
            for what in ("head_dim", "window", "scale", "chunk", "attends"):
                if not alike(getattr(a, what), getattr(b, what)):
                    found.append(f"layer {index} {what.replace('_', ' ')} {getattr(a, what)} and {getattr(b, what)}")
            if a.rows and b.rows and a.rows != b.rows:
                found.append(f"layer {index} rows of queries and keys {a.rows} and {b.rows}")
    return found if len(found) <= 4 else [*found[:4], f"and {len(found) - 4} more"]


@functools.lru_cache(maxsize=4096)
def same(one: str, shape: Shape, other: str, other_shape: Shape) -> bool:
    """Whether two specs mean the same: equal names and options, and of rotary equal frequencies and temperatures."""
    first, second = (parts_of(built(spec, of)) for spec, of in ((one, shape), (other, other_shape)))
    if [type(a) for a in first] != [type(b) for b in second]:
        return False
    for a, b in zip(first, second, strict=True):
        spectral = hasattr(a, "schedule")
        left_out = ("base", "schedule") if spectral else ()
        options = [{key: value for key, value in settings_of(x).items() if key not in left_out} for x in (a, b)]
        if options[0] != options[1]:
            return False
        # Within the trained lengths and beyond both.
        longest = max(shape.max_len, other_shape.max_len)
        if spectral and not all(spectra_alike(a, b, horizon) for horizon in (1, longest, 1000 * longest)):
            return False
    return True


def spectra_alike(one: Any, other: Any, horizon: int) -> bool:
    length = torch.tensor([horizon])
    (first, warm), (second, warmer) = (
        x.spectrum(length) if x.turns_when_attending else x.spectrum() for x in (one, other)
    )
    warm, warmer = (torch.as_tensor(x, dtype=torch.float64) for x in (warm, warmer))
    return first.shape[-1] == second.shape[-1] and bool(
        torch.isclose(first, second, rtol=1e-6, atol=0).all() and torch.isclose(warm, warmer, rtol=1e-6).all()
    )


def alike(one: float | None, other: float | None) -> bool:
    # Scales are measured in float32.
    return one == other if one is None or other is None else math.isclose(one, other, rel_tol=1e-5)
