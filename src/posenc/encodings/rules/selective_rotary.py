"""Selective RoPE: rotary whose angles are sums of learned steps of the tokens between."""

import math
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import AttentionOutput, Encoding
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.channel_pairs import LAYOUTS, PairsTurned
from posenc.encoding.keys import Keys
from posenc.encoding.precision import has_float64, without_autocast
from posenc.encodings.rotations import cos_sin, plain_frequencies
from posenc.kernels.reference import fit_heads
from posenc.kernels.rotation.rotate_pairs import rotate_both, rotate_pairs, rotation_dtype
from posenc.kernels.sums_in_order import sums_of
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

GATES = ("none", "head", "pair")


class SelectiveRotary(PairsTurned, Encoding):
    """Turn channel pairs by the summed angles of all tokens so far, computed from their content.

    angle_t = temperature_k gate_t (phi_t + exp(drift)),   phi_t = up down x_t sqrt(heads) / |x_t|     (radians)
    turn_t  = sum of angle_l over the tokens l of the same document with order_l <= order_t
    q_i and k_j are turned by turn_i and turn_j, so that a logit reads the sum of the angles after j, up to i.

    dim                  width of the model (channels)
    heads                number of query heads
    head_dim             width of one head, d (channels)
    base                 temperature_k = temperature base^(-2k/d), k = 0..d/2-1; 500,000 in the released code
    layout               which channels form a pair: "half" (k with k + d/2; the released code) or "interleaved"
    rank                 width of the bottleneck between down and up (channels); 32 in the released experiments
    drift                whether every token turns by a learned step too, one for each head and pair. It begins at
                         exp(0) = 1, which is rotary with this base and phi on top
    gate                 sigmoid(W x_t) on the angles: "none", "head" (one for each head; the paper's phase gate), or
                         "pair" (one for each head and pair, through the bottleneck)
    temperature          temperature of the fastest pair (unitless)
    learned_temperature  whether the temperatures are trained; the released experiments freeze them

    What differs: the released code sends phi through a causal convolution over 4 tokens. That mixes neighbours apart
    from attention, which by itself solves recall tasks, and is left out. (Its `skip_conv` takes differences of
    neighbours instead, whose sum is phi_t alone.) It divides each head's slice of x_t by its length; here all of x_t is
    divided by its own, with the same total, since a width need not be a multiple of the heads. Its weight norm and its
    other spectrum of temperatures ("rfa") are left out. The paper's pseudocode reads q, its code and this file x.

    Keys are cached unturned, each with its angles in float32 (as much memory as a key takes for each query head), and
    turned when they are attended to, a shared key once for each query head. Sums are taken in float64. A sum that
    starts anywhere gives the same logits, so padding, packing, cuts and a rolling cache change nothing. Biases
    beside it read queries and keys as they are projected.

    Where it goes wrong: it reads the order of tokens, not their coordinates, so maps of positions (interpolation,
    shifts) do nothing. Without drift phi has no preferred sign, and the turn wanders instead of counting. Its authors
    saw gradient spikes at high learning rates, which the gate calms; beside a forget gate in softmax attention it
    gained nothing over rotary on average (47.2 against 48.0, and 48.1 with the gate), and how it extrapolates in
    language they left out of scope.

    Raises ValueError for impossible options and heads that do not fit.
    Source: Movahedi et al. 2025, arXiv:2511.17388, sections 3.3 and 4.1; released as timurcarstensen/selective-rope.

    >>> SelectiveRotary(dim=32, heads=4, head_dim=8, rank=3).to_angle[-1]
    Linear(in_features=3, out_features=16, bias=False)
    """

    equation = r"""
    \text{turn}_t = \sum_{\text{order}_l \le \text{order}_t} \text{angle}_l

    \text{angle}_t = \text{temperature}_k \, \text{gate}_t \, (\phi_t + \exp(\text{drift})), \quad \phi_t = \text{up}
    \, \text{down} \, x_t \frac{\sqrt{\text{heads}}}{|x_t|}
    """
    source = "Movahedi et al. 2025, arXiv:2511.17388, sections 3.3 and 4.1"
    also_called = ("selective_rope", "selective_rotary_position_embedding")
    extrapolates = "Claimed for copying and parity in gated linear attention; not investigated in language."
    per_layer = True
    between = ("selective_rotary",)

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        base: float = 500_000.0,
        layout: str = "half",
        rank: int = 16,
        drift: bool = False,
        gate: str = "none",
        temperature: float = 1.0,
        learned_temperature: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, heads=heads, rank=rank)
        checks.even("head_dim", head_dim)
        checks.above("base", base, 1)
        checks.one_of("layout", layout, LAYOUTS)
        checks.one_of("gate", gate, GATES)
        checks.above("temperature", temperature, 0)
        self.dim, self.heads, self.head_dim, self.base, self.layout = dim, heads, head_dim, base, layout
        self.rank, self.drift, self.gate = rank, drift, gate
        self.temperature, self.learned_temperature = temperature, learned_temperature
        pairs, angles = head_dim // 2, heads * (head_dim // 2)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.to_angle = nn.Sequential(
            nn.Linear(dim, rank, bias=False, **factory), nn.Linear(rank, angles, bias=False, **factory)
        )
        self.to_gate = nn.Sequential()
        if gate == "head":
            self.to_gate.append(nn.Linear(dim, heads, **factory))
        elif gate == "pair":
            self.to_gate.append(nn.Linear(dim, rank, bias=False, **factory)).append(nn.Linear(rank, angles, **factory))
        self.log_drift = nn.Parameter(torch.empty(heads, pairs, **factory)) if drift else None
        self.temperatures = nn.Parameter(torch.empty(pairs, **factory)) if learned_temperature else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (*linears(self.to_angle), *linears(self.to_gate)):
            linear.reset_parameters()
        if self.log_drift is not None:
            nn.init.zeros_(self.log_drift)
        if self.temperatures is not None:
            with torch.no_grad():
                self.temperatures.copy_(self.spectrum())

    def spectrum(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the published temperature of each pair, float64."""
        return self.temperature * plain_frequencies(self.base, self.head_dim, device)

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        """Return the angle [B, heads, T, pairs] of each token (radians)."""
        checks.dim(self, x)
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        # Angles add up over the whole sequence, and so would the errors of half precision.
        with without_autocast(x):
            x = x.to(dtype)
            x = x * torch.rsqrt(x.square().sum(-1, keepdim=True) / self.heads + 1e-6)
            angle = apply_linears(self.to_angle, x).unflatten(-1, (self.heads, -1))  # [B, T, heads, pairs]
            if self.log_drift is not None:
                angle = angle + self.log_drift.to(dtype).exp()
            if self.gate != "none":
                angle = angle * apply_linears(self.to_gate, x).sigmoid().unflatten(-1, (self.heads, -1))
            temperatures = self.temperatures
            if temperatures is None:
                temperatures = self.spectrum(x.device if has_float64(x.device) else "cpu")
            angle = angle * temperatures.to(x.device, dtype)
        return {"selective_rotary": angle.transpose(1, 2)}

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        checks.heads(self, q)
        checks.head_dim(self, q)
        to_query, to_key = sums_of("selective_rotary", at, keys)  # [B, heads * pairs, T] and [..., S]
        k, v = fit_heads(q, keys.k, keys.v)
        # Rotated queries alone depend on where the sums began, so biases beside it read unrotated queries and keys.
        biases = [bias for part in kernel.other_parts for bias in part.biases(q, at, keys)]
        if to_query is to_key and q.dtype == k.dtype:
            rotated_q, k = rotate_both(q, k, self.table(q, to_key), self.layout)
        else:
            rotated_q, k = self.rotated(q, to_query), self.rotated(k, to_key)
        return replace(kernel, other_parts=())(self, rotated_q, at, replace(keys, k=k, v=v), mask, biases=biases)

    def rotated(self, x: Tensor, turns: Tensor) -> Tensor:
        return rotate_pairs(x, *self.table(x, turns).unbind(0), self.layout)

    def table(self, x: Tensor, turns: Tensor) -> Tensor:
        """Return cosines and sines [2, B, heads, T, pairs] of turns [B, heads * pairs, T]. x decides their dtype."""
        # Made contiguous here, while it is one tensor, and not as cosine and sine.
        angle = turns.unflatten(1, (self.heads, -1)).transpose(2, 3).contiguous()
        return cos_sin(angle, 1.0, rotation_dtype(x), x.device)

    def formula_turned(self, x, position, head, side):
        # The turn belongs to the pair: biases beside this one read the query and the key as they are.
        return x

    def formula_logits(self, query, keys, head, scale) -> list[float]:
        logits = []
        for key in keys:
            # A later key is rotated against the query by the sum of the steps up to it.
            first, last, sign = (key, query, 1) if key.order <= query.order else (query, key, -1)
            path = [token for token in keys if first.order < token.order <= last.order]
            steps = [token.memo["selective_rotary"] for token in path]
            angles = [sign * math.fsum(angle[p] for angle in steps) for p in range(self.head_dim // 2)]
            logits.append(scale * self.formula_product(query.vector, key.vector, angles))
        return logits


def linears(sequence: nn.Sequential) -> list[nn.Linear]:
    return cast(list[nn.Linear], list(sequence))


def apply_linears(sequence: nn.Sequential, x: Tensor) -> Tensor:
    """Apply linear maps to x one after the other, in x's dtype."""
    for linear in linears(sequence):
        x = F.linear(x, linear.weight.to(x.dtype), None if linear.bias is None else linear.bias.to(x.dtype))
    return x
