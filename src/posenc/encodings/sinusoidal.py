"""Sinusoidal encoding."""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from posenc import checks
from posenc.encoding import Encoding
from posenc.positions import Positions, placed
from posenc.precision import exact

LAYOUTS = ("interleaved", "concatenated", "sines_first", "cosines_first")

LONG = 1 << 24
"""The size (bytes) from which on a table is not kept."""


class Sinusoidal(Encoding):
    """Add to each token the sines and cosines of its position at wavelengths from 2 pi to about 2 pi base.

    frequency_k = base^(-2k/dim)                                  (radians per position; the first pair is the fastest)
    interleaved:   PE(p)[2k] = sin(p frequency_k), PE(p)[2k+1] = cos(p frequency_k)
    concatenated:  PE(p) = [sin(p frequency_0), sin(p frequency_1), ..., cos(p frequency_0), cos(p frequency_1), ...]

    With several axes each one gets c = 2 ceil(dim/(2 axes)) channels and frequencies base^(-2k/c); their encodings
    stand behind one another, and what exceeds dim is cut off the end.

    dim       width of the embeddings (channels), 1 or more; on one axis an odd width lacks the last cosine when
              interleaved, and has a zero in its last channel when concatenated
    base      ratio that sets the longest wavelength (unitless, above 1)
    layout    "interleaved" as in the paper, "concatenated" as in tensor2tensor and fairseq, and on two axes as in MAE;
              "sines_first" has the sines of all axes, then all cosines (timm's sincos table), which on one axis is the
              same as concatenated; "cosines_first" has all cosines, then all sines (MusicGen)
    endpoint  False: the exponent runs over dim/2, as in the paper, and the longest wavelength falls short of 2 pi base
              (54,410 rather than 62,832 positions at dim 128). True: over dim/2 - 1, as in tensor2tensor and
              fairseq, and the longest wavelength is exactly 2 pi base
    axes      coordinates of a position: 1 for sequences, 2 for images, 3 for video, or more
    scaled    multiply by one learned number, which starts at dim^-1/2, so that it fits embeddings of norm 1

    Shapes: x [B, T, dim] -> [B, T, dim]. Any position works: fractional, negative, or far beyond 5000; there is no
    table to run out of. Angles are taken in float64 and the result is rounded once to x's dtype.
    A state dict that kept the table as a buffer `pe` loads: the buffer is compared with this encoding, then dropped.

    Where it goes wrong: it is defined at any length, but a model trained with it breaks 20 to 50 tokens past the
    trained length. The dot product of two encodings is even in the distance, so it tells no direction, and it is not
    monotone. |PE(p)| is sqrt(dim/2) for every p. Embeddings [T, B, dim], as nn.Transformer has them, are numbered by
    their rows unless the call says seq_dim=0: such a model is blind to order. Axes given in another order (x before y,
    as MAE's own code has it) pass every check and mean another place.

    Raises ValueError for a width below 1, a base of 1 or less, an unknown layout, axes that get no channel, or
    embeddings of another width.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5; on two axes He et al. 2021, arXiv:2111.06377.

    >>> Sinusoidal(4)(torch.zeros(1, 2, 4))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    >>> Sinusoidal(4, axes=2)(torch.zeros(1, 4, 4), positions=Positions.grid(2, 2))[0, 1]
    tensor([0.0000, 1.0000, 0.8415, 0.5403])
    """

    equation = r"""
    \text{frequency}_k = \text{base}^{-2k/\text{dim}}

    \text{PE}(p)_{2k} = \sin(p\,\text{frequency}_k), \quad \text{PE}(p)_{2k+1} = \cos(p\,\text{frequency}_k)
    """
    source = "Vaswani et al. 2017, arXiv:1706.03762, section 3.5"
    also_called = ("sincos", "sine", "vaswani", "fixed", "sincos2d")
    extrapolates: ClassVar[str] = (
        "hoped for by its authors; trained models break 20 to 50 tokens past the trained length"
    )
    used_by: ClassVar[str] = "the original Transformer, many translation and speech encoders, Whisper's encoder, MAE"

    def __init__(
        self,
        dim: int,
        *,
        base: float = 10_000.0,
        layout: str = "interleaved",
        endpoint: bool = False,
        axes: int = 1,
        scaled: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim)
        checks.above("base", base, 1)
        checks.one_of("layout", layout, LAYOUTS)
        checks.sizes(axes=axes)
        self.dim, self.base, self.layout, self.endpoint, self.scaled = dim, base, layout, endpoint, scaled
        self.axes = axes
        if (axes - 1) * self.width >= dim:
            raise ValueError(
                f"dim={dim} leaves no channel for the last of axes={axes}, of which each takes {self.width}; "
                f"build it with dim={axes * self.width}"
            )
        self.scale = nn.Parameter(torch.empty((), device=device, dtype=dtype)) if scaled else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.scale is not None:
            nn.init.constant_(self.scale, self.dim**-0.5)

    @property
    def width(self) -> int:
        """The channels of one axis before the cut: even when there are several."""
        return self.dim if self.axes == 1 else 2 * math.ceil(self.dim / (2 * (self.axes or 1)))

    @property
    def frequencies(self) -> Tensor:
        """The frequency of each pair of an axis (radians per position), float64, fastest first."""
        pairs = (self.width + 1) // 2 if self.layout == "interleaved" else self.width // 2
        k = torch.arange(pairs, dtype=torch.float64, device="cpu")
        exponent = k / max(pairs - 1, 1) if self.endpoint else 2 * k / self.width
        return self.base**-exponent

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each pair, 2 pi / frequency (positions), float64, shortest first."""
        return 2 * math.pi / self.frequencies

    def table(
        self, positions: Positions | Tensor | int, *, offset: int = 0, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The encoding [B or 1, T, dim] of positions: Positions, ids, or so many tokens that count up from offset."""
        at = placed(positions, offset)
        table = self.encode(at)
        return (table if self.scale is None else table * self.scale.to(table)).to(dtype)

    def encode(self, at: Positions) -> Tensor:
        """The encoding [B or 1, T, dim] in float64, without the learned scale."""
        coords = at.coordinates(self.axes, self)
        coords = exact(coords)
        angle = coords[..., None] * self.frequencies.to(coords.device)  # [B, T, pairs] or [B, T, A, pairs]
        return self.laid_out((angle.sin(), angle.cos()))

    def laid_out(self, waves: tuple[Tensor, Tensor]) -> Tensor:
        """Sines and cosines [B, T, pairs], or [B, T, A, pairs] of several axes, as the channels [B, T, dim]."""
        if self.layout == "interleaved":
            rows = torch.stack(waves, -1).flatten(2)
        elif self.layout == "concatenated":
            rows = torch.cat(waves, -1).flatten(2)
        else:
            waves = waves if self.layout == "sines_first" else waves[::-1]
            rows = torch.cat([wave.flatten(2) for wave in waves], -1)
        # Pads the odd channel of one axis with a zero, or cuts what several axes have too many.
        return torch.nn.functional.pad(rows, (0, self.dim - rows.shape[-1]))

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        checks.dim(self, x)
        # A scale multiplies before the one rounding.
        dtype = x.dtype if self.scale is None else torch.promote_types(x.dtype, torch.float32)
        # Nothing is kept in a graph, and a question about its length would bound it.
        keep = not is_compiling() and x.is_cpu and self.axes == 1 and at.tokens * self.dim * dtype.itemsize <= LONG
        table = self.once(self.rows, at, dtype, x.device, keep=keep)
        return x + (table if self.scale is None else (table * self.scale.to(dtype)).to(x.dtype))

    def rows(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The encoding [B or 1, T, dim] rounded once to dtype, without the learned scale."""
        return self.encode(at).to(dtype).to(device)

    def shift(self, k: float) -> Tensor:
        """The matrix M_k [dim, dim], float64, with PE(p + k) = M_k PE(p) for every position p.

        Each pair (sin, cos) turns by k times its frequency, so M_k is a block rotation that does not depend on p.
        Raises ValueError for several axes, and for an odd interleaved width, whose last sine has no cosine to turn
        with.
        """
        if self.axes != 1:
            raise ValueError(f"a shift by k moves along one axis, and {self} has {self.axes}; build it with axes=1")
        if self.dim % 2 and self.layout == "interleaved":
            raise ValueError(
                f"a shift needs whole pairs, and dim={self.dim} leaves a sine without its cosine; use an even dim"
            )
        angle = self.frequencies * k
        pairs = angle.numel()
        first = torch.arange(pairs, device="cpu") * (2 if self.layout == "interleaved" else 1)
        second = first + (1 if self.layout == "interleaved" else pairs)
        if self.layout == "cosines_first":
            first, second = second, first
        matrix = torch.zeros(self.dim, self.dim, dtype=torch.float64, device="cpu")
        matrix[first, first], matrix[first, second] = angle.cos(), angle.sin()
        matrix[second, first], matrix[second, second] = -angle.sin(), angle.cos()
        return matrix

    def shift_error(self, k: float, positions: Positions | Tensor | None = None) -> float:
        """The largest |PE(p + k) - M_k PE(p)| over the positions (default: the first 1000): rounding only."""
        p = torch.arange(1000, dtype=torch.float64, device="cpu") if positions is None else positions
        at = p if isinstance(p, Positions) else Positions.of(p.double())
        moved = self.encode(at.with_coords(at.coords + k))
        return float((moved - self.encode(at) @ self.shift(k).T).abs().max())

    def formula_added(self, position, channel: int) -> float:
        place = position if isinstance(position, tuple) else (position,)
        axes, pairs = len(place), math.ceil(self.width / 2) if self.layout == "interleaved" else self.width // 2
        if channel >= 2 * pairs * axes:
            # An odd width leaves its last channel without a pair.
            return 0.0
        if self.layout.endswith("s_first"):
            wave, (axis, k) = channel // (pairs * axes), divmod(channel % (pairs * axes), pairs)
        else:
            axis, inside = divmod(channel, 2 * pairs)
            wave, k = (inside % 2, inside // 2) if self.layout == "interleaved" else divmod(inside, pairs)
        exponent = k / (pairs - 1 or 1) if self.endpoint else k / (self.width / 2)
        function = (math.sin, math.cos)[wave ^ (self.layout == "cosines_first")]
        return self.formula_scale() * function(place[axis] / self.base**exponent)

    def formula_scale(self) -> float:
        return 1.0 if self.scale is None else self.scale.item()

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        for name in [name for name in state_dict if name.startswith(prefix) and name != f"{prefix}scale"]:
            if problem := self.compare_saved(state_dict.pop(name)):
                error_msgs.append(f"{name}: {problem}")
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def compare_saved(self, table: Tensor) -> str | None:
        """Why a saved table [max_len, dim], with or without a batch axis of 1, is not this encoding; None if it is."""
        if self.axes != 1:
            return f"a saved table counts along one axis, and {self} has {self.axes}; leave it out of the state dict"
        rows = table.flatten(0, 1) if table.dim() == 3 and 1 in table.shape[:2] else table
        if rows.dim() != 2 or rows.shape[1] != self.dim:
            return (
                f"expected a table of shape [max_len, {self.dim}], got {list(table.shape)}; it belongs to another model"
            )
        if matches(rows, self):
            return None
        others = (
            Sinusoidal(self.dim, base=self.base, layout=layout, endpoint=end)
            for layout in LAYOUTS
            for end in (False, True)
        )
        same = next((other for other in others if matches(rows, other)), None)
        largest = float((rows.double() - self.encode(Positions.count(rows.shape[0]))[0]).abs().max())
        remedy = (
            f"it is {same}: build that one"
            if same is not None
            else "it is no sinusoidal table of this base: load it into learned"
        )
        return f"the saved table differs from {self} by up to {largest:.3g}; {remedy}"


def matches(rows: Tensor, encoding: Sinusoidal) -> bool:
    """Whether saved rows are this encoding, up to the rounding of angles in float32 and of the saved dtype."""
    at = Positions.count(rows.shape[0], device=rows.device)
    # A float32 angle p * frequency is off by up to p * 2^-23 or so.
    allowed = 1e-5 + torch.finfo(rows.dtype).eps + 1e-6 * at.coords[0].double()
    return bool(((rows.double() - encoding.encode(at)[0]).abs() <= allowed).all())
