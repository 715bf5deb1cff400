"""Axial rotary encoding agrees with 40-digit complex numbers, and with one-axis rotary."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Positions
from posenc.encodings.rotations.axial_rotary import AxialRotary
from posenc.encodings.rotations.rotary import Rotary

HALF, FULL = ["half", "interleaved", "half_by_axis"], ["language", "dealt", "pixel", "log_pixel"]


def frequencies_of(kind: str, width: int, axis: int, axes: int, base: float, resolution: float) -> list[mpmath.mpf]:
    """Return one axis's frequencies for `width` channels, one per pair, in 40 digits."""
    n, steps = width // 2, max(width // 2 - 1, 1)
    if kind == "language":
        return [mpmath.mpf(base) ** (-mpmath.mpf(j) / n) for j in range(n)]
    if kind == "dealt":
        whole = [mpmath.mpf(base) ** (-mpmath.mpf(i) / (n * axes)) for i in range(n * axes)]
        return whole[axis::axes]
    if kind == "pixel":
        return [mpmath.pi * (1 + mpmath.mpf(j) / steps * (mpmath.mpf(resolution) / 2 - 1)) for j in range(n)]
    return [mpmath.pi * 2 ** (mpmath.mpf(j) / steps * (mpmath.log(resolution, 2) - 1)) for j in range(n)]


