"""It runs at all: each open door is called once, and then attention."""

from typing import Any

import torch
from torch import Tensor

from posenc.model.seeding import seeded
from posenc.testing.contract import promise
from posenc.testing.subjects import TOKENS, Subject, count, mask_name, on_axes, tokens
from posenc.tokens import masks
from posenc.tokens.positions import distance


@promise
def a_forward_pass_works(subject: Subject) -> None:
    """Each open door gives a tensor of the shape and the dtype that it has to, and attention finite numbers; float32.

    What breaks it would break nearly every other promise, each with words that lead elsewhere.
    """
    net, shape = subject.net().float(), subject.shape
    x, at = tokens(subject, TOKENS).float(), on_axes(count(TOKENS), net.axes)
    with seeded(2):
        heads = torch.randn(2, shape.heads, TOKENS, shape.head_dim)
    for encoding in net.used:
        if "embed" in encoding.doors:
            gives(f"embed of {encoding}", encoding.embed(x, at), x.shape, f"embeddings {list(x.shape)}")
        if "turn" in encoding.doors:
            q, k = encoding.turn(heads, at, "query"), encoding.turn(heads, at, "key")
            # An encoding may make heads wider, of queries and keys alike.
            wide = (*heads.shape[:-1], *(q.shape[-1:] if isinstance(q, Tensor) else heads.shape[-1:]))
            gives(f"turn of {encoding}, of queries,", q, wide, f"heads {list(heads.shape)}")
            asked = f"heads {list(heads.shape)}, whose queries become {list(wide)}"
            gives(f"turn of {encoding}, of keys,", k, wide, asked)
        if "by_distance" in encoding.doors:
            grid = distance(at, at, str(encoding), encoding.axes)
            # A row of the grid, as tokens in a row ask for it, and the grid, as any others do.
            for delta in (grid[0, 0], grid):
                distances = delta.shape if encoding.axes == 1 else delta.shape[:-1]
                asked, given = f"distances {list(delta.shape)} and {shape.heads} heads", encoding.by_distance(delta)
                gives(f"by_distance of {encoding}", given, (shape.heads, *distances), asked, dtype=None)
    for mask in (masks.causal(), masks.bidirectional()):
        out = net(x, None, mask)
        gives("attention", out, x.shape, f"embeddings {list(x.shape)}")
        if not bool(out.isfinite().all()):
            raise AssertionError(
                f"attention, {mask_name(mask)}, gives NaN or inf in {int((~out.isfinite()).sum())} numbers"
            )


def gives(what: str, got: Any, shape: tuple[int, ...], asked: str, dtype: torch.dtype | None = torch.float32) -> None:
    """Raises AssertionError unless something is a tensor of a shape and, where one is named, of a dtype."""
    found = f"shape {list(got.shape)}" if isinstance(got, Tensor) else f"{type(got).__name__}"
    if not isinstance(got, Tensor) or got.shape != shape:
        raise AssertionError(f"{what} gave {found} for {asked}, expected shape {list(shape)}")
    if dtype is not None and got.dtype != dtype:
        raise AssertionError(f"{what} gave {got.dtype} for {dtype}; give the dtype that came in")
