"""The original transformer's shape: an encoder, and a decoder that attends to it, with any positional encoding."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.cache import Cache
from posenc.catalogue import LayerSpec
from posenc.encoding.base import Encoding
from posenc.encoding.softcap import apply_softcap
from posenc.model.block import LayerWeights
from posenc.model.config import Config, ConfiguredModule, LayerWindow, config_of
from posenc.model.embedding import TokenPositionEmbedding, init_ends
from posenc.model.generation import Choice, append_stream, eval_mode, stream
from posenc.model.inputs import locate
from posenc.model.stack import Stack
from posenc.specs.words import with_named_options
from posenc.tokens.positions import Positions, PositionsLike


class EncoderDecoder(ConfiguredModule):
    """The original transformer's shape: an encoder, and a decoder that attends to it, with any positional encoding.

    encoding        of both stacks: a spec, or a tuple cycled over the layers (specs, not instances: each stack builds
                    its own)
    cross_encoding  between the decoder's queries and the encoder's keys; "none" as in the original and in T5
    norm_first      False by default as in the original, if options are given one by one
    window          of both stacks; the decoder sees all of the source
    tie_output      whether one table serves source, target and output, as in the original
    The other arguments are those of Decoder. The training recipe of the original is that of the task `translation`,
    with posenc.lab.experiments.recipes.original_rate.

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
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.vocab, self.config = vocab, config
        self.encoder = Stack(config, encoding=encoding, causal=False, hints=hints, **factory)
        cross_options: dict[str, Any] = {"cross": True, "cross_encoding": cross_encoding}
        self.decoder = Stack(config, encoding=encoding, causal=True, hints=hints, **cross_options, **factory)
        self.embedding = TokenPositionEmbedding(
            vocab, config.dim, scale=scale_tokens, tied=tie_output, dropout=config.dropout, **factory
        )
        self.output = None if tie_output else nn.Linear(config.dim, vocab, config.has_bias("output"), **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise embedding and output by `init`; blocks initialise themselves."""
        init_ends(self.config, self.embedding, self.output)

    @with_named_options
    def encode(
        self, source: Tensor, *, positions: PositionsLike = None, padding: Tensor | None = None
    ) -> tuple[Tensor, Positions]:
        """Return the encoder's hidden states [B, S, dim] and their positions."""
        at = locate(source, self.vocab, positions, padding, None)
        x = self.embedding(source, at=at, encodings=self.encoder.input_encodings)
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
        need_weights: bool = False,
        only: slice | None = None,
    ) -> Tensor | tuple[Tensor, tuple[LayerWeights, ...]]:
        """Return logits [B, T, vocab], and with `need_weights` the weights of each layer: {"self": ..., "cross": ...}.

        `memory`, from `encode`, saves encoding the source again. `only` is as in Decoder.
        """
        if memory is None:
            memory = self.encode(source, positions=source_positions, padding=source_padding)
        elif source_positions is not None or source_padding is not None:
            raise ValueError("memory says where the source is; give source_positions and source_padding to encode")
        hidden, source_at = memory if isinstance(memory, tuple) and len(memory) == 2 else (memory, None)
        if not (isinstance(hidden, Tensor) and isinstance(source_at, Positions)):
            actual = checks.display(memory)
            raise ValueError(f"memory is the pair that encode gives, states and positions, got {actual}")
        at = locate(target, self.vocab, positions, padding, cache)
        x = self.embedding(target, at=at, encodings=self.decoder.input_encodings)
        x, weights = self.decoder(
            x, at, cache=cache, need_weights=need_weights, memory=hidden, memory_at=source_at, only=only
        )
        logits = F.linear(x, self.embedding.token.weight) if self.output is None else self.output(x)
        logits = apply_softcap(logits, self.config.output_softcap)
        return (logits, weights) if need_weights else logits

    def cache(self, *, slots: int | None = None) -> Cache:
        """Return an empty KV cache for the decoder."""
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
        """Yield up to `max_new_tokens` ids after each row of `start` [B, T] (such as BOS), as Decoder.stream."""
        choice = Choice(self.vocab, temperature, top_k, eos_token_id, seed)
        with torch.no_grad(), eval_mode(self):
            logits_of = partial(self, source, memory=self.encode(source, padding=source_padding))
        return stream(self, logits_of, self.cache(), start, max_new_tokens, choice)

    def generate(self, source: Tensor, start: Tensor, max_new_tokens: Any = None, **options: Any) -> Tensor:
        """Return `start` [B, T] with up to `max_new_tokens` new ids; the options are those of `stream`."""
        return append_stream(start, self.stream(source, start, max_new_tokens, **options))

    def extra_repr(self) -> str:
        return f"output_softcap={self.config.output_softcap}"
