"""Compare two readings: encodings by their numbers, never by their text."""

import functools
import math
from typing import Any

import torch

from posenc.checkpoints.vocabulary.reading import Reading
from posenc.checkpoints.vocabulary.specs import build_cached, shape_of, shorten_spec
from posenc.encoding.base import Shape, parts_of, spec_options


def differences(reading: Reading, other_reading: Reading) -> list[str]:
    """Return sentences on the differences of two readings: encodings, windows, scales, sizes, lengths."""
    if len(reading.parts) != len(other_reading.parts):
        return [f"{len(reading.parts)} parts and {len(other_reading.parts)}"]
    sentences = []
    for first, second in zip(reading.parts, other_reading.parts, strict=True):
        for name in ("kv_heads", "trained_length", "shape"):
            values = getattr(first, name), getattr(second, name)
            if values[0] != values[1]:
                sentences.append(f"{name.replace('_', ' ')} {values[0]} and {values[1]}")
        if not is_same_encoding(first.embed, first.shape, second.embed, second.shape):
            sentences.append(f"embed {first.embed} and {second.embed}")
        if len(first.layers) != len(second.layers):
            sentences.append(f"{len(first.layers)} layers and {len(second.layers)}")
            continue
        for index, (a, b) in enumerate(zip(first.layers, second.layers, strict=True)):
            if not is_same_encoding(a.spec, shape_of(first, a), b.spec, shape_of(second, b)):
                sentences.append(f"layer {index} {shorten_spec(a.spec)} and {shorten_spec(b.spec)}")
            for name in ("head_dim", "window", "scale", "chunk", "attends"):
                if not is_close(getattr(a, name), getattr(b, name)):
                    words = f"layer {index} {name.replace('_', ' ')}"
                    sentences.append(f"{words} {getattr(a, name)} and {getattr(b, name)}")
            if a.rows and b.rows and a.rows != b.rows:
                sentences.append(f"layer {index} rows of queries and keys {a.rows} and {b.rows}")
    return sentences if len(sentences) <= 4 else [*sentences[:4], f"and {len(sentences) - 4} more"]


@functools.lru_cache(maxsize=4096)
def is_same_encoding(spec: str, shape: Shape, other_spec: str, other_shape: Shape) -> bool:
    """Whether two specs are equal in names and options, and rotary ones in frequencies and temperatures."""
    first, second = parts_of(build_cached(spec, shape)), parts_of(build_cached(other_spec, other_shape))
    if [type(a) for a in first] != [type(b) for b in second]:
        return False
    for a, b in zip(first, second, strict=True):
        spectral = hasattr(a, "schedule")
        left_out = ("base", "schedule") if spectral else ()
        options = [{key: value for key, value in spec_options(x).items() if key not in left_out} for x in (a, b)]
        if options[0] != options[1]:
            return False
        # Within the trained lengths and beyond both.
        longest = max(shape.max_len, other_shape.max_len)
        if spectral and not all(spectra_alike(a, b, horizon) for horizon in (1, longest, 1000 * longest)):
            return False
    return True


def spectra_alike(rotary: Any, other_rotary: Any, horizon: int) -> bool:
    length = torch.tensor([horizon])
    (first, warm), (second, warmer) = (
        x.spectrum(length) if x.turns_when_attending else x.spectrum() for x in (rotary, other_rotary)
    )
    warm, warmer = (torch.as_tensor(x, dtype=torch.float64) for x in (warm, warmer))
    return first.shape[-1] == second.shape[-1] and bool(
        torch.isclose(first, second, rtol=1e-6, atol=0).all() and torch.isclose(warm, warmer, rtol=1e-6).all()
    )


def is_close(x: float | None, y: float | None) -> bool:
    # Scales are measured in float32.
    return x == y if x is None or y is None else math.isclose(x, y, rel_tol=1e-5)
