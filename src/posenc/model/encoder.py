"""An encoder: every token sees all tokens. ids [B, T] -> hidden states [B, T, dim]."""

from typing import Any

import torch
from torch import Tensor

from posenc.catalogue import LayerSpec
from posenc.model.block import LayerWeights
from posenc.model.config import Config, ConfiguredModule, LayerWindow, config_of
from posenc.model.embedding import TokenPositionEmbedding, init_ends
from posenc.model.inputs import locate
from posenc.model.stack import Stack
from posenc.specs.words import with_named_options
from posenc.tokens.masks import MaskLike
from posenc.tokens.positions import PositionsLike


class Encoder(ConfiguredModule):
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
        kwargs: dict[str, Any] = {"device": device, "dtype": dtype}
        self.vocab, self.config = vocab, config
        self.stack = Stack(config, encoding=encoding, causal=False, hints=hints, **kwargs)
        self.embedding = TokenPositionEmbedding(vocab, config.dim, scale=scale_tokens, dropout=config.dropout, **kwargs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the embedding by `init`; blocks initialise themselves."""
        init_ends(self.config, self.embedding)

    @with_named_options
    def forward(
        self,
        ids: Tensor,
        *,
        positions: PositionsLike = None,
        padding: Tensor | None = None,
        mask: MaskLike = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, tuple[LayerWeights, ...]]:
        """Return hidden states [B, T, dim], and with `need_weights` the attention weights of each layer."""
        at = locate(ids, self.vocab, positions, padding, None)
        x = self.embedding(ids, at=at, encodings=self.stack.input_encodings)
        x, weights = self.stack(x, at, mask, need_weights=need_weights)
        return (x, weights) if need_weights else x
