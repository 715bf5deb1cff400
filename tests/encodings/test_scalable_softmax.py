"""Scalable softmax agrees with a softmax to the base n^s."""

import math

import pytest
import torch

from posenc import Attention, Decoder, Positions, masks
from posenc.encodings.temperatures.scalable_softmax import ScalableSoftmax


@pytest.mark.parametrize("constant", [False, True])
def test_the_base_of_the_softmax_is_a_power_of_the_number_of_tokens(constant: bool) -> None:
    attention = Attention(12, 3, encoding=ScalableSoftmax(3, constant=constant)).double()
    encoding = attention.encoding
    assert isinstance(encoding, ScalableSoftmax)
    torch.nn.init.normal_(encoding.strength)
    if encoding.offset is not None:
        torch.nn.init.normal_(encoding.offset)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    _, weights = attention(x, mask=masks.causal(), need_weights=True)
    q, k = (attention.split(project(x), 3).detach() for project in (attention.q_proj, attention.k_proj))
    for h in range(3):
        s = encoding.strength[h].item()
        b = encoding.offset[h].item() if encoding.offset is not None else 0.0
        for t in range(7):
            z = [float(q[1, h, t] @ k[1, h, j]) / 2 for j in range(t + 1)]
            powers = [(t + 1) ** (s * a) * math.exp(b * a) for a in z]
            assert weights[1, h, t, : t + 1].tolist() == pytest.approx([p / sum(powers) for p in powers], rel=1e-9)


def test_one_large_logit_keeps_its_weight_however_many_small_ones_come() -> None:
    # The paper's first figure: one logit of 3 among -2, with s = 0.43. The softmax fades, the scalable one does not.
    for n in (10, 1000, 100_000):
        factor = ScalableSoftmax(1).query(torch.ones(1, 1, 1, 1).double(), Positions.count(1, n - 1)).item()
        assert factor == pytest.approx(0.43 * math.log(n), rel=1e-6)
        logits = torch.full((n,), -2.0, dtype=torch.float64)
        logits[-1] = 3
        plain, sharp = logits.softmax(0)[-1].item(), (factor * logits).softmax(0)[-1].item()
        assert sharp > 0.92 and plain == pytest.approx(1 / (1 + (n - 1) * math.exp(-5)))
    assert plain < 0.002 and sharp > 0.999


def test_each_head_has_its_own_factor_and_starts_at_the_given_one() -> None:
    encoding = ScalableSoftmax(3, start=0.2)
    with torch.no_grad():
        encoding.strength += torch.arange(3)
    actual = encoding.query(torch.ones(1, 3, 1, 2), Positions.count(1, 19))[0, :, 0, 0]
    torch.testing.assert_close(actual, math.log(20) * torch.tensor([0.2, 1.2, 2.2]))
    assert [p.numel() for p in ScalableSoftmax(3, constant=True).parameters()] == [3, 3]
    model = Decoder(vocab=5, dim=12, heads=3, layers=2, encoding="rotary + scalable_softmax")
    assert [tuple(p.shape) for name, p in model.named_parameters() if "strength" in name] == [(3,)] * 2


def test_the_first_query_is_left_with_the_constant_alone() -> None:
    encoding = ScalableSoftmax(1, constant=True)
    torch.nn.init.constant_(encoding.get_parameter("offset"), 0.75)
    at = Positions.of(torch.tensor([-3.0, 0.0, 0.5]))
    actual = encoding.query(torch.ones(1, 1, 3, 1), at)[0, 0, :, 0].tolist()
    assert actual == pytest.approx([0.75, 0.75, 0.75 + 0.43 * math.log(1.5)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_query_is_rounded_once(dtype: torch.dtype) -> None:
    encoding, at, q = ScalableSoftmax(2).to(dtype), Positions.count(300), torch.randn(1, 2, 300, 4).to(dtype)
    factor = encoding.strength.float()[:, None, None] * torch.arange(1, 301).double().log().float()[:, None]
    assert encoding.query(q, at).equal((q * factor).to(dtype))


def test_the_formula_multiplies_the_logit_of_a_head() -> None:
    encoding = ScalableSoftmax(2, start=2.0)
    assert encoding.formula_logit([1.0, 2.0], [3.0, 1.0], 7, 5, 1, 0.1) == pytest.approx(0.5 * 2 * math.log(8))
    assert encoding.formula_query([1.0], 7, 1) == pytest.approx([2 * math.log(8)])
