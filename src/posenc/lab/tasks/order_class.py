"""Say which of two marks comes first: ca-db+a -> -."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc.lab.tasks._symbols import BOS, Symbols, column, random_symbols
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class OrderClass(Symbols):
    """Say which of two marks comes first: ca-db+a -> -.

    The answer depends on order alone: a model that sees all tokens and no position can only guess. It stands at the
    first token, an anchor: from there even unsigned distances tell the marks apart.

    The length is the number of tokens after the first one: random symbols, and the marks + and -.

    symbols  how many different symbols there are

    Raises ValueError for a length below 2.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5 (without position, a transformer knows no order).
    """

    symbols: int = 8

    also_called = ("classify", "classification", "classifier", "label", "order", "first", "earlier")
    recipe = MappingProxyType({"train_length": 16, "steps": 1000, "batch": 32, "rate": 3e-3, "cool_down": 100})
    shortest = 2
    reads = "encoder"

    @property
    def letters(self) -> str:
        return super().letters + "+-"

    def tokens(self, length: int) -> int:
        return length + 1

    def chance(self, length: int) -> float:
        return 0.5

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        if length < self.shortest:
            raise ValueError(f"order_class needs room for two marks: lengths of 2 or more, got {length}")
        symbols = random_symbols(length, rows, self.symbols, generator)
        places = torch.rand(rows, length, generator=generator).argsort(1)[:, :2]
        marks = torch.tensor([[self.id("+"), self.id("-")]]).expand(rows, -1)
        ids = torch.cat((column(rows, BOS), symbols.scatter(1, places, marks)), 1)
        first = marks.gather(1, places.argmin(1, keepdim=True))
        return Batch(ids, torch.cat((first, ids[:, 1:]), 1), torch.arange(length + 1) == 0)
