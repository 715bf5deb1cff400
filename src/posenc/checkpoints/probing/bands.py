"""Bands of rotary frequencies: what a model loses, or wins, where one of them stands still."""

from collections.abc import Generator, Iterable, Sequence
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
    """Pairs first..end-1 of a spectrum, fastest first; their wavelengths (positions), shortest and longest.

    of  the spec of their rotary encoding, where layers have different ones; "": that of all layers
    """

    first: int
    end: int
    shortest: float
    longest: float
    of: str = ""

    @property
    def pairs(self) -> str:
        """Which pairs they are.

        >>> Band(0, 4, 6.3, 2000.4, "rotary(base=1000000)").pairs
        'pairs 0 to 3 of rotary(base=1000000)'
        """
        return f"pairs {self.first} to {self.end - 1}" + (f" of {self.of}" if self.of else "")

    @property
    def words(self) -> str:
        """The band in words.

        >>> Band(0, 4, 6.3, 2000.4).words
        'pairs 0 to 3, one turn in 6 to 2,000 tokens'
        """
        return f"{self.pairs}, one turn in {self.shortest:,.0f} to {self.longest:,.0f} tokens"


def rotaries_of(part: Part, layers: Iterable[int] | None = None) -> list[Any]:
    """The rotary encodings of a stack, or of some of its layers, each once: Gemma 3 has two, of different bases.

    Raises ValueError where there are none, or where one is no plain rotary (its pairs belong to several axes, or some
    stand still), or has frequencies that depend on the length of a text.
    """
    encodings = [part.encoding(layer) for layer in (range(len(part.layers)) if layers is None else layers)]
    found = {repr(one): one for encoding in encodings for one in parts_of(encoding) if isinstance(one, OneSpectrum)}
    if not found:
        raise ValueError("bands of frequencies take rotary encodings, and the layers have none")
    for rotary in found.values():
        if rotary.spec_name != "rotary" or rotary.turns_when_attending:
            raise ValueError(
                f"bands of frequencies take plain rotary encodings that no length changes, and one is {rotary}"
            )
    return list(found.values())


def far_sighted(part: Part, length: int) -> list[int]:
    """The layers that turn queries and keys and see further than a length."""
    return [
        layer
        for layer, of in enumerate(part.layers)
        if of.reach > length and any(isinstance(one, OneSpectrum) for one in parts_of(part.encoding(layer)))
    ]


def bands_of(rotaries: Sequence[Any], count: int) -> list[Band]:
    """The pairs of each encoding in so many bands, one behind the other, as equal as can be; no more than pairs."""
    found = []
    for rotary in rotaries:
        waves, of = rotary.wavelengths.tolist(), repr(rotary) if len(rotaries) > 1 else ""
        edges = [round(len(waves) * place / count) for place in range(count + 1)]
        found += [Band(a, b, waves[a], waves[b - 1], of) for a, b in pairwise(edges) if b > a]
    return found


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
    """The model with a band standing still in the layers that have it, for texts of a length."""

    def change(rotary: Any) -> Encoding:
        return standing(rotary, band) if band.of in ("", repr(rotary)) else rotary

    specs = tuple(repr(with_change(part.encoding(layer), change)) for layer in range(len(part.layers)))
    with attach(model, specs, horizon=length):
        yield
