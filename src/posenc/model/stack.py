"""Blocks behind one another, and the encodings that they use."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posenc import checks
from posenc.cache import Cache, unchanged_if_refused
from posenc.catalogue import LayerSpec, build_layers
from posenc.encoding.base import Encoding
from posenc.model.attention import Call, check_weights, directed_parts, warns
from posenc.model.block import Block, LayerWeights
from posenc.model.config import Config
from posenc.model.parts import norm_layer
from posenc.tokens.masks import Mask, MaskLike, mask_for
from posenc.tokens.positions import Positions


class Stack(nn.Module):
    """Blocks behind one another, and the encodings that they use.

    The stack owns the encodings: `encodings` holds each once, `encoding_of` says which one a layer uses. A tuple of
    specs is cycled over the layers, and so is a tuple of windows: a layer with one sees only tokens fewer than that
    many away. Set `activation_checkpointing` for training to keep what comes into a block alone, and compute its
    insides a second time to go backward. Under FSDP, shard the blocks and the whole model: encodings go with the whole,
    since blocks call their doors and not their `forward`.
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
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.activation_checkpointing, self.causal, self.has_warned = False, causal, False
        self.window_of = config.windows
        # A sum is used by a layer, and its parts are owned; in a tuple nothing is registered a second time.
        owned, used = build_layers(encoding, config.shape(causal), config.layers, hints=hints, **made)
        self.hold(owned, used)
        self.cross_encoding_of: tuple[Encoding, ...] = ()
        if cross:
            owned, used = build_layers(cross_encoding, config.shape(causal=False), config.layers, hints=hints, **made)
            self.cross_encoding_of = tuple(used)
            if any("embed" in own.doors for own in owned):
                raise ValueError(
                    f"cross_encoding adds to embeddings, and between two sequences there are none; got {cross_encoding}"
                )
            self.cross_encodings = nn.ModuleList(owned)
        alone: dict[str, Any] = {"encoding": None, "cross_encoding": None, "causal": causal}
        self.embedding_norm = norm_layer(config.dim, config, config.embedding_norm, **made)
        self.blocks = nn.ModuleList(Block(config, cross=cross, **alone, **made) for _ in range(config.layers))
        # Blocks of the original end with a norm of the sum.
        self.final_norm = (
            norm_layer(config.dim, config, config.norm_first or config.branch_norm, **made) or nn.Identity()
        )

    def hold(self, owned: Sequence[Encoding], used: Sequence[Encoding]) -> None:
        """Take these encodings, each once, and for each layer the one that it uses."""
        self.encodings, self.encoding_of = nn.ModuleList(owned), tuple(used)
        # Those that add to the embeddings.
        self.added = tuple(own for own in owned if "embed" in own.doors)
        self.directed = tuple(part for own in owned for part in directed_parts(own))

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
        """Hidden states of all tokens, or of `only` some, and with `need_weights` the weights of each layer."""
        mask = mask_for(mask, causal=self.causal)
        mask_of = [mask if window is None else mask.within(window) for window in self.window_of]
        check_weights(need_weights)
        self.check(at, mask_of, cache, only)
        if not self.has_warned and (at.loose or self.directed) and warns(self.directed, mask, at):
            self.has_warned = True
        # All tokens are no choice: what knows them to be all goes the plain way.
        if isinstance(only, slice) and only.indices(at.tokens) == (0, at.tokens, 1):
            only = None
        across = None
        if memory is not None:
            first = cast(Block, self.blocks[0])
            across = first.cross_call(x, at, memory, memory_at, False, self.cross_encoding_of[0])
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        seen, left, last = [], only, self.blocks[-1]
        shared: dict | None = None if torch.compiler.is_compiling() else {}
        careful = cache is not None and not torch.compiler.is_compiling()
        with unchanged_if_refused(cache.layers) if careful else nullcontext():
            for layer, block in enumerate(self.blocks):
                of_layer = None if cache is None else cache.layers[layer]
                own = Call(at, at, mask_of[layer], self.encoding_of[layer], of_layer, need_weights, shared)
                if across is not None:
                    across = across._replace(encoding=self.cross_encoding_of[layer], need_weights=need_weights)
                if need_weights:
                    x, weights = block(x, memory=memory, calls=(own, across))
                    seen.append(weights)
                elif block is not last:
                    x = self.through(block, x, memory=memory, calls=(own, across))
                else:
                    # What nobody reads is not computed: the last block answers for the wanted tokens only.
                    x, left = self.through(block, x, memory=memory, only=only, calls=(own, across)), None
        return self.final_norm(x if left is None else x[:, left]), tuple(seen)

    def through(self, block: nn.Module, x: Tensor, **given: Any) -> Tensor:
        """What a block makes of x; with activation checkpointing its insides are computed again to go backward."""
        if self.activation_checkpointing and torch.is_grad_enabled():
            return cast(Tensor, checkpoint(block, x, use_reentrant=False, **given))
        return block(x, **given)

    def check(self, at: Positions, mask_of: list[Mask], cache: Cache | None, only: object) -> None:
        """Raises ValueError for a cache or tokens that do not fit, before any layer takes them in."""
        if only is not None and not isinstance(only, (slice, Tensor)):
            raise ValueError(
                f"only says which tokens by a slice, such as slice(-1, None), or a tensor of indices, got "
                f"{checks.shown(only)}"
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
        # What all layers have in common is said once.
        said = {name: of[0] if len(set(of)) == 1 else of for name, of in of_layers.items() if of}
        return ", ".join(f"{name}={value!r}" for name, value in said.items())
