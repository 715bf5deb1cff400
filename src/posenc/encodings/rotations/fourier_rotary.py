"""FoPE: rotary (RoPE) with mixtures of frequencies, without waves longer than the trained length."""

import math
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.channel_pairs import LAYOUTS, channels_of_pairs, multiply_pairs
from posenc.encoding.precision import exact
from posenc.encodings.rotations import TurnedByHead, Waves, plain_frequencies, quotient
from posenc.kernels.rotation.rotate_pairs import rotate_pairs, rotation_dtype
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import constant

SILENCED_FORMS = ("passed", "doubled")


@dataclass(frozen=True)
class InitialMixtures:
    """Initial mixtures [2, heads or 1, K, K]: identity plus seeded noise. They are CPU float64, no module state."""

    waves: int
    heads: int
    per_head: bool
    gain: float
    seed: int
    mixtures: Tensor = field(init=False, compare=False)

    def __post_init__(self) -> None:
        K, heads = self.waves, self.heads if self.per_head else 1
        generator = torch.Generator("cpu").manual_seed(self.seed)
        noise = torch.randn(2, heads, K, K, generator=generator, dtype=torch.float64, device="cpu")
        deviation = self.gain * math.sqrt(2 / (K * (K + heads)) if self.per_head else 1 / K)
        mixtures = torch.eye(K, dtype=torch.float64, device="cpu") + deviation * noise
        object.__setattr__(self, "mixtures", mixtures)


