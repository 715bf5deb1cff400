"""Masked tokens of real text, said by an encoder that sees what stands on both sides."""

import functools
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator, Tensor

from posenc import checks
from posenc.lab.tasks._of_text import OfText
from posenc.lab.tasks._task import Batch
from posenc.lab.texts.data import Joined
from posenc.lab.texts.tokenized import Tokens

SEED = 1_000_003
"""What is masked in held-out text is drawn from here, so that it is the same for all encodings and lengths."""

PERIOD = 65_537
"""After so many tokens the same draws come again: a prime, so that no window sees them at the same place."""


@dataclass(frozen=True, kw_only=True)
class MaskedText(OfText):
    """Say what stood at the masked places of a window, from all that stands around them.

    Of the tokens chosen, 80 % become MASK, 10 % another token at random, and 10 % stay as they are: the model cannot
    tell which of the tokens that it reads are right. In training they are drawn anew; in held-out text they are chosen
    by their place, so that windows of all lengths ask for the same ones.

    The length is the number of tokens in a window, BOS not counted. Ids are the bytes, 256 for BOS, 257 for MASK.

    path       a text, `.jsonl` or `.parquet` file, or a folder of them; None: the Python standard library's own
    field      where the text stands in records; None: in "text"
    tokenizer  a tokenizer.json of the `tokenizers` library; None: bytes are the tokens
    masked     the share of the tokens that is asked for

    Source: Devlin et al. 2018, arXiv:1810.04805, section 3.1 (task 1).
    """

    masked: float = 0.15

    also_called = ("masked", "mask", "fill", "gap", "cloze", "bert", "denoise", "text", "language")
    reads = "encoder"
    added = 2
    # Fewer tokens of each window teach something.
    recipe = MappingProxyType({"train_length": 32, "steps": 800, "batch": 32})

    def __post_init__(self) -> None:
        checks.fraction(f"{self.spec_name}: masked", self.masked)

    @property
    def asked(self) -> float:
        return self.masked

    @property
    def mask(self) -> int:
        return self.bos + 1

    def tokens(self, length: int) -> int:
        return length + 1  # BOS, and the window

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        start = self.starts(length, rows, generator)
        draws = torch.rand(2, rows, length, generator=generator, dtype=torch.float64)
        # One of each window at least is asked for.
        draws[0].masked_fill_(draws[0] == draws[0].amin(1, keepdim=True), 0.0)
        return self.hidden(*self.read(self.text.train, start, length), draws)

    def windows(self, source: Joined | Tokens, start: Tensor, length: int) -> Batch:
        """Windows of BOS and `length` tokens from the given starts; what is masked depends on its place alone."""
        place = start[:, None] + torch.arange(length)
        return self.hidden(*self.read(source, start, length), draws_of_places()[:, place % PERIOD])

    def hidden(self, sequence: Tensor, sizes: Tensor, draws: Tensor) -> Batch:
        """Sequences with some tokens hidden, by draws [2, B, T] from 0 to 1: which and how, and what stands instead."""
        chosen = draws[0] < self.masked
        how = draws[0] / self.masked
        ids = sequence[:, 1:]
        read = torch.where(chosen & (how < 0.8), self.mask, ids)
        read = torch.where(chosen & (how >= 0.8) & (how < 0.9), (draws[1] * self.bos).long(), read)
        bos = sequence[:, :1]
        none = torch.zeros_like(bos)
        return Batch(
            torch.cat((bos, read), 1), sequence, torch.cat((none.bool(), chosen), 1), bytes=torch.cat((none, sizes), 1)
        )

    def decode(self, ids: list[int]) -> str:
        found, part = [], list[int]()
        for one in (*ids, self.mask):
            if one == self.mask:
                found.append(OfText.decode(self, part))
                part = []
            else:
                part.append(one)
        return "[MASK]".join(found)


@functools.cache
def draws_of_places() -> Tensor:
    """Numbers from 0 to 1, [2, PERIOD]."""
    return torch.rand(2, PERIOD, generator=Generator().manual_seed(SEED), dtype=torch.float64)
