"""The interface of a measure: a model's numbers with errors at a length, from storable passes."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from transformers import PreTrainedModel as Model
    from transformers import PreTrainedTokenizerBase

    from posenc.checkpoints.formats.load import LoadedModel
    from posenc.checkpoints.measures.perplexity import Tokens

WHOLE = "whole"
"""The use of a model that is no baseline: it reads the whole input."""

Progress = Callable[[float], None]
"""A callback that takes the finished share of a pass, from 0 to 1."""


class TooShort(ValueError):
    """A length has no room for the task."""


@dataclass(frozen=True)
class Number:
    """A number of a measure: its name, its meaning, whether more is better, and its value by guessing."""

    name: str
    words: str
    more_is_better: bool
    chance: float | None = None


@dataclass(frozen=True)
class Value:
    """The value of a number.

    value  in the number's unit
    error  its standard error over documents, windows or trials; None for a single sample
    each   the samples, in the same order for every method, so that two methods are compared sample by sample: the
           standard error of a difference is far smaller than that of either number. Their scale is the one in which
           the mean counts: losses (nats) of a perplexity, 0 and 1 of a share
    """

    value: float
    error: float | None
    each: tuple[float, ...] = ()


class Measure:
    """A measure of what a model does with longer inputs.

    name       its name on the command line: --measures perplexity,one-key
    numbers    the first decides which method wins, at the target
    price      the name of the number that says, at the trained length, what a method costs short inputs
    needs      the lowest value of the first number, for the original model at the trained length, at which longer
               inputs are run, for the original model and the winner alone. None: every method runs
    baselines  other ways to use the original model, beyond the trained length: name -> words
    options    the fields of `Inputs` that it reads; the user may set no other
    source     the measured texts or trials, in words
    facts      all that results depend on beside model, method and length (JSON)
    """

    name: ClassVar[str]
    numbers: tuple[Number, ...]
    price: ClassVar[str]
    needs: ClassVar[float | None] = None
    baselines: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[frozenset[str]]
    source: str
    facts: Mapping[str, Any]

    def passes(self, lengths: Sequence[int], by_length: bool) -> tuple[int, ...]:
        """Return the lengths that take a pass of their own; by_length: the method depends on the length."""
        return tuple(lengths)

    def work(self, length: int) -> float:
        """Return the number of tokens that the pass at a length reads."""
        raise NotImplementedError

    def run(self, model: "Model", length: int, how: str = WHOLE, tell: Progress | None = None) -> dict[str, Any]:
        """Return the raw result of a pass, as JSON; `how` is WHOLE or the name of a baseline."""
        raise NotImplementedError

    def values(self, raw: Mapping[int, Mapping[str, Any]], length: int) -> dict[str, Value]:
        """Return the numbers at a length, by name, from the raw results of the passes by length."""
        raise NotImplementedError


@dataclass(frozen=True)
class Inputs:
    """The inputs of a measure.

    checkpoint      the model with its tokenizer
    trained_length  in tokens
    longest         the longest length that will be measured
    text            files; without any, the Python language reference
    samples         windows, documents or trials; None: the measure's own number
    start           the first token of the text that is read; None: the measure's own start
    chunk           how many tokens go through a decoder at once
    cache           where it keeps keys: "device" or "cpu"
    """

    checkpoint: "LoadedModel"
    trained_length: int
    longest: int
    text: tuple[str, ...] = ()
    samples: int | None = None
    start: int | None = None
    chunk: int = 1024
    cache: str = "device"

    @cached_property
    def tokens(self) -> "Tokens":
        """The tokens of the text, read once for all measures. Raises CannotRead without a tokenizer."""
        from posenc.checkpoints.measures import perplexity

        return perplexity.tokenize_texts(self.text, tokenizer_of(self.checkpoint))


def tokenizer_of(checkpoint: "LoadedModel") -> "PreTrainedTokenizerBase":
    """Return the tokenizer of a model; raises CannotRead where it has none."""
    from posenc.checkpoints.vocabulary.reading import CannotRead

    if checkpoint.tokenizer is None:
        raise CannotRead(f"{Path(checkpoint.path)} has no tokenizer, and without one no text can be read")
    return checkpoint.tokenizer


def part_progress(tell: Progress | None, part: int, parts: int) -> Progress | None:
    """Wrap a progress callback for one of several equal parts, with its index from 0."""
    return None if tell is None else lambda share: tell((part + share) / parts)


def error_of(samples: Sequence[float]) -> float | None:
    """Return the standard error of the mean of samples; None for fewer than two.

    >>> error_of([1.0, 3.0]), error_of([1.0])
    (1.0, None)
    """
    return statistics.stdev(samples) / len(samples) ** 0.5 if len(samples) > 1 else None


def mean_of(samples: Sequence[float]) -> Value:
    """Return the mean of samples with its error.

    >>> mean_of([1.0, 3.0])
    Value(value=2.0, error=1.0, each=(1.0, 3.0))
    """
    return Value(statistics.fmean(samples), error_of(samples), tuple(samples))


def share_of(samples: Sequence[float]) -> Value:
    """Return the mean of trials that are right (1), wrong (0) or right in part, with its error.

    The error is the standard error of these trials with one right and one wrong trial added, so that a few trials that
    agree are not taken for certain.

    >>> share_of([1.0, 1.0])
    Value(value=1.0, error=0.25, each=(1.0, 1.0))
    """
    return Value(statistics.fmean(samples), error_of([*samples, 0.0, 1.0]), tuple(samples))
