"""What a task is: batches of sequences, what is to be said at each token, and which of it counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Generator, Tensor

from posenc.specs.registry import Named
from posenc.tokens.positions import Positions

READERS = ("decoder", "encoder", "encoder_decoder")
"""The models that a task can ask for: what sees the tokens before, what sees all, and what reads a source first."""


@dataclass(frozen=True)
class Batch:
    """Sequences of one length, and what is to be said of them.

    ids        [B, T]  what the model reads
    targets    [B, T]  what it is to say at each of these tokens
    answer     [T] or [B, T]  which of that counts
    positions  where the tokens stand; None: 0, 1, 2, ...
    source     [B, S]  what an encoder-decoder reads first
    bytes      [B, T]  how many bytes of text each target stands for; None: one
    source_positions   where the tokens of the source stand; None: 0, 1, 2, ...
    """

    ids: Tensor
    targets: Tensor
    answer: Tensor
    positions: Positions | None = None
    source: Tensor | None = None
    bytes: Tensor | None = None
    source_positions: Positions | None = None

    @staticmethod
    def of_next(sequence: Tensor, answer: Tensor, source: Tensor | None = None) -> "Batch":
        """For a model that predicts the next token: it reads the first T of [B, T + 1] and says the last T."""
        return Batch(sequence[:, :-1], sequence[:, 1:], answer, source=source)

    def to(self, device: str) -> "Batch":
        """The same on a device."""
        given = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return Batch(**given)

    def rows(self, rows: slice) -> "Batch":
        """Some of the sequences."""
        given: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Positions):
                given[name] = value.batch_rows(rows)
            elif value is not None:
                of_each = value.dim() > 1 and len(value) == len(self.ids)
                given[name] = value[rows] if of_each else value
        return Batch(**given)

    @property
    def first(self) -> int:
        """The first token at which something counts."""
        return int(self.answer.reshape(-1, self.answer.shape[-1]).any(0).int().argmax())

    @property
    def asked(self) -> int:
        """How many predictions count."""
        return int(self.answer.expand(self.targets.shape).sum())


@dataclass(frozen=True, kw_only=True)
class Task(Named):
    """A source of sequences with known answers: frozen options, printed as they are written in a spec.

    One of your own is a subclass in a file of yours, `posenc compare --tasks path/to/mine.py:Mine`, and has to say

        vocab                              how many token ids there are
        batch(length, rows, generator)     fresh sequences, drawn from the generator alone

    and where its default is wrong also

        tokens(length)    how many tokens the model reads in a sequence of this length; a length is counted in the
                          task's own items, and the default is one token for each
        lengths(longest)  the lengths that are trained on; default from `shortest`, which is 1, to longest
        at_depth(share)   the same task with what is asked for at one place of the sequence, for whoever hides something
        chance(length)    the share of sequences that a guess answers, for whoever knows the task and not the prompt
        contents()        hashes of the files that its options name: a record is named after what was read
        encode, decode    a prompt as a person writes it, to ids and back; without them nothing is generated
        reads             the model that it is for: "decoder", "encoder" or "encoder_decoder"
        axes              how many coordinates a token has
        recipe            settings of an Experiment with which it is learned soonest on a small CPU
        beyond            the tested lengths, as multiples of the trained one
        also_called       words in which people ask for it: `posenc advise` finds it by them

    `posenc check` holds it to what the laboratory expects of it. Source: where the task comes from, in the docstring.

    >>> from posenc.lab.tasks import task_of
    >>> task_of("copy(symbols=4)").vocab
    7
    """

    reads: ClassVar[str] = "decoder"
    axes: ClassVar[int] = 1
    recipe: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    beyond: ClassVar[tuple[float, ...]] = (1.2, 1.5, 2)
    shortest: ClassVar[int] = 1
    in_bits: ClassVar[bool] = False
    """Whether it is measured in bits of held-out text, and not by sequences answered without a mistake."""

    @property
    def vocab(self) -> int:
        """How many token ids there are."""
        raise NotImplementedError(f"{self} does not say its vocab: how many token ids there are")

    def tokens(self, length: int) -> int:
        """How many tokens the model reads in a sequence of this length."""
        return length

    def lengths(self, longest: int) -> Sequence[int]:
        """The lengths that are trained on, shortest first."""
        return range(self.shortest, longest + 1)

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        """Fresh sequences."""
        raise NotImplementedError(f"{self} makes no sequences: it has no batch(length, rows, generator)")

    def at_depth(self, share: float) -> "Task | None":
        """The task with what is asked for at this share of the sequence, from 0 to 1; None where it has no place."""
        return None

    def chance(self, length: int) -> float:
        """The share of sequences that a guess answers."""
        return 0.0

    def contents(self) -> Mapping[str, str]:
        """What it is -> SHA-256, of the files that its options name."""
        return {}

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt as a person writes it, what begins every sequence first."""
        raise ValueError(f"{self} has no prompts that a person can write; it has no encode(text)")

    def decode(self, ids: list[int]) -> str:
        """Ids as a person reads them."""
        return " ".join(map(str, ids))
