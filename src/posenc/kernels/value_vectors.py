"""Vectors of the distance that are added to values in blocks, for tokens in a row: from the weights of a block."""

import torch
from torch import Tensor

from posenc.biases import DotProducts, ValueVectors
from posenc.kernels.biases.products import Curves
from posenc.kernels.plan import Row


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
