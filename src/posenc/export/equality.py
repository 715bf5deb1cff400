"""Whether an exported file says what its model says: measured at other lengths than it was written down with."""

import torch
from torch import Tensor

from posenc.export.graphs import Graph
from posenc.export.running import Exported

LENGTHS = (1, 7, 64, 200)
"""The lengths that are compared, where the model takes them (tokens)."""

STEPS = 3
"""How many of the last tokens are asked for one by one, behind a cache."""

TOLERANCE = 1e-4
"""How far logits may differ, as a share of the largest one, or of 1 where that is smaller."""


def difference(graph: Graph, exported: Exported, vocab: int) -> tuple[float, list[int]]:
    """How far the file's logits are from the model's at most, and the lengths at which that was asked.

    As a share of the largest logit, or of 1 where that is smaller; infinite where a number is nan.
    Raises ValueError, the model's own, where it takes no length at all.
    """
    draw, worst, taken = torch.Generator().manual_seed(0), 0.0, []
    for tokens in LENGTHS:
        ids = torch.randint(vocab, (2, tokens), generator=draw)
        source = [torch.randint(vocab, (2, 9), generator=draw)] if graph.kind == "translation" else []
        positions = cells(2, tokens, graph.axes)
        try:
            with torch.no_grad():
                expected = graph.answer(ids, positions, *source)
        except ValueError:
            if not taken:
                raise
            break
        for found in answers(exported, ids, positions if graph.axes > 1 else positions[..., 0], *source):
            far = (found - expected).abs().max() / expected.abs().max().clamp(min=1)
            worst = max(worst, float(far.nan_to_num(torch.inf)))
        taken.append(tokens)
    return worst, taken


def answers(exported: Exported, ids: Tensor, positions: Tensor, source: Tensor | None = None) -> list[Tensor]:
    """The file's logits of whole sequences: at once, and of a decoder also with its last tokens one by one."""
    tokens = ids.shape[1]
    declared = {"horizon": torch.full(ids.shape[:1], tokens)} if "horizon" in exported.inputs else {}
    if exported.about["kind"] != "decoder":
        given = {"ids": ids, "positions": positions, **declared}
        if source is not None:
            given |= {"source": source, "source_positions": cells(*source.shape, 1)[..., 0]}
        return [exported(given)["logits"]]
    found = []
    for cuts in ([tokens], [max(1, tokens - STEPS), *range(max(1, tokens - STEPS) + 1, tokens + 1)]):
        past, begin, pieces = None, 0, []
        for end in cuts:
            here = slice(begin, end)
            asked = {"positions": positions[:, here], "horizon": tokens if declared else None}
            logits, past = exported.logits(ids[:, here], past, **asked)
            pieces.append(logits)
            begin = end
        found.append(torch.cat(pieces, 1))
    return found


def cells(batch: int, tokens: int, axes: int) -> Tensor:
    """Positions [B, T, A]: 0, 1, 2, ... on one axis, on several the first cells of a grid."""
    count, side = torch.arange(tokens), 1
    while side**axes < tokens:
        side += 1
    grid = [count // side**axis % side for axis in reversed(range(axes))] if axes > 1 else [count]
    return torch.stack(grid, -1)[None].repeat(batch, 1, 1)
