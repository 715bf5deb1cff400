"""Rotary position embedding (RoPE) with learned frequencies."""

import math

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.channel_pairs import LAYOUTS
from posenc.encoding.precision import exact
from posenc.encodings.rotations import TurnedByHead, Turning, cos_sin
from posenc.kernels.rotation.rotate_pairs import rotate_pairs, rotation_dtype
from posenc.tokens.positions import Positions


class LearnedRotary(TurnedByHead, Turning):
    """Rotate channel pairs as rotary (RoPE) does, by frequencies that every layer or head learns.

    frequency_k = base^(-2k/r) e^(shift_k),   shift_k = 0 at first
    (a, b) -> (a cos p frequency_k - b sin p frequency_k,  b cos p frequency_k + a sin p frequency_k)

    head_dim  width of one head (channels), even; r = head_dim
    heads     number of query heads, for per_head
    base      ratio that sets the first frequencies (unitless, above 1)
    layout    which channels form a pair: "half" pairs k with k + r/2, "interleaved" 2k with 2k + 1
    per_head  whether each head has frequencies of its own (shift [heads, r/2]; else [r/2]). With fewer key heads than
              query heads, keys are then repeated for their queries, and a cache holds them so

    How we differ: the released implementations learn the frequency itself. Its logarithm is learned here, so that one
    step changes fast and slow pairs by the same share, weight decay pulls towards the first frequencies and not towards
    standing still, and casting the weights to bfloat16 does not move the angles of an untrained pair.

    Angles are taken in float64, the rotation in the next better dtype than the input's, and results are rounded once.

    Where it goes wrong: the gradient of a shift grows with the distance, so frequencies want a smaller learning rate
    than weights. Weights in bfloat16 round a shift to one part in 512, and an angle's error grows with the position. No
    schedule applies: there is no base left to change.

    Raises ValueError for an odd head, a base of 1 or less, an unknown layout, per_head without heads, or heads that do
    not fit.
    Source: Heo et al. 2024, arXiv:2403.13298, section 3.2 (learned for each head and layer, there on two axes);
    `learned_freq` of lucidrains/rotary-embedding-torch.

    >>> LearnedRotary(8, base=100.0).frequencies
    tensor([1.0000, 0.3162, 0.1000, 0.0316], dtype=torch.float64)
    """

    equation = r"""
    \text{frequency}_k = \text{base}^{-2k/r} \, e^{\text{shift}_k}

    (a, b) \to (a \cos\, p\,\text{frequency}_k - b \sin\, p\,\text{frequency}_k, \; b \cos\, p\,\text{frequency}_k + a
    \sin\, p\,\text{frequency}_k)
    """
    source = "Heo et al. 2024, arXiv:2403.13298, section 3.2"
    also_called = ("learned_rope", "learnable_rope")
    per_layer = True
    extrapolates = "nothing is claimed; as rotary, it meets angles past the trained length that it never saw"
    between = ()

    def __init__(
        self,
        head_dim: int,
        *,
        heads: int | None = None,
        base: float = 10_000.0,
        layout: str = "half",
        per_head: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.even("head_dim", head_dim)
        checks.sizes(heads=heads)
        checks.above("base", base, 1)
        checks.one_of("layout", layout, LAYOUTS)
        if per_head and heads is None:
            raise ValueError("per_head needs to know how many heads there are; give heads, as in heads=8")
        self.head_dim, self.heads, self.base, self.layout, self.per_head = head_dim, heads, base, layout, per_head
        if not per_head:
            self.doors = self.doors - {"attend"}
        shape = (heads, head_dim // 2) if per_head and heads is not None else (head_dim // 2,)
        self.shift = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.shift)

    def spectrum(self) -> Tensor:
        """Return the frequency of each pair, [r/2] or [heads, r/2] (radians per position, float64), with gradient."""
        shift = exact(self.shift)
        k = torch.arange(0, self.head_dim, 2, dtype=torch.float64, device=shift.device)
        return self.base ** -(k / self.head_dim) * shift.exp()

    @property
    def frequencies(self) -> Tensor:
        """The present frequency of each pair (radians per position), float64: [r/2] or [heads, r/2]."""
        return self.spectrum().detach()

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each pair, 2 pi / frequency (positions), float64, shortest first, over all heads."""
        return (2 * math.pi / self.frequencies).flatten().sort().values

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        dtype = rotation_dtype(x)
        # Not cached with the positions: a table with a gradient belongs to one forward pass.
        frequencies = self.spectrum()
        coords = exact(at.axis(self))[:, None, :, None]
        angle = coords * (frequencies[:, None] if self.per_head else frequencies).to(coords.device)
        table = cos_sin(angle, 1.0, dtype, x.device)  # [2, B or 1, heads or 1, T, r/2]
        return rotate_pairs(x, table[0], table[1], self.layout)

    def formula_angles(self, position, head=0, horizon=None) -> list[float]:
        shift = (self.shift[head] if self.per_head else self.shift).tolist()
        return [position * self.base ** (-2 * p / self.head_dim) * math.exp(s) for p, s in enumerate(shift)]
