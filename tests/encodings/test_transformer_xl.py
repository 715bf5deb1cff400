"""Transformer-XL's relative encoding agrees with its four terms and the authors' relative shift."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posenc import Keys, Positions, masks
from posenc.encodings.content_biases.transformer_xl import TransformerXL
from posenc.kernels import bind


def build_txl(dim: int = 10, heads: int = 3, head_dim: int = 4, **options) -> TransformerXL:
    return TransformerXL(dim, heads, head_dim, std=1.0, **options).double()


def sinusoid(distance: Tensor, dim: int, base: float = 10_000.0, layout: str = "concatenated") -> Tensor:
    """Return R [..., dim], channel by channel."""
    pairs = math.ceil(dim / 2)
    channels = []
    for channel in range(dim):
        pair, cosine = divmod(channel, 2) if layout == "interleaved" else (channel % pairs, channel // pairs)
        angle = distance.double() * base ** (-2 * pair / dim)
        channels.append(angle.cos() if cosine else angle.sin())
    return torch.stack(channels, -1)


def four_terms(encoding: TransformerXL, q: Tensor, k: Tensor, m: Tensor, n: Tensor, scale: float) -> Tensor:
    """Return the sum of the paper's terms (a) to (d) from explicit vectors."""
    distance = m[:, None] - n
    if encoding.max_distance is not None:
        distance = distance.clamp(-encoding.max_distance, encoding.max_distance)
    wave = sinusoid(distance, encoding.dim, encoding.base, encoding.layout)  # [T, S, dim]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    far = torch.einsum("hed,tsd->htse", encoding.weight.view(encoding.heads, encoding.head_dim, -1), wave)
    a = torch.einsum("bhte,bhse->bhts", q, k)
    b = torch.einsum("bhte,htse->bhts", q, far)
    c = torch.einsum("he,bhse->bhs", encoding.content_bias, k)[:, :, None]
    d = torch.einsum("he,htse->hts", encoding.distance_bias, far)
    return a * scale + (b + c + d) / encoding.head_dim**0.5


CASES = {
    "in a row": (torch.arange(9.0), torch.arange(9.0)),
    "elsewhere": (torch.tensor([3.0, 0, 500]), torch.tensor([1.0, 4, 2, 49, 80])),
    "fractional and negative": (torch.tensor([0.5, -2.25, 9.0]), torch.tensor([0.0, 1.75, -2.5, 3.125])),
    "a million": (torch.tensor([1e6, 1e6 + 7]), torch.tensor([1e6 - 1, 3.0])),
}


