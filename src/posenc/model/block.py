"""One transformer block: attention and feed-forward, each with a residual and a norm."""

from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.cache import LayerCache, positions_in_cache, rollback_on_error
from posenc.catalogue import Spec, build
from posenc.encoding.base import Encoding
from posenc.model.attention import Attention, Call
from posenc.model.config import Config, ConfiguredModule, config_of
from posenc.model.parts import FeedForward, init_layers, norm_layer
from posenc.specs.words import with_named_options
from posenc.tokens.masks import MaskLike
from posenc.tokens.positions import Positions, PositionsLike, positions_for

LayerWeights: TypeAlias = Tensor | dict[str, Tensor]
"""The attention weights of a layer: of its one attention, or of two as {"self": ..., "cross": ...}."""


class Block(ConfiguredModule):
    """One transformer block: attention and feed-forward, each with a residual and a norm.

    norm_first:                     x + attention(norm(x)),        then x + feed_forward(norm(x))
    norm_first, branch_norm:        x + norm(attention(norm(x))),  then the same with feed_forward (Gemma 2)
    norm_first, parallel_residual:  x + attention(norm(x)) + feed_forward(norm(x)), a norm for each (GPT-NeoX)
    branch_norm:                    x + norm(attention(x)),        then x + norm(feed_forward(x)) (OLMo 2)
    none of them:                   norm(x + attention(x)),        then norm(x + feed_forward(x)), as in the original

    dim, heads, max_len to sinks   as in Config, or a Config in the place of dim; layers and window are the stack's
    cross      whether the block also attends to a second sequence (a decoder block of an encoder-decoder)
    encoding   the block's own encoding, as a spec or an Encoding, for a block outside a stack, which also adds it to
               its input. None in a stack, where the model adds once and passes the encoding to every block
    cross_encoding   the encoding of the attention to the second sequence, for a block outside a stack
    causal     whether tokens see the past only, as in Attention

    x [B, T, dim] -> [B, T, dim].
    Raises ValueError for an unknown norm and as Attention does.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1; pre-norm: Xiong et al. 2020, arXiv:2002.04745.

    >>> Block(64, heads=4, encoding="sinusoidal")(torch.randn(1, 5, 64)).shape
    torch.Size([1, 5, 64])
    """

    def __init__(
        self,
        dim: int | Config = 512,
        heads: int = 8,
        *,
        max_len: int = 2048,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        intermediate_size: int | None = None,
        feed_forward: str = "gelu",
        norm: str = "layer",
        norm_first: bool = True,
        norm_eps: float = 1e-5,
        branch_norm: bool = False,
        parallel_residual: bool = False,
        residual_scale: float = 1.0,
        qk_norm: bool | str = False,
        kernel: str = "auto",
        scale: float | None = None,
        softcap: float | None = None,
        init: str = "torch",
        dropout: float = 0.0,
        bias: bool | tuple[str, ...] = True,
        sinks: bool = False,
        cross: bool = False,
        encoding: Spec | None = "none",
        cross_encoding: Spec | None = "none",
        causal: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = config_of(locals())
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.config = config
        encoding = None if encoding is None else build(encoding, config.shape(causal), **factory)
        make_norm = partial(norm_layer, config.dim, config, **factory)
        # If only the outputs of branches are normed, their inputs and sums are not.
        stream, branch = config.norm_first or not config.branch_norm, config.branch_norm
        self.attention = Attention(config, encoding=encoding, causal=causal, **factory)
        self.attention_norm, self.attention_branch_norm = make_norm(stream), make_norm(branch)
        self.cross_attention = Attention(config, encoding=cross_encoding, causal=False, **factory) if cross else None
        self.cross_norm, self.cross_branch_norm = make_norm(cross and stream), make_norm(cross and branch)
        kind, bias = config.feed_forward, config.has_bias("feed_forward")
        self.feed_forward = FeedForward(config.dim, config.inner, config.dropout, kind=kind, bias=bias, **factory)
        self.feed_forward_norm, self.feed_forward_branch_norm = make_norm(stream), make_norm(branch)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the feed-forward layer by `init`; attention initialises itself."""
        init_layers(self.config, [self.feed_forward.up_proj, self.feed_forward.gate_proj])
        init_layers(self.config, [self.feed_forward.down_proj], ends=True)

    @with_named_options
    def forward(
        self,
        x: Tensor,
        *,
        positions: PositionsLike = None,
        mask: MaskLike = None,
        cache: LayerCache | None = None,
        need_weights: bool = False,
        encoding: Encoding | None = None,
        memory: Tensor | None = None,
        memory_positions: PositionsLike = None,
        cross_encoding: Encoding | None = None,
        only: slice | None = None,
        calls: tuple[Call, Call | None] | None = None,
    ) -> Tensor | tuple[Tensor, LayerWeights]:
        """Return the block's output, and with `need_weights` its attention weights.

        memory   [B, S, dim], the second sequence of a block with cross-attention, at `memory_positions`
        only     the tokens to return; the others still serve as keys
        calls    the checked arguments of the two attentions, in place of all but memory and only
        """
        if calls is None:
            if checks.floating("x", x).dim() != 3:
                raise ValueError(f"x must have shape [batch, tokens, {self.attention.dim}], got {list(x.shape)}")
            past = positions_in_cache(cache)
            at = positions_for(x.shape[1], positions, batch=x.shape[0], device=x.device, past_at=past)
            if encoding is None and self.attention.encoding is not None:
                x = self.attention.encoding.embed(x, at)
            own_call = self.attention.call_for(
                x, positions=at, mask=mask, cache=cache, need_weights=need_weights, encoding=encoding
            )
            calls = own_call, self.cross_call(x, at, memory, memory_positions, need_weights, cross_encoding)
            if cache is not None and not torch.compiler.is_compiling():
                with rollback_on_error([cache]):
                    return self.forward(x, memory=memory, only=only, calls=calls)
        own_call, cross = calls
        y, weights = self.branch_input(x, self.attention_norm), {}
        if only is None:
            y = self.attention(y, call=own_call)
        else:
            at = own_call.at.rows(only)
            own_call, cross = own_call._replace(at=at), None if cross is None else cross._replace(at=at)
            x, y = x[:, only], self.attention(y[:, only], y, call=own_call)
        if own_call.need_weights:
            y, weights["self"] = y
        block_input = x
        x = self.residual_sum(x, self.drop(y), self.attention_norm, self.attention_branch_norm)
        if cross is not None:
            assert self.cross_attention is not None
            read = block_input if self.config.parallel_residual else x
            y = self.cross_attention(self.branch_input(read, self.cross_norm), memory, call=cross)
            if own_call.need_weights:
                y, weights["cross"] = y
            x = self.residual_sum(x, self.drop(y), self.cross_norm, self.cross_branch_norm)
        read = block_input if self.config.parallel_residual else x
        y = self.feed_forward(self.branch_input(read, self.feed_forward_norm))
        x = self.residual_sum(x, y, self.feed_forward_norm, self.feed_forward_branch_norm)
        if not own_call.need_weights:
            return x
        return x, weights["self"] if cross is None else weights

    def cross_call(
        self,
        x: Tensor,
        at: Positions,
        memory: Tensor | None,
        memory_positions: PositionsLike,
        need_weights: bool,
        encoding: Encoding | None,
    ) -> Call | None:
        """Return the checked arguments of cross-attention, if the block has one. Raises ValueError as `forward`."""
        if self.cross_attention is None:
            if memory is not None:
                raise ValueError("this block has no cross-attention; build it with cross=True to give it a memory")
            return None
        if memory is None:
            raise ValueError("a block with cross-attention needs the memory to attend to")
        return self.cross_attention.call_for(
            x, memory, positions=at, key_positions=memory_positions, need_weights=need_weights, encoding=encoding
        )

    def branch_input(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """Return the input of a branch."""
        return norm(x) if self.config.norm_first and norm is not None else x

    def drop(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.config.dropout) if self.training and self.config.dropout else branch

    def residual_sum(self, x: Tensor, branch: Tensor, norm: nn.Module | None, branch_norm: nn.Module | None) -> Tensor:
        """Return the residual stream with the output of a branch added."""
        branch = branch if branch_norm is None else branch_norm(branch)
        x = x + (branch if self.config.residual_scale == 1 else self.config.residual_scale * branch)
        return x if self.config.norm_first or norm is None else norm(x)

    def extra_repr(self) -> str:
        names = ("norm_first", "parallel_residual", "residual_scale")
        return ", ".join(f"{name}={getattr(self.config, name)}" for name in names)
