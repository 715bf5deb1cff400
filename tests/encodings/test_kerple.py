"""KERPLE agrees with mpmath and the authors' released code."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import Positions
from posenc.encodings.distance_biases.kerple import Kerple

ZERO = [0.0]


def with_values(kind: str, r1: list[float], r2: list[float], **options) -> Kerple:
    encoding = Kerple(len(r1), kind=kind, **options).double()
    with torch.no_grad():
        encoding.r1.copy_(torch.tensor(r1, dtype=torch.float64))
        encoding.r2.copy_(torch.tensor(r2, dtype=torch.float64))
    return encoding


def exact(kind: str, r1: float, r2: float, distance: float) -> float:
    """Return the kernel in 40 digits, with parameters clamped as in the released code."""
    with mpmath.workdps(40):
        a, b, d = (mpmath.mpf(x) for x in (max(r1, 0.01), max(r2, 0.01), distance))
        if kind == "log":
            return float(-a * mpmath.log(1 + b * d))
        return float(-a * d ** min(b, 2)) if distance else 0.0


@given(
    kind=st.sampled_from(["log", "power"]),
    r1=st.floats(-1, 4),
    r2=st.floats(-1, 3),
    m=st.floats(0, 5000),
    n=st.floats(0, 5000),
)
def test_the_bias_is_the_kernel_of_the_distance(kind: str, r1: float, r2: float, m: float, n: float) -> None:
    encoding = with_values(kind, [1.0, r1], [0.5, r2])
    places = [torch.tensor([p], dtype=torch.float64) for p in (m, n)]
    expected = exact(kind, r1, r2, abs(m - n))
    assert encoding.bias(*places, dtype=torch.float64)[0, 1].item() == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert encoding.formula_logit(ZERO, ZERO, m, n, 1, 1.0) == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_pinned_values() -> None:
    delta = torch.tensor([0, 1, 7, 1000, -7])
    log = with_values("log", [2.0], [1.0]).by_distance(delta)[0].tolist()
    assert log == pytest.approx([0, -2 * math.log(2), -6 * math.log(2), -2 * math.log(1001), -6 * math.log(2)])
    power = with_values("power", [0.5], [2.0]).by_distance(delta)[0].tolist()
    assert power == pytest.approx([0, -0.5, -24.5, -500_000, -24.5])


@pytest.mark.parametrize(("kind", "tops"), [("log", (2.0, 1.0)), ("power", (1.0, 2.0))])
def test_values_start_uniform_as_in_the_released_code(kind: str, tops: tuple[float, float]) -> None:
    torch.manual_seed(0)
    encoding = Kerple(20_000, kind=kind)
    for values, top in zip((encoding.r1, encoding.r2), tops, strict=True):
        assert 0 <= values.min() and values.max() <= top
        assert values.mean().item() == pytest.approx(top / 2, rel=0.03)
        assert values.std().item() == pytest.approx(top / 12**0.5, rel=0.03)


@pytest.mark.parametrize("kind", ["log", "power"])
def test_values_are_held_at_a_hundredth_and_can_come_back(kind: str) -> None:
    low, edge = with_values(kind, [-0.3], [-5.0]), with_values(kind, [0.01], [0.01])
    delta = torch.tensor([3])
    assert low.by_distance(delta).equal(edge.by_distance(delta))
    low.by_distance(delta).sum().backward()
    edge.by_distance(delta).sum().backward()
    for name in ("r1", "r2"):
        assert getattr(low, name).grad.equal(getattr(edge, name).grad) and getattr(low, name).grad.abs().item() > 0
    assert low.r1.item() == -0.3, "a forward pass moved the parameter"


@pytest.mark.parametrize("kind", ["log", "power"])
def test_the_gradient_at_no_distance_is_finite(kind: str) -> None:
    encoding = Kerple(3, kind=kind)
    encoding.bias(4).sum().backward()
    assert encoding.r1.grad.isfinite().all() and encoding.r2.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["log", "power"])
def test_the_released_code_adds_after_the_scaling_and_the_paper_divides_too(kind: str) -> None:
    q = [1.0, 2.0]
    released_code = with_values(kind, [0.7], [0.4])
    paper = with_values(kind, [0.7], [0.4], form="paper", head_dim=25)
    torch.testing.assert_close(paper.bias(9), released_code.bias(9) / 5)
    bias = exact(kind, 0.7, 0.4, 3.0)
    assert released_code.formula_logit(q, q, 5.0, 2.0, 0, 0.2) == pytest.approx(0.2 * 5 + bias)
    assert paper.formula_logit(q, q, 5.0, 2.0, 0, 0.2) == pytest.approx((5 + bias) / 5)


@pytest.mark.parametrize("kind", ["log", "power"])
def test_the_log_and_power_kernels_are_conditionally_positive_definite(kind: str) -> None:
    # On vectors that sum to zero the matrix has no negative eigenvalue.
    bias = (
        Kerple(4, kind=kind).double().bias(Positions.of(torch.rand(12, dtype=torch.float64) * 40), dtype=torch.float64)
    )
    centre = torch.eye(12, dtype=torch.float64) - 1 / 12
    assert torch.linalg.eigvalsh(centre @ bias[0] @ centre).min() > -1e-9
