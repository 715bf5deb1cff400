"""Distance maps: ReRoPE, Self-Extend and dual chunk attention give encodings changed distances."""

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posenc import kernels, masks
from posenc.catalogue import build
from posenc.encoding.base import Encoding, Shape
from posenc.encoding.biases import total
from posenc.encoding.keys import Keys
from posenc.encodings.added.sinusoidal import Sinusoidal
from posenc.encodings.content_biases.shaw import Shaw
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.encodings.rotations.rotary import Rotary
from posenc.encodings.wrappers.dual_chunk import DualChunk
from posenc.encodings.wrappers.rerope import ReRoPE
from posenc.encodings.wrappers.self_extend import SelfExtend
from posenc.tokens.positions import Positions

SHAPE = Shape(dim=16, heads=2, head_dim=8, max_len=32)


def distances(encoding: Encoding, T: int) -> list[list[int]]:
    """Return the mapped distances of T contiguous tokens. The fast path's ALiBi bias of slope 1/16 shows them."""
    zeros, at = torch.zeros(1, 1, T, 4), Positions.count(T)
    values = total(encoding.biases(zeros, at, Keys(zeros, zeros, at)), torch.float32)
    assert values is not None
    return (values[0, 0] / -ALiBi(1).slopes[0]).round(decimals=4).tolist()


def test_rerope_stops_at_the_window() -> None:
    assert distances(ReRoPE(ALiBi(1), window=3), 7)[6] == [3, 3, 3, 3, 2, 1, 0]


def test_leaky_rerope_goes_on_slowly() -> None:
    assert distances(ReRoPE(ALiBi(1), window=3, leak=2), 8)[7] == [5, 4.5, 4, 3.5, 3, 2, 1, 0]


def test_self_extend_counts_groups_beyond_the_window() -> None:
    # Window 4, groups of 2: floor(9/2) - floor(j/2) + 4 - 2 for keys 4 or more tokens back.
    assert distances(SelfExtend(ALiBi(1), window=4, group=2), 10)[9] == [6, 6, 5, 5, 4, 4, 3, 2, 1, 0]


def test_dual_chunk_gives_the_matrix_of_the_paper() -> None:
    # Figure 2 of arXiv:2402.17463 has chunks of 6, a trained length of 10 and twelve tokens.
    expected = [
        [6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0, 0],
        [7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0, 0],
        [8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, 0],
        [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0],
        [9, 8, 7, 6, 5, 4, 4, 3, 2, 1, 0, 0],
        [9, 8, 7, 6, 5, 4, 5, 4, 3, 2, 1, 0],
    ]
    matrix = distances(DualChunk(ALiBi(1), chunk=6, longest=10), 12)
    for row, (actual, want) in enumerate(zip(matrix[6:], expected, strict=True)):
        assert actual[: row + 7] == want[: row + 7]


def test_dual_chunk_shows_no_distance_of_the_trained_length_or_more() -> None:
    matrix = distances(DualChunk(ALiBi(1), chunk=6, longest=10), 60)
    assert max(max(row) for row in matrix) == 9


def test_self_extend_reaches_the_published_length_and_no_further() -> None:
    # (L - window) group + window positions for a model trained to L: distances stay below L.
    L, window, group = 16, 6, 3
    T = (L - window) * group + window
    assert max(distances(SelfExtend(ALiBi(1), window=window, group=group), T)[-1]) <= L - 1


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: ReRoPE(inner, window=5),
        lambda inner: ReRoPE(inner, window=5, leak=3.0),
        lambda inner: SelfExtend(inner, window=5, group=3),
        lambda inner: DualChunk(inner, chunk=7, longest=9),
    ],
)
def test_the_logits_of_rotary_are_those_of_mpmath(wrap) -> None:
    encoding = wrap(Rotary(6, base=50.0))
    T = 23
    q, k = torch.randn(1, 1, T, 6, dtype=torch.float64), torch.randn(1, 1, T, 6, dtype=torch.float64)
    at = Positions.count(T)
    v = torch.eye(T, dtype=torch.float64)[None, None]
    kernel = kernels.bind("reference", encoding, scale=0.5, need_weights=True)
    _, weights = encoding.attend(q, at, Keys(k, v, at), masks.bidirectional(), kernel)
    assert weights is not None
    with mpmath.workdps(40):
        for m in (0, 6, 13, 22):
            logits = []
            for n in range(T):
                there, here = encoding.formula_positions(m, n)
                total = mpmath.mpf(0)
                for pair in range(3):
                    angle = (mpmath.mpf(there) - mpmath.mpf(here)) * mpmath.mpf(50) ** (-mpmath.mpf(2 * pair) / 6)
                    a, b = (mpmath.mpf(q[0, 0, m, c].item()) for c in (pair, pair + 3))
                    c, d = (mpmath.mpf(k[0, 0, n, e].item()) for e in (pair, pair + 3))
                    total += (a * c + b * d) * mpmath.cos(angle) - (b * c - a * d) * mpmath.sin(angle)
                logits.append(total / 2)
            total = mpmath.fsum(mpmath.exp(x) for x in logits)
            expected = [float(mpmath.exp(x) / total) for x in logits]
            assert weights[0, 0, m].tolist() == pytest.approx(expected, abs=1e-12)


