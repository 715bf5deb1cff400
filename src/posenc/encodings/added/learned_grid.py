"""Learned table over a grid."""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding, spec_options
from posenc.encoding.interpolation import adopt_table, interpolate_on_axes, resample, resampling_matrix
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import number_tensor
from posenc.tokens.tracing import may_be_read

OVERRUN = ("error", "clamp")


class LearnedGrid(Encoding):
    """Add to each token the trained vector of its cell in a grid of two or more axes.

    x + table[prefix + (r_1 n_2 + r_2) n_3 + r_3 ...],  table [prefix + n_1 n_2 ..., dim], initialised N(0, std^2)

    dim      width of the embeddings (channels)
    max_len  cells on each of two axes where no grid is given
    grid     cells on each axis, as in grid=(14, 14)
    prefix   tokens that stand outside the grid, such as [CLS] or registers: token k of them has the first rows of the
             table, and -(k + 1) for its coordinates. `positions()` places them and the whole grid in a row
    overrun  what happens past the grid: "error" raises, "clamp" reads the cell at the border
    std      standard deviation of the initial table (in units of the embeddings)

    Shapes: x [B, T, dim] -> [B, T, dim]; positions with as many axes as the grid. Between cells the nearest ones are
    mixed linearly along each axis. The rows lie as in a checkpoint of ViT: `pos_embed` [1, prefix + cells, dim] is
    `table` with a batch axis. For images of another size build `resampled(16, 16)` once; a size is never guessed from
    the number of tokens, which cannot tell 2 x 8 cells from 4 x 4.

    Where it goes wrong: it knows one resolution. Bicubic resampling serves others and costs accuracy without
    fine-tuning. Tables resampled with and without the antialias flag differ. Exchanged height and width pass every
    check on square grids.

    Raises ValueError for sizes below 1, a grid of one axis, an unknown policy, embeddings of another width, and
    positions out of the grid.
    Source: Dosovitskiy et al. 2020, arXiv:2010.11929, sections 3.1 and 3.2.

    >>> LearnedGrid(4, grid=(2, 3), prefix=1).table.shape
    torch.Size([7, 4])
    """

    equation = r"x \to x + \text{table}[\text{prefix} + (r_1 n_2 + r_2) n_3 + r_3 \dots]"
    source = "Dosovitskiy et al. 2020, arXiv:2010.11929, sections 3.1 and 3.2"
    also_called = ("vit", "pos_embed", "grid_table")
    extrapolates = "not claimed: other grids need the table resampled, and then fine-tuning"
    used_by = "ViT"

    def __init__(
        self,
        dim: int,
        max_len: int | None = None,
        *,
        grid: tuple[int, ...] | None = None,
        prefix: int = 0,
        overrun: str = "error",
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, max_len=max_len)
        cells = grid
        if cells is None:
            if max_len is None:
                raise ValueError("a table needs its size: give grid=(rows, columns), or max_len for both")
            cells = (max_len, max_len)
        if not isinstance(cells, tuple) or len(cells) < 2 or not all(isinstance(n, int) and n >= 1 for n in cells):
            raise ValueError(f"grid must give the cells on two axes or more, as in (14, 14), got {grid!r}")
        checks.at_least("prefix", prefix, 0)
        checks.one_of("overrun", overrun, OVERRUN)
        checks.above("std", std, 0)
        self.dim, self.max_len, self.grid, self.prefix = dim, max_len, grid, prefix
        self.overrun, self.std = overrun, std
        self.cells, self.axes = cells, len(cells)
        self.table = nn.Parameter(torch.empty(prefix + math.prod(cells), dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def _load_from_state_dict(self, state_dict, prefix, *args: Any) -> None:  # ty: ignore[incompatible-method-override]
        adopt_table(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def positions(self, *, device: torch.device | str | None = None) -> Positions:
        """Return the positions of the prefix tokens and every cell of the grid, the last axis fastest."""
        return Positions.grid(*self.cells, prefix=self.prefix, device=device)

    def resampled(self, *grid: int, antialias: bool = True) -> "LearnedGrid":
        """Return the encoding for another grid, its cells resampled bicubically, its prefix rows unchanged.

        antialias  widen the kernel where the grid shrinks (timm); it takes Keys' a = -1/2 everywhere, without it -3/4
        """
        if len(grid) != self.axes or not all(n >= 1 for n in grid):
            raise ValueError(f"a grid of {self.axes} axes needs as many sizes of 1 or more, got {grid}")
        with torch.no_grad():
            pairs = zip(self.cells, grid, strict=True)
            matrices = [resampling_matrix(old, new, mode="bicubic", antialias=antialias) for old, new in pairs]
            options: dict[str, Any] = {**spec_options(self), "grid": grid}
            twin = LearnedGrid(self.dim, **options, device=self.table.device, dtype=self.table.dtype)
            twin.table.copy_(torch.cat((self.table[: self.prefix], resample(self.table[self.prefix :], matrices))))
        return twin

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        checks.dim(self, x)
        return x + self.read(self.place(at)).to(x.dtype)

    def place(self, at: Positions) -> Tensor:
        """Return the cell of each token [B or 1, T, A] (whole or fractional), by the overrun policy."""
        coords = at.coordinates(self.axes, self)
        if self.overrun == "clamp":
            last = number_tensor([n - 1 for n in self.cells], torch.long, coords.device)
            coords = torch.minimum(coords, last.to(coords.dtype))
        # A known extent needs no look at the data: it also means that no coordinate is below 0.
        if at.extent is not None and (self.overrun == "clamp" or at.extent <= min(self.cells)):
            return coords
        return self.valid_cells(coords)

    def valid_cells(self, coords: Tensor) -> Tensor:
        """Return the coordinates. Raises ValueError if one is neither in the grid nor that of a prefix token."""
        size = number_tensor(self.cells, torch.long, coords.device)
        in_grid = ((coords >= 0) & (coords <= size - 1)).all(-1)
        first = coords[..., 0]
        prefix = (coords == coords[..., :1]).all(-1) & (first < 0) & (first >= -self.prefix) & (first == first.round())
        if not may_be_read(coords):
            return torch.where((in_grid | prefix)[..., None], coords.to(torch.float64), torch.nan)
        if bool((in_grid | prefix).all()):
            return coords
        wrong = coords[~(in_grid | prefix)]
        where = tuple(wrong[wrong.amax(-1).argmax()].tolist())
        prefix_words = f" and the {self.prefix} prefix tokens from {-self.prefix} to -1" if self.prefix else ""
        needed_cells = tuple(math.floor(highest) + 1 for highest in coords.flatten(0, 1).amax(0).tolist())
        if math.prod(needed_cells) != int((first >= 0).sum(1).amax()):
            # Only a complete image shows the size of its grid.
            needed_cells = tuple(map(max, needed_cells, self.cells))
        larger = any(n > cells for n, cells in zip(needed_cells, self.cells, strict=True))
        remedy = f"for an image of such cells use resampled{needed_cells}, or choose overrun='clamp'"
        if not larger:
            remedy = f"shift the positions, or build it with prefix={int(-coords.amin())} for tokens outside the grid"
        raise ValueError(
            f"position {where} is out of the learned grid of {' x '.join(map(str, self.cells))} cells{prefix_words}; "
            f"{remedy}"
        )

    def read(self, place: Tensor) -> Tensor:
        """Return the vectors [..., dim] at whole or fractional places [..., A]; NaN places give NaN."""
        dtype = torch.promote_types(self.table.dtype, torch.float32)
        return interpolate_on_axes(lambda cell: F.embedding(self.row(cell), self.table), place, dtype)

    def row(self, cell: Tensor) -> Tensor:
        """Return the row of the table for whole cells [..., A], clamped at the border."""
        row = torch.zeros_like(cell[..., 0])
        for axis, n in enumerate(self.cells):
            row = row * n + cell[..., axis].clamp(0, n - 1)
        # A prefix token stands at -1, -2, ...: rows 0, 1, ...
        return torch.where(cell[..., 0] < 0, -1 - cell[..., 0], self.prefix + row) if self.prefix else row

    def formula_added(self, position, channel: int) -> float:
        if position[0] < 0:
            return self.table[int(-position[0]) - 1, channel].item()
        total = []
        for corner in itertools.product((0, 1), repeat=len(self.cells)):
            weight, row = 1.0, 0
            for p, n, up in zip(position, self.cells, corner, strict=True):
                p = min(p, n - 1)
                weight *= p % 1 if up else 1 - p % 1
                row = row * n + (math.ceil(p) if up else math.floor(p))
            total.append(weight * self.table[self.prefix + row, channel].item())
        return math.fsum(total)
