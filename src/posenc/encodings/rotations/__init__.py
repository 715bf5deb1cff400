"""What the encodings that rotate pairs of channels share: where their tables come from, and door 2."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import AttentionOutput, Encoding, Side
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.channel_pairs import PairsTurned
from posenc.encoding.keys import Keys
from posenc.encoding.precision import exact, has_float64
from posenc.kernels.rotation.rotate_pairs import rotate_both, rotate_pairs, rotation_dtype
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


class Waves:
    """An encoding made of waves: if not said otherwise, of frequencies base^(-2k/width), k = 0, 1, ..."""

    base: float
    width: int

    @property
    def frequencies(self) -> Tensor:
        """The frequency of each wave (radians per position), float64, fastest first."""
        return self.frequencies_on("cpu")

    def frequencies_on(self, device: torch.device | str) -> Tensor:
        """The same, computed on a device: a GPU would wait for a copy."""
        return plain_frequencies(self.base, self.width, device)

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each wave, 2 pi / frequency (positions), float64, shortest first."""
        return 2 * math.pi / self.frequencies


class Turning(PairsTurned, Encoding):
    """An encoding that turns queries and keys alike, by their own positions; a subclass says how, in `rotated`."""

    turns = "alike"

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        """Queries or keys [B, heads, T, head_dim], rotated."""
        raise NotImplementedError

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        return self.rotated(x, at)

    def moved(self, k: Tensor, before: Positions, after: Positions) -> Tensor:
        # Angles are linear in the coordinates.
        return self.rotated(k, between(before, after))


