"""The base class of tasks, and their batches of sequences and targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Generator, Tensor

from posenc.specs.registry import SpecObject
from posenc.tokens.positions import Positions

READERS = ("decoder", "encoder", "encoder_decoder")
"""The kinds of model: a decoder sees the tokens before, an encoder all, an encoder_decoder a source first."""


@dataclass(frozen=True)
class Batch:
    """Sequences of one length with their targets.

    ids        [B, T]  the model's input
    targets    [B, T]  the right output at each token
    answer     [T] or [B, T]  which outputs count
    positions  of the tokens; None: 0, 1, 2, ...
    source     [B, S]  the encoder's input of an encoder-decoder
    bytes      [B, T]  the bytes of text of each target; None: one
    source_positions   of the source's tokens; None: 0, 1, 2, ...
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
        """Return a batch for next-token prediction. The first T of [B, T + 1] are input, the last T targets."""
        return Batch(sequence[:, :-1], sequence[:, 1:], answer, source=source)

    def to(self, device: str) -> "Batch":
        """The batch on a device."""
        tensors = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return Batch(**tensors)

    def rows(self, rows: slice) -> "Batch":
        """The batch of some rows."""
        fields: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Positions):
                fields[name] = value.batch_rows(rows)
            elif value is not None:
                has_rows = value.dim() > 1 and len(value) == len(self.ids)
                fields[name] = value[rows] if has_rows else value
        return Batch(**fields)

    @property
    def first(self) -> int:
        """The first token at which an output counts."""
        return int(self.answer.reshape(-1, self.answer.shape[-1]).any(0).int().argmax())

    @property
    def answer_count(self) -> int:
        """How many predictions count."""
        return int(self.answer.expand(self.targets.shape).sum())


@dataclass(frozen=True, kw_only=True)
class Task(SpecObject):
    """A source of sequences with known answers: frozen options, printed as a spec.

    Your own task is a subclass in your own file, `posenc compare --tasks path/to/mine.py:Mine`. It needs

        vocab                              the number of token ids
        batch(length, rows, generator)     new sequences, drawn from the generator alone

    and where the default is wrong also

        tokens(length)    the tokens that the model reads in a sequence of this length; a length counts the task's own
                          items, and the default is one token for each
        lengths(longest)  the trained lengths; default from `shortest`, which is 1, to longest
        at_depth(share)   the same task with its hidden key at this share of the sequence
        chance(length)    the share of sequences that the best guess without the prompt gets right
        contents()        hashes of the files that its options name, which become part of a record's key
        encode, decode    a prompt as a person writes it, to ids and back; generation needs them
        reads             its model: "decoder", "encoder" or "encoder_decoder"
        axes              how many coordinates a token has
        recipe            settings of an Experiment that learn it fastest on a small CPU
        beyond            the tested lengths, as multiples of the trained one
        also_called       words by which `posenc advise` finds it

    `posenc check` tests it. The docstring names where the task comes from, as `Source: ...`.

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
    """Whether its score is bits per held-out byte, and not exact match."""

    @property
    def vocab(self) -> int:
        """The number of token ids."""
        raise NotImplementedError(f"{self} does not say its vocab: how many token ids there are")

    def tokens(self, length: int) -> int:
        """The number of tokens that the model reads in a sequence of this length."""
        return length

    def lengths(self, longest: int) -> Sequence[int]:
        """The trained lengths, shortest first."""
        return range(self.shortest, longest + 1)

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        """New sequences, drawn from the generator alone."""
        raise NotImplementedError(f"{self} makes no sequences: it has no batch(length, rows, generator)")

    def at_depth(self, share: float) -> "Task | None":
        """Return the task with its hidden key at a share (0 to 1) of the sequence; None without a key."""
        return None

    def chance(self, length: int) -> float:
        """The share of sequences that the best guess without the prompt gets right."""
        return 0.0

    def contents(self) -> Mapping[str, str]:
        """Description -> SHA-256 of the files that its options name."""
        return {}

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt, with the token that begins every sequence first."""
        raise ValueError(f"{self} has no prompts that a person can write; it has no encode(text)")

    def decode(self, ids: list[int]) -> str:
        """The text of ids."""
        return " ".join(map(str, ids))
