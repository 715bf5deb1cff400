"""Checks of the inputs of a model: token ids, padding and positions."""

import torch
from torch import Tensor

from posenc import checks
from posenc.cache import Cache
from posenc.tokens.positions import Positions, PositionsLike, positions_for
from posenc.tokens.tracing import assert_on_gpu, may_be_read


def locate(ids: Tensor, vocab: int, positions: PositionsLike, padding: Tensor | None, cache: Cache | None) -> Positions:
    """Return the positions of ids, from positions, padding or cache. Raises ValueError if they do not fit the ids."""
    check_token_ids(ids, vocab)
    if cache is not None and not isinstance(cache, Cache):
        raise ValueError(f"a model takes the cache that its cache() gives, got {checks.display(cache)}")
    if padding is not None:
        check_padding(padding, ids)
        if positions is not None:
            raise ValueError("give positions or padding, not both")
        if cache is not None and cache.held is not None:
            raise ValueError("padding belongs to the first chunk; later chunks go on from the cache")
        return Positions.padded(padding)
    past = None if cache is None else cache.held
    return positions_for(ids.shape[1], positions, batch=ids.shape[0], device=ids.device, past_at=past)


def check_token_ids(ids: Tensor, vocab: int) -> None:
    """Raise ValueError for ids of a wrong shape or dtype, or outside 0..vocab-1.

    On a GPU such ids stop the program instead, with the same message.
    """
    if checks.tensor("token ids", ids).dtype not in (torch.int64, torch.int32):
        raise ValueError(f"token ids are whole numbers, got {ids.dtype}; give them as torch.int64 or torch.int32")
    if ids.dim() != 2 or ids.shape[1] < 1:
        raise ValueError(f"ids have shape [batch, tokens] with at least one token, got {list(ids.shape)}")
    if not may_be_read(ids):
        return
    bounds = f"token ids must lie in 0..{vocab - 1}"
    if assert_on_gpu(ids, lambda: (ids >= 0) & (ids < vocab), f"{bounds}; check the tokenizer or vocab"):
        return
    lowest, highest = ids.aminmax()
    if (low := int(lowest)) < 0 or int(highest) >= vocab:
        wrong = low if low < 0 else int(highest)
        raise ValueError(f"{bounds}, got {wrong}; check the tokenizer or vocab")


def check_padding(padding: Tensor, ids: Tensor) -> None:
    """Raise ValueError unless padding has the shape of the ids."""
    if checks.tensor("padding", padding).shape != ids.shape:
        raise ValueError(f"padding must have the shape of the ids, {list(ids.shape)}, got {list(padding.shape)}")
