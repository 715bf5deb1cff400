"""The order test: the same tokens in another order, with and without position."""

from itertools import permutations
from typing import Any

import torch
from torch import nn

from posenc.lab.experiments.recipes import axes_hints
from posenc.model.config import Config
from posenc.model.seeding import local_seed
from posenc.model.stack import Stack
from posenc.tokens.positions import Positions

DIM, HEADS, TOKENS = 32, 4, 12

BLIND = 1e-9
"""A smaller difference between outputs of an untrained float64 model is rounding."""


def untrained_stack(spec: str | tuple[str, ...], layers: int, is_causal: bool) -> Stack:
    """An untrained stack in float64, whose encodings' parameters are drawn from N(0, 1)."""
    sizes = Config(DIM, HEADS, layers, max_len=TOKENS)
    stack = Stack(sizes, encoding=spec, causal=is_causal, hints=axes_hints())
    # Both directions are tested, so the warning about the wrong one is off.
    stack.has_warned = True
    stack = stack.double().eval()
    for parameter in stack.encodings.parameters():
        parameter.normal_()
    return stack


def stack_outputs(stack: Stack, x: torch.Tensor) -> torch.Tensor:
    """The outputs of a stack for vectors [B, T, dim] at positions 0, 1, 2, ..."""
    at = Positions.count(x.shape[1])
    for encoding in stack.input_encodings:
        x = encoding.embed(x, at)
    return stack(x, at)[0]


@torch.inference_mode()
def order_test(spec: str | tuple[str, ...], *, layers: int, is_causal: bool, seed: int = 0) -> dict[str, Any]:
    """Compare an untrained stack's outputs (float64) before and after its tokens are reordered.

    equivariance  max |f(x)[perm] - f(x[perm])|: 0 means that reordered tokens give reordered outputs
    difference    max |f(x)[last] - f(x[perm])[last]| where perm leaves the last token in place: 0 means that the last
                  token cannot tell in which order the others came

    The parameters of the encoding are drawn from N(0, 1), so that a table that starts at zero has an effect.
    Without position a bidirectional stack is equivariant whatever its depth. A causal stack without position is blind
    to order at the last token with one layer only: a second layer sees prefixes that differ.
    """
    with local_seed(seed):
        stack = untrained_stack(spec, layers, is_causal)
        x = torch.randn(1, TOKENS, DIM, dtype=torch.float64)
        perm = torch.cat((torch.randperm(TOKENS - 1), torch.tensor([TOKENS - 1])))
    plain, permuted_answers = stack_outputs(stack, x), stack_outputs(stack, x[:, perm])
    return {
        "attention": "causal" if is_causal else "bidirectional",
        "layers": layers,
        "equivariance": float((plain[:, perm] - permuted_answers).abs().max()),
        "difference": float((plain - permuted_answers)[:, -1].abs().max()),
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
def output_changes(spec: str, *, tokens: int, layers: int, is_causal: bool, seed: int = 0) -> list[list[float]]:
    """The change of each token's output in every order of a few tokens: [orders, tokens].

    |f(x[order])[where token j went] - f(x)[j]| / |f(x)[j]|, for an untrained stack f (float64); the orders are those of
    `itertools.permutations`, the identity first. Rounding errors become 0.

    All encodings get the same tokens and layers of the same weights.

    >>> output_changes("none", tokens=2, layers=1, is_causal=False)
    [[0.0, 0.0], [0.0, 0.0]]
    """
    with local_seed(seed):
        stack = untrained_stack(spec, layers, is_causal)
    with local_seed(seed):
        for module in stack.blocks.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()
        x = torch.randn(1, tokens, DIM, dtype=torch.float64)
    orders = torch.tensor(list(permutations(range(tokens))))
    outputs = stack_outputs(stack, x[0, orders])
    # Where each token went: the inverse of the order.
    token_outputs = outputs.gather(1, orders.argsort(1)[:, :, None].expand_as(outputs))
    change = (token_outputs - token_outputs[:1]).norm(dim=-1) / token_outputs[:1].norm(dim=-1)
    return torch.where(change < BLIND, 0.0, change).tolist()
