"""Small transformers with any positional encoding: decoder (a mini-GPT), encoder, and encoder-decoder.

Read from top to bottom: token and position embedding, feed-forward, block, stack, and the three models.
"""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks, masks
from posenc.attention import Attention
from posenc.cache import Cache, LayerCache, held_by
from posenc.catalogue import LayerSpec, Spec, build, build_layers
from posenc.encoding import Encoding, Shape, parts_of
from posenc.kernels.chosen_weights import Chosen, numbers
from posenc.masks import MaskLike, mask_for
from posenc.positions import Positions, PositionsLike, positions_for
from posenc.watched import is_held, may_be_read

NORMS = ("pre", "post")

LayerWindow: TypeAlias = int | tuple[int | None, ...] | None
"""How many tokens a layer sees back, or None for all; a tuple is cycled over the layers."""


class TokenPositionEmbedding(nn.Module):
    """Token ids in, dropout(scale * token + position) out, with any encoding that adds to the embeddings.

    vocab     number of token ids
    dim       width of the embeddings (channels)
    encoding  a spec, an Encoding, or None to add no position here
    scale     whether tokens are multiplied by sqrt(dim). Right when their initial standard deviation is dim^-1/2, as in
              the original with its tied output: the product then has the norm of the position. With this option tokens
              are therefore initialised so. Wrong with PyTorch's own N(0, 1): such tokens have norm sqrt(dim) already,
              against sqrt(dim/2) for a sinusoidal position, and multiplying again makes them sqrt(2 dim) times as long
              (32 times at dim 512) and drowns the position
    dropout   share of the channels dropped in training
    max_len   the trained length (tokens) that a spec such as "learned" needs

    ids [B, T] -> [B, T, dim].
    Raises ValueError for ids outside the vocabulary, an empty sequence, and encodings that add nothing.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.4 and 3.5.

    >>> embedding = TokenPositionEmbedding(vocab=10, dim=8, encoding="sinusoidal")
    >>> embedding(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 8])
    """

    @checks.annotated
    def __init__(
        self,
        vocab: int,
        dim: int,
        encoding: Spec | None = None,
        *,
        scale: bool = False,
        dropout: float = 0.0,
        max_len: int = 2048,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if checks.whole("vocab", vocab) < 1:
            raise ValueError(f"vocab must be 1 or more, got {vocab}")
        self.vocab, self.dim, self.scale = vocab, dim, scale
        self.token = nn.Embedding(vocab, checks.whole("dim", dim, 1), device=device, dtype=dtype)
        self.dropout = nn.Dropout(checks.share("dropout", dropout))
        self.encoding: Encoding | None = None
        if encoding is not None:
            self.encoding = build(encoding, Shape(dim, 1, dim, max_len), device=device, dtype=dtype)
            others = [part for part in parts_of(self.encoding) if part.doors - {"embed"}]
            if others:
                raise ValueError(f"{others[0]} does more than add to embeddings; give it to the attention instead")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.token.weight, std=self.dim**-0.5 if self.scale else 1.0)

    def forward(self, ids: Tensor, *, positions: PositionsLike = None, encodings: tuple[Encoding, ...] = ()) -> Tensor:
        """Embeddings of ids [B, T]; `encodings` are added besides the embedding's own (a model passes its own)."""
        check_ids(ids, self.vocab)
        at = positions_for(ids.shape[1], positions, batch=ids.shape[0], device=ids.device)
        x = self.token_vectors(ids)
        # A class of tensors may follow what is made of it, as a mode may.
        owned = type(x) is Tensor and not is_held(self.token)
        return self.dropout(self.position(x, at, encodings, in_place=owned))

    def token_vectors(self, ids: Tensor) -> Tensor:
        """scale * token, before the position is added."""
        x = self.token(ids)
        return x * math.sqrt(self.dim) if self.scale else x

    def position(
        self, x: Tensor, at: Positions, encodings: tuple[Encoding, ...] = (), *, in_place: bool = False
    ) -> Tensor:
        """x [B, T, dim] with all positions added; `in_place` allows to overwrite it."""
        for encoding in encodings if self.encoding is None else (self.encoding, *encodings):
            x = encoding.embed_in_place(x, at) if in_place else encoding.embed(x, at)
        return x


