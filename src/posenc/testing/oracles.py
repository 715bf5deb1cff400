"""The output of a network by its encodings' scalar formulas, in plain loops without fast paths."""

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
"""Embeddings [B, T, dim] of a sequence, and its positions."""


def net_by_formula(
    net: Net, query_tokens: Tokens, key_tokens: Tokens, mask: Mask, queries: Iterable[int] | None = None
) -> Tensor:
    """Return the network's output, with position taken from the scalar formulas, in plain loops."""
    (x, at), (keys_x, keys_at) = query_tokens, key_tokens
    cross = keys_x is not x
    at, keys_at = on_axes(at, net.axes), on_axes(keys_at, net.axes)
    try:
        with torch.no_grad():
            x = x + embedding_by_formula(net, at, x)
            keys_x = keys_x + embedding_by_formula(net, keys_at, keys_x) if cross else x
            for layer, encoding in zip(net.attentions, net.layer_encodings, strict=True):
                key_tokens = (keys_x if cross else x), keys_at
                x = x + attention_by_formula(layer, encoding, (x, at), key_tokens, mask, queries)
    except NotImplementedError as reason:
        raise NoMeaning(str(reason)) from reason
    return x


def embedding_by_formula(net: Net, at: Positions, x: Tensor) -> Tensor:
    encodings = cast(list[Encoding], list(net.encodings))
    rows = [
        [[math.fsum(e.formula_added(p, c) for e in encodings) for c in range(x.shape[2])] for p in where]
        for where in scalar_coords(at)
    ]
    return torch.tensor(rows, dtype=x.dtype)


def attention_by_formula(
    layer: Attention,
    encoding: Encoding,
    query_tokens: Tokens,
    key_tokens: Tokens,
    mask: Mask,
    queries: Iterable[int] | None,
) -> Tensor:
    (x, at), (keys_x, keys_at) = query_tokens, key_tokens
    B, T, _ = x.shape
    v = layer.split(layer.v_proj(keys_x), layer.heads).tolist()
    pair = (tokens_of(encoding, layer, layer.q_proj, x, at), tokens_of(encoding, layer, layer.k_proj, keys_x, keys_at))
    visible_mask = mask.allowed(at, keys_at).expand(B, 1, T, -1).tolist()
    out = torch.zeros(B, T, layer.heads * layer.head_dim, dtype=x.dtype)
    for b in range(B):
        for h in range(layer.heads):
            q, k = (tokens[b][h] for tokens in pair)
            for i in range(T) if queries is None else queries:
                visible = [j for j in range(len(k)) if visible_mask[b][0][i][j]]
                if not visible:
                    continue
                keys = [k[j] for j in visible]
                logits = encoding.formula_logits(q[i], keys, h, layer.scale)
                weights = encoding.formula_weights(logits, q[i], keys)
                for c in range(layer.head_dim):
                    values = (encoding.formula_value(v[b][h][j], q[i].at, k[j].at, c) for j in visible)
                    output = math.fsum(w * value for w, value in zip(weights, values, strict=True))
                    out[b, i, h * layer.head_dim + c] = output
    return layer.o_proj(out)


def tokens_of(
    encoding: Encoding, layer: Attention, project: nn.Module, x: Tensor, at: Positions
) -> list[list[list[Token]]]:
    """Return the tokens [B][H][T] of x [B, T, dim] as scalars, with their remembered facts."""
    vectors = layer.split(project(x), layer.heads)
    B, H = vectors.shape[:2]
    memo = encoding.remember(x, at)
    facts = {name: fact.expand(B, H, *fact.shape[2:]).tolist() for name, fact in memo.items()}
    where = scalar_coords(at) * (B if at.coords.shape[0] == 1 else 1)
    order = at.order.expand(B, -1).tolist()
    horizon = [None] * B if at.horizon is None else at.horizon.expand(B).tolist()

    def token(b: int, h: int, t: int, vector: list[float]) -> Token:
        memo = {name: fact[b][h][t] for name, fact in facts.items()}
        return Token(vector, where[b][t], order[b][t], memo, horizon[b])

    rows = enumerate(vectors.tolist())
    return [[[token(b, h, t, x) for t, x in enumerate(row)] for h, row in enumerate(heads)] for b, heads in rows]


def scalar_coords(at: Positions) -> list[list[Any]]:
    """Return each token's coordinate as formulas read it: a number, or a tuple for several axes."""
    if at.axes == 1:
        return at.coords[..., 0].tolist()
    return [[tuple(place) for place in row] for row in at.coords.tolist()]
