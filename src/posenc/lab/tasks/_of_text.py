"""The base of tasks on real text: bytes or tokens on disk, and windows of them."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Generator, Tensor

from posenc.lab.tasks._task import Batch, Task
from posenc.lab.texts import data
from posenc.lab.texts.data import JoinedPieces
from posenc.lab.texts.tokenized import TokenFile, TokenizedText, Tokenizer, tokenize_text


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Base of the tasks on real text, measured in bits per held-out byte for any tokenizer.

    Ids are the bytes, or those of a tokenizer, followed by BOS and the ids that a task adds.

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
    extra_ids: ClassVar[int] = 1
    """The number of ids after those of the text; the first is BOS."""

    @property
    def predicted_share(self) -> float:
        """The share of a window's tokens that are predicted."""
        return 1.0

    @property
    def unit(self) -> str:
        """The unit of lengths: bytes or tokens."""
        return "bytes" if self.tokenizer is None else "tokens"

    @functools.cached_property
    def codec(self) -> Tokenizer | None:
        """The tokenizer, read without the text, because generation needs no text."""
        return None if self.tokenizer is None else Tokenizer.from_file(self.tokenizer)

    @functools.cached_property
    def text(self) -> data.SplitText | TokenizedText:
        """The text, read on first use, because generation needs none."""
        source_text = data.load_text(self.path, self.field)
        return source_text if self.codec is None else tokenize_text(source_text, self.codec)

    @property
    def bos(self) -> int:
        return 256 if self.codec is None else self.codec.vocab

    @property
    def vocab(self) -> int:
        return self.bos + self.extra_ids

    def contents(self) -> Mapping[str, str]:
        hashes = {"sha256 of the text": self.text.sha256}
        return hashes if self.codec is None else hashes | {"sha256 of the tokenizer": self.codec.sha256}

    def lengths(self, longest: int) -> Sequence[int]:
        return [longest]

    def starts(self, length: int, rows: int, generator: Generator) -> Tensor:
        """Random starts of windows of `length` tokens in the training text: [rows]."""
        places = len(self.text.train) - length
        if places < 1:
            wrong = f"the text has {len(self.text.train):,} {self.unit} to train on, too few for a window of {length}"
            raise ValueError(f"{wrong}; add text or choose shorter lengths")
        return torch.randint(0, places, (rows,), generator=generator)

    def read(self, source: JoinedPieces | TokenFile, start: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """BOS and `length` tokens from each start [B]: [B, 1 + length]; and their bytes [B, length]."""
        ids = source.windows(start, length).long()
        sizes = source.bytes_in(start, length) if isinstance(source, TokenFile) else torch.ones_like(ids)
        return torch.cat((torch.full((len(start), 1), self.bos), ids), 1), sizes

    def windows(self, source: JoinedPieces | TokenFile, start: Tensor, length: int) -> Batch:
        """Windows of BOS and `length` tokens from each start [B], with their targets.

        The last `length` columns are those of the tokens, whatever precedes them.
        """
        raise NotImplementedError(f"{self} has no windows(source, start, length), which makes the targets of a text")

    def encode(self, text: str) -> list[int]:
        if self.codec is not None:
            return [self.bos, *self.codec.encode(text)]
        # Bytes that the command line could not decode.
        return [self.bos, *text.encode(errors="surrogateescape")]

    def decode(self, ids: list[int]) -> str:
        text_ids = [i for i in ids if i < self.bos]
        return bytes(text_ids).decode(errors="replace") if self.codec is None else self.codec.decode(text_ids)