class FeedForward(nn.Sequential):
    """dim -> hidden -> dim with a GELU between, for each token alone."""

    @checks.annotated
    def __init__(
        self,
        dim: int,
        hidden: int,
        dropout: float = 0.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        checks.whole("dim", dim, 1), checks.whole("hidden", hidden, 1), checks.share("dropout", dropout)
        super().__init__(nn.Linear(dim, hidden, **made), nn.GELU(), nn.Linear(hidden, dim, **made), nn.Dropout(dropout))


class Block(nn.Module):
    """One transformer block: attention and feed-forward, each with a residual and a layer norm.

    pre-norm:   x + attention(norm(x)),  then x + feed_forward(norm(x))
    post-norm:  norm(x + attention(x)),  then norm(x + feed_forward(x)), as in the original

    dim, heads, kv_heads, head_dim, kernel, scale   as in Attention
    hidden     width of the feed-forward layer (channels; default 4 dim)
    norm       "pre" or "post"
    cross      whether the block also attends to a second sequence (a decoder block of an encoder-decoder)
    encoding   the block's own encoding, as a spec or an Encoding: such a block stands alone, and also adds the encoding
               to its input. None in a stack, where the model adds once and passes the encoding to every block
    cross_encoding   the encoding of the attention to the second sequence, when the block stands alone

    x [B, T, dim] -> [B, T, dim].
    Raises ValueError for an unknown norm and as Attention does.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1; pre-norm: Xiong et al. 2020, arXiv:2002.04745.

    >>> Block(64, heads=4, encoding="sinusoidal")(torch.randn(1, 5, 64)).shape
    torch.Size([1, 5, 64])
    """

    @checks.annotated
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden: int | None = None,
        norm: str = "pre",
        cross: bool = False,
        encoding: Spec | None = None,
        cross_encoding: Spec | None = None,
        kernel: str = "auto",
        scale: float | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        max_len: int = 2048,
        causal: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {checks.shown(norm)}")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        options: dict[str, Any] = {
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "kernel": kernel,
            "scale": scale,
            "dropout": dropout,
            "bias": bias,
            "max_len": max_len,
            **made,
        }
        self.norm = norm
        self.attention = Attention(dim, heads, encoding=encoding, causal=causal, **options)
        self.attention_norm = nn.LayerNorm(dim, **made)
        self.cross_attention = (
            Attention(dim, heads, encoding=cross_encoding, causal=False, **options) if cross else None
        )
        self.cross_norm = nn.LayerNorm(dim, **made) if cross else None
        self.feed_forward = FeedForward(dim, 4 * dim if hidden is None else hidden, dropout, **made)
        self.feed_forward_norm = nn.LayerNorm(dim, **made)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        *,
        positions: PositionsLike = None,
        mask: MaskLike = None,
        cache: LayerCache | None = None,
        weights: bool | Chosen = False,
        encoding: Encoding | None = None,
        memory: Tensor | None = None,
        memory_positions: PositionsLike = None,
        cross_encoding: Encoding | None = None,
        only: slice | None = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """The block's output, and with `weights` the attention weights as {"self": ..., "cross": ...}.

        memory   [B, S, dim], the second sequence of a block with cross-attention, at `memory_positions`
        only     the tokens whose output is wanted; the others still serve as keys
        """
        if checks.floating("x", x).dim() != 3:
            raise ValueError(f"x must have shape [batch, tokens, {self.attention.dim}], got {list(x.shape)}")
        at = positions_for(x.shape[1], positions, batch=x.shape[0], device=x.device, held=held_by(cache))
        if encoding is None and self.attention.encoding is not None:
            x = self.attention.encoding.embed(x, at)
        seen: dict[str, Tensor] = {}
        wanted = slice(None) if only is None else only

        def attend(attention: Attention, name: str, **given) -> Callable[[Tensor], Tensor]:
            def sublayer(x: Tensor) -> Tensor:
                if only is not None and name == "self":
                    given.update(key=x, key_positions=at)
                    x = x[:, only]
                out = attention(x, positions=at if only is None else at.rows(only), weights=weights, **given)
                if weights:
                    out, seen[name] = out
                return self.dropout(out)

            return sublayer

        rule = attend(self.attention, "self", mask=mask, cache=cache, encoding=encoding)
        x = self.residual(x, self.attention_norm, rule, wanted)
        if self.cross_attention is not None and self.cross_norm is not None:
            if memory is None:
                raise ValueError("a block with cross-attention needs the memory to attend to")
            given = {"key": memory, "key_positions": memory_positions, "encoding": cross_encoding}
            x = self.residual(x, self.cross_norm, attend(self.cross_attention, "cross", **given))
        elif memory is not None:
            raise ValueError("this block has no cross-attention; build it with cross=True to give it a memory")
        x = self.residual(x, self.feed_forward_norm, self.feed_forward)
        return (x, seen) if weights else x

    def residual(
        self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor], only: slice = slice(None)
    ) -> Tensor:
        return x[:, only] + sublayer(norm(x)) if self.norm == "pre" else norm(x[:, only] + sublayer(x))


