"""Rotary (RoPE) on values: each value is rotated by its distance from the query."""

import cmath
from dataclasses import replace

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import AttentionOutput, Encoding
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.channel_pairs import LAYOUTS, channels_of_pairs, multiply_pairs
from posenc.encoding.keys import Keys
from posenc.encoding.precision import exact
from posenc.encodings.rotations import Waves, cos_sin, rotary_width
from posenc.kernels.rotation.rotate_pairs import rotate_pairs, rotation_dtype
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


class RotaryValues(Waves, Encoding):
    """Turn each value by its own position, and the attended sum back by the query's.

    z_i = R(-m_i) sum_j A_ij R(n_j) v_j = sum_j A_ij R(n_j - m_i) v_j
    with R(p): (a, b) -> (a cos p f_k - b sin p f_k,  b cos p f_k + a sin p f_k),  f_k = base^(-2k/r), k = 0..r/2-1

    Values carry their distance; logits stay the same. `rotary + rotary_values` is RoPER, and what DeepSeek-V4 does.

    head_dim  width of one head (channels)
    base      ratio that sets the longest wavelength (unitless, above 1)
    layout    which channels form a pair: "half" (k with k + r/2) or "interleaved" (2k with 2k + 1)
    partial   share of the head that is turned, r = partial * head_dim; the frequencies run over r
    trailing  whether the last r channels are turned, and not the first

    DeepSeek-V4 keeps one tensor as key and value of all heads, turned once in its last 64 of 512 channels, and turns
    the output back by -m_i: partial=0.125, trailing=True, layout="interleaved". RoPER's code turns half of each value
    (partial=0.5). Values are cached as they are, and turned when they are attended to.

    Where it goes wrong: turning the values without turning the output back gives absolute positions, which do not
    extrapolate; and it is often said that rotary never touches values, which these two models contradict.
    Nothing is gained on plain language modelling (RoPER's authors); the gain was shown on indexing tasks.

    Raises ValueError for an odd or impossible width, a base of 1 or less, an unknown layout, or values of another
    width.
    Source: Harik and Jayasiri 2022, research.labml.ai/RoPER.html; DeepSeek-V4 in transformers 5.23.0, 2026.

    >>> RotaryValues(8).formula_value([1.0] + [0.0] * 7, m=5, n=5, channel=0)
    1.0
    """

    equation = r"""
    z_i = R(-m_i) \sum_j A_{ij} R(n_j) v_j = \sum_j A_{ij} R(n_j - m_i) v_j

    R(p): (a, b) \to (a \cos\, p f_k - b \sin\, p f_k, \; b \cos\, p f_k + a \sin\, p f_k), \quad f_k =
    \text{base}^{-2k/r}
    """
    source = "Harik and Jayasiri 2022, research.labml.ai/RoPER.html"
    also_called = ("roper", "rotary_value_position_embedding")
    extrapolates = "Nothing was measured past the trained length; it reads distances only, as rotary does."
    used_by = "DeepSeek-V4"
    between = ()

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        layout: str = "half",
        partial: float = 1.0,
        trailing: bool = False,
    ) -> None:
        super().__init__()
        checks.one_of("layout", layout, LAYOUTS)
        checks.above("base", base, 1)
        width = rotary_width(head_dim, partial)
        self.head_dim, self.base, self.layout, self.partial, self.trailing = head_dim, base, layout, partial, trailing
        self.width = width

    def rotated(self, x: Tensor, at: Positions, direction: int) -> Tensor:
        """Return x [B, heads, T, head_dim] rotated by `direction` times its positions."""
        cos, sin = self.once(self.table, at, rotation_dtype(x), x.device, keep=x.is_cpu)
        if not self.trailing:
            return rotate_pairs(x, cos, sin, self.layout, inverse=direction < 0)
        rest, tail = x[..., : -self.width], x[..., -self.width :]
        return torch.cat((rest, rotate_pairs(tail, cos, sin, self.layout, inverse=direction < 0)), -1)

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        coords = exact(at.axis(self))
        return cos_sin(coords[:, None, :, None] * self.frequencies_on(coords.device), 1.0, dtype, device)

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        checks.head_dim(self, keys.v)
        out, weights = kernel(self, q, at, replace(keys, v=self.rotated(keys.v, keys.at, +1)), mask)
        return self.rotated(out, at, -1), weights

    def formula_value(self, v, m, n, channel) -> float:
        r = self.width
        turns = [cmath.rect(1, (n - m) * self.base ** (-2 * k / r)) for k in range(r // 2)]
        first = self.head_dim - r if self.trailing else 0
        pairs = [(first + a, first + b) for a, b in channels_of_pairs(r // 2, self.layout)]
        return multiply_pairs(v, turns, pairs)[channel]
