"""Biases pair by pair in blocks: the closure is asked for each block, and once more in the backward pass."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding.biases import Pairs
from posenc.encoding.keys import Keys
from posenc.encoding.precision import without_autocast
from posenc.kernels.block_sizes import SIZES, cut
from posenc.kernels.cpu.bias_in_blocks import BiasInBlocks, Block, Room, length
from posenc.kernels.cpu.plan import Row
from posenc.kernels.in_rows import standing_in


class PairsInBlocks(BiasInBlocks):
    """A bias whose closure is asked for a block, and again under autograd when its gradient is wanted.

    Queries do not read each other, so a block goes through in a few queries at a time.
    """

    name = "pairs"

    def __init__(self, bias: Pairs, row: Row | None) -> None:
        q, keys = bias.q, bias.known()
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
        self.room = Room(q, torch.promote_types(q.dtype, torch.float32))

    def in_block(self, block: Block, index: int, tensor: Tensor) -> Tensor:
        """What a block reads of an input, or writes of its gradient."""
        kind, _ = self.names[index]
        if kind == "parameters":
            return tensor
        shared = slice(None) if tensor.shape[0] == 1 else block.batch
        return tensor[shared, :, block.rows if kind in ("queries", "query_memo") else block.keys]

    def read(self, block: Block) -> list[Tensor]:
        return [self.in_block(block, index, tensor) for index, tensor in enumerate(self.inputs)]

    def values(self, module: nn.Module, block: Block, inputs: list[Tensor]) -> Tensor:
        """The bias [b, H, n, m] of a block, last query first, from what it reads of the inputs."""
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
        out = self.room.of(b, self.heads, n, m)
        wide, keys = self.keys_read(block)
        for few, rows in self.few_queries(wide):
            out[:, :, rows] = self.values(self.bias.module, few, self.read(few))[..., keys]
        return out

    @property
    def heads(self) -> int:
        """How many heads of the model there are."""
        return self.inputs[0].shape[1] if self.bias.chosen is None else self.bias.of

    def keys_read(self, block: Block) -> tuple[Block, slice]:
        """The block with all keys that its bias reads, and where its own stand among them."""
        first, last = block.keys.start, block.keys.stop
        if not self.bias.reads_between:
            return block, slice(0, last - first)
        start, stop = 0, self.keys_at.tokens
        if self.row is not None:
            queries = slice(block.rows.start + self.row.offset, block.rows.stop + self.row.offset)
            start, stop = max(0, min(first, queries.start)), min(stop, max(last, queries.stop))
        return block._replace(keys=slice(start, stop)), slice(first - start, last - start)

    def few_queries(self, block: Block) -> list[tuple[Block, slice]]:
        """The block in blocks of fewer queries, and where their rows stand in it."""
        step = max(1, SIZES.pairs_of_content // (block.size[0] * self.inputs[0].shape[1] * length(block.keys)))
        last = block.rows.stop
        few = cut(block.rows, step)
        return [(block._replace(rows=rows), slice(last - rows.stop, last - rows.start)) for rows in few]

    def sums(self) -> tuple[Any, ...]:
        return {}, *standing_in(self.bias.module, self.names, self.inputs)

    def take_slopes(
        self, block: Block, upstream: Tensor, found: dict[int, Tensor], module: nn.Module, leaves: tuple[Tensor, ...]
    ) -> None:
        """Evaluates the block once more under autograd, and adds up what it gives for the inputs."""
        wide, keys = self.keys_read(block)
        for few, rows in self.few_queries(wide):
            with torch.enable_grad():
                read = [self.in_block(few, index, leaf) for index, leaf in enumerate(leaves)]
                values = self.values(module, few, read)[..., keys]
            if not values.requires_grad:
                return
            wanted = {index: part for index, part in enumerate(read) if part.requires_grad}
            upon = upstream[:, :, rows].to(values.dtype)
            slopes = torch.autograd.grad(values, tuple(wanted.values()), upon, allow_unused=True)
            for index, slope in zip(wanted, slopes, strict=True):
                if slope is not None:
                    if index not in found:
                        dtype = torch.promote_types(slope.dtype, torch.float32)
                        found[index] = torch.zeros_like(leaves[index], dtype=dtype, requires_grad=False)
                    self.in_block(few, index, found[index]).add_(slope)

    def total(self, sums: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        found, inputs = sums[0], enumerate(self.inputs)
        return tuple(found[index].to(tensor.dtype) if index in found else None for index, tensor in inputs)
