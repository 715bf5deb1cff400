"""What a measure owes: numbers with their errors, of a model at a length, by passes that can be kept."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from posenc.checkpoints.formats.load import Loaded
    from posenc.checkpoints.measures.perplexity import Tokens

WHOLE = "whole"
"""How a model is used unless a baseline is measured: it is given the whole input."""

Tell = Callable[[float], None]
"""Is told which share of the work of a pass is done, from 0 to 1."""


class TooShort(ValueError):
    """A length has no room for what is asked, so that nothing can be said of it."""


@dataclass(frozen=True)
class Number:
    """One number that a measure gives: its name, what it says, whether more is better, and what guessing gives."""

    name: str
    words: str
    more_is_better: bool
    chance: float | None = None


@dataclass(frozen=True)
class Value:
    """A number that was found.

    value  in the number's unit
    error  its standard error over documents, windows or trials; None where one sample cannot say
    each   what each sample says, in an order that is the same for every method, so that two methods are compared
           sample by sample: the standard error of a difference is far smaller than that of either number. In a scale
           where their mean is what counts: losses (nats) of a perplexity, 0 and 1 of a share
    """

    value: float
    error: float | None
    each: tuple[float, ...] = ()


class Measure:
    """One way to ask what a model does with longer inputs.

    name       as the user asks for it: --measures perplexity,one-key
    numbers    the first decides which method wins, at the target
    price      the name of the number that says, at the trained length, what a method costs short inputs
    needs      the least that the first number of the model as it is must be at the trained length for longer inputs to
               say something of positions; then it is asked further, of the model as it is and the winner. None: of all
    baselines  other ways to use the model as it is, beyond the trained length: name -> words
    options    which fields of `Given` it reads; any other that a user gives is refused
    on         in words, what it is measured on
    facts      all that results depend on beside model, method and length (JSON)
    """

    name: ClassVar[str]
    numbers: tuple[Number, ...]
    price: ClassVar[str]
    needs: ClassVar[float | None] = None
    baselines: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[frozenset[str]]
    on: str
    facts: Mapping[str, Any]

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        """The lengths that take a pass of their own; by_length: the method itself depends on the length."""
        return tuple(lengths)

    def work(self, length: int) -> float:
        """How many tokens the pass at a length reads."""
        raise NotImplementedError

    def run(self, model: Any, length: int, how: str = WHOLE, tell: Tell | None = None) -> dict[str, Any]:
        """The raw result of a pass, as JSON; `how` is WHOLE or the name of a baseline."""
        raise NotImplementedError

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        """The numbers at a length, by name, from the raw results of the passes by their lengths."""
        raise NotImplementedError


@dataclass(frozen=True)
class Given:
    """What a measure is made from.

    loaded   the model with its tokenizer
    trained  its trained length, in tokens
    longest  the longest length that will be asked for
    text     files; without any, the Python language reference
    samples  windows, documents or trials; None: as many as the measure takes by itself
    start    the token of the text that is read first; None: where the measure begins by itself
    chunk    how many tokens go through a decoder at once
    cache    where it keeps keys: "device" or "cpu"
    """

    loaded: "Loaded"
    trained: int
    longest: int
    text: tuple[str, ...] = ()
    samples: int | None = None
    start: int | None = None
    chunk: int = 1024
    cache: str = "device"

    @cached_property
    def tokens(self) -> "Tokens":
        """The text as the model's tokens, read once for all measures. Raises CannotRead without a tokenizer."""
        from posenc.checkpoints.measures import perplexity

        return perplexity.tokens(self.text, tokenizer_of(self.loaded))


def tokenizer_of(loaded: "Loaded") -> Any:
    """The tokenizer of a model; raises CannotRead where it has none."""
    from posenc.checkpoints.vocabulary.reading import CannotRead

    if loaded.tokenizer is None:
        raise CannotRead(f"{Path(loaded.path)} has no tokenizer, and without one no text can be read")
    return loaded.tokenizer


def part_of(tell: Tell | None, done: int, whole: int) -> Tell | None:
    """Who is told of the whole, told of one of its equal parts, when so many are done."""
    return None if tell is None else lambda share: tell((done + share) / whole)


def error_of(samples: Sequence[float]) -> float | None:
    """The standard error of the mean of samples; None for fewer than two.

    >>> error_of([1.0, 3.0]), error_of([1.0])
    (1.0, None)
    """
    return statistics.stdev(samples) / len(samples) ** 0.5 if len(samples) > 1 else None


def mean_of(samples: Sequence[float]) -> Value:
    """The mean of samples with its error.

    >>> mean_of([1.0, 3.0])
    Value(value=2.0, error=1.0, each=(1.0, 3.0))
    """
    return Value(statistics.fmean(samples), error_of(samples), tuple(samples))


def share_of(samples: Sequence[float]) -> Value:
    """The mean of trials that are right (1) or wrong (0), or right in part, with its error.

    It is the standard error over these trials with one more that is all right and one that is all wrong, so that a few
    trials that agree are not taken for certain.

    >>> share_of([1.0, 1.0])
    Value(value=1.0, error=0.25, each=(1.0, 1.0))
    """
    return Value(statistics.fmean(samples), error_of([*samples, 0.0, 1.0]), tuple(samples))
