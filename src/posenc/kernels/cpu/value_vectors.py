"""Vectors of the distance that are added to values, for tokens in a row: from the weights of a block, or of a token."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.encoding.biases import Bias, DotProducts, ValueVectors, beyond, met_by_one_query, product, total
from posenc.encoding.keys import Keys
from posenc.kernels.cpu.biases.products import Curves
from posenc.kernels.cpu.plan import Row
from posenc.kernels.reference import fit_heads
from posenc.tokens.positions import Positions


class VectorsInRow:
    """The sum over keys of the weight times the vector of the distance, out of each query's weights by distance.

    With an output's gradient as what queries ask, the same vectors are a bias: in a weight the sum has the gradient
    grad_i . vector(m_i - n_j), and in the vectors that of the bias for which the weights are the gradient.
    """

    def __init__(self, given: ValueVectors, row: Row, queries: int, keys: int, dtype: torch.dtype) -> None:
        self.row, self.table = row, row.met(queries, keys, given.same_beyond)
        self.vectors = given.vectors(self.table).to(dtype)

    def asked_by(self, tokens: Tensor) -> Curves:
        """The vectors as a bias of queries that ask for them, [B, H, T, E]."""
        return Curves(DotProducts(tokens.to(self.vectors.dtype), self.vectors), self.row, self.table)


def vectors_among(biases: Sequence[Bias]) -> ValueVectors | None:
    """What is added to values among the biases of a call."""
    return next((bias for bias in biases if isinstance(bias, ValueVectors)), None)


def attend_with_vectors(
    biases: Sequence[Bias],
    q: Tensor,
    at: Positions,
    keys: Keys,
    vectors: ValueVectors,
    *,
    scale: float,
    sums: list[Tensor] | None = None,
) -> Tensor:
    """What one query takes of all keys, [B, H, 1, E]; keys farther than the first near one share its vector."""
    met = met_by_one_query(at, keys.at)
    assert met is not None, "adds_vectors forbids this"
    logits = product(q, keys.k) * scale
    bias = total([bias for bias in biases if bias is not vectors], logits.dtype)
    logits = logits if bias is None else logits + bias
    if sums is not None:
        sums.append(logits.logsumexp(-1))
    weights = logits.softmax(-1)
    far, near = beyond(met, vectors.same_beyond)
    by_vector = torch.cat((weights[..., : far + 1].sum(-1, keepdim=True), weights[..., far + 1 :]), -1)
    values = fit_heads(q, keys.k, keys.v)[1].to(weights.dtype)
    return (weights @ values + by_vector @ vectors.vectors(near).to(weights.dtype)).to(q.dtype)
