"""A decoder-only language model (a mini-GPT) with any positional encoding."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.cache import Cache
from posenc.catalogue import LayerSpec
from posenc.encoding.softcap import apply_softcap
from posenc.model.block import LayerWeights
from posenc.model.config import Config, ConfiguredModule, LayerWindow, config_of
from posenc.model.embedding import TokenPositionEmbedding, init_ends
from posenc.model.generation import SLOTS, Choice, SinkWindow, append_stream, pad_prompts, stream, unpad_texts
from posenc.model.inputs import locate
from posenc.model.stack import Stack
from posenc.specs.words import check_options, names_of, with_named_options
from posenc.tokens.masks import MaskLike
from posenc.tokens.positions import PositionsLike


class Decoder(ConfiguredModule):
    """A decoder-only language model (a mini-GPT) with any positional encoding.

    vocab      number of token ids
    dim, heads, layers, max_len to sinks   as in Config, or a Config in the place of dim
    encoding   a spec, an Encoding, or a tuple of them cycled over the layers: ("rotary", "rotary", "none")
    scale_tokens, tie_output   see TokenPositionEmbedding; whether the output layer is the token table
    hints      values of options that specs leave open, as in posenc.build

    ids [B, T] -> logits [B, T, vocab].
    Raises ValueError for ids out of range, empty sequences, unknown specs, and head counts that do not divide, and
    TypeError for an unknown option.

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
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.vocab, self.config = vocab, config
        self.stack = Stack(config, encoding=encoding, causal=True, hints=hints, **factory)
        self.embedding = TokenPositionEmbedding(
            vocab, config.dim, scale=scale_tokens, tied=tie_output, dropout=config.dropout, **factory
        )
        self.output = None if tie_output else nn.Linear(config.dim, vocab, config.has_bias("output"), **factory)
        # Graphs that `stream` compiled, by rows, slots, and whether no prompt was padded.
        self.graphs: dict[tuple[int, int, bool], Callable[..., Tensor]] = {}
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise embedding and output by `init`; blocks initialise themselves."""
        init_ends(self.config, self.embedding, self.output)

    @with_named_options
    def forward(
        self,
        ids: Tensor,
        *,
        positions: PositionsLike = None,
        padding: Tensor | None = None,
        mask: MaskLike = None,
        cache: Cache | None = None,
        need_weights: bool = False,
        only: slice | None = None,
    ) -> Tensor | tuple[Tensor, tuple[LayerWeights, ...]]:
        """Return logits [B, T, vocab], and with `need_weights` the attention weights [B, heads, T, S] of each layer.

        positions  Positions, ids, or None: 0, 1, 2, ..., or with a cache those after the last token of each row
        padding    [B, T], true or 1 for a token: instead of positions
        mask       a further mask, as in Attention.forward: a decoder is always causal
        cache      from `cache()`; it takes in these tokens
        need_weights   whether to return the weights too; posenc.chosen_weights returns some of them
        only       the tokens of the T to return logits for
        """
        at = locate(ids, self.vocab, positions, padding, cache)
        x = self.embedding(ids, at=at, encodings=self.stack.input_encodings)
        x, weights = self.stack(x, at, mask, cache=cache, need_weights=need_weights, only=only)
        logits = F.linear(x, self.embedding.token.weight) if self.output is None else self.output(x)
        logits = apply_softcap(logits, self.config.output_softcap)
        return (logits, weights) if need_weights else logits

    def cache(self, *, slots: int | None = None, rolling: bool = False) -> Cache:
        """Return an empty KV cache for this model: growing, or static with a number of slots (tokens).

        A `rolling` cache keeps only the newest tokens. It needs a window in every layer or in the mask of each call, of
        at most as many tokens as slots, and window + chunk - 1 slots for later chunks of several tokens.
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
        """Yield up to `max_new_tokens` new ids [B] for each row of ids [B, T], through a KV cache.

        temperature  0 takes the likeliest token; above, tokens are drawn from the softmax of logits / temperature
        top_k        draw among the k likeliest only
        eos_token_id   after this id a row repeats it; generation ends when all rows have it
        seed         of the random numbers
        padding      [B, T], true for a token; pad prompts of different lengths on the left
        compiled     whether to decode with a compiled graph and a static cache, which serve later calls of as many rows
                     and about as many tokens; None: if an earlier call compiled such a graph
        samples      number of independent texts for each prompt; each id is [B * samples], those of a prompt together
        window       for endless text in bounded memory: the number of newest tokens to keep
        sinks        the number of first tokens to keep before the window; default 4 (see generation.SinkWindow)

        The model has no dropout until the last id is taken, or the iterator is closed. Compiling takes seconds for each
        layer, and saves a fifth of the time of a token in a small model: it pays after some ten thousand tokens.
        """
        choice = Choice(self.vocab, temperature, top_k, eos_token_id, seed)
        texts = 1 if samples is None else checks.whole("samples", samples, 1)
        if texts > 1 and choice.greedy:
            raise ValueError("the likeliest text is one, and samples of it are all the same; give temperature above 0")
        checks.kind("compiled", compiled, bool | None)
        sight = None
        if window is not None:
            sight = SinkWindow(window) if sinks is None else SinkWindow(window, sinks)
            sight.check(self.stack.encoding_of)
            if compiled:
                raise ValueError(
                    "a compiled graph counts its slots, and with a window tokens move; leave one of them out"
                )
        elif sinks is not None:
            raise ValueError("sinks stay where the newest tokens alone are held; give window=... with them")
        length = ids.shape[-1] + max_new_tokens if type(max_new_tokens) is int and ids.dim() else 0
        slots = -(-length // SLOTS) * SLOTS
        graph = len(ids) * texts, slots, padding is None
        step, cache = None, None
        if compiled or (compiled is None and sight is None and graph in self.graphs):
            step = self.graphs.setdefault(graph, cast(Any, torch.compile(self, dynamic=False)))
            cache = self.cache(slots=slots)
        cache = self.cache() if cache is None else cache
        return stream(self, self, cache, ids, max_new_tokens, choice, step, padding=padding, samples=texts, sinks=sight)

    @overload
    def generate(self, ids: Tensor, max_new_tokens: int, **options: Any) -> Tensor: ...

    @overload
    def generate(self, ids: Sequence[Tensor], max_new_tokens: int, **options: Any) -> list[Tensor]: ...

    def generate(self, ids: Any, max_new_tokens: Any = None, **options: Any) -> Tensor | list[Tensor]:
        """Return ids [B, T] with up to `max_new_tokens` new ones; the options are those of `stream`.

        Prompts of different lengths are a list of ids [T], and return as a list, each up to its end. With `samples`
        texts are [B, samples, T + max_new_tokens]. Raises ValueError as `stream` does.

        >>> model = Decoder(vocab=11, dim=32, heads=4, layers=2)
        >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, samples=2, temperature=1.0).shape
        torch.Size([1, 2, 7])
        >>> [len(text) for text in model.generate([torch.tensor([1]), torch.tensor([1, 2, 3])], max_new_tokens=4)]
        [5, 7]
        """
        check_options("generate", names_of(self.stream), options)
        prompts = ids
        if not isinstance(ids, Tensor):
            if options.get("padding") is not None:
                raise ValueError("a list of prompts is padded here; give it without padding, or ids [B, T] with it")
            ids, options["padding"] = pad_prompts(ids)
        samples = options.get("samples")
        new_ids = self.stream(ids, max_new_tokens, **options)
        texts = append_stream(ids if samples is None else ids.repeat_interleave(samples, 0), new_ids)
        if samples is not None:
            texts = texts.unflatten(0, (len(ids), samples))
        return texts if prompts is ids else unpad_texts(texts, options["padding"], options.get("eos_token_id"))

    def extra_repr(self) -> str:
        return f"output_softcap={self.config.output_softcap}"

    def __getstate__(self) -> dict[str, Any]:
        # Compiled graphs belong to this process and this object.
        return super().__getstate__() | {"graphs": {}}
