"""Say the key that follows a mark, somewhere among filler symbols: dab*cafe| -> ca."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Generator

from posenc import checks
from posenc.lab.tasks._symbols import Symbols, prompt_and_answer, random_symbols
from posenc.lab.tasks._task import Batch


@dataclass(frozen=True, kw_only=True)
class PassKey(Symbols):
    """Say the key that follows a mark, somewhere among filler symbols: dab*cafe| -> ca.

    The model has to find the key at any distance. Bits per byte do not measure that: they may stay flat where distant
    tokens are not read at all.

    The length is the number of filler symbols.

    symbols  how many different symbols there are, in key and filler alike
    key      how many of them the key has
    depth    the share of the filler before the key, from 0 to 1; None: drawn for each sequence

    Source: Mohtashami and Jaggi 2023, arXiv:2305.16300, section 4.2, here in symbols.
    """

    symbols: int = 16
    key: int = 2
    depth: float | None = None

    also_called = (
        "needle", "haystack", "passkey", "password", "find", "search", "retrieve", "retrieval", "document", "fact",
    )  # fmt: skip
    recipe = MappingProxyType(
        {"train_length": 16, "steps": 1500, "batch": 64, "rate": 3e-3, "curriculum": 0.24, "cool_down": 100}
    )
    beyond = (1.5, 2, 4)
    mark = "*"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.whole, key=1)
        if self.depth is not None and not 0 <= checks.number(f"{self.spec_name}: depth", self.depth) <= 1:
            raise ValueError(f"{self.spec_name}: depth must be a share from 0 to 1, got {self.depth}")

    @property
    def letters(self) -> str:
        return super().letters + self.mark

    def tokens(self, length: int) -> int:
        return length + 2 * self.key + 3  # BOS, filler, the mark and the key, SEPARATOR, and the key again

    def at_depth(self, share: float) -> "PassKey | None":
        return replace(self, depth=share) if self.depth is None else None

    def chance(self, length: int) -> float:
        return super().chance(self.key)

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        filler = random_symbols(length, rows, self.symbols, generator)
        key = random_symbols(self.key, rows, self.symbols, generator)
        random_place = torch.randint(0, length + 1, (rows, 1), generator=generator)
        key_place = random_place if self.depth is None else torch.full_like(random_place, round(self.depth * length))
        marked_key = torch.cat((torch.full((rows, 1), self.id(self.mark)), key), 1)
        prompt = torch.cat((filler, marked_key), 1)
        # For every token of the prompt, its place in filler + marked key.
        place = torch.arange(prompt.shape[1]).expand(rows, -1)
        offset = place - key_place
        source_place = torch.where(offset <= self.key, length + offset, place - self.key - 1)
        return prompt_and_answer(prompt.gather(1, torch.where(offset < 0, place, source_place)), key)
