"""Shaw's relative position representations."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import AttentionOutput, Encoding
from posenc.encoding.biases import Bias, DotProducts, Pairs, Products, ValueVectors, distance_tensor
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.interpolation import interpolate, neighbours
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, look_up
from posenc.kernels.in_rows import in_rows
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions, distance


class Shaw(Encoding):
    """Add to each key, and to each value, a learned vector for its clipped distance from the query.

    logit(i, j) = q_i . (k_j + a_r) / sqrt(head_dim),   z_i = sum_j A_ij (v_j + b_r)
    r = clip(n_j - m_i, -max_distance, max_distance)

    The tables a and b [2 max_distance + 1, head_dim] are shared by the heads of a layer; every layer has its own. The
    term with a is divided by sqrt(head_dim) as published, whatever Attention's `scale` is.

    head_dim      width of one head (channels)
    max_distance  distance (positions) from which all share a vector; 16 in the paper, which calls it k
    values        whether values get their vectors too (b); the paper found keys alone nearly as good
    mutual        whether keys are compared with the vectors too: + k_j . a_r / sqrt(head_dim), as in BERT's
                  "relative_key_query" (its "relative_key" is `values=False`); not in the paper
    std           standard deviation of the initial tables (in units of keys and values; default head_dim^-1/2)

    A fractional distance mixes the two neighbouring vectors linearly. Values need the attention weights, so the sdpa
    kernel serves `values=False` only; in blocks, tokens in a row need those of near keys alone. The tables have
    2 max_distance + 1 rows whatever the length, and no tensor of vectors for all pairs is made: neither parameters nor
    memory grow by a vector for each pair.

    Where it goes wrong: distances past max_distance are all alike, so order is lost there; with it inside the trained
    length it is fast to learn and fairly robust beyond. It is not T5's bias: that is one number for a head and bucket.

    Raises ValueError for a width or max_distance below 1.
    Source: Shaw, Uszkoreit, Vaswani 2018, arXiv:1803.02155, sections 3.1 and 3.2.

    >>> Shaw(8, max_distance=2).key_table.shape
    torch.Size([5, 8])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \frac{q_i \cdot (k_j + a_r)}{\sqrt{\text{head dim}}}, \quad z_i = \sum_j A_{ij} (v_j
    + b_r)

    r = \operatorname{clip}(n_j - m_i, -\text{max distance}, \text{max distance})
    """
    source = "Shaw, Uszkoreit, Vaswani 2018, arXiv:1803.02155, sections 3.1 and 3.2"
    also_called = ("relative", "relative_key", "relative_key_query")
    per_layer = True
    extrapolates = (
        "nothing is claimed; with max_distance inside the trained length our small runs found it fairly robust, while "
        "distances that training never reached have untrained vectors"
    )
    used_by = "Music Transformer; Wav2Vec2-BERT (keys only, other clips on each side); a BERT variant"
    between = ()

    def __init__(
        self,
        head_dim: int,
        *,
        max_distance: int = 16,
        values: bool = True,
        mutual: bool = False,
        std: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(head_dim=head_dim, max_distance=max_distance)
        checks.above("std", std, 0)
        self.head_dim, self.max_distance, self.std = head_dim, max_distance, std
        self.values, self.mutual = values, mutual
        self.reads_keys, self.needs_weights = mutual, values
        if not values:
            self.doors = self.doors - {"attend"}
        self.key_table = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim, device=device, dtype=dtype))
        self.value_table = (
            nn.Parameter(torch.empty(2 * max_distance + 1, head_dim, device=device, dtype=dtype)) if values else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        std = self.head_dim**-0.5 if self.std is None else self.std
        nn.init.normal_(self.key_table, std=std)
        if self.value_table is not None:
            nn.init.normal_(self.value_table, std=std)

    def bucket(self, delta: Tensor) -> Tensor:
        """Return the row of the tables (0 to 2 max_distance) of each signed distance, query minus key (positions)."""
        return (-delta).clamp(-self.max_distance, self.max_distance) + self.max_distance

    def row(self, at: Positions, keys_at: Positions) -> Tensor:
        """Return the row of the tables for each pair [B or 1, T, S] (whole or fractional)."""
        return self.bucket(distance(at, keys_at, self))

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        assert q is not None
        checks.head_dim(self, q)
        if self.mutual:
            return [Pairs(self.score_mod, q, at, keys, reads_between=False)]
        products, limit = partial(self.products, q), int(self.max_distance)
        return [Products(self.score_mod, q, at, keys, products=products, same_beyond=limit)]

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        of_queries = self.table_logits(q)
        of_keys = self.table_logits(keys.k).repeat_interleave(q.shape[1] // keys.k.shape[1], 1) if self.mutual else None
        m, n = (where.axis(self).expand(q.shape[0], -1) for where in (at, keys.at))

        def read(table: Tensor, *index: Tensor) -> Tensor:
            *token, r = index
            return interpolate(lambda whole: look_up(table, *token, whole), r, 2 * self.max_distance)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            r = self.bucket(m[b, i] - n[b, j])
            score = score + read(of_queries, b, h, i, r).to(score.dtype)
            return score if of_keys is None else score + read(of_keys, b, h, j, r).to(score.dtype)

        return score_mod

    def products(self, q: Tensor, distances: range) -> list[DotProducts]:
        """Return the bias of queries at whole distances as dot products."""
        dtype = torch.promote_types(torch.promote_types(q.dtype, self.key_table.dtype), torch.float32)
        return [DotProducts(q.to(dtype) * self.head_dim**-0.5, self.vectors(self.key_table.to(dtype), distances))]

    def vectors(self, table: Tensor, distances: range) -> Tensor:
        """Return the vectors [1, R, head_dim] of whole distances."""
        first = self.max_distance - distances[0]
        if distances.step == -1 and 0 <= first and first + len(distances) <= len(table):
            return table[None, first : first + len(distances)]
        return table[self.bucket(distance_tensor(distances, table.device))][None]

    def table_logits(self, x: Tensor) -> Tensor:
        """Return scaled products [B, H, T, 2 max_distance + 1] with every vector. x is queries or keys [B, H, T, D]."""
        dtype = torch.promote_types(x.dtype, self.key_table.dtype)
        return (x.to(dtype) @ self.key_table.to(dtype).T) * self.head_dim**-0.5

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        if self.value_table is None:
            return kernel(self, q, at, keys, mask)
        checks.head_dim(self, keys.v)
        by_pairs = partial(in_rows, Shaw.by_pairs, self, q, at, keys, mask, kernel)
        vectors = ValueVectors(partial(self.vectors, self.value_table), int(self.max_distance), by_pairs)
        return kernel(self, q, at, keys, mask, biases=[*kernel.biases(self, q, at, keys), vectors])

    def by_pairs(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        """Return the attention output from the weights of every pair."""
        assert self.value_table is not None
        out, weights = kernel(self, q, at, keys, mask, need_weights=True)
        assert weights is not None
        # Sum the weights for each row of the table first: [B, H, T, S] -> [B, H, T, 2 max_distance + 1].
        row = self.row(at, keys.at)[:, None].expand_as(weights)
        # A row collects the weights of all keys past max_distance; half precision would stop counting small ones.
        exact = weights.to(torch.promote_types(weights.dtype, torch.float32))
        by_row = exact.new_zeros((*weights.shape[:-1], 2 * self.max_distance + 1))
        if not row.is_floating_point():
            by_row = by_row.scatter_add(-1, row, exact)
        else:
            low, share = neighbours(row)
            share = share.to(exact.dtype)
            by_row = by_row.scatter_add(-1, low, exact * (1 - share))
            by_row = by_row.scatter_add(-1, (low + 1).clamp(max=2 * self.max_distance), exact * share)
        out = out + (by_row @ self.value_table.to(exact.dtype)).to(out.dtype)
        return out, weights if kernel.need_weights else None

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        queries = [a + b for a, b in zip(q, k, strict=True)] if self.mutual else q
        total = sum(a * self.entry(self.key_table, m, n, channel) for channel, a in enumerate(queries))
        return super().formula_logit(q, k, m, n, head, scale) + total / self.head_dim**0.5

    def formula_value(self, v, m, n, channel) -> float:
        return v[channel] + (0.0 if self.value_table is None else self.entry(self.value_table, m, n, channel))

    def entry(self, table: Tensor, m: float, n: float, channel: int) -> float:
        """Return one channel of the vector for a query at m and a key at n."""
        r = max(-self.max_distance, min(self.max_distance, n - m)) + self.max_distance
        return (1 - r % 1) * table[math.floor(r), channel].item() + r % 1 * table[math.ceil(r), channel].item()
