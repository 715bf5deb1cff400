"""Numbers of all pairs of tokens in blocks, wherever these stand: as they are, or as a product of two matrices."""

import torch
from torch import Tensor

from posenc.encoding.biases import Dense, Factored
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Room
from posenc.tokens.masks import part_of


class DenseInBlocks(BiasInBlocks):
    """A view of the numbers, last query first: nothing is computed."""

    name = "dense"
    owns = False

    def __init__(self, bias: Dense, q: Tensor) -> None:
        dtype = torch.promote_types(q.dtype, torch.float32)
        self.inputs: tuple[Tensor, ...] = (bias.dense(torch.promote_types(bias.logits.dtype, dtype)),)

    def hold(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = inputs

    def block(self, block: Block) -> Tensor:
        (logits,) = self.inputs
        values = logits.detach()[part_of(logits, *block)]
        return values.flip(2) if values.shape[2] > 1 else values

    def take_slopes(self, block: Block, upstream: Tensor, of_logits: Tensor) -> None:
        place = of_logits[part_of(of_logits, *block)]
        place += upstream.flip(2).sum_to_size(place.shape)


class FactoredInBlocks(BiasInBlocks):
    """A bias that is a dot product of a vector of the query and one of the key, wherever tokens are."""

    name = "factored"

    def __init__(self, bias: Factored) -> None:
        self.of_queries, self.of_keys = bias.factors()
        self.inputs: tuple[Tensor, ...] = (self.of_queries, self.of_keys)
        self.room = Room(self.of_queries, self.of_queries.dtype)

    def read(self, block: Block) -> tuple[Tensor, Tensor]:
        """What the block reads of both: last query first, and keys."""
        return of_rows(self.of_queries, block)[:, :, block.rows].flip(2), of_rows(self.of_keys, block)[:, :, block.keys]

    def block(self, block: Block) -> Tensor:
        asking, asked = self.read(block)
        rows, heads = max(len(asking), len(asked)), asking.shape[1]
        out = self.room.of(rows, heads, asking.shape[2], asked.shape[2])
        return torch.matmul(asking, asked.transpose(-1, -2), out=out)

    def take_slopes(self, block: Block, upstream: Tensor, of_queries: Tensor, of_keys: Tensor) -> None:
        upstream = upstream.to(of_queries.dtype)
        if len(upstream) > 1 == len(of_queries) == len(of_keys):
            upstream = upstream.sum(0, keepdim=True)  # rows of the batch share the product
        asking, asked = self.read(block)
        for slope, values in (
            (of_rows(of_queries, block)[:, :, block.rows], (upstream @ asked).flip(2)),
            (of_rows(of_keys, block)[:, :, block.keys], upstream.transpose(-1, -2) @ asking),
        ):
            slope += values if len(slope) == len(values) else values.sum(0, keepdim=True)


def of_rows(facts: Tensor, block: Block) -> Tensor:
    """The rows of the batch that a block is of, or the one that all share."""
    return facts if len(facts) == 1 else facts[block.batch]
