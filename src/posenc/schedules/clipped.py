"""Clipped RoPE: the slowest pairs fade out."""

import math
from dataclasses import dataclass, replace

import torch

from posenc import checks
from posenc.schedules._nested import NestedSchedule
from posenc.schedules._schedule import Schedule


@dataclass(frozen=True)
class Clipped(NestedSchedule):
    """Clipped RoPE ("CoPE" of 2026): the slowest pairs, which never complete a turn in training, are faded out.

    frequency'_k = frequency_k (1 + cos(pi j/(pairs - 1)))/2   for the j-th of the slowest pairs, j = 0..pairs-1

    The first of them keeps its frequency and the last stands still: it carries content without position.

    pairs           how many pairs fade; the paper's Llama 3 has 20 of 64. None: all whose plain wavelength exceeds the
                    trained length, which is our choice (as in mlx-lm, pull request 1387)
    trained_length  tokens; a model built from a spec fills in its own; read only when `pairs` is None
    soft            whether they fade; False stops all of them ("HardClip"), whose sharp edge rings in the logits
    inner           the schedule to apply first; None for plain frequencies

    Limit: made for continued training after a change of base; not to be mistaken for CoPE of 2024, the contextual one.
    Source: Li, Ren, Yuille, Wang 2026, arXiv:2602.05258, and their code, hrlics/CoPE.
    """

    equation = r"""
    \text{frequency}'_k = \text{frequency}_k \, \frac{1 + \cos(\pi j / (\text{pairs} - 1))}{2}, \quad j = 0, \dots,
    \text{pairs} - 1
    """
    example = "clipped(pairs=2)"

    pairs: int | None = None
    trained_length: int | None = None
    soft: bool = True
    inner: Schedule | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.at_least, pairs=0)

    def __call__(self, frequencies, *, base, width, horizon=None):
        total = width // 2
        if self.pairs is None:
            count = sum(2 * math.pi * base ** (2 * k / width) > self.known_length for k in range(total))
        else:
            count = min(self.pairs, total)
        j = torch.arange(count, dtype=frequencies.dtype, device=frequencies.device)
        taper = (1 + (math.pi * j / max(count - 1, 1)).cos()) / 2 if self.soft else torch.zeros_like(j)
        keep = torch.cat((torch.ones_like(frequencies[: total - count]), taper))
        frequencies, temperature = self.inner_frequencies(frequencies, base, width, horizon)
        return frequencies * keep, temperature

    def formula(self, frequencies, *, base, width, horizon=None):
        slow = [f for f in frequencies if self.pairs is None and 2 * math.pi / f > self.known_length]
        count = len(slow) if self.pairs is None else min(self.pairs, len(frequencies))
        start = len(frequencies) - count
        out, temperature = self.inner_formula(frequencies, base, width, horizon)
        for j in range(count):
            fade = 0.5 * (1 + math.cos(math.pi * j / (count - 1))) if count > 1 else 1.0
            out[start + j] *= fade if self.soft else 0.0
        return out, temperature

    def with_trained_length(self, trained_length: int) -> Schedule:
        schedule = super().with_trained_length(trained_length)
        return schedule if self.pairs is None else replace(schedule, trained_length=self.trained_length)