class Stack(nn.Module):
    """Blocks behind one another, and the encodings that they use.

    The stack owns the encodings: `encodings` holds each once, `encoding_of` says which one a layer uses. A tuple of
    specs is cycled over the layers, and so is a tuple of windows: a layer with one sees only tokens fewer than that
    many away. Under FSDP, shard the blocks and the whole model: encodings go with the whole, since blocks call their
    doors and not their `forward`.
    """

    @checks.annotated
    def __init__(
        self,
        dim: int,
        heads: int,
        layers: int,
        *,
        encoding: LayerSpec,
        max_len: int,
        causal: bool,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden: int | None = None,
        norm: str = "pre",
        cross: bool = False,
        cross_encoding: LayerSpec = "none",
        window: LayerWindow = None,
        kernel: str = "auto",
        scale: float | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        hints: dict | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if checks.whole("layers", layers) < 1:
            raise ValueError(f"a stack needs at least one layer, got {layers}")
        cycle = window if isinstance(window, tuple) else (window,)
        if not cycle:
            raise ValueError("window needs at least one size or None for the layers, got an empty tuple")
        self.window_of = tuple(cycle[layer % len(cycle)] for layer in range(layers))
        for size in cycle:
            # Only to have a wrong size refused now, and not at the first call.
            masks.window(size) if size is not None else masks.bidirectional()
        shape = (
            Shape.of(dim, heads, max_len, causal) if head_dim is None else Shape(dim, heads, head_dim, max_len, causal)
        )
        # A sum is used by a layer, and its parts are owned; in a tuple nothing is registered a second time.
        owned, used = build_layers(encoding, shape, layers, hints=hints, device=device, dtype=dtype)
        self.encoding_of = tuple(used)
        self.encodings = nn.ModuleList(owned)
        self.cross_encoding_of: tuple[Encoding, ...] = ()
        if cross:
            apart = Shape(shape.dim, shape.heads, shape.head_dim, max_len, causal=False)
            owned, used = build_layers(cross_encoding, apart, layers, hints=hints, device=device, dtype=dtype)
            self.cross_encoding_of = tuple(used)
            if any("embed" in own.doors for own in owned):
                raise ValueError(
                    f"cross_encoding adds to embeddings, and between two sequences there are none; got {cross_encoding}"
                )
            self.cross_encodings = nn.ModuleList(owned)
        self.blocks = nn.ModuleList(
            Block(
                dim,
                heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                hidden=hidden,
                norm=norm,
                cross=cross,
                kernel=kernel,
                scale=scale,
                dropout=dropout,
                bias=bias,
                max_len=max_len,
                device=device,
                dtype=dtype,
            )
            for _ in range(layers)
        )
        # Post-norm blocks end with a norm of their own.
        self.final_norm = nn.LayerNorm(dim, device=device, dtype=dtype) if norm == "pre" else nn.Identity()

    def added(self) -> tuple[Encoding, ...]:
        """The encodings that add to the embeddings, each once."""
        return tuple(own for own in cast(list[Encoding], list(self.encodings)) if "embed" in own.doors)

    def forward(
        self,
        x: Tensor,
        at: Positions,
        mask: MaskLike,
        *,
        cache: Cache | None = None,
        weights: bool | Chosen = False,
        memory: Tensor | None = None,
        memory_at: Positions | None = None,
        only: slice | None = None,
    ) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """Hidden states of all tokens, or of `only` some, and with `weights` the attention weights of each layer."""
        seen = {}
        if not isinstance(weights, (bool, Chosen)):
            raise ValueError(f"weights are True, False or Chosen, got {checks.shown(weights)}")
        layers = numbers(weights.layers if isinstance(weights, Chosen) else None, len(self.blocks), "layer")
        in_layer = replace(weights, layers=None) if isinstance(weights, Chosen) else weights
        mask = mask_for(mask)
        mask_of = [mask if window is None else mask.within(window) for window in self.window_of]
        if only is not None and not isinstance(only, (slice, Tensor)):
            raise ValueError(
                f"only says which tokens by a slice, such as slice(-1, None), or a tensor of indices, got "
                f"{checks.shown(only)}"
            )
        if cache is not None:
            if len(cache.layers) != len(self.blocks):
                raise ValueError(
                    f"the cache is for {len(cache.layers)} layers, and this model has {len(self.blocks)}; make it with "
                    f"model.cache()"
                )
            # Before any layer takes them in: a refusal leaves the cache as it was.
            for of_layer, in_sight in zip(cache.layers, mask_of, strict=True):
                of_layer.check(at, in_sight)
        for layer, block in enumerate(self.blocks):
            asked = in_layer if layer in layers else False
            # What nobody reads is not computed: the last block answers for the wanted tokens only.
            last = only if block is self.blocks[-1] and not asked else None
            given: dict[str, Any] = {
                "positions": at,
                "mask": mask_of[layer],
                "weights": asked,
                "encoding": self.encoding_of[layer],
            }
            if memory is not None:
                given |= {
                    "memory": memory,
                    "memory_positions": memory_at,
                    "cross_encoding": self.cross_encoding_of[layer],
                }
            out = block(x, cache=None if cache is None else cache.layers[layer], only=last, **given)
            if asked:
                out, seen[layer] = out
            x = out
        if cache is not None:
            cache.took(at)
        if only is not None and last is None:
            x = x[:, only]
        return self.final_norm(x), [seen[layer] for layer in layers] if weights else []


class Decoder(nn.Module):
    """A decoder-only language model (a mini-GPT) with any positional encoding.

    vocab      number of token ids
    dim        width of the model (channels)
    heads      number of query heads
    layers     number of blocks
    encoding   a spec, an Encoding, or a tuple of them cycled over the layers: ("rotary", "rotary", "none")
    max_len    the trained length (tokens): rows of a learned table, horizon of a schedule; not a limit of the model
    window     tokens that a layer sees back (itself included), or None for all; a tuple is cycled over the layers:
               ("rotary", "rotary", "rotary", "none") with (512, 512, 512, None)
    scale_tokens, tie_output   see TokenPositionEmbedding; whether the output layer is the token table
    kv_heads, head_dim, hidden, norm, kernel, scale, dropout, bias   as in Block and Attention

    ids [B, T] -> logits [B, T, vocab].
    Raises ValueError for ids out of range, empty sequences, unknown specs, and head counts that do not divide.

    >>> model = Decoder(vocab=11, dim=32, heads=4, layers=2, encoding="rotary + alibi")
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 11])
    >>> model.generate(torch.tensor([[1, 2, 3]]), tokens=4).shape
    torch.Size([1, 7])
    """

    @checks.annotated
    def __init__(
        self,
        vocab: int,
        dim: int = 512,
        heads: int = 8,
        layers: int = 6,
        encoding: LayerSpec = "rotary",
        *,
        max_len: int = 2048,
        window: LayerWindow = None,
        scale_tokens: bool = False,
        tie_output: bool = False,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden: int | None = None,
        norm: str = "pre",
        kernel: str = "auto",
        scale: float | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        hints: dict | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.vocab, self.max_len = vocab, max_len
        self.stack = Stack(
            dim,
            heads,
            layers,
            encoding=encoding,
            max_len=max_len,
            causal=True,
            kv_heads=kv_heads,
            head_dim=head_dim,
            hidden=hidden,
            norm=norm,
            window=window,
            kernel=kernel,
            scale=scale,
            dropout=dropout,
            bias=bias,
            hints=hints,
            **made,
        )
        self.embedding = TokenPositionEmbedding(vocab, dim, scale=scale_tokens, dropout=dropout, **made)
        self.output = None if tie_output else nn.Linear(dim, vocab, **made)

    def forward(
        self,
        ids: Tensor,
        *,
        positions: PositionsLike = None,
        padding: Tensor | None = None,
        mask: MaskLike = None,
        cache: Cache | None = None,
        weights: bool | Chosen = False,
        only: slice | None = None,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Logits [B, T, vocab], and with `weights` the attention weights [B, heads, T, S] of each layer.

        positions  Positions, ids, or nothing: 0, 1, 2, ..., or with a cache what follows the last token of each row
        padding    [B, T], true or 1 where a token is: instead of positions
        mask       who sees whom; default causal
        cache      from `cache()`; it takes in these tokens
        weights    whether to return the weights too, or which (Chosen: then of the chosen layers)
        only       which of the T tokens logits are wanted for
        """
        at = where(ids, positions, padding, cache)
        x = self.embedding(ids, positions=at, encodings=self.stack.added())
        x, seen = self.stack(x, at, masks.causal() if mask is None else mask, cache=cache, weights=weights, only=only)
        logits = F.linear(x, self.embedding.token.weight) if self.output is None else self.output(x)
        return (logits, [layer["self"] for layer in seen]) if weights else logits

    def cache(self, *, slots: int | None = None, rolling: bool = False) -> Cache:
        """An empty KV cache for this model: growing, or static with a number of slots (tokens).

        A `rolling` one keeps the newest tokens only, which takes a window in every layer, or in the mask of each call:
        of at most as many tokens as there are slots, and window + chunk - 1 slots for later chunks of several tokens.
        """
        return Cache(len(self.stack.blocks), slots=slots, rolling=rolling)

    @torch.no_grad()
    def generate(
        self,
        ids: Tensor,
        tokens: int,
        *,
        padding: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        stop: int | None = None,
        seed: int = 0,
    ) -> Tensor:
        """ids [B, T] with up to `tokens` more, one at a time through a KV cache.

        temperature  0 takes the likeliest token; above, tokens are drawn from the softmax of logits / temperature
        top_k        draw among the k likeliest only
        stop         after this id a row repeats it; generation ends when all rows have
        padding      [B, T], true where a token is; pad prompts of different length on the left
        """
        with evaluating(self):
            return generate(
                self,
                self.cache(),
                ids,
                tokens,
                vocab=self.vocab,
                padding=padding,
                temperature=temperature,
                top_k=top_k,
                stop=stop,
                seed=seed,
            )


class Encoder(nn.Module):
    """An encoder: every token sees all tokens. ids [B, T] -> hidden states [B, T, dim].

    The arguments are those of Decoder; there is no output layer.

    >>> Encoder(vocab=11, dim=32, heads=4, layers=2, encoding="sinusoidal")(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 32])
    """

    @checks.annotated
    def __init__(
        self,
        vocab: int,
        dim: int = 512,
        heads: int = 8,
        layers: int = 6,
        encoding: LayerSpec = "sinusoidal",
        *,
        max_len: int = 2048,
        window: LayerWindow = None,
        scale_tokens: bool = False,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden: int | None = None,
        norm: str = "pre",
        kernel: str = "auto",
        scale: float | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        hints: dict | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.vocab, self.max_len = vocab, max_len
        self.stack = Stack(
            dim,
            heads,
            layers,
            encoding=encoding,
            max_len=max_len,
            causal=False,
            kv_heads=kv_heads,
            head_dim=head_dim,
            hidden=hidden,
            norm=norm,
            window=window,
            kernel=kernel,
            scale=scale,
            dropout=dropout,
            bias=bias,
            hints=hints,
            **made,
        )
        self.embedding = TokenPositionEmbedding(vocab, dim, scale=scale_tokens, dropout=dropout, **made)

    def forward(
        self,
        ids: Tensor,
        *,
        positions: PositionsLike = None,
        padding: Tensor | None = None,
        mask: MaskLike = None,
        weights: bool | Chosen = False,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Hidden states [B, T, dim], and with `weights` the attention weights of each layer, or what is chosen."""
        at = where(ids, positions, padding, None)
        x = self.embedding(ids, positions=at, encodings=self.stack.added())
        x, seen = self.stack(x, at, masks.bidirectional() if mask is None else mask, weights=weights)
        return (x, [layer["self"] for layer in seen]) if weights else x


class EncoderDecoder(nn.Module):
    """The original transformer's shape: an encoder, and a decoder that attends to it, with any positional encoding.

    encoding        of both stacks: a spec, or a tuple cycled over the layers (specs, not instances: each stack builds
                    its own)
    cross_encoding  between the decoder's queries and the encoder's keys; "none" as in the original and in T5
    norm            "post" as in the original
    tie_output      whether one table serves source, target and output, as in the original
    The other arguments are those of Decoder. For the original's training recipe see posenc.lab.recipes.original.

    source ids [B, S], target ids [B, T] -> logits [B, T, vocab].
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.

    >>> model = EncoderDecoder(vocab=11, dim=32, heads=4, layers=2)
    >>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape
    torch.Size([1, 2, 11])
    """

    @checks.annotated
    def __init__(
        self,
        vocab: int,
        dim: int = 512,
        heads: int = 8,
        layers: int = 6,
        encoding: LayerSpec = "sinusoidal",
        *,
        cross_encoding: LayerSpec = "none",
        max_len: int = 2048,
        scale_tokens: bool = True,
        tie_output: bool = True,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        hidden: int | None = None,
        norm: str = "post",
        kernel: str = "auto",
        scale: float | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for spec in encoding if isinstance(encoding, (list, tuple)) else [encoding]:
            if isinstance(spec, Encoding):
                raise ValueError(
                    f"encoder and decoder build an encoding each, so give a spec instead of the instance: '{spec}'"
                )
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        options: dict[str, Any] = {
            "encoding": encoding,
            "max_len": max_len,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "hidden": hidden,
            "norm": norm,
            "kernel": kernel,
            "scale": scale,
            "dropout": dropout,
            "bias": bias,
            **made,
        }
        self.vocab, self.max_len = vocab, max_len
        self.encoder = Stack(dim, heads, layers, causal=False, **options)
        self.decoder = Stack(dim, heads, layers, causal=True, cross=True, cross_encoding=cross_encoding, **options)
        self.embedding = TokenPositionEmbedding(vocab, dim, scale=scale_tokens, dropout=dropout, **made)
        self.output = None if tie_output else nn.Linear(dim, vocab, **made)

    def encode(
        self, source: Tensor, *, positions: PositionsLike = None, padding: Tensor | None = None
    ) -> tuple[Tensor, Positions]:
        """The encoder's hidden states [B, S, dim] and where they are."""
        at = where(source, positions, padding, None)
        x = self.embedding(source, positions=at, encodings=self.encoder.added())
        return self.encoder(x, at, masks.bidirectional())[0], at

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
        weights: bool | Chosen = False,
    ) -> Tensor | tuple[Tensor, list[dict[str, Tensor]]]:
        """Logits [B, T, vocab], and with `weights` the decoder's weights of each layer: {"self": ..., "cross": ...}.

        A choice (Chosen) is one of the decoder's layers, heads and rows, and holds for both.
        `memory`, from `encode`, spares encoding the source again.
        """
        if memory is None:
            memory = self.encode(source, positions=source_positions, padding=source_padding)
        elif source_positions is not None or source_padding is not None:
            raise ValueError("memory says where the source is; give source_positions and source_padding to encode")
        hidden, source_at = memory if isinstance(memory, tuple) and len(memory) == 2 else (memory, None)
        if not (isinstance(hidden, Tensor) and isinstance(source_at, Positions)):
            raise ValueError(f"memory is the pair that encode gives, states and positions, got {checks.shown(memory)}")
        at = where(target, positions, padding, cache)
        x = self.embedding(target, positions=at, encodings=self.decoder.added())
        x, seen = self.decoder(x, at, masks.causal(), cache=cache, weights=weights, memory=hidden, memory_at=source_at)
        logits = F.linear(x, self.embedding.token.weight) if self.output is None else self.output(x)
        return (logits, seen) if weights else logits

    def cache(self, *, slots: int | None = None) -> Cache:
        """An empty KV cache for the decoder."""
        return Cache(len(self.decoder.blocks), slots=slots)

    @torch.no_grad()
    def generate(
        self,
        source: Tensor,
        start: Tensor,
        tokens: int,
        *,
        source_padding: Tensor | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        stop: int | None = None,
        seed: int = 0,
    ) -> Tensor:
        """`start` [B, T] (at least a beginning token) with up to `tokens` more ids; options as in Decoder.generate."""
        with evaluating(self):
            memory = self.encode(source, padding=source_padding)

            def logits_of(ids: Tensor, *, padding: Tensor | None, cache: Cache, only: slice) -> Tensor:
                return self(source, ids, padding=padding, cache=cache, memory=memory)[:, only]

            return generate(
                logits_of,
                self.cache(),
                start,
                tokens,
                vocab=self.vocab,
                padding=None,
                temperature=temperature,
                top_k=top_k,
                stop=stop,
                seed=seed,
            )


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """The model without dropout; afterwards as it was, also after an error."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was in training:
            module.training = was


def generate(
    logits_of: Callable[..., Tensor],
    cache: Cache,
    ids: Tensor,
    tokens: int,
    *,
    vocab: int,
    padding: Tensor | None,
    temperature: float,
    top_k: int | None,
    stop: int | None,
    seed: int,
) -> Tensor:
    """The loop behind both models' `generate`."""
    check_ids(ids, vocab)
    if checks.whole("tokens to generate", tokens) < 1:
        raise ValueError(f"tokens to generate must be 1 or more, got {tokens}")
    if checks.number("temperature", temperature) < 0:
        raise ValueError(f"temperature must be 0 or more, got {temperature}")
    if top_k is not None and checks.whole("top_k", top_k) < 1:
        raise ValueError(f"top_k must be 1 or more, got {top_k}")
    if stop is not None and not 0 <= checks.whole("stop", stop) < vocab:
        raise ValueError(f"stop is the id of a token, from 0 to {vocab - 1}, got {stop}")
    checks.whole("seed", seed)
    if padding is not None:
        check_padding(padding, ids)
        if not bool((padding[:, -1] != 0).all()):
            raise ValueError(
                "generation goes on from the last column, and a row is padded there; pad prompts on the left"
            )
    generator = torch.Generator(ids.device).manual_seed(seed)
    done = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
    out, new = [ids], ids
    for _ in range(tokens):
        logits = logits_of(new, padding=padding, cache=cache, only=slice(-1, None))[:, -1].float()
        padding = None
        chosen = pick(logits, temperature, top_k, generator)
        if stop is not None:
            chosen = torch.where(done, stop, chosen)
            done = done | (chosen == stop)
        new = chosen[:, None]
        out.append(new)
        if stop is not None and bool(done.all()):
            break
    return torch.cat(out, 1)


def pick(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    """One id for each row of logits [B, vocab]."""
    # Divided by less, the likeliest token has all the weight.
    if temperature < torch.finfo(torch.float32).tiny:
        return logits.argmax(-1)
    if top_k is not None:
        lowest = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def where(ids: Tensor, positions: PositionsLike, padding: Tensor | None, cache: Cache | None) -> Positions:
    """Where the tokens are, from what a caller of a model gave."""
    if checks.tensor("token ids", ids).dim() != 2 or ids.shape[1] < 1:
        raise ValueError(f"ids have shape [batch, tokens] with at least one token, got {list(ids.shape)}")
    if cache is not None and not isinstance(cache, Cache):
        raise ValueError(f"a model takes the cache that its cache() gives, got {checks.shown(cache)}")
    if padding is not None:
        check_padding(padding, ids)
        if positions is not None:
            raise ValueError("give positions or padding, not both")
        if cache is not None and cache.at is not None:
            raise ValueError("padding belongs to the first chunk; later chunks go on from the cache")
        return Positions.padded(padding)
    if positions is None and cache is not None:
        return cache.next(ids.shape[1], device=ids.device)
    held = None if cache is None else cache.held
    return positions_for(ids.shape[1], positions, batch=ids.shape[0], device=ids.device, held=held)


def check_padding(padding: Tensor, ids: Tensor) -> None:
    """Raises ValueError unless padding says of each id whether a token is there."""
    if checks.tensor("padding", padding).shape != ids.shape:
        raise ValueError(f"padding must have the shape of the ids, {list(ids.shape)}, got {list(padding.shape)}")


def check_ids(ids: Tensor, vocab: int) -> None:
    """Raises ValueError for ids of a wrong shape or type, or outside 0..vocab-1."""
    if checks.tensor("token ids", ids).dtype not in (torch.int64, torch.int32):
        raise ValueError(f"token ids are whole numbers, got {ids.dtype}; give them as torch.int64 or torch.int32")
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise ValueError(f"ids have shape [batch, tokens] with at least one token, got {list(ids.shape)}")
    if not may_be_read(ids):
        return
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= vocab:
        raise ValueError(
            f"token ids must lie in 0..{vocab - 1}, got {low if low < 0 else high}; check the tokenizer or vocab"
        )


__all__ = ["Block", "Decoder", "Encoder", "EncoderDecoder", "FeedForward", "Stack", "TokenPositionEmbedding"]
