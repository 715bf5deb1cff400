"""Associative recall: after pairs of key and value, say the value of each key that is asked for: axby|by -> y."""

import math
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc.lab.tasks._symbols import BOS, SEPARATOR, Symbols, column
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class Recall(Symbols):
    """Associative recall: after pairs of key and value, say the value of each key that is asked for: axby|by -> y.

    The length is the number of pairs. Keys are different symbols of the first half, values symbols of the second half;
    every key is asked for once, in another order. All that matters is what stands next to what.

    symbols  how many different symbols there are: half of them keys, half values

    Source: Arora et al. 2023, arXiv:2312.04927, section 4 (multi-query associative recall).
    """

    symbols: int = 32

    source = "Arora et al. 2023, arXiv:2312.04927, section 4"
    recipe = MappingProxyType(
        {"train_length": 8, "steps": 1000, "batch": 64, "rate": 2e-3, "curriculum": 0.24, "cool_down": 200}
    )

    def tokens(self, length: int) -> int:
        return 4 * length + 1  # BOS, the pairs, SEPARATOR, and the questions without the last value

    def chance(self, length: int) -> float:
        return math.prod([2 / self.symbols] * length)

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        half = self.symbols // 2
        if length > half:
            raise ValueError(
                f"recall has {half} different keys, and cannot make {length} pairs; choose lengths up to {half}"
            )
        keys = 3 + torch.rand(rows, half, generator=generator).argsort(1)[:, :length]
        values = 3 + half + torch.randint(0, half, (rows, length), generator=generator)
        asked = torch.rand(rows, length, generator=generator).argsort(1)
        pairs = torch.stack((keys, values), -1).flatten(1)
        questions = torch.stack((keys.gather(1, asked), values.gather(1, asked)), -1).flatten(1)
        sequence = torch.cat((column(rows, BOS), pairs, column(rows, SEPARATOR), questions), 1)
        place = torch.arange(sequence.shape[1] - 1)
        first = 2 * length + 2  # the prediction of the first asked value
        return Batch.of_next(sequence, (place >= first) & ((place - first) % 2 == 0))
