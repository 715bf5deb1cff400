"""A byte-level language model on real text."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc.lab import data
from posenc.lab.data import Joined
from posenc.lab.tasks._task import Batch, Task


@dataclass(frozen=True, kw_only=True)
class Text(Task):
    """A byte-level language model on real text: predict every byte from those before it.

    The length is the number of tokens in a window: BOS and the bytes behind it. Ids are the bytes, and 256 for BOS.

    path  a text file or a folder of them; None: the Python standard library's own

    Source: the text; windows as in Press et al. 2021, arXiv:2108.12409, section 2.
    """

    path: str | None = None

    source = "the text; windows as in Press et al. 2021, arXiv:2108.12409, section 2"
    recipe = MappingProxyType({"train_length": 32, "steps": 800})
    beyond = (2, 4, 8)
    in_bits = True
    vocab = 257
    bos = 256

    @functools.cached_property
    def text(self) -> data.Text:
        """Read when it is first asked for: what only continues a prompt needs none, and a run's file may name any."""
        return data.load(self.path)

    def lengths(self, longest: int) -> Sequence[int]:
        return [longest]

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        places = len(self.text.train) - length
        if places < 1:
            raise ValueError(
                f"the text has {len(self.text.train):,} bytes to train on, too few for a window of {length}; "
                f"add text or choose shorter lengths"
            )
        start = torch.randint(0, places, (rows,), generator=generator)
        return self.windows(self.text.train, start, length)

    def windows(self, source: Joined, start: torch.Tensor, length: int) -> Batch:
        """Windows of BOS and `length` bytes from the given starts; all predictions count."""
        ids = source.windows(start, length).long()
        bos = torch.full((len(start), 1), self.bos)
        return Batch.of_next(torch.cat((bos, ids), 1), torch.ones(length, dtype=torch.bool))

    def encode(self, text: str) -> list[int]:
        # What the command line could not decode stands for the bytes that were typed.
        return [self.bos, *text.encode(errors="surrogateescape")]

    def decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")
