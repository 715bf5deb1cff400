"""xPos agrees with the published formula, and with other libraries' moving centre."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiers import in_one_graph

from posenc import Positions
from posenc.encodings.rotations.rotary import Rotary
from posenc.encodings.rotations.xpos import XPos


def published_logit(
    q: list[float], k: list[float], m: float, n: float, base: float, gamma: float, scale_base: float
) -> float:
    """Return the logit in 40 digits. Pairs (2k, 2k + 1) add zeta^((m - n)/scale_base) Re[q conj(k) e^{i (m - n) f}]."""
    with mpmath.workdps(40):
        d, total = len(q), mpmath.mpf(0)
        apart = mpmath.mpf(m) - mpmath.mpf(n)
        for pair in range(d // 2):
            zeta = (mpmath.mpf(2 * pair) / d + mpmath.mpf(gamma)) / (1 + mpmath.mpf(gamma))
            angle = apart / mpmath.mpf(base) ** (mpmath.mpf(2 * pair) / d)
            product = mpmath.mpc(q[2 * pair], q[2 * pair + 1]) * mpmath.mpc(k[2 * pair], -k[2 * pair + 1])
            total += zeta ** (apart / mpmath.mpf(scale_base)) * (product * mpmath.expj(angle)).real
        return float(total)


def logits(encoding: XPos, q: torch.Tensor, k: torch.Tensor, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    q, k = encoding.query(q, Positions.of(m)), encoding.key(k, Positions.of(n))
    return q @ k.transpose(-1, -2)


@given(
    st.sampled_from([2, 6, 8]),
    st.floats(2, 1e6),
    st.floats(0.05, 3),
    st.floats(50, 2000),
    st.floats(-30, 30),
    st.floats(-3000, 3000),
    st.floats(-3000, 3000),
)
def test_logits_are_the_published_ones(
    d: int, base: float, gamma: float, scale_base: float, centre: float, m: float, n: float
) -> None:
    encoding = XPos(d, base=base, layout="interleaved", scale_base=scale_base, gamma=gamma, centre=centre)
    q, k = (torch.randn(1, 1, 1, d, dtype=torch.float64) for _ in range(2))
    actual = logits(encoding, q, k, *(torch.tensor([p], dtype=torch.float64) for p in (m, n))).item()
    expected = published_logit(q.flatten().tolist(), k.flatten().tolist(), m, n, base, gamma, scale_base)
    # float64 represents an angle of 3,000 radians, and an exponent of a few dozen, to 1e-12.
    growth = max(1.0, (gamma / (1 + gamma)) ** ((m - n) / scale_base))
    assert actual == pytest.approx(expected, abs=1e-10 * growth * d)
    formula = encoding.formula_logit(q.flatten().tolist(), k.flatten().tolist(), m, n, 0, 1.0)
    assert formula == pytest.approx(expected, abs=1e-10 * growth * d)


def test_the_factors_are_those_of_the_released_code() -> None:
    assert XPos(8).zetas == pytest.approx([(2 * k / 8 + 0.4) / 1.4 for k in range(4)], abs=0)
    assert XPos(64).zetas[0] == pytest.approx(2 / 7)
    assert XPos(64).zetas == sorted(XPos(64).zetas)


def test_a_distance_of_scale_base_costs_each_pair_its_factor() -> None:
    encoding = XPos(8, layout="interleaved")
    query, key = torch.zeros(2, 1, 1, 1, 8, dtype=torch.float64)
    for pair, zeta in enumerate(encoding.zetas):
        query.zero_()[..., 2 * pair] = 1
        key.zero_()[..., 2 * pair] = 1
        actual = logits(encoding, query, key, torch.tensor([512]), torch.tensor([0])).item()
        assert actual == pytest.approx(zeta * math.cos(512 * encoding.frequencies[pair].item()))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_without_decay_it_is_rotary(layout: str) -> None:
    q, k = (torch.randn(2, 3, 9, 8, dtype=torch.float64) for _ in range(2))
    rotated = XPos(8, layout=layout, scale_base=1e15)(q, k)
    for actual, expected in zip(rotated, Rotary(8, layout=layout)(q, k), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_the_centre_changes_no_logit() -> None:
    q, k = (torch.randn(1, 2, 40, 8, dtype=torch.float64) for _ in range(2))
    at = torch.arange(40)
    expected = logits(XPos(8), q, k, at, at)
    for centre in (20.0, -500.0, 2000.5):
        torch.testing.assert_close(logits(XPos(8, centre=centre), q, k, at, at), expected, rtol=0, atol=1e-9)


def test_keys_ahead_grow_with_their_distance() -> None:
    vector = torch.zeros(1, 1, 1, 2, dtype=torch.float64)
    vector[..., 0] = 1
    # A head of two channels has only the fastest pair; after a whole number of turns its cosine is one.
    ahead = torch.tensor([2 * math.pi * 652], dtype=torch.float64)
    assert ahead.item() == pytest.approx(4096.6, abs=0.1)
    actual = logits(XPos(2), vector, vector, torch.tensor([0]), ahead).item()
    assert actual == pytest.approx(math.exp(1.252763 * ahead.item() / 512), rel=1e-5)
    assert actual == pytest.approx(22_500, rel=0.01)


REACH = {torch.float32: 33_994, torch.bfloat16: 33_994, torch.float16: 2_266, torch.float64: 287_819}


@pytest.mark.parametrize("dtype", REACH)
def test_positions_whose_sizes_leave_the_dtype_are_refused(dtype: torch.dtype) -> None:
    encoding, edge = XPos(4), REACH[dtype]
    assert math.floor(encoding.reach(dtype)) == edge
    x = torch.full((1, 1, 1, 4), 10.0, dtype=dtype)
    for last in (
        Positions.count(1, edge),
        Positions.of(torch.tensor([edge])),
        Positions.of(torch.tensor([-1.0 * edge])),
    ):
        for side in (encoding.query, encoding.key):
            assert side(x, last).isfinite().all() and side(x, last).any()
    past = rf"position -?{edge + 1:g} is more than {edge:,} positions from the centre .*{dtype}"
    for at in (
        Positions.count(1, edge + 1),
        Positions.of(torch.tensor([edge + 1])),
        Positions.of(torch.tensor([-1.0 - edge], dtype=torch.float64)),
    ):
        with pytest.raises(ValueError, match=past.replace("+", r"\+")):
            encoding.query(x, at)


def test_a_centre_between_the_positions_makes_room() -> None:
    x = torch.randn(1, 1, 2, 4)
    with pytest.raises(
        ValueError, match="move the centre between the positions, raise scale_base, or use a wider dtype"
    ):
        XPos(4).key(x, Positions.of(torch.tensor([0, 60_000])))
    at = Positions.of(torch.tensor([0, 60_000]))
    assert XPos(4, centre=30_000.0).key(x, at).isfinite().all()
    assert XPos(4, scale_base=1024.0).key(x, at).isfinite().all()


def test_counted_positions_far_below_the_centre_are_looked_at() -> None:
    with pytest.raises(ValueError, match="position 0 is more than 2,266 positions from the centre"):
        XPos(4, centre=2300.0).key(torch.zeros(1, 1, 3, 4).half(), Positions.count(3))


@in_one_graph
def test_inside_a_graph_positions_out_of_reach_come_out_as_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    out = XPos(4).key(torch.ones(1, 1, 2, 4), Positions.of(torch.tensor([5, 40_000])))
    assert out[0, 0, 0].isfinite().all() and out[0, 0, 1].isnan().all()


def test_half_precision_is_near_double_where_it_is_served() -> None:
    for dtype, places in ((torch.bfloat16, [0, 700, 5008, 30_000]), (torch.float16, [0, 3, 700, 2000])):
        q, k = (torch.randn(1, 2, len(places), 8).to(dtype) for _ in range(2))
        at = torch.tensor(places)
        encoding = XPos(8)
        for side, x in ((encoding.query, q), (encoding.key, k)):
            actual, exact = side(x, Positions.of(at)).double(), side(x.double(), Positions.of(at))
            # The pair's norm is compared, because a single channel may be arbitrarily close to zero.
            size = exact.abs().amax((0, 1), keepdim=True)
            assert ((actual - exact).abs() <= 2 * torch.finfo(dtype).eps * size).all()


def test_the_gap_in_half_precision_is_declared_where_it_is() -> None:
    assert "float16 holds the sizes for 2,266 positions" in XPos(8).gaps["half_precision_stays_near_double"]
    assert XPos(8, scale_base=4096.0).gaps == {}
