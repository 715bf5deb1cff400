"""Multi-head attention: the one place where positions, encodings, keys, kernels and masks meet."""

import warnings
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from posenc import checks, kernels
from posenc.cache import LayerCache, held_by, unchanged_if_refused
from posenc.catalogue import Spec, build
from posenc.encoding.base import AttentionOutput, Encoding
from posenc.encoding.biases import Bias
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.in_rows import attend_in_rows
from posenc.model.config import Config, Configured, config_of
from posenc.model.parts import LoadsOldNames, begin, norm_layer
from posenc.specs.words import with_named_options
from posenc.tokens.masks import Mask, MaskLike, mask_for
from posenc.tokens.positions import Positions, PositionsLike, positions_for
from posenc.tokens.watched import COMPILES, refuse_to_compile


class Call(NamedTuple):
    """What one call of attention is told, checked: a model makes it once, and its layers take it as it is.

    at, keys_at   where the queries and the keys are; the same in self-attention
    mask, encoding, cache, need_weights   as in Attention.forward
    shared        biases that the layers of one pass share; None: no layer shares any

    It is an argument, and not another method beside `forward`, since hooks and sharding see modules that are called.
    """

    at: Positions
    keys_at: Positions
    mask: Mask
    encoding: Encoding
    cache: LayerCache | None = None
    need_weights: bool = False
    shared: dict[Hashable, list[Bias]] | None = None


def attend(q: Tensor, keys: Keys, call: Call, kernel: BoundKernel) -> AttentionOutput:
    """Door 4 of the encoding, for a sequence that is all here: the output [B, heads, T, head_dim], and weights."""
    return attend_in_rows(call.encoding, q, call.at, keys, call.mask, kernel)


class Attention(Configured, LoadsOldNames):
    """Multi-head, multi-query and grouped-query attention with any positional encoding; self and cross.

    dim, heads, max_len to sinks   as in Config, or a Config in the place of dim
    encoding   a spec, an Encoding, or None when the caller passes one to every call (as the models do); by default
               "none": without positions
    causal     whether self-attention sees the past only, whatever the mask of a call adds; a spec such as "t5_bias" is
               built for it. Attention to separate keys is never causal by itself

    Where it goes wrong: an encoding that is built for one direction reads another distance under a mask of the other;
    the layer warns once.

    Raises ValueError for head counts that do not divide, unknown specs and kernels, and inputs that do not fit, and
    TypeError for an option that there is not.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; Ainslie et al. 2023, arXiv:2305.13245, section 2.2.

    >>> attention = Attention(64, heads=4, encoding="rotary", causal=True)
    >>> attention(torch.randn(2, 9, 64)).shape
    torch.Size([2, 9, 64])
    """

    sinks: nn.Parameter | None
    """Of each head a logit [heads] that takes part in the softmax and has no value; None: no head has one."""

    old_names: ClassVar = {"to_query": "q_proj", "to_key": "k_proj", "to_value": "v_proj", "to_output": "o_proj"}

    rule = staticmethod(attend)
    """(q, keys, call, kernel) -> output and weights, of a sequence that is here or cut over devices."""

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
        self.directed = [] if self.encoding is None else directed_parts(self.encoding)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(self.dim, queries, config.has_bias("q_proj"), **made)
        self.k_proj = nn.Linear(self.dim, keys, config.has_bias("k_proj"), **made)
        self.v_proj = nn.Linear(self.dim, keys, config.has_bias("v_proj"), **made)
        self.o_proj = nn.Linear(queries, self.dim, config.has_bias("o_proj"), **made)
        # Of one head, or of all heads together.
        self.joined, normed = config.qk_norm == "joined", bool(config.qk_norm)
        self.q_norm = norm_layer(queries if self.joined else self.head_dim, config, normed, **made)
        self.k_norm = norm_layer(keys if self.joined else self.head_dim, config, normed, **made)
        # Where there is none it is no parameter: asking a module for one takes a call.
        self.sinks = nn.Parameter(torch.empty(self.heads, device=device, dtype=dtype)) if config.sinks else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sinks begin at 0, as a key of which every query makes nothing; gpt-oss draws them with deviation 0.02."""
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)
        begin(self.config, [self.q_proj, self.k_proj, self.v_proj])
        begin(self.config, [self.o_proj], ends=True)

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
        positions      where the query tokens are: Positions, ids, a number (where the first one is), or nothing (0, 1,
                       2, ..., or in self-attention what follows the last token of each row that the cache holds)
        key_positions  where the key tokens are; default: `positions` in self-attention, else 0, 1, 2, ...
        mask           a Mask, "causal" or "bidirectional", a boolean tensor (true = may see), a floating tensor (added
                       to the logits), or nothing (see all); a causal layer adds its own to it in self-attention
        cache          a layer cache: the new keys are put into it, and all its keys are attended to
        need_weights   whether to return the attention weights [B, heads, T, S] too, as they were applied; some of
                       them, beside an output of any kernel, gives posenc.chosen_weights
        encoding       the encoding of this call, where the layer has none of its own
        call           all of this as a Call, from a caller that has checked it, in place of what comes before

        Raises ValueError for shapes, dtypes, devices, positions and masks that do not fit.
        """
        if not COMPILES and torch.compiler.is_compiling():
            refuse_to_compile()
        if call is None:
            call = self.call_for(query, key, value, positions, key_positions, mask, cache, need_weights, encoding)
            if cache is not None and not torch.compiler.is_compiling():
                with unchanged_if_refused([cache]):
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
        """What a caller gave to `forward`, checked. Raises ValueError as it does."""
        self.check(query, key, value)
        to_itself = key is None or (key is query and key_positions is None)
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
        check_weights(need_weights)
        held = held_by(cache)
        of_queries = partial(positions_for, query.shape[1], batch=query.shape[0], device=query.device)
        if to_itself:
            if key_positions is not None:
                raise ValueError("key_positions belong to separate keys; in self-attention give positions alone")
            at = keys_at = of_queries(positions, held=held)
        else:
            at = of_queries(positions)
            keys_at = positions_for(key.shape[1], key_positions, batch=key.shape[0], device=key.device, held=held)
        mask = mask_for(mask, causal=self.causal and to_itself)
        if to_itself and not self.has_warned:
            directed = self.directed if encoding is self.encoding else directed_parts(encoding)
            self.has_warned = (at.loose or bool(directed)) and warns(directed, mask, at)
        if cache is not None:
            cache.check(keys_at, mask)
        return Call(at, keys_at, mask, encoding, cache, need_weights)

    def queries_and_keys(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, call: Call
    ) -> tuple[Tensor, Keys]:
        """The queries of tokens [B, T, dim], turned, and what is remembered of the tokens [B, S, dim] to attend to."""
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
                k = encoding.turn(k, keys_at.changed(horizon=at.horizon), "key")
        moves = "exact" if call.cache is None else encoding.moves
        if "remember" not in encoding.doors:
            return q, Keys(k, v, keys_at, moves=moves)
        memo = encoding.remember(key, keys_at)
        # In self-attention the queries are the new keys.
        query_memo = memo if key is query and at is keys_at else encoding.remember(query, at)
        return q, Keys(k, v, keys_at, memo, query_memo, moves=moves)

    def bound_kernel(self, call: Call) -> BoundKernel:
        """The kernel of this layer, with what a call asks of it."""
        return kernels.bind(
            self.kernel,
            call.encoding,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            need_weights=call.need_weights,
            shared=call.shared,
            sinks=self.sinks,
            softcap=self.softcap,
        )

    def split(self, x: Tensor, heads: int, norm: nn.Module | None = None) -> Tensor:
        """Vectors of all heads [B, T, heads head_dim], normed, as those of each [B, heads, T, head_dim]."""
        if norm is not None and self.joined:
            x, norm = norm(x), None
        x = x.reshape(*x.shape[:2], heads, self.head_dim).transpose(1, 2)
        return x if norm is None else norm(x)

    def check(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> None:
        if key is None and value is not None:
            raise ValueError("a separate value needs a key; give both, as attention(x, x, value), or neither")
        # A module of somebody's own may have no weight, and take what it likes.
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
                check_kind(name, x, weight)
        if key is not None and value is not None and key.shape[1] != value.shape[1]:
            raise ValueError(f"key and value must hold the same tokens, got {key.shape[1]} and {value.shape[1]}")

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, "
            f"kernel={self.kernel!r}, scale={self.scale}, softcap={self.softcap}, dropout={self.dropout}, "
            f"sinks={self.sinks is not None}, causal={self.causal}, init={self.config.init!r}"
        )


