"""Rotary position embedding (RoPE)."""

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding import channel_pairs
from posenc.encoding.precision import exact
from posenc.encodings.rotations import ScheduledSpectrum, cos_sin, rotary_width
from posenc.schedules import Schedule, schedule_of
from posenc.tokens.positions import Positions

LAYOUTS = (*channel_pairs.LAYOUTS, "swapped")


class Rotary(ScheduledSpectrum):
    """Rotate each pair of channels of queries and keys by an angle proportional to the position (RoPE).

    frequency_k = base^(-2k/r), k = 0..r/2-1     (radians per position; the first pair is the fastest)
    (a, b) -> (a cos p frequency_k - b sin p frequency_k,  b cos p frequency_k + a sin p frequency_k)
    so that a logit depends on the positions only through their difference.

    head_dim  width of one head (channels)
    base      ratio that sets the longest wavelength, 2 pi base^((r-2)/r) (unitless, above 1); 10,000 in the paper
    layout    which channels form a pair: "half" pairs k with k + r/2 (GPT-NeoX, Hugging Face Llama), "interleaved"
              pairs 2k with 2k + 1 (the paper, GPT-J, Meta's Llama), "swapped" pairs k + r/2 with k, which turns the
              pairs of "half" the other way round (nanochat). The same encoding up to a fixed order of channels, and
              silently wrong with weights trained in another layout
    partial   share of the head that is turned, r = partial * head_dim; the other channels carry no position. The
              frequencies then run over r, from 1 down to about 1/base: proportional_rotary is another thing
    schedule  a change of the frequencies for longer contexts, such as yarn(factor=4), see posenc.schedules

    Shapes: q [B, H, T, head_dim], k [B, KV, S, head_dim], any strides; values are not touched. Any position works:
    fractional, negative, or at a million. Angles are taken in float64, the rotation in the next better dtype than the
    input's (float32 for half precision, else float64), and the result is rounded once to the input's dtype.

    A schedule that depends on the horizon (dynamic_ntk, dynamic_yarn, dynamic_linear, longrope) reads the one declared
    with Positions.with_horizon, of each sequence for itself. Attention then caches keys unturned and turns them with
    the query's horizon, so that they stay right when it moves. Without a declared horizon, only positions that are
    known to lie within the trained length are served.

    Where it goes wrong: it does not extrapolate by itself. Past the trained length the slow pairs reach angles that
    training never saw, and models break at 1.2 to 1.4 times that length. Nor does it make attention decay with
    distance: for unrelated q and k the logit has the same spread at any distance. Heads [B, T, H, D] are turned by
    their number unless the call says seq_dim=1.

    Raises ValueError for an odd or impossible rotary width, a base of 1 or less, an unknown layout, heads of another
    width, or a missing horizon that a schedule needs.
    Source: Su et al. 2021, arXiv:2104.09864, sections 3.2 and 3.4.

    >>> q, k = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    >>> near, _ = Rotary(8)(q, k)
    >>> near[0, 0, 0].equal(q[0, 0, 0])
    True
    """

    equation = r"""
    \text{frequency}_k = \text{base}^{-2k/r}, \quad k = 0, \dots, r/2 - 1

    (a, b) \to (a \cos\, p\,\text{frequency}_k - b \sin\, p\,\text{frequency}_k, \; b \cos\, p\,\text{frequency}_k + a
    \sin\, p\,\text{frequency}_k)
    """
    source = "Su et al. 2021, arXiv:2104.09864, sections 3.2 and 3.4"
    also_called = ("rope", "roformer")
    extrapolates = (
        "claimed to decay with distance; found to break at 1.2 to 1.4 times the trained length, "
        "unless a schedule stretches it"
    )
    used_by = "almost every open language model of 2022 to 2026: GPT-J, GPT-NeoX, PaLM, Llama, Mistral, Qwen, DeepSeek"

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        layout: str = "half",
        partial: float = 1.0,
        schedule: Schedule | str | None = None,
    ) -> None:
        super().__init__()
        checks.one_of("layout", layout, LAYOUTS)
        checks.above("base", base, 1)
        self.width, self.schedule = rotary_width(head_dim, partial), schedule_of(schedule)
        self.head_dim, self.base, self.layout, self.partial = head_dim, base, layout, partial
        self.turns_when_attending = self.schedule is not None and self.schedule.by_horizon
        self.spectrum()

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        coords = exact(at.axis(self))[:, None, :, None]
        by_horizon = self.turns_when_attending
        frequencies, temperature = self.spectrum(self.horizon(at) if by_horizon else None, coords.device)
        frequencies = frequencies[:, None, None].to(coords.device) if by_horizon else frequencies
        if isinstance(temperature, Tensor):
            temperature = temperature.to(coords.device)[:, None, None, None]
        # Kernels rotate "swapped" like "half".
        angles = (-coords if self.layout == "swapped" else coords) * frequencies
        return cos_sin(angles, temperature, dtype, device)

    def horizon(self, at: Positions) -> Tensor | None:
        """Return the declared horizon of each sequence [B or 1]; None if all lies within the trained length."""
        if at.horizon is not None:
            return exact(at.horizon)
        assert self.schedule is not None
        short = self.schedule.short_horizon
        if at.extent is None or at.extent > short:
            raise ValueError(
                f"{self} depends on how long each sequence will be, and no length is declared; declare it with "
                f"positions.with_horizon(horizon), a number for all or a tensor [B] (up to {short} positions that are "
                f"counted need no declaration)"
            )
        return None

    def formula_turned(self, x, position, head, side) -> list[float]:
        if self.turns_when_attending:
            raise NotImplementedError(f"{self} turns a {side} by its horizon, which a formula of one does not know")
        return super().formula_turned(x, position, head, side)
