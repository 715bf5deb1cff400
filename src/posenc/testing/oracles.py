"""What a network has to give, by the scalar formulas of its encodings: plain loops that share no fast path."""

import math
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from posenc.encoding.base import Encoding
from posenc.encoding.formulas import Token
from posenc.model.attention import Attention
from posenc.testing.subjects import Net, on_axes
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.verdicts import NoMeaning

Tokens: TypeAlias = tuple[Tensor, Positions]
"""A sequence [B, T, dim], and where its tokens stand."""


def by_formula(net: Net, asking: Tokens, asked: Tokens, mask: Mask, queries: Iterable[int] | None = None) -> Tensor:
    """What the network gives, with everything about position taken from the scalar formulas, in plain loops."""
    (x, at), (other, keys_at) = asking, asked
    cross = other is not x
    at, keys_at = on_axes(at, net.axes), on_axes(keys_at, net.axes)
    try:
        with torch.no_grad():
            x = x + added_by_formula(net, at, x)
            other = other + added_by_formula(net, keys_at, other) if cross else x
            for layer, encoding in zip(net.attentions, net.used, strict=True):
                asked = (other if cross else x), keys_at
                x = x + attention_by_formula(layer, encoding, (x, at), asked, mask, queries)
    except NotImplementedError as reason:
        raise NoMeaning(str(reason)) from reason
    return x


def added_by_formula(net: Net, at: Positions, x: Tensor) -> Tensor:
    encodings = cast(list[Encoding], list(net.encodings))
    rows = [
        [[math.fsum(e.formula_added(p, c) for e in encodings) for c in range(x.shape[2])] for p in where]
        for where in places(at)
    ]
    return torch.tensor(rows, dtype=x.dtype)


def attention_by_formula(
    layer: Attention, encoding: Encoding, asking: Tokens, asked: Tokens, mask: Mask, queries: Iterable[int] | None
) -> Tensor:
    (x, at), (other, keys_at) = asking, asked
    B, T, _ = x.shape
    v = layer.split(layer.v_proj(other), layer.heads).tolist()
    turned = tokens_of(encoding, layer, layer.q_proj, x, at), tokens_of(encoding, layer, layer.k_proj, other, keys_at)
    allowed = mask.allowed(at, keys_at).expand(B, 1, T, -1).tolist()
    out = torch.zeros(B, T, layer.heads * layer.head_dim, dtype=x.dtype)
    for b in range(B):
        for h in range(layer.heads):
            q, k = (tokens[b][h] for tokens in turned)
            for i in range(T) if queries is None else queries:
                seen = [j for j in range(len(k)) if allowed[b][0][i][j]]
                if not seen:
                    continue
                keys = [k[j] for j in seen]
                logits = encoding.formula_logits(q[i], keys, h, layer.scale)
                weights = encoding.formula_weights(logits, q[i], keys)
                for c in range(layer.head_dim):
                    values = (encoding.formula_value(v[b][h][j], q[i].at, k[j].at, c) for j in seen)
                    taken = math.fsum(w * value for w, value in zip(weights, values, strict=True))
                    out[b, i, h * layer.head_dim + c] = taken
    return layer.o_proj(out)


def tokens_of(
    encoding: Encoding, layer: Attention, project: nn.Module, x: Tensor, at: Positions
) -> list[list[list[Token]]]:
    """The tokens [B][H][T] of a sequence x [B, T, dim] in scalars, with what the encoding remembers of each."""
    vectors = layer.split(project(x), layer.heads)
    B, H = vectors.shape[:2]
    memo = encoding.remember(x, at)
    facts = {name: fact.expand(B, H, *fact.shape[2:]).tolist() for name, fact in memo.items()}
    where = places(at) * (B if at.coords.shape[0] == 1 else 1)
    order = at.order.expand(B, -1).tolist()
    horizon = [None] * B if at.horizon is None else at.horizon.expand(B).tolist()

    def token(b: int, h: int, t: int, vector: list[float]) -> Token:
        memo = {name: fact[b][h][t] for name, fact in facts.items()}
        return Token(vector, where[b][t], order[b][t], memo, horizon[b])

    rows = enumerate(vectors.tolist())
    return [[[token(b, h, t, x) for t, x in enumerate(row)] for h, row in enumerate(heads)] for b, heads in rows]


def places(at: Positions) -> list[list[Any]]:
    """The coordinate of each token of each row as formulas take it: a number, or a tuple for several axes."""
    if at.axes == 1:
        return at.coords[..., 0].tolist()
    return [[tuple(place) for place in row] for row in at.coords.tolist()]
