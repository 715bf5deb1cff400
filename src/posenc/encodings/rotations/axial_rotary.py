"""Axial rotary (RoPE) encoding: rotary over several axes."""

import math

import torch
from torch import Tensor

from posenc import checks
from posenc.encoding.precision import exact
from posenc.encodings.rotations import Rotations, cos_sin, pairs_of_axis
from posenc.kernels.rotation.rotate_pairs import rotate_pairs
from posenc.tokens.positions import Positions

LAYOUTS = ("half", "interleaved", "half_by_axis")
FREQUENCIES = ("language", "dealt", "pixel", "log_pixel")


class AxialRotary(Rotations):
    """Give each axis its own share of a head's channels, and turn it by rotary.

    angle of pair j of axis a = p_a frequency_j, p_a the coordinate of axis a, r_a its channels, j = 0..r_a/2-1
    language   frequency_j = base^(-2j/r_a): each axis has the whole spectrum (RoPE-ViT, Gemma 4, Qwen2-VL, Llama 4)
    dealt      frequency_j = base^(-2(jA + a)/(A r_a)): one spectrum, dealt to the A axes in turn (Pixtral)
    pixel      frequency_j = pi (1 + (resolution/2 - 1) j/(r_a/2 - 1)), for coordinates from -1 to 1
    log_pixel  frequency_j = pi (resolution/2)^(j/(r_a/2 - 1)), the same range in equal ratios

    head_dim     width of one head (channels)
    axes         number of coordinates of a position: row and column, or time, row and column
    base         ratio that sets the longest wavelength of language and dealt frequencies (unitless, above 1). 100 suits
                 grids of tens of cells (RoPE-ViT, Gemma 4); Qwen2-VL, Pixtral, Llama 4 and V-JEPA 2 take 10,000
    split        channels of each axis, even numbers; channels left over carry no position. The default gives all axes
                 the largest equal share, 2 floor(head_dim/(2 axes)) (V-JEPA 2)
    layout       which channels form a pair; the axes' pairs stand behind one another. "half" pairs p with p + r/2, r
                 the sum of the split (DINOv3, Qwen2-VL, Pixtral: angles h w h w), "interleaved" pairs 2p with 2p + 1
                 (RoPE-ViT, timm, rotary-embedding-torch, Llama 4), "half_by_axis" is "half" inside each axis'
                 channels (Gemma 4: angles h h w w). The same encoding up to a fixed order of channels
    frequencies  one of the four above
    resolution   cells that pixel frequencies tell apart: the fastest pair turns once in two of them; 224 if not given

    Coordinates may be fractional or negative, and tokens stand in any order: a dropped patch changes no other. Which
    coordinate comes first is the caller's choice: Positions.grid(H, W) gives (row, column), timm's "ij"; RoPE-ViT's own
    weights read (column, row), timm's "xy". A token without a place, such as CLS, stands at 0 on every axis, where
    nothing turns (Llama 4 counts its patches from 1 for that reason). With one axis and language frequencies this is
    rotary.

    Where it goes wrong: a logit is a sum of one term for each axis, so no pair sees a diagonal (mixed_rotary does). A
    base made for text wastes pairs on a grid: of 16 pairs for an axis, 5 turn by a radian in 14 cells at 10,000, and 10
    at 100. V-JEPA 2 as released repeats its frequencies in the order of "half" and pairs channels in the order of
    "interleaved", so the two channels of a pair turn by different angles and lengths change; this encoding does what
    was meant.

    Raises ValueError for a head without a pair for each axis, a split that is odd or does not fit, an unknown word, or
    an option that the chosen frequencies do not read.
    Source: Heo, Park, Han, Yun 2024, arXiv:2403.13298, section 3.2 (RoPE-Axial); dealt: Agrawal et al. 2024,
    arXiv:2410.07073 (Pixtral), and its code; pixel: rotary-embedding-torch and timm.

    >>> q, k = torch.randn(1, 1, 6, 8), torch.randn(1, 1, 6, 8)
    >>> turned, _ = AxialRotary(8)(q, k, positions=Positions.grid(2, 3))
    >>> turned[0, 0, 0].equal(q[0, 0, 0])
    True
    """

    equation = r"""
    \text{angle}_{a,j} = p_a \, \text{frequency}_j

    \text{frequency}_j = \text{base}^{-2j/r_a}, \quad j = 0, \dots, r_a/2 - 1
    """
    source = "Heo, Park, Han, Yun 2024, arXiv:2403.13298, section 3.2"
    also_called = ("rope_2d", "rope_axial", "axial_rope", "rope_3d", "rotary_2d")
    extrapolates = (
        "claimed to larger images: DeiT-III-B trained at 224 pixels scores 83.6 there and 83.9 at 384, a learned table "
        "83.4 and 82.8"
    )
    used_by = "vision towers of Gemma 4, Qwen-VL, Pixtral and Llama 4; SAM 2, V-JEPA 2"

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int = 2,
        base: float = 100.0,
        split: tuple[int, ...] | None = None,
        layout: str = "half",
        frequencies: str = "language",
        resolution: float | None = None,
    ) -> None:
        super().__init__()
        checks.one_of("layout", layout, LAYOUTS), checks.one_of("frequencies", frequencies, FREQUENCIES)
        checks.sizes(axes=axes)
        checks.above("base", base, 1)
        self.head_dim, self.axes, self.base, self.split = head_dim, axes, base, split
        self.layout, self.frequencies, self.resolution = layout, frequencies, resolution
        in_pixels = frequencies in ("pixel", "log_pixel")
        if resolution is not None and not (in_pixels and 2 < resolution < math.inf):
            raise ValueError(f"resolution is for pixel frequencies and above 2, got {resolution} for '{frequencies}'")
        if in_pixels and base != 100:
            raise ValueError(f"base is not for '{frequencies}' frequencies, which resolution sets; got base={base}")
        self.widths = even_split(head_dim, axes) if split is None else given_split(split, head_dim, axes)
        if frequencies == "dealt" and len(set(self.widths)) > 1:
            raise ValueError(f"frequencies='dealt' takes a split into equal parts, got {self.widths}")

    def spectrum(self, axis: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the frequency of each pair of an axis (radians per unit of its coordinate, float64)."""
        width, axes = self.widths[axis], len(self.widths)
        j = torch.arange(width // 2, dtype=torch.float64, device=device)
        if self.frequencies == "language":
            return self.base ** -(2 * j / width)
        if self.frequencies == "dealt":
            return self.base ** -(2 * (j * axes + axis) / (width * axes))
        share, highest = j / max(width // 2 - 1, 1), (self.resolution or 224) / 2
        return math.pi * (highest**share if self.frequencies == "log_pixel" else 1 + share * (highest - 1))

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each pair of any axis (units of a coordinate, float64), shortest first."""
        return (2 * math.pi / torch.cat([self.spectrum(axis) for axis in range(len(self.widths))])).sort().values

    def turn_both(self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
        if self.layout == "half_by_axis":
            return self.rotated(q, at), self.rotated(k, keys_at)
        return super().turn_both(q, k, at, keys_at)

    def by_table(self, x: Tensor, table: Tensor) -> Tensor:
        if self.layout != "half_by_axis":
            return super().by_table(x, table)
        cos, sin = table.unbind(0)
        channels, pairs = [*self.widths, self.head_dim - sum(self.widths)], [width // 2 for width in self.widths]
        *parts, rest = x.split(channels, -1)
        tables = zip(parts, cos.split(pairs, -1), sin.split(pairs, -1), strict=True)
        return torch.cat([*(rotate_pairs(part, c, s, "half") for part, c, s in tables), rest], -1)

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        coords = exact(at.coordinates(self.axes, self).view_as(at.coords))[:, None]  # [B or 1, 1, T, A]
        spectra = (self.spectrum(axis, coords.device) for axis in range(len(self.widths)))
        angles = [coords[..., axis, None] * spectrum for axis, spectrum in enumerate(spectra)]
        return cos_sin(torch.cat(angles, -1), 1.0, dtype, device)

    def formula_angles(self, position, head=0, horizon=None) -> list[float]:
        places = (position,) if self.axes == 1 else position
        r, highest, angles = sum(self.widths), (self.resolution or 224) / 2, []
        for axis, (width, place) in enumerate(zip(self.widths, places, strict=True)):
            for j in range(width // 2):
                share = j / max(width // 2 - 1, 1)
                if self.frequencies == "pixel":
                    angles.append(place * math.pi * (1 + (highest - 1) * share))
                elif self.frequencies == "log_pixel":
                    angles.append(place * math.pi * 2 ** (share * math.log2(highest)))
                elif self.frequencies == "dealt":
                    angles.append(place / self.base ** (2 * (j * len(self.widths) + axis) / r))
                else:
                    angles.append(place / self.base ** (2 * j / width))
        return angles

    def formula_pairs(self, pairs: int) -> list[tuple[int, int]]:
        if self.layout != "half_by_axis":
            return super().formula_pairs(pairs)
        starts = [sum(self.widths[:axis]) for axis in range(len(self.widths))]
        halves = zip(starts, [width // 2 for width in self.widths], strict=True)
        return [(start + j, start + j + half) for start, half in halves for j in range(half)]


def even_split(head_dim: int, axes: int) -> tuple[int, ...]:
    """Return the largest equal and even number of channels for each axis."""
    return (2 * pairs_of_axis(head_dim, axes),) * axes


def given_split(split: tuple[int, ...], head_dim: int, axes: int) -> tuple[int, ...]:
    """Return the split. Raises ValueError unless it fits the axes and head_dim."""
    if len(split) != axes:
        raise ValueError(f"split must name the channels of each of {axes} axes, got {split}")
    if any(not width >= 2 or width % 2 for width in split):
        raise ValueError(f"split must give each axis an even number of channels to form pairs, got {split}")
    if sum(split) > head_dim:
        raise ValueError(f"split {split} takes {sum(split)} channels, more than head_dim={head_dim} has")
    return tuple(split)
