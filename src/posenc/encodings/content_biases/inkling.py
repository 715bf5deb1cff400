"""Inkling's content-conditioned relative bias."""

import math
from functools import partial

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, DotProducts, Products, distance_tensor, facts_of
from posenc.encoding.formulas import Token, dot_product
from posenc.encoding.interpolation import interpolate
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import ScoreMod, look_up
from posenc.tokens.positions import Positions


class Inkling(Encoding):
    """Let each token choose its own bias over past distances, as a mixture of a few learned profiles.

    logit(i, j) = scale * q_i . k_j + r_i . P[:, n]   for 0 <= n = m_i - n_j < max_distance, and no bias elsewhere
    r_i = W x_i, from what attention projects its queries from

    The profiles P [rank, max_distance] are shared by the heads of a layer, W maps dim channels to rank for each head;
    every layer has its own. The bias is added to scaled logits: nothing divides it.

    dim           width of the model (channels)
    heads         number of query heads
    max_distance  the distance (positions) from which there is no bias; in the released models 1024 in full layers, and
                  the width of the window in layers that have one
    rank          number of profiles; 16 in the released models
    std           standard deviation of the initial W and P

    A fractional distance mixes the two neighbouring columns linearly; past the last column the bias fades to 0 within
    one position.

    It is Shaw's key term in low rank, with the product moved to the side of the query, and one more difference: the
    mixture comes from the token itself, not from its query. So attention has to hand the asking tokens over (as it does
    for every encoding that remembers), and `bias` alone cannot be asked.

    What differs from the released models: they have more around it, normalised queries and keys with a scale of
    1/head_dim, and in full layers a temperature that multiplies this bias too. Here it is the bias alone.

    Where it goes wrong: past max_distance, and towards the future, a token sees no position at all. No paper describes
    it; the description is that of the released code.

    Raises ValueError for sizes below 1, tokens of another width and heads that are others than it was built for.
    Source: Thinking Machines, Inkling, 2026, as in transformers 5.23 `models/inkling` (no paper).

    >>> Inkling(dim=8, heads=2, max_distance=32).profiles.shape
    torch.Size([16, 32])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + r_i \cdot P_n \quad \text{for } 0 \le n = m_i - n_j <
    \text{max distance}

    r_i = W x_i
    """
    source = "Thinking Machines, Inkling, 2026 (no paper; transformers 5.23), after Shaw et al. 2018, arXiv:1803.02155"
    also_called = ("low_rank_relative", "relative_projection", "relative_profiles", "learned_distance_basis")
    per_layer = True
    extrapolates = (
        "past max_distance there is no bias, so far tokens are seen without position, and the released models add a "
        "temperature there; no measurement is published"
    )
    used_by = "Inkling, Inkling-2-Small"
    between = ()

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        max_distance: int = 1024,
        rank: int = 16,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, heads=heads, max_distance=max_distance, rank=rank)
        checks.above("std", std, 0)
        self.dim, self.heads, self.max_distance, self.rank, self.std = dim, heads, int(max_distance), int(rank), std
        self.to_mixture = nn.Linear(dim, heads * self.rank, bias=False, device=device, dtype=dtype)
        self.profiles = nn.Parameter(torch.empty(self.rank, self.max_distance, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.to_mixture.weight, std=self.std)
        nn.init.normal_(self.profiles, std=self.std)

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        checks.dim(self, x)
        return {"inkling": self.to_mixture(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)}  # [B, H, T, rank]

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        assert q is not None
        mixture = self.mixture(q, keys)
        keys, products = facts_of(keys, query_memo={"mixture": mixture}), partial(self.products, mixture)
        return [Products(self.score_mod, q, at, keys, products=products, same_beyond=self.max_distance)]

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        mixture = keys.query_memo["mixture"]
        dtype = torch.promote_types(mixture.dtype, self.profiles.dtype)
        # A column of zeros stands for all distances without bias.
        curves = nn.functional.pad(mixture.to(dtype) @ self.profiles.to(dtype), (0, 1))  # [B, H, T, max_distance + 1]
        m, n = (where.axis(self).expand(q.shape[0], -1) for where in (at, keys.at))

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            delta = m[b, i] - n[b, j]
            # Keys in the future have no bias, however near.
            place = torch.where(delta >= 0, delta, self.max_distance).clamp(max=self.max_distance)
            bias = interpolate(lambda column: look_up(curves, b, h, i, column), place, self.max_distance)
            return score + bias.to(score.dtype)

        return score_mod

    def products(self, mixture: Tensor, distances: range) -> list[DotProducts]:
        """Return the bias at whole distances as dot products."""
        dtype = torch.promote_types(mixture.dtype, self.profiles.dtype)
        delta = distance_tensor(distances, mixture.device)
        in_reach = (delta >= 0) & (delta < self.max_distance)
        columns = self.profiles.to(dtype).index_select(1, delta.clamp(0, self.max_distance - 1))
        return [DotProducts(mixture.to(dtype), (columns * in_reach).T[None])]

    def mixture(self, q: Tensor, keys: Keys) -> Tensor:
        """Return the weights of each query token on the profiles, [B, H, T, rank], in float32 or wider."""
        checks.heads(self, q)
        if "inkling" not in keys.query_memo:
            raise ValueError(f"the bias of {self} reads the asking tokens themselves; it works inside Attention only")
        mixture = keys.query_memo["inkling"]
        return mixture.to(torch.promote_types(mixture.dtype, torch.float32))

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        raise NotImplementedError(f"the bias of {self} reads the asking token, which a formula of q and k alone lacks")

    def formula_logits(self, query: Token, keys, head: int, scale: float) -> list[float]:
        columns = [[*column, 0.0] for column in self.profiles.tolist()]
        logits = []
        for key in keys:
            n = query.at - key.at
            bias = 0.0
            if 0 <= n < self.max_distance:
                profile = [(1 - n % 1) * row[math.floor(n)] + n % 1 * row[math.ceil(n)] for row in columns]
                bias = dot_product(query.memo["inkling"], profile)
            logits.append(dot_product(query.vector, key.vector, scale) + bias)
        return logits
