"""The positions of queries and keys."""

import torch
from torch import Tensor

SEQ_DIM = 2


def query_and_key_ids(
    q: Tensor, k: Tensor, position_ids: Tensor | None, key_position_ids: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the position ids of queries [.., T] and keys [.., S]."""
    queries, keys = q.shape[SEQ_DIM], k.shape[SEQ_DIM]
    if key_position_ids is None:
        key_position_ids = torch.arange(keys, device=q.device) if position_ids is None else position_ids
    if position_ids is None:  # queries are the last T of the S keys
        position_ids = key_position_ids[..., keys - queries :]
    if (lengths := (position_ids.shape[-1], key_position_ids.shape[-1])) != (queries, keys):
        expected = f"expected position ids of {queries} queries and {keys} keys"
        raise ValueError(f"{expected}, got {lengths[0]} and {lengths[1]}; give key_position_ids too, or no ids")
    return position_ids, key_position_ids
