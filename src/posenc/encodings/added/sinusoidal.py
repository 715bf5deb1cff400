"""Sinusoidal encoding."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.precision import exact
from posenc.encodings.rotations import Waves
from posenc.tokens.positions import Positions, as_positions

LAYOUTS = ("interleaved", "concatenated", "sines_first", "cosines_first")


class Sinusoidal(Waves, Encoding):
    """Add to each token sines and cosines of its position, at fixed wavelengths.

    frequency_k = base^(-2k/dim)      (radians per position, first pair fastest: wavelengths 2 pi to about 2 pi base)
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

    Where it goes wrong: it is defined at any length, but trained models break 20 to 50 tokens past the trained length.
    The dot product of two encodings is even in the distance, so it tells no direction, and is not monotone. |PE(p)| is
    sqrt(dim/2) for every p. Embeddings [T, B, dim], as in nn.Transformer, are numbered by row, blind to order, unless
    seq_dim=0 is given. Axes in another order (x before y, as in MAE's code) pass every check and mean another place.

    Raises ValueError for a width below 1, a base up to 1, an unknown layout, an axis without channels, other widths.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5; on two axes He et al. 2021, arXiv:2111.06377.

    >>> Sinusoidal(4)(torch.zeros(1, 2, 4))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """

    equation = r"""
    \text{frequency}_k = \text{base}^{-2k/\text{dim}}

    \text{PE}(p)_{2k} = \sin(p\,\text{frequency}_k), \quad \text{PE}(p)_{2k+1} = \cos(p\,\text{frequency}_k)
    """
    source = "Vaswani et al. 2017, arXiv:1706.03762, section 3.5"
    also_called = ("sincos", "sine", "vaswani", "fixed", "sincos2d")
    extrapolates = "hoped for by its authors; trained models break 20 to 50 tokens past the trained length"
    used_by = "the original Transformer, many translation and speech encoders, Whisper's encoder, MAE"

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
        checks.sizes(dim=dim, axes=axes)
        checks.above("base", base, 1)
        checks.one_of("layout", layout, LAYOUTS)
        self.dim, self.base, self.layout, self.endpoint, self.scaled = dim, base, layout, endpoint, scaled
        self.axes, self.width = axes, dim if axes == 1 else 2 * math.ceil(dim / (2 * axes))
        self.pairs = (self.width + 1) // 2 if layout == "interleaved" else self.width // 2
        if (axes - 1) * self.width >= dim:
            raise ValueError(f"dim={dim} leaves no channel for the last of axes={axes}; give dim={axes * self.width}")
        self.scale = nn.Parameter(torch.empty((), device=device, dtype=dtype)) if scaled else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.scale is not None:
            nn.init.constant_(self.scale, self.dim**-0.5)

    def frequencies_on(self, device: torch.device | str) -> Tensor:
        """The frequency of each pair of an axis (radians per position), float64, fastest first."""
        k = torch.arange(self.pairs, dtype=torch.float64, device=device)
        return self.base ** -(k / max(self.pairs - 1, 1) if self.endpoint else 2 * k / self.width)

    def table(
        self, positions: Positions | Tensor | int, *, offset: int = 0, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return the encoding [B or 1, T, dim] of positions. These are Positions, ids, or a count from offset."""
        table = self.encode(as_positions(positions, offset))
        return (table if self.scale is None else table * self.scale.to(table)).to(dtype)

    def encode(self, at: Positions) -> Tensor:
        """Return the encoding [B or 1, T, dim] in float64, without the learned scale."""
        coords = exact(at.coordinates(self.axes, self))
        angle = coords[..., None] * self.frequencies_on(coords.device)  # [B, T, pairs] or [B, T, A, pairs]
        waves = (angle.cos(), angle.sin()) if self.layout == "cosines_first" else (angle.sin(), angle.cos())
        channels = torch.stack(waves, {"interleaved": -1, "concatenated": -2}.get(self.layout, 2)).flatten(2)
        # Pads the odd channel of one axis with a zero, or cuts the surplus channels of several axes.
        return torch.nn.functional.pad(channels, (0, self.dim - channels.shape[-1]))

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        checks.dim(self, x)
        # The scale multiplies before the single rounding.
        dtype = x.dtype if self.scale is None else torch.promote_types(x.dtype, torch.float32)
        table = self.encode(at).to(dtype).to(x.device)
        return x + (table if self.scale is None else (table * self.scale.to(dtype)).to(x.dtype))

    def formula_added(self, position, channel: int) -> float:
        place = position if isinstance(position, tuple) else (position,)
        if channel >= 2 * self.pairs * len(place):
            return 0.0  # An odd width leaves its last channel without a pair.
        if self.layout == "interleaved":
            (axis, k), wave = divmod(channel // 2, self.pairs), channel % 2
        else:
            part, k = divmod(channel, self.pairs)
            axis, wave = divmod(part, 2) if self.layout == "concatenated" else (part % len(place), part // len(place))
        exponent = k / (self.pairs - 1 or 1) if self.endpoint else k / (self.width / 2)
        function = (math.sin, math.cos)[wave ^ (self.layout == "cosines_first")]
        return (1.0 if self.scale is None else self.scale.item()) * function(place[axis] / self.base**exponent)

    def _load_from_state_dict(self, state_dict, prefix, *args: Any) -> None:  # ty: ignore[incompatible-method-override]
        for name in [name for name in state_dict if name.startswith(prefix) and name != f"{prefix}scale"]:
            buffer = state_dict.pop(name)  # [max_len, dim], with or without a batch axis of 1
            rows = buffer.double().reshape(-1, *buffer.shape[-1:])
            at = Positions.count(len(rows), device=rows.device)
            # A float32 angle p * frequency is off by up to p * 2^-23 or so.
            tolerance = 1e-5 + torch.finfo(buffer.dtype).eps + 1e-6 * at.tokens
            if self.axes > 1 or rows.shape[1:] != (self.dim,) or not rows.allclose(self.encode(at)[0], 0, tolerance):
                args[-1].append(
                    f"{name}: expected the rows of {self}, got others; build what they are, or load them into learned"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)
