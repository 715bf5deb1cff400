"""Add two numbers, digit by digit: 75+86= -> 521, the ones first."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Generator, Tensor

from posenc import checks
from posenc.lab.tasks._symbols import BOS, END, SEPARATOR, LetterTask, column
from posenc.lab.tasks._task import Batch

REVERSED_CHOICES = ("none", "answer", "all")


@dataclass(frozen=True, kw_only=True)
class Addition(LetterTask):
    """Add two numbers, digit by digit: 75+86= -> 521, the ones first.

    A digit of the answer needs the digits of the same significance and the previous carry; a coordinate map can give
    the significance. Use `reversed=all` with `abacus(first_digit=3)`, and `reversed=answer` with
    `coupled(first_digit=3, equals=1, width=...)`, with a width of one digit more than the longest length.

    The length is the number of digits of each number.

    reversed  which numbers are written with their ones first: none, answer or all
    padded    whether numbers begin with zeros, so that all have the length and every answer a digit more

    Source: Lee et al. 2023, arXiv:2307.03381, section 3; maps: McLeish et al. 2024, arXiv:2405.17399, section 3.
    """

    reversed: str = "all"
    padded: bool = True

    also_called = ("add", "sum", "arithmetic", "number", "digit", "calculate", "calculator", "math")
    recipe = MappingProxyType({"train_length": 3, "steps": 2500, "batch": 32, "rate": 3e-3, "cool_down": 100})
    separator = "="
    letters = "0123456789+"

    def __post_init__(self) -> None:
        self.hold(checks.one_of, reversed=REVERSED_CHOICES)
        self.hold(checks.kind, padded=bool)

    def tokens(self, length: int) -> int:
        return 3 * length + 4  # BOS, number, +, number, =, and an answer of one digit more without its END

    def numbers(self, length: int) -> int:
        """How many different numbers there are."""
        return 10**length if self.padded or length == 1 else 9 * 10 ** (length - 1)

    def chance(self, length: int) -> float:
        # The best guess is the middle sum: for it every first number has a second one.
        return 1 / self.numbers(length)

    def batch(self, length: int, rows: int, generator: Generator) -> Batch:
        digits = torch.randint(0, 10, (2, rows, length), generator=generator)  # the ones first
        if not self.padded and length > 1:
            digits[..., -1] = torch.randint(1, 10, (2, rows), generator=generator)
        total = add_digits(*digits)
        digit_count = length + (1 if self.padded else (total[:, -1:] > 0).long())  # digits of each sum
        place = torch.arange(length + 2).expand(rows, -1)
        significance = place if self.reversed != "none" else digit_count - 1 - place
        # Without padding an answer may be a digit shorter, and END fills the rest.
        answer = torch.where(place < digit_count, 3 + total.gather(1, significance.clamp(0, length)), END)
        first, second = 3 + (digits if self.reversed == "all" else digits.flip(-1))
        plus = column(rows, self.id("+"))
        sequence = torch.cat((column(rows, BOS), first, plus, second, column(rows, SEPARATOR), answer), 1)
        answer_place = torch.arange(sequence.shape[1] - 1) - (2 * length + 2)
        return Batch.of_next(sequence, (answer_place >= 0) & (answer_place <= digit_count))


def add_digits(first: Tensor, second: Tensor) -> Tensor:
    """The digits [rows, n + 1] of the sums of numbers [rows, n], all with the ones first."""
    total, carry = [], torch.zeros_like(first[:, 0])
    for a, b in zip(first.T, second.T, strict=True):
        total.append((a + b + carry) % 10)
        carry = (a + b + carry) // 10
    return torch.stack((*total, carry), 1)