class FourierRotary(Waves, TurnedByHead):
    """Rotary with a mixture of waves in each pair, none longer than the trained length.

    frequency_k = base^(-2k/d), kept while its wavelength 2 pi / frequency_k is at most trained_length; K of them
    cos_k(p) = sum_f A[h, f, k] cos(p frequency_f),   sin_k(p) = sum_f B[h, f, k] sin(p frequency_f),   f, k < K
    (a, b) -> (a cos_k - b sin_k,  b cos_k + a sin_k) in queries and keys; A and B begin as the identity plus noise

    heads           number of query heads
    head_dim        width of one head, d (channels)
    trained_length  the trained length (positions)
    base            ratio that sets the longest wavelength (unitless, above 1)
    layout          which channels form a pair: "half" (k with k + d/2; the released code) or "interleaved" (2k with 2k
                    + 1)
    gain            strength of the noise: deviation gain sqrt(2 / (K (K + heads))), which is what Xavier's rule makes
                    of the released code's tensors [heads, K, K] (0.3 at 60 M parameters, 0.6 at 1.2 B)
    per_head        whether every query head has mixtures of its own. With fewer key heads than query heads, keys are
                    then repeated for their queries, and a cache holds them so
    learned         whether the mixtures are trained (and every layer has its own); the released ones are frozen noise
    silenced        treatment of the pairs whose frequency is dropped: "passed" leaves them unchanged (the paper's
                    frequency zero: cosine 1, sine 0; vLLM); "doubled" does as the released code, whose sine is 1 as
                    well: both sides turn by 45 degrees and grow by sqrt(2), so that these pairs count twice in the
                    logit
    seed            of the noise (a frozen mixture is the same in all layers; the released code draws anew for each)

    What differs: the paper may draw other frequencies besides those of rotary; its released settings do not. The
    released code mixes at most d/4 pairs, and where more frequencies are kept, spreads the identity over every second
    or third of them, so that the last mixed pairs hold noise alone; here, as in vLLM, every kept frequency has its
    pair. vLLM has one mixture for each key head; here each query head has one, and the result is that of repeated keys.

    Where it goes wrong: it is derived from the periodicity of attention, but a logit is no longer a function of the
    distance: the mixtures are no rotation, and moving query and key together changes it (gain=0 brings back rotary
    without its slow pairs). That the coefficients are learned is a misreading: the released code trains none. In its
    own comparison ALiBi has the better perplexity past the trained length; what FoPE keeps is passkey retrieval.

    Raises ValueError for impossible options, a trained_length of 6 or less (no wave fits), and heads that do not fit.
    Source: Hua et al. 2024, arXiv:2412.17739, section 4; released as TsinghuaC3I/Fourier-Position-Embedding.

    >>> FourierRotary(heads=8, head_dim=64, trained_length=512).frequencies.shape
    torch.Size([16])
    """

    equation = r"""
    \cos_k(p) = \sum_{f < K} A_{h,f,k} \cos(p\,\text{frequency}_f), \quad \sin_k(p) = \sum_{f < K} B_{h,f,k}
    \sin(p\,\text{frequency}_f)

    (a, b) \to (a \cos_k - b \sin_k, \; b \cos_k + a \sin_k)
    """
    source = "Hua et al. 2024, arXiv:2412.17739, section 4"
    also_called = ("fope", "fourier_position_embedding")
    extrapolates = "Claimed steady passkey retrieval from 512 trained tokens to 8,192; ALiBi's perplexity stays better."
    between = ()

    def __init__(
        self,
        heads: int,
        head_dim: int,
        trained_length: int,
        *,
        base: float = 10_000.0,
        layout: str = "half",
        gain: float = 0.3,
        per_head: bool = True,
        learned: bool = False,
        silenced: str = "passed",
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads)
        checks.even("head_dim", head_dim)
        checks.at_least("trained_length", trained_length, 7, ", since the shortest wave takes 2 pi = 6.28 positions")
        checks.above("base", base, 1)
        checks.one_of("layout", layout, LAYOUTS)
        checks.at_least("gain", gain, 0)
        checks.one_of("silenced", silenced, SILENCED_FORMS)
        checks.whole("seed", seed, 0)
        self.heads, self.head_dim, self.trained_length = heads, head_dim, trained_length
        self.base, self.layout = base, layout
        self.gain, self.per_head, self.learned, self.silenced, self.seed = gain, per_head, learned, silenced, seed
        self.waves = sum(2 * math.pi * base ** (2 * k / head_dim) <= trained_length for k in range(head_dim // 2))
        self.per_layer = learned
        if not per_head:
            self.doors = self.doors - {"attend"}
        self.initial = InitialMixtures(self.waves, heads, per_head, gain, seed)
        if learned:
            shape = self.initial.mixtures.shape[1:]
            self.cos_mixture = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.sin_mixture = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.learned:
            cos, sin = self.initial.mixtures
            with torch.no_grad():
                self.cos_mixture.copy_(cos)
                self.sin_mixture.copy_(sin)

    @property
    def mixtures(self) -> Tensor:
        """A and B, stacked: [2, heads or 1, K, K]."""
        return torch.stack((self.cos_mixture, self.sin_mixture)) if self.learned else self.initial.mixtures

    def frequencies_on(self, device: torch.device | str) -> Tensor:
        """Return the frequencies that are kept (radians per position), float64, fastest first."""
        return plain_frequencies(self.base, self.head_dim, device)[: self.waves]

    def rotated(self, x: Tensor, at: Positions) -> Tensor:
        cos, sin = self.once(self.table, at, rotation_dtype(x), x.device)
        return rotate_pairs(x, cos, sin, self.layout)

    def table(self, at: Positions, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the complex factors of the pairs, [2, B or 1, heads or 1, T, d/2]."""
        coords = exact(at.axis(self))
        angle = coords[:, None, :, None] * self.frequencies_on(coords.device)  # [B or 1, 1, T, K]
        mixtures = self.mixtures
        if not self.learned:
            mixtures = constant(self.initial, coords.device, lambda: self.initial.mixtures.to(coords.device))
        cos, sin = torch.stack((angle.cos(), angle.sin())) @ mixtures.to(coords.device).double()[:, None]
        rest = (0, self.head_dim // 2 - angle.shape[-1])
        cos = F.pad(cos, rest, value=1.0)
        sin = F.pad(sin, rest, value=0.0 if self.silenced == "passed" else 1.0)
        return torch.stack((cos, sin)).to(dtype).to(device)

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        cos, sin = quotient(self.table, old_at, new_at, k).unbind(0)
        return rotate_pairs(k, cos, sin, self.layout)

    def formula_query(self, q, position, head=0) -> list[float]:
        plain = [self.base ** (-2 * p / self.head_dim) for p in range(self.head_dim // 2)]
        frequencies = [frequency for frequency in plain if 2 * math.pi / frequency <= self.trained_length]
        by_cos, by_sin = cast(list, self.mixtures[:, head if self.per_head else 0].tolist())
        factors = [complex(1.0, 0.0 if self.silenced == "passed" else 1.0)] * len(plain)
        for p in range(len(frequencies)):
            cos = math.fsum(by_cos[f][p] * math.cos(position * w) for f, w in enumerate(frequencies))
            sin = math.fsum(by_sin[f][p] * math.sin(position * w) for f, w in enumerate(frequencies))
            factors[p] = complex(cos, sin)
        return multiply_pairs(q, factors, channels_of_pairs(len(plain), self.layout))

    def formula_key(self, k, position, head=0) -> list[float]:
        return self.formula_query(k, position, head)
