"""The order test: the same tokens in another order, with and without position."""

from itertools import permutations
from typing import Any

import torch
from torch import nn

from posenc.lab.experiments.recipes import on_axes
from posenc.model.config import Config
from posenc.model.seeding import seeded
from posenc.model.stack import Stack
from posenc.tokens.positions import Positions

DIM, HEADS, TOKENS = 32, 4, 12

BLIND = 1e-9
"""An untrained float64 model whose answers differ by less than this does not see order."""


def untrained(spec: str | tuple[str, ...], layers: int, is_causal: bool) -> Stack:
    """An untrained stack in float64, whose encodings' parameters are drawn from N(0, 1)."""
    sizes = Config(DIM, HEADS, layers, max_len=TOKENS)
    stack = Stack(sizes, encoding=spec, causal=is_causal, hints=on_axes())
    # Both directions are asked of an encoding, whichever it is built for.
    stack.has_warned = True
    stack = stack.double().eval()
    for parameter in stack.encodings.parameters():
        parameter.normal_()
    return stack


def answers(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    """What a stack makes of vectors [B, T, dim] that stand at 0, 1, 2, ..."""
    at = Positions.count(x.shape[1])
    for encoding in stack.added:
        x = encoding.embed(x, at)
    return stack(x, at)[0]


@torch.inference_mode()
def order_test(spec: str | tuple[str, ...], *, layers: int, is_causal: bool, seed: int = 0) -> dict[str, Any]:
    """How an untrained stack (float64) answers when its tokens are reordered.

    equivariance  max |f(x)[perm] - f(x[perm])|: 0 means that reordered tokens give reordered outputs
    difference    max |f(x)[last] - f(x[perm])[last]| where perm leaves the last token in place: 0 means that the last
                  token cannot tell in which order the others came

    The parameters of the encoding are drawn from N(0, 1), so that a table that starts at zero has something to say.
    Without position a bidirectional stack is equivariant whatever its depth. A causal stack without position is blind
    to order at the last token with one layer only: a second layer sees prefixes that differ.
    """
    with seeded(seed):
        stack = untrained(spec, layers, is_causal)
        x = torch.randn(1, TOKENS, DIM, dtype=torch.float64)
        perm = torch.cat((torch.randperm(TOKENS - 1), torch.tensor([TOKENS - 1])))
    plain, reordered = answers(stack, x), answers(stack, x[:, perm])
    return {
        "attention": "causal" if is_causal else "bidirectional",
        "layers": layers,
        "equivariance": float((plain[:, perm] - reordered).abs().max()),
        "difference": float((plain - reordered)[:, -1].abs().max()),
    }


def order_tests(spec: str | tuple[str, ...]) -> list[dict[str, Any]]:
    """The order test with and without position, bidirectional and causal, with one layer and with two."""
    return [
        order_test(spec if position else "none", layers=layers, is_causal=is_causal) | {"position": position}
        for is_causal in (False, True)
        for layers in (1, 2)
        for position in (True, False)
    ]


@torch.inference_mode()
def changes(spec: str, *, tokens: int, layers: int, is_causal: bool, seed: int = 0) -> list[list[float]]:
    """How far the output of each token moves, in every order of a few tokens: [orders, tokens].

    |f(x[order])[where token j went] - f(x)[j]| / |f(x)[j]|, for an untrained stack f (float64); the orders are those of
    `itertools.permutations`, the one that leaves all in place first. What rounding alone makes is 0.

    All encodings are asked about the same tokens by layers of the same weights.

    >>> changes("none", tokens=2, layers=1, is_causal=False)
    [[0.0, 0.0], [0.0, 0.0]]
    """
    with seeded(seed):
        stack = untrained(spec, layers, is_causal)
    with seeded(seed):
        for module in stack.blocks.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()
        x = torch.randn(1, tokens, DIM, dtype=torch.float64)
    orders = torch.tensor(list(permutations(range(tokens))))
    given = answers(stack, x[0, orders])
    # Where each token went: the inverse of the order.
    moved = given.gather(1, orders.argsort(1)[:, :, None].expand_as(given))
    change = (moved - moved[:1]).norm(dim=-1) / moved[:1].norm(dim=-1)
    return torch.where(change < BLIND, 0.0, change).tolist()
