"""Log-n temperature, against exact logarithms."""

import math

import mpmath
import pytest
import torch

from posenc import Attention, Positions, masks
from posenc.encodings.log_temperature import LogTemperature


def factors(encoding: LogTemperature, at: Positions, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What the queries at these positions are multiplied by, [B, T]."""
    ones = torch.ones(at.order.shape[0], 2, at.tokens, 4, dtype=dtype)
    turned = encoding.query(ones, at)
    assert turned.dtype == dtype and turned[..., :1].equal(turned[..., 1:2])
    return turned[:, 0, :, 0]


def test_it_is_the_logarithm_of_the_tokens_seen_over_that_of_the_trained_length() -> None:
    at = Positions.of(torch.tensor([0, 1, 31, 1023, 4095, 1_048_575, 10**12]))
    got = factors(LogTemperature(1024), at)[0].tolist()
    with mpmath.workdps(40):
        expected = [float(mpmath.log(p + 1) / mpmath.log(1024)) for p in at.coords[0, :, 0].tolist()]
    assert got == pytest.approx(expected, rel=1e-15)
    assert got[:6] == pytest.approx([0, 0.1, 0.5, 1, 1.2, 2])


def test_with_a_floor_of_one_the_trained_length_is_left_as_it_was() -> None:
    # Su's form: q log(n)/log(L), nowhere below 1 (ReRoPE).
    got = factors(LogTemperature(512, least=1.0), Positions.count(2048))[0]
    assert (got[:512] == 1).all() and (got[512:] > 1).all() and (got.diff() >= 0).all()
    assert got[2047].item() == pytest.approx(11 / 9)


def test_fractional_and_negative_positions_have_a_temperature() -> None:
    at = Positions.of(torch.tensor([-5.0, -0.5, 0.0, 0.5, 2.75], dtype=torch.float64))
    expected = [math.log(n) / math.log(16) for n in (1, 1, 1, 1.5, 3.75)]
    assert factors(LogTemperature(16), at)[0].tolist() == pytest.approx(expected)
    assert [LogTemperature(16).temperature(p) for p in at.coords[0, :, 0].tolist()] == pytest.approx(expected)


def test_the_count_is_that_of_a_tokens_own_sequence() -> None:
    packed = factors(LogTemperature(16), Positions.packed([3, 4]))[0]
    alone = factors(LogTemperature(16), Positions.count(4))[0]
    assert packed.tolist() == [*alone[:3].tolist(), *alone.tolist()]
    padded = factors(LogTemperature(16), Positions.padded(torch.tensor([[0, 0, 1, 1, 1, 1]])))[0]
    assert padded[2:].tolist() == alone.tolist()


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


def test_beside_rotary_it_keeps_the_entropy_of_far_queries_in_range() -> None:
    torch.manual_seed(0)
    plain = Attention(32, 2, encoding="rotary", max_len=64)
    warmed = Attention(32, 2, encoding="rotary + log_temperature(least=1)", max_len=64)
    warmed.load_state_dict(plain.state_dict())
    x = 3 * torch.randn(1, 512, 32)
    (_, a), (_, b) = (layer(x, mask=masks.causal(), weights=True) for layer in (plain, warmed))
    entropy = [-(w.clamp(min=1e-30).log() * w).sum(-1).mean((0, 1)) for w in (a, b)]
    torch.testing.assert_close(entropy[0][:64], entropy[1][:64], rtol=0, atol=1e-5)
    assert entropy[1][64:].mean() < entropy[0][64:].mean()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trained_length": 1}, "trained_length must be 2 or more, since the logarithm of 1 is 0, got 1"),
        ({"trained_length": 8, "least": -0.1}, "least must be 0 or more, got -0.1"),
        ({"trained_length": 8, "least": math.nan}, "least must be 0 or more, got nan"),
    ],
)
def test_impossible_options_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LogTemperature(**options)
