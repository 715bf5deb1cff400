"""A language model on real text, of bytes or of a tokenizer's tokens."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from posenc.lab.tasks._of_text import TextTask
from posenc.lab.tasks._task import Batch
from posenc.lab.texts.data import JoinedPieces
from posenc.lab.texts.tokenized import TokenFile


@dataclass(frozen=True, kw_only=True)
class Text(TextTask):
    """A language model on real text: predict every byte, or every token, from those before it.

    The length is the number of tokens in a window: BOS and the bytes behind it. Ids are the bytes, and 256 for BOS.

    path       a text, `.jsonl` or `.parquet` file, or a folder of them; None: the Python standard library's own
    field      where the text stands in records; None: in "text"
    tokenizer  a tokenizer.json of the `tokenizers` library; None: bytes are the tokens

    Source: the text; windows as in Press et al. 2021, arXiv:2108.12409, section 2.
    """

    also_called = ("language", "text", "prose", "story", "stories", "novel", "book", "chat", "chatbot", "write", "code",
                   "generate", "perplexity")  # fmt: skip

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        return self.windows(self.text.train, self.starts(length, rows, generator), length)

    def windows(self, source: JoinedPieces | TokenFile, start: Tensor, length: int) -> Batch:
        """Windows of BOS and `length` tokens from the given starts; all predictions count."""
        sequence, sizes = self.read(source, start, length)
        return Batch(sequence[:, :-1], sequence[:, 1:], torch.ones(length, dtype=torch.bool), bytes=sizes)
