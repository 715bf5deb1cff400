"""Dynamic position bias."""

import math
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.formulas import dot_product
from posenc.encoding.precision import without_autocast

DEEPEST = 100
"""The most hidden layers: a spec from elsewhere must not ask for a million."""


class MLPBias(Encoding):
    """Add to each logit a small network's output for the signed distance, on one axis or several.

    logit(i, j) = scale * q_i . k_j + f_h(d),  d = m_i - n_j on each axis, or sign(d) ln(1 + |d|)

    f is a network axes - width - ... - width - heads with `depth` hidden layers and SiLU between them. Every layer of
    the model has its own.

    heads  number of heads
    width  neurons of each hidden layer; a quarter of the model's width in the paper
    depth  number of hidden layers
    log    whether distances enter through the logarithm
    axes   number of coordinates of a position: 1 for text, 2 for pictures

    The paper has two axes, and a layer norm and ReLU in front of each layer; this is the form of x_transformers, which
    reads contiguous keys only.

    Where it goes wrong: a network of raw distances is linear in them far out, so past the trained length the bias
    rises or falls without bound; the logarithm tames that and no more. With given positions the hidden layer of every
    pair of tokens is in memory; tokens in a row need only 2 T - 1 distances.

    Raises ValueError for fewer than one head, neuron, layer or axis, and for more than 100 layers.
    Source: Wang et al. 2021, CrossFormer, arXiv:2108.00154, section 3.2.2.

    >>> MLPBias(4, axes=2).bias(torch.zeros(1, 3, 2)).shape
    torch.Size([1, 4, 3, 3])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + f_h(d)

    d = m_i - n_j \quad \text{or} \quad \operatorname{sign}(m_i - n_j) \ln(1 + |m_i - n_j|)
    """
    source = "Wang et al. 2021, CrossFormer, arXiv:2108.00154, section 3.2.2"
    also_called = ("dynamic_position_bias", "dpb", "mlp_relative_bias")
    extrapolates = "Nothing is claimed: the network never saw longer distances; the logarithm brings them nearer."
    per_layer = True

    def __init__(
        self,
        heads: int,
        *,
        width: int = 32,
        depth: int = 2,
        log: bool = False,
        axes: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(heads=heads, width=width, depth=depth, axes=axes)
        if depth > DEEPEST:
            raise ValueError(f"depth must be at most {DEEPEST}, got {depth}")
        self.heads, self.width, self.depth, self.log, self.axes = heads, width, depth, log, axes
        sizes = [axes, *[width] * depth, heads]
        self.layers = nn.ModuleList(nn.Linear(a, b, device=device, dtype=dtype) for a, b in pairwise(sizes))

    def reset_parameters(self) -> None:
        for layer in self.network:
            layer.reset_parameters()

    @property
    def network(self) -> list[nn.Linear]:
        """The layers, from the distance to the heads."""
        return cast(list[nn.Linear], list(self.layers))

    def by_distance(self, delta: Tensor) -> Tensor:
        x = delta if self.axes != 1 else delta[..., None]
        dtype = torch.promote_types(self.network[0].weight.dtype, torch.float32)
        x = x.to(torch.promote_types(dtype, x.dtype) if x.is_floating_point() else dtype)
        if self.log:
            x = x.sign() * x.abs().log1p()
        # Autocast would take distances in bfloat16.
        with without_autocast(x):
            for index, layer in enumerate(self.network):
                x = F.linear(F.silu(x) if index else x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
        return x.movedim(-1, 0)

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        query_coords, key_coords = (m, n) if isinstance(m, tuple) else ((m,), (n,))
        x = [a - b for a, b in zip(query_coords, key_coords, strict=True)]
        if self.log:
            x = [math.copysign(math.log(1 + abs(d)), d) for d in x]
        for index, layer in enumerate(self.network):
            x = [a / (1 + math.exp(-a)) if a > -700 else 0.0 for a in x] if index else x
            rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            x = [dot_product(row, x) + bias for row, bias in rows]
        return super().formula_logit(q, k, m, n, head, scale) + x[head]
