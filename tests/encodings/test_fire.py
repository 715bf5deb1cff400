"""FIRE agrees with its network evaluated neuron by neuron, and the released code."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import Keys, Positions, Shape
from posenc.catalogue import build_layers
from posenc.encoding.biases import ByDistance
from posenc.encodings.content_biases.fire import Fire, Pieces


def formula(encoding: Fire, m: Tensor, n: Tensor) -> Tensor:
    """Return the float64 bias [H, T, S]. Each pair's quotient goes through the whole network."""
    c, multiplier = encoding.c.double(), encoding.multiplier.double()
    distance = (m[:, None] - n).abs().double()
    horizon = torch.max(m.double(), (multiplier * encoding.length).abs())
    share = torch.log((c * distance).abs() + 1) / (torch.log((c * horizon).abs() + 1) + encoding.eps)[:, None]
    hidden = torch.relu(share[..., None] * encoding.hidden.weight[:, 0].double() + encoding.hidden.bias.double())
    return (hidden @ encoding.out.weight.double().T + encoding.out.bias.double()).permute(2, 0, 1)


def bias(encoding: Fire, at: Tensor, keys_at: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    return encoding.bias(at, keys_at, q=torch.zeros(1, encoding.heads, len(at), 2, dtype=dtype), dtype=dtype)[0]


@given(
    seed=st.integers(0, 10_000),
    width=st.integers(1, 40),
    rate=st.floats(0.01, 5),
    length=st.floats(1, 600),
    places=st.lists(st.floats(0, 3000), min_size=1, max_size=6),
)
def test_straight_pieces_give_what_the_network_gives(
    seed: int, width: int, rate: float, length: float, places: list[float]
) -> None:
    torch.manual_seed(seed)
    encoding = Fire(3, width=width, rate=rate, length=length).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += torch.randn_like(parameter)
    m, n = torch.tensor(places, dtype=torch.float64), torch.tensor([0.0, 1.5, *places], dtype=torch.float64)
    torch.testing.assert_close(bias(encoding, m, n), formula(encoding, m, n), rtol=1e-11, atol=1e-11)
    actual = [encoding.formula_logit([0.0], [0.0], a, 1.5, 1, 1.0) for a in places]
    torch.testing.assert_close(torch.tensor(actual).double(), formula(encoding, m, n)[1, :, 1], rtol=1e-6, atol=1e-6)


def test_gradients_are_those_of_the_network() -> None:
    encoding = Fire(3, width=7, length=10.0).double()
    m, n = torch.arange(30), torch.arange(25)
    upstream = torch.randn(3, 30, 25, dtype=torch.float64)
    grads = torch.autograd.grad((bias(encoding, m, n) * upstream).sum(), list(encoding.parameters()))
    expected_grads = torch.autograd.grad((formula(encoding, m, n) * upstream).sum(), list(encoding.parameters()))
    for actual, expected in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_neurons_without_a_slope_are_constants() -> None:
    encoding = Fire(2, width=4).double()
    with torch.no_grad():
        encoding.hidden.weight[:, 0] = torch.tensor([0.0, -0.0, 0.0, 1.0])
        encoding.hidden.bias.copy_(torch.tensor([1.0, 2.0, -1.0, 0.0]))
    m = torch.arange(9)
    torch.testing.assert_close(bias(encoding, m, m), formula(encoding, m, m), rtol=1e-12, atol=1e-12)


def by_hand(**options: float) -> Fire:
    """Return FIRE with one identity neuron, so that the bias is the quotient itself."""
    encoding = Fire(1, width=1, **options).double()
    with torch.no_grad():
        encoding.hidden.weight.fill_(1.0)
        encoding.out.weight.fill_(1.0)
        encoding.hidden.bias.zero_()
        encoding.out.bias.zero_()
    return encoding


def test_the_defaults_are_the_papers() -> None:
    encoding = Fire(12)
    assert (encoding.width, encoding.rate, encoding.length, encoding.eps) == (32, 0.1, 512.0, 1e-6)
    assert encoding.c.item() == pytest.approx(0.1) and encoding.multiplier.item() == 1
    # literature.md: about 32 (H + 2) + 2 parameters, plus the last layer's biases.
    assert sum(p.numel() for p in encoding.parameters()) == 32 * (12 + 2) + 2 + 12
    share = bias(by_hand(), torch.tensor([100, 2000]), torch.tensor([90, 0]))[0]
    expected = [
        [math.log(2) / (math.log(52.2) + 1e-6), math.log(11) / (math.log(52.2) + 1e-6)],
        [math.log(192) / (math.log(201) + 1e-6), math.log(201) / (math.log(201) + 1e-6)],
    ]
    torch.testing.assert_close(share, torch.tensor(expected).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("multiplier", [1.0, -1.5, 0.5])
def test_before_the_length_it_is_a_function_of_the_distance_and_the_same(multiplier: float) -> None:
    encoding = Fire(3, width=9, rate=0.7, length=16.0).double()
    with torch.no_grad():
        encoding.multiplier.fill_(multiplier)
        encoding.hidden.weight.add_(torch.randn_like(encoding.hidden.weight))
    length = int(16 * abs(multiplier))
    for tokens, start, way in [
        (length, 0, ByDistance),
        (1, length - 1, ByDistance),
        (length + 1, 0, Pieces),
        (1, length, Pieces),
    ]:
        at, keys_at = Positions.count(tokens, start), Positions.count(30)
        q, k = torch.zeros(2, 3, tokens, 4).double(), torch.zeros(2, 3, 30, 4).double()
        (bias,) = encoding.biases(q, at, Keys(k, k, keys_at))
        assert type(bias) is way
        exact = formula(encoding, at.coords[0, :, 0], keys_at.coords[0, :, 0])
        upstream = torch.randn(2, 3, tokens, 30).double()
        expected_grads = torch.autograd.grad((exact * upstream).sum(), list(encoding.parameters()))
        forms = [bias] if way is Pieces else [bias, bias.pairs(q, Keys(k, k, keys_at))]
        for form in forms:
            actual = form.dense(torch.float64).expand(2, -1, -1, -1)
            torch.testing.assert_close(actual, exact.expand(2, -1, -1, -1), rtol=1e-11, atol=1e-11)
            grads = torch.autograd.grad((actual * upstream).sum(), list(encoding.parameters()))
            for grad, expected in zip(grads, expected_grads, strict=True):
                torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-9)


def test_where_queries_stand_is_known_of_padding_and_documents_too() -> None:
    encoding = Fire(2, length=6.0)
    q = torch.zeros(2, 2, 6, 4)
    for at, way in [
        (Positions.padded(torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])), ByDistance),
        (Positions.packed([2, 4]), ByDistance),
        (Positions.of(torch.tensor([0.0, 1.5, 2.0, 3.0, 4.0, 5.0])), Pieces),
    ]:
        (bias,) = encoding.biases(q, at, Keys(q, q, at))
        assert type(bias) is way
        for row in range(at.coords.shape[0]):
            coords = at.coords[row, :, 0]
            actual = bias.dense(torch.float64).expand(2, -1, -1, -1)[row]
            torch.testing.assert_close(actual, formula(encoding, coords, coords), rtol=1e-5, atol=1e-6)


