"""Dynamic position bias, against the network written out."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from posenc import Positions, Shape
from posenc.catalogue import build_layers
from posenc.encodings.mlp_bias import MLPBias


def published(encoding: MLPBias, delta: Tensor) -> Tensor:
    """[..., H] from distances [..., A], in float64, by torch's own layers."""
    x = delta.double()
    if encoding.log:
        x = torch.sign(x) * torch.log(x.abs() + 1)
    steps: list[nn.Module] = []
    for layer in encoding.layers:
        steps += [layer, nn.SiLU()]
    return nn.Sequential(*steps[:-1])(x)


@given(
    seed=st.integers(0, 10_000),
    depth=st.integers(1, 4),
    width=st.integers(1, 12),
    axes=st.integers(1, 3),
    log=st.booleans(),
    whole=st.booleans(),
)
def test_the_bias_is_the_networks(seed: int, depth: int, width: int, axes: int, log: bool, whole: bool) -> None:
    torch.manual_seed(seed)
    encoding = MLPBias(3, width=width, depth=depth, log=log, axes=axes).double()
    m, n = torch.rand(1, 4, axes, dtype=torch.float64) * 60, torch.rand(1, 5, axes, dtype=torch.float64) * 60
    m, n = (m.round().long(), n.round().long()) if whole else (m, n)
    expected = published(encoding, m[0, :, None] - n[0]).permute(2, 0, 1)
    torch.testing.assert_close(encoding.bias(m, n, dtype=torch.float64)[0], expected, rtol=1e-11, atol=1e-11)
    one, other = (tuple(p) if axes > 1 else p[0] for p in (m[0, 3].tolist(), n[0, 2].tolist()))
    got = encoding.formula_logit([0.0], [0.0], one, other, 1, 1.0)
    assert got == pytest.approx(expected[1, 3, 2].item(), rel=1e-9, abs=1e-10)


def test_keys_before_and_after_the_query_are_told_apart() -> None:
    bias = MLPBias(2).bias(5)[0, 0]
    assert bias[2, 1] != bias[2, 3] and bias[2, 1] == bias[3, 2]


def test_tokens_in_a_row_need_only_their_distances() -> None:
    asked = []

    class Counting(MLPBias):
        def by_distance(self, delta: Tensor) -> Tensor:
            asked.append(delta.numel())
            return super().by_distance(delta)

    Counting(2).bias(30)
    assert asked == [59]


def test_distances_are_exact_in_half_precision() -> None:
    encoding = MLPBias(2, log=True).bfloat16()
    far = encoding.by_distance(torch.tensor([5000, 5001]))
    assert far.dtype == torch.float32 and (far[:, 0] != far[:, 1]).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert encoding.by_distance(torch.tensor([5000, 5001])).equal(far)


def test_every_layer_has_a_network_of_its_own() -> None:
    owned, _ = build_layers("mlp_bias(width=4)", Shape(12, 3, 4, 21), 2)
    assert [sum(p.numel() for p in encoding.parameters()) for encoding in owned] == [8 + 20 + 15] * 2


def test_the_bias_is_added_after_the_scaling() -> None:
    encoding, q = MLPBias(2), [1.0, 2.0]
    bias = encoding.bias(torch.tensor([7]), torch.tensor([3])).flatten()
    assert encoding.formula_logit(q, q, 7, 3, 1, 0.1) == pytest.approx(0.5 + bias[1].item(), abs=1e-5)


def test_a_sigmoid_of_a_very_low_number_does_not_overflow() -> None:
    encoding = MLPBias(1, width=1, depth=1).double()
    with torch.no_grad():
        encoding.layers[0].weight.fill_(-1.0)
    assert math.isfinite(encoding.formula_logit([0.0], [0.0], 1e6, 0.0, 0, 1.0))


def test_positions_of_another_number_of_axes_are_refused() -> None:
    with pytest.raises(ValueError, match="reads 2 axes, got positions with 1 axis"):
        MLPBias(2, axes=2).bias(5)
    with pytest.raises(ValueError, match="reads one axis, got positions with 2 axes"):
        MLPBias(2).bias(Positions.grid(2, 2))


@pytest.mark.parametrize("option", ["heads", "width", "depth", "axes"])
def test_impossible_options_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be 1 or more, got 0"):
        MLPBias(**{"heads": 2} | {option: 0})


def test_a_network_of_a_million_layers_is_refused_before_one_is_made() -> None:
    with pytest.raises(ValueError, match="depth must be at most 100, got 1000003"):
        MLPBias(4, depth=1_000_003)
