"""Bands of rotary frequencies: what a model loses, or wins, where one of them stands still."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from posenc.checkpoints.extension.changes import divisors_of, with_change, with_options
from posenc.checkpoints.live.attach import attach
from posenc.checkpoints.vocabulary.reading import Part
from posenc.encoding import Encoding, parts_of
from posenc.rotations import OneSpectrum
from posenc.schedules import LongRoPE

STILL = 1e15
"""Divided by this, no pair turns visibly at any position that is ever reached."""


@dataclass(frozen=True)
class Band:
    """Pairs first..end-1 of a spectrum, fastest first; their wavelengths (positions), shortest and longest."""

    first: int
    end: int
    shortest: float
    longest: float

    @property
    def words(self) -> str:
        """The band in words.

        >>> Band(0, 4, 6.3, 2000.4).words
        'pairs 0 to 3, one turn in 6 to 2,000 tokens'
        """
        return f"pairs {self.first} to {self.end - 1}, one turn in {self.shortest:,.0f} to {self.longest:,.0f} tokens"


def rotary_of(part: Part) -> Any:
    """The one rotary encoding of a stack.

    Raises ValueError where layers have different ones or none, or where frequencies depend on the length of a text or
    belong to several axes.
    """
    layers = [part.encoding(layer) for layer in range(len(part.layers))]
    found = {repr(one): one for encoding in layers for one in parts_of(encoding) if isinstance(one, OneSpectrum)}
    if len(found) != 1:
        raise ValueError(f"bands of frequencies take one rotary encoding, and the layers have {len(found)}")
    (rotary,) = found.values()
    if rotary.spec_name != "rotary" or rotary.turns_when_attending:
        raise ValueError(f"bands of frequencies take a rotary encoding that no length changes, and it is {rotary}")
    return rotary


def far_sighted(part: Part, length: int) -> list[int]:
    """The layers that turn queries and keys and see further than a length."""
    return [
        layer
        for layer, of in enumerate(part.layers)
        if of.reach > length and any(isinstance(one, OneSpectrum) for one in parts_of(part.encoding(layer)))
    ]


def bands_of(rotary: Any, count: int) -> list[Band]:
    """The pairs in so many bands, one behind the other and as equal as they can be; no more bands than pairs."""
    waves = rotary.wavelengths.tolist()
    edges = [round(len(waves) * place / count) for place in range(count + 1)]
    return [Band(a, b, waves[a], waves[b - 1]) for a, b in pairwise(edges) if b > a]


def standing(rotary: Any, band: Band) -> Encoding:
    """The same encoding with the pairs of a band standing still: they go on carrying content, without position.

    Every divisor of the plain frequencies is said as a list, which is what LongRoPE takes.
    """
    divisors, (_, temperature) = divisors_of(rotary), rotary.spectrum()
    listed = tuple(STILL if band.first <= pair < band.end else min(of, STILL) for pair, of in enumerate(divisors))
    # One list for all lengths: the trained length that would part them changes nothing.
    return with_options(rotary, schedule=LongRoPE(1.0, listed, listed, 2, float(temperature)))


@contextmanager
def without(model: Any, part: Part, band: Band, length: int) -> Generator[None]:
    """The model with a band standing still, for texts of a length."""
    specs = tuple(
        repr(with_change(part.encoding(layer), lambda one: standing(one, band))) for layer in range(len(part.layers))
    )
    with attach(model, specs, horizon=length):
        yield
