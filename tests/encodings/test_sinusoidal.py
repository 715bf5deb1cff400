"""Sinusoidal encoding agrees with mpmath and with tables saved by tutorial modules."""

import itertools
import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from posenc import Positions
from posenc.encodings.added.sinusoidal import Sinusoidal
from posenc.lab.description.shift import shift_matrix

PLACES = [0.0, 1.0, 5001.0, 1e6, 0.25, 2.75, -3.0, -1234.5]


def formula(p: float, dim: int, base: float, layout: str, endpoint: bool) -> list[float]:
    """Return one position's encoding in 50 digits, from the paper's and tensor2tensor's formulas."""
    with mpmath.workdps(50):
        pairs = -(-dim // 2) if layout == "interleaved" else dim // 2
        divisor = mpmath.mpf(max(pairs - 1, 1)) if endpoint else mpmath.mpf(dim) / 2
        angles = [mpmath.mpf(p) / mpmath.mpf(base) ** (k / divisor) for k in range(pairs)]
        sines, cosines = [mpmath.sin(a) for a in angles], [mpmath.cos(a) for a in angles]
        if layout == "interleaved":
            row = list(itertools.chain(*zip(sines, cosines, strict=True)))[:dim]
        else:
            row = (cosines + sines if layout == "cosines_first" else sines + cosines) + [0] * (dim % 2)
        return [float(value) for value in row]


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 24])
@pytest.mark.parametrize("endpoint", [False, True])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "cosines_first"])
def test_every_position_is_right_in_all_layouts_and_with_both_exponents(layout: str, endpoint: bool, dim: int) -> None:
    encoding = Sinusoidal(dim, layout=layout, endpoint=endpoint)
    x = torch.zeros(2, len(PLACES), dim)
    expected = torch.tensor([formula(p, dim, 10_000, layout, endpoint) for p in PLACES])
    actual = encoding(x, positions=torch.tensor(PLACES, dtype=torch.float64))
    torch.testing.assert_close(actual, expected.expand_as(x), rtol=0, atol=1e-7)


@given(
    dim=st.integers(1, 33),
    base=st.floats(1.5, 1e6),
    layout=st.sampled_from(["interleaved", "concatenated", "cosines_first"]),
    endpoint=st.booleans(),
    p=st.integers(-10_000, 1_000_000),
)
def test_any_width_and_base_follow_the_formula(dim: int, base: float, layout: str, endpoint: bool, p: int) -> None:
    at = Positions.of(torch.tensor([p], dtype=torch.float64))
    actual = Sinusoidal(dim, base=base, layout=layout, endpoint=endpoint).encode(at)
    expected = torch.tensor([[formula(p, dim, base, layout, endpoint)]], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-8)


def test_the_scalar_formula_in_the_file_is_the_published_one() -> None:
    for dim, layout, endpoint in itertools.product((1, 5, 6), ("interleaved", "concatenated"), (False, True)):
        encoding = Sinusoidal(dim, base=300.0, layout=layout, endpoint=endpoint)
        actual = [encoding.formula_added(12.5, channel) for channel in range(dim)]
        assert actual == pytest.approx(formula(12.5, dim, 300.0, layout, endpoint), abs=1e-13)


@pytest.mark.parametrize(("dim", "longest"), [(64, 47_117), (128, 54_410), (512, 60_611)])
def test_the_longest_wavelength_falls_short_of_two_pi_base(dim: int, longest: int) -> None:
    wavelengths = Sinusoidal(dim).wavelengths
    assert round(float(wavelengths[-1])) == longest
    assert float(wavelengths[0]) == pytest.approx(2 * math.pi, rel=1e-15)


@pytest.mark.parametrize("dim", [4, 64, 127, 512])
@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_with_endpoint_the_longest_wavelength_is_two_pi_base(dim: int, layout: str) -> None:
    longest = Sinusoidal(dim, layout=layout, endpoint=True).wavelengths[-1]
    assert float(longest) == pytest.approx(2 * math.pi * 10_000, rel=1e-14)


