"""Specs of a checkpoint: make them from numbers, shorten them for a sentence, split sums into encodings."""

import functools
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from posenc.catalogue import build
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part
from posenc.encoding.base import Encoding, Shape, parts_of
from posenc.schedules import Schedule


class CannotExpress(ValueError):
    """A reading that a format cannot express; the message says what is missing and what to do."""


@contextmanager
def possible(where: str) -> Generator[None]:
    """Turn the ValueError of an impossible schedule or encoding into CannotRead with the keys in `where`."""
    try:
        yield
    except CannotRead:
        raise
    except ValueError as error:
        raise CannotRead(f"{where} cannot be: {error}") from error


def new_spec(name: str, **options: object) -> str:
    """Return a spec of a name and its options, without those that are None.

    >>> new_spec("rotary", base=500000.0, layout="half", schedule=None)
    "rotary(base=500000, layout='half')"
    """
    settings = {key: as_whole(value) for key, value in options.items() if value is not None}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in settings.items())})" if settings else name


LONG = re.compile(r"\(([\d.e+-]+, [\d.e+-]+), ((?:[\d.e+-]+, ){2,})([\d.e+-]+)\)")


def shorten_spec(spec: object) -> str:
    """Return a spec for a sentence: long lists by their ends, with the number of entries.

    >>> shorten_spec("longrope(factor=4, short_factor=(1.0, 1.5, 2.0, 2.5, 3.0, 3.5))")
    'longrope(factor=4, short_factor=(1.0, 1.5, ..., 3.5: 6 numbers))'
    """
    return LONG.sub(lambda match: f"({match[1]}, ..., {match[3]}: {match[2].count(',') + 3} numbers)", str(spec))


def rotary_spec(
    *,
    head_dim: int,
    width: int | None = None,
    base: float | None = None,
    layout: str = "half",
    schedule: Schedule | None = None,
    sections: tuple[int, ...] | None = None,
    order: str | None = None,
) -> str:
    """Return the spec of rotary, or of its multimodal form with sections, without default options.

    head_dim  channels of a head; `width` of them turn
    """
    rotary_dim = head_dim if width is None else width
    options = {
        "base": None if base == 10_000 else base,
        "sections": sections,
        "order": order,
        "layout": None if layout == "half" else layout,
        "partial": None if rotary_dim == head_dim else rotary_dim / head_dim,
        "schedule": schedule,
    }
    return new_spec("rotary" if sections is None else "multimodal_rotary", **options)


def as_whole(value: Any) -> Any:
    """Return a float without a fraction as a whole number, which reads better in a spec."""
    return int(value) if isinstance(value, float) and value == int(value) and abs(value) < 1e15 else value


def encodings_by_layer(part: Part) -> list[dict[str, Encoding]]:
    """Return the encodings in each layer's spec by name, without "none"."""
    specs = [(layer.spec, shape_of(part, layer)) for layer in part.layers]
    layers = [[] if spec == "none" else parts_of(build_cached(spec, shape)) for spec, shape in specs]
    return [{str(encoding).partition("(")[0]: encoding for encoding in encodings} for encodings in layers]


@functools.lru_cache(maxsize=1024)
def build_cached(spec: str, shape: Shape) -> Encoding:
    """Build a shared encoding, which must not be changed: equal layers get the same one."""
    return build(spec, shape)


def shape_of(part: Part, layer: Layer) -> Shape:
    """Return the shape for building a layer's encoding."""
    return replace(part.shape, head_dim=layer.head_dim)
