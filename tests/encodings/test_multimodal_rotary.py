"""Tests of multimodal rotary encoding: each pair's axis, and positions of text and grids."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Positions, Shape, build
from posenc.encodings.rotations.multimodal_rotary import MultimodalRotary, text_and_grids
from posenc.encodings.rotations.rotary import Rotary
from posenc.schedules import SCHEDULES, Linear, YaRN

ORDERS, LAYOUTS = ["chunked", "interleaved", "time_last"], ["half", "interleaved"]


def rotated(x: Tensor, places: Tensor, owner: list[int], base: float, layout: str = "half") -> Tensor:
    """Rotate x [B, H, T, D] at positions [T, A]. Pair k uses axis owner[k]."""
    out, pairs = x.double().clone(), len(owner)
    for k, axis in enumerate(owner):
        first, second = (k, k + pairs) if layout == "half" else (2 * k, 2 * k + 1)
        z = torch.complex(x[..., first].double(), x[..., second].double())
        z = z * torch.exp(1j * places[:, axis].double() * base ** (-k / pairs))
        out[..., first], out[..., second] = z.real, z.imag
    return out


T, H, W = 0, 1, 2
OWNERS = {
    "chunked": [T] * 2 + [H] * 3 + [W] * 3,
    "interleaved": [T, H, W, T, H, W, T, T],
    "time_last": [H, W, H, W, H, H, T, T],
}
SECTIONS = {"chunked": (2, 3, 3), "interleaved": (4, 2, 2), "time_last": (2, 4, 2)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_each_pair_reads_the_axis_that_owns_it(order: str, layout: str) -> None:
    encoding = MultimodalRotary(16, base=1000.0, sections=SECTIONS[order], order=order, layout=layout)
    at = text_and_grids(3, (2, 2, 3), 2)
    q, k = torch.randn(2, 3, at.tokens, 16).double(), torch.randn(2, 1, at.tokens, 16).double()
    for x, actual in zip((q, k), encoding(q, k, positions=at), strict=True):
        expected = rotated(x, at.coords[0], OWNERS[order], 1000.0, layout)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
        for token, place in enumerate(at.coords[0].tolist()):
            formula = encoding.formula_query(x[0, 0, token].tolist(), tuple(place))
            assert formula == pytest.approx(actual[0, 0, token].tolist(), rel=0, abs=1e-12)


def test_qwen2_vl_splits_64_pairs_into_runs_of_16_24_and_24() -> None:
    encoding = MultimodalRotary(128)
    assert encoding.sections_in_use == (16, 24, 24)
    assert encoding.axis_of_pair() == [T] * 16 + [H] * 24 + [W] * 24


def test_qwen3_vl_gives_height_and_width_every_third_pair_up_to_60() -> None:
    encoding = MultimodalRotary(128, order="interleaved")
    assert encoding.sections_in_use == (24, 20, 20)
    owner = encoding.axis_of_pair()
    assert [k for k in range(64) if owner[k] == H] == list(range(1, 60, 3))
    assert [k for k in range(64) if owner[k] == W] == list(range(2, 60, 3))
    assert owner.count(T) == 24 and owner[60:] == [T] * 4


def test_videorope_leaves_the_slowest_16_pairs_to_time() -> None:
    owner = MultimodalRotary(128, order="time_last").axis_of_pair()
    assert owner == [H, W] * 24 + [T] * 16


@settings(max_examples=40, deadline=None)
@given(pairs=st.integers(3, 70), order=st.sampled_from(ORDERS))
def test_the_default_sections_of_any_head_fill_it_and_leave_no_axis_out(pairs: int, order: str) -> None:
    encoding = MultimodalRotary(2 * pairs, order=order)
    assert sum(encoding.sections_in_use) == pairs and min(encoding.sections_in_use) >= 1
    owner = encoding.axis_of_pair()
    assert [owner.count(axis) for axis in range(3)] == list(encoding.sections_in_use)


@settings(max_examples=25, deadline=None)
@given(sections=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(sum), place=st.floats(-1e4, 1e4))
def test_any_number_of_sections_follows_the_formula(sections: list[int], place: float) -> None:
    pairs, axes = sum(sections), len(sections)
    owner = [axis for axis, n in enumerate(sections) for _ in range(n)]
    places = torch.tensor([[place * (axis + 1) for axis in range(axes)]], dtype=torch.float64)
    q = torch.randn(1, 1, 1, 2 * pairs, dtype=torch.float64)
    actual, _ = MultimodalRotary(2 * pairs, sections=tuple(sections))(q, q, positions=places[None])
    torch.testing.assert_close(actual, rotated(q, places, owner, 10_000.0), rtol=0, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("schedule", [None, Linear(2), YaRN(4, trained_length=512)])
@pytest.mark.parametrize(("head_dim", "partial"), [(16, 1.0), (32, 0.5)])
def test_for_text_it_is_rotary(
    order: str, layout: str, schedule: Linear | YaRN | None, head_dim: int, partial: float
) -> None:
    encoding = MultimodalRotary(head_dim, order=order, layout=layout, partial=partial, schedule=schedule)
    rotary = Rotary(head_dim, layout=layout, partial=partial, schedule=schedule)
    q = torch.randn(2, 3, 9, head_dim)
    expected = rotary(q, q, offset=100)[0]
    assert torch.equal(encoding(q, q, offset=100)[0], expected)
    ids = torch.arange(100, 109)
    assert torch.equal(encoding(q, q, positions=ids[None, :, None].expand(2, 9, 3))[0], expected)
    assert torch.equal(encoding.wavelengths, rotary.wavelengths)


def test_after_an_image_the_next_position_is_not_the_number_of_tokens() -> None:
    """See ggml-org/llama.cpp#22439."""
    at = text_and_grids(4, (1, 6, 8))
    assert at.tokens == 52
    together = text_and_grids(4, (1, 6, 8), 1)
    assert together.coords[0, -1].tolist() == [12, 12, 12]
    encoding, q = MultimodalRotary(16), torch.randn(1, 1, 53, 16)
    whole = encoding.query(q, together)
    step = encoding.query(q[:, :, 52:], Positions.of(torch.tensor([[12]]), order=torch.tensor([[52]])))
    assert torch.equal(step, whole[:, :, 52:])


