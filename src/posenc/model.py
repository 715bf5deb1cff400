"""Small transformers with any positional encoding: decoder (a mini-GPT), encoder, and encoder-decoder.

Read from top to bottom: block, stack, and the three models.

Attention weights come back in one shape, beside the output: an attention gives a tensor [B, heads, rows, S], a block
gives its attention's, and a model a tuple with one entry for each layer that was asked for, in that order. A layer that
attends to two sequences tells them apart by name: {"self": ..., "cross": ...}.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, cast, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posenc import checks
from posenc.attention import Attention, Call, check_weights, directed_parts, warns
from posenc.cache import Cache, LayerCache, held_by, unchanged_if_refused
from posenc.catalogue import LayerSpec, Spec, build, build_layers
from posenc.config import Config, Configured, LayerWindow, config_of
from posenc.embedding import TokenPositionEmbedding
from posenc.encoding import Encoding
from posenc.generation import SLOTS, Choice, evaluating, generate, sight_for, stream, with_more
from posenc.inputs import where
from posenc.kernels.chosen_weights import Chosen, numbers
from posenc.masks import Mask, MaskLike, mask_for
from posenc.parts import FeedForward, begin, capped, norm_layer
from posenc.positions import Positions, PositionsLike, positions_for
from posenc.words import with_named_options

LayerWeights: TypeAlias = Tensor | dict[str, Tensor]
"""The attention weights of a layer: of its one attention, or of two as {"self": ..., "cross": ...}."""


class Block(Configured):
    """One transformer block: attention and feed-forward, each with a residual and a norm.

    norm_first:                     x + attention(norm(x)),        then x + feed_forward(norm(x))
    norm_first, branch_norm:        x + norm(attention(norm(x))),  then the same with feed_forward (Gemma 2)
    norm_first, parallel_residual:  x + attention(norm(x)) + feed_forward(norm(x)), a norm for each (GPT-NeoX)
    branch_norm:                    x + norm(attention(x)),        then x + norm(feed_forward(x)) (OLMo 2)
    none of them:                   norm(x + attention(x)),        then norm(x + feed_forward(x)), as in the original

    dim, heads, max_len to sinks   as in Config, or a Config in the place of dim; layers and window are the stack's
    cross      whether the block also attends to a second sequence (a decoder block of an encoder-decoder)
    encoding   the block's own encoding, as a spec or an Encoding: such a block stands alone, and also adds the encoding
               to its input. None in a stack, where the model adds once and passes the encoding to every block
    cross_encoding   the encoding of the attention to the second sequence, when the block stands alone
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
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.config = config
        encoding = None if encoding is None else build(encoding, config.shape(causal), **made)
        normed = partial(norm_layer, config.dim, config, **made)
        # Where the branches alone are normed, their inputs and sums are not.
        stream, branch = config.norm_first or not config.branch_norm, config.branch_norm
        self.attention = Attention(config, encoding=encoding, causal=causal, **made)
        self.attention_norm, self.attention_branch_norm = normed(stream), normed(branch)
        self.cross_attention = Attention(config, encoding=cross_encoding, causal=False, **made) if cross else None
        self.cross_norm, self.cross_branch_norm = normed(cross and stream), normed(cross and branch)
        kind, bias = config.feed_forward, config.has_bias("feed_forward")
        self.feed_forward = FeedForward(config.dim, config.inner, config.dropout, kind=kind, bias=bias, **made)
        self.feed_forward_norm, self.feed_forward_branch_norm = normed(stream), normed(branch)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The feed-forward layer begins as `init` says; attention sees to itself."""
        begin(self.config, [self.feed_forward.up_proj, self.feed_forward.gate_proj])
        begin(self.config, [self.feed_forward.down_proj], ends=True)

    @with_named_options
    def forward(
        self,
        x: Tensor,
        *,
        positions: PositionsLike = None,
        mask: MaskLike = None,
        cache: LayerCache | None = None,
        need_weights: bool | Chosen = False,
        encoding: Encoding | None = None,
        memory: Tensor | None = None,
        memory_positions: PositionsLike = None,
        cross_encoding: Encoding | None = None,
        only: slice | None = None,
        calls: tuple[Call, Call | None] | None = None,
    ) -> Tensor | tuple[Tensor, LayerWeights]:
        """The block's output, and with `need_weights` the attention weights of its layer.

        memory   [B, S, dim], the second sequence of a block with cross-attention, at `memory_positions`
        only     the tokens whose output is wanted; the others still serve as keys
        calls    what the two attentions are told, from a model that has checked it, in place of all but memory and only
        """
        if calls is None:
            if checks.floating("x", x).dim() != 3:
                raise ValueError(f"x must have shape [batch, tokens, {self.attention.dim}], got {list(x.shape)}")
            at = positions_for(x.shape[1], positions, batch=x.shape[0], device=x.device, held=held_by(cache))
            if encoding is None and self.attention.encoding is not None:
                x = self.attention.encoding.embed(x, at)
            own = self.attention.call_for(
                x, positions=at, mask=mask, cache=cache, need_weights=need_weights, encoding=encoding
            )
            calls = own, self.cross_call(x, at, memory, memory_positions, need_weights, cross_encoding)
            if cache is not None and not torch.compiler.is_compiling():
                with unchanged_if_refused([cache]):
                    return self.forward(x, memory=memory, only=only, calls=calls)
        own, across = calls
        y, seen = self.before(x, self.attention_norm), {}
        if only is None:
            y = self.attention(y, call=own)
        else:
            at = own.at.rows(only)
            own, across = own._replace(at=at), None if across is None else across._replace(at=at)
            x, y = x[:, only], self.attention(y[:, only], y, call=own)
        if own.need_weights:
            y, seen["self"] = y
        entered = x
        x = self.after(x, self.dropped(y), self.attention_norm, self.attention_branch_norm)
        if across is not None:
            assert self.cross_attention is not None
            read = entered if self.config.parallel_residual else x
            y = self.cross_attention(self.before(read, self.cross_norm), memory, call=across)
            if own.need_weights:
                y, seen["cross"] = y
            x = self.after(x, self.dropped(y), self.cross_norm, self.cross_branch_norm)
        read = entered if self.config.parallel_residual else x
        y = self.feed_forward(self.before(read, self.feed_forward_norm))
        x = self.after(x, y, self.feed_forward_norm, self.feed_forward_branch_norm)
        if not own.need_weights:
            return x
        return x, seen["self"] if across is None else seen

    def cross_call(
        self,
        x: Tensor,
        at: Positions,
        memory: Tensor | None,
        memory_positions: PositionsLike,
        need_weights: bool | Chosen,
        encoding: Encoding | None,
    ) -> Call | None:
        """What the attention to a second sequence is told, where the block has one. Raises ValueError as `forward`."""
        if self.cross_attention is None:
            if memory is not None:
                raise ValueError("this block has no cross-attention; build it with cross=True to give it a memory")
            return None
        if memory is None:
            raise ValueError("a block with cross-attention needs the memory to attend to")
        return self.cross_attention.call_for(
            x, memory, positions=at, key_positions=memory_positions, need_weights=need_weights, encoding=encoding
        )

    def before(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """What a branch reads."""
        return norm(x) if self.config.norm_first and norm is not None else x

    def dropped(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.config.dropout) if self.training and self.config.dropout else branch

    def after(self, x: Tensor, branch: Tensor, norm: nn.Module | None, branch_norm: nn.Module | None) -> Tensor:
        """The residual stream with what a branch gives."""
        branch = branch if branch_norm is None else branch_norm(branch)
        x = x + (branch if self.config.residual_scale == 1 else self.config.residual_scale * branch)
        return x if self.config.norm_first or norm is None else norm(x)

    def extra_repr(self) -> str:
        names = ("norm_first", "parallel_residual", "residual_scale")
        return ", ".join(f"{name}={getattr(self.config, name)}" for name in names)


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
        need_weights: bool | Chosen = False,
        memory: Tensor | None = None,
        memory_at: Positions | None = None,
        only: slice | None = None,
    ) -> tuple[Tensor, tuple[LayerWeights, ...]]:
        """Hidden states of all tokens, or of `only` some, and with `need_weights` those of the layers asked for."""
        mask = mask_for(mask, causal=self.causal)
        mask_of = [mask if window is None else mask.within(window) for window in self.window_of]
        check_weights(need_weights)
        self.check(at, mask_of, cache, only)
        if not self.has_warned and (at.loose or self.directed) and warns(self.directed, mask, at):
            self.has_warned = True
        # All tokens are no choice: what knows them to be all goes the plain way.
        if isinstance(only, slice) and only.indices(at.tokens) == (0, at.tokens, 1):
            only = None
        asked, in_layer = range(len(self.blocks)), need_weights
        if isinstance(need_weights, Chosen):
            asked = numbers(need_weights.layers, len(self.blocks), "layer")
            in_layer = replace(need_weights, layers=None)
        across = None
        if memory is not None:
            first = cast(Block, self.blocks[0])
            across = first.cross_call(x, at, memory, memory_at, False, self.cross_encoding_of[0])
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        seen, left, last = {}, only, self.blocks[-1]
        shared: dict | None = None if torch.compiler.is_compiling() else {}
        careful = cache is not None and not torch.compiler.is_compiling()
        with unchanged_if_refused(cache.layers) if careful else nullcontext():
            for layer, block in enumerate(self.blocks):
                wanted = in_layer if layer in asked else False
                of_layer = None if cache is None else cache.layers[layer]
                own = Call(at, at, mask_of[layer], self.encoding_of[layer], of_layer, wanted, shared)
                if across is not None:
                    across = across._replace(encoding=self.cross_encoding_of[layer], need_weights=wanted)
                if wanted:
                    x, seen[layer] = block(x, memory=memory, calls=(own, across))
                elif block is not last:
                    x = self.through(block, x, memory=memory, calls=(own, across))
                else:
                    # What nobody reads is not computed: the last block answers for the wanted tokens only.
                    x, left = self.through(block, x, memory=memory, only=only, calls=(own, across)), None
        if cache is not None:
            cache.took(at)
        return self.final_norm(x if left is None else x[:, left]), tuple(seen[layer] for layer in asked if need_weights)

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


def begin_ends(config: Config, embedding: TokenPositionEmbedding, output: nn.Module | None = None) -> None:
    """Give embedding and output their first weights, as `init` says; scaled tokens keep the deviation for the scale."""
    begin(config, [output] if embedding.scale else [embedding.token, output])


class Decoder(Configured):
    """A decoder-only language model (a mini-GPT) with any positional encoding.

    vocab      number of token ids
    dim, heads, layers, max_len to sinks   as in Config, or a Config in the place of dim
    encoding   a spec, an Encoding, or a tuple of them cycled over the layers: ("rotary", "rotary", "none")
    scale_tokens, tie_output   see TokenPositionEmbedding; whether the output layer is the token table
    hints      options that specs leave open, as in posenc.build

    ids [B, T] -> logits [B, T, vocab].
    Raises ValueError for ids out of range, empty sequences, unknown specs, and head counts that do not divide, and
    TypeError for an option that there is not.

    >>> model = Decoder(vocab=11, dim=32, heads=4, layers=2, encoding="rotary + alibi")
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 11])
    >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4).shape
    torch.Size([1, 7])
    """

    def __init__(
        self,
        vocab: int,
        dim: int | Config = 512,
        heads: int = 8,
        layers: int = 6,
        encoding: LayerSpec = "rotary",
        *,
        max_len: int = 2048,
        window: LayerWindow = None,
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
        embedding_norm: bool = False,
        qk_norm: bool | str = False,
        kernel: str = "auto",
        scale: float | None = None,
        softcap: float | None = None,
        output_softcap: float | None = None,
        init: str = "torch",
        dropout: float = 0.0,
        bias: bool | tuple[str, ...] = True,
        sinks: bool = False,
        scale_tokens: bool = False,
        tie_output: bool = False,
        hints: dict | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = config_of(locals())
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.vocab, self.config = vocab, config
        self.stack = Stack(config, encoding=encoding, causal=True, hints=hints, **made)
        self.embedding = TokenPositionEmbedding(
            vocab, config.dim, scale=scale_tokens, tied=tie_output, dropout=config.dropout, **made
        )
        self.output = None if tie_output else nn.Linear(config.dim, vocab, config.has_bias("output"), **made)
        # What `stream` compiled, by rows, slots, and whether no prompt was padded.
        self.graphs: dict[tuple[int, int, bool], Callable[..., Tensor]] = {}
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embedding and output begin as `init` says; blocks see to themselves."""
        begin_ends(self.config, self.embedding, self.output)

    @with_named_options
    def forward(
        self,
        ids: Tensor,
        *,
        positions: PositionsLike = None,
        padding: Tensor | None = None,
        mask: MaskLike = None,
        cache: Cache | None = None,
        need_weights: bool | Chosen = False,
        only: slice | None = None,
    ) -> Tensor | tuple[Tensor, tuple[LayerWeights, ...]]:
        """Logits [B, T, vocab], and with `need_weights` the attention weights [B, heads, T, S] of each layer.

        positions  Positions, ids, or nothing: 0, 1, 2, ..., or with a cache what follows the last token of each row
        padding    [B, T], true or 1 where a token is: instead of positions
        mask       who sees whom besides, as in Attention.forward: a decoder is causal whatever is added
        cache      from `cache()`; it takes in these tokens
        need_weights   whether to return the weights too, or which (Chosen: then of the chosen layers)
        only       which of the T tokens logits are wanted for
        """
        at = where(ids, self.vocab, positions, padding, cache)
        x = self.embedding(ids, at=at, encodings=self.stack.added)
        x, seen = self.stack(x, at, mask, cache=cache, need_weights=need_weights, only=only)
        logits = F.linear(x, self.embedding.token.weight) if self.output is None else self.output(x)
        logits = capped(logits, self.config.output_softcap)
        return (logits, seen) if need_weights else logits

    def cache(self, *, slots: int | None = None, rolling: bool = False) -> Cache:
        """An empty KV cache for this model: growing, or static with a number of slots (tokens).

        A `rolling` one keeps the newest tokens only, which takes a window in every layer, or in the mask of each call:
        of at most as many tokens as there are slots, and window + chunk - 1 slots for later chunks of several tokens.
        """
        return Cache(len(self.stack.blocks), slots=slots, rolling=rolling)

    @with_named_options
    def stream(
        self,
        ids: Tensor,
        max_new_tokens: int,
        *,
        padding: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        eos_token_id: int | None = None,
        seed: int = 0,
        compiled: bool | None = None,
        samples: int | None = None,
        sinks: int | None = None,
        window: int | None = None,
    ) -> Iterator[Tensor]:
        """Up to `max_new_tokens` more ids for each row of ids [B, T], each [B] as it is chosen, through a KV cache.

        temperature  0 takes the likeliest token; above, tokens are drawn from the softmax of logits / temperature
        top_k        draw among the k likeliest only
        eos_token_id   after this id a row repeats it; generation ends when all rows have
        padding      [B, T], true where a token is; pad prompts of different length on the left
        compiled     whether each token behind the prompt goes through one compiled graph and a static cache, which is
                     kept for later calls of as many rows and about as many tokens; None: where it is there already
        samples      so many texts for each prompt, drawn apart; each id is [B * samples], those of a prompt together
        window       a text without an end in bounded memory: of all tokens only so many of the newest are held, and
        sinks        so many of the first ones, behind which the others move up; default 4 (see generation.Sight)

        The model is without dropout until the last id was taken, or the iterator is closed. Compiling takes seconds for
        each layer, and saves a fifth of a token's time in a small model: it pays after some ten thousand tokens.
        """
        choice = Choice(self.vocab, temperature, top_k, eos_token_id, seed)
        texts = 1 if samples is None else checks.whole("samples", samples, 1)
        if texts > 1 and choice.greedy:
            raise ValueError("the likeliest text is one, and samples of it are all the same; give temperature above 0")
        checks.kind("compiled", compiled, bool | None)
        sight = sight_for(sinks, window)
        if sight is not None:
            sight.check(self.stack.encoding_of)
            if compiled:
                raise ValueError(
                    "a compiled graph counts its slots, and with a window tokens move; leave one of them out"
                )
        length = ids.shape[-1] + max_new_tokens if type(max_new_tokens) is int and ids.dim() else 0
        slots = -(-length // SLOTS) * SLOTS
        graph = len(ids) * texts, slots, padding is None
        step, cache = None, None
        if compiled or (compiled is None and sight is None and graph in self.graphs):
            step = self.graphs.setdefault(graph, cast(Any, torch.compile(self, dynamic=False)))
            cache = self.cache(slots=slots)
        cache = self.cache() if cache is None else cache
        return stream(self, self, cache, ids, max_new_tokens, choice, step, padding=padding, samples=texts, sight=sight)

    @overload
    def generate(self, ids: Tensor, max_new_tokens: int, **chosen: Any) -> Tensor: ...

    @overload
    def generate(self, ids: Sequence[Tensor], max_new_tokens: int, **chosen: Any) -> list[Tensor]: ...

    def generate(self, ids: Any, max_new_tokens: Any = None, **chosen: Any) -> Tensor | list[Tensor]:
        """ids [B, T] with up to `max_new_tokens` more, as `stream` gives them; its options are those of `stream`.

        Prompts of different lengths are a list of ids [T], and come back as a list, each up to its end. With `samples`
        texts are [B, samples, T + max_new_tokens]. Raises ValueError as `stream` does.

        >>> model = Decoder(vocab=11, dim=32, heads=4, layers=2)
        >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, samples=2, temperature=1.0).shape
        torch.Size([1, 2, 7])
        >>> [len(text) for text in model.generate([torch.tensor([1]), torch.tensor([1, 2, 3])], max_new_tokens=4)]
        [5, 7]
        """
        return generate(self, ids, max_new_tokens, **chosen)

    def extra_repr(self) -> str:
        return f"output_softcap={self.config.output_softcap}"

    def __getstate__(self) -> dict[str, Any]:
        # Graphs are of this process, and of this very model.
        return super().__getstate__() | {"graphs": {}}


class Encoder(Configured):
    """An encoder: every token sees all tokens. ids [B, T] -> hidden states [B, T, dim].

    The arguments are those of Decoder; there is no output layer.

    >>> Encoder(vocab=11, dim=32, heads=4, layers=2, encoding="sinusoidal")(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 32])
    """

    def __init__(
        self,
        vocab: int,
        dim: int | Config = 512,
        heads: int = 8,
        layers: int = 6,
        encoding: LayerSpec = "sinusoidal",
        *,
        max_len: int = 2048,
        window: LayerWindow = None,
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
        embedding_norm: bool = False,
        qk_norm: bool | str = False,
        kernel: str = "auto",
        scale: float | None = None,
        softcap: float | None = None,
        init: str = "torch",
        dropout: float = 0.0,
        bias: bool | tuple[str, ...] = True,
        sinks: bool = False,
        scale_tokens: bool = False,
        hints: dict | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = config_of(locals())
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.vocab, self.config = vocab, config
        self.stack = Stack(config, encoding=encoding, causal=False, hints=hints, **made)
        self.embedding = TokenPositionEmbedding(vocab, config.dim, scale=scale_tokens, dropout=config.dropout, **made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The embedding begins as `init` says; blocks see to themselves."""
        begin_ends(self.config, self.embedding)

    @with_named_options
    def forward(
        self,
        ids: Tensor,
        *,
        positions: PositionsLike = None,
        padding: Tensor | None = None,
        mask: MaskLike = None,
        need_weights: bool | Chosen = False,
    ) -> Tensor | tuple[Tensor, tuple[LayerWeights, ...]]:
        """Hidden states [B, T, dim], and with `need_weights` the attention weights of each layer, or what is chosen."""
        at = where(ids, self.vocab, positions, padding, None)
        x = self.embedding(ids, at=at, encodings=self.stack.added)
        x, seen = self.stack(x, at, mask, need_weights=need_weights)
        return (x, seen) if need_weights else x


class EncoderDecoder(Configured):
    """The original transformer's shape: an encoder, and a decoder that attends to it, with any positional encoding.

    encoding        of both stacks: a spec, or a tuple cycled over the layers (specs, not instances: each stack builds
                    its own)
    cross_encoding  between the decoder's queries and the encoder's keys; "none" as in the original and in T5
    norm_first      False as in the original, where options are given one by one
    window          of both stacks; the decoder sees all of the source
    tie_output      whether one table serves source, target and output, as in the original
    The other arguments are those of Decoder. The original's training recipe is
    that of the task `translation`, with posenc.lab.experiments.recipes.original_rate.

    source ids [B, S], target ids [B, T] -> logits [B, T, vocab].
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.

    >>> model = EncoderDecoder(vocab=11, dim=32, heads=4, layers=2)
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 11])
    """

    def __init__(
        self,
        vocab: int,
        dim: int | Config = 512,
        heads: int = 8,
        layers: int = 6,
        encoding: LayerSpec = "sinusoidal",
        *,
        max_len: int = 2048,
        window: LayerWindow = None,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        intermediate_size: int | None = None,
        feed_forward: str = "gelu",
        norm: str = "layer",
        norm_first: bool = False,
        norm_eps: float = 1e-5,
        branch_norm: bool = False,
        parallel_residual: bool = False,
        residual_scale: float = 1.0,
        embedding_norm: bool = False,
        qk_norm: bool | str = False,
        kernel: str = "auto",
        scale: float | None = None,
        softcap: float | None = None,
        output_softcap: float | None = None,
        init: str = "torch",
        dropout: float = 0.0,
        bias: bool | tuple[str, ...] = True,
        sinks: bool = False,
        cross_encoding: LayerSpec = "none",
        scale_tokens: bool = True,
        tie_output: bool = True,
        hints: dict | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = config_of(locals())
        super().__init__()
        for spec in encoding if isinstance(encoding, (list, tuple)) else [encoding]:
            if isinstance(spec, Encoding):
                raise ValueError(
                    f"encoder and decoder build an encoding each, so give a spec instead of the instance: '{spec}'"
                )
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.vocab, self.config = vocab, config
        self.encoder = Stack(config, encoding=encoding, causal=False, hints=hints, **made)
        across: dict[str, Any] = {"cross": True, "cross_encoding": cross_encoding}
        self.decoder = Stack(config, encoding=encoding, causal=True, hints=hints, **across, **made)
        self.embedding = TokenPositionEmbedding(
            vocab, config.dim, scale=scale_tokens, tied=tie_output, dropout=config.dropout, **made
        )
        self.output = None if tie_output else nn.Linear(config.dim, vocab, config.has_bias("output"), **made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embedding and output begin as `init` says; blocks see to themselves."""
        begin_ends(self.config, self.embedding, self.output)

    @with_named_options
    def encode(
        self, source: Tensor, *, positions: PositionsLike = None, padding: Tensor | None = None
    ) -> tuple[Tensor, Positions]:
        """The encoder's hidden states [B, S, dim] and where they are."""
        at = where(source, self.vocab, positions, padding, None)
        x = self.embedding(source, at=at, encodings=self.encoder.added)
        return self.encoder(x, at)[0], at

    @with_named_options
    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        positions: PositionsLike = None,
        source_positions: PositionsLike = None,
        padding: Tensor | None = None,
        source_padding: Tensor | None = None,
        cache: Cache | None = None,
        memory: tuple[Tensor, Positions] | None = None,
        need_weights: bool | Chosen = False,
        only: slice | None = None,
    ) -> Tensor | tuple[Tensor, tuple[LayerWeights, ...]]:
        """Logits [B, T, vocab], and with `need_weights` the decoder's weights by layer: {"self": ..., "cross": ...}.

        A choice (Chosen) is one of the decoder's layers, heads and rows, and holds for both.
        `memory`, from `encode`, spares encoding the source again. `only` is as in Decoder.
        """
        if memory is None:
            memory = self.encode(source, positions=source_positions, padding=source_padding)
        elif source_positions is not None or source_padding is not None:
            raise ValueError("memory says where the source is; give source_positions and source_padding to encode")
        hidden, source_at = memory if isinstance(memory, tuple) and len(memory) == 2 else (memory, None)
        if not (isinstance(hidden, Tensor) and isinstance(source_at, Positions)):
            raise ValueError(f"memory is the pair that encode gives, states and positions, got {checks.shown(memory)}")
        at = where(target, self.vocab, positions, padding, cache)
        x = self.embedding(target, at=at, encodings=self.decoder.added)
        x, seen = self.decoder(
            x, at, cache=cache, need_weights=need_weights, memory=hidden, memory_at=source_at, only=only
        )
        logits = F.linear(x, self.embedding.token.weight) if self.output is None else self.output(x)
        logits = capped(logits, self.config.output_softcap)
        return (logits, seen) if need_weights else logits

    def cache(self, *, slots: int | None = None) -> Cache:
        """An empty KV cache for the decoder."""
        return Cache(len(self.decoder.blocks), slots=slots)

    @with_named_options
    def stream(
        self,
        source: Tensor,
        start: Tensor,
        max_new_tokens: int,
        *,
        source_padding: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        eos_token_id: int | None = None,
        seed: int = 0,
    ) -> Iterator[Tensor]:
        """Up to `max_new_tokens` ids for each row of `start` [B, T], at least a beginning token; as Decoder.stream."""
        choice = Choice(self.vocab, temperature, top_k, eos_token_id, seed)
        with torch.no_grad(), evaluating(self):
            logits_of = partial(self, source, memory=self.encode(source, padding=source_padding))
        return stream(self, logits_of, self.cache(), start, max_new_tokens, choice)

    def generate(self, source: Tensor, start: Tensor, max_new_tokens: Any = None, **chosen: Any) -> Tensor:
        """`start` [B, T] with up to `max_new_tokens` more ids, as `stream` gives them; it takes its options too."""
        return with_more(start, self.stream(source, start, max_new_tokens, **chosen))

    def extra_repr(self) -> str:
        return f"output_softcap={self.config.output_softcap}"


__all__ = ["Block", "Decoder", "Encoder", "EncoderDecoder", "FeedForward", "Stack", "TokenPositionEmbedding"]
