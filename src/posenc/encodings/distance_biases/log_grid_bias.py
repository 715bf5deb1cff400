"""Log-spaced continuous position bias."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.formulas import dot_product
from posenc.encoding.precision import without_autocast


class LogGridBias(Encoding):
    """Add to each logit a small network's output for the logarithmic distance on each axis.

    logit(i, j) = scale * q_i . k_j + 16 sigmoid(f_h(x)),  x = sign(u) log2(1 + |u|) / log2(8),  u = 8 (m_i - n_j)/(W-1)

    f is a network axes - width - ReLU - heads whose last layer has no bias. The largest distance inside the window W
    becomes log2(9)/3 = 1.06, and one eight times as large 2.01, so that a model can be run on larger windows than it
    was trained on. Every layer has its own.

    heads   number of heads
    window  the trained window W, the same on every axis (positions); it stays when the picture grows
    axes    number of coordinates of a position
    width   neurons of the hidden layer

    Swin-V2 uses it with cosine attention (logit scale at most 100), which is not a part of it.

    Where it goes wrong: biases lie between 0 and 16, so they cannot shut a key out, only prefer others by e^16. At
    whole positions the network is evaluated once for each distinct distance, at fractional ones for every pair of
    tokens.

    Raises ValueError for a window below 2 and for fewer than one head, axis or neuron.
    Source: Liu et al. 2021, arXiv:2111.09883, section 3.3.

    >>> LogGridBias(4).bias(torch.zeros(1, 3, 2)).shape
    torch.Size([1, 4, 3, 3])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + 16 \operatorname{sigmoid}(f_h(x))

    x = \operatorname{sign}(u) \frac{\log_2(1 + |u|)}{\log_2\, 8}, \quad u = \frac{8 \, (m_i - n_j)}{W - 1}
    """
    source = "Liu et al. 2021, arXiv:2111.09883, section 3.3"
    also_called = ("log_cpb", "cpb", "continuous_position_bias")
    extrapolates = "Claimed: to larger windows than trained, with little or no fine-tuning; not verified here."
    used_by = "Swin-V2"
    per_layer = True

    def __init__(
        self,
        heads: int,
        *,
        window: int = 8,
        axes: int = 2,
        width: int = 512,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.at_least("window", window, 2)
        checks.sizes(heads=heads, axes=axes, width=width)
        self.heads, self.window, self.axes, self.width = heads, window, axes, width
        self.hidden = nn.Linear(axes, width, device=device, dtype=dtype)
        self.out = nn.Linear(width, heads, bias=False, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        self.hidden.reset_parameters()
        self.out.reset_parameters()

    def log_scale(self, delta: Tensor) -> Tensor:
        """Return distances (positions) on the network's logarithmic scale."""
        x = delta * (8 / (self.window - 1))
        return x.sign() * x.abs().log1p() / math.log(8)

    def by_distance(self, delta: Tensor) -> Tensor:
        delta = delta if self.axes != 1 else delta[..., None]
        dtype = torch.promote_types(self.out.weight.dtype, torch.float32)
        dtype = torch.promote_types(dtype, delta.dtype) if delta.is_floating_point() else dtype
        x = self.log_scale(delta.to(dtype))
        # Autocast would take distances in bfloat16.
        with without_autocast(x):
            hidden = F.linear(x, self.hidden.weight.to(dtype), self.hidden.bias.to(dtype)).relu()
            values = F.linear(hidden, self.out.weight.to(dtype))
        return 16 * values.movedim(-1, 0).sigmoid()

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        query_coords, key_coords = (m, n) if isinstance(m, tuple) else ((m,), (n,))
        u = [8 * (a - b) / (self.window - 1) for a, b in zip(query_coords, key_coords, strict=True)]
        x = [math.copysign(math.log2(1 + abs(d)) / math.log2(8), d) for d in u]
        layer = zip(self.hidden.weight.tolist(), self.hidden.bias.tolist(), strict=True)
        neurons = [max(dot_product(weights, x) + bias, 0.0) for weights, bias in layer]
        value = dot_product(self.out.weight[head].tolist(), neurons)
        return super().formula_logit(q, k, m, n, head, scale) + 8 * (1 + math.tanh(value / 2))
