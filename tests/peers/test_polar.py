"""PoPE, against x_transformers, which shares one set of phases among its layers."""

import math
from types import ModuleType

import pytest
import torch
from torch import Tensor

from posenc.encodings.rotations.polar import Polar


@pytest.fixture
def peer() -> ModuleType:
    return pytest.importorskip("x_transformers.x_transformers", reason="the peers extra is not installed")


def pair(peer: ModuleType, heads: int) -> tuple[torch.nn.Module, Polar]:
    """Theirs and ours with the same random phases, some of them out of range."""
    theirs, ours = peer.PolarEmbedding(8, heads), Polar(heads, 8)
    with torch.no_grad():
        theirs.learned_bias.uniform_(-8.0, 2.0)
        ours.delta.copy_(theirs.learned_bias[:, 0])
    return theirs, ours


def logits(peer: ModuleType, theirs: torch.nn.Module, q: Tensor, k: Tensor, at: Tensor) -> Tensor:
    angles, phases = theirs(at)
    keys = peer.apply_polar_pos_emb(k, angles + phases)
    return peer.apply_polar_pos_emb(q, angles) @ keys.transpose(-1, -2)


# Their angles are float32 products, ours float64: far away theirs lose digits.
@pytest.mark.parametrize(("first", "tolerance"), [(0, 1e-5), (2_000, 2e-3), (100_000, 0.1)])
def test_logits_are_theirs(peer: ModuleType, first: int, tolerance: float) -> None:
    theirs, ours = pair(peer, 3)
    q, k = torch.randn(2, 2, 3, 9, 8)
    at = torch.arange(first, first + 9)
    asking, asked = ours(q, k, positions=at)
    got, expected = asking @ asked.transpose(-1, -2), logits(peer, theirs, q, k, at)
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)
    asking, asked = ours.double()(q.double(), k.double(), positions=at)
    torch.testing.assert_close(got.double(), asking @ asked.transpose(-1, -2), rtol=0, atol=1e-5)


def test_without_phases_queries_and_keys_are_theirs_too(peer: ModuleType) -> None:
    theirs, q = peer.PolarEmbedding(8, 3), torch.randn(2, 3, 9, 8)
    angles, _ = theirs(torch.arange(9))
    got, _ = Polar(3, 8, phases="none")(q, q)
    torch.testing.assert_close(got, peer.apply_polar_pos_emb(q, angles), rtol=0, atol=1e-5)


def test_the_scale_of_their_attention_is_that_of_the_head_as_projected(peer: ModuleType) -> None:
    assert peer.Attention(32, heads=4, dim_head=8).scale == 8**-0.5


def test_fewer_key_heads_fail_there_and_work_here(peer: ModuleType) -> None:
    theirs, ours = pair(peer, 4)
    q, k = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8)
    with pytest.raises(RuntimeError, match="must match the size"):
        logits(peer, theirs, q, k, torch.arange(9))
    repeated = k.repeat_interleave(2, 1)
    asking, asked = ours(q, k)
    got = asking @ asked.repeat_interleave(2, 1).transpose(-1, -2)
    expected = logits(peer, theirs, q, repeated, torch.arange(9))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_uniform_phases_cannot_be_built_there_and_can_here(peer: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        peer.PolarEmbedding(8, 3, bias_uniform_init=True)
    delta = Polar(3, 8, phases="uniform").delta
    assert delta.min() >= -2 * math.pi and delta.max() <= 0 and delta.std() > 1
