"""Multi-head attention: the one place where positions, encodings, keys, kernels and masks meet."""

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from posenc import checks, kernels
from posenc.biases import Bias
from posenc.cache import LayerCache, held_by
from posenc.catalogue import Spec, build
from posenc.encoding import Encoding
from posenc.kernels.chosen_weights import Chosen, chosen_weights
from posenc.kernels.in_rows import attend_in_rows
from posenc.keys import Keys
from posenc.masks import Mask, MaskLike, mask_for
from posenc.positions import Positions, PositionsLike, positions_for
from posenc.sizes import Sizes, takes_sizes

if TYPE_CHECKING:
    from posenc.parallel import SequenceShards


class Call(NamedTuple):
    """What one call of attention is told, checked: a model makes it once, and its layers take it as it is.

    at, keys_at   where the queries and the keys are; the same in self-attention
    mask, encoding, cache, weights   as in Attention.forward
    shared        biases that the layers of one pass without gradients share; None: no layer shares any

    It is an argument, and not another method beside `forward`, since hooks and sharding see modules that are called.
    """

    at: Positions
    keys_at: Positions
    mask: Mask
    encoding: Encoding
    cache: LayerCache | None = None
    weights: bool | Chosen = False
    shared: dict[Hashable, list[Bias]] | None = None