def rotated(
    x: Tensor,
    places: Tensor,
    widths: tuple[int, ...],
    layout: str = "half",
    kind: str = "language",
    base: float = 100.0,
    resolution: float = 224.0,
) -> Tensor:
    """Rotate x [B, H, T, D] pair by pair at positions [T, A], in float64."""
    out, r, start = x.double().clone(), sum(widths), 0
    with mpmath.workdps(40):
        for axis, width in enumerate(widths):
            for j, f in enumerate(frequencies_of(kind, width, axis, len(widths), base, resolution)):
                pair = start // 2 + j
                first, second = {
                    "half": (pair, pair + r // 2),
                    "interleaved": (2 * pair, 2 * pair + 1),
                    "half_by_axis": (start + j, start + j + width // 2),
                }[layout]
                turn = [mpmath.expj(mpmath.mpf(p) * f) for p in places[:, axis].tolist()]
                cos = torch.tensor([float(z.real) for z in turn], dtype=torch.float64)
                sin = torch.tensor([float(z.imag) for z in turn], dtype=torch.float64)
                a, b = x[..., first].double(), x[..., second].double()
                out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
            start += width
    return out


PLACES = torch.tensor(
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [2.5, -7, 13], [-0.25, 95, 0.5]], dtype=torch.float64
)


@pytest.mark.parametrize("layout", HALF)
@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize(("head_dim", "widths"), [(4, (2, 2)), (8, (4, 4)), (11, (4, 4)), (20, (6, 6, 6))])
def test_queries_and_keys_are_turned_as_published(
    layout: str, kind: str, head_dim: int, widths: tuple[int, ...]
) -> None:
    options = {"resolution": 10.0} if "pixel" in kind else {"base": 50.0}
    encoding = AxialRotary(head_dim, axes=len(widths), layout=layout, frequencies=kind, **options)
    assert encoding.widths == widths
    q, k = torch.randn(2, 3, 6, head_dim, dtype=torch.float64), torch.randn(2, 1, 6, head_dim, dtype=torch.float64)
    places = PLACES[:, : len(widths)]
    got_q, got_k = encoding(q, k, positions=places[None])
    oracle = {"layout": layout, "kind": kind, **options}
    torch.testing.assert_close(got_q, rotated(q, places, widths, **oracle), rtol=0, atol=1e-12)
    torch.testing.assert_close(got_k, rotated(k, places, widths, **oracle), rtol=0, atol=1e-12)
    assert torch.equal(got_q[..., sum(widths) :], q[..., sum(widths) :])


@settings(max_examples=25, deadline=None)
@given(
    pairs=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    rest=st.integers(0, 3),
    base=st.floats(1.01, 1e6),
    layout=st.sampled_from(HALF),
    where=st.floats(-1e4, 1e4),
)
def test_any_split_over_any_number_of_axes_follows_the_formula(
    pairs: list[int], rest: int, base: float, layout: str, where: float
) -> None:
    widths = tuple(2 * n for n in pairs)
    head_dim = sum(widths) + rest
    encoding = AxialRotary(head_dim, axes=len(widths), base=base, split=widths, layout=layout)
    places = torch.tensor([[where / (axis + 1) for axis in range(len(widths))]], dtype=torch.float64)
    q = torch.randn(1, 2, 1, head_dim, dtype=torch.float64)
    actual, _ = encoding(q, q, positions=places[None])
    torch.testing.assert_close(actual, rotated(q, places, widths, layout, base=base), rtol=0, atol=1e-9)


@pytest.mark.parametrize("layout", HALF)
@pytest.mark.parametrize(("head_dim", "split"), [(8, None), (9, None), (8, (4,))])
def test_with_one_axis_it_is_rotary(layout: str, head_dim: int, split: tuple[int, ...] | None) -> None:
    encoding = AxialRotary(head_dim, axes=1, base=10_000.0, split=split, layout=layout)
    rotary = Rotary(head_dim, layout=layout.removesuffix("_by_axis"), partial=encoding.widths[0] / head_dim)
    q = torch.randn(2, 3, 7, head_dim, dtype=torch.float64)
    for actual, expected in zip(encoding(q, q, offset=90), rotary(q, q, offset=90), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(encoding.wavelengths, rotary.wavelengths, rtol=1e-14, atol=0)


@given(head_dim=st.integers(2, 200), axes=st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_three_way_splits_with_odd_widths_are_checked_at_construction(head_dim: int, axes: int) -> None:
    """Other libraries crash in apply: huggingface/transformers#35233, #48217, #36090; rotary-embedding-torch#45."""
    if head_dim < 2 * axes:
        with pytest.raises(ValueError, match=f"{2 * axes} for {axes} axes, got head_dim={head_dim}"):
            AxialRotary(head_dim, axes=axes)
        return
    encoding = AxialRotary(head_dim, axes=axes)
    assert encoding.widths == (2 * (head_dim // axes // 2),) * axes
    q = torch.randn(1, 1, 2, head_dim)
    turned_q, _ = encoding(q, q, positions=torch.ones(1, 2, axes))
    rest = sum(encoding.widths)
    assert rest > head_dim - 2 * axes
    assert torch.equal(turned_q[..., rest:], q[..., rest:]) and not torch.equal(turned_q[..., :rest], q[..., :rest])


def test_height_and_width_of_an_image_that_is_not_square_are_not_swapped() -> None:
    """See huggingface/pytorch-image-models#2541."""
    encoding, at = AxialRotary(8, layout="half_by_axis"), Positions.grid(2, 5)
    q = torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(1, 1, 10, 8)
    rows = encoding.query(q, at).reshape(2, 5, 8)
    # The first four channels depend only on the row, the others only on the column.
    assert torch.equal(rows[:, :1, :4].expand(2, 5, 4), rows[..., :4]) and not torch.equal(
        rows[0, 0, :4], rows[1, 0, :4]
    )
    assert torch.equal(rows[:1, :, 4:].expand(2, 5, 4), rows[..., 4:]) and rows[0, :, 4:].unique(dim=0).shape[0] == 5
    torch.testing.assert_close(encoding.query(q, at), rotated(q, at.coords[0].double(), (4, 4), "half_by_axis"))


def test_the_layouts_are_one_encoding_up_to_an_order_of_channels() -> None:
    q, k, at = torch.randn(1, 2, 6, 14), torch.randn(1, 2, 6, 14), Positions.grid(2, 3)
    orders = {  # The channel order of the interleaved pairs a0 b0 a1 b1 ...
        "half": [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11, 12, 13],
        "half_by_axis": [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11, 12, 13],
    }
    for layout, order in orders.items():
        for x in (q, k):
            actual = AxialRotary(14, layout=layout).query(x, at)[..., order]
            assert torch.equal(actual, AxialRotary(14, layout="interleaved").query(x[..., order], at))


def test_gemma_4_turns_the_channels_of_each_axis_in_halves_of_their_own() -> None:
    """The angles are h h w w. Paired channels lie two apart in a head of eight."""
    q = torch.eye(8, dtype=torch.float64)[:, None, None]  # [8, 1, 1, 8]: one-hot channels
    actual = AxialRotary(8, layout="half_by_axis").query(q, Positions.of(torch.tensor([[[3, 5]]]))).squeeze()
    angles = {0: 3.0, 1: 0.3, 4: 5.0, 5: 0.5}  # base 100 over 4 channels: frequencies 1 and 0.1
    expected = torch.zeros(8, 8, dtype=torch.float64)
    for c, angle in angles.items():
        expected[c, c] = expected[c + 2, c + 2] = math.cos(angle)
        expected[c, c + 2], expected[c + 2, c] = math.sin(angle), -math.sin(angle)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-15)


def test_pixtral_deals_one_spectrum_to_rows_and_columns_in_turn() -> None:
    encoding = AxialRotary(16, base=10_000.0, frequencies="dealt")
    whole = [10_000 ** (-2 * i / 16) for i in range(8)]
    assert encoding.spectrum(0).tolist() == pytest.approx(whole[0::2], rel=1e-14)
    assert encoding.spectrum(1).tolist() == pytest.approx(whole[1::2], rel=1e-14)


def test_pixel_frequencies_lie_evenly_between_pi_and_half_the_resolution_times_pi() -> None:
    linear = AxialRotary(16, frequencies="pixel", resolution=10.0)
    assert (linear.spectrum(1) / math.pi).tolist() == pytest.approx([1, 7 / 3, 11 / 3, 5], rel=1e-14)
    ratios = AxialRotary(16, frequencies="log_pixel", resolution=16.0)
    assert (ratios.spectrum(0) / math.pi).tolist() == pytest.approx([1, 2, 4, 8], rel=1e-14)
    assert AxialRotary(16, frequencies="pixel").spectrum(0)[-1].item() == pytest.approx(112 * math.pi, rel=1e-14)
    assert AxialRotary(4, frequencies="pixel").spectrum(0).tolist() == [math.pi]


def test_wavelengths_of_all_axes_come_shortest_first() -> None:
    waves = AxialRotary(14, split=(4, 8)).wavelengths
    expected = sorted(2 * math.pi * 100 ** (j / n) for n in (2, 4) for j in range(n))
    assert waves.tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_exact_result_rounded_once(dtype: torch.dtype) -> None:
    places = torch.tensor([[0.0, 0], [255, 257], [65_535, 3], [2.5, 999_999]], dtype=torch.float64)
    q = torch.randn(1, 2, 4, 16).to(dtype)
    for layout in HALF:
        actual, _ = AxialRotary(16, layout=layout)(q, q, positions=places[None])
        exact = rotated(q, places, (8, 8), layout)
        assert actual.dtype == dtype
        assert bool(((actual.double() - exact).abs() <= exact.abs() * torch.finfo(dtype).eps / 2 + 1e-6).all())
