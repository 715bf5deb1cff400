"""Contextual position encoding (CoPE)."""

import math

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, Counts
from posenc.encoding.formulas import dot_product
from posenc.encoding.interpolation import interpolate
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, look_up
from posenc.kernels.sums_in_order import sums_after
from posenc.tokens.masks import causal
from posenc.tokens.positions import Positions


class Contextual(Encoding):
    """Count only the tokens that the query selects, and give each key its count's vector.

    g_ij = sigmoid(q_i . k_j / sqrt(head_dim))                      the gate of one pair, in each head
    p_ij = min(sum of g_il over order_j <= order_l <= order_i, positions - 1)
    logit(i, j) = scale * q_i . k_j + q_i . e(p_ij) / sqrt(head_dim)

    e(p) mixes the two neighbouring rows of a table linearly. The table [positions, head_dim] is shared by the heads of
    a layer, as in the authors' code, and starts as zeros; every layer has its own. With all gates at one, p is the
    distance plus one.

    head_dim   width of one head (channels)
    positions  number of vectors, for the counts 0 to positions - 1
    divided    whether the position's term is divided by sqrt(head_dim), as published; else it is added to the scaled
               logit as it is (the authors' flag --cope-nodiv)

    Gates read queries and keys as attention does, after other encodings have turned them. They go by `order` within a
    document; a key after the query is not counted and has an empty sum, position 0. Separate projections for the gates
    are left out.

    Where it goes wrong: the gate belongs to the pair, not to the token; a linear layer that gives each token one gate
    is another encoding. Gates differ for every pair, so the time is that of all pairs up to the last position of each
    query. Counts past the last position are all alike. The name CoPE was given again in 2026, to a clipped rotary
    encoding.

    Raises ValueError for a width below 1 or fewer than two positions, and heads of another width.
    Source: Golovneva et al. 2024, arXiv:2405.18719, sections 4 and 5; code in facebookresearch/RAM, projects/cope.

    >>> Contextual(8, positions=16).table.shape
    torch.Size([16, 8])
    """

    equation = r"""
    g_{ij} = \operatorname{sigmoid}\left( \frac{q_i \cdot k_j}{\sqrt{\text{head dim}}} \right)

    p_{ij} = \min\Bigl( \sum_{\text{order}_j \le \text{order}_l \le \text{order}_i} g_{il}, \; \text{positions} - 1
    \Bigr)

    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + \frac{q_i \cdot e(p_{ij})}{\sqrt{\text{head dim}}}
    """
    source = "Golovneva et al. 2024, arXiv:2405.18719, sections 4 and 5; code in facebookresearch/RAM, projects/cope"
    also_called = ("contextual_position", "contextual_cope")
    extrapolates = "Claimed for counting and selective copying, where the count and not the distance matters."
    per_layer = True
    reads_keys = True
    queries_together = 1

    def __init__(
        self,
        head_dim: int,
        *,
        positions: int = 64,
        divided: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(head_dim=head_dim)
        checks.at_least("positions", positions, 2, " (the counts 0 and 1)")
        self.head_dim, self.positions, self.divided = head_dim, positions, divided
        self.table = nn.Parameter(torch.empty(positions, head_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table)

    def position(self, q: Tensor, at: Positions, keys: Keys) -> Tensor:
        """Return the count from query to key [B, H, T, S], 0 to positions - 1."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        k = keys.k.repeat_interleave(q.shape[1] // keys.k.shape[1], 1)
        gates = (q.to(dtype) @ k.to(dtype).transpose(-1, -2) * self.head_dim**-0.5).to(dtype).sigmoid()
        gates = gates.masked_fill(~causal().allowed(at, keys.at), 0.0)
        return (gates + sums_after(gates, keys.at)).clamp(max=self.positions - 1)

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        assert q is not None
        checks.head_dim(self, q)
        # It counts the keys between a key and its query.
        return [Counts(self.score_mod, q, at, keys, rate=self.head_dim**-0.5, table=self.position_logits)]

    def position_logits(self, q: Tensor) -> Tensor:
        """Return the bias of each query at each position, [B, H, T, positions]."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        logits = q.to(dtype) @ self.table.to(dtype).T
        return logits * self.head_dim**-0.5 if self.divided else logits

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        position, table = self.position(q, at, keys), self.position_logits(q)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            p = look_up(position, b, h, i, j)
            return score + interpolate(lambda row: look_up(table, b, h, i, row), p, self.positions - 1).to(score.dtype)

        return score_mod

    def formula_logits(self, query, keys, head, scale) -> list[float]:
        logits, q, root = super().formula_logits(query, keys, head, scale), query.vector, math.sqrt(self.head_dim)
        rows = [dot_product(q, row) for row in self.table.tolist()]
        past = [key for key in keys if key.order <= query.order]
        gates = {key.order: (1 + math.tanh(dot_product(q, key.vector) / root / 2)) / 2 for key in past}
        for index, key in enumerate(keys):
            count = math.fsum(gate for order, gate in gates.items() if order >= key.order)
            p = min(count, self.positions - 1)
            term = (1 - p % 1) * rows[math.floor(p)] + p % 1 * rows[math.ceil(p)]
            logits[index] += term / root if self.divided else term
        return logits
