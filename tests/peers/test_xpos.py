"""xPos, against x_transformers, whose centre is the middle of what it is given."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from posenc import Positions
from posenc.encodings.rotations.xpos import XPos


@pytest.fixture
def peer() -> ModuleType:
    return pytest.importorskip("x_transformers.x_transformers", reason="the peers extra is not installed")


def theirs(peer: ModuleType, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    angles, sizes = peer.RotaryEmbedding(q.shape[-1], use_xpos=True)(torch.arange(q.shape[2]))
    return peer.apply_rotary_pos_emb(q, angles, sizes), peer.apply_rotary_pos_emb(k, angles, 1 / sizes)


# Their angles are float32 products; at position 2,000 an angle is off by 1e-4, and the logit with it.
@pytest.mark.parametrize(("tokens", "tolerance"), [(9, 1e-5), (50, 2e-5), (600, 1e-3)])
def test_causal_logits_of_one_pass_are_theirs(peer: ModuleType, tokens: int, tolerance: float) -> None:
    q, k = torch.randn(2, 1, 2, tokens, 16)
    past = torch.ones(tokens, tokens).tril().bool()
    one, other = theirs(peer, q, k)
    ours = XPos(16, layout="interleaved")
    asking, asked = ours(q, k)
    got, expected = asking @ asked.transpose(-1, -2), one @ other.transpose(-1, -2)
    torch.testing.assert_close(got[..., past], expected[..., past], rtol=0, atol=tolerance)
    exact, also = ours(q.double(), k.double())
    exact = exact @ also.transpose(-1, -2)
    torch.testing.assert_close(got[..., past].double(), exact[..., past], rtol=0, atol=1e-5)


def test_queries_and_keys_are_theirs_with_their_centre(peer: ModuleType) -> None:
    q, k = torch.randn(2, 1, 2, 9, 16)
    for got, expected in zip(XPos(16, layout="interleaved", centre=4.0)(q, k), theirs(peer, q, k), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_keys_turned_before_the_sequence_grew_drift_there_and_stay_here(peer: ModuleType) -> None:
    q, k = torch.randn(2, 1, 1, 600, 16)
    early, whole = theirs(peer, q[:, :, :100], k[:, :, :100]), theirs(peer, q, k)
    cached, fresh = (whole[0][:, :, -1:] @ keys[1][:, :, :100].transpose(-1, -2) for keys in (early, whole))
    # Their centre went from 50 to 300: the fastest pair of a cached key counts (2/7)^(250/512) = 0.54 times too much.
    assert ((cached - fresh).abs() / fresh.abs().mean()).max() > 0.3
    ours = XPos(16, layout="interleaved")
    (_, early_key), (_, key) = ours(q[:, :, :100], k[:, :, :100]), ours(q, k)
    torch.testing.assert_close(early_key, key[:, :, :100], rtol=0, atol=0)


def test_a_long_sequence_gives_nan_there_and_an_error_here(peer: ModuleType) -> None:
    ones = torch.ones(1, 1, 80_000, 4)
    query, key = theirs(peer, ones, ones)
    assert not (query.isfinite().all() and key.isfinite().all())
    with pytest.raises(ValueError, match="position 79999 is more than 33,994 positions from the centre"):
        XPos(4).key(ones, Positions.count(80_000))
