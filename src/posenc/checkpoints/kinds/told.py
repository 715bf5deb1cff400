"""Position code that is told and not replaced, with the reason: what the catalogue has no entry for."""

import math
from collections.abc import Iterator
from typing import Any

from torch import nn

from posenc.checkpoints.kinds.kind import Stack
from posenc.checkpoints.models.found import Found
from posenc.checkpoints.models.nodes import Node

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


def reason(stack: Stack, item: Found) -> str | None:
    """Why what was found in a stack is no entry of the catalogue, as what follows its name; None where unknown."""
    shape, size = stack.shape, () if item.values is None else tuple(item.values.shape)
    if item.kind == "module" and (reach := reach_of(item.owner)) is not None:
        return f"tells places apart by a convolution over {reach}, which no spec here speaks of; it stays as it is"
    rows, wide = size if len(size) == 2 else (0, 0)
    back = stack.node.seen.centres.get(item.path)
    if wide == shape.head_dim and rows > 2 and item.kind == "table":
        beside = sum(one.owner is item.owner and one.values is not None for one in stack.pieces("table"))
        if beside > 1 and rows % 2:
            return "has a vector for each distance along one axis, compared with queries; shaw has a single axis"
        if back is None:
            return None
        if 2 * back + 1 != rows:
            return f"has a vector for each distance from -{back} to {rows - 1 - back}; shaw clips both sides alike"
        return f"has a vector for each distance up to {back}, as shaw; the layers clip and look up by themselves"
    if item.kind == "table" and shape.heads in size[:1] + size[-1:]:
        if any(buffer is not None and not buffer.is_floating_point() for buffer in item.owner._buffers.values()):
            return "has a number for each head and kind of pair, which a buffer tells; grid_bias has others"
        side = math.isqrt(max(rows - 3, 0))
        if wide == shape.heads and rows > 11 and side * side == rows - 3 and side % 2:
            return "has rows for a window of patches, and 3 for a class token, which grid_bias has no place for"
    return None


def reach_of(owner: nn.Module) -> str | None:
    """How many tokens the convolution reads that a module is, or has as its only parameters."""
    layers = [module for module in owner.modules() if isinstance(module, CONVOLUTIONS)]
    others = [m for m in owner.modules() if isinstance(m, (nn.Linear, nn.Embedding)) or list(m.children()) == []]
    if not layers or any(isinstance(m, (nn.Linear, nn.Embedding)) for m in others):
        return None
    return f"{' x '.join(map(str, layers[0].kernel_size))} tokens"


def is_centred(layer: Any) -> bool:
    """Whether a convolution reads as many tokens on either side."""
    sizes = zip(layer.kernel_size, layer.padding, strict=True) if isinstance(layer.padding, tuple) else ()
    return any(size > 1 and 2 * padding == size - 1 for size, padding in sizes)


def unnamed(node: Node) -> Iterator[str]:
    """What tells attention of places where nothing was found: convolutions, and code that speaks of position."""
    seen = node.seen
    if not seen.attend or node.found or node.pieces:
        return
    layers = [module for module in node.modules.values() if isinstance(module, CONVOLUTIONS)]
    # As far to one side as to the other: those that look back alone belong to other layers than attention.
    beside = [one for one in layers if one.groups == one.in_channels > 1 and is_centred(one)]
    if beside:
        size = " x ".join(map(str, beside[0].kernel_size))
        yield f"convolutions over {size} tokens tell attention of places, which no spec here speaks of; they stay"
    if seen.spoke and not node.path:
        yield f"{', '.join(sorted(seen.spoke))} ran, which speak of position, and no spec here says how"
