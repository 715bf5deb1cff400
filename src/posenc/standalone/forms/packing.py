"""Packing: several documents in one row, whose tokens count up in each and do not see the others."""

import torch
from torch import Tensor


def packed_position_ids(document_ids: Tensor) -> Tensor:
    """Return positions that begin at 0 in each document, [batch, seq_len], for position_ids."""
    index = torch.arange(document_ids.shape[-1], device=document_ids.device).expand_as(document_ids)
    is_first = torch.ones_like(document_ids, dtype=torch.bool)
    is_first[..., 1:] = document_ids[..., 1:] != document_ids[..., :-1]
    return index - torch.where(is_first, index, 0).cummax(-1).values


def packed_mask(document_ids: Tensor) -> Tensor:
    """Return who may see whom, [batch, 1, seq_len, seq_len]: earlier tokens of the same document."""
    same_document = document_ids[..., :, None] == document_ids[..., None, :]
    return same_document.tril()[:, None]


if __name__ == "__main__":
    documents = torch.tensor([[5, 5, 5, 9, 9]])
    torch.testing.assert_close(packed_position_ids(documents), torch.tensor([[0, 1, 2, 0, 1]]))
    assert packed_mask(documents)[0, 0, 3].tolist() == [False, False, False, True, False]
