"""Proportional rotary position embedding (p-RoPE)."""

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.channel_pairs import LAYOUTS
from posenc.encodings.rotations import ScheduledSpectrum
from posenc.schedules import Schedule, schedule_of


class ProportionalRotary(ScheduledSpectrum):
    """Rotate only the fastest channel pairs of a head (p-RoPE); the slow ones carry content without position.

    frequency_k = base^(-2k/head_dim) for k < n, 0 for the other pairs,   n = floor(partial head_dim / 2), at least 1
    (a, b) -> (a cos p frequency_k - b sin p frequency_k,  b cos p frequency_k + a sin p frequency_k)

    head_dim  width of one head (channels), even
    partial   share of the pairs that turn (unitless, above 0, at most 1); 0.75 did best in the paper, 0.25 in Gemma 4
    base      ratio that sets the wavelengths of the whole head (unitless, above 1); 1,000,000 in Gemma 4
    layout    which channels form a pair: "half" pairs k with k + head_dim/2, "interleaved" 2k with 2k + 1
    schedule  a change of the frequencies for longer contexts, made before the slow pairs are stopped; the optional
              `factor` of Gemma 4 is linear(factor=...). Not one that depends on the horizon

    It is not rotary(partial=...): that turns the first channels with a whole spectrum of their own, down to 1/base;
    this cuts the head's spectrum. In the half layout the channels that turn are not even neighbours. Angles are taken
    in float64 and results rounded once, as in rotary.

    Where it goes wrong: with few pairs the longest wavelength is short (160 positions for head_dim 128, base 1e6,
    partial 0.25), so positions far apart are told apart by the mixture alone. The gain over rotary is below 2 %.

    Raises ValueError for an odd head, a partial outside (0, 1], a base of 1 or less, an unknown layout, a schedule by
    length, or heads of another width.
    Source: Barbero et al. 2024, arXiv:2410.06205, section 6; Gemma 4 in transformers for the denominator and rounding.

    >>> ProportionalRotary(8, partial=0.5, base=100.0).frequencies
    tensor([1.0000, 0.3162, 0.0000, 0.0000], dtype=torch.float64)
    """

    equation = r"""
    \text{frequency}_k = \begin{cases} \text{base}^{-2k/\text{head dim}} & k < n \\ 0 & k \ge n \end{cases} \qquad n =
    \max(1, \lfloor \text{partial} \, \text{head dim} / 2 \rfloor)

    (a, b) \to (a \cos\, p\,\text{frequency}_k - b \sin\, p\,\text{frequency}_k, \; b \cos\, p\,\text{frequency}_k + a
    \sin\, p\,\text{frequency}_k)
    """
    source = "Barbero et al. 2024, arXiv:2410.06205, section 6"
    also_called = ("p_rope", "p-rope", "proportional_rope")
    extrapolates = (
        "the pairs that leave the trained range of angles are gone; no length is promised, and none was measured"
    )
    used_by = "Gemma 4 (partial 0.25, global layers), LFM3 (partial 0.5)"

    def __init__(
        self,
        head_dim: int,
        *,
        partial: float = 0.25,
        base: float = 10_000.0,
        layout: str = "half",
        schedule: Schedule | str | None = None,
    ) -> None:
        super().__init__()
        checks.even("head_dim", head_dim)
        checks.fraction("partial", partial)
        checks.above("base", base, 1)
        checks.one_of("layout", layout, LAYOUTS)
        schedule = schedule_of(schedule)
        if schedule is not None and schedule.by_horizon:
            raise ValueError(f"schedule must not depend on the horizon of a sequence, got {schedule!r}; use rotary")
        self.head_dim, self.width, self.partial, self.base = head_dim, head_dim, partial, base
        self.layout, self.schedule = layout, schedule
        # A share such as 30/44 times the head may round to just below a whole number.
        self.turning = max(int((head_dim * partial + 1e-9) // 2), 1)
        self.spectrum()

    def spectrum(
        self, horizon: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, float | Tensor]:
        """Return the frequency of each pair (radians per position; 0 does not rotate), and the temperature."""
        frequencies, temperature = super().spectrum(horizon, device)
        return frequencies * (torch.arange(self.head_dim // 2, device=frequencies.device) < self.turning), temperature

    def formula_spectrum(self, horizon: float | None = None) -> tuple[list[float], float]:
        frequencies, temperature = super().formula_spectrum(horizon)
        # The pairs after the share have frequency 0.
        return frequencies[: self.turning] + [0.0] * (self.head_dim // 2 - self.turning), temperature
