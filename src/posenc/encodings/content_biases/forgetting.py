"""Forgetting attention (FoX)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias, Levels, facts_of
from posenc.encoding.formulas import dot_product
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.encoding.score_mods import ScoreMod
from posenc.kernels.sums_in_order import sums_of
from posenc.tokens.positions import Positions


class Forgetting(Encoding):
    """Add the summed logarithms of the forget gates of the tokens between key and query.

    logit(i, j) = scale * q_i . k_j + sum over tokens l with order_j < order_l <= order_i of ln f_l
    f_l = sigmoid(w_h . x_l + b_h)

    A gate f belongs to one token and one head; the sum runs over the tokens between key and query, the query's own
    included, and is added after the scaling. With constant gates this is ALiBi with the slope -ln f.

    dim    width of the embeddings (channels)
    heads  number of query heads
    start  initial bias b of the gates (logit); the authors' 0 forgets half with each token, x-transformers starts at 5
           and forgets 0.7 %
    std    standard deviation of the initial weights w

    The sum goes by `order` within a document: padding, packing, cuts of a cache and coordinates do not enter. A key
    after the query has an empty sum, 0, so bidirectional attention sees a published past and an unbiased future. The
    gates are computed and kept in float32 at least, and added up in float64 where the device has it. Output gate,
    query-key norm and key-value shift of FoX (Pro) are architecture, not position, and are left out.

    Where it goes wrong: a cache that holds no gates cannot know the sums, and a library that forgets them is silently
    wrong (x-transformers' data-dependent ALiBi: logits off by 0.11). Multiplying the weights by sigmoid([q; k]), as a
    public repository does, is another thing.

    Raises ValueError for a width, number of heads or deviation out of range, and embeddings of another width.
    Source: Lin et al. 2025, arXiv:2503.02130, section 3.

    >>> round(Forgetting(8, heads=2, std=0.0).formula_gate([0.0] * 8, 0), 4)
    -0.6931
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j + \sum_{\text{order}_j < \text{order}_l \le
    \text{order}_i} \ln\, f_l

    f_l = \operatorname{sigmoid}(w_h \cdot x_l + b_h)
    """
    source = "Lin et al. 2025, arXiv:2503.02130, section 3"
    also_called = ("fox", "forgetting_transformer", "forget_gate", "data_dependent_alibi")
    extrapolates = (
        "Claimed, and found: flat perplexity past the trained length; random copy 79 % right at 1.5 times it."
    )
    per_layer = True
    between = ("forgetting",)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        start: float = 0.0,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, heads=heads)
        checks.number("start", start)
        checks.at_least("std", std, 0)
        self.dim, self.heads, self.start, self.std = dim, heads, start, std
        self.weight = nn.Parameter(torch.empty(heads, dim, device=device, dtype=dtype))
        self.offset = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        nn.init.constant_(self.offset, self.start)

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        checks.dim(self, x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        # Autocast to bfloat16 would round an almost open gate to an open one.
        with without_autocast(x):
            gates = F.linear(x.to(dtype), self.weight.to(dtype), self.offset.to(dtype))
        return {"forgetting": F.logsigmoid(gates).transpose(1, 2)}  # [B, H, T]

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        assert q is not None
        checks.heads(self, q)
        # After a hundred thousand tokens a float32 sum has steps of 0.0078; the difference of two must be finer.
        to_query, to_key = sums_of("forgetting", at, keys)
        keys = facts_of(keys, memo={"forgotten": to_key}, query_memo={"forgotten": to_query})
        return [Levels(self.score_mod, q, at, keys, of_queries=to_query, of_keys=to_key)]

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod:
        to_query, to_key = keys.query_memo["forgotten"], keys.memo["forgotten"]

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            # Gates only ever lower a sum, so what is above 0 belongs to keys after the query.
            return score + (to_query[b, h, i] - to_key[b, h, j]).clamp(max=0.0).to(score.dtype)

        return score_mod

    def formula_logits(self, query, keys, head, scale) -> list[float]:
        logits = super().formula_logits(query, keys, head, scale)
        gates = [(token.order, token.memo["forgetting"]) for token in keys]
        sums = [math.fsum(gate for order, gate in gates if key.order < order <= query.order) for key in keys]
        return [logit + gate_sum for logit, gate_sum in zip(logits, sums, strict=True)]

    def formula_gate(self, x: list[float], head: int) -> float:
        """As published, in scalars: ln f of a token with embedding x."""
        z = dot_product(self.weight[head].tolist(), x) + self.offset[head].item()
        return -math.log1p(math.exp(-z)) if z > 0 else z - math.log1p(math.exp(z))
