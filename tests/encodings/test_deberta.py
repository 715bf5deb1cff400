"""DeBERTa's disentangled attention agrees with integer buckets and explicit vectors."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Keys, Positions, masks
from posenc.encodings.content_biases.deberta import DeBERTa
from posenc.kernels import bind


def build_deberta(dim: int = 5, heads: int = 3, head_dim: int = 4, **options) -> DeBERTa:
    encoding = DeBERTa(dim, heads, head_dim, **{"std": 1.0} | options).double()
    if encoding.to_query is not None:
        torch.nn.init.normal_(encoding.to_query.bias)
    return encoding


def exact_bucket(delta: int | Fraction, buckets: int, max_distance: int | None) -> int:
    """Return the signed bucket, clipped to the table, without logarithms.

    ceil(ln(x/h) / ln(L/h) (h - 1)) is at most s exactly when (x/h)^(h-1) <= (L/h)^s.
    """
    half, size = buckets // 2, abs(delta)
    if max_distance is None or size <= half:
        size = math.ceil(size)
    else:
        power, last = half - 1, max_distance - 1
        ratio = Fraction(size, half) ** power
        size = half + next((s for s in range(1, buckets) if ratio <= Fraction(last, half) ** s), buckets)
    return max(-buckets, min(buckets - 1, size if delta > 0 else -size))


def test_buckets_are_the_pinned_ones() -> None:
    buckets = {0: 0, 1: 1, -7: -7, 128: 128, -128: -128, 129: 129, 200: 169, 300: 207, -300: -207, 511: 255, -511: -255}
    actual = DeBERTa(4, 1, 4).bucket(torch.tensor(list(buckets)))
    assert actual.tolist() == list(buckets.values())


def test_one_side_has_a_bucket_more() -> None:
    # The rows are -256 to 255: past distances from 511 share a row, but future distances only from 512.
    encoding = DeBERTa(4, 1, 4)
    bucket = encoding.bucket(torch.tensor([511, 512, 10_000, -511, -512, -10_000]))
    assert bucket.tolist() == [255, 256, 256, -255, -256, -256]
    assert encoding.row(bucket).tolist() == [511, 511, 511, 1, 0, 0]


@pytest.mark.parametrize(
    ("buckets", "max_distance"),
    [
        (256, 512), (8, 33), (8, 512), (4, 9), (5, 20), (32, 128), (6, 5), (255, 512), (64, 1000), (7, None),
        (512, None), (2, None),
    ],
)  # fmt: skip
def test_every_whole_distance_falls_into_the_exact_bucket(buckets: int, max_distance: int | None) -> None:
    reach = 2 * (max_distance or buckets) + 3
    deltas = sorted({*range(-min(reach, 700), min(reach, 700) + 1), reach, -reach, 20 * reach, -20 * reach})
    encoding = DeBERTa(4, 1, 4, buckets=buckets, max_distance=max_distance)
    actual = encoding.row(encoding.bucket(torch.tensor(deltas)))
    assert (actual - buckets).tolist() == [exact_bucket(delta, buckets, max_distance) for delta in deltas]


@settings(max_examples=25, deadline=None)
@given(quarters=st.lists(st.integers(-400, 400), min_size=1, max_size=20), buckets=st.integers(4, 40))
def test_a_fraction_counts_as_the_whole_distance_away_from_zero(quarters: list[int], buckets: int) -> None:
    encoding = DeBERTa(4, 1, 4, buckets=buckets, max_distance=60)
    actual = encoding.row(encoding.bucket(torch.tensor(quarters, dtype=torch.float64) / 4))
    assert (actual - buckets).tolist() == [exact_bucket(Fraction(quarter, 4), buckets, 60) for quarter in quarters]


def every_vector(encoding: DeBERTa, q: Tensor, k: Tensor, m: list[float], n: list[float], scale: float) -> Tensor:
    """Return the paper's equations 2 to 4, with W P[d(i, j)] for every pair."""

    def vectors(projection: torch.nn.Linear, sign: int) -> Tensor:
        rows = [
            [
                exact_bucket(Fraction(sign * (x - y)), encoding.buckets, encoding.max_distance) + encoding.buckets
                for y in n
            ]
            for x in m
        ]
        table = projection(encoding.table).unflatten(-1, (encoding.heads, -1))
        return table[torch.tensor(rows)]  # [T, S, H, D]

    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    total, terms = 0.0, 1
    if encoding.to_key is not None:
        total, terms = torch.einsum("bhtd,tshd->bhts", q, vectors(encoding.to_key, 1)), terms + 1
    if encoding.to_query is not None:
        sign = -1 if encoding.mirror else 1
        total, terms = total + torch.einsum("bhsd,tshd->bhts", k, vectors(encoding.to_query, sign)), terms + 1
    return torch.einsum("bhtd,bhsd->bhts", q, k) * scale + total / math.sqrt(terms * encoding.head_dim)


