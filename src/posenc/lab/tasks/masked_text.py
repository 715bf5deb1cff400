"""Masked tokens of real text, predicted by an encoder from both sides."""

import functools
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator, Tensor

from posenc import checks
from posenc.lab.tasks._of_text import TextTask
from posenc.lab.tasks._task import Batch
from posenc.lab.texts.data import JoinedPieces
from posenc.lab.texts.tokenized import TokenFile

SEED = 1_000_003
"""The seed of the masks of held-out text, so that they are the same for all encodings and lengths."""

PERIOD = 65_537
"""The period of the draws (tokens): a prime, so that windows do not see them at the same places."""


@dataclass(frozen=True, kw_only=True)
class MaskedText(TextTask):
    """Predict the masked tokens of a window from the tokens on both sides.

    Of the chosen tokens, 80 % become MASK, 10 % a random token, and 10 % stay as they are: the model cannot tell which
    tokens are right. In training they are drawn anew; in held-out text their place decides, so that windows of all
    lengths mask the same tokens.

    The length is the number of tokens in a window, BOS not counted. Ids are the bytes, 256 for BOS, 257 for MASK.

    path       a text, `.jsonl` or `.parquet` file, or a folder of them; None: the Python standard library's own
    field      where the text stands in records; None: in "text"
    tokenizer  a tokenizer.json of the `tokenizers` library; None: bytes are the tokens
    masked     the share of the tokens that are predicted

    Source: Devlin et al. 2018, arXiv:1810.04805, section 3.1 (task 1).
    """

    masked: float = 0.15

    also_called = ("masked", "mask", "fill", "gap", "cloze", "bert", "denoise", "text", "language")
    reads = "encoder"
    extra_ids = 2
    # Fewer tokens of each window count, so the batch is larger.
    recipe = MappingProxyType({"train_length": 32, "steps": 800, "batch": 32})

    def __post_init__(self) -> None:
        checks.fraction(f"{self.spec_name}: masked", self.masked)

    @property
    def predicted_share(self) -> float:
        return self.masked

    @property
    def mask(self) -> int:
        return self.bos + 1

    def tokens(self, length: int) -> int:
        return length + 1  # BOS, and the window

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        start = self.starts(length, rows, generator)
        draws = torch.rand(2, rows, length, generator=generator, dtype=torch.float64)
        # At least one token of each window is masked.
        draws[0].masked_fill_(draws[0] == draws[0].amin(1, keepdim=True), 0.0)
        return self.mask_tokens(*self.read(self.text.train, start, length), draws)

    def windows(self, source: JoinedPieces | TokenFile, start: Tensor, length: int) -> Batch:
        """Windows of BOS and `length` tokens from the given starts; the masks depend on the place alone."""
        place = start[:, None] + torch.arange(length)
        return self.mask_tokens(*self.read(source, start, length), draws_of_places()[:, place % PERIOD])

    def mask_tokens(self, sequence: Tensor, sizes: Tensor, draws: Tensor) -> Batch:
        """Mask tokens of sequences by draws [2, B, T] in 0..1: which and how, and the random token."""
        mask = draws[0] < self.masked
        kind = draws[0] / self.masked
        ids = sequence[:, 1:]
        inputs = torch.where(mask & (kind < 0.8), self.mask, ids)
        inputs = torch.where(mask & (kind >= 0.8) & (kind < 0.9), (draws[1] * self.bos).long(), inputs)
        bos = sequence[:, :1]
        zero = torch.zeros_like(bos)
        return Batch(
            torch.cat((bos, inputs), 1), sequence, torch.cat((zero.bool(), mask), 1), bytes=torch.cat((zero, sizes), 1)
        )

    def decode(self, ids: list[int]) -> str:
        parts, part = [], list[int]()
        for token in (*ids, self.mask):
            if token == self.mask:
                parts.append(TextTask.decode(self, part))
                part = []
            else:
                part.append(token)
        return "[MASK]".join(parts)


@functools.cache
def draws_of_places() -> Tensor:
    """Uniform numbers [2, PERIOD] in 0..1."""
    return torch.rand(2, PERIOD, generator=Generator().manual_seed(SEED), dtype=torch.float64)