def test_rows_that_share_positions_share_the_bias_and_others_do_not() -> None:
    encoding, q = Fire(3).double(), torch.zeros(4, 3, 5, 2, dtype=torch.float64)
    at = Positions.count(5)
    modify = encoding.biases(q, at, Keys(q, q, at))[0].closure()
    b, h, i, j = (torch.arange(n) for n in (4, 3, 5, 5))
    zero = torch.zeros((), dtype=torch.float64)
    assert modify(zero, b[:, None, None, None], h[:, None, None], i[:, None], j).shape == (3, 5, 5)
    rows = Positions.of(torch.stack([torch.arange(5) * k for k in range(1, 5)]))
    whole = encoding.bias(rows, q=q)
    for row in range(4):
        torch.testing.assert_close(whole[row], formula(encoding, rows.coords[row, :, 0], rows.coords[row, :, 0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_queries_of_any_dtype_get_the_same_bias(dtype: torch.dtype) -> None:
    encoding, m = Fire(3), torch.arange(50)
    actual = bias(encoding, m, m, dtype)
    assert actual.dtype == dtype
    exact = formula(encoding, m, m).to(dtype)
    torch.testing.assert_close(actual, exact, rtol=0.01 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


def test_memory_does_not_grow_with_the_width() -> None:
    sizes = []
    encoding, q = Fire(2, width=64, length=100.0), torch.zeros(1, 2, 150, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        encoding.bias(150, q=q)
    assert max(sizes) == 2 * 150 * 150


def test_every_layer_has_its_own_unless_shared() -> None:
    shape = Shape(12, 3, 4, 21)
    assert len(build_layers("fire", shape, 3)[0]) == 3
    assert len(build_layers("fire(shared=True)", shape, 3)[0]) == 1
