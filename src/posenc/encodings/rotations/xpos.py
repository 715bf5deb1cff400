"""xPos: rotary (RoPE) with an exponential decay in each pair."""

import math

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.base import Encoding, Side
from posenc.encoding.channel_pairs import LAYOUTS, PairsTurned
from posenc.encoding.precision import exact
from posenc.encodings.rotations import Waves, cos_sin, quotient
from posenc.kernels.rotation.rotate_pairs import rotate_pairs, rotation_dtype
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import number_tensor
from posenc.tokens.tracing import assert_on_gpu, may_be_read

FURTHEST_IN_HALF = 5008
"""The position up to which the contract tries half precision."""


class XPos(Waves, PairsTurned, Encoding):
    """Turn channel pairs as rotary does, and let their logits fade with the distance, slow pairs least.

    zeta_k = (2k/d + gamma) / (1 + gamma),  frequency_k = base^(-2k/d),  k = 0..d/2-1
    query at m: turned by m frequency_k, times zeta_k^((m - centre)/scale_base)
    key at n:   turned by n frequency_k, divided by zeta_k^((n - centre)/scale_base)
    so that a logit gets zeta_k^((m - n)/scale_base) from pair k, whatever the centre is.

    head_dim    width of one head, d (channels)
    base        ratio that sets the longest wavelength (unitless, above 1)
    layout      which channels form a pair: "half" (k with k + d/2) or "interleaved" (2k with 2k + 1; the released code)
    scale_base  distance over which pair k fades by the factor zeta_k (positions); 512 in the paper
    gamma       how much of the fastest pair remains, zeta_0 = gamma/(1 + gamma) (unitless); 0.4 in the paper
    centre      position where queries and keys keep their size (positions)

    What differs from the released code: its centre is the middle of the sequence it is given, so that cached keys and
    new queries have different centres once the sequence has grown; here the centre stays where it is. The paper
    attends in blocks at test time; that is a mask, and no part of the encoding.
    The sizes themselves grow exponentially. They are taken in float64, and positions whose sizes leave the dtype of the
    queries, with room of 2^6 for the queries themselves, are refused: past 33,994 positions from the centre in float32
    and bfloat16, and past 2,266 in float16. Where positions are counted the check costs nothing; ids given as a tensor
    are looked at; inside a compiled graph, where they cannot be, the result is NaN.

    Where it goes wrong: it is made for causal attention. Both ways, keys ahead *grow* with their distance: a key 4,096
    ahead counts e^10 = 22,500 times in the fastest pair, so the far future wins every softmax. And the decay alone does
    not extrapolate: the published lengths were reached with the attention cut into blocks at test time.

    Raises ValueError for an odd width, impossible options, heads of another width, and positions too far from the
    centre.
    Source: Sun et al. 2022, arXiv:2212.10554, section 2.2; the numbers as in its released code, torchscale.

    >>> XPos(4).zetas
    [0.2857142857142857, 0.6428571428571429]
    """

    equation = r"""
    \zeta_k = \frac{2k/d + \gamma}{1 + \gamma}, \quad \text{frequency}_k = \text{base}^{-2k/d}

    \text{query at } m \text{: times } \zeta_k^{(m - \text{centre}) / \text{scale base}}, \text{ turned by } m \,
    \text{frequency}_k

    \text{key at } n \text{: times } \zeta_k^{-(n - \text{centre}) / \text{scale base}}, \text{ turned by } n \,
    \text{frequency}_k
    """
    source = "Sun et al. 2022, arXiv:2212.10554, section 2.2"
    also_called = ("extrapolatable_position_embedding", "length_extrapolatable", "lex")
    extrapolates = "Claimed with attention cut into blocks at test time; the decay alone was not shown to carry."

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10_000.0,
        layout: str = "half",
        scale_base: float = 512.0,
        gamma: float = 0.4,
        centre: float = 0.0,
    ) -> None:
        super().__init__()
        checks.even("head_dim", head_dim)
        checks.one_of("layout", layout, LAYOUTS)
        checks.above("base", base, 1)
        checks.above("scale_base", scale_base, 0)
        checks.above("gamma", gamma, 0)
        checks.number("centre", centre)
        self.head_dim, self.width, self.base, self.layout = head_dim, head_dim, base, layout
        self.scale_base, self.gamma, self.centre = scale_base, gamma, centre

    @property
    def gaps(self) -> dict[str, str]:  # ty: ignore[incompatible-property-override]
        reach = int(self.reach(torch.float16))
        if reach + self.centre >= FURTHEST_IN_HALF:
            return {}
        reason = f"float16 holds the sizes for {reach:,} positions around the centre; others are refused there"
        return {"half_precision_stays_near_double": reason}

    @property
    def zetas(self) -> list[float]:
        """The factor of each pair over a distance of scale_base positions, fastest pair first."""
        return [(2 * k / self.head_dim + self.gamma) / (1 + self.gamma) for k in range(self.head_dim // 2)]

    def reach(self, dtype: torch.dtype) -> float:
        """Return the largest distance from the centre for queries and keys of a dtype (positions)."""
        room = -math.log2(torch.finfo(dtype).tiny) - 6
        return self.scale_base * room * math.log(2) / -math.log(self.zetas[0])

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        checks.head_dim(self, x)
        coords = self.valid_coords(at, x.dtype)
        args = rotation_dtype(x), x.device, +1 if side == "query" else -1
        # If coordinates cannot be read, those out of reach become NaN.
        readable = may_be_read(coords)
        table = self.once(self.table, at, *args, keep=x.is_cpu) if readable else self.scaled_table(coords, *args)
        return rotate_pairs(x, table[0], table[1], self.layout)

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device, sign: int = -1) -> Tensor:
        return self.scaled_table(at.axis(self), dtype, device, sign)

    def scaled_table(self, coords: Tensor, dtype: torch.dtype, device: torch.device, sign: int) -> Tensor:
        """Return cosines and sines [2, B or 1, 1, T, d/2] times the sizes. `sign` is +1 for queries, -1 for keys."""
        coords = exact(coords)[:, None, :, None]
        fading = number_tensor(self.zetas, torch.float64, coords.device).log() / self.scale_base
        sizes = (sign * (coords - self.centre) * fading).exp()
        return cos_sin(coords * self.frequencies_on(coords.device), sizes, dtype, device)

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        checks.head_dim(self, k)
        self.valid_coords(new_at, k.dtype)
        cos, sin = quotient(self.table, old_at, new_at, k).unbind(0)
        return rotate_pairs(k, cos, sin, self.layout)

    def valid_coords(self, at: Positions, dtype: torch.dtype) -> Tensor:
        """Return the coordinates [B or 1, T]. Raises ValueError if one is out of reach."""
        coords, reach = at.axis(self), self.reach(dtype)
        if at.extent is not None and self.centre <= reach and at.extent - 1 - self.centre <= reach:
            return coords
        if not may_be_read(coords):
            return torch.where((coords - self.centre).abs() > reach, torch.nan, coords.double())
        words = f"a position is more than {int(reach):,} positions from the centre of {self}"
        if assert_on_gpu(coords, lambda: (coords - self.centre).abs() <= reach, words):
            return coords
        for edge in (coords.min().item(), coords.max().item()):
            if abs(edge - self.centre) > reach:
                raise ValueError(
                    f"position {edge:.12g} is more than {int(reach):,} positions from the centre of {self}, where its "
                    f"sizes leave {dtype}; move the centre between the positions, raise scale_base"
                    f"{'' if dtype == torch.float64 else ', or use a wider dtype'}"
                )
        return coords

    def formula_angles(self, position, head=0, horizon=None) -> list[float]:
        return [position * self.base ** (-2 * k / self.head_dim) for k in range(self.head_dim // 2)]

    def formula_sizes(self, position, side, horizon=None) -> list[float]:
        distance = position - self.centre
        return self.formula_fading(distance if side == "query" else -distance)

    def formula_sizes_between(self, m, n, horizon=None) -> list[float]:
        return self.formula_fading(m - n)

    def formula_fading(self, distance: float) -> list[float]:
        """Return the factor of each pair over a distance, in scalars as published."""
        zetas = [(2 * k / self.head_dim + self.gamma) / (1 + self.gamma) for k in range(self.head_dim // 2)]
        return [zeta ** (distance / self.scale_base) for zeta in zetas]
