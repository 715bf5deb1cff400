"""Tests of mixed rotary encoding, which learns directions for each head."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Attention, Positions, masks
from posenc.cache import GrowingCache
from posenc.encodings.rotations.axial_rotary import AxialRotary
from posenc.encodings.rotations.mixed_rotary import MixedRotary
from posenc.encodings.rotations.rotary import Rotary


def rotated(x: Tensor, places: Tensor, frequencies: Tensor, layout: str) -> Tensor:
    """Rotate x [B, H, T, D] at positions [T, A] by complex numbers. The frequencies are [H, P, A]."""
    out, pairs = x.double().clone(), frequencies.shape[1]
    for h in range(x.shape[1]):
        for p in range(pairs):
            first, second = (p, p + pairs) if layout == "half" else (2 * p, 2 * p + 1)
            z = torch.complex(x[:, h, :, first].double(), x[:, h, :, second].double())
            z = z * torch.exp(1j * sum(places[:, a] * frequencies[h, p, a] for a in range(places.shape[1])))
            out[:, h, :, first], out[:, h, :, second] = z.real, z.imag
    return out


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("head_dim", "axes"), [(8, 2), (7, 2), (12, 3), (6, 1)])
def test_queries_and_keys_are_turned_as_published(layout: str, head_dim: int, axes: int) -> None:
    encoding = MixedRotary(3, head_dim, axes=axes, layout=layout)
    places = torch.randn(5, axes, dtype=torch.float64) * 10
    q, k = torch.randn(2, 3, 5, head_dim, dtype=torch.float64), torch.randn(2, 3, 5, head_dim, dtype=torch.float64)
    actual = encoding(q, k, positions=places[None])
    frequencies = encoding.frequencies.detach().double()
    for x, y in zip((q, k), actual, strict=True):
        torch.testing.assert_close(y, rotated(x, places, frequencies, layout), rtol=0, atol=1e-13)


def test_the_initial_magnitudes_are_ten_to_the_minus_4k_over_d_along_two_perpendicular_directions() -> None:
    encoding = MixedRotary(3, 64, dtype=torch.float64)
    first, second = encoding.frequencies.detach().chunk(2, 1)  # [3, 16, 2] each
    expected = torch.tensor([10 ** (-4 * k / 64) for k in range(16)], dtype=torch.float64)
    for half in (first, second):
        torch.testing.assert_close(half.norm(dim=-1), expected.expand(3, 16), rtol=1e-14, atol=0)
    # The second half is the first rotated by 90 degrees: (x, y) -> (-y, x).
    torch.testing.assert_close(second, torch.stack((-first[..., 1], first[..., 0]), -1), rtol=0, atol=1e-14)
    directions = first[:, 0] / first[:, 0].norm(dim=-1, keepdim=True)
    torch.testing.assert_close(first, expected[:, None] * directions[:, None], rtol=0, atol=1e-14)
    assert directions.unique(dim=0).shape[0] == 3


def test_initial_directions_are_uniform() -> None:
    torch.manual_seed(3)
    first = MixedRotary(4000, 4, dtype=torch.float64).frequencies.detach()[:, 0]
    angle = torch.atan2(first[:, 1], first[:, 0])
    share = torch.histc(angle, 8, -math.pi, math.pi) / 4000
    assert (share - 1 / 8).abs().max().item() < 0.025


@given(head_dim=st.integers(2, 24), axes=st.integers(1, 5), heads=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_any_number_of_axes_gets_perpendicular_directions(head_dim: int, axes: int, heads: int) -> None:
    f = MixedRotary(heads, head_dim, axes=axes, dtype=torch.float64).frequencies.detach()
    pairs, per_axis = head_dim // 2, math.ceil(head_dim // 2 / axes)
    assert f.shape == (heads, pairs, axes)
    angle = f @ f.mT
    for i in range(pairs):
        for j in range(pairs):
            size = 10 ** (-axes * (i % per_axis + j % per_axis) / pairs) if i // per_axis == j // per_axis else 0.0
            torch.testing.assert_close(
                angle[:, i, j], torch.full((heads,), size, dtype=torch.float64), rtol=0, atol=1e-13
            )


def test_with_one_axis_it_starts_as_rotary() -> None:
    q = torch.randn(1, 2, 7, 8, dtype=torch.float64)
    encoding = MixedRotary(2, 8, axes=1, base=10_000.0, dtype=torch.float64)
    torch.testing.assert_close(encoding(q, q)[0], Rotary(8)(q, q)[0], rtol=0, atol=1e-13)


def test_with_directions_along_the_axes_it_is_axial_rotary() -> None:
    axial, encoding = AxialRotary(8, base=50.0), MixedRotary(2, 8, dtype=torch.float64)
    with torch.no_grad():
        encoding.frequencies.zero_()
        for axis in range(2):
            encoding.frequencies[:, 2 * axis : 2 * axis + 2, axis] = axial.spectrum(axis)
    q, at = torch.randn(1, 2, 6, 8, dtype=torch.float64), Positions.grid(2, 3)
    torch.testing.assert_close(encoding.query(q, at), axial.query(q, at), rtol=0, atol=1e-14)


def test_angles_are_exact_although_the_parameter_is_rounded() -> None:
    encoding = MixedRotary(2, 8).bfloat16()
    places = torch.tensor([[1000.0, 999.0], [255.0, 257.0]], dtype=torch.float64)
    q = torch.randn(1, 2, 2, 8).bfloat16()
    exact = rotated(q, places, encoding.frequencies.detach().double(), "half")
    actual = encoding(q, q, positions=places[None])[0]
    assert bool(((actual.double() - exact).abs() <= exact.abs() * torch.finfo(torch.bfloat16).eps / 2 + 1e-6).all())


@pytest.mark.parametrize(("groups", "kv_heads"), [(None, 4), (2, 2), (2, 4), (1, 1), (1, 2)])
def test_with_groups_for_the_key_heads_a_cache_and_grouped_queries_work(groups: int | None, kv_heads: int) -> None:
    encoding = MixedRotary(4, 4, groups=groups, dtype=torch.float64)
    layer = Attention(8, 4, head_dim=4, kv_heads=kv_heads).double()
    x, at = torch.randn(2, 6, 8, dtype=torch.float64), Positions.grid(2, 3)
    whole = layer(x, positions=at, mask=masks.causal(), encoding=encoding)
    cache, parts = GrowingCache(), []
    for start, end in ((0, 4), (4, 5), (5, 6)):
        piece = at.rows(slice(start, end))
        parts.append(layer(x[:, start:end], positions=piece, mask=masks.causal(), cache=cache, encoding=encoding))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)


def test_query_heads_turn_as_the_key_head_that_they_share() -> None:
    encoding = MixedRotary(6, 8, groups=2, dtype=torch.float64)
    six_sets = MixedRotary(6, 8, dtype=torch.float64)
    with torch.no_grad():
        six_sets.frequencies.copy_(encoding.frequencies.repeat_interleave(3, 0))
    q, k, at = torch.randn(1, 6, 4, 8).double(), torch.randn(1, 2, 4, 8).double(), Positions.grid(2, 2)
    assert torch.equal(encoding.query(q, at), six_sets.query(q, at))
    assert torch.equal(encoding.key(k, at).repeat_interleave(3, 1), six_sets.key(k.repeat_interleave(3, 1), at))


def test_only_several_sets_of_frequencies_leave_a_gap() -> None:
    assert set(MixedRotary(3, 8).gaps) == {"grouped_query_heads_agree", "a_cache_changes_nothing"}
    assert not MixedRotary(3, 8, groups=1).gaps and not MixedRotary(1, 8).gaps


def test_heads_that_do_not_fit_are_refused() -> None:
    encoding, at = MixedRotary(4, 8), Positions.grid(2, 2)
    with pytest.raises(ValueError, match=r"4 sets of heads among 4, got 2 heads; .* build it with groups=2"):
        encoding.key(torch.zeros(1, 2, 4, 8), at)
    with pytest.raises(ValueError, match="got 8 heads"):
        encoding.query(torch.zeros(1, 8, 4, 8), at)