def directed_parts(encoding: Encoding) -> list[nn.Module]:
    """The parts of an encoding that have an option `causal`, which says for which direction each is built."""
    return [part for part in encoding.modules() if isinstance(getattr(part, "causal", None), bool)]


def warns(directed: Sequence[nn.Module], mask: Mask, at: Positions) -> bool:
    """Whether the layer warned of an encoding for the other direction than the mask, or of ids that begin again."""
    if torch.compiler.is_compiling():
        return False
    if directed and (sees := mask.sees_future(at)) is not None:
        for part in directed:
            if part.causal is sees:
                way = "lets tokens see the future" if sees else "hides the future"
                warnings.warn(
                    f"{part} is built with causal={part.causal}, and the mask {way}; build the layer, or the encoding, "
                    f"with causal={not sees}",
                    stacklevel=3,
                )
                return True
    if mask.given is None and at.restarts():
        warnings.warn(
            "position ids that begin again at 0 are read as one text, in which tokens see those before; for packed "
            "documents give Positions.packed(lengths), also from segment ids or cu_seqlens",
            stacklevel=3,
        )
        return True
    return False


def check_weights(need_weights: object) -> None:
    """Raises ValueError unless it says whether attention weights are wanted."""
    if not isinstance(need_weights, bool):
        raise ValueError(
            f"need_weights is True or False, got {checks.shown(need_weights)}; posenc.chosen_weights gives some of them"
        )


def check_kind(name: str, x: Tensor, weight: Tensor) -> None:
    """Raises ValueError unless a layer with such a weight takes tensors like this one, of another dtype or device."""
    if x.device != weight.device:
        raise ValueError(f"{name} is on '{x.device}', the layer on '{weight.device}'; move one of them with .to()")
    if not (x.is_floating_point() and torch.is_autocast_enabled(x.device.type)):
        raise ValueError(
            f"{name} is {x.dtype}, and the layer {weight.dtype}; cast one of them with .to(dtype), or use autocast"
        )
