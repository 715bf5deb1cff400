"""Specs of what a checkpoint has: put together from numbers, shortened for a sentence, taken apart again."""

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
    """A reading that a format has no words for; the message says what is lacking and what to do."""


@contextmanager
def possible(where: str) -> Generator[None]:
    """Turns a schedule or an encoding that cannot be into CannotRead, with the keys that ask for it."""
    try:
        yield
    except CannotRead:
        raise
    except ValueError as error:
        raise CannotRead(f"{where} cannot be: {error}") from error


def spec_of(name: str, **options: Any) -> str:
    """A spec from a name and its options, those that are None left out.

    >>> spec_of("rotary", base=500000.0, layout="half", schedule=None)
    "rotary(base=500000, layout='half')"
    """
    given = {key: whole(value) for key, value in options.items() if value is not None}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" if given else name


LONG = re.compile(r"\(([\d.e+-]+, [\d.e+-]+), ((?:[\d.e+-]+, ){2,})([\d.e+-]+)\)")


def short(spec: object) -> str:
    """A spec for a sentence: long lists by their ends, and how many numbers they have.

    >>> short("longrope(factor=4, short_factor=(1.0, 1.5, 2.0, 2.5, 3.0, 3.5))")
    'longrope(factor=4, short_factor=(1.0, 1.5, ..., 3.5: 6 numbers))'
    """
    return LONG.sub(lambda found: f"({found[1]}, ..., {found[3]}: {found[2].count(',') + 3} numbers)", str(spec))


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
    """The spec of rotary, or of its multimodal form where it has sections; only what differs from the defaults is said.

    head_dim  channels of a head; `width` of them turn
    """
    turned = head_dim if width is None else width
    options = {
        "base": None if base == 10_000 else base,
        "sections": sections,
        "order": order,
        "layout": None if layout == "half" else layout,
        "partial": None if turned == head_dim else turned / head_dim,
        "schedule": schedule,
    }
    return spec_of("rotary" if sections is None else "multimodal_rotary", **options)


def whole(value: Any) -> Any:
    """A float without a fraction as a whole number, which reads better in a spec."""
    return int(value) if isinstance(value, float) and value == int(value) and abs(value) < 1e15 else value


def encodings_of(part: Part) -> list[dict[str, Encoding]]:
    """For each layer, the encodings that its spec adds up, by name; "none" is left out."""
    return [
        {str(one).partition("(")[0]: one for one in parts_of(built(layer.spec, shape_of(part, layer)))}
        if layer.spec != "none"
        else {}
        for layer in part.layers
    ]


@functools.lru_cache(maxsize=1024)
def built(spec: str, shape: Shape) -> Encoding:
    """An encoding to be looked at and not changed: layers that are alike share it."""
    return build(spec, shape)


def shape_of(part: Part, layer: Layer) -> Shape:
    """The shape that a layer's encoding is built for."""
    return replace(part.shape, head_dim=layer.head_dim)
