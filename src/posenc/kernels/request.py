"""Requests, by which a kernel is chosen."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import is_transformed


class Inputs(NamedTuple):
    """The inputs of one call of attention, beside its queries.

    biases       all biases of the logits
    at, keys_at  positions of queries and keys
    mask         which keys a query sees
    """

    biases: Sequence[Bias]
    at: Positions
    keys_at: Positions
    mask: Mask


class Request(NamedTuple):
    """A request to a kernel.

    encoding      the encoding, whose rule may read the weights
    need_weights  whether to return the weights
    dropout       share of the weights dropped
    q             the queries [B, H, T, D], if known
    inputs        the other inputs of the call, if known
    sums          whether to return the log-sum-exp of each query
    sinks         whether heads have sinks
    device        "cpu", "cuda", ...
    """

    encoding: Encoding
    need_weights: bool = False
    dropout: float = 0.0
    q: Tensor | None = None
    inputs: Inputs | None = None
    sums: bool = False
    sinks: bool = False
    device: str = "cpu"

    def why_not_fused(self, kernel: str, *, adds_vectors: bool = False) -> str | None:
        """Return why a fused kernel, without weights and torch.func, cannot serve, or None.

        adds_vectors  whether the kernel adds vectors to values, so the encoding needs no weights
        """
        remedy = "use kernel='reference' or 'auto'"
        if self.encoding.needs_weights and not adds_vectors:
            return f"{self.encoding} reads the attention weights, which {kernel} does not return; {remedy}"
        if self.need_weights:
            return f"{kernel} returns no attention weights; {remedy}"
        if is_transformed():
            return f"torch.func and forward-mode differentiation cannot transform {kernel}; {remedy}"
        return None
