"""Say a tree again, written in brackets: (a(bc))| -> (a(bc)), or mirrored: ((cb)a)."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import Symbols, prompt_and_answer
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class TreeCopy(Symbols):
    """Say a tree again, written in brackets: (a(bc))| -> (a(bc)), or mirrored: ((cb)a).

    Most tokens are brackets, so content hardly tells places apart, and position does.

    The length is the number of leaves; every other node has two branches, and each division of its leaves is equally
    likely.

    symbols   how many different leaves there are
    mirrored  whether the answer swaps the branches of every node

    Source: Shiv and Quirk 2019, "Novel positional encodings to enable tree-based transformers", NeurIPS.
    """

    symbols: int = 8
    mirrored: bool = False

    also_called = ("tree", "bracket", "nested", "syntax", "parse", "grammar", "program", "json")
    recipe = MappingProxyType({"train_length": 4, "steps": 1500, "batch": 32, "curriculum": 0.24, "cool_down": 100})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.kind, mirrored=bool)

    @property
    def letters(self) -> str:
        return super().letters + "()"

    def tokens(self, length: int) -> int:
        return super().tokens(3 * length - 2)  # leaves, and two brackets for each other node

    def chance(self, length: int) -> float:
        return likeliest(length) * super().chance(length)

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        leaves = torch.randint(0, self.symbols, (rows, length), generator=generator)
        splits = torch.rand(rows, max(length - 1, 1), generator=generator)
        trees = [
            write_tree("".join(self.letters[s] for s in row), iter(split))
            for row, split in zip(leaves.tolist(), splits.tolist(), strict=True)
        ]
        mirror = str.maketrans("()", ")(")
        answers = [tree[::-1].translate(mirror) if self.mirrored else tree for tree in trees]
        prompt, answer = (torch.tensor([[self.id(s) for s in row] for row in side]) for side in (trees, answers))
        return prompt_and_answer(prompt, answer)


def write_tree(leaves: str, splits: Iterator[float]) -> str:
    """Write a tree over these leaves, each node divided by the next number in 0..1."""
    if len(leaves) == 1:
        return leaves
    left = 1 + int(next(splits) * (len(leaves) - 1))
    return f"({write_tree(leaves[:left], splits)}{write_tree(leaves[left:], splits)})"


@functools.cache
def likeliest(leaves: int) -> float:
    """The probability of the most likely tree shape."""
    if leaves == 1:
        return 1.0
    return max(likeliest(left) * likeliest(leaves - left) for left in range(1, leaves)) / (leaves - 1)
