"""Say what was written last: w1i0i1r -> 1."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import BOS, LetterTask, column
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class FlipFlop(LetterTask):
    """Say what was written last: w1i0i1r -> 1.

    Each instruction is followed by a bit: write (w) and ignore (i) by any, read (r) by the bit that was last written,
    which is the answer. Only the nearest write counts, at any distance.

    The length is the number of instructions: the first one writes, the last one reads.

    ignore  the share of the other instructions that ignore; write and read share the rest. More: reads look further

    Raises ValueError for a length below 2.
    Source: Liu et al. 2023, arXiv:2306.00946, section 3.
    """

    ignore: float = 0.8

    also_called = ("memory", "state", "remember", "latest", "write", "read", "variable")
    recipe = MappingProxyType({"train_length": 16, "steps": 1000, "batch": 32, "rate": 3e-3, "cool_down": 100})
    shortest = 2
    letters = "01wri"

    def __post_init__(self) -> None:
        checks.share(f"{self.spec_name}: ignore", self.ignore)

    def tokens(self, length: int) -> int:
        return 2 * length  # BOS, and all instructions with their bits but the last bit

    def chance(self, length: int) -> float:
        """The share of sequences in which every read finds a 0."""
        p_zero = p_one = 0.5
        write = read = (1 - self.ignore) / 2
        for _ in range(length - 2):
            p_zero, p_one = (
                p_zero * (self.ignore + read) + write * (p_zero + p_one) / 2,
                p_one * self.ignore + write * (p_zero + p_one) / 2,
            )
        return p_zero

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        if length < self.shortest:
            raise ValueError(f"flip_flop needs a write and a read: lengths of 2 or more, got {length}")
        draws = torch.rand(rows, length, generator=generator)
        middle = torch.where(draws < self.ignore, "wri".index("i"), torch.where(draws < (1 + self.ignore) / 2, 0, 1))
        instructions = torch.cat((column(rows, 0), middle[:, 1:-1], column(rows, 1)), 1)
        bits = torch.randint(0, 2, (rows, length), generator=generator)
        # The place of the last write up to each instruction.
        last_write = torch.where(instructions == 0, torch.arange(length), -1).cummax(1).values
        reads = instructions == 1
        bits = torch.where(reads, bits.gather(1, last_write), bits)
        pairs = torch.stack((self.id("w") + instructions, 3 + bits), -1).flatten(1)
        answer = torch.stack((torch.zeros_like(reads), reads), -1).flatten(1)
        return Batch.of_next(torch.cat((column(rows, BOS), pairs), 1), answer)
