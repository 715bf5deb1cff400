"""Fourier features agree with their formulas in 50 digits, in every coordinate frame."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc import Positions
from posenc.encodings.added.fourier_features import FourierFeatures


def bands_by_hand(kind: str, K: int, top: float) -> list:
    if K == 1:
        return [mpmath.mpf(1)]
    if kind == "linear":
        return [1 + mpmath.mpf(k) * (mpmath.mpf(top) / 2 - 1) / (K - 1) for k in range(K)]
    return [mpmath.mpf(2) ** (mpmath.mpf(k) * (mpmath.log(top, 2) - 1) / (K - 1)) for k in range(K)]


def banded_features(place, dim: int, n: int, kind: str, top: float, centres: bool) -> list[float]:
    with mpmath.workdps(50):
        coords = [(2 * mpmath.mpf(p) + 1) / n - 1 if centres else 2 * mpmath.mpf(p) / max(n - 1, 1) - 1 for p in place]
        bands = bands_by_hand(kind, math.ceil(dim / (2 * len(place))), top)
        row = []
        for u in coords:
            row += [mpmath.sin(mpmath.pi * f * u) for f in bands] + [mpmath.cos(mpmath.pi * f * u) for f in bands]
        return [float(value) for value in row[:dim]]


@settings(max_examples=30, deadline=None)
@given(
    data=st.data(),
    axes=st.integers(1, 3),
    extra=st.integers(0, 12),
    n=st.integers(1, 60),
    kind=st.sampled_from(["linear", "log2"]),
    top=st.one_of(st.none(), st.floats(1, 500)),
    centres=st.booleans(),
)
def test_bands_follow_the_formula(
    data: st.DataObject, axes: int, extra: int, n: int, kind: str, top: float | None, centres: bool
) -> None:
    dim = 6 * axes + extra
    place = [data.draw(st.floats(-10, 70, width=32)) for _ in range(axes)]
    if (axes - 1) * 2 * math.ceil(dim / (2 * axes)) >= dim:
        return
    encoding = FourierFeatures(dim, n, axes=axes, kind=kind, max_freq=top, centres=centres)
    expected = banded_features(place, dim, n, kind, n if top is None else top, centres)
    actual = encoding.encode(Positions.of(torch.tensor([[place]], dtype=torch.float64))).flatten()
    assert actual.tolist() == pytest.approx(expected, abs=1e-8)
    at = place[0] if axes == 1 else tuple(place)
    assert [encoding.formula_added(at, c) for c in range(dim)] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("kind", ["linear", "log2"])
def test_frequencies_run_from_half_a_turn_to_half_the_highest(kind: str) -> None:
    frequencies = FourierFeatures(16, 224, kind=kind).frequencies
    assert frequencies[0].item() == 1 and frequencies[-1].item() == pytest.approx(112, rel=1e-14)
    steps = frequencies.diff() if kind == "linear" else frequencies.log().diff()
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=1e-10, atol=0)


def test_at_the_highest_frequency_neighbours_are_half_a_turn_apart() -> None:
    encoding = FourierFeatures(8, 32, centres=True)
    last = encoding.encode(Positions.count(32))[0, :, 7]  # the cosine of the highest band
    sine = encoding.encode(Positions.count(32))[0, :, 3]
    # Cell centres lie 2/32 apart, and 16 half turns per unit make pi between neighbours.
    torch.testing.assert_close(
        torch.atan2(sine, last).diff().abs().remainder(2 * math.pi),
        torch.full((31,), math.pi, dtype=torch.float64),
        rtol=0,
        atol=1e-10,
    )


@settings(max_examples=20, deadline=None)
@given(data=st.data(), axes=st.integers(1, 3), dim=st.integers(1, 13), seed=st.integers(0, 99), centres=st.booleans())
def test_gaussian_features_are_waves_along_drawn_directions(
    data: st.DataObject, axes: int, dim: int, seed: int, centres: bool
) -> None:
    encoding = FourierFeatures(dim, 9, axes=axes, kind="gaussian", scale=2.5, seed=seed, centres=centres)
    K = math.ceil(dim / 2)
    directions = torch.randn(axes * K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).view(axes, K)
    place = [data.draw(st.floats(-5, 20, width=32)) for _ in range(axes)]
    coords = [(2 * p + 1) / 9 - 1 if centres else 2 * p / 8 - 1 for p in place]
    turns = [math.fsum(u * 2.5 * directions[a, k].item() for a, u in enumerate(coords)) for k in range(K)]
    expected = ([math.sin(2 * math.pi * t) for t in turns] + [math.cos(2 * math.pi * t) for t in turns])[:dim]
    actual = encoding.encode(Positions.of(torch.tensor([[place]], dtype=torch.float64))).flatten()
    assert actual.tolist() == pytest.approx(expected, abs=1e-11)


def test_gaussian_frequencies_have_the_asked_deviation_and_leave_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    encoding = FourierFeatures(4000, 9, axes=2, kind="gaussian", scale=3.0)
    assert torch.equal(torch.get_rng_state(), state) and not encoding.state_dict()
    # Frequencies count half turns, so their deviation is twice `scale`.
    assert encoding.frequencies.std().item() == pytest.approx(6, rel=0.05)
    assert not torch.equal(
        encoding.frequencies, FourierFeatures(4000, 9, axes=2, kind="gaussian", scale=3.0, seed=1).frequencies
    )
    with torch.device("meta"):
        meta = FourierFeatures(4000, 9, axes=2, kind="gaussian", scale=3.0)
    assert meta.random_frequencies == encoding.random_frequencies


@pytest.mark.parametrize("axes", [1, 2])
def test_learned_features_are_a_small_network_on_waves(axes: int) -> None:
    encoding = FourierFeatures(6, 9, axes=axes, kind="learned", hidden=5).double()
    assert encoding.frequency is not None and encoding.inner is not None and encoding.outer is not None
    place = torch.rand(1, 4, axes, dtype=torch.float64) * 8
    u = 2 * place / 8 - 1
    with mpmath.workdps(30):
        expected = []
        for token in u[0].tolist():
            angles = [
                mpmath.fsum(a * w for a, w in zip(token, column, strict=True))
                for column in encoding.frequency.T.tolist()
            ]
            waves = [mpmath.cos(a) / mpmath.sqrt(6) for a in angles] + [mpmath.sin(a) / mpmath.sqrt(6) for a in angles]
            hidden = [
                mpmath.fsum(w * x for w, x in zip(row, waves, strict=True)) + b
                for row, b in zip(encoding.inner.weight.tolist(), encoding.inner.bias.tolist(), strict=True)
            ]
            hidden = [z * mpmath.ncdf(z) for z in hidden]
            expected.append(
                [
                    float(mpmath.fsum(w * x for w, x in zip(row, hidden, strict=True)) + b)
                    for row, b in zip(encoding.outer.weight.tolist(), encoding.outer.bias.tolist(), strict=True)
                ]
            )
    actual = encoding.encode(Positions.of(place))[0]
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-13)


def test_learned_frequencies_start_normal_with_the_asked_deviation() -> None:
    encoding = FourierFeatures(2000, 9, axes=2, kind="learned", scale=0.1)
    assert encoding.frequency is not None and encoding.frequency.shape == (2, 1000)
    assert encoding.frequency.std().item() == pytest.approx(0.1, rel=0.06)


@pytest.mark.parametrize("kind", ["linear", "log2", "gaussian", "learned"])
def test_whole_positions_do_not_give_zeros_and_half_precision_keeps_them_apart(kind: str) -> None:
    encoding = FourierFeatures(64, 512, kind=kind)
    whole = encoding(torch.zeros(1, 512, 64)).detach()
    assert torch.equal(whole, encoding(torch.zeros(1, 512, 64), positions=torch.arange(512.0)))
    assert float(whole.abs().sum()) > 1 and whole[0].unique(dim=0).shape[0] == 512
    if kind != "learned":
        half = encoding(torch.zeros(1, 512, 64, dtype=torch.bfloat16))
        assert half.dtype == torch.bfloat16 and half[0].unique(dim=0).shape[0] == 512
