"""Fourier features."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.formulas import dot_product
from posenc.encoding.precision import exact
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import number_tensor

KINDS = ("linear", "log2", "gaussian", "learned")
ONLY_FOR = {
    "max_freq": ("linear", "log2"),
    "scale": ("gaussian", "learned"),
    "seed": ("gaussian",),
    "hidden": ("learned",),
}


class FourierFeatures(Encoding):
    """Add to each token sines and cosines of its place, at chosen, random or learned frequencies.

    u = 2 p / (max_len - 1) - 1 along each axis, from -1 to 1 over the frame
    linear:   f_k = 1 + k (max_freq/2 - 1)/(K - 1);  log2: f_k = (max_freq/2)^(k/(K - 1)),  k = 0..K-1
              PE(p) = [sin(pi f_k u_a), cos(pi f_k u_a)]: the axes a in turn, for each all sines, then all cosines
    gaussian: PE(p) = [sin(2 pi u G), cos(2 pi u G)],  G [axes, K] drawn once from N(0, scale^2)
    learned:  PE(p) = W_2 gelu(W_1 [cos(u W), sin(u W)]/sqrt(2 K) + b_1) + b_2,  W [axes, K] starts at N(0, scale^2)

    dim       width of the embeddings (channels); what exceeds it is cut off the end, as in sinusoidal
    max_len   positions along each axis: 0 stands at one end of the frame, max_len - 1 at the other
    axes      coordinates of a position
    kind      "linear" as in Perceiver, "log2" as in NeRF, "gaussian" as in SAM, "learned"
    max_freq  twice the highest frequency of linear and log2 (half turns over the frame; default max_len, at which two
              neighbours are half a turn apart); 1 or more
    centres   True: positions are the centres of cells, u = (2 p + 1)/max_len - 1, as in SAM
    scale     deviation of the random frequencies of gaussian (turns) and learned (radians; 1/gamma in its paper)
    seed      of the frequencies of gaussian, from a generator of its own
    hidden    width of the hidden layer of learned

    Shapes: x [B, T, dim] -> [B, T, dim]. Any position works, past the frame and between positions too; the frame comes
    from max_len, never from the number of tokens. Angles are taken in float64.
    K is ceil(dim / (2 axes)) for linear and log2, ceil(dim / 2) for the others. Perceiver also passes u itself, and
    concatenates all of it to the tokens; with a projection after it, that equals adding.

    Where it goes wrong: linear and gaussian frequencies repeat or turn to noise past the frame, where training has
    never been. Two positions a frame apart are one and the same at whole frequencies. A scale that is too large makes
    neighbours strangers, one too small blurs them: it needs tuning, except for learned.

    Raises ValueError for sizes below 1, an unknown kind, a scale of 0 or less, an option that its kind does not read,
    axes that get no channel, or embeddings of another width.
    Source: Tancik et al. 2020, arXiv:2006.10739, section 4; Jaegle et al. 2021, arXiv:2103.03206, section 3.2; Li, Si,
    Li, Hsieh, Bengio 2021, arXiv:2106.02795, section 3 (learned).

    >>> FourierFeatures(4, max_len=3)(torch.zeros(1, 3, 4))[0, :, 2]
    tensor([-1.,  1., -1.])
    """

    equation = r"""
    u = \frac{2 p}{\text{max len} - 1} - 1

    \text{PE}(p) = [\sin(\pi f_k u_a), \; \cos(\pi f_k u_a)]

    f_k = 1 + \frac{k \, (\text{max freq}/2 - 1)}{K - 1}, \quad k = 0, \dots, K - 1 \quad \text{(linear)}
    """
    source = "Tancik et al. 2020, arXiv:2006.10739, section 4; Li et al. 2021, arXiv:2106.02795, section 3"
    also_called = ("fourier", "random_fourier", "pixel_bands", "learnable_fourier")
    extrapolates = "not claimed for longer frames: positions past the frame were never trained"
    used_by = "Perceiver (linear), SAM (gaussian)"

    def __init__(
        self,
        dim: int,
        max_len: int,
        *,
        axes: int = 1,
        kind: str = "linear",
        max_freq: float | None = None,
        centres: bool = False,
        scale: float = 1.0,
        seed: int = 0,
        hidden: int = 32,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, max_len=max_len, axes=axes, hidden=hidden)
        checks.one_of("kind", kind, KINDS)
        checks.at_least("max_freq", max_freq, 1)
        checks.above("scale", scale, 0)
        checks.whole("seed", seed, 0)
        is_set = {"max_freq": max_freq is not None, "scale": scale != 1, "seed": seed != 0, "hidden": hidden != 32}
        for name, kinds in ONLY_FOR.items():
            if is_set[name] and kind not in kinds:
                raise ValueError(f"{name} is read by {' and '.join(kinds)} only, got kind='{kind}'; leave it out")
        self.dim, self.max_len, self.kind, self.max_freq = dim, max_len, kind, max_freq
        self.centres, self.scale, self.seed, self.hidden = centres, scale, seed, hidden
        self.axes = axes
        if self.has_bands and (axes - 1) * 2 * self.bands >= dim:
            raise ValueError(
                f"dim={dim} leaves no channel for the last of axes={axes}, of which each takes {2 * self.bands}; "
                f"build it with dim={axes * 2 * self.bands}"
            )
        # Numbers and no tensor, because numbers from a seed are not state.
        self.random_frequencies: tuple[float, ...] = ()
        if kind == "gaussian":
            generator = torch.Generator("cpu").manual_seed(seed)
            # Under fake tensors, too, the numbers are real.
            with torch._C._DisableTorchDispatch():
                normal = torch.randn(axes * self.bands, generator=generator, device="cpu", dtype=torch.float64)
                self.random_frequencies = tuple((scale * normal).tolist())
        learned = kind == "learned"
        self.frequency = nn.Parameter(torch.empty(axes, self.bands, device=device, dtype=dtype)) if learned else None
        self.inner = nn.Linear(2 * self.bands, hidden, device=device, dtype=dtype) if learned else None
        self.outer = nn.Linear(hidden, dim, device=device, dtype=dtype) if learned else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.frequency is not None and self.inner is not None and self.outer is not None:
            nn.init.normal_(self.frequency, std=self.scale)
            self.inner.reset_parameters()
            self.outer.reset_parameters()

    @property
    def has_bands(self) -> bool:
        """Whether each axis has its own frequencies, rather than each frequency a direction over all axes."""
        return self.kind in ("linear", "log2")

    @property
    def bands(self) -> int:
        """The number of frequencies K, of each axis for linear and log2, else of all."""
        return math.ceil(self.dim / (2 * (self.axes or 1) if self.has_bands else 2))

    @property
    def frequencies(self) -> Tensor:
        """The frequencies in half turns over the frame, float64: [K], or [axes, K] where each has a direction."""
        return self.frequencies_on(torch.device("cpu"))

    def frequencies_on(self, device: torch.device) -> Tensor:
        """Return the frequencies, computed on a device; learned ones stay on theirs."""
        if self.frequency is not None:
            return self.frequency.double() / math.pi
        if self.kind == "gaussian":
            return 2 * number_tensor(self.random_frequencies, torch.float64, device).view(-1, self.bands)
        half = (self.max_len if self.max_freq is None else self.max_freq) / 2
        step = torch.arange(self.bands, dtype=torch.float64, device=device) / max(self.bands - 1, 1)
        return 1 + step * (half - 1) if self.kind == "linear" else half**step

    def frame(self, coords: Tensor) -> Tensor:
        """Return positions in the frame from -1 to 1, float64."""
        if self.centres:
            return (2 * coords + 1) / self.max_len - 1
        return 2 * coords / max(self.max_len - 1, 1) - 1

    def encode(self, at: Positions) -> Tensor:
        """Return the encoding [B or 1, T, dim] in float64."""
        coords = at.coordinates(self.axes, self)
        coords = coords[..., None] if self.axes == 1 else coords  # [B, T, A]
        place = self.frame(exact(coords))
        frequencies = self.frequencies_on(place.device).to(place.device)
        if self.has_bands:
            angle = math.pi * place[..., None] * frequencies  # [B, T, A, K]
            return torch.cat((angle.sin(), angle.cos()), -1).flatten(2)[..., : self.dim]
        angle = math.pi * (place[..., None] * frequencies).sum(-2)  # [B, T, K]
        if self.inner is None or self.outer is None:
            return torch.cat((angle.sin(), angle.cos()), -1)[..., : self.dim]
        waves = torch.cat((angle.cos(), angle.sin()), -1) / math.sqrt(2 * self.bands)
        hidden = F.gelu(F.linear(waves, self.inner.weight.to(waves), self.inner.bias.to(waves)))
        return F.linear(hidden, self.outer.weight.to(waves), self.outer.bias.to(waves))

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        checks.dim(self, x)
        return x + self.encode(at).to(x.dtype).to(x.device)

    def formula_added(self, position, channel: int) -> float:
        place = [position] if self.axes == 1 else position
        n, dim = self.max_len, self.dim
        u = [2 * (p + 0.5) / n - 1 if self.centres else 2 * p / (n - 1 or 1) - 1 for p in place]
        if self.kind in ("linear", "log2"):
            bands = math.ceil(dim / (2 * len(place)))
            axis, rest = divmod(channel, 2 * bands)
            wave, k = divmod(rest, bands)
            top, share = (n if self.max_freq is None else self.max_freq) / 2, k / (bands - 1 or 1)
            frequency = 1 + share * (top - 1) if self.kind == "linear" else 2 ** (share * math.log2(top))
            return (math.sin, math.cos)[wave](math.pi * frequency * u[axis])
        bands = math.ceil(dim / 2)
        if self.kind == "gaussian":
            wave, k = divmod(channel, bands)
            return (math.sin, math.cos)[wave](2 * math.pi * dot_product(u, self.random_frequencies[k::bands]))
        assert self.frequency is not None and self.inner is not None and self.outer is not None
        angles = [dot_product(u, w) for w in self.frequency.T.tolist()]
        waves = [wave(angle) / math.sqrt(2 * bands) for wave in (math.cos, math.sin) for angle in angles]
        layer = zip(self.inner.weight.tolist(), self.inner.bias.tolist(), strict=True)
        neurons = [dot_product(weights, waves) + bias for weights, bias in layer]
        hidden = [z * 0.5 * (1 + math.erf(z / math.sqrt(2))) for z in neurons]
        return dot_product(self.outer.weight[channel].tolist(), hidden) + self.outer.bias[channel].item()
