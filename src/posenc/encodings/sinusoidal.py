"""Sinusoidal encoding."""

import math

import torch
from torch import Tensor

from posenc.encoding import Encoding
from posenc.positions import Positions, PositionsLike

LAYOUTS = ("interleaved", "concatenated")


class Sinusoidal(Encoding):
    """Add to each token the sines and cosines of its position at wavelengths from 2 pi to about 2 pi base.

    frequency_k = base^(-2k/dim)                                  (radians per position; the first pair is the fastest)
    interleaved:   PE(p)[2k] = sin(p frequency_k), PE(p)[2k+1] = cos(p frequency_k)
    concatenated:  PE(p) = [sin(p frequency_0), sin(p frequency_1), ..., cos(p frequency_0), cos(p frequency_1), ...]

    dim       width of the embeddings (channels), 1 or more; an odd width lacks the last cosine when interleaved, and
              has a zero in its last channel when concatenated
    base      ratio that sets the longest wavelength (unitless, above 1)
    layout    "interleaved" as in the paper, "concatenated" as in tensor2tensor and fairseq
    endpoint  False: the exponent runs over dim/2, as in the paper, and the longest wavelength falls short of 2 pi base
              (54,410 rather than 62,832 positions at dim 128). True: over dim/2 - 1, as in tensor2tensor and
              fairseq, and the longest wavelength is exactly 2 pi base

    Shapes: x [B, T, dim] -> [B, T, dim]. Any position works: fractional, negative, or far beyond 5000; there is no
    table to run out of. Angles are taken in float64 and the result is rounded once to x's dtype.
    A state dict that kept the table as a buffer `pe` loads: the buffer is compared with this encoding, then dropped.

    Where it goes wrong: it is defined at any length, but a model trained with it breaks 20 to 50 tokens past the
    trained length. The dot product of two encodings is even in the distance, so it tells no direction, and it is not
    monotone. |PE(p)| is sqrt(dim/2) for every p.

    Raises ValueError for a width below 1, a base of 1 or less, an unknown layout, or embeddings of another width.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    >>> Sinusoidal(4)(torch.zeros(1, 2, 4))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """

    source = "Vaswani et al. 2017, arXiv:1706.03762, section 3.5"
    also_called = ("sincos", "sine", "vaswani", "fixed")

    def __init__(self, dim: int, base: float = 10_000.0, layout: str = "interleaved", endpoint: bool = False) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim must be 1 or more, got {dim}")
        if not base > 1:
            raise ValueError(f"base must be above 1, got {base}")
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got '{layout}'")
        self.dim, self.base, self.layout, self.endpoint = dim, base, layout, endpoint

    @property
    def frequencies(self) -> Tensor:
        """The frequency of each pair (radians per position), float64, fastest first."""
        pairs = (self.dim + 1) // 2 if self.layout == "interleaved" else self.dim // 2
        k = torch.arange(pairs, dtype=torch.float64)
        exponent = k / max(pairs - 1, 1) if self.endpoint else 2 * k / self.dim
        return self.base**-exponent

    @property
    def wavelengths(self) -> Tensor:
        """The wavelength of each pair, 2 pi / frequency (positions), float64, shortest first."""
        return 2 * math.pi / self.frequencies

    def table(
        self, positions: PositionsLike = None, *, tokens: int | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The encoding [B or 1, T, dim] of given positions, or of the first `tokens` positions."""
        if positions is None and tokens is None:
            raise ValueError("table needs positions or a number of tokens")
        if positions is None:
            at = Positions.count(tokens or 0)
        else:
            at = positions if isinstance(positions, Positions) else Positions.of(positions)
        return self.encode(at).to(dtype)

    def encode(self, at: Positions) -> Tensor:
        """The encoding [B or 1, T, dim] in float64."""
        coords = at.axis(str(self))
        device = coords.device
        # Some devices have no float64: the angles are then taken on the CPU.
        exact = torch.device("cpu") if device.type == "mps" else device
        angle = coords.to(exact).double()[..., None] * self.frequencies.to(exact)  # [B, T, pairs]
        if self.layout == "interleaved":
            return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[..., : self.dim]
        return torch.nn.functional.pad(torch.cat((angle.sin(), angle.cos()), -1), (0, self.dim % 2))

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        if x.shape[-1] != self.dim:
            raise ValueError(
                f"embeddings must have {self.dim} channels, got {x.shape[-1]}; build Sinusoidal({x.shape[-1]})"
            )
        # The options are part of the key: a module's attributes may be set anew.
        key = ("sinusoidal", self.dim, self.base, self.layout, self.endpoint, x.dtype, x.device)
        table = at.once(key, lambda: self.encode(at).to(x.dtype).to(x.device))
        return x + table

    def shift(self, k: float) -> Tensor:
        """The matrix M_k [dim, dim], float64, with PE(p + k) = M_k PE(p) for every position p.

        Each pair (sin, cos) turns by k times its frequency, so M_k is a block rotation that does not depend on p.
        Raises ValueError for an odd interleaved width, whose last sine has no cosine to turn with.
        """
        if self.dim % 2 and self.layout == "interleaved":
            raise ValueError(
                f"a shift needs whole pairs, and dim={self.dim} leaves a sine without its cosine; use an even dim"
            )
        angle = self.frequencies * k
        pairs = angle.numel()
        first = torch.arange(pairs) * 2 if self.layout == "interleaved" else torch.arange(pairs)
        second = first + (1 if self.layout == "interleaved" else pairs)
        matrix = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        matrix[first, first], matrix[first, second] = angle.cos(), angle.sin()
        matrix[second, first], matrix[second, second] = -angle.sin(), angle.cos()
        return matrix

    def shift_error(self, k: float, positions: PositionsLike = None) -> float:
        """The largest |PE(p + k) - M_k PE(p)| over the positions (default: the first 1000): rounding only."""
        p = torch.arange(1000, dtype=torch.float64) if positions is None else positions
        at = p if isinstance(p, Positions) else Positions.of(p.double())
        moved = self.encode(at.with_coords(at.coords + k))
        return float((moved - self.encode(at) @ self.shift(k).T).abs().max())

    def formula_added(self, position: float, channel: int) -> float:
        pairs = math.ceil(self.dim / 2) if self.layout == "interleaved" else self.dim // 2
        if self.layout == "interleaved":
            k, wave = channel // 2, (math.sin, math.cos)[channel % 2]
        elif channel < 2 * pairs:
            k, wave = channel % pairs, (math.sin, math.cos)[channel // pairs]
        else:
            return 0.0
        exponent = k / (pairs - 1 or 1) if self.endpoint else k / (self.dim / 2)
        return wave(position / self.base**exponent)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        table = state_dict.pop(prefix + "pe", None)
        if table is not None:
            problem = self.compare_saved(table)
            if problem is not None:
                error_msgs.append(f"{prefix}pe: {problem}")
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def compare_saved(self, table: Tensor) -> str | None:
        """Why a saved table [max_len, dim], with or without a batch axis of 1, is not this encoding; None if it is."""
        rows = (
            table.squeeze(0)
            if table.dim() == 3 and table.shape[0] == 1
            else table.squeeze(1)
            if table.dim() == 3
            else table
        )
        if rows.dim() != 2 or rows.shape[1] != self.dim:
            return (
                f"expected a table of shape [max_len, {self.dim}], got {list(table.shape)}; it belongs to another model"
            )
        if matches(rows, self):
            return None
        others = (Sinusoidal(self.dim, self.base, layout, end) for layout in LAYOUTS for end in (False, True))
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
