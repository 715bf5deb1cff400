"""The embedding of token ids: token vectors, positions, dropout."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.catalogue import Spec, build
from posenc.encoding.base import Encoding, Shape, parts_of
from posenc.model.config import Config
from posenc.model.inputs import check_token_ids
from posenc.model.parts import init_layers
from posenc.tokens.positions import Positions, PositionsLike, positions_for


class TokenPositionEmbedding(checks.ChecksArguments, nn.Module):
    """Embed token ids as dropout(scale * token + position), with any encoding that adds to the embeddings.

    vocab     number of token ids
    dim       width of the embeddings (channels)
    encoding  a spec, an Encoding, or None to add no position here
    scale     whether tokens are multiplied by sqrt(dim). Right when their initial standard deviation is dim^-1/2, as in
              the original with its tied output: the product then has the norm of the position. With this option tokens
              are therefore initialised so. Wrong with PyTorch's own N(0, 1): such tokens have norm sqrt(dim) already,
              against sqrt(dim/2) for a sinusoidal position, and multiplying again makes them sqrt(2 dim) times as long
              (32 times at dim 512) and drowns the position
    tied      whether the token table is the output layer too. It is initialised N(0, 0.02) then, as GPT-2's, or with
              deviation (ln vocab - 1.2) / dim where that is less: the first loss is within 0.5 of ln vocab
    dropout   share of the channels dropped in training
    max_len   the trained length (tokens) that a spec such as "learned" needs

    ids [B, T] -> [B, T, dim].
    Raises ValueError for ids outside the vocabulary, an empty sequence, and encodings that add nothing.
    Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.4 and 3.5.

    >>> embedding = TokenPositionEmbedding(vocab=10, dim=8, encoding="sinusoidal")
    >>> embedding(torch.tensor([[3, 1, 4]])).shape
    torch.Size([1, 3, 8])
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        encoding: Spec | None = None,
        *,
        scale: bool = False,
        tied: bool = False,
        dropout: float = 0.0,
        max_len: int = 2048,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.vocab, self.dim, self.scale, self.tied = checks.whole("vocab", vocab, 1), dim, scale, tied
        self.token = nn.Embedding(vocab, checks.whole("dim", dim, 1), device=device, dtype=dtype)
        self.dropout = checks.share("dropout", dropout)
        self.encoding: Encoding | None = None
        if encoding is not None:
            self.encoding = build(encoding, Shape(dim, 1, dim, max_len), device=device, dtype=dtype)
            parts = [part for part in parts_of(self.encoding) if part.doors - {"embed"}]
            if parts:
                raise ValueError(f"{parts[0]} does more than add to embeddings; give it to the attention instead")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.token.weight, std=self.std)

    @property
    def std(self) -> float:
        """The standard deviation of initial tokens."""
        if not self.tied:
            return self.dim**-0.5 if self.scale else 1.0
        # After a norm the logit of the input token is up to std dim: it weighs as much as e^(std dim) other tokens.
        return min(0.02, max(math.log(self.vocab) - 1.2, 0.3) / self.dim)

    def forward(
        self,
        ids: Tensor,
        *,
        positions: PositionsLike = None,
        encodings: tuple[Encoding, ...] = (),
        at: Positions | None = None,
    ) -> Tensor:
        """Return the embeddings of ids [B, T]; `encodings` of the model are added besides the embedding's own.

        at  the checked positions of checked ids, in place of `positions`
        """
        if at is None:
            check_token_ids(ids, self.vocab)
            at = positions_for(ids.shape[1], positions, batch=ids.shape[0], device=ids.device)
        x = self.token_vectors(ids)
        if self.encoding is not None:
            encodings = (self.encoding, *encodings)
        for encoding in encodings:
            x = encoding.embed(x, at)
        return F.dropout(x, self.dropout) if self.training and self.dropout else x

    def token_vectors(self, ids: Tensor) -> Tensor:
        """Return scale * token, without the position."""
        x = self.token(ids)
        return x * math.sqrt(self.dim) if self.scale else x

    def extra_repr(self) -> str:
        return f"scale={self.scale}, tied={self.tied}, dropout={self.dropout}"


def init_ends(config: Config, embedding: TokenPositionEmbedding, output: nn.Module | None = None) -> None:
    """Initialise embedding and output by `init`; scaled tokens keep the deviation that suits the scale."""
    init_layers(config, [output] if embedding.scale else [embedding.token, output])
