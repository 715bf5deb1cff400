"""Attention weights of chosen rows, heads and layers, in bounded memory, beside an output of any kernel.

Under every attention rule queries are independent of each other, given the keys. So the reference kernel computes the
weights of a few queries at a time, in a rule that replaces that of a layer for one call.
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
from posenc.kernels.in_rows import rows_of_call
from posenc.model.attention import Attention, Call, plain_rule
from posenc.model.block import Block, LayerWeights
from posenc.model.stack import Stack

Choice: TypeAlias = int | slice | Sequence[int] | None
"""A choice of indices: one, a slice, several, or None for all. Indices below 0 count from the end."""

LOGITS_AT_ONCE = 1 << 21
"""The most logits in memory at a time, over all heads and rows of a batch."""


def chosen_weights(
    module: nn.Module, *inputs: Any, rows: Choice = None, heads: Choice = None, layers: Choice = None, **options: Any
) -> tuple[Any, LayerWeights | tuple[LayerWeights, ...]]:
    """Return the output of a module, and some of its attention weights, [B, heads, rows, S].

    inputs, options   the arguments of the module (an attention layer, a block or a model), without need_weights
    rows    the queries of the call
    heads   the query heads
    layers  the layers of a model, in an encoder-decoder those of the decoder

    Each choice is an int, a slice, several ints, or None for all; numbers below 0 count from the end. The weights come
    in the order of the choice: of a layer or a block one tensor, of a model a tuple with one for each chosen layer, and
    {"self": ..., "cross": ...} for a layer that attends to two sequences. Weights are those before dropout.
    Without gradients memory is bounded by the chosen weights and a block of rows; encodings that relate every key with
    every other (path) need more by themselves. With `only` the last layer has no other rows than these.

    Raises ValueError for rows, heads and layers that do not exist, other modules than posenc's, and layers whose keys
    are cut over ranks.

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
        targets = [module]
    elif isinstance(stack, Stack):
        targets = [cast(Block, stack.blocks[layer]) for layer in chosen_numbers(layers, len(stack.blocks), "layer")]
    else:
        raise ValueError(
            f"weights are chosen of posenc's Attention, Block, Decoder, Encoder or EncoderDecoder, got "
            f"{checks.display(module)}"
        )
    weights: dict[nn.Module, list[Tensor]] = {}
    with ExitStack() as context:
        for layer in targets:
            for attention in (part for part in layer.modules() if isinstance(part, Attention)):
                if attention not in weights:
                    weights[attention] = context.enter_context(recorder(attention, rows, heads))
        if isinstance(stack, Stack):
            # A block that is computed again in the backward pass would find another rule.
            context.callback(setattr, stack, "activation_checkpointing", stack.activation_checkpointing)
            stack.activation_checkpointing = False
        out = module(*inputs, **options)

    def weights_in(layer: Attention | Block) -> LayerWeights:
        if isinstance(layer, Attention):
            return weights[layer][-1]
        if layer.cross_attention is None:
            return weights[layer.attention][-1]
        return {"self": weights[layer.attention][-1], "cross": weights[layer.cross_attention][-1]}

    return out, weights_in(targets[0]) if targets[0] is module else tuple(map(weights_in, targets))


@contextmanager
def recorder(attention: Attention, rows: Choice, heads: Choice) -> Generator[list[Tensor]]:
    """Record the weights of the chosen rows and heads, for each call of a layer in the block."""
    if attention.rule is not plain_rule or attention.heads != attention.config.heads:
        raise ValueError("attention weights of a model that is cut over ranks are on no rank; ask the whole model")
    weights: list[Tensor] = []

    def rule(q: Tensor, keys: Keys, call: Call, kernel: BoundKernel) -> AttentionOutput:
        weights.append(weights_of(rows, heads, q, keys, call, kernel))
        return plain_rule(q, keys, call, kernel)

    attention.rule = rule
    try:
        yield weights
    finally:
        attention.rule = plain_rule


def weights_of(rows: Choice, heads: Choice, q: Tensor, keys: Keys, call: Call, kernel: BoundKernel) -> Tensor:
    """Return the weights of chosen rows and heads [B, heads, rows, S], from the arguments of a rule."""
    row_numbers, head_numbers = chosen_numbers(rows, q.shape[2], "row"), chosen_numbers(heads, q.shape[1], "head")
    S = keys.k.shape[2]
    at_once = max(1, LOGITS_AT_ONCE // (q.shape[0] * q.shape[1] * S))
    index = torch.tensor(head_numbers, device=q.device)
    of_layer: dict[str, Any] = {"scale": kernel.scale, "sinks": kernel.sinks, "softcap": kernel.softcap}
    kernel = kernels.bind("reference", call.encoding, need_weights=True, **of_layer)
    blocks = []
    for begin in range(0, len(row_numbers), at_once):
        block = row_numbers[begin : begin + at_once]
        follow = block == list(range(block[0], block[-1] + 1))
        block_rows = slice(block[0], block[-1] + 1) if follow else torch.tensor(block, device=call.at.order.device)
        arguments = rows_of_call(block_rows, q, call.at, keys, call.mask, drop_future=True)
        weights = call.encoding.attend(*arguments, kernel)[1]
        assert weights is not None
        block_weights = weights if head_numbers == list(range(q.shape[1])) else weights[:, index]
        blocks.append(F.pad(block_weights, (0, S - block_weights.shape[-1])))
    return torch.cat(blocks, 2)


def chosen_numbers(choice: Choice, total: int, noun: str) -> list[int]:
    """Return the chosen numbers, from 0 to total - 1.

    Raises ValueError for a number that does not exist, and for an empty choice.
    """
    if choice is None or isinstance(choice, slice):
        numbers = list(range(total))[slice(None) if choice is None else choice]
    else:
        numbers = [choice] if isinstance(choice, int) else list(choice)
    if not numbers:
        raise ValueError(f"{noun}s={choice} holds none of the {total} {noun}s; choose one at least")
    for number in numbers:
        if not -total <= number < total:
            raise ValueError(f"no {noun} {number}: there are {total}, from 0 to {total - 1}, or from {-total} to -1")
    return [number % total for number in numbers]
