"""DeBERTa's disentangled attention."""

import math
from bisect import bisect_left
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, DotProducts, Products, distance_tensor, distances_between, facts_of
from posenc.encoding.formulas import dot_product
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, at_token, look_up
from posenc.tokens.positions import Positions, distance
from posenc.tokens.shared_tables import number_tensor

TERMS = ("both", "content_to_position", "position_to_content")


class DeBERTa(Encoding):
    """Compare queries with distances and distances with keys; content and position have their own projections.

    logit(i, j) = scale * q_i . k_j + (q_i . W_K P[d(i, j)] + k_j . (W_Q P[d(j, i)] + c)) / sqrt(head_dim (1 + terms))
    d(i, j) = clip(bucket(m_i - n_j), -buckets, buckets - 1) + buckets

    bucket keeps distances up to half = buckets // 2 as they are; beyond, a distance x counts as
    sign(x) (half + ceil(ln(|x| / half) / ln((max_distance - 1) / half) (half - 1))). P [2 buckets, dim] is the table of
    relative positions, W_K and W_Q map dim channels to those of all heads, and c is W_Q's bias.

    dim           width of the table (channels), that of the model in the paper
    heads         number of query heads
    head_dim      width of one head (channels)
    buckets       rows of the table on each side: 256 in versions 2 and 3, 512 in version 1
    max_distance  the distance (positions) where the logarithmic buckets end; 512 in versions 2 and 3, None in
                  version 1: every distance has its own row up to `buckets`
    terms         "both", "content_to_position" (q_i with P alone) or "position_to_content" (k_j with P alone)
    mirror        True reads P[d(j, i)] for the keys, as in the paper. False reads P[d(i, j)] there too, as the released
                  code does: its comment says otherwise, but models were trained so; choose it for released weights
    std           standard deviation of the initial table, W_K and W_Q

    Where each square root goes: the terms here are divided by sqrt(head_dim (1 + terms)), sqrt(3 head_dim) with both.
    The paper divides the content's logit by the same; that is Attention's `scale`, whose default is head_dim^-1/2.

    Bucket edges are decided in exact integer arithmetic. A fractional distance counts as the whole one next to it away
    from zero, as in the logarithmic buckets.

    What differs from the paper: DeBERTa shares P between layers; here each layer holds its own, so load the same table
    into each (versions 2 and 3 pass it through a LayerNorm first: load its output). `share_att_key` (versions 2 and 3)
    uses the content's own projections: load Attention's k_proj.weight as W_K, q_proj's weight and bias as W_Q and c.
    A bias of W_K is the same for all keys, so the softmax drops it, and it is left out.

    Where it goes wrong: distances past the last bucket are all alike, and nothing was learned there. Key content enters
    the bias, so it is no fixed tensor that could be computed once.

    Raises ValueError for widths or heads below 1, fewer than 2 buckets (4 with max_distance), a max_distance that
    leaves no room for the logarithmic buckets, unknown terms, and other heads than it was built for.
    Source: He, Liu, Gao, Chen 2020, arXiv:2006.03654, section 3.2; He, Gao, Chen 2021, arXiv:2111.09543.

    >>> encoding = DeBERTa(dim=8, heads=2, head_dim=4)
    >>> encoding.bucket(torch.tensor([0, -5, 128, 129, 200, 300, 511])).tolist()
    [0, -5, 128, 129, 169, 207, 255]
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + \frac{q_i \cdot W_K P[d(i, j)] + k_j \cdot (W_Q P[d(j,
    i)] + c)}{\sqrt{\text{head dim} \, (1 + \text{terms})}}

    d(i, j) = \operatorname{clip}(\operatorname{bucket}(m_i - n_j), -\text{buckets}, \text{buckets} - 1) +
    \text{buckets}
    """
    source = "He, Liu, Gao, Chen 2020, arXiv:2006.03654, section 3.2"
    also_called = ("disentangled", "disentangled_attention", "deberta_v2", "deberta_v3")
    per_layer = True
    reads_keys = True
    extrapolates = "not claimed: distances past the last bucket share its row"
    used_by = "DeBERTa, DeBERTa-v2, DeBERTa-v3"
    between = ()

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        buckets: int = 256,
        max_distance: int | None = 512,
        terms: str = "both",
        mirror: bool = True,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, heads=heads, head_dim=head_dim)
        checks.at_least("buckets", buckets, 2 if max_distance is None else 4)
        buckets = int(buckets)
        if max_distance is not None:
            if not max_distance > buckets // 2 + 1:
                raise ValueError(
                    f"max_distance must be above {buckets // 2 + 1}, where the logarithmic buckets "
                    f"begin, or None for a row for every distance, got {max_distance}"
                )
            max_distance = int(max_distance)
        checks.one_of("terms", terms, TERMS)
        checks.above("std", std, 0)
        self.dim, self.heads, self.head_dim, self.buckets = dim, heads, head_dim, buckets
        self.max_distance, self.terms, self.mirror, self.std = max_distance, terms, mirror, std
        # Computed once, because every block of queries needs them and the powers are long integers.
        self.edges = edges_of(buckets, max_distance)
        self.table = nn.Parameter(torch.empty(2 * buckets, dim, device=device, dtype=dtype))
        width = heads * head_dim
        self.to_key = nn.Linear(dim, width, False, device, dtype) if terms != "position_to_content" else None
        self.to_query = nn.Linear(dim, width, True, device, dtype) if terms != "content_to_position" else None
        self.reads_keys = self.to_query is not None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)
        for projection in (self.to_key, self.to_query):
            if projection is not None:
                nn.init.normal_(projection.weight, std=self.std)
        if self.to_query is not None:
            nn.init.zeros_(self.to_query.bias)

    @property
    def scale(self) -> float:
        """The factor of the terms with positions: (head_dim (1 + terms))^-1/2."""
        return (self.head_dim * (3 if self.terms == "both" else 2)) ** -0.5

    def bucket(self, delta: Tensor) -> Tensor:
        """Return the signed bucket (-buckets to buckets) of each signed distance, query minus key (positions)."""
        edges = number_tensor(self.edges, torch.float64, delta.device)
        size = torch.bucketize(delta.abs().to(torch.float64), edges)
        return torch.where(delta < 0, -size, size)

    def row(self, bucket: Tensor) -> Tensor:
        """Return the row of the table for each bucket; negative distances have one row more."""
        return bucket.clamp(-self.buckets, self.buckets - 1) + self.buckets

    def row_of(self, delta: int) -> int:
        """Return the row of the table for one whole signed distance."""
        size = bisect_left(self.edges, abs(delta))
        return min(max(-size if delta < 0 else size, -self.buckets), self.buckets - 1) + self.buckets

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        assert q is not None
        checks.heads(self, q)
        checks.head_dim(self, q)
        facts, products = partial(self.facts, q), partial(self.products, q, keys.k)
        limit = self.max_distance or self.buckets
        return [Products(self.score_mod, q, at, keys, facts=facts, products=products, same_beyond=limit)]

    def facts(self, q: Tensor, keys: Keys) -> Keys:
        """Return the keys with the products of queries, and of keys, with every row of the table."""
        memo, query_memo = {}, {}
        if self.to_key is not None:
            query_memo["deberta"] = self.table_logits(q, self.to_key)
        if self.to_query is not None:
            memo["deberta"] = self.table_logits(self.for_each_head(keys.k), self.to_query)
        return facts_of(keys, memo=memo, query_memo=query_memo)

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        distances, m, n = distances_between(at, keys.at), at.axis(self), keys.at.axis(self)
        if distances is None:
            bucket = self.bucket(distance(at, keys.at, self))
        else:
            lowest, highest = distances
            bucket, m = self.bucket(torch.arange(lowest, highest + 1, device=q.device)), m - lowest
        row, key_row = self.row(bucket), self.row(-bucket if self.mirror else bucket)
        to_position, to_content = keys.query_memo.get("deberta"), keys.memo.get("deberta")

        def pair_rows(rows: Tensor, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if distances is None:
                return rows[0 if len(rows) == 1 else b, i, j]
            return rows[at_token(m, b, i) - at_token(n, b, j)]

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            if to_position is not None:
                score = score + look_up(to_position, b, h, i, pair_rows(row, b, i, j)).to(score.dtype)
            if to_content is not None:
                score = score + look_up(to_content, b, h, j, pair_rows(key_row, b, i, j)).to(score.dtype)
            return score

        return score_mod

    def products(self, q: Tensor, k: Tensor, distances: range) -> list[DotProducts]:
        """Return the bias at whole distances: dot products of queries, and of keys, with table rows."""
        terms = []
        if self.to_key is not None:
            terms.append(self.term(q, self.to_key, distances))
        if self.to_query is not None:
            key_distances = range(-distances.start, -distances.stop, -distances.step) if self.mirror else distances
            terms.append(self.term(self.for_each_head(k), self.to_query, key_distances)._replace(of_keys=True))
        return terms

    def term(self, x: Tensor, projection: nn.Linear, distances: range) -> DotProducts:
        """Return queries or keys [B, H, T, D] with the rows of the projected table for distances."""
        row = self.row(self.bucket(distance_tensor(distances, x.device)))
        # Rows are monotone in the distance. Reading them from the tensor would wait for a GPU.
        first, last = sorted(self.row_of(delta) for delta in (distances[0], distances[-1]))
        table = self.projected_rows(x, projection, slice(first, last + 1))
        return DotProducts(x.to(table.dtype), (table * self.scale).index_select(1, row - first))

    def for_each_head(self, k: Tensor) -> Tensor:
        """Return keys [B, KV, S, D] repeated for each query head."""
        return k if k.shape[1] == self.heads else k.repeat_interleave(self.heads // k.shape[1], 1)

    def table_logits(self, x: Tensor, projection: nn.Linear) -> Tensor:
        """Return scaled products [B, H, T, 2 buckets] with every row. x is queries or keys [B, H, T, D]."""
        table = self.projected_rows(x, projection)
        return x.to(table.dtype) @ table.transpose(-1, -2) * self.scale

    def projected_rows(self, x: Tensor, projection: nn.Linear, rows: slice = slice(None)) -> Tensor:
        """Return rows of the table, projected for each head: [H, 2 buckets, head_dim]. The dtype is x's or wider."""
        dtype = torch.promote_types(torch.promote_types(x.dtype, self.table.dtype), torch.float32)
        bias = None if projection.bias is None else projection.bias.to(dtype)
        table = F.linear(self.table[rows].to(dtype), projection.weight.to(dtype), bias)
        return table.unflatten(-1, (self.heads, -1)).transpose(0, 1)

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        total = 0.0
        if self.to_key is not None:
            total += self.formula_term(q, self.to_key, m - n, head)
        if self.to_query is not None:
            total += self.formula_term(k, self.to_query, n - m if self.mirror else m - n, head)
        terms = 2 if self.terms == "both" else 1
        return super().formula_logit(q, k, m, n, head, scale) + total / math.sqrt(self.head_dim * (1 + terms))

    def formula_term(self, content, projection: nn.Linear, delta: float, head: int) -> float:
        """Return the dot product of a query or key with the projected row of one distance."""
        half, size = self.buckets // 2, abs(delta)
        if self.max_distance is None or size <= half:
            size = math.ceil(size)
        else:
            # 1e-12 keeps a distance that lies on an edge on its own side of the ceiling.
            share = math.log(size / half) / math.log((self.max_distance - 1) / half)
            size = half + math.ceil(share * (half - 1) - 1e-12)
        place = max(-self.buckets, min(self.buckets - 1, int(math.copysign(size, delta)))) + self.buckets
        row, channels = self.table[place].tolist(), slice(head * self.head_dim, (head + 1) * self.head_dim)
        vector = [dot_product(weights, row) for weights in projection.weight[channels].tolist()]
        offset = 0.0 if projection.bias is None else dot_product(content, projection.bias[channels].tolist())
        return dot_product(content, vector) + offset


def edges_of(buckets: int, max_distance: int | None) -> tuple[float, ...]:
    """Return the distance (positions) past which each bucket of one side begins, without that of 0."""
    if max_distance is None:
        return tuple(float(d) for d in range(buckets))
    half, last = buckets // 2, max_distance - 1
    logarithmic = []
    for step in range(buckets - half):
        # x lies past the edge when x^(half-1) half^step > half^(half-1) last^step, in whole numbers.
        edge = half * (last / half) ** (step / (half - 1))
        integer = round(edge)
        past = integer ** (half - 1) * half**step > half ** (half - 1) * last**step
        logarithmic.append(min(edge, math.nextafter(integer, 0.0)) if past else max(edge, float(integer)))
    return (*(float(d) for d in range(half)), *logarithmic)
