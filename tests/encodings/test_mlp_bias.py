"""Dynamic position bias agrees with a reference network."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from posenc.encodings.distance_biases.mlp_bias import MLPBias


def published_bias(encoding: MLPBias, delta: Tensor) -> Tensor:
    """Return the float64 bias [..., H] from distances [..., A], by torch's own layers."""
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
    expected = published_bias(encoding, m[0, :, None] - n[0]).permute(2, 0, 1)
    torch.testing.assert_close(encoding.bias(m, n, dtype=torch.float64)[0], expected, rtol=1e-11, atol=1e-11)
    query_place, key_place = (tuple(p) if axes > 1 else p[0] for p in (m[0, 3].tolist(), n[0, 2].tolist()))
    actual = encoding.formula_logit([0.0], [0.0], query_place, key_place, 1, 1.0)
    assert actual == pytest.approx(expected[1, 3, 2].item(), rel=1e-9, abs=1e-10)


def test_distances_are_exact_in_half_precision() -> None:
    encoding = MLPBias(2, log=True).bfloat16()
    far = encoding.by_distance(torch.tensor([5000, 5001]))
    assert far.dtype == torch.float32 and (far[:, 0] != far[:, 1]).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert encoding.by_distance(torch.tensor([5000, 5001])).equal(far)


def test_a_sigmoid_of_a_very_low_number_does_not_overflow() -> None:
    encoding = MLPBias(1, width=1, depth=1).double()
    with torch.no_grad():
        encoding.layers[0].weight.fill_(-1.0)
    assert math.isfinite(encoding.formula_logit([0.0], [0.0], 1e6, 0.0, 0, 1.0))
