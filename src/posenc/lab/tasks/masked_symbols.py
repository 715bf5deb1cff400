"""Say what is masked, where each symbol follows from the one some steps before: ?kmb?? -> aln."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import BOS, Symbols, column
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class MaskedSymbols(Symbols):
    """Say what is masked (?), where each symbol is the next one after that `offset` steps before: ?kmb?? -> aln.

    Masked prediction in a language of pure order: a masked symbol follows from those at one distance to its left and
    right, and the side matters. Of each of the `offset` interleaved sequences one symbol is masked, and a model that
    sees all predicts it in its place.

    symbols  how many different symbols there are; the last is followed by the first
    offset   how many steps there are between a symbol and what follows from it

    Raises ValueError for a length without two symbols of each sequence.
    Source: Devlin et al. 2018, arXiv:1810.04805, section 3.1 (masked prediction), here of a made language.
    """

    symbols: int = 16
    offset: int = 3

    also_called = ("masked", "mask", "fill", "gap", "cloze", "bert", "denoise")
    recipe = MappingProxyType({"train_length": 16, "steps": 1000, "batch": 32, "rate": 3e-3, "cool_down": 100})
    reads = "encoder"
    mask = "?"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.whole, symbols=2, offset=1)

    @property
    def letters(self) -> str:
        return super().letters + self.mask

    def tokens(self, length: int) -> int:
        return length + 1  # BOS and the symbols

    def lengths(self, longest: int) -> Sequence[int]:
        return range(2 * self.offset, longest + 1)

    def chance(self, length: int) -> float:
        return super().chance(self.offset)

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        if length < 2 * self.offset:
            raise ValueError(
                f"{self} needs two symbols of each sequence: lengths of {2 * self.offset} or more, got {length}"
            )
        place = torch.arange(length)
        first = torch.randint(0, self.symbols, (rows, self.offset), generator=generator)
        symbols = 3 + (first[:, place % self.offset] + place // self.offset) % self.symbols
        draws = torch.rand(rows, length, generator=generator)
        masked = torch.zeros(rows, length, dtype=torch.bool)
        for start in range(self.offset):
            start_draws = draws[:, start :: self.offset]
            masked[:, start :: self.offset] = start_draws == start_draws.amax(1, keepdim=True)
        ids = torch.cat((column(rows, BOS), torch.where(masked, self.id(self.mask), symbols)), 1)
        answer = torch.cat((torch.zeros(rows, 1, dtype=torch.bool), masked), 1)
        return Batch(ids, torch.cat((column(rows, BOS), symbols), 1), answer)
