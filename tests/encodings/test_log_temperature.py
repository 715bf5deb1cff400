"""Log-n temperature agrees with exact logarithms."""

import math

import mpmath
import pytest
import torch

from posenc import Positions
from posenc.encodings.temperatures.log_temperature import LogTemperature


def factors(encoding: LogTemperature, at: Positions, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return the query factors [B, T] at these positions."""
    queries = torch.ones(at.order.shape[0], 2, at.tokens, 4, dtype=dtype)
    scaled_q = encoding.query(queries, at)
    assert scaled_q.dtype == dtype and scaled_q[..., :1].equal(scaled_q[..., 1:2])
    return scaled_q[:, 0, :, 0]


def test_it_is_the_logarithm_of_the_tokens_seen_over_that_of_the_trained_length() -> None:
    at = Positions.of(torch.tensor([0, 1, 31, 1023, 4095, 1_048_575, 10**12]))
    actual = factors(LogTemperature(1024), at)[0].tolist()
    with mpmath.workdps(40):
        expected = [float(mpmath.log(p + 1) / mpmath.log(1024)) for p in at.coords[0, :, 0].tolist()]
    assert actual == pytest.approx(expected, rel=1e-15)
    assert actual[:6] == pytest.approx([0, 0.1, 0.5, 1, 1.2, 2])


def test_with_a_floor_of_one_the_trained_length_is_left_as_it_was() -> None:
    # Su's form: q log(n)/log(L), clamped to at least 1 (ReRoPE).
    actual = factors(LogTemperature(512, least=1.0), Positions.count(2048))[0]
    assert (actual[:512] == 1).all() and (actual[512:] > 1).all() and (actual.diff() >= 0).all()
    assert actual[2047].item() == pytest.approx(11 / 9)


def test_fractional_and_negative_positions_have_a_temperature() -> None:
    at = Positions.of(torch.tensor([-5.0, -0.5, 0.0, 0.5, 2.75], dtype=torch.float64))
    expected = [math.log(n) / math.log(16) for n in (1, 1, 1, 1.5, 3.75)]
    assert factors(LogTemperature(16), at)[0].tolist() == pytest.approx(expected)
    assert [LogTemperature(16).temperature(p) for p in at.coords[0, :, 0].tolist()] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_query_is_rounded_once(dtype: torch.dtype) -> None:
    at, q = Positions.count(300), torch.randn(1, 2, 300, 4).to(dtype)
    exact = q.double() * factors(LogTemperature(64), at)[:, None, :, None]
    assert LogTemperature(64).query(q, at).equal(exact.float().to(dtype))


def test_logits_are_multiplied_and_keys_are_not() -> None:
    encoding = LogTemperature(8)
    assert encoding.formula_logit([1.0, 2.0], [3.0, 1.0], 63, 5, 0, 0.1) == pytest.approx(0.5 * 2)
    assert encoding.formula_query([1.0, 2.0], 63) == pytest.approx([2.0, 4.0])
    k = torch.randn(1, 1, 4, 4)
    assert encoding.key(k, Positions.count(4)).equal(k)