def test_text_and_grids_count_as_qwen2_vl_does() -> None:
    """Its documentation's example is three video frames of two by two patches, then text."""
    coords = text_and_grids((3, 2, 2), 5).coords[0]
    assert coords[:, 0].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3, 4, 5, 6, 7]
    assert coords[:, 1].tolist() == [0, 0, 1, 1] * 3 + [3, 4, 5, 6, 7]
    assert coords[:, 2].tolist() == [0, 1, 0, 1] * 3 + [3, 4, 5, 6, 7]


def test_height_and_width_of_an_image_that_is_not_square_are_not_swapped() -> None:
    at = text_and_grids(1, (1, 2, 5), 1)
    assert at.coords[0, 1:11].tolist() == [[1, 1 + row, 1 + column] for row in range(2) for column in range(5)]
    assert at.coords[0, 11].tolist() == [6, 6, 6] and at.extent == 7 and at.contiguous and not at.unit_step


def test_grids_may_have_other_axes_than_three() -> None:
    at = text_and_grids(1, (2, 1, 1, 2))
    assert at.axes == 4
    encoding, q = MultimodalRotary(16, sections=(2, 2, 2, 2)), torch.randn(1, 1, 5, 16, dtype=torch.float64)
    expected = rotated(q, at.coords[0], [0, 0, 1, 1, 2, 2, 3, 3], 10_000.0)
    torch.testing.assert_close(encoding.query(q, at), expected, rtol=0, atol=1e-13)
    assert text_and_grids(3).coords.tolist() == [[[0] * 3, [1] * 3, [2] * 3]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_exact_result_rounded_once(dtype: torch.dtype) -> None:
    places = torch.tensor([[0, 0, 0], [255, 257, 4095], [99_999, 1, 65_535]])
    q = torch.randn(1, 2, 3, 16).to(dtype)
    out, exact = MultimodalRotary(16)(q, q, positions=places[None])[0], rotated(q, places, OWNERS["chunked"], 10_000.0)
    assert out.dtype == dtype
    assert bool(((out.double() - exact).abs() <= exact.abs() * torch.finfo(dtype).eps / 2 + 1e-6).all())


def test_sections_that_an_error_proposes_work() -> None:
    assert MultimodalRotary(64, sections=(11, 11, 10), order="interleaved").axis_of_pair()[:3] == [T, H, W]


@pytest.mark.parametrize("name", [name for name, schedule in SCHEDULES.items() if schedule.by_horizon])
def test_a_schedule_that_depends_on_the_horizon_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="depends on the horizon, which only rotary reads"):
        build(f"multimodal_rotary(schedule={SCHEDULES[name].example})", Shape(16, 2, 8, 64))


def test_positions_and_heads_that_do_not_fit_are_refused() -> None:
    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match=r"one axis or 3, .* sections \(2, 1, 1\), got positions with 2 axes"):
        MultimodalRotary(8).query(q, Positions.grid(2, 2))
    with pytest.raises(ValueError, match="same number of axes, got"):
        text_and_grids((1, 2, 2), (2, 2))
    with pytest.raises(ValueError, match="at least one cell"):
        text_and_grids(2, (1, 0, 2))
    with pytest.raises(ValueError, match="got no parts"):
        text_and_grids()