class Attention(nn.Module):
    """Multi-head, multi-query and grouped-query attention with any positional encoding; self and cross.

    dim, heads, kv_heads, head_dim, kernel, scale, dropout, bias, sinks, max_len   as in Sizes, or a Sizes in
               their place
    encoding   a spec, an Encoding, or None when the caller passes one to every call (as the models do); by default
               "none": without positions
    causal     what a spec such as "t5_bias" is built for; who sees whom is said by the mask of each call

    Raises ValueError for head counts that do not divide, unknown specs and kernels, and inputs that do not fit.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; Ainslie et al. 2023, arXiv:2305.13245, section 2.2.

    >>> from posenc import masks
    >>> attention = Attention(64, heads=4, encoding="rotary")
    >>> attention(torch.randn(2, 9, 64), mask=masks.causal()).shape
    torch.Size([2, 9, 64])
    """

    sinks: nn.Parameter | None
    """Of each head a logit [heads] that takes part in the softmax and has no value; None: no head has one."""

    shards: "SequenceShards | None" = None
    """How the sequence is cut over devices (posenc.parallel.shard_sequence); None: all of it is here."""

    @takes_sizes("layers", "window", "hidden", "norm")
    @checks.annotated
    def __init__(
        self,
        sizes: Sizes,
        *,
        encoding: Spec | None = "none",
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = sizes.shape(causal)
        self.dim, self.heads, self.head_dim = shape.dim, shape.heads, shape.head_dim
        self.kv_heads = shape.heads if sizes.kv_heads is None else sizes.kv_heads
        self.kernel, self.dropout = sizes.kernel, sizes.dropout
        self.scale = shape.head_dim**-0.5 if sizes.scale is None else sizes.scale
        self.encoding = build(encoding, shape, device=device, dtype=dtype) if encoding is not None else None
        made = {"bias": sizes.bias, "device": device, "dtype": dtype}
        self.to_query = nn.Linear(self.dim, self.heads * self.head_dim, **made)
        self.to_key = nn.Linear(self.dim, self.kv_heads * self.head_dim, **made)
        self.to_value = nn.Linear(self.dim, self.kv_heads * self.head_dim, **made)
        self.to_output = nn.Linear(self.heads * self.head_dim, self.dim, **made)
        # Where there is none it is no parameter: asking a module for one takes a call.
        self.sinks = nn.Parameter(torch.empty(self.heads, device=device, dtype=dtype)) if sizes.sinks else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sinks begin at 0, as a key of which every query makes nothing; gpt-oss draws them with deviation 0.02."""
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        positions: PositionsLike = None,
        key_positions: PositionsLike = None,
        mask: MaskLike = None,
        cache: LayerCache | None = None,
        weights: bool | Chosen = False,
        encoding: Encoding | None = None,
        call: Call | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from `query` [B, T, dim] to `key` and `value` [B, S, dim].

        key            default: `query` (self-attention)
        value          default: `key`
        positions      where the query tokens are: Positions, ids, a number (where the first one is), or nothing (0, 1,
                       2, ..., or in self-attention what follows the last token of each row that the cache holds)
        key_positions  where the key tokens are; default: `positions` in self-attention, else 0, 1, 2, ...
        mask           a Mask, "causal" or "bidirectional", a boolean tensor (true = may see), a floating tensor (added
                       to the logits), or nothing (see all)
        cache          a layer cache: the new keys are put into it, and all its keys are attended to
        weights        whether to return the attention weights [B, heads, T, S] too, as they were applied; or which of
                       them (Chosen), beside an output of any kernel
        encoding       the encoding of this call, where the layer has none of its own
        call           all of this as a Call, from a caller that has checked it, in place of what comes before

        Raises ValueError for shapes, dtypes, devices, positions and masks that do not fit.
        """
        to_itself = key is None
        if call is None:
            call = self.call_for(query, key, value, positions, key_positions, mask, cache, weights, encoding)
        at, keys_at, mask, encoding, cache, weights, shared = call
        key = query if key is None else key
        q, new = self.queries_and_keys(query, key, value, at, keys_at, encoding)
        keys = new if cache is None else cache.extend(new)
        if "remember" in encoding.doors:
            # In self-attention the queries are the new keys.
            query_memo = new.memo if to_itself else encoding.remember(query, at)
            keys = replace(keys, query_memo=query_memo)
        if encoding.turns_when_attending:
            q = encoding.turn(q, at, "query")
            keys = replace(keys, k=encoding.turn(keys.k, keys.at.changed(horizon=at.horizon), "key"))
        elif cache is not None and keys.turned is not None:
            keys = cache.placed(keys, encoding)
        kernel = kernels.bind(
            self.kernel,
            encoding,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            weights=bool(weights) and not isinstance(weights, Chosen),
            shared=shared,
            sinks=self.sinks,
        )
        if self.shards is None:
            out, applied = attend_in_rows(encoding, q, at, keys, mask, kernel)
        else:
            out, applied = self.shards.attend(encoding, q, at, keys, mask, kernel, weights=weights, cache=cache), None
        if isinstance(weights, Chosen):
            applied = chosen_weights(weights, encoding, q, at, keys, mask, scale=self.scale, sinks=self.sinks)
        out = self.to_output(out.transpose(1, 2).flatten(2))
        if not weights:
            return out
        assert applied is not None
        return out, applied

    def call_for(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        positions: PositionsLike = None,
        key_positions: PositionsLike = None,
        mask: MaskLike = None,
        cache: LayerCache | None = None,
        weights: bool | Chosen = False,
        encoding: Encoding | None = None,
    ) -> Call:
        """What a caller gave to `forward`, checked. Raises ValueError as it does."""
        self.check(query, key, value)
        encoding = self.encoding if encoding is None else encoding
        if encoding is None:
            raise ValueError(
                "this layer has no encoding of its own; pass one to the call, or build it without encoding=None"
            )
        if not isinstance(encoding, Encoding):
            raise ValueError(
                f"the encoding of a call is an Encoding, got {checks.shown(encoding)}; give the spec when the layer is "
                f"made, or build it before with posenc.build"
            )
        check_weights(weights)
        held = held_by(cache)
        of_queries = partial(positions_for, query.shape[1], batch=query.shape[0], device=query.device)
        if key is None:
            if key_positions is not None:
                raise ValueError("key_positions belong to separate keys; in self-attention give positions alone")
            at = keys_at = of_queries(positions, held=held)
        else:
            at = of_queries(positions)
            keys_at = positions_for(key.shape[1], key_positions, batch=key.shape[0], device=key.device, held=held)
        mask = mask_for(mask)
        if cache is not None:
            cache.check(keys_at, mask)
        return Call(at, keys_at, mask, encoding, cache, weights)

    def queries_and_keys(
        self, query: Tensor, key: Tensor, value: Tensor | None, at: Positions, keys_at: Positions, encoding: Encoding
    ) -> tuple[Tensor, Keys]:
        """The queries of tokens [B, T, dim], and what is remembered of the tokens [B, S, dim] to attend to."""
        q = self.split(self.to_query(query), self.heads)
        k = self.split(self.to_key(key), self.kv_heads)
        v = self.split(self.to_value(key if value is None else value), self.kv_heads)
        if not encoding.turns_when_attending:
            q, k = encoding.turn_both(q, k, at, keys_at)
        memo = encoding.remember(key, keys_at) if "remember" in encoding.doors else {}
        return q, Keys(k, v, keys_at, memo, moves=encoding.moves)

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)  # [B, heads, T, head_dim]

    def check(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> None:
        if key is None and value is not None:
            raise ValueError("a separate value needs a separate key; give both, or neither")
        # A module of somebody's own may have no weight, and take what it likes.
        weight = getattr(self.to_query, "weight", None)
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x is None and name != "query":
                continue
            if not isinstance(x, Tensor) or not checks.is_dense(x):
                x = checks.tensor(name, x)
            if x.dim() != 3 or x.shape[-1] != self.dim:
                raise ValueError(f"{name} must have shape [batch, tokens, {self.dim}], got {list(x.shape)}")
            if x.shape[1] < 1:
                raise ValueError(f"{name} must hold at least one token, got shape {list(x.shape)}")
            if type(weight) is nn.Parameter and (x.dtype != weight.dtype or x.device != weight.device):
                check_kind(name, x, weight)
        if key is not None and value is not None and key.shape[1] != value.shape[1]:
            raise ValueError(f"key and value must hold the same tokens, got {key.shape[1]} and {value.shape[1]}")

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, "
            f"kernel={self.kernel!r}, scale={self.scale}, dropout={self.dropout}, "
            f"sinks={self.sinks is not None}"
        )


def check_weights(weights: object) -> None:
    """Raises ValueError unless it says which attention weights are wanted."""
    if not isinstance(weights, (bool, Chosen)):
        raise ValueError(f"weights are True, False or Chosen, got {checks.shown(weights)}")


def check_kind(name: str, x: Tensor, weight: Tensor) -> None:
    """Raises ValueError unless a layer with such a weight takes tensors like this one, of another dtype or device."""
    if x.device != weight.device:
        raise ValueError(f"{name} is on '{x.device}', the layer on '{weight.device}'; move one of them with .to()")
    if not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise ValueError(
            f"{name} is {x.dtype}, and the layer {weight.dtype}; cast one of them with .to(dtype), or use autocast"
        )
