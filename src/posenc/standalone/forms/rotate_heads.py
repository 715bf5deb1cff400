"""A rotation of some heads; the others have no position."""

import torch
from torch import Tensor, nn

SEQ_DIM = 2
HEADS_DIM = 1


def rotate_heads(
    rotation: nn.Module, q: Tensor, k: Tensor, heads: tuple[int, ...], *places: Tensor | int | None
) -> tuple[Tensor, Tensor]:
    """Return q and k with these query heads rotated, and the key heads that they share."""
    axis = HEADS_DIM
    group = q.shape[axis] // k.shape[axis]  # query heads of a key head: all of them are rotated, or none
    q_index = torch.tensor(heads, device=q.device)
    k_index = torch.tensor(sorted({head // group for head in heads}), device=q.device)
    some_q, some_k = rotation(q.index_select(axis, q_index), k.index_select(axis, k_index), *places)
    return q.index_copy(axis, q_index, some_q), k.index_copy(axis, k_index, some_k)


class Opposite(nn.Module):
    """A rotation by half a turn, for the test below."""

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return -q, -k


if __name__ == "__main__":
    x = torch.arange(48, dtype=torch.float64).sin().view(1, 2, 3, 8).movedim(2, SEQ_DIM)
    q, k = rotate_heads(Opposite(), x, x, (1,))
    torch.testing.assert_close(q.unbind(HEADS_DIM), (x.unbind(HEADS_DIM)[0], -x.unbind(HEADS_DIM)[1]))