def test_the_dot_product_of_two_positions_is_even_in_the_distance_and_not_monotone() -> None:
    rows = Sinusoidal(512).encode(Positions.of(torch.arange(-200.0, 200.0)))[0]
    dots = rows @ rows[200]
    torch.testing.assert_close(dots[1:200].flip(0), dots[201:], rtol=0, atol=1e-10)
    rises = dots[200:].diff() > 0
    # With 512 channels the dot product rises at 54 of the first 199 distances, first from 43 to 44.
    assert int(rises.sum()) == 54 and int(rises.nonzero()[0]) == 43


@pytest.mark.parametrize(
    ("dim", "layout"),
    [(8, "interleaved"), (8, "concatenated"), (7, "concatenated"), (2, "interleaved"), (7, "cosines_first")],
)
@pytest.mark.parametrize("endpoint", [False, True])
@pytest.mark.parametrize("k", [0, 1, -4.5, 1000])
def test_a_shift_is_a_matrix_that_does_not_depend_on_the_position(
    dim: int, layout: str, endpoint: bool, k: float
) -> None:
    encoding = Sinusoidal(dim, base=500.0, layout=layout, endpoint=endpoint)
    matrix = shift_matrix(encoding, k).tolist()
    for p in (0.0, 3.0, 1e5):
        encoding_p, encoding_p_plus_k = (formula(m, dim, 500.0, layout, endpoint) for m in (p, p + k))
        product = [math.fsum(a * b for a, b in zip(row, encoding_p, strict=True)) for row in matrix]
        assert product == pytest.approx(encoding_p_plus_k, abs=1e-9)


