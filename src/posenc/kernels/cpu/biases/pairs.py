"""Closures in blocks: evaluated for each block, and once more in the backward pass."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding.biases import Pairs
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.kernels.block_sizes import SIZES, cut
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, ReusedMemory, length
from posenc.kernels.cpu.plan import AlignedRows
from posenc.kernels.in_rows import with_leaf_parameters


class PairsInBlocks(BiasInBlocks):
    """A bias whose closure is evaluated for a few queries of a block at a time. Gradients come from autograd."""

    name = "pairs"

    def __init__(self, bias: Pairs, row: AlignedRows | None) -> None:
        q, keys = bias.q, bias.full_keys()
        self.bias, self.at, self.keys_at, self.row = bias, bias.at, keys.at, row
        read = {
            "queries": {"q": q},
            "keys": {"k": keys.k},
            "memo": keys.memo,
            "query_memo": keys.query_memo,
            "parameters": dict(bias.module.named_parameters()),
        }
        self.names = tuple((kind, name) for kind, tensors in read.items() for name in tensors)
        self.inputs: tuple[Tensor, ...] = tuple(tensor for tensors in read.values() for tensor in tensors.values())
        self.room = ReusedMemory(q, torch.promote_types(q.dtype, torch.float32))

    def part_of_input(self, block: Block, index: int, tensor: Tensor) -> Tensor:
        """Return the part of an input, or of its gradient, that belongs to a block."""
        kind, _ = self.names[index]
        if kind == "parameters":
            return tensor
        batch = slice(None) if tensor.shape[0] == 1 else block.batch
        return tensor[batch, :, block.rows if kind in ("queries", "query_memo") else block.keys]

    def read(self, block: Block) -> list[Tensor]:
        return [self.part_of_input(block, index, tensor) for index, tensor in enumerate(self.inputs)]

    def values(self, module: nn.Module, block: Block, inputs: list[Tensor]) -> Tensor:
        """Return the bias [b, H, n, m] of a block from its inputs, last query first."""
        read: dict[str, dict[str, Tensor]] = {kind: {} for kind, _ in self.names} | {"memo": {}, "query_memo": {}}
        for (kind, name), tensor in zip(self.names, inputs, strict=True):
            read[kind][name] = tensor
        at, keys_at = block.positions(self.at, self.keys_at)
        q, k = read["queries"]["q"], read["keys"]["k"]  # no bias reads values
        with without_autocast(q):
            keys = Keys(k, k, keys_at, read["memo"], read["query_memo"])
            dtype = torch.promote_types(q.dtype, torch.float32)
            return self.bias.backwards(module, q, at, keys, dtype)

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        values = self.room.tensor(b, self.heads, n, m)
        wide, keys = self.with_read_keys(block)
        for part, rows in self.row_blocks(wide):
            values[:, :, rows] = self.values(self.bias.module, part, self.read(part))[..., keys]
        return values

    @property
    def heads(self) -> int:
        """Return the number of heads of the model."""
        return self.inputs[0].shape[1] if self.bias.head_numbers is None else self.bias.total_heads

    def with_read_keys(self, block: Block) -> tuple[Block, slice]:
        """Return the block with all keys that its bias reads, and its own keys as a slice."""
        first, last = block.keys.start, block.keys.stop
        if not self.bias.reads_between:
            return block, slice(0, last - first)
        start, stop = 0, self.keys_at.tokens
        if self.row is not None:
            queries = slice(block.rows.start + self.row.offset, block.rows.stop + self.row.offset)
            start, stop = max(0, min(first, queries.start)), min(stop, max(last, queries.stop))
        return block._replace(keys=slice(start, stop)), slice(first - start, last - start)

    def row_blocks(self, block: Block) -> list[tuple[Block, slice]]:
        """Return the block as blocks of fewer queries, and their rows as slices of it."""
        step = max(1, SIZES.pairs_of_content // (block.size[0] * self.inputs[0].shape[1] * length(block.keys)))
        last = block.rows.stop
        row_parts = cut(block.rows, step)
        return [(block._replace(rows=rows), slice(last - rows.stop, last - rows.start)) for rows in row_parts]

    def sums(self) -> tuple[Any, ...]:
        return {}, *with_leaf_parameters(self.bias.module, self.names, self.inputs)

    def take_slopes(
        self, block: Block, upstream: Tensor, totals: dict[int, Tensor], module: nn.Module, leaves: tuple[Tensor, ...]
    ) -> None:
        """Evaluate the block once more under autograd, and sum the gradients in the inputs."""
        wide, keys = self.with_read_keys(block)
        for row_block, rows in self.row_blocks(wide):
            with torch.enable_grad():
                read = [self.part_of_input(row_block, index, leaf) for index, leaf in enumerate(leaves)]
                values = self.values(module, row_block, read)[..., keys]
            if not values.requires_grad:
                return
            inputs = {index: tensor for index, tensor in enumerate(read) if tensor.requires_grad}
            gradient = upstream[:, :, rows].to(values.dtype)
            slopes = torch.autograd.grad(values, tuple(inputs.values()), gradient, allow_unused=True)
            for index, slope in zip(inputs, slopes, strict=True):
                if slope is not None:
                    if index not in totals:
                        dtype = torch.promote_types(slope.dtype, torch.float32)
                        totals[index] = torch.zeros_like(leaves[index], dtype=dtype, requires_grad=False)
                    self.part_of_input(row_block, index, totals[index]).add_(slope)

    def total(self, sums: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        slopes, inputs = sums[0], enumerate(self.inputs)
        return tuple(slopes[index].to(tensor.dtype) if index in slopes else None for index, tensor in inputs)
