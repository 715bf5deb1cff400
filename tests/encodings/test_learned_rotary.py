"""Rotary encoding with learned frequencies agrees with mpmath at the current frequencies."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import Attention, Positions, masks
from posenc.encodings.rotations.learned_rotary import LearnedRotary
from posenc.encodings.rotations.rotary import Rotary

LAYOUTS = ["half", "interleaved"]


def shift_at_random(encoding: LearnedRotary, std: float = 0.3) -> LearnedRotary:
    with torch.no_grad():
        encoding.shift += std * torch.randn_like(encoding.shift)
    return encoding


def rotated(x: Tensor, places: list[float], shift: Tensor, *, base: float, layout: str) -> Tensor:
    """Rotate x [B, H, T, D] by base^(-2k/D) e^shift in 40 digits. The shift is [D/2] or [H, D/2]."""
    shift = shift.detach()
    d, out = x.shape[-1], x.double().clone()
    with mpmath.workdps(40):
        for h in range(x.shape[1]):
            for k in range(d // 2):
                first, second = (k, k + d // 2) if layout == "half" else (2 * k, 2 * k + 1)
                log_scale = float(shift[h, k] if shift.dim() == 2 else shift[k])
                frequency = mpmath.mpf(base) ** (-mpmath.mpf(2 * k) / d) * mpmath.exp(log_scale)
                cos = torch.tensor([float(mpmath.cos(p * frequency)) for p in places], dtype=torch.float64)
                sin = torch.tensor([float(mpmath.sin(p * frequency)) for p in places], dtype=torch.float64)
                a, b = x[:, h, :, first].double(), x[:, h, :, second].double()
                out[:, h, :, first], out[:, h, :, second] = a * cos - b * sin, b * cos + a * sin
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("per_head", [False, True])
def test_untrained_it_is_rotary_also_with_weights_of_half_precision(dtype: torch.dtype, per_head: bool) -> None:
    encoding = LearnedRotary(16, heads=2, per_head=per_head).to(dtype)
    q = torch.randn(1, 2, 9, 16)
    torch.testing.assert_close(encoding(q, q, offset=99_999)[0], Rotary(16)(q, q, offset=99_999)[0], rtol=0, atol=0)


PLACES = [0.0, 1.0, 2.5, -7.0, 4095.0]


@given(
    pairs=st.integers(1, 6),
    base=st.floats(1.01, 1e6),
    layout=st.sampled_from(LAYOUTS),
    per_head=st.booleans(),
    std=st.floats(0, 1),
)
def test_queries_and_keys_are_turned_by_the_frequencies_as_they_stand(
    pairs: int, base: float, layout: str, per_head: bool, std: float
) -> None:
    encoding = LearnedRotary(2 * pairs, heads=3, base=base, layout=layout, per_head=per_head).double()
    encoding = shift_at_random(encoding, std)
    q = torch.randn(2, 3, 5, 2 * pairs, dtype=torch.float64)
    actual, _ = encoding(q, q, positions=torch.tensor(PLACES, dtype=torch.float64))
    torch.testing.assert_close(actual, rotated(q, PLACES, encoding.shift, base=base, layout=layout), rtol=0, atol=1e-9)


def test_a_position_of_a_million_is_right_to_a_millionth() -> None:
    places, encoding = [999_999.0, 1_000_000.0], shift_at_random(LearnedRotary(32))
    q = torch.randn(2, 2, 2, 32)
    actual, _ = encoding(q, q, positions=torch.tensor([int(p) for p in places]))
    expected = rotated(q, places, encoding.shift, base=1e4, layout="half")
    assert actual.dtype == torch.float32 and (actual.double() - expected).abs().max().item() < 1e-6


def test_a_table_with_a_gradient_serves_two_steps_with_the_same_positions() -> None:
    encoding, at, q = LearnedRotary(8), Positions.count(5), torch.randn(1, 1, 5, 8)
    for _ in range(2):
        encoding.query(q, at).square().sum().backward()
        with torch.no_grad():
            encoding.shift += 0.1
    second_step = encoding.query(q, at)
    assert torch.equal(second_step, encoding.query(q, Positions.count(5)))
    assert not torch.equal(second_step, LearnedRotary(8).query(q, at))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_of_their_own_frequencies_share_keys_as_if_each_had_its_own(kv_heads: int) -> None:
    grouped_query = Attention(16, heads=4, head_dim=4, kv_heads=kv_heads).double()
    full = Attention(16, heads=4, head_dim=4).double()
    encoding = shift_at_random(LearnedRotary(4, heads=4, base=50.0, per_head=True).double())
    state = grouped_query.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        state[name] = state[name].unflatten(0, (kv_heads, -1)).repeat_interleave(4 // kv_heads, 0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    actual, expected = (layer(x, mask=masks.causal(), encoding=encoding) for layer in (grouped_query, full))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_frequencies_and_wavelengths_are_those_of_now() -> None:
    encoding = LearnedRotary(8, heads=2, base=100.0, per_head=True)
    with torch.no_grad():
        encoding.shift[1] += math.log(2)
    expected = [100 ** (-2 * k / 8) for k in range(4)]
    assert encoding.frequencies[0].tolist() == pytest.approx(expected, rel=1e-7)
    assert encoding.frequencies[1].tolist() == pytest.approx([2 * f for f in expected], rel=1e-7)
    assert encoding.wavelengths.tolist() == pytest.approx(
        sorted([2 * math.pi / f for f in expected] + [math.pi / f for f in expected]), rel=1e-7
    )
    assert not encoding.frequencies.requires_grad


def test_another_number_of_heads_is_refused_where_each_has_its_own() -> None:
    encoding = LearnedRotary(8, heads=4, per_head=True)
    with pytest.raises(ValueError, match="built for 4 heads, got 3; build it with heads=3"):
        encoding(torch.zeros(1, 3, 2, 8), torch.zeros(1, 3, 2, 8))
