"""PaTH: position as the product of reflections along the path."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.base import AttentionOutput, Encoding
from posenc.encoding.biases import Dense
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.formulas import dot_product
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.tokens.masks import Mask, bidirectional, causal
from posenc.tokens.positions import Positions

BLOCK = 64
"""The tokens of a path in one block."""


class PaTH(Encoding):
    """Let a key reach its query through the reflections of all tokens between them.

    logit(i, j) = scale * k_j^T H_{j+1} H_{j+2} ... H_i q_i,   H_l = I - beta_l w_l w_l^T
    w_l = (W_2 W_1 x_l) / |W_2 W_1 x_l|,   beta_l = 2 sigmoid(w_b . x_l + b)

    H is the identity at beta 0, forgets the direction w at 1, and reflects it at 2; the tokens between decide. Each
    head and layer has its own w and beta.

    dim       width of the embeddings (channels)
    heads     number of query heads
    head_dim  width of one head (channels)
    rank      width between W_1 and W_2 (channels)

    Read from the query backwards, H_i first: q_i loses a share of w_i, the rest a share of w_{i-1}, and so on. How much
    of each w is lost solves a triangular system, block by block of the path: in time T S head_dim and memory T S for
    each head. (In a compiled graph the path is one block, and the time T S (S + head_dim).) The path goes by `order`
    within a document; a key after the query has an empty path, a plain q . k. Doors 1 to 3 of other encodings apply
    too: biases are added, paths lead from turned queries to turned keys.

    Differs from the authors' layer: no convolution of three tokens over w (it leaks position by itself), and w and beta
    for each query head, where theirs belong to key heads. Its forget gate is an encoding of its own: forgetting.

    Where it goes wrong: it is no function of the distance, and nothing decays. Decoding needs w and beta of every
    cached token here; the authors turn the cached keys in place instead, which is faster and binds a cache to one path.

    Raises ValueError for widths, heads or a rank below 1, and embeddings or heads of another width.
    Source: Yang et al. 2025, arXiv:2505.16381, section 3; fla, path_attn.

    >>> PaTH(8, heads=2, head_dim=4).lower.shape
    torch.Size([32, 8])
    """

    equation = r"""
    \operatorname{logit}(i, j) = \text{scale}\, k_j^{\top} H_{j+1} H_{j+2} \cdots H_i \, q_i

    H_l = I - \beta_l w_l w_l^{\top}

    w_l = \frac{W_2 W_1 x_l}{|W_2 W_1 x_l|}, \quad \beta_l = 2 \operatorname{sigmoid}(w_b \cdot x_l + b)
    """
    source = "Yang et al. 2025, arXiv:2505.16381, section 3; fla, path_attn"
    also_called = ("path_attention", "householder")
    extrapolates = "Good to a few times the trained length, and worse at extreme ones; best together with forgetting."
    # Each call solves the blocks of the whole path, as much work as some 130 queries are.
    queries_together = 4 * BLOCK
    per_layer = True

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        *,
        rank: int = 32,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.sizes(dim=dim, heads=heads, head_dim=head_dim, rank=rank)
        self.dim, self.heads, self.head_dim, self.rank = dim, heads, head_dim, rank
        self.lower = nn.Parameter(torch.empty(rank, dim, device=device, dtype=dtype))
        self.upper = nn.Parameter(torch.empty(heads * head_dim, rank, device=device, dtype=dtype))
        self.weight = nn.Parameter(torch.empty(heads, dim, device=device, dtype=dtype))
        self.offset = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.lower, self.upper, self.weight):
            nn.init.normal_(table, std=table.shape[1] ** -0.5)
        nn.init.zeros_(self.offset)

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        checks.dim(self, x)
        dtype = torch.promote_types(x.dtype, torch.float32)
        lower, upper, weight, offset = (p.to(dtype) for p in (self.lower, self.upper, self.weight, self.offset))
        with without_autocast(x):
            w = F.linear(F.linear(x.to(dtype), lower), upper).unflatten(-1, (self.heads, self.head_dim))
            beta = 2 * F.linear(x.to(dtype), weight, offset).sigmoid()
        # A floor below the root keeps the gradient finite where w is zero, as in fla.
        w = w * (w.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        return {"path_direction": w.transpose(1, 2), "path_strength": beta.transpose(1, 2)}  # [B, H, T, D], [B, H, T]

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        checks.heads(self, q)
        checks.head_dim(self, q)
        with without_autocast(q):
            loss = self.path_loss(q, at, keys, -kernel.scale)
        return kernel(self, q, at, keys, mask, biases=[Dense(loss)])

    def path_loss(self, q: Tensor, at: Positions, keys: Keys, factor: float = 1.0) -> Tensor:
        """Return `factor` times the loss [B, H, T, S] of each pair. The loss is k_j^T (I - H_{j+1} ... H_i) q_i."""
        dtype = torch.promote_types(q.dtype, torch.float32)
        w, beta = keys.memo["path_direction"].to(dtype), keys.memo["path_strength"].to(dtype)
        q, k = q.to(dtype), (factor * keys.k.to(dtype)).repeat_interleave(q.shape[1] // keys.k.shape[1], 1)
        if keys.at.contiguous:
            return self.loss_in_order(q, at, k, w, beta, keys.at)
        sequence = keys.at.order.argsort(-1)  # [B or 1, S]
        rows = sequence.expand(k.shape[0], -1)
        k, w = (gather(x, rows[:, None, :, None], 2) for x in (k, w))
        document = keys.at.document
        document = None if document is None else gather(document, sequence, 1)
        places = Positions(gather(keys.at.coords, sequence[..., None], 1), gather(keys.at.order, sequence, 1), document)
        loss = self.loss_in_order(q, at, k, w, gather(beta, rows[:, None], 2), places)
        return gather(loss, rows.argsort(-1)[:, None, None], 3)

    def loss_in_order(self, q: Tensor, at: Positions, k: Tensor, w: Tensor, beta: Tensor, places: Positions) -> Tensor:
        """Return the same for keys, directions and strengths [B, H, S, ...] in the order of their tokens.

        It goes from the last block of tokens to the first: each step starts with what the path has removed of q so far,
        and solves a triangular system of the size of the block.
        """
        if torch.compiler.is_compiling():
            # A loop over blocks would tie a graph to one length.
            return loss_in_block(q, torch.zeros_like(q), at, k, w, beta, places)[0]
        starts_known = at.start is not None and places.start is not None
        removed_q, columns = q[:, :, :0], []
        for start in reversed(range(0, places.tokens, BLOCK)):
            block = slice(start, min(start + BLOCK, places.tokens))
            # Queries before a block have no path through it.
            first = max(0, min(places.start + start - at.start, at.tokens)) if starts_known else 0
            removed_q = F.pad(removed_q, (0, 0, at.tokens - first - removed_q.shape[2], 0))
            query_at, here = at.rows(slice(first, at.tokens)), (x[:, :, block] for x in (k, w, beta))
            loss, removed_q = loss_in_block(q[:, :, first:], removed_q, query_at, *here, places.rows(block))
            columns.append(F.pad(loss, (0, 0, first, 0)))
        return torch.cat(columns[::-1], -1)

    def formula_query(self, q, position, head=0) -> list[float]:
        # The path belongs to the pair: biases beside this one read the query as it is.
        return q

    def formula_logits(self, query, keys, head, scale) -> list[float]:
        logits = []
        for key in keys:
            u = list(query.vector)
            path = [token for token in keys if key.order < token.order <= query.order]
            for token in sorted(path, key=lambda token: -token.order):
                w = token.memo["path_direction"]
                share = token.memo["path_strength"] * dot_product(w, u)
                u = [a - share * b for a, b in zip(u, w, strict=True)]
            logits.append(dot_product(key.vector, u, scale))
        return logits


def gather(x: Tensor, index: Tensor, axis: int) -> Tensor:
    """Return x at an index that broadcasts to it; `take_along_dim` would tie a graph to one length."""
    shape = torch.broadcast_shapes(x.shape, index.shape)
    return x.expand(shape).gather(axis, index.expand(shape))


def loss_in_block(
    q: Tensor, removed_q: Tensor, at: Positions, k: Tensor, w: Tensor, beta: Tensor, places: Positions
) -> tuple[Tensor, Tensor]:
    """Return the loss of a block's pairs, and the part of q removed up to its far side.

    removed_q  [B, H, T, D], the part of q removed before its path enters the block, from behind
    """
    # q_i loses sum_l c_il w_l, where c_il = beta_l w_l . (q_i - sum over l' after l of c_il' w_l'), l' up to i.
    on_path = causal().allowed(at, places)  # [B or 1, 1, T, S]
    together = bidirectional().allowed(places, places)  # [B or 1, 1, S, S]
    earlier = places.order[:, None, :, None] > places.order[:, None, None, :]
    scaled_w = w * beta[..., None]
    overlap = (scaled_w @ w.mT).masked_fill(~together, 0.0)
    share = solve(overlap, ((q - removed_q) @ scaled_w.mT).masked_fill(~on_path, 0.0))
    loss = add_product(removed_q @ k.mT, share, (w @ k.mT).masked_fill(~earlier, 0.0))
    return loss, add_product(removed_q, share, w)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return total + left @ right, [B, H, ...] each."""
    out = torch.baddbmm(*(x.flatten(0, 1) for x in (total, left, right)))
    return out.unflatten(0, total.shape[:2])


def solve(overlap: Tensor, first: Tensor) -> Tensor:
    """Return the coefficients c [..., T, S] of every query. c_l + sum over l' after l of overlap_ll' c_l' = first_l."""
    identity = torch.eye(overlap.shape[-1], dtype=overlap.dtype, device=overlap.device)
    # For many queries a product with the inverse is faster than solving for each.
    inverse = torch.linalg.solve_triangular(overlap, identity.expand_as(overlap), upper=True, unitriangular=True)
    return first @ inverse.mT
