"""Dense and factored biases in blocks, for tokens at any positions."""

import torch
from torch import Tensor

from posenc.encoding.biases import Dense, Factored
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, ReusedMemory
from posenc.tokens.masks import mask_index


class DenseInBlocks(BiasInBlocks):
    """A dense bias in blocks: a view, last query first."""

    name = "dense"
    owns = False

    def __init__(self, bias: Dense, q: Tensor) -> None:
        dtype = torch.promote_types(q.dtype, torch.float32)
        self.inputs: tuple[Tensor, ...] = (bias.dense(torch.promote_types(bias.logits.dtype, dtype)),)

    def hold(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = inputs

    def block(self, block: Block) -> Tensor:
        (logits,) = self.inputs
        values = logits.detach()[mask_index(logits, *block)]
        return values.flip(2) if values.shape[2] > 1 else values

    def take_slopes(self, block: Block, upstream: Tensor, of_logits: Tensor) -> None:
        place = of_logits[mask_index(of_logits, *block)]
        place += upstream.flip(2).sum_to_size(place.shape)


class FactoredInBlocks(BiasInBlocks):
    """A factored bias in blocks: dot products of vectors of queries and keys."""

    name = "factored"

    def __init__(self, bias: Factored) -> None:
        self.of_queries, self.of_keys = bias.factors()
        self.inputs: tuple[Tensor, ...] = (self.of_queries, self.of_keys)
        self.room = ReusedMemory(self.of_queries, self.of_queries.dtype)

    def read(self, block: Block) -> tuple[Tensor, Tensor]:
        """Return the vectors of a block's queries, last first, and of its keys."""
        queries = rows_of_batch(self.of_queries, block)[:, :, block.rows].flip(2)
        return queries, rows_of_batch(self.of_keys, block)[:, :, block.keys]

    def block(self, block: Block) -> Tensor:
        queries, keys = self.read(block)
        rows, heads = max(len(queries), len(keys)), queries.shape[1]
        values = self.room.tensor(rows, heads, queries.shape[2], keys.shape[2])
        return torch.matmul(queries, keys.transpose(-1, -2), out=values)

    def take_slopes(self, block: Block, upstream: Tensor, of_queries: Tensor, of_keys: Tensor) -> None:
        upstream = upstream.to(of_queries.dtype)
        if len(upstream) > 1 == len(of_queries) == len(of_keys):
            upstream = upstream.sum(0, keepdim=True)  # rows of the batch share the product
        queries, keys = self.read(block)
        for slope, values in (
            (rows_of_batch(of_queries, block)[:, :, block.rows], (upstream @ keys).flip(2)),
            (rows_of_batch(of_keys, block)[:, :, block.keys], upstream.transpose(-1, -2) @ queries),
        ):
            slope += values if len(slope) == len(values) else values.sum(0, keepdim=True)


def rows_of_batch(facts: Tensor, block: Block) -> Tensor:
    """Return the rows of the batch of a block, or the one that all share."""
    return facts if len(facts) == 1 else facts[block.batch]
