"""A stack of blocks, and the encodings that they use."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posenc import checks
from posenc.cache import Cache, rollback_on_error
from posenc.catalogue import LayerSpec, build_layers
from posenc.encoding.base import Encoding
from posenc.model.attention import Call, causal_parts, check_weights, has_warned_of
from posenc.model.block import Block, LayerWeights
from posenc.model.config import Config
from posenc.model.parts import norm_layer
from posenc.tokens.masks import Mask, MaskLike, mask_for
from posenc.tokens.positions import Positions


class Stack(nn.Module):
    """A stack of blocks, and the encodings that they use.

    The stack owns the encodings: `encodings` holds each once, `encoding_of` the one of each layer. A tuple of specs is
    cycled over the layers, and so is a tuple of windows: a layer with one sees only tokens fewer than that many away.
    Set `activation_checkpointing` to keep only the input of each block in training, and compute the block again in the
    backward pass. Under FSDP, shard the blocks and the whole model: encodings belong to the whole, since blocks call
    their doors and not their `forward`.
    """

    def __init__(
        self,
        config: Config,
        *,
        encoding: LayerSpec,
        causal: bool,
        cross: bool = False,
        cross_encoding: LayerSpec = "none",
        hints: dict | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.activation_checkpointing, self.causal, self.has_warned = False, causal, False
        self.window_of = config.windows
        # The stack registers the parts of a sum, and a layer uses the sum; a tuple registers nothing a second time.
        modules, by_layer = build_layers(encoding, config.shape(causal), config.layers, hints=hints, **factory)
        self.hold(modules, by_layer)
        self.cross_encoding_of: tuple[Encoding, ...] = ()
        if cross:
            shape = config.shape(causal=False)
            modules, by_layer = build_layers(cross_encoding, shape, config.layers, hints=hints, **factory)
            self.cross_encoding_of = tuple(by_layer)
            if any("embed" in module.doors for module in modules):
                raise ValueError(
                    f"cross_encoding adds to embeddings, and between two sequences there are none; got {cross_encoding}"
                )
            self.cross_encodings = nn.ModuleList(modules)
        alone: dict[str, Any] = {"encoding": None, "cross_encoding": None, "causal": causal}
        self.embedding_norm = norm_layer(config.dim, config, config.embedding_norm, **factory)
        self.blocks = nn.ModuleList(Block(config, cross=cross, **alone, **factory) for _ in range(config.layers))
        # Blocks of the original transformer end with a norm of the sum.
        has_norm = config.norm_first or config.branch_norm
        self.final_norm = norm_layer(config.dim, config, has_norm, **factory) or nn.Identity()

    def hold(self, modules: Sequence[Encoding], by_layer: Sequence[Encoding]) -> None:
        """Set the encodings, each once, and the one of each layer."""
        self.encodings, self.encoding_of = nn.ModuleList(modules), tuple(by_layer)
        # The encodings that add to the embeddings.
        self.input_encodings = tuple(module for module in modules if "embed" in module.doors)
        self.causal_parts = tuple(part for module in modules for part in causal_parts(module))

    def forward(
        self,
        x: Tensor,
        at: Positions,
        mask: MaskLike = None,
        *,
        cache: Cache | None = None,
        need_weights: bool = False,
        memory: Tensor | None = None,
        memory_at: Positions | None = None,
        only: slice | None = None,
    ) -> tuple[Tensor, tuple[LayerWeights, ...]]:
        """Return hidden states of all tokens or of `only` some, and with `need_weights` the weights of each layer."""
        mask = mask_for(mask, causal=self.causal)
        mask_of = [mask if window is None else mask.with_window(window) for window in self.window_of]
        check_weights(need_weights)
        self.check(at, mask_of, cache, only)
        if not self.has_warned and (at.loose or self.causal_parts) and has_warned_of(self.causal_parts, mask, at):
            self.has_warned = True
        # A slice of all tokens takes the plain path.
        if isinstance(only, slice) and only.indices(at.tokens) == (0, at.tokens, 1):
            only = None
        cross_call = None
        if memory is not None:
            first = cast(Block, self.blocks[0])
            cross_call = first.cross_call(x, at, memory, memory_at, False, self.cross_encoding_of[0])
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        weights_of_layers, part, last = [], only, self.blocks[-1]
        shared_biases: dict | None = None if torch.compiler.is_compiling() else {}
        careful = cache is not None and not torch.compiler.is_compiling()
        with rollback_on_error(cache.layers) if careful else nullcontext():
            for layer, block in enumerate(self.blocks):
                of_layer = None if cache is None else cache.layers[layer]
                self_call = Call(at, at, mask_of[layer], self.encoding_of[layer], of_layer, need_weights, shared_biases)
                if cross_call is not None:
                    cross_call = cross_call._replace(encoding=self.cross_encoding_of[layer], need_weights=need_weights)
                if need_weights:
                    x, weights = block(x, memory=memory, calls=(self_call, cross_call))
                    weights_of_layers.append(weights)
                elif block is not last:
                    x = self.run_block(block, x, memory=memory, calls=(self_call, cross_call))
                else:
                    # The last block computes only the chosen tokens, since no later layer reads the others.
                    x, part = self.run_block(block, x, memory=memory, only=only, calls=(self_call, cross_call)), None
        return self.final_norm(x if part is None else x[:, part]), tuple(weights_of_layers)

    def run_block(self, block: nn.Module, x: Tensor, **options: Any) -> Tensor:
        """Return the output of a block; activation checkpointing computes it again in the backward pass."""
        if self.activation_checkpointing and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(block, x, use_reentrant=False, **options))
        return block(x, **options)

    def check(self, at: Positions, mask_of: list[Mask], cache: Cache | None, only: object) -> None:
        """Raise ValueError for a cache or tokens that do not fit, before any layer takes them in."""
        if only is not None and not isinstance(only, (slice, Tensor)):
            raise ValueError(
                f"only says which tokens by a slice, such as slice(-1, None), or a tensor of indices, got "
                f"{checks.display(only)}"
            )
        if cache is None:
            return
        if len(cache.layers) != len(self.blocks):
            raise ValueError(
                f"the cache is for {len(cache.layers)} layers, and this model has {len(self.blocks)}; make it with "
                f"model.cache()"
            )
        for of_layer, in_sight in zip(cache.layers, mask_of, strict=True):
            of_layer.check(at, in_sight)

    def extra_repr(self) -> str:
        of_layers = {
            "encoding": tuple(map(str, self.encoding_of)),
            "window": self.window_of,
            "cross_encoding": tuple(map(str, self.cross_encoding_of)),
        }
        # A value that all layers share is printed once.
        parts = {name: values[0] if len(set(values)) == 1 else values for name, values in of_layers.items() if values}
        return ", ".join(f"{name}={value!r}" for name, value in parts.items())
