"""RotaryValues against DeepSeek-V4, whose keys are its values."""

from types import ModuleType

import pytest
import torch

from posenc import Keys, Positions, masks
from posenc.encodings.rotations.rotary import Rotary
from posenc.encodings.rules.rotary_values import RotaryValues
from posenc.kernels import bind


@pytest.fixture
def peer() -> ModuleType:
    name = "transformers.models.deepseek_v4.modeling_deepseek_v4"
    return pytest.importorskip(name, reason="the peers extra is not installed")


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(512, 64), (16, 4), (8, 8)])
@pytest.mark.parametrize("first", [0, 3000])
def test_it_does_to_values_what_deepseek_v4_does(peer: ModuleType, head_dim: int, rotary_dim: int, first: int) -> None:
    T, heads = 7, 3
    place = torch.arange(first, first + T)
    frequencies = 10_000.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angle = place[None, :, None] * frequencies
    cos, sin = angle.cos().float(), angle.sin().float()
    q, v = torch.randn(2, heads, T, head_dim), torch.randn(2, 1, T, head_dim)

    # DeepSeek-V4: one rotated tensor is key and value, and the output is rotated back.
    rotated_q, rotated_v = (peer.apply_rotary_pos_emb(x, cos, sin) for x in (q, v))
    future = torch.ones(T, T).triu(1).bool()
    weights = (rotated_q @ rotated_v.transpose(-1, -2) * head_dim**-0.5).masked_fill(future, -torch.inf).softmax(-1)
    expected = peer.apply_rotary_pos_emb(weights @ rotated_v, cos, -sin)

    at, pass_dim = Positions.of(place), head_dim - rotary_dim
    rotary = Rotary(rotary_dim, layout="interleaved")
    q, k = (torch.cat((x[..., :pass_dim], rotary.query(x[..., pass_dim:], at)), -1) for x in (q, v))
    torch.testing.assert_close(q, rotated_q, rtol=0, atol=1e-5)
    values = RotaryValues(head_dim, layout="interleaved", partial=rotary_dim / head_dim, trailing=True)
    kernel = bind("reference", values, scale=head_dim**-0.5)
    out, _ = values.attend(q, at, Keys(k, v, at), masks.causal(), kernel)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


def test_turned_back_the_other_way_it_would_not_be_theirs(peer: ModuleType) -> None:
    values = RotaryValues(4, layout="interleaved")
    v = torch.randn(1, 1, 1, 4, dtype=torch.float64)
    angle = 5 * 10_000.0 ** -(torch.arange(0, 4, 2, dtype=torch.float64) / 4)[None, None]
    # A value at 7 read by a query at 12 is rotated by 7 - 12.
    expected = peer.apply_rotary_pos_emb(v.float(), angle.cos().float(), -angle.sin().float())
    actual = [values.formula_value(v.flatten().tolist(), 12, 7, c) for c in range(4)]
    assert actual == pytest.approx(expected.flatten().tolist(), abs=1e-6)
    assert actual != pytest.approx([values.formula_value(v.flatten().tolist(), 7, 12, c) for c in range(4)], abs=1e-2)