@given(
    window=st.integers(1, 9),
    group=st.integers(1, 5),
    m=st.one_of(st.integers(0, 80), st.floats(0, 80)),
    n=st.one_of(st.integers(0, 80), st.floats(0, 80)),
)
def test_any_map_is_odd_and_leaves_near_distances_alone(window: int, group: int, m: float, n: float) -> None:
    for encoding in (
        ReRoPE(ALiBi(1), window=window),
        SelfExtend(ALiBi(1), window=window, group=group),
        ReRoPE(ALiBi(1), window=window, leak=group),
    ):
        (a, b), (c, d) = encoding.formula_positions(m, n), encoding.formula_positions(n, m)
        assert a - b == pytest.approx(d - c, abs=1e-9)
        if abs(m - n) < window:
            assert a - b == m - n


def test_a_map_that_changes_nothing_is_the_encoding_itself() -> None:
    at, mask = Positions.count(12), masks.causal()
    q, k, v = (torch.randn(1, 2, 12, 8, dtype=torch.float64) for _ in range(3))
    inner = Rotary(8)
    keys = Keys(inner.key(k, at), v, at)
    plain = kernels.bind("reference", inner, scale=0.4)(inner, inner.query(q, at), at, keys, mask)[0]
    encodings = (
        ReRoPE(inner, window=20),
        ReRoPE(inner, window=3, leak=1.0),
        SelfExtend(inner, window=3, group=1),
        DualChunk(inner, chunk=20),
    )
    for encoding in encodings:
        actual = encoding.attend(q, at, Keys(k, v, at), mask, kernels.bind("reference", encoding, scale=0.4))[0]
        torch.testing.assert_close(actual, plain, atol=1e-12, rtol=0)


def test_all_that_lies_past_the_window_of_rerope_is_a_bag() -> None:
    encoding, at = ReRoPE(Rotary(8), window=3), Positions.count(10)
    q, k, v = (torch.randn(1, 1, 10, 8, dtype=torch.float64) for _ in range(3))
    kernel = kernels.bind("sdpa", encoding, scale=0.4)
    out = encoding.attend(q, at, Keys(k, v, at), masks.causal(), kernel)[0][0, 0, -1]
    order = torch.tensor([5, 0, 3, 1, 4, 2, 6, 7, 8, 9])
    permuted_out = encoding.attend(q, at, Keys(k[:, :, order], v[:, :, order], at), masks.causal(), kernel)[0][0, 0, -1]
    torch.testing.assert_close(permuted_out, out, atol=1e-12, rtol=0)


def test_a_spec_builds_it_and_its_text_is_the_spec() -> None:
    spec = "rerope(rotary(base=500.0), window=7, leak=2.0) + alibi"
    assert repr(build(spec, SHAPE)) == spec
    assert repr(build("self_extend", SHAPE)) == "self_extend(rotary)"
    assert repr(build("dual_chunk(rotary + alibi, chunk=3)", SHAPE)) == "dual_chunk(rotary + alibi, chunk=3)"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: DualChunk(Rotary(8), chunk=6, longest=6), "longest must be above chunk=6 positions, got 6"),
        (lambda: ReRoPE(Sinusoidal(8)), "sinusoidal opens embed"),
        (lambda: ReRoPE(Shaw(8)), "shaw opens attend, biases"),
        (lambda: build("rerope(rotary, rotary)", SHAPE), "rerope wraps one encoding, as in rerope"),
        (lambda: build("rerope(none)", SHAPE), "none opens no door"),
        (lambda: build("rerope(rotary, width=3)", SHAPE), "rerope has no option 'width'; it has: window, leak"),
    ],
)
def test_bad_arguments_are_refused_with_the_reason(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_map_opens_the_doors_that_what_it_maps_needs_and_no_other() -> None:
    doors = {"alibi": {"biases"}, "rotary": {"attend"}, "rotary + alibi": {"attend", "biases"}}
    for inner, expected in doors.items():
        encoding = build(f"rerope({inner}, window=4)", Shape(dim=12, heads=2, head_dim=6, max_len=9))
        assert encoding.doors == expected
