"""Base classes of the rotary (RoPE) encodings, which rotate pairs of channels."""

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
    """An encoding of waves, by default of frequencies base^(-2k/width), k = 0, 1, ..."""

    base: float
    width: int

    @property
    def frequencies(self) -> Tensor:
        """The frequency of each wave (radians per position), float64, fastest first."""
        return self.frequencies_on("cpu")

    def frequencies_on(self, device: torch.device | str) -> Tensor:
        """Return the frequencies, computed on a device, since a GPU would wait for a copy."""
        return plain_frequencies(self.base, self.width, device)

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each wave, 2 pi / frequency (positions), float64, shortest first."""
        return 2 * math.pi / self.frequencies


class Turning(PairsTurned, Encoding):
    """An encoding that rotates queries and keys alike, by their positions; a subclass defines `rotated`."""

    turns = "alike"

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        """Return queries or keys [B, heads, T, head_dim], rotated."""
        raise NotImplementedError

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        return self.rotated(x, at)

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        # Angles are linear in the coordinates.
        return self.rotated(k, displacement(old_at, new_at))


class TurnedByHead(Encoding):
    """An encoding whose query heads may rotate differently: the keys that they share are then repeated for them."""

    heads: Any
    head_dim: int
    per_head: bool

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        """Return queries, or as many keys, [B, heads, T, head_dim], rotated."""
        raise NotImplementedError

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        checks.head_dim(self, x)
        x = x if side == "query" else self.repeat_kv(x)
        if self.per_head:
            checks.heads(self, x)
        return self.rotated(x, at)

    def repeat_kv(self, x: Tensor) -> Tensor:
        """Return keys or values repeated for the query heads that share them, if these rotate differently."""
        if not self.per_head or self.heads is None or self.heads % x.shape[1]:
            return x
        return x.repeat_interleave(self.heads // x.shape[1], 1)

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        # `turn` has repeated the keys; the values must match.
        return kernel(self, q, at, replace(keys, v=self.repeat_kv(keys.v)), mask)


class Rotations(Turning):
    """An encoding that rotates pairs of channels of queries and keys by a table of cosines and sines.

    A subclass has head_dim and layout, and defines `table`, which is cached while tokens count up from a known start.
    """

    head_dim: int
    layout: str

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return cosines and sines [2, B or 1, 1, T, P] at positions, each row computed independently."""
        raise NotImplementedError

    def rows(self, x: Tensor, at: Positions) -> Tensor:
        """Return the table for heads like x [B, H, T, head_dim] at their positions."""
        # The cache is keyed by the start and number of tokens, which do not include a declared horizon.
        keep = x.is_cpu and not self.turns_when_attending
        return self.once(self.table, at, rotation_dtype(x), x.device, keep=keep)

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        checks.head_dim(self, x)
        return self.by_table(x, self.rows(x, at))

    def by_table(self, x: Tensor, table: Tensor) -> Tensor:
        """Return queries or keys, with their pairs rotated by a table of cosines and sines."""
        cos, sin = table.unbind(0)
        return rotate_pairs(x, cos, sin, self.layout)

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        if self.turns_when_attending:
            return k
        return self.by_table(k, quotient(self.table, old_at, new_at, k))

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

        If it depends on the horizon, this is the one within the trained length.
        """
        return self.spectrum()[0].flatten()

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        coords = exact(at.axis(self))[:, None, :, None]
        frequencies, temperature = self.spectrum(device=coords.device)
        return cos_sin(coords * frequencies, temperature, dtype, device)

    def spectrum(
        self, horizon: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, float | Tensor]:
        """Return the frequency of each pair (radians per position, float64, fastest first), and the temperature.

        A schedule that depends on the `horizon` [B] returns a row for each; the default is the trained length.
        """
        plain = plain_frequencies(self.base, self.width, device if horizon is None else horizon.device)
        if self.schedule is None:
            return plain, 1.0
        if self.turns_when_attending and horizon is None:
            horizon = torch.full((1,), self.schedule.short_horizon, device=device)
        return self.schedule(plain, base=self.base, width=self.width, horizon=horizon)

    def formula_spectrum(self, horizon: float | None = None) -> tuple[list[float], float]:
        """Return the frequency of each pair and the temperature, in scalars as published."""
        plain = [self.base ** (-2 * p / self.width) for p in range(self.width // 2)]
        if self.schedule is None:
            return plain, 1.0
        horizon = self.schedule.short_horizon if self.turns_when_attending and horizon is None else horizon
        return self.schedule.formula(plain, base=self.base, width=self.width, horizon=horizon)

    def formula_angles(self, position: Any, head: int = 0, horizon: float | None = None) -> list[float]:
        return [position * frequency for frequency in self.formula_spectrum(horizon)[0]]

    def formula_sizes(self, position: Any, side: str, horizon: float | None = None) -> Iterable[float]:
        return repeat(self.formula_spectrum(horizon)[1])


def displacement(old_at: Positions, new_at: Positions) -> Positions:
    """Return positions whose coordinates are the differences of the new and the old ones."""
    return new_at.with_coords(exact(new_at.coords) - exact(old_at.coords))


def quotient(table: Callable[..., Tensor], old_at: Positions, new_at: Positions, k: Tensor) -> Tensor:
    """Return the rotation [2, ...] that moves keys like k, rotated by `table` at `old_at`, to `new_at`.

    Cosines and sines multiply pairs as complex numbers, so this is a complex quotient. A factor of both tables, such as
    a temperature, cancels; factors that change with the position stay exact.
    """
    device = k.device if has_float64(k.device) else torch.device("cpu")
    (a, b), (c, d) = (table(at, torch.float64, device).unbind(0) for at in (new_at, old_at))
    return (torch.stack((a * c + b * d, b * c - a * d)) / (c * c + d * d)).to(rotation_dtype(k)).to(k.device)


def plain_frequencies(base: float, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the frequency of each pair, base^(-2k/width), k = 0, 1, ... (radians per position, float64)."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def cos_sin(angle: Tensor, temperature: float | Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return cosines and sines [2, ...] of angles (radians, float64) times the temperature, rounded once to dtype."""
    table = torch.stack((angle.cos(), angle.sin()))
    if isinstance(temperature, Tensor) or temperature != 1:
        table = table * temperature
    return table.to(dtype).to(device)


def pairs_of_axis(head_dim: int, axes: int) -> int:
    """Return the number of pairs of channels of each axis, the same for all. Raises ValueError if it is 0."""
    if not head_dim >= 2 * axes:
        raise ValueError(
            f"head_dim must hold a pair of channels for each axis, {2 * axes} for {axes} axes, got head_dim={head_dim}"
        )
    return head_dim // (2 * axes)


def rotary_width(head_dim: int, partial: float) -> int:
    """Return the number of channels of a head that rotate, an even number.

    Raises ValueError for a `partial` that is no fraction, or that leaves no whole pairs.
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
