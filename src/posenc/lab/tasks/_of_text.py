"""What the tasks on real text share: a text on the disk, as bytes or as a tokenizer's tokens, and windows of it."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Generator, Tensor

from posenc.lab.tasks._task import Batch, Task
from posenc.lab.texts import data
from posenc.lab.texts.data import Joined
from posenc.lab.texts.tokenized import Tokenized, Tokenizer, Tokens, tokenized


@dataclass(frozen=True, kw_only=True)
class OfText(Task):
    """Base of the tasks on real text, measured in bits per byte of held-out text whatever the tokens are.

    Ids are the bytes, or those of a tokenizer; behind them come BOS and what a task adds.

    path       a text, `.jsonl` or `.parquet` file, or a folder of them; None: the Python standard library's own
    field      where the text stands in records; None: in "text"
    tokenizer  a tokenizer.json of the `tokenizers` library; None: bytes are the tokens
    """

    path: str | None = None
    field: str | None = None
    tokenizer: str | None = None

    recipe = MappingProxyType({"train_length": 32, "steps": 800})
    beyond = (2, 4, 8)
    in_bits = True
    added: ClassVar[int] = 1
    """How many ids there are behind those of the text; the first of them is BOS."""

    @property
    def asked(self) -> float:
        """The share of the tokens of a window that is asked for."""
        return 1.0

    @property
    def unit(self) -> str:
        """What is counted where a text is measured: its bytes, or its tokens."""
        return "bytes" if self.tokenizer is None else "tokens"

    @functools.cached_property
    def loaded(self) -> Tokenizer | None:
        """The tokenizer; it is read without the text, for what only continues a prompt."""
        return None if self.tokenizer is None else Tokenizer.of(self.tokenizer)

    @functools.cached_property
    def text(self) -> data.Text | Tokenized:
        """Read when it is first asked for: what only continues a prompt needs none, and a run's file may name any."""
        found = data.load(self.path, self.field)
        return found if self.loaded is None else tokenized(found, self.loaded)

    @property
    def bos(self) -> int:
        return 256 if self.loaded is None else self.loaded.vocab

    @property
    def vocab(self) -> int:
        return self.bos + self.added

    def contents(self) -> Mapping[str, str]:
        found = {"sha256 of the text": self.text.sha256}
        return found if self.loaded is None else found | {"sha256 of the tokenizer": self.loaded.sha256}

    def lengths(self, longest: int) -> Sequence[int]:
        return [longest]

    def starts(self, length: int, rows: int, generator: Generator) -> Tensor:
        """Where windows of `length` tokens begin in what is trained on: [rows]."""
        places = len(self.text.train) - length
        if places < 1:
            wrong = f"the text has {len(self.text.train):,} {self.unit} to train on, too few for a window of {length}"
            raise ValueError(f"{wrong}; add text or choose shorter lengths")
        return torch.randint(0, places, (rows,), generator=generator)

    def read(self, source: Joined | Tokens, start: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """BOS and `length` tokens from each place [B] on: [B, 1 + length]; and their bytes [B, length]."""
        ids = source.windows(start, length).long()
        sizes = source.bytes_in(start, length) if isinstance(source, Tokens) else torch.ones_like(ids)
        return torch.cat((torch.full((len(start), 1), self.bos), ids), 1), sizes

    def windows(self, source: Joined | Tokens, start: Tensor, length: int) -> Batch:
        """Windows of `length` tokens behind BOS from the places [B] on, and what is to be said of them.

        The last `length` columns are those of the tokens, whatever stands before them.
        """
        raise NotImplementedError(f"{self} has no windows(source, start, length): what is to be said of a text")

    def encode(self, text: str) -> list[int]:
        if self.loaded is not None:
            return [self.bos, *self.loaded.encode(text)]
        # What the command line could not decode stands for the bytes that were typed.
        return [self.bos, *text.encode(errors="surrogateescape")]

    def decode(self, ids: list[int]) -> str:
        known = [i for i in ids if i < self.bos]
        return bytes(known).decode(errors="replace") if self.loaded is None else self.loaded.decode(known)