class TurnedByHead(Encoding):
    """An encoding whose query heads may each turn in a way of their own: keys that they share are repeated for them."""

    heads: Any
    head_dim: int
    per_head: bool

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        """Queries, or keys that are as many, [B, heads, T, head_dim], rotated."""
        raise NotImplementedError

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        checks.head_dim(self, x)
        x = x if side == "query" else self.repeated(x)
        if self.per_head:
            checks.heads(self, x)
        return self.rotated(x, at)

    def repeated(self, x: Tensor) -> Tensor:
        """Keys or values of fewer heads, repeated for the query heads that share them, where these differ."""
        if not self.per_head or self.heads is None or self.heads % x.shape[1]:
            return x
        return x.repeat_interleave(self.heads // x.shape[1], 1)

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        # The keys were repeated when they were turned; the values have to go with them.
        return kernel(self, q, at, replace(keys, v=self.repeated(keys.v)), mask)


class Rotations(Turning):
    """An encoding that rotates pairs of channels of queries and keys by a table of cosines and sines.

    A subclass has head_dim and layout, and computes the table, which is kept while tokens count up from a known start.
    """

    head_dim: int
    layout: str

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Cosines and sines [2, B or 1, 1, T, P] at some positions, each row computed by itself."""
        raise NotImplementedError

    def rows(self, x: Tensor, at: Positions) -> Tensor:
        """The table for heads like x [B, H, T, head_dim] at their positions."""
        # A declared horizon is not among what tokens that count up from a known start tell of themselves.
        keep = x.is_cpu and not self.turns_when_attending
        return self.once(self.table, at, rotation_dtype(x), x.device, keep=keep)

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        checks.head_dim(self, x)
        return self.by_table(x, self.rows(x, at))

    def by_table(self, x: Tensor, table: Tensor) -> Tensor:
        """Queries or keys, their pairs turned by a table of cosines and sines."""
        cos, sin = table.unbind(0)
        return rotate_pairs(x, cos, sin, self.layout)

    def moved(self, k: Tensor, before: Positions, after: Positions) -> Tensor:
        if self.turns_when_attending:
            return k
        return self.by_table(k, quotient(self.table, before, after, k))

    def turn_both(self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
        if at is not keys_at or q.dtype != k.dtype:
            return super().turn_both(q, k, at, keys_at)
        if not q.shape[-1] == k.shape[-1] == self.head_dim:
            checks.head_dim(self, q), checks.head_dim(self, k)
        return rotate_both(q, k, self.rows(q, at), self.layout)


class ScheduledSpectrum(Waves, Rotations):
    """Rotations of a position on one axis by the frequencies base^(-2k/width), and by a temperature.

    A schedule changes both where it is not None.
    """

    schedule: Any

    @property
    def frequencies(self) -> Tensor:
        """The frequency of each pair (radians per position), float64, fastest first.

        Where it depends on the horizon, it is that within the trained length.
        """
        return self.spectrum()[0].flatten()

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        coords = exact(at.axis(self))[:, None, :, None]
        frequencies, temperature = self.spectrum(device=coords.device)
        return cos_sin(coords * frequencies, temperature, dtype, device)

    def spectrum(
        self, horizon: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, float | Tensor]:
        """The frequency of each pair (radians per position, float64, fastest first), and the temperature.

        A schedule that depends on the `horizon` [B] gives a row for each; its default is the trained length.
        """
        plain = plain_frequencies(self.base, self.width, device if horizon is None else horizon.device)
        if self.schedule is None:
            return plain, 1.0
        if self.turns_when_attending and horizon is None:
            horizon = torch.full((1,), self.schedule.short_horizon, device=device)
        return self.schedule(plain, base=self.base, width=self.width, horizon=horizon)

    def formula_spectrum(self, horizon: float | None = None) -> tuple[list[float], float]:
        """As published, in scalars: the frequency of each pair, and the temperature."""
        plain = [self.base ** (-2 * p / self.width) for p in range(self.width // 2)]
        if self.schedule is None:
            return plain, 1.0
        horizon = self.schedule.short_horizon if self.turns_when_attending and horizon is None else horizon
        return self.schedule.formula(plain, base=self.base, width=self.width, horizon=horizon)

    def formula_angles(self, position: Any, head: int = 0, horizon: float | None = None) -> list[float]:
        return [position * frequency for frequency in self.formula_spectrum(horizon)[0]]

    def formula_sizes(self, position: Any, side: str, horizon: float | None = None) -> Iterable[float]:
        return repeat(self.formula_spectrum(horizon)[1])


def between(before: Positions, after: Positions) -> Positions:
    """Where tokens stand as seen from where they were: the differences of their coordinates."""
    return after.with_coords(exact(after.coords) - exact(before.coords))


def quotient(table: Callable[..., Tensor], before: Positions, after: Positions, k: Tensor) -> Tensor:
    """By what keys like k turn on that `table` turned at the positions `before`, and would turn at `after`.

    Cosines and sines [2, ...] multiply pairs as complex numbers do, so they are divided as such. What is in both, as a
    temperature is, is in neither any more; and sizes that change with the position stay right.
    """
    device = k.device if has_float64(k.device) else torch.device("cpu")
    (a, b), (c, d) = (table(at, torch.float64, device).unbind(0) for at in (after, before))
    return (torch.stack((a * c + b * d, b * c - a * d)) / (c * c + d * d)).to(rotation_dtype(k)).to(k.device)


def plain_frequencies(base: float, width: int, device: torch.device | str = "cpu") -> Tensor:
    """base^(-2k/width), k = 0, 1, ...: the frequency of each pair (radians per position), float64, fastest first."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def cos_sin(angle: Tensor, temperature: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosines and sines [2, ...] of angles (radians, float64) times the temperature, rounded once to dtype."""
    table = torch.stack((angle.cos(), angle.sin()))
    if isinstance(temperature, Tensor) or temperature != 1:
        table = table * temperature
    return table.to(dtype).to(device)


def pairs_of_axis(head_dim: int, axes: int) -> int:
    """How many pairs of channels each axis has, where all have as many. Raises ValueError where there is none."""
    if not head_dim >= 2 * axes:
        raise ValueError(
            f"head_dim must hold a pair of channels for each axis, {2 * axes} for {axes} axes, got head_dim={head_dim}"
        )
    return head_dim // (2 * axes)


def rotary_width(head_dim: int, partial: float) -> int:
    """How many channels of a head turn, where a part of it does: an even number.

    Raises ValueError for a part that is no fraction, or that leaves no whole pairs.
    """
    checks.fraction("partial", partial)
    # A share such as 30/44 times the head may round to just below a whole number.
    width = int(head_dim * partial + 1e-9)
    if width < 2 or width % 2:
        share = max(width - width % 2, 2) / max(head_dim, 2)
        raise ValueError(
            f"the rotary width must be an even number of channels to form pairs, got {width} (head_dim={head_dim}, "
            f"partial={partial}); choose an even head_dim, or partial={share:.12g}"
        )
    return width
