"""Numbers for all pairs, block by block: nothing is computed."""

import torch
from torch import Tensor

from posenc.encoding.biases import Dense
from posenc.kernels.cpu.bias_in_blocks import Block, InBlocks
from posenc.tokens.masks import part_of


class DenseInBlocks(InBlocks):
    """A view of the numbers, last query first."""

    name = "dense"
    owns = False

    def __init__(self, bias: Dense, q: Tensor) -> None:
        dtype = torch.promote_types(q.dtype, torch.float32)
        self.logits = bias.dense(torch.promote_types(bias.logits.dtype, dtype))
        self.inputs: tuple[Tensor, ...] = (self.logits,)

    def block(self, block: Block) -> Tensor:
        values = self.logits.detach()[part_of(self.logits, *block)]
        return values.flip(2) if values.shape[2] > 1 else values

    def take_slopes(self, block: Block, upstream: Tensor, of_logits: Tensor) -> None:
        place = of_logits[part_of(of_logits, *block)]
        place += upstream.flip(2).sum_to_size(place.shape)
