"""What each forward pass of a decoder puts into one cache: a hook notes it there."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.kinds.calls import Call, parameters
from posenc.checkpoints.live.cached_positions import PASSES


@dataclass(frozen=True)
class Pass:
    """What one forward pass put into a cache: `tokens` behind the first `start` ones.

    coords   [B or 1, T, A], where they stand, all axes alike for text; None in a model that is told no positions
    present  [B, T], where there is no padding; None for everywhere
    """

    start: int
    tokens: int
    coords: Tensor | None
    present: Tensor | None


class Note:
    """The hook of a decoder: what each pass puts into one cache is noted there. A copy of the model follows none."""

    def __init__(self, cache: Any = None) -> None:
        self.cache = (lambda: None) if cache is None else weakref.ref(cache)

    def __call__(self, decoder: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        cache = self.cache()
        if cache is None or torch.compiler.is_compiling():
            return
        call = Call(parameters(type(decoder)), args, kwargs)
        if call["cache"] is not cache:
            return
        ids = call["inputs_embeds"] if call["input_ids"] is None else call["input_ids"]
        tokens, total = ids.shape[1], int(cache.get_seq_length())
        start = total - tokens
        mask, present = call["attention_mask"], None
        if isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= total:
            mine = mask[:, start:total] != 0
            present = None if bool(mine.all()) else mine
        coords = None
        if "position_ids" in call.names:
            coords = coords_of(call["position_ids"], start, tokens, ids.device)
        getattr(cache, PASSES).append(Pass(start, tokens, coords, present))

    def __reduce__(self) -> tuple:
        return Note, ()


def coords_of(ids: Tensor | None, start: int, tokens: int, device: torch.device) -> Tensor:
    """Where the tokens of a pass stand, [B or 1, T, A], by its position_ids; without any they count on from `start`."""
    if ids is None:
        return torch.arange(start, start + tokens, device=device)[None, :, None]
    if ids.dim() == 3:
        # Some models have a row of its own for the mask in front of those of the axes.
        coords = (ids[1:] if len(ids) == 4 else ids).movedim(0, -1)
    else:
        coords = ids[..., None]
    # What all rows share is said once.
    return coords[:1] if bool((coords == coords[:1]).all()) else coords
