"""Polar (PoPE) against x_transformers, which shares one set of phases among its layers."""

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
    """Return x_transformers' embedding and Polar with equal random phases, some of them out of range."""
    embedding, encoding = peer.PolarEmbedding(8, heads), Polar(heads, 8)
    with torch.no_grad():
        embedding.learned_bias.uniform_(-8.0, 2.0)
        encoding.delta.copy_(embedding.learned_bias[:, 0])
    return embedding, encoding


def logits(peer: ModuleType, embedding: torch.nn.Module, q: Tensor, k: Tensor, at: Tensor) -> Tensor:
    angles, phases = embedding(at)
    keys = peer.apply_polar_pos_emb(k, angles + phases)
    return peer.apply_polar_pos_emb(q, angles) @ keys.transpose(-1, -2)


# x_transformers multiplies angles in float32, posenc in float64: x_transformers loses digits at large positions.
@pytest.mark.parametrize(("first", "tolerance"), [(0, 1e-5), (2_000, 2e-3), (100_000, 0.1)])
def test_logits_are_theirs(peer: ModuleType, first: int, tolerance: float) -> None:
    embedding, encoding = pair(peer, 3)
    q, k = torch.randn(2, 2, 3, 9, 8)
    at = torch.arange(first, first + 9)
    rotated_q, rotated_k = encoding(q, k, positions=at)
    actual, expected = rotated_q @ rotated_k.transpose(-1, -2), logits(peer, embedding, q, k, at)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
    rotated_q, rotated_k = encoding.double()(q.double(), k.double(), positions=at)
    torch.testing.assert_close(actual.double(), rotated_q @ rotated_k.transpose(-1, -2), rtol=0, atol=1e-5)


def test_without_phases_queries_and_keys_are_theirs_too(peer: ModuleType) -> None:
    embedding, q = peer.PolarEmbedding(8, 3), torch.randn(2, 3, 9, 8)
    angles, _ = embedding(torch.arange(9))
    actual, _ = Polar(3, 8, phases="none")(q, q)
    torch.testing.assert_close(actual, peer.apply_polar_pos_emb(q, angles), rtol=0, atol=1e-5)


def test_the_scale_of_their_attention_is_that_of_the_head_as_projected(peer: ModuleType) -> None:
    assert peer.Attention(32, heads=4, dim_head=8).scale == 8**-0.5


def test_fewer_key_heads_fail_there_and_work_here(peer: ModuleType) -> None:
    embedding, encoding = pair(peer, 4)
    q, k = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8)
    with pytest.raises(RuntimeError, match="must match the size"):
        logits(peer, embedding, q, k, torch.arange(9))
    repeated_k = k.repeat_interleave(2, 1)
    rotated_q, rotated_k = encoding(q, k)
    actual = rotated_q @ rotated_k.repeat_interleave(2, 1).transpose(-1, -2)
    expected = logits(peer, embedding, q, repeated_k, torch.arange(9))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_uniform_phases_cannot_be_built_there_and_can_here(peer: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        peer.PolarEmbedding(8, 3, bias_uniform_init=True)
    delta = Polar(3, 8, phases="uniform").delta
    assert delta.min() >= -2 * math.pi and delta.max() <= 0 and delta.std() > 1
