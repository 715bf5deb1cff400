"""Multi-head attention: combines positions, encodings, keys, kernels and masks."""

import warnings
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from posenc import checks, kernels
from posenc.cache import LayerCache, positions_in_cache, rollback_on_error
from posenc.catalogue import Spec, build
from posenc.encoding.base import AttentionOutput, Encoding
from posenc.encoding.biases import Bias
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.in_rows import attend_in_rows
from posenc.model.config import Config, ConfiguredModule, config_of
from posenc.model.parts import LoadsOldNames, init_layers, norm_layer
from posenc.specs.words import with_named_options
from posenc.tokens.masks import Mask, MaskLike, mask_for
from posenc.tokens.positions import Positions, PositionsLike, positions_for
from posenc.tokens.tracing import COMPILES_LAYERS, refuse_to_compile


class Call(NamedTuple):
    """The checked arguments of one call of attention: a model builds it once for all its layers.

    at, keys_at   positions of the queries and the keys; the same object in self-attention
    mask, encoding, cache, need_weights   as in Attention.forward
    shared_biases  biases that the layers of one pass share; None to share none

    It is an argument of `forward` rather than of another method, because hooks and sharding see only `forward`.
    """

    at: Positions
    keys_at: Positions
    mask: Mask
    encoding: Encoding
    cache: LayerCache | None = None
    need_weights: bool = False
    shared_biases: dict[Hashable, list[Bias]] | None = None


def plain_rule(q: Tensor, keys: Keys, call: Call, kernel: BoundKernel) -> AttentionOutput:
    """Return output [B, heads, T, head_dim] and weights by the encoding's rule, for a sequence on one device."""
    return attend_in_rows(call.encoding, q, call.at, keys, call.mask, kernel)