@pytest.mark.parametrize(
    "options", [{}, {"max_distance": 3}, {"max_distance": 2.5}, {"layout": "interleaved"}, {"base": 50.0}], ids=str
)
@pytest.mark.parametrize("dim", [10, 7, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_logit_is_the_sum_of_the_four_published_terms(case: str, dim: int, options: dict) -> None:
    m, n = (x.double() for x in CASES[case])
    encoding = build_txl(dim, **options)
    q = torch.randn(2, 3, len(m), 4, dtype=torch.float64)
    for kv_heads, scale in ((3, 0.5), (1, 1.0)):
        k = torch.randn(2, kv_heads, len(n), 4, dtype=torch.float64)
        at, keys_at = Positions.of(m), Positions.of(n)
        kernel = bind("reference", encoding, scale=scale)
        actual = kernel.logits(encoding, q, at, Keys(k, k, keys_at), masks.bidirectional())
        torch.testing.assert_close(
            actual, four_terms(encoding, q, k, m, n, scale), rtol=0, atol=1e-8 if m.max() > 1e5 else 1e-12
        )


@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(1, 12),
    heads=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    max_distance=st.none() | st.floats(1, 40),
    layout=st.sampled_from(["concatenated", "interleaved"]),
    places=st.lists(st.floats(-50, 50), min_size=1, max_size=5),
)
def test_any_configuration_gives_the_four_terms(dim, heads, head_dim, max_distance, layout, places) -> None:
    encoding = build_txl(dim, heads, head_dim, max_distance=max_distance, layout=layout)
    m, n = torch.tensor(places, dtype=torch.float64), torch.tensor([*places, 0.3], dtype=torch.float64)
    q, k = (torch.randn(1, heads, len(x), head_dim, dtype=torch.float64) for x in (m, n))
    actual = encoding.bias(m, n, q=q, k=k)
    torch.testing.assert_close(actual, four_terms(encoding, q, k, m, n, 0.0), rtol=0, atol=1e-11)


def test_the_authors_shift_of_tensors_gives_the_same() -> None:
    """Appendix B pads queries times all distances S-1 to 0 by a column, and reshapes."""
    T, S = 5, 8  # three tokens of the previous segment, then five
    encoding = build_txl(6, 2, 3)
    q, k = torch.randn(1, 2, T, 3, dtype=torch.float64), torch.randn(1, 2, S, 3, dtype=torch.float64)
    far = sinusoid(torch.arange(S - 1, -1, -1), 6) @ encoding.weight.T
    product = torch.einsum("bhte,jhe->bhtj", q + encoding.distance_bias[:, None], far.view(S, 2, 3))
    relative_shift = torch.nn.functional.pad(product, (1, 0)).reshape(1, 2, S + 1, T)[:, :, 1:].reshape(1, 2, T, S)
    expected = (relative_shift + (encoding.content_bias[:, None] * k).sum(-1)[:, :, None]) / 3**0.5
    actual = encoding.bias(torch.arange(3, 8), torch.arange(8), q=q, k=k)
    past = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    torch.testing.assert_close(actual[..., past], expected[..., past], rtol=0, atol=1e-12)


def test_a_far_sinusoid_is_the_one_that_fifty_digits_give() -> None:
    encoding, m, n = build_txl(8, 1, 8), 987_654, 123_456
    with torch.no_grad():
        encoding.content_bias.zero_()
        encoding.distance_bias.zero_()
        encoding.weight.copy_(torch.eye(8))
    q = torch.eye(8, dtype=torch.float64)[None, None]
    actual = encoding.bias(torch.full((8,), m), torch.tensor([n]), q=q, k=q[:, :, :1])[0, 0, :, 0] * 8**0.5
    with mpmath.workdps(50):
        angles = [(m - n) / mpmath.mpf(10_000) ** (mpmath.mpf(2 * k) / 8) for k in range(4)]
        expected = [float(wave(angle)) for wave in (mpmath.sin, mpmath.cos) for angle in angles]
    assert actual.tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.bfloat16, 0.02)])
def test_in_blocks_max_distance_holds_too(dtype: torch.dtype, tolerance: float) -> None:
    encoding, at = build_txl(max_distance=3.5).to(dtype), Positions.count(40)
    q, k, v = torch.randn(3, 1, encoding.heads, 40, encoding.head_dim).to(dtype)
    in_blocks, reference = (
        bind(kernel, encoding, scale=0.4)(encoding, q, at, Keys(k, v, at), masks.causal())[0]
        for kernel in ("blocked", "reference")
    )
    torch.testing.assert_close(in_blocks, reference, rtol=tolerance, atol=tolerance)


def test_the_layouts_differ_by_the_order_of_the_projections_columns() -> None:
    sines_first, interleaved = build_txl(7), build_txl(7, layout="interleaved")
    interleaved.load_state_dict(sines_first.state_dict())
    with torch.no_grad():
        interleaved.weight.copy_(sines_first.weight[:, [0, 4, 1, 5, 2, 6, 3]])
    q = torch.randn(1, 3, 9, 4, dtype=torch.float64)
    torch.testing.assert_close(sines_first.bias(9, q=q, k=q), interleaved.bias(9, q=q, k=q), rtol=0, atol=1e-12)


def test_wavelengths_run_from_two_pi_towards_the_base() -> None:
    assert TransformerXL(4, 1, 2).wavelengths.tolist() == pytest.approx([2 * math.pi, 200 * math.pi])


def test_the_initial_deviation_is_the_given_one() -> None:
    encoding = TransformerXL(100, 4, 25, std=0.5)
    assert [p.std().item() for p in encoding.parameters()] == pytest.approx([0.5] * 3, rel=0.25)
