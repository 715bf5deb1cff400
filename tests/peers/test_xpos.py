"""xPos against x_transformers, whose centre is the middle of its input."""

from types import ModuleType

import pytest
import torch
from torch import Tensor

from posenc import Positions
from posenc.encodings.rotations.xpos import XPos


@pytest.fixture
def peer() -> ModuleType:
    return pytest.importorskip("x_transformers.x_transformers", reason="the peers extra is not installed")


def xpos_rotation(peer: ModuleType, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    angles, sizes = peer.RotaryEmbedding(q.shape[-1], use_xpos=True)(torch.arange(q.shape[2]))
    return peer.apply_rotary_pos_emb(q, angles, sizes), peer.apply_rotary_pos_emb(k, angles, 1 / sizes)


# x_transformers' angles are float32 products; at position 2,000 an angle is off by 1e-4, and the logit with it.
@pytest.mark.parametrize(("tokens", "tolerance"), [(9, 1e-5), (50, 2e-5), (600, 1e-3)])
def test_causal_logits_of_one_pass_are_theirs(peer: ModuleType, tokens: int, tolerance: float) -> None:
    q, k = torch.randn(2, 1, 2, tokens, 16)
    past = torch.ones(tokens, tokens).tril().bool()
    reference_q, reference_k = xpos_rotation(peer, q, k)
    encoding = XPos(16, layout="interleaved")
    rotated_q, rotated_k = encoding(q, k)
    actual, expected = rotated_q @ rotated_k.transpose(-1, -2), reference_q @ reference_k.transpose(-1, -2)
    torch.testing.assert_close(actual[..., past], expected[..., past], rtol=0, atol=tolerance)
    exact, exact_k = encoding(q.double(), k.double())
    exact = exact @ exact_k.transpose(-1, -2)
    torch.testing.assert_close(actual[..., past].double(), exact[..., past], rtol=0, atol=1e-5)


def test_queries_and_keys_are_theirs_with_their_centre(peer: ModuleType) -> None:
    q, k = torch.randn(2, 1, 2, 9, 16)
    rotated = XPos(16, layout="interleaved", centre=4.0)(q, k)
    for actual, expected in zip(rotated, xpos_rotation(peer, q, k), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_keys_turned_before_the_sequence_grew_drift_there_and_stay_here(peer: ModuleType) -> None:
    q, k = torch.randn(2, 1, 1, 600, 16)
    early, whole = xpos_rotation(peer, q[:, :, :100], k[:, :, :100]), xpos_rotation(peer, q, k)
    cached_logits, fresh = (whole[0][:, :, -1:] @ keys[1][:, :, :100].transpose(-1, -2) for keys in (early, whole))
    # x_transformers moves its centre from 50 to 300: a cached key's fastest pair is scaled by (2/7)^(250/512) = 0.54.
    assert ((cached_logits - fresh).abs() / fresh.abs().mean()).max() > 0.3
    encoding = XPos(16, layout="interleaved")
    (_, early_key), (_, key) = encoding(q[:, :, :100], k[:, :, :100]), encoding(q, k)
    torch.testing.assert_close(early_key, key[:, :, :100], rtol=0, atol=0)


def test_a_long_sequence_gives_nan_there_and_an_error_here(peer: ModuleType) -> None:
    vectors = torch.ones(1, 1, 80_000, 4)
    query, key = xpos_rotation(peer, vectors, vectors)
    assert not (query.isfinite().all() and key.isfinite().all())
    with pytest.raises(ValueError, match="position 79999 is more than 33,994 positions from the centre"):
        XPos(4).key(vectors, Positions.count(80_000))
