"""Log-spaced continuous position bias agrees with the published equations."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import Shape
from posenc.catalogue import build_layers
from posenc.encodings.distance_biases.log_grid_bias import LogGridBias


def published_bias(encoding: LogGridBias, delta: Tensor) -> Tensor:
    """Return the float64 bias [..., H] from distances [..., A]."""
    x = delta.double() / (encoding.window - 1) * 8
    x = torch.sign(x) * torch.log2(x.abs() + 1) / math.log2(8)
    hidden = torch.relu(x @ encoding.hidden.weight.double().T + encoding.hidden.bias.double())
    return 16 / (1 + torch.exp(-(hidden @ encoding.out.weight.double().T)))


@given(
    seed=st.integers(0, 10_000),
    window=st.integers(2, 30),
    axes=st.integers(1, 3),
    width=st.integers(1, 40),
    whole=st.booleans(),
)
def test_the_bias_is_the_networks(seed: int, window: int, axes: int, width: int, whole: bool) -> None:
    torch.manual_seed(seed)
    encoding = LogGridBias(3, window=window, axes=axes, width=width).double()
    m, n = torch.rand(1, 4, axes, dtype=torch.float64) * 60, torch.rand(1, 5, axes, dtype=torch.float64) * 60
    m, n = (m.round().long(), n.round().long()) if whole else (m, n)
    expected = published_bias(encoding, m[0, :, None] - n[0]).permute(2, 0, 1)
    torch.testing.assert_close(encoding.bias(m, n, dtype=torch.float64)[0], expected, rtol=1e-12, atol=1e-12)
    query_place, key_place = (tuple(p) if axes > 1 else p[0] for p in (m[0, 3].tolist(), n[0, 2].tolist()))
    actual = encoding.formula_logit([0.0], [0.0], query_place, key_place, 1, 1.0)
    assert actual == pytest.approx(expected[1, 3, 2].item(), rel=1e-11)


def passing_on() -> LogGridBias:
    """Return an encoding whose single neuron outputs the positive part of the first coordinate."""
    encoding = LogGridBias(1, window=8, width=1).double()
    with torch.no_grad():
        encoding.hidden.weight.copy_(torch.tensor([[1.0, 0.0]]))
        encoding.hidden.bias.zero_()
        encoding.out.weight.fill_(1.0)
    return encoding


def test_the_windows_edge_is_at_a_third_of_log_two_of_nine() -> None:
    delta = torch.tensor([[7, 0], [0, 7], [-7, 0], [56, 0]])
    x = torch.tensor([math.log2(9) / 3, 0.0, 0.0, math.log2(65) / 3], dtype=torch.float64)
    assert [round(v, 2) for v in x.tolist()] == [1.06, 0.0, 0.0, 2.01]
    torch.testing.assert_close(passing_on().by_distance(delta)[0], 16 * torch.sigmoid(x), rtol=1e-12, atol=0)


def test_the_last_layer_has_no_bias_and_every_layer_its_own_network() -> None:
    assert {name: tuple(p.shape) for name, p in LogGridBias(3).named_parameters()} == {
        "hidden.weight": (512, 2),
        "hidden.bias": (512,),
        "out.weight": (3, 512),
    }
    assert len(build_layers("log_grid_bias(width=4)", Shape(12, 3, 4, 21), 2)[0]) == 2


def test_distances_are_exact_in_half_precision() -> None:
    encoding = LogGridBias(2).bfloat16()
    values = encoding.by_distance(torch.tensor([[300, 0], [301, 0]]))
    assert values.dtype == torch.float32 and (values[:, 0] != values[:, 1]).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert encoding.by_distance(torch.tensor([[300, 0], [301, 0]])).equal(values)
