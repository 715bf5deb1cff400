"""A byte-level language model on real text."""

import functools

import torch
from torch import Generator

from posenc.lab import data
from posenc.lab.data import Joined, Text
from posenc.lab.tasks import Batch


class ByteText:
    """A byte-level language model on real text: predict every byte from those before it.

    The length is the number of tokens in a window: BOS and the bytes behind it. Ids are the bytes, and 256 for BOS.
    """

    name = "text"
    vocab = 257
    bos = 256

    def __init__(self, path: str | None) -> None:
        """Of the text of a file or folder; without a path, of the standard library's."""
        self.path = path

    @functools.cached_property
    def text(self) -> Text:
        """Read when it is first asked for: what only continues a prompt needs none, and a run's file may name any."""
        return data.load(self.path)

    def tokens(self, length: int) -> int:
        return length

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
        return Batch(torch.cat((bos, ids), 1), torch.ones(length, dtype=torch.bool))

    def encode(self, text: str) -> list[int]:
        # What the command line could not decode stands for the bytes that were typed.
        return [self.bos, *text.encode(errors="surrogateescape")]

    def decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")
