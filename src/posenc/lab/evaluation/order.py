"""The order test: the same tokens in another order, with and without position."""

from typing import Any

import torch

from posenc.lab.experiments.recipes import on_axes
from posenc.masks import bidirectional, causal
from posenc.model import Stack
from posenc.positions import Positions
from posenc.sizes import Sizes

DIM, HEADS, TOKENS = 32, 4, 12


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
    torch.manual_seed(seed)
    sizes = Sizes(DIM, HEADS, layers, max_len=TOKENS)
    stack = Stack(sizes, encoding=spec, causal=is_causal, hints=on_axes())
    stack = stack.double().eval()
    for parameter in stack.encodings.parameters():
        parameter.normal_()
    x = torch.randn(1, TOKENS, DIM, dtype=torch.float64)
    perm = torch.cat((torch.randperm(TOKENS - 1), torch.tensor([TOKENS - 1])))
    mask = causal() if is_causal else bidirectional()

    def run(x: torch.Tensor) -> torch.Tensor:
        at = Positions.count(TOKENS)
        for encoding in stack.added:
            x = encoding.embed(x, at)
        return stack(x, at, mask)[0]

    plain, reordered = run(x), run(x[:, perm])
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