CASES = {
    "in a row": ([*range(9)], [*range(9)]),
    "elsewhere": ([3, 0, 50], [1, 4, 2, 49, 80]),
    "fractional": ([0.5, 2.25, 9.0], [0.0, 1.75, 2.5, 3.125]),
}
OPTIONS = [
    {},
    {"buckets": 8, "max_distance": 20},
    {"buckets": 3, "max_distance": None},
    {"buckets": 4, "mirror": False},
    {"buckets": 4, "terms": "content_to_position"},
    {"buckets": 4, "terms": "position_to_content"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_content_and_position_meet_as_published(case: str, options: dict) -> None:
    m, n = CASES[case]
    encoding = build_deberta(**options)
    q = torch.randn(2, 3, len(m), 4, dtype=torch.float64)
    for kv_heads, scale in ((3, 12**-0.5), (1, 1.0)):
        k = torch.randn(2, kv_heads, len(n), 4, dtype=torch.float64)
        kernel = bind("reference", encoding, scale=scale)
        actual = kernel.logits(
            encoding, q, Positions.of(torch.tensor(m)), Keys(k, k, Positions.of(torch.tensor(n))), masks.bidirectional()
        )
        torch.testing.assert_close(actual, every_vector(encoding, q, k, m, n, scale), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("terms", "parts"), [("both", 3), ("content_to_position", 2), ("position_to_content", 2)])
def test_the_root_counts_the_terms(terms: str, parts: int) -> None:
    assert DeBERTa(8, 2, 64, terms=terms).scale == pytest.approx((64 * parts) ** -0.5)


def test_a_term_left_out_has_no_parameters_and_reads_nothing() -> None:
    of_queries = DeBERTa(8, 2, 4, terms="content_to_position")
    assert of_queries.to_query is None and not of_queries.reads_keys
    assert of_queries.bias(3, q=torch.ones(1, 2, 3, 4)).shape == (1, 2, 3, 3)
    of_keys = DeBERTa(8, 2, 4, terms="position_to_content")
    assert of_keys.to_key is None and of_keys.reads_keys


def test_paper_and_released_code_read_mirrored_rows_for_the_keys() -> None:
    paper, released_code = (
        build_deberta(buckets=4, terms="position_to_content"),
        build_deberta(buckets=4, terms="position_to_content", mirror=False),
    )
    released_code.load_state_dict(paper.state_dict())
    q, k = torch.randn(1, 3, 1, 4, dtype=torch.float64), torch.ones(1, 3, 1, 4, dtype=torch.float64)
    ahead, mirrored_bias = (
        paper.bias(torch.tensor([5]), torch.tensor([7]), q=q, k=k),
        released_code.bias(torch.tensor([7]), torch.tensor([5]), q=q, k=k),
    )
    torch.testing.assert_close(ahead, mirrored_bias, rtol=0, atol=0)
    assert (ahead - released_code.bias(torch.tensor([5]), torch.tensor([7]), q=q, k=k)).abs().min() > 1e-3


def test_shared_projections_are_loaded_from_attention() -> None:
    """`share_att_key` applies the content projections to the table. Key biases cancel in the softmax."""
    query, key = (torch.nn.Linear(5, 12, dtype=torch.float64) for _ in range(2))
    encoding = build_deberta(buckets=4)
    with torch.no_grad():
        encoding.to_key.weight.copy_(key.weight)
        encoding.to_query.load_state_dict(query.state_dict())
    q, k = (torch.randn(1, 3, 6, 4, dtype=torch.float64) for _ in range(2))
    token = torch.arange(6)
    row = encoding.bucket(token[:, None] - token) + 4
    far_k, far_q = (project(encoding.table).unflatten(-1, (3, 4)) for project in (key, query))
    expected = torch.einsum("bhtd,tshd->bhts", q, far_k[row]) + torch.einsum("bhsd,tshd->bhts", k, far_q[row.T])
    actual, expected = encoding.bias(6, q=q, k=k).softmax(-1), (expected / 12**0.5).softmax(-1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
