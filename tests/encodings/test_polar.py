"""PoPE agrees with complex sums, and with the mean logit implied by its positive lengths."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import Attention, Keys, Positions, masks
from posenc.encodings.rotations.polar import Polar
from posenc.kernels import bind


def published_logit(q: list[float], k: list[float], m: float, n: float, base: float, delta: list[float]) -> float:
    """Return the logit in 30 digits. It is Re sum_c conj(softplus(q) e^{i m f}) softplus(k) e^{i (n f + delta)}."""
    with mpmath.workdps(30):
        d, total = len(q), mpmath.mpf(0)
        for c in range(d):
            frequency = mpmath.mpf(base) ** (-mpmath.mpf(c) / d)
            query = mpmath.log1p(mpmath.exp(q[c])) * mpmath.expj(mpmath.mpf(m) * frequency)
            key = mpmath.log1p(mpmath.exp(k[c])) * mpmath.expj(mpmath.mpf(n) * frequency + mpmath.mpf(delta[c]))
            total += (mpmath.conj(query) * key).real
        return float(total)


@given(
    st.integers(1, 9),
    st.floats(1.5, 1e6),
    st.floats(-3000, 3000),
    st.floats(-3000, 3000),
    st.sampled_from(["zero", "uniform", "none"]),
)
def test_logits_are_the_published_ones(d: int, base: float, m: float, n: float, phases: str) -> None:
    encoding = Polar(3, d, base=base, phases=phases).double()
    q, k = (3 * torch.randn(1, 3, 1, d, dtype=torch.float64) for _ in range(2))
    at, keys_at = (Positions.of(torch.tensor([p], dtype=torch.float64)) for p in (m, n))
    actual = (encoding.query(q, at) @ encoding.key(k, keys_at).transpose(-1, -2)).flatten().tolist()
    delta = torch.zeros(3, d) if encoding.delta is None else encoding.delta
    for head in range(3):
        query, key = q[0, head, 0].tolist(), k[0, head, 0].tolist()
        expected = published_logit(query, key, m, n, base, delta[head].tolist())
        assert actual[head] == pytest.approx(expected, abs=1e-10 * d)
        assert encoding.formula_logit(query, key, m, n, head, 1.0) == pytest.approx(expected, abs=1e-10 * d)


def test_there_is_a_frequency_for_each_channel() -> None:
    assert Polar(1, 4).frequencies.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])
    assert Polar(1, 4).wavelengths.tolist() == pytest.approx([2 * math.pi * 10**c for c in range(4)])


def test_queries_and_keys_become_twice_as_wide_and_values_do_not() -> None:
    layer = Attention(24, 3, kv_heads=1, encoding="polar")
    x = torch.randn(2, 5, 24)
    out, weights = layer(x, mask=masks.causal(), need_weights=True)
    assert out.shape == (2, 5, 24) and weights.shape == (2, 3, 5, 5)
    encoding = Polar(3, 8)
    at, v = Positions.count(5), torch.randn(2, 3, 5, 8)
    wide = encoding.query(v, at)
    assert wide.shape == (2, 3, 5, 16)
    outs = [
        bind(kernel, encoding, scale=1.0)(encoding, wide, at, Keys(wide, v, at), masks.causal())[0]
        for kernel in ("sdpa", "reference")
    ]
    assert outs[0].shape == (2, 3, 5, 8)
    torch.testing.assert_close(*outs, rtol=0, atol=1e-5)


def test_the_scale_is_that_of_the_head_as_projected() -> None:
    layer = Attention(16, 2, encoding="polar").double()
    x = torch.randn(1, 6, 16, dtype=torch.float64)
    _, weights = layer(x, mask=masks.causal(), need_weights=True)
    q, k = (layer.split(project(x), 2).tolist() for project in (layer.q_proj, layer.k_proj))
    for head in range(2):
        logits = [published_logit(q[0][head][5], k[0][head][j], 5, j, 1e4, [0.0] * 8) * 8**-0.5 for j in range(6)]
        expected = torch.tensor(logits, dtype=torch.float64).softmax(-1)
        torch.testing.assert_close(weights[0, head, 5], expected, rtol=0, atol=1e-12)


def test_a_shared_key_meets_the_phase_of_each_query_head() -> None:
    encoding = Polar(4, 6, phases="uniform").double()
    at = Positions.of(torch.tensor([3, 0, 7]))
    q, k = torch.randn(1, 4, 3, 6, dtype=torch.float64), torch.randn(1, 2, 3, 6, dtype=torch.float64)
    actual = encoding.query(q, at) @ encoding.key(k, at).repeat_interleave(2, 1).transpose(-1, -2)
    for head in range(4):
        for i, m in enumerate((3, 0, 7)):
            for j, n in enumerate((3, 0, 7)):
                query, key = q[0, head, i].tolist(), k[0, head // 2, j].tolist()
                expected = published_logit(query, key, m, n, 1e4, encoding.delta[head].tolist())
                assert actual[0, head, i, j].item() == pytest.approx(expected, abs=1e-12)


def test_phases_are_held_between_minus_one_turn_and_zero() -> None:
    q, k = torch.randn(2, 1, 1, 5, 4, dtype=torch.float64)
    edge, past_edge = Polar(1, 4).double(), Polar(1, 4).double()
    for bound, start in ((0.0, 1.3), (-2 * math.pi, -9.0)):
        with torch.no_grad():
            edge.delta.fill_(bound)
            past_edge.delta.fill_(start)
        torch.testing.assert_close(past_edge.query(q, Positions.count(5)), edge.query(q, Positions.count(5)))
        (slope,) = torch.autograd.grad(past_edge.query(q, Positions.count(5)).sum(), past_edge.delta)
        assert not slope.any()
        query, key = q[0, 0, 3].tolist(), k[0, 0, 1].tolist()
        assert past_edge.formula_logit(query, key, 3, 1, 0, 1.0) == edge.formula_logit(query, key, 3, 1, 0, 1.0)


def test_a_phase_at_the_edge_still_learns() -> None:
    encoding = Polar(1, 4)
    q, k = encoding(torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4))
    (q @ k.transpose(-1, -2)).square().sum().backward()
    assert (encoding.delta.grad != 0).all()


@pytest.mark.parametrize(("phases", "low", "high"), [("zero", 0.0, 0.0), ("uniform", -2 * math.pi, 0.0)])
def test_phases_begin_as_asked(phases: str, low: float, high: float) -> None:
    delta = Polar(8, 64, phases=phases).delta
    assert delta.shape == (8, 64) and delta.min() >= low and delta.max() <= high
    assert delta.mean().item() == pytest.approx((low + high) / 2, abs=0.3)


def test_without_phases_there_is_nothing_to_learn_and_layers_share() -> None:
    assert not list(Polar(2, 4, phases="none").parameters())
    assert Polar(2, 4).per_layer and not Polar(2, 4, phases="none").per_layer


def test_the_mean_logit_of_random_tokens_is_large_and_falls_with_distance() -> None:
    # The softplus of a standard normal has mean 0.806; the logit sums 64 products of two, over sqrt(64).
    points = [(-8 + 16 * (i + 0.5) / 4000) for i in range(4000)]
    mean = sum(math.log1p(math.exp(z)) * math.exp(-z * z / 2) for z in points) * (16 / 4000) / math.sqrt(2 * math.pi)
    assert mean == pytest.approx(0.806, abs=5e-4)
    encoding = Polar(1, 64, phases="none").double()
    q, k = torch.randn(2, 1, 1, 20_000, 64, dtype=torch.float64)
    at = Positions.of(torch.zeros(20_000, dtype=torch.long))
    queries = encoding.query(q, at)
    means = []
    for distance in (0, 10, 100, 1000):
        keys = encoding.key(k, Positions.of(torch.full((20_000,), distance)))
        means.append((queries * keys).sum(-1).mean().item() / 8)
    expected = [mean**2 * (encoding.frequencies * d).cos().sum().item() / 8 for d in (0, 10, 100, 1000)]
    assert means == pytest.approx(expected, abs=0.02)
    assert means[0] == pytest.approx(5.2, abs=0.05) and means == sorted(means, reverse=True)
