"""What a kernel is asked for, by which it is chosen."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.watched import is_transformed


class Inputs(NamedTuple):
    """What one call of attention is given, beside its queries.

    biases       all that is added to the logits
    at, keys_at  where queries and keys are
    mask         who may see whom
    """

    biases: Sequence[Bias]
    at: Positions
    keys_at: Positions
    mask: Mask


class Request(NamedTuple):
    """What a kernel is asked for.

    encoding  the encoding, whose rule may read the weights
    need_weights   whether the weights are wanted
    dropout   share of the weights dropped
    q         the queries [B, H, T, D]; None where nobody knows them yet
    inputs    what else the call is given; None where nobody knows it yet
    sums      whether the logarithm of each query's sum of exponentials is wanted
    sinks     whether heads have sinks
    device    where it is computed: "cpu", "cuda", ...
    """

    encoding: Encoding
    need_weights: bool = False
    dropout: float = 0.0
    q: Tensor | None = None
    inputs: Inputs | None = None
    sums: bool = False
    sinks: bool = False
    device: str = "cpu"

    def against(self, kernel: str, *, adds_vectors: bool = False) -> str | None:
        """Why a kernel of fused operators cannot serve: it gives no weights, and torch.func cannot transform it.

        `adds_vectors` says that the kernel adds to values what the encoding reads the weights for.
        """
        remedy = "use kernel='reference' or 'auto'"
        if self.encoding.needs_weights and not adds_vectors:
            return f"{self.encoding} reads the attention weights, which {kernel} does not return; {remedy}"
        if self.need_weights:
            return f"{kernel} returns no attention weights; {remedy}"
        if is_transformed():
            return f"torch.func and forward-mode differentiation cannot transform {kernel}; {remedy}"
        return None
