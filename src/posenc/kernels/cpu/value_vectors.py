"""Vectors of the distance added to values, for contiguous tokens: for a block, or for one query."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.encoding.biases import Bias, DotProducts, ValueVectors, one_query_range, product, split_far, total
from posenc.encoding.keys import Keys
from posenc.kernels.cpu.biases.products import Curves
from posenc.kernels.cpu.plan import AlignedRows
from posenc.kernels.reference import fit_heads
from posenc.tokens.positions import Positions


class VectorsInRow:
    """The weighted sum of the vectors of distances, from each query's weights by distance.

    With the output's gradient in place of queries, the vectors are a bias: the gradient in a weight is
    grad_i . vector(m_i - n_j), and that in the vectors is the bias's, with the weights as upstream gradient.
    """

    def __init__(self, vectors: ValueVectors, row: AlignedRows, queries: int, keys: int, dtype: torch.dtype) -> None:
        self.row, self.table = row, row.distances(queries, keys, vectors.same_beyond)
        self.vectors = vectors.vectors(self.table).to(dtype)

    def curves_of(self, tokens: Tensor) -> Curves:
        """Return the vectors as a bias of the tokens [B, H, T, E]."""
        return Curves(DotProducts(tokens.to(self.vectors.dtype), self.vectors), self.row, self.table)


def vectors_among(biases: Sequence[Bias]) -> ValueVectors | None:
    """Return the ValueVectors among the biases of a call, or None."""
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
    """Return the output of one query over all keys, [B, H, 1, E]. Far keys share the first near key's vector."""
    distances = one_query_range(at, keys.at)
    assert distances is not None, "adds_vectors forbids this"
    logits = product(q, keys.k) * scale
    bias = total([bias for bias in biases if bias is not vectors], logits.dtype)
    logits = logits if bias is None else logits + bias
    if sums is not None:
        sums.append(logits.logsumexp(-1))
    weights = logits.softmax(-1)
    far, near_distances = split_far(distances, vectors.same_beyond)
    by_vector = torch.cat((weights[..., : far + 1].sum(-1, keepdim=True), weights[..., far + 1 :]), -1)
    values = fit_heads(q, keys.k, keys.v)[1].to(weights.dtype)
    return (weights @ values + by_vector @ vectors.vectors(near_distances).to(weights.dtype)).to(q.dtype)
