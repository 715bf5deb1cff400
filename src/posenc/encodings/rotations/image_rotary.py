"""Image rotary (RoPE) encoding of DINOv3, over coordinates from -1 to 1 for images of any size."""

import math

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.channel_pairs import LAYOUTS
from posenc.encoding.precision import exact
from posenc.encodings.rotations import Rotations, cos_sin, pairs_of_axis
from posenc.tokens.positions import Positions

SIDES = ("each", "longest", "shortest")


class ImageRotary(Rotations):
    """Turn channel pairs by coordinates of the patch's centre, from -1 to 1 across the image.

    angle of pair j of axis a = 2 pi p_a / period_j,   period_j = base^(j/n), j = 0..n-1,   n = floor(head_dim/(2 axes))
    so that two axes take head_dim/4 pairs each, with periods base^(4j/head_dim) (units of the coordinate).

    head_dim  width of one head (channels); those left over by 2 n axes carry no position
    axes      number of coordinates of a position
    base      ratio that sets the longest period (unitless, above 1); 100 in DINOv3
    layout    which channels form a pair; the axes' pairs stand behind one another. "half" (DINOv3) pairs p with p + P,
              P pairs in all, "interleaved" 2p with 2p + 1. The same encoding up to a fixed order of channels

    It reads floating coordinates: `normalised_grid(H, W)` in this module makes them, and `augmented(at, ...)` shifts,
    stretches and rescales them in training. Both are functions of their arguments, so evaluation has nothing random in
    it. A token without a place, such as CLS, stands at 0 on every axis, where nothing turns.

    How we differ: periods are exact; the released checkpoints hold them rounded to bfloat16.

    Where it goes wrong: an image of another size keeps its corners where they were, so the distance between neighbours
    changes instead; what was learned about a step of one patch holds only for sizes near the trained ones, which is
    what the augmentation is for. In coordinates counted in patches (0, 1, 2, ...) every step is a whole turn of the
    fastest pair.

    Raises ValueError for a head without a pair for each axis, a base of 1 or less, or an unknown layout.
    Source: Siméoni et al. 2025, arXiv:2508.10104 (DINOv3), and the authors' code, RopePositionEmbedding.

    >>> q, k = torch.randn(1, 1, 6, 8), torch.randn(1, 1, 6, 8)
    >>> q, k = ImageRotary(8)(q, k, positions=normalised_grid(2, 3))
    """

    equation = r"""
    \text{angle}_{a,j} = \frac{2 \pi p_a}{\text{period}_j}, \quad \text{period}_j = \text{base}^{j/n}, \quad j = 0,
    \dots, n - 1
    """
    source = "Siméoni et al. 2025, arXiv:2508.10104, and the authors' code"
    also_called = ("dinov3", "dinov3_rotary", "dino_rotary", "dinov3_rope")
    extrapolates = "images of any size keep their coordinates within -1 to 1, and training rescales them at random"
    used_by = "DINOv3"

    def __init__(self, head_dim: int, *, axes: int = 2, base: float = 100.0, layout: str = "half") -> None:
        super().__init__()
        checks.one_of("layout", layout, LAYOUTS)
        checks.sizes(axes=axes)
        checks.above("base", base, 1)
        self.head_dim, self.axes, self.base, self.layout = head_dim, axes, base, layout
        self.bands = pairs_of_axis(head_dim, axes)

    @property
    def periods(self) -> Tensor:
        """The period of each pair of one axis (units of the coordinate, float64), shortest first."""
        return self.periods_on("cpu")

    def periods_on(self, device: torch.device | str) -> Tensor:
        """Return the periods, computed on a device."""
        return self.base ** (torch.arange(self.bands, dtype=torch.float64, device=device) / self.bands)

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each pair of any axis: its period."""
        return self.periods

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        coords = exact(at.coordinates(self.axes, self).view_as(at.coords))[:, None]  # [B or 1, 1, T, A]
        angle = 2 * math.pi * coords[..., None] / self.periods_on(coords.device)
        return cos_sin(angle.flatten(-2), 1.0, dtype, device)

    def formula_angles(self, position, head=0, horizon=None) -> list[float]:
        places = (position,) if self.axes == 1 else position
        periods = [self.base ** (j / self.bands) for j in range(self.bands)]
        return [2 * math.pi * place / period for place in places for period in periods]


def normalised_grid(*sizes: int, side: str = "each", device: torch.device | str | None = None) -> Positions:
    """Return the centres of a grid's cells in coordinates from -1 to 1, the last axis fastest.

    p_a = 2 (i_a + 1/2) / N_a - 1 = (2 i_a + 1 - N_a) / N_a,  i_a = 0..size_a-1

    sizes  cells on each axis, for an image (rows, columns)
    side   what N_a is: the axis' own size ("each"; every image is a square), or that of the longest or shortest axis,
           which keeps the aspect ratio and leaves the other axis short of -1 to 1, or reaching past it

    Raises ValueError for a grid without cells or an unknown side.

    >>> normalised_grid(1, 2).coords[0].tolist()
    [[0.0, -0.5], [0.0, 0.5]]
    """
    checks.one_of("side", side, SIDES)
    grid = Positions.grid(*sizes, device=device)
    measure = {"each": sizes, "longest": (max(sizes),) * len(sizes), "shortest": (min(sizes),) * len(sizes)}[side]
    cells = exact(grid.coords)
    n = torch.tensor(measure, dtype=torch.float64, device=cells.device)
    centres = (2 * cells + 1 - n) / n
    return grid.with_coords(centres if cells.device == grid.coords.device else centres.float().to(grid.coords.device))


def augmented(at: Positions, *, seed: int, shift: float = 0.0, jitter: float = 1.0, rescale: float = 1.0) -> Positions:
    """Return positions with each row's coordinates moved and stretched at random, for training (DINOv3).

    p_a' = rescale' jitter_a' (p_a + shift_a'), shift_a' uniform in [-shift, shift], jitter_a' log-uniform in [1/jitter,
    jitter], both drawn for each axis, and rescale' log-uniform in [1/rescale, rescale] for all axes at once

    at       positions in any units; rows that share their coordinates share the draw
    seed     of the draws: the same seed gives the same positions. Take the training step, and do not augment in
             evaluation
    shift    largest shift (units of the coordinates); 0 moves nothing
    jitter   largest stretch of one axis (ratio, 1 or more)
    rescale  largest stretch of all axes together (ratio, 1 or more)

    Raises ValueError for a shift below 0 or a ratio below 1.
    """
    checks.at_least("shift", shift, 0)
    checks.at_least("jitter", jitter, 1), checks.at_least("rescale", rescale, 1)
    rows, _, axes = at.coords.shape
    generator = torch.Generator().manual_seed(seed)

    def uniform(wide: int, limit: float) -> Tensor:
        """Return numbers [rows, 1, wide] that are uniform in [-limit, limit]."""
        # In float32, as the authors draw: the same seed then gives their numbers.
        return torch.empty(rows, 1, wide, device="cpu").uniform_(-limit, limit, generator=generator).double()

    coords = at.coords.cpu().double()
    if shift:
        coords = coords + uniform(axes, shift)
    if jitter > 1:
        coords = coords * uniform(axes, math.log(jitter)).exp()
    if rescale > 1:
        coords = coords * uniform(1, math.log(rescale)).exp()
    dtype = at.coords.dtype if at.coords.is_floating_point() else torch.float32
    return at.with_coords(coords.to(dtype).to(at.coords.device))
