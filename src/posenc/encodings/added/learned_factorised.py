"""Learned tables, one for each axis."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding, spec_options
from posenc.encoding.interpolation import interpolate, resample, resampling_matrix
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import number_tensor
from posenc.tokens.tracing import assert_on_gpu, may_be_read

COMBINE = ("concatenated", "summed")
OVERRUN = ("error", "clamp")


class LearnedFactorised(Encoding):
    """Add to each token trained vectors of its row and column, with one table for each axis.

    concatenated: E[r, c] = [A[r], B[c]],  A [n_1, d_1], B [n_2, d_2], d_1 + d_2 = dim
    summed:       E[r, c] = A[r] + B[c],   A [n_1, dim], B [n_2, dim]
    folded:       E[p] = E[p // n_2, p % n_2] for positions p = 0..n_1 n_2 - 1 of one axis

    dim      width of the embeddings (channels)
    max_len  positions to serve where no grid is given: in all when folded (the grid is then nearly square), otherwise
             on each of two axes
    grid     rows of each table, as in grid=(64, 64); two axes or more
    widths   channels of each axis when concatenated (default: as even as dim allows)
    combine  "concatenated" as in Reformer, "summed" as in models of images and video
    fold     True: positions have one axis, and are folded over the grid row by row, as in Reformer. False: they have
             the grid's axes
    overrun  what happens past the tables: "error" raises, "clamp" reads the last row
    std      standard deviation of the initial tables (in units of the embeddings); Reformer's is 1

    Shapes: x [B, T, dim] -> [B, T, dim]. Between two positions their vectors are mixed linearly. 64 x 64 positions take
    128 rows instead of 4,096. Reformer's own code refuses to train on anything but n_1 n_2 tokens; this one does not.
    Errors are raised from Python with the position and the sizes; inside a compiled graph the result is NaN instead.

    Where it goes wrong: the tables cannot tell what is special about one cell, only about rows and columns. Folded, the
    neighbours n_2 - 1 and n_2 of a text lie in different rows, and both of their vectors differ.

    Raises ValueError for sizes below 1, widths that do not add up, unknown words, embeddings of another width, and
    positions out of the tables.
    Source: Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451 (released code, axial position embeddings); Ho et al. 2019,
    arXiv:1912.12180.

    >>> [list(table.shape) for table in LearnedFactorised(8, grid=(3, 5)).tables]
    [[3, 4], [5, 4]]
    """

    equation = r"""
    E[r, c] = [A[r], B[c]] \quad \text{(concatenated)}

    E[r, c] = A[r] + B[c] \quad \text{(summed)}

    E[p] = E[\lfloor p / n_2 \rfloor, \; p \bmod n_2] \quad \text{(folded)}
    """
    source = "Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451; Ho et al. 2019, arXiv:1912.12180"
    also_called = ("axial_position", "axial_embedding", "reformer")
    extrapolates = "not claimed: past its tables there are no rows"
    used_by = "Reformer"

    def __init__(
        self,
        dim: int,
        max_len: int | None = None,
        *,
        grid: tuple[int, ...] | None = None,
        widths: tuple[int, ...] | None = None,
        combine: str = "concatenated",
        fold: bool = True,
        overrun: str = "error",
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, max_len=max_len)
        checks.one_of("combine", combine, COMBINE), checks.one_of("overrun", overrun, OVERRUN)
        checks.above("std", std, 0)
        sizes = grid
        if sizes is None:
            if max_len is None:
                raise ValueError("tables need their sizes: give grid=(rows, columns), or max_len")
            columns = math.isqrt(max_len - 1) + 1
            sizes = (-(-max_len // columns), columns) if fold else (max_len, max_len)
        if not isinstance(sizes, tuple) or len(sizes) < 2 or not all(isinstance(n, int) and n >= 1 for n in sizes):
            raise ValueError(f"grid must give the rows of two tables or more, as in (64, 64), got {grid!r}")
        shares = tuple(dim // len(sizes) + (axis < dim % len(sizes)) for axis in range(len(sizes)))
        if widths is not None:
            if combine == "summed":
                raise ValueError(f"summed tables all have dim={dim} channels, got widths={widths}; leave widths out")
            shares = widths
        if len(shares) != len(sizes) or not all(width >= 1 for width in shares) or sum(shares) != dim:
            raise ValueError(f"widths must be {len(sizes)} numbers of 1 or more that add up to dim={dim}, got {shares}")
        self.dim, self.max_len, self.grid, self.widths = dim, max_len, grid, widths
        self.combine, self.fold, self.overrun, self.std = combine, fold, overrun, std
        self.sizes = sizes
        self.axes = 1 if fold else len(sizes)
        self.tables = nn.ParameterList(
            nn.Parameter(torch.empty(n, dim if combine == "summed" else width, device=device, dtype=dtype))
            for n, width in zip(sizes, shares, strict=True)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.tables:
            nn.init.normal_(table, std=self.std)

    def resampled(self, *grid: int, antialias: bool = True) -> "LearnedFactorised":
        """Return the encoding for another grid, each table resampled bicubically along its axis.

        antialias  widen the kernel where a table shrinks (timm); it takes Keys' a = -1/2 everywhere, without it -3/4
        Raises ValueError for folded positions: another grid would fold them in other places.
        """
        if self.fold:
            raise ValueError(f"{self} folds positions over its grid; only tables of several axes resample (fold=False)")
        if len(grid) != self.axes or not all(n >= 1 for n in grid):
            raise ValueError(f"a grid of {self.axes} axes needs as many sizes of 1 or more, got {grid}")
        options: dict[str, Any] = {**spec_options(self), "grid": grid}
        twin = LearnedFactorised(self.dim, **options, device=self.tables[0].device, dtype=self.tables[0].dtype)
        with torch.no_grad():
            for table, new in zip(self.tables, twin.tables, strict=True):
                matrix = resampling_matrix(len(table), len(new), mode="bicubic", antialias=antialias)
                new.copy_(resample(table, [matrix]))
        return twin

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        checks.dim(self, x)
        return x + self.read(self.place(at)).to(x.dtype)

    @property
    def limits(self) -> tuple[int, ...]:
        """The number of positions on each axis."""
        return (math.prod(self.sizes),) if self.fold else self.sizes

    def place(self, at: Positions) -> Tensor:
        """Return the table rows [B or 1, T, axes] of tokens, by the overrun policy. Rows may be fractional."""
        coords = at.coordinates(self.axes, self)
        coords = coords[..., None] if self.axes == 1 else coords
        last = number_tensor([n - 1 for n in self.limits], torch.long, coords.device)
        if self.overrun == "clamp":
            coords = torch.minimum(coords, last.to(coords.dtype))
        # A known extent needs no look at the data: it also means that no coordinate is below 0.
        if at.extent is not None and (self.overrun == "clamp" or at.extent <= min(self.limits)):
            return coords
        valid = ((coords >= 0) & (coords <= last)).all(-1)
        if not may_be_read(coords):
            return torch.where(valid[..., None], coords.to(torch.float64), torch.nan)
        if assert_on_gpu(coords, lambda: valid, f"a position is out of the tables of {self}") or bool(valid.all()):
            return coords
        wrong = coords[~valid]
        where = wrong[wrong.amax(-1).argmax()].tolist()
        needed_sizes = tuple(max(n, math.floor(p) + 1) for n, p in zip(self.limits, where, strict=True))
        larger = f"max_len={needed_sizes[0]}" if self.fold else f"grid={needed_sizes}"
        remedy = f"build them with {larger} or more, or choose overrun='clamp'"
        raise ValueError(
            f"position {where[0] if self.fold else tuple(where)} is out of learned tables of "
            f"{' x '.join(map(str, self.sizes))} positions, which begin at 0; "
            f"{remedy if needed_sizes != self.limits else 'shift the positions'}"
        )

    def read(self, place: Tensor) -> Tensor:
        """Return the vectors [..., dim] at whole or fractional places [..., axes]; NaN places give NaN."""
        if not place.is_floating_point():
            return self.whole(place)
        exact = torch.promote_types(self.tables[0].dtype, torch.float32)
        if self.fold:
            return interpolate(lambda row: self.whole(row).to(exact), place, self.limits[0] - 1)

        def piece(table: Tensor, on_axis: Tensor) -> Tensor:
            return interpolate(lambda row: table[row].to(exact), on_axis, len(table) - 1)

        return self.join(list(map(piece, self.tables, place.unbind(-1))))

    def whole(self, place: Tensor) -> Tensor:
        """Return the vectors [..., dim] at whole places [..., axes]."""
        cell = place.unbind(-1)
        if self.fold:
            # torch.unravel_index would copy the sizes to a GPU.
            steps = [math.prod(self.sizes[axis:]) for axis in range(1, len(self.sizes) + 1)]
            cell = [cell[0] // step % size for step, size in zip(steps, self.sizes, strict=True)]
        return self.join([table[on_axis] for table, on_axis in zip(self.tables, cell, strict=True)])

    def join(self, pieces: list[Tensor]) -> Tensor:
        return torch.cat(pieces, -1) if self.combine == "concatenated" else torch.stack(pieces).sum(0)

    def formula_added(self, position, channel: int) -> float:
        if not self.fold:
            return self.formula_cell([min(p, n - 1) for p, n in zip(position, self.sizes, strict=True)], channel)
        p = min(position, math.prod(self.sizes) - 1)
        total = 0.0
        for whole, weight in ((math.floor(p), 1 - p % 1), (math.ceil(p), p % 1)):
            cell: list[float] = []
            for n in reversed(self.sizes):
                cell.insert(0, whole % n)
                whole //= n
            total += weight * self.formula_cell(cell, channel)
        return total

    def formula_cell(self, cell: list[float], channel: int) -> float:
        """Return one channel at a cell, with each table interpolated between its rows."""
        total = 0.0
        for p, table in zip(cell, self.tables, strict=True):
            if 0 <= channel < table.shape[1]:
                low, high, share = math.floor(p), math.ceil(p), p % 1
                total += (1 - share) * table[low, channel].item() + share * table[high, channel].item()
            channel -= table.shape[1] if self.combine == "concatenated" else 0
        return total
