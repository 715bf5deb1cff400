"""A bias on some heads; the others have no position."""

import torch
from torch import Tensor, nn

SEQ_DIM = 2
HEADS_DIM = 1


def bias_on_heads(bias: nn.Module, q: Tensor, k: Tensor, heads: tuple[int, ...], *places: Tensor | None) -> Tensor:
    """Return the bias [.., heads of q, T, S] that is 0 for all but these query heads."""
    axis, index = HEADS_DIM, torch.tensor(heads, device=q.device)
    group = q.shape[axis] // k.shape[axis]  # query heads of a key head
    some = bias(q.index_select(axis, index), k.index_select(axis, index // group), *places)
    return some.new_zeros(*some.shape[:-3], q.shape[axis], *some.shape[-2:]).index_copy(-3, index, some)


class Ones(nn.Module):
    """A bias of 1, for the test below."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.ones(q.shape[HEADS_DIM], q.shape[SEQ_DIM], k.shape[SEQ_DIM])


if __name__ == "__main__":
    x = torch.zeros(1, 2, 3, 8).movedim(2, SEQ_DIM)
    assert bias_on_heads(Ones(), x, x, (1,))[:, 0, 0].tolist() == [0, 1]
