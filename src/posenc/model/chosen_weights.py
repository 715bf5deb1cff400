"""Attention weights of chosen rows, heads and layers, in bounded memory, beside an output of any kernel.

Queries are independent of one another given the keys, whatever the attention rule: the readable kernel is asked for a
few of them at a time, by a rule that stands around that of a layer for one call.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks, kernels
from posenc.encoding.base import AttentionOutput
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.kernels.in_rows import few
from posenc.model.attention import Attention, Call, attend
from posenc.model.block import Block, LayerWeights
from posenc.model.stack import Stack

Choice: TypeAlias = int | slice | Sequence[int] | None
"""Some of a number of things: one, a slice, several, or None for all. Numbers below 0 count from the end."""

LOGITS_AT_ONCE = 1 << 21
"""How many logits are held at a time, in all heads and rows of a batch."""


def chosen_weights(
    module: nn.Module, *inputs: Any, rows: Choice = None, heads: Choice = None, layers: Choice = None, **options: Any
) -> tuple[Any, LayerWeights | tuple[LayerWeights, ...]]:
    """What an attention layer, a block or a model gives, and some of its attention weights, [B, heads, rows, S].

    inputs, options   what the module is called with, but for need_weights
    rows    the queries of the call
    heads   the query heads
    layers  the layers of a model, in an encoder-decoder those of the decoder

    Each choice is an int, a slice, several ints, or None for all; numbers below 0 count from the end, and weights come
    as asked for and in that order: of a layer or a block one tensor, of a model a tuple with one for each layer asked
    for, and where a layer attends to two sequences {"self": ..., "cross": ...}. Weights are those before dropout.
    Without gradients memory is bounded by the weights asked for and a block of rows; encodings that relate every key
    with every other (path) need more by themselves. With `only` the last layer has no other rows than these.

    Raises ValueError for rows, heads and layers that do not exist, modules without attention of posenc's, and layers
    whose keys are cut over ranks.

    >>> from posenc import Attention
    >>> attention = Attention(32, heads=4, encoding="alibi")
    >>> out, weights = chosen_weights(attention, torch.randn(1, 9, 32), rows=-1, heads=(0, 2))
    >>> weights.shape
    torch.Size([1, 2, 1, 9])
    """
    stack = getattr(module, "stack", getattr(module, "decoder", None))
    if isinstance(module, (Attention, Block)):
        if layers is not None:
            raise ValueError(f"layers are chosen in a model, and this is one layer; leave out layers={layers}")
        chosen = [module]
    elif isinstance(stack, Stack):
        chosen = [cast(Block, stack.blocks[layer]) for layer in numbers(layers, len(stack.blocks), "layer")]
    else:
        raise ValueError(
            f"weights are chosen of posenc's Attention, Block, Decoder, Encoder or EncoderDecoder, got "
            f"{checks.shown(module)}"
        )
    weights: dict[nn.Module, list[Tensor]] = {}
    with ExitStack() as context:
        for layer in chosen:
            for attention in (part for part in layer.modules() if isinstance(part, Attention)):
                if attention not in weights:
                    weights[attention] = context.enter_context(recorder(attention, rows, heads))
        if isinstance(stack, Stack):
            # A block that is computed again to go backward would find another rule.
            context.callback(setattr, stack, "activation_checkpointing", stack.activation_checkpointing)
            stack.activation_checkpointing = False
        out = module(*inputs, **options)

    def weights_in(layer: Attention | Block) -> LayerWeights:
        if isinstance(layer, Attention):
            return weights[layer][-1]
        if layer.cross_attention is None:
            return weights[layer.attention][-1]
        return {"self": weights[layer.attention][-1], "cross": weights[layer.cross_attention][-1]}

    return out, weights_in(chosen[0]) if chosen[0] is module else tuple(map(weights_in, chosen))


@contextmanager
def recorder(attention: Attention, rows: Choice, heads: Choice) -> Generator[list[Tensor]]:
    """The weights of the rows and heads chosen, of each call of a layer within."""
    if attention.rule is not attend or attention.heads != attention.config.heads:
        raise ValueError("attention weights of a model that is cut over ranks are on no rank; ask the whole model")
    weights: list[Tensor] = []

    def rule(q: Tensor, keys: Keys, call: Call, kernel: BoundKernel) -> AttentionOutput:
        weights.append(weights_of(rows, heads, q, keys, call, kernel))
        return attend(q, keys, call, kernel)

    attention.rule = rule
    try:
        yield weights
    finally:
        attention.rule = attend


def weights_of(rows: Choice, heads: Choice, q: Tensor, keys: Keys, call: Call, kernel: BoundKernel) -> Tensor:
    """The weights of rows and heads [B, heads, rows, S], of what a rule is given."""
    row_numbers, head_numbers = numbers(rows, q.shape[2], "row"), numbers(heads, q.shape[1], "head")
    S = keys.k.shape[2]
    at_once = max(1, LOGITS_AT_ONCE // (q.shape[0] * q.shape[1] * S))
    index = torch.tensor(head_numbers, device=q.device)
    of_layer: dict[str, Any] = {"scale": kernel.scale, "sinks": kernel.sinks, "softcap": kernel.softcap}
    kernel = kernels.bind("reference", call.encoding, need_weights=True, **of_layer)
    blocks = []
    for begin in range(0, len(row_numbers), at_once):
        some = row_numbers[begin : begin + at_once]
        follow = some == list(range(some[0], some[-1] + 1))
        block_rows = slice(some[0], some[-1] + 1) if follow else torch.tensor(some, device=call.at.order.device)
        weights = call.encoding.attend(*few(block_rows, q, call.at, keys, call.mask, drop_future=True), kernel)[1]
        assert weights is not None
        picked = weights if head_numbers == list(range(q.shape[1])) else weights[:, index]
        blocks.append(F.pad(picked, (0, S - picked.shape[-1])))
    return torch.cat(blocks, 2)


def numbers(chosen: Choice, of: int, what: str) -> list[int]:
    """The numbers from 0 to of - 1 that were chosen.

    Raises ValueError when one does not exist, or when there is none.
    """
    if chosen is None or isinstance(chosen, slice):
        picked = list(range(of))[slice(None) if chosen is None else chosen]
    else:
        picked = [chosen] if isinstance(chosen, int) else list(chosen)
    if not picked:
        raise ValueError(f"{what}s={chosen} holds none of the {of} {what}s; choose one at least")
    for number in picked:
        if not -of <= number < of:
            raise ValueError(f"no {what} {number}: there are {of}, from 0 to {of - 1}, or from {-of} to -1")
    return [number % of for number in picked]
