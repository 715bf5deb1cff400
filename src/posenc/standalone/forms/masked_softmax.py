"""The softmax over keys that a query may attend to."""

import torch
from torch import Tensor


def masked_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weights [batch, heads, T, S], zeros for a query that may attend to no key."""
    if mask is None:
        return logits.softmax(-1)
    check_mask(mask)
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(~mask, 0.0)


def check_mask(mask: Tensor) -> None:
    """Raise ValueError for a mask that is not boolean, or whose first axis may be batch or heads."""
    if mask.dtype != torch.bool:
        raise ValueError("expected a boolean mask, True = may attend; of a float mask (0, -inf) give mask == 0")
    if mask.dim() == 3:
        raise ValueError("expected a mask [T, S] or [batch, 1 or heads, T, S]; of [batch, T, S] give mask[:, None]")
