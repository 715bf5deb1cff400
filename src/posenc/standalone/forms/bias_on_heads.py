"""A bias on some heads; the others have no position."""

import torch
from torch import Tensor


def bias_on_heads(bias: Tensor, heads: tuple[int, ...], num_heads: int) -> Tensor:
    """Return the bias [.., num_heads, T, S] that is 0 for all other heads."""
    index = torch.tensor(heads, device=bias.device)
    return bias.new_zeros(*bias.shape[:-3], num_heads, *bias.shape[-2:]).index_copy(-3, index, bias)


if __name__ == "__main__":
    assert bias_on_heads(torch.ones(1, 3, 3), (1,), 2)[:, 0, 0].tolist() == [0, 1]