class Attention(ConfiguredModule, LoadsOldNames):
    """Multi-head, multi-query and grouped-query attention with any positional encoding; self and cross.

    dim, heads, max_len to sinks   as in Config, or a Config in the place of dim
    encoding   a spec, an Encoding, or None when the caller passes one to every call (as the models do); by default
               "none": without positions
    causal     whether self-attention sees the past only, whatever the mask of a call adds; a spec such as "t5_bias" is
               built for it. Attention to separate keys is never causal by itself

    Where it goes wrong: an encoding that is built for one direction reads other distances under a mask of the other;
    the layer warns once.

    Raises ValueError for head counts that do not divide, unknown specs and kernels, and inputs that do not fit, and
    TypeError for an unknown option.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; Ainslie et al. 2023, arXiv:2305.13245, section 2.2.

    >>> attention = Attention(64, heads=4, encoding="rotary", causal=True)
    >>> attention(torch.randn(2, 9, 64)).shape
    torch.Size([2, 9, 64])
    """

    sinks: nn.Parameter | None
    """One logit for each head [heads], which takes part in the softmax and has no value; None without sinks."""

    old_names: ClassVar = {"to_query": "q_proj", "to_key": "k_proj", "to_value": "v_proj", "to_output": "o_proj"}

    rule = staticmethod(plain_rule)
    """(q, keys, call, kernel) -> output and weights; sequence parallelism replaces it."""

    def __init__(
        self,
        dim: int | Config = 512,
        heads: int = 8,
        *,
        max_len: int = 2048,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        norm: str = "layer",
        norm_eps: float = 1e-5,
        qk_norm: bool | str = False,
        kernel: str = "auto",
        scale: float | None = None,
        softcap: float | None = None,
        init: str = "torch",
        dropout: float = 0.0,
        bias: bool | tuple[str, ...] = True,
        sinks: bool = False,
        encoding: Spec | None = "none",
        causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = config_of(locals())
        super().__init__()
        shape = config.shape(causal)
        self.causal, self.has_warned = causal, False
        self.dim, self.heads, self.head_dim = shape.dim, shape.heads, shape.head_dim
        self.kv_heads = shape.heads if config.kv_heads is None else config.kv_heads
        self.config, self.kernel, self.dropout, self.softcap = config, config.kernel, config.dropout, config.softcap
        self.scale = shape.head_dim**-0.5 if config.scale is None else config.scale
        self.encoding = build(encoding, shape, device=device, dtype=dtype) if encoding is not None else None
        if isinstance(encoding, str) and self.encoding is not None and "embed" in self.encoding.doors:
            how = (
                f"embed by encoding = posenc.build('{encoding}', posenc.{shape}), and give this layer the same encoding"
            )
            raise ValueError(f"{encoding} adds to embeddings, and attention does not; take Block or a model, or {how}")
        self.causal_parts = [] if self.encoding is None else causal_parts(self.encoding)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(self.dim, queries, config.has_bias("q_proj"), **factory)
        self.k_proj = nn.Linear(self.dim, keys, config.has_bias("k_proj"), **factory)
        self.v_proj = nn.Linear(self.dim, keys, config.has_bias("v_proj"), **factory)
        self.o_proj = nn.Linear(queries, self.dim, config.has_bias("o_proj"), **factory)
        # The norm of each head, or of all heads as one vector.
        self.joins_heads, has_qk_norm = config.qk_norm == "joined", bool(config.qk_norm)
        self.q_norm = norm_layer(queries if self.joins_heads else self.head_dim, config, has_qk_norm, **factory)
        self.k_norm = norm_layer(keys if self.joins_heads else self.head_dim, config, has_qk_norm, **factory)
        # None is no parameter here: looking up a missing parameter of a module takes a slow call.
        self.sinks = nn.Parameter(torch.empty(self.heads, device=device, dtype=dtype)) if config.sinks else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise sinks to 0, like a key with zero dot products; gpt-oss draws them with deviation 0.02."""
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)
        init_layers(self.config, [self.q_proj, self.k_proj, self.v_proj])
        init_layers(self.config, [self.o_proj], ends=True)

    @with_named_options
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
        need_weights: bool = False,
        encoding: Encoding | None = None,
        call: Call | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from `query` [B, T, dim] to `key` and `value` [B, S, dim].

        key            default: `query` (self-attention, as where it is the same tensor)
        value          default: `key`
        positions      positions of the query tokens: Positions, ids, a number (of the first one), or None (0, 1, 2,
                       ..., or in self-attention those after the last token of each row in the cache)
        key_positions  positions of the key tokens; default: `positions` in self-attention, else 0, 1, 2, ...
        mask           a Mask, "causal" or "bidirectional", a boolean tensor (true = may see), a floating tensor (added
                       to the logits), or None (see all); a causal layer adds its own to it in self-attention
        cache          a layer cache: it takes in the new keys, and all its keys are attended to
        need_weights   whether to return the attention weights [B, heads, T, S] too, as applied; posenc.chosen_weights
                       returns some of them beside the output of any kernel
        encoding       the encoding of this call, if the layer has none of its own
        call           the checked arguments as a Call, in place of all keywords above

        Raises ValueError for shapes, dtypes, devices, positions and masks that do not fit.
        """
        if not COMPILES_LAYERS and torch.compiler.is_compiling():
            refuse_to_compile()
        if call is None:
            call = self.call_for(query, key, value, positions, key_positions, mask, cache, need_weights, encoding)
            if cache is not None and not torch.compiler.is_compiling():
                with rollback_on_error([cache]):
                    return self.forward(query, key, value, call=call)
        q, keys = self.queries_and_keys(query, key, value, call)
        if call.cache is not None:
            keys = call.cache.extend(keys, call.encoding, call.at)
        out, weights = self.rule(q, keys, call, self.bound_kernel(call))
        out = self.o_proj(out.transpose(1, 2).flatten(2))
        return out if weights is None else (out, weights)

    def call_for(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        positions: PositionsLike = None,
        key_positions: PositionsLike = None,
        mask: MaskLike = None,
        cache: LayerCache | None = None,
        need_weights: bool = False,
        encoding: Encoding | None = None,
    ) -> Call:
        """Return the checked arguments of `forward`. Raises ValueError as it does."""
        self.check(query, key, value)
        to_itself = key is None or (key is query and key_positions is None)
        encoding = self.encoding if encoding is None else encoding
        if encoding is None:
            raise ValueError(
                "this layer has no encoding of its own; pass one to the call, or build it without encoding=None"
            )
        if not isinstance(encoding, Encoding):
            raise ValueError(
                f"the encoding of a call is an Encoding, got {checks.display(encoding)}; give the spec when the layer "
                f"is made, or build it before with posenc.build"
            )
        check_weights(need_weights)
        past = positions_in_cache(cache)
        of_queries = partial(positions_for, query.shape[1], batch=query.shape[0], device=query.device)
        if to_itself:
            if key_positions is not None:
                raise ValueError("key_positions belong to separate keys; in self-attention give positions alone")
            at = keys_at = of_queries(positions, past_at=past)
        else:
            at = of_queries(positions)
            keys_at = positions_for(key.shape[1], key_positions, batch=key.shape[0], device=key.device, past_at=past)
        mask = mask_for(mask, causal=self.causal and to_itself)
        if to_itself and not self.has_warned:
            one_way_parts = self.causal_parts if encoding is self.encoding else causal_parts(encoding)
            self.has_warned = (at.loose or bool(one_way_parts)) and has_warned_of(one_way_parts, mask, at)
        if cache is not None:
            cache.check(keys_at, mask)
        return Call(at, keys_at, mask, encoding, cache, need_weights)

    def queries_and_keys(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, call: Call
    ) -> tuple[Tensor, Keys]:
        """Return the rotated queries of `query` [B, T, dim], and the keys of `key` [B, S, dim]."""
        at, keys_at, encoding = call.at, call.keys_at, call.encoding
        key = query if key is None else key
        q = self.split(self.q_proj(query), self.heads, self.q_norm)
        k = self.split(self.k_proj(key), self.kv_heads, self.k_norm)
        v = self.split(self.v_proj(key if value is None else value), self.kv_heads)
        if not encoding.turns_when_attending:
            q, k = encoding.turn_both(q, k, at, keys_at)
        else:
            q = encoding.turn(q, at, "query")
            if call.cache is None:
                k = encoding.turn(k, keys_at.with_facts(horizon=at.horizon), "key")
        moves = "exact" if call.cache is None else encoding.moves
        if "remember" not in encoding.doors:
            return q, Keys(k, v, keys_at, moves=moves)
        memo = encoding.remember(key, keys_at)
        # In self-attention the queries are the new keys.
        query_memo = memo if key is query and at is keys_at else encoding.remember(query, at)
        return q, Keys(k, v, keys_at, memo, query_memo, moves=moves)

    def bound_kernel(self, call: Call) -> BoundKernel:
        """Return the kernel of this layer, bound to the options of a call."""
        return kernels.bind(
            self.kernel,
            call.encoding,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            need_weights=call.need_weights,
            shared_biases=call.shared_biases,
            sinks=self.sinks,
            softcap=self.softcap,
        )

    def split(self, x: Tensor, heads: int, norm: nn.Module | None = None) -> Tensor:
        """Split vectors [B, T, heads head_dim] into heads [B, heads, T, head_dim], and apply the norm."""
        if norm is not None and self.joins_heads:
            x, norm = norm(x), None
        x = x.reshape(*x.shape[:2], heads, self.head_dim).transpose(1, 2)
        return x if norm is None else norm(x)

    def check(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> None:
        if key is None and value is not None:
            raise ValueError("a separate value needs a key; give both, as attention(x, x, value), or neither")
        # A user's own projection may have no weight, and take any input.
        weight = getattr(self.q_proj, "weight", None)
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
                check_dtype_and_device(name, x, weight)
        if key is not None and value is not None and key.shape[1] != value.shape[1]:
            raise ValueError(f"key and value must hold the same tokens, got {key.shape[1]} and {value.shape[1]}")

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, "
            f"kernel={self.kernel!r}, scale={self.scale}, softcap={self.softcap}, dropout={self.dropout}, "
            f"sinks={self.sinks is not None}, causal={self.causal}, init={self.config.init!r}"
        )


def causal_parts(encoding: Encoding) -> list[nn.Module]:
    """Return the parts of an encoding that have an option `causal`, the direction that each is built for."""
    return [part for part in encoding.modules() if isinstance(getattr(part, "causal", None), bool)]


def has_warned_of(one_way_parts: Sequence[nn.Module], mask: Mask, at: Positions) -> bool:
    """Warn if an encoding's direction is not the mask's, or ids begin again. Return whether it warned."""
    if torch.compiler.is_compiling():
        return False
    if one_way_parts and (sees := mask.sees_future(at)) is not None:
        for part in one_way_parts:
            if part.causal is sees:
                way = "lets tokens see the future" if sees else "hides the future"
                warnings.warn(
                    f"{part} is built with causal={part.causal}, and the mask {way}; build the layer, or the encoding, "
                    f"with causal={not sees}",
                    stacklevel=3,
                )
                return True
    if mask.tensor is None and at.restarts():
        warnings.warn(
            "position ids that begin again at 0 are read as one text, in which tokens see those before; for packed "
            "documents give Positions.packed(lengths), also from segment ids or cu_seqlens",
            stacklevel=3,
        )
        return True
    return False


def check_weights(need_weights: object) -> None:
    """Raise ValueError unless need_weights is a boolean."""
    if not isinstance(need_weights, bool):
        actual = checks.display(need_weights)
        raise ValueError(f"need_weights is True or False, got {actual}; posenc.chosen_weights gives some of them")


def check_dtype_and_device(name: str, x: Tensor, weight: Tensor) -> None:
    """Raise ValueError unless a layer with this weight takes an input of another dtype or device."""
    if x.device != weight.device:
        raise ValueError(f"{name} is on '{x.device}', the layer on '{weight.device}'; move one of them with .to()")
    if not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise ValueError(
            f"{name} is {x.dtype}, and the layer {weight.dtype}; cast one of them with .to(dtype), or use autocast"
        )
