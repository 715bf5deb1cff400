"""Position code that the catalogue has no entry for: it is reported with the reason, and not replaced."""

import math
from collections.abc import Iterator

from torch import nn

from posenc.checkpoints.kinds.kind import LayerStack
from posenc.checkpoints.models.nodes import ConfigNode
from posenc.checkpoints.models.position_items import PositionItem

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


def uncovered_reason(stack: LayerStack, item: PositionItem) -> str | None:
    """Return a clause on why a stack's piece has no entry in the catalogue; None if unknown."""
    shape, size = stack.shape, () if item.values is None else tuple(item.values.shape)
    if item.kind == "module" and (reach := kernel_reach(item.owner)) is not None:
        return f"tells places apart by a convolution over {reach}, which no spec here speaks of; it stays as it is"
    rows, wide = size if len(size) == 2 else (0, 0)
    back = stack.node.trace.centres.get(item.path)
    if wide == shape.head_dim and rows > 2 and item.kind == "table":
        tables = sum(i.owner is item.owner and i.values is not None for i in stack.pieces("table"))
        if tables > 1 and rows % 2:
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


def kernel_reach(owner: nn.Module) -> str | None:
    """Return how many tokens a convolution reads, if the module has no other parameters."""
    layers = [module for module in owner.modules() if isinstance(module, CONVOLUTIONS)]
    leaves = [m for m in owner.modules() if isinstance(m, (nn.Linear, nn.Embedding)) or list(m.children()) == []]
    if not layers or any(isinstance(m, (nn.Linear, nn.Embedding)) for m in leaves):
        return None
    return f"{' x '.join(map(str, layers[0].kernel_size))} tokens"


def is_centred(layer: nn.Conv1d | nn.Conv2d) -> bool:
    """Whether a convolution reads as many tokens on either side."""
    sizes = zip(layer.kernel_size, layer.padding, strict=True) if isinstance(layer.padding, tuple) else ()
    return any(size > 1 and 2 * padding == size - 1 for size, padding in sizes)


def unread_position_code(node: ConfigNode) -> Iterator[str]:
    """Yield sentences on position code of no known kind: convolutions, and functions named after position."""
    trace = node.trace
    if not trace.softmax_paths or node.items or node.pieces:
        return
    layers = [module for module in node.modules.values() if isinstance(module, CONVOLUTIONS)]
    # Causal convolutions belong to other layers than attention.
    convolutions = [layer for layer in layers if layer.groups == layer.in_channels > 1 and is_centred(layer)]
    if convolutions:
        size = " x ".join(map(str, convolutions[0].kernel_size))
        yield f"convolutions over {size} tokens tell attention of places, which no spec here speaks of; they stay"
    if trace.function_names and not node.path:
        yield f"{', '.join(sorted(trace.function_names))} ran, which speak of position, and no spec here says how"
