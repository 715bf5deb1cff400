"""Contextual against CoPE of x-transformers, which adds its term after the scaling."""

import pytest
import torch

from posenc.encodings.content_biases.contextual import Contextual


def test_it_is_ours_without_the_division() -> None:
    pytest.importorskip("x_transformers", reason="the peers extra is not installed")
    from x_transformers.x_transformers import CoPE

    peer = CoPE(dim=8, heads=3, max_pos=5).double()
    torch.nn.init.normal_(peer.pos_emb)
    encoding, divided_encoding = (Contextual(8, positions=5, divided=divides).double() for divides in (False, True))
    for module in (encoding, divided_encoding):
        module.load_state_dict({"table": peer.pos_emb})
    q, k = (torch.randn(2, 3, 9, 8, dtype=torch.float64) for _ in range(2))
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    logits = (q @ k.mT * 8**-0.5).masked_fill(future, -torch.finfo(torch.float64).max)
    expected = peer(q, logits)
    torch.testing.assert_close(encoding.bias(9, q=q, k=k), expected, rtol=0, atol=1e-12)
    # Known difference: the authors divide the term by sqrt(head_dim), x-transformers does not.
    torch.testing.assert_close(divided_encoding.bias(9, q=q, k=k), expected * 8**-0.5, rtol=0, atol=1e-12)