def test_an_odd_interleaved_width_has_no_shift_and_says_why() -> None:
    with pytest.raises(
        ValueError, match="needs whole pairs, and dim=7 leaves a sine without its cosine; use an even dim"
    ):
        shift_matrix(Sinusoidal(7), 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_result_follows_the_dtype_of_the_input_and_is_rounded_once(dtype: torch.dtype) -> None:
    places = torch.tensor([0, 3, 257, 5001, 999_999])
    actual = Sinusoidal(10)(torch.zeros(1, 5, 10, dtype=dtype), positions=places)
    exact = torch.tensor([formula(float(p), 10, 10_000, "interleaved", False) for p in places], dtype=torch.float64)
    assert actual.dtype == dtype
    # Half a unit in the last place of numbers up to 1; in float64 an angle of a million is itself inexact by 1e-10.
    tolerance = torch.finfo(dtype).eps / 4 if dtype != torch.float64 else 1e-9
    assert (actual[0].double() - exact).abs().max().item() <= tolerance * (1 + 1e-6)


def test_a_table_is_given_for_positions_or_a_number_of_tokens() -> None:
    encoding = Sinusoidal(6)
    expected = encoding(torch.zeros(1, 4, 6))
    assert torch.equal(encoding.table(4), expected)
    assert torch.equal(encoding.table(torch.arange(4)), expected)
    assert torch.equal(encoding.table(Positions.count(4)), expected)
    assert encoding.table(2, dtype=torch.float64).dtype == torch.float64


class Tutorial(nn.Module):
    """The common tutorial module. Its state dict holds a float32 table computed with exp and log."""

    def __init__(self, dim: int, tokens: int = 5000, layout: str = "interleaved", base: float = 10_000.0) -> None:
        super().__init__()
        frequency = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(base) / dim))
        angle = torch.arange(tokens).float()[:, None] * frequency
        table = torch.zeros(tokens, dim)
        if layout == "interleaved":
            table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()[:, : dim // 2]
        else:
            table = torch.cat((angle.sin(), angle.cos()), 1)
        self.register_buffer("pe", table)

    def pe_of_shape(self, shape: str) -> Tensor:
        return {"[T, D]": self.pe, "[1, T, D]": self.pe[None], "[T, 1, D]": self.pe[:, None]}[shape]


@pytest.mark.parametrize("shape", ["[T, D]", "[1, T, D]", "[T, 1, D]"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_table_that_a_tutorial_module_saved_loads_and_is_dropped(shape: str, dtype: torch.dtype) -> None:
    state = {"pe": Tutorial(32).pe_of_shape(shape).to(dtype)}
    encoding = Sinusoidal(32)
    assert encoding.load_state_dict(state) == ([], [])
    assert not encoding.state_dict() and set(state) == {"pe"}


def test_a_saved_table_loads_inside_a_model_and_with_an_odd_width() -> None:
    model = nn.ModuleDict({"position": Sinusoidal(7), "output": nn.Linear(7, 2)})
    state = model.state_dict() | {"position.pe": Tutorial(7, 50).pe}
    assert model.load_state_dict(state) == ([], [])


@pytest.mark.parametrize("shape", ["[T, D]", "[1, T, D]", "[T, 1, D]"])
@pytest.mark.parametrize("options", [{"layout": "concatenated"}, {"endpoint": True}, {"base": 500.0}])
def test_a_table_of_other_options_is_refused(options: dict[str, Any], shape: str) -> None:
    table = Sinusoidal(32, **options).table(100)[0]
    state = {"pe": {"[T, D]": table, "[1, T, D]": table[None], "[T, 1, D]": table[:, None]}[shape]}
    with pytest.raises(RuntimeError, match=r"pe: expected the rows of sinusoidal.*, got others; build what they are"):
        Sinusoidal(32).load_state_dict(state)
    Sinusoidal(32, **options).load_state_dict(state)


@pytest.mark.parametrize("shape", [(9, 30), (1, 9, 30), (2, 9, 32), (32,), ()])
def test_a_table_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="pe: expected the rows of sinusoidal"):
        Sinusoidal(32).load_state_dict({"pe": torch.zeros(shape)})


def published_on_axes(place: tuple[float, ...], dim: int, base: float, layout: str, endpoint: bool) -> list[float]:
    """Return the multi-axis encoding: c channels per axis, concatenated and cut to dim."""
    c = 2 * math.ceil(dim / (2 * len(place)))
    rows = [formula(p, c, base, "concatenated", endpoint) for p in place]
    if layout == "interleaved":
        rows = [formula(p, c, base, "interleaved", endpoint) for p in place]
    if layout == "sines_first":
        rows = [row[: c // 2] for row in rows] + [row[c // 2 :] for row in rows]
    if layout == "cosines_first":
        rows = [row[c // 2 :] for row in rows] + [row[: c // 2] for row in rows]
    return list(itertools.chain(*rows))[:dim]


@given(
    data=st.data(),
    dim=st.integers(1, 25),
    axes=st.integers(2, 4),
    base=st.floats(1.5, 1e6),
    layout=st.sampled_from(["interleaved", "concatenated", "sines_first", "cosines_first"]),
    endpoint=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_on_several_axes_each_has_its_own_channels(
    data: st.DataObject, dim: int, axes: int, base: float, layout: str, endpoint: bool
) -> None:
    c = 2 * math.ceil(dim / (2 * axes))
    if (axes - 1) * c >= dim:
        with pytest.raises(ValueError, match=f"dim={dim} leaves no channel for the last of axes={axes}"):
            Sinusoidal(dim, base=base, layout=layout, endpoint=endpoint, axes=axes)
        return
    place = tuple(data.draw(st.lists(st.floats(-1000, 1000, width=32), min_size=axes, max_size=axes)))
    encoding = Sinusoidal(dim, base=base, layout=layout, endpoint=endpoint, axes=axes)
    expected = published_on_axes(place, dim, base, layout, endpoint)
    actual = encoding.encode(Positions.of(torch.tensor([[place]], dtype=torch.float64)))
    assert actual.flatten().tolist() == pytest.approx(expected, abs=1e-10)
    assert [encoding.formula_added(place, c) for c in range(dim)] == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("dim", "axes", "c"), [(8, 2, 4), (7, 2, 4), (6, 3, 2), (15, 3, 6), (10, 3, 4), (512, 3, 172)])
def test_a_width_that_does_not_divide_leaves_fewer_channels_to_the_last_axis(dim: int, axes: int, c: int) -> None:
    encoding = Sinusoidal(dim, axes=axes)
    assert encoding.width == c and len(encoding.frequencies) == c // 2
    step = torch.eye(axes, dtype=torch.float64)[:, None]
    difference = encoding.encode(Positions.of(step)) - encoding.encode(Positions.of(torch.zeros_like(step)))
    for axis in range(axes):
        channels = difference[axis, 0].nonzero().flatten().tolist()
        assert channels[0] == axis * c and channels[-1] <= min((axis + 1) * c, dim) - 1


def test_sines_first_is_concatenated_on_one_axis_and_another_order_on_two() -> None:
    one_axis, two = Positions.of(torch.tensor([3.0, 7.5])), Positions.grid(2, 3)
    first, concat = (Sinusoidal(8, layout="sines_first"), Sinusoidal(8, layout="concatenated"))
    assert torch.equal(first.encode(one_axis), concat.encode(one_axis))
    first, concat = Sinusoidal(8, layout="sines_first", axes=2), Sinusoidal(8, layout="concatenated", axes=2)
    assert torch.equal(first.encode(two)[..., [0, 1, 4, 5, 2, 3, 6, 7]], concat.encode(two))
    assert not torch.equal(first.encode(two), concat.encode(two))


def test_what_belongs_to_one_axis_says_so_on_two() -> None:
    with pytest.raises(ValueError, match=r"a shift by k moves along one axis, and .* has 2; build it with axes=1"):
        shift_matrix(Sinusoidal(8, axes=2), 1)
    with pytest.raises(RuntimeError, match="pe: expected the rows of sinusoidal"):
        Sinusoidal(8, axes=2).load_state_dict({"pe": Tutorial(8, 20).pe})


def test_a_scale_is_learned_and_starts_where_the_encoding_has_norm_root_half() -> None:
    encoding = Sinusoidal(32, scaled=True, dtype=torch.float64)
    assert dict(encoding.named_parameters())["scale"].item() == pytest.approx(32**-0.5, rel=1e-15)
    out = encoding(torch.zeros(1, 5, 32, dtype=torch.float64))
    torch.testing.assert_close(out.norm(dim=-1), torch.full((1, 5), 0.5**0.5, dtype=torch.float64), rtol=1e-14, atol=0)
    out.sum().backward()
    expected = Sinusoidal(32).table(5, dtype=torch.float64)
    assert encoding.scale is not None and encoding.scale.grad is not None
    assert encoding.scale.grad.item() == pytest.approx(expected.sum().item(), rel=1e-12)
    torch.testing.assert_close(encoding.table(5, dtype=torch.float64), expected * 32**-0.5, rtol=1e-14, atol=0)


def test_a_scaled_encoding_is_rounded_once() -> None:
    encoding = Sinusoidal(48, scaled=True).bfloat16()
    assert encoding.scale is not None
    exact = Sinusoidal(48).table(300, dtype=torch.float64) * encoding.scale.double()
    actual = encoding(torch.zeros(1, 300, 48, dtype=torch.bfloat16))
    assert torch.equal(actual, exact.float().to(torch.bfloat16))


@pytest.mark.parametrize("axes", [1, 2])
def test_whole_positions_of_any_type_do_not_give_zeros(axes: int) -> None:
    # Encodings that compute angles in their input's dtype give zeros for integers (peers.md 3a, row 28).
    places = torch.arange(12).view(1, 6, 2)[..., :axes]
    encoding, x = Sinusoidal(8, axes=axes), torch.zeros(1, 6, 8)
    for dtype in (torch.int32, torch.int64, torch.int16, torch.uint8):
        actual = encoding(x, positions=places.to(dtype))
        assert torch.equal(actual, encoding(x, positions=places.double())) and float(actual.abs().sum()) > 10
