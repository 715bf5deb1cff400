"""Rotary encodings (RoPE) against transformers, x_transformers and timm: the same rotations, and known differences."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from posenc import Positions
from posenc.encodings.rotations.proportional_rotary import ProportionalRotary
from posenc.encodings.rotations.rotary import Rotary
from posenc.schedules import DynamicNTK, Linear

llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="the peers extra is not installed")


def config(**parameters):
    from transformers.models.llama.configuration_llama import LlamaConfig

    return LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_theta": 1e4, "rope_type": "default", **parameters},
    )


def rotate(module, q: Tensor, ids: Tensor) -> Tensor:
    cos, sin = module(q, ids)
    return llama.apply_rotary_pos_emb(q, q, cos, sin)[0]


def test_the_half_layout_is_that_of_transformers() -> None:
    q, ids = torch.randn(2, 2, 9, 64), torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [5, 5, 90, 0, 1, 2, 3, 4, 700]])
    actual = Rotary(64).query(q, Positions.of(ids))
    torch.testing.assert_close(rotate(llama.LlamaRotaryEmbedding(config()), q, ids), actual, rtol=0, atol=5e-4)
    wrong = Rotary(64, layout="interleaved").query(q, Positions.of(ids))
    assert (wrong - actual).abs().max() > 1


def test_angles_at_a_million_are_right_and_theirs_are_not() -> None:
    ids = torch.tensor([[0, 4096, 131_072, 1_000_000]])
    exact = (ids[..., None].double() * Rotary(64).frequencies).cos()
    q = torch.zeros(1, 1, 4, 64)
    q[..., :32] = 1.0
    actual = Rotary(64).query(q, Positions.of(ids))[0, 0, :, :32]
    assert float((actual.double() - exact[0]).abs().max()) < 1e-7
    # Known difference: transformers multiplies positions and frequencies in float32.
    cos, _ = llama.LlamaRotaryEmbedding(config())(q, ids)
    error = (cos[0, :, :32].double() - exact[0]).abs().amax(-1)
    assert error[0] == 0 and error[1] > 1e-5 and error[2] > 1e-4 and error[3] > 1e-3


def test_a_cast_of_the_module_changes_nothing_and_theirs_loses_positions() -> None:
    q, ids = torch.randn(1, 1, 8192, 64), torch.arange(8192)[None]
    at = Positions.count(8192)
    assert torch.equal(Rotary(64).bfloat16().query(q, at), Rotary(64).query(q, at))
    # Known difference: a cast rounds transformers' buffer of frequencies; a cosine is off by up to 2.
    peer = llama.LlamaRotaryEmbedding(config())
    whole, _ = peer(q, ids)
    cast, _ = peer.bfloat16()(q, ids)
    assert float((whole - cast).abs().max()) > 1.9


def test_a_row_keeps_its_frequencies_beside_a_long_one_and_theirs_does_not() -> None:
    parameters = {"rope_type": "dynamic", "factor": 4.0}
    short, long = torch.arange(64)[None] % 10, torch.arange(4096 - 64, 4096)[None]
    q = torch.randn(2, 1, 64, 64)
    encoding = Rotary(64, schedule=DynamicNTK(4.0, 2048))
    at = Positions.of(torch.cat((short, long)), horizon=torch.tensor([64, 4096]))
    actual = encoding.query(q, at)
    actual_alone = encoding.query(q[:1], Positions.of(short, horizon=64))
    assert torch.equal(actual[:1], actual_alone)
    reference_alone = rotate(llama.LlamaRotaryEmbedding(config(**parameters)), q[:1], short)
    torch.testing.assert_close(reference_alone, actual_alone, rtol=0, atol=1e-4)
    # Each row alone agrees with transformers.
    reference = rotate(llama.LlamaRotaryEmbedding(config(**parameters)), q[1:], long)
    torch.testing.assert_close(reference, actual[1:], rtol=0, atol=5e-3)
    # Known difference: in transformers the longest row of a batch sets the base of all.
    reference_batch = rotate(llama.LlamaRotaryEmbedding(config(**parameters)), q, torch.cat((short, long)))
    assert float((reference_batch[:1] - reference_alone).abs().max()) > 0.2


def test_proportional_rotary_agrees() -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for d, share, factor in ((128, 0.25, None), (64, 0.5, 8.0), (48, 0.3, None), (64, 1.0, None)):
        parameters = {"rope_theta": 1e6, "partial_rotary_factor": share} | (
            {} if factor is None else {"factor": factor}
        )
        stand_in = SimpleNamespace(head_dim=d, rope_parameters=parameters, standardize_rope_params=lambda: None)
        frequencies, temperature = ROPE_INIT_FUNCTIONS["proportional"](stand_in, "cpu")
        encoding = ProportionalRotary(d, partial=share, base=1e6, schedule=None if factor is None else Linear(factor))
        torch.testing.assert_close(frequencies.double(), encoding.frequencies, rtol=5e-6, atol=0)
        q, at = torch.randn(1, 2, 9, d), Positions.count(9)
        angle = at.coords * torch.cat((frequencies, frequencies))
        reference, _ = llama.apply_rotary_pos_emb(q, q, angle.cos(), angle.sin())
        torch.testing.assert_close(encoding.query(q, at), reference, rtol=0, atol=1e-5)
        assert temperature == 1.0


def test_the_interleaved_layout_is_that_of_x_transformers() -> None:
    peer = pytest.importorskip("x_transformers.x_transformers", reason="the peers extra is not installed")
    q, ids = torch.randn(2, 3, 7, 20), torch.tensor([0, 1, 2, 3, 10, 50, 51])
    freqs, _ = peer.RotaryEmbedding(16)(ids)
    encoding = Rotary(20, layout="interleaved", partial=0.8)
    reference = peer.apply_rotary_pos_emb(q, freqs)
    torch.testing.assert_close(encoding.query(q, Positions.of(ids)), reference, rtol=0, atol=2e-5)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_both_layouts_are_those_of_timm(timm_layer, layout: str) -> None:
    peer, q, at = timm_layer("pos_embed_sincos"), torch.randn(1, 2, 9, 16), Positions.count(9)
    angle = at.coords[0] * Rotary(16).frequencies
    angles = torch.cat((angle, angle), -1) if layout == "half" else angle.repeat_interleave(2, -1)
    reference = peer.apply_rot_embed(q, angles.sin().float(), angles.cos().float(), half=layout == "half")
    torch.testing.assert_close(Rotary(16, layout=layout).query(q, at), reference, rtol=0, atol=1e-6)
