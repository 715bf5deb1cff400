"""The distance of each query from each key."""

import torch
from torch import Tensor

SEQ_DIM = 2


def distances(q: Tensor, k: Tensor, position_ids: Tensor | None, key_position_ids: Tensor | None) -> Tensor:
    """Return query position - key position, [1, T, S] for ids [T] or none, [batch, 1, T, S] for ids [batch, T]."""
    queries, keys = q.shape[SEQ_DIM], k.shape[SEQ_DIM]
    if key_position_ids is None:
        key_position_ids = torch.arange(keys, device=q.device) if position_ids is None else position_ids
    if position_ids is None:  # queries are the last T of the S keys
        position_ids = key_position_ids[..., keys - queries :]
    if (lengths := (position_ids.shape[-1], key_position_ids.shape[-1])) != (queries, keys):
        expected = f"expected position ids of {queries} queries and {keys} keys"
        raise ValueError(f"{expected}, got {lengths[0]} and {lengths[1]}; give key_position_ids too, or no ids")
    return (position_ids[..., None] - key_position_ids[..., None, :]).unsqueeze(-3)


def axis_distances(q: Tensor, k: Tensor, position_ids: Tensor | None, key_position_ids: Tensor | None) -> Tensor:
    """Return query position - key position on each axis, [1 or batch, 1, T, S, axes] for ids [.., T, axes]."""
    if position_ids is None:
        raise ValueError("positions of several axes have no default; expected position_ids [.., seq_len, axes]")
    if key_position_ids is None:
        key_position_ids = position_ids
    queries, keys = q.shape[SEQ_DIM], k.shape[SEQ_DIM]
    if (lengths := (position_ids.shape[-2], key_position_ids.shape[-2])) != (queries, keys):
        expected = f"expected position ids of {queries} queries and {keys} keys"
        raise ValueError(f"{expected}, got {lengths[0]} and {lengths[1]}; give key_position_ids too")
    return (position_ids[..., :, None, :] - key_position_ids[..., None, :, :]).unsqueeze(-4)
