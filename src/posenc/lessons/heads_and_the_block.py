"""Lesson 7: heads, and the block around them."""

from types import ModuleType

import torch

from posenc.lessons import answer, same

PLACE = 7


def split_heads_cuts_channels(theirs: ModuleType) -> None:
    """split_heads(x, heads) gives head h the channels h d/H to (h + 1) d/H of every token"""
    split_heads = answer(theirs, "split_heads")
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    right = torch.stack([x[..., 2 * h : 2 * h + 2] for h in range(3)], 1)
    apart = torch.stack([x[..., h::3] for h in range(3)], 1)
    mistakes = {
        "a view alone cuts the list of tokens: split the channels of each, then transpose": x.reshape(2, 3, 5, 2),
        "heads stand behind tokens; transpose the two axes": x.reshape(2, 5, 3, 2),
        "each head takes channels that lie together, and not every third one": apart,
    }
    same("split_heads of [2, 5, 6] into 3 heads", split_heads(x, 3), right, mistakes)


def parameters_do_not_depend_on_heads(theirs: ModuleType) -> None:
    """parameters(dim, heads) is four matrices of dim x dim, for queries, keys, values and the output"""
    parameters = answer(theirs, "parameters")
    for dim, heads in ((64, 2), (512, 8)):
        mistakes = {
            "heads share the channels, so more heads cost no parameters": 4 * dim * dim * heads,
            "each head reads all dim channels, and there are as many heads as fill dim again": 4 * dim * dim // heads,
            "the matrix of the output is missing": 3 * dim * dim,
            "the question is without biases": 4 * dim * (dim + 1),
            "these are the numbers of one matrix": dim * dim,
        }
        same(f"parameters({dim}, {heads})", parameters(dim, heads), 4 * dim * dim, mistakes)


EXERCISES = (split_heads_cuts_channels, parameters_do_not_depend_on_heads)
