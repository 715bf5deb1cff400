"""Rotary on values, against DeepSeek-V4, whose keys are its values."""

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


@pytest.mark.parametrize(("head_dim", "turned"), [(512, 64), (16, 4), (8, 8)])
@pytest.mark.parametrize("first", [0, 3000])
def test_it_does_to_values_what_deepseek_v4_does(peer: ModuleType, head_dim: int, turned: int, first: int) -> None:
    T, heads = 7, 3
    place = torch.arange(first, first + T)
    frequencies = 10_000.0 ** -(torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    angle = place[None, :, None] * frequencies
    cos, sin = angle.cos().float(), angle.sin().float()
    q, shared = torch.randn(2, heads, T, head_dim), torch.randn(2, 1, T, head_dim)

    # Theirs: one tensor, turned once, is key and value; the output is turned back.
    asking, kept = (peer.apply_rotary_pos_emb(x, cos, sin) for x in (q, shared))
    future = torch.ones(T, T).triu(1).bool()
    weights = (asking @ kept.transpose(-1, -2) * head_dim**-0.5).masked_fill(future, -torch.inf).softmax(-1)
    expected = peer.apply_rotary_pos_emb(weights @ kept, cos, -sin)

    at, passed = Positions.of(place), head_dim - turned
    rotary = Rotary(turned, layout="interleaved")
    q, k = (torch.cat((x[..., :passed], rotary.query(x[..., passed:], at)), -1) for x in (q, shared))
    torch.testing.assert_close(q, asking, rtol=0, atol=1e-5)
    values = RotaryValues(head_dim, layout="interleaved", partial=turned / head_dim, trailing=True)
    bound = bind("reference", values, scale=head_dim**-0.5)
    out, _ = values.attend(q, at, Keys(k, shared, at), masks.causal(), bound)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)


def test_turned_back_the_other_way_it_would_not_be_theirs(peer: ModuleType) -> None:
    values = RotaryValues(4, layout="interleaved")
    v = torch.randn(1, 1, 1, 4, dtype=torch.float64)
    angle = 5 * 10_000.0 ** -(torch.arange(0, 4, 2, dtype=torch.float64) / 4)[None, None]
    # A value at 7 seen from 12 is turned by 7 - 12.
    expected = peer.apply_rotary_pos_emb(v.float(), angle.cos().float(), -angle.sin().float())
    got = [values.formula_value(v.flatten().tolist(), 12, 7, c) for c in range(4)]
    assert got == pytest.approx(expected.flatten().tolist(), abs=1e-6)
    assert got != pytest.approx([values.formula_value(v.flatten().tolist(), 7, 12, c) for c in range(4)], abs=1e-2)
