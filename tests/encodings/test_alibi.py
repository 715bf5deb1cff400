"""ALiBi agrees with the authors' recipe and their pinned slopes."""

import math

import pytest
import torch
import torch.nn.functional as F

from posenc import Keys, Positions, Shape, build, masks
from posenc.catalogue import build_layers
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.kernels import bind
from posenc.tokens.masks import Mask


def authors_slopes(heads: int) -> list[float]:
    """Return slopes by the released code's recursion, reimplemented here."""
    if (heads & (heads - 1)) == 0:
        ratio = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [ratio * ratio**i for i in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return authors_slopes(power) + authors_slopes(2 * power)[0::2][: heads - power]


PINNED_SLOPES = {
    8: [2.0**-h for h in range(1, 9)],
    12: [2.0**-h for h in range(1, 9)] + [0.707107, 0.353553, 0.176777, 0.088388],
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
    3: [0.0625, 0.00390625, 0.25],
}


@pytest.mark.parametrize("heads", PINNED_SLOPES)
def test_slopes_are_the_pinned_ones(heads: int) -> None:
    assert ALiBi(heads).slopes == pytest.approx(PINNED_SLOPES[heads], abs=5e-7)


@pytest.mark.parametrize("heads", range(1, 34))
def test_slopes_follow_the_authors_recipe_for_any_number_of_heads(heads: int) -> None:
    assert ALiBi(heads).slopes == pytest.approx(authors_slopes(heads), rel=1e-12)
    zero = [0.0]
    actual = [-ALiBi(heads).formula_logit(zero, zero, 1.0, 0.0, head, 1.0) for head in range(heads)]
    assert actual == pytest.approx(authors_slopes(heads), rel=1e-12)


def expected_bias(heads: int, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Return the float64 bias [..., H, T, S] from coordinates [..., T] and [..., S]."""
    slopes = torch.tensor(authors_slopes(heads), dtype=torch.float64)
    gap = (m.double()[..., :, None] - n.double()[..., None, :]).abs()
    return -slopes[:, None, None] * gap[..., None, :, :]


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_bidirectional_attention_sees_the_symmetric_form(heads: int) -> None:
    place = torch.arange(9)
    torch.testing.assert_close(ALiBi(heads).bias(9)[0], expected_bias(heads, place, place).float(), rtol=1e-6, atol=0)


def test_causal_attention_sees_the_published_form() -> None:
    bias = ALiBi(3).bias(9, causal=True)
    past = torch.ones(9, 9, dtype=torch.bool).tril()
    expected = expected_bias(3, torch.arange(9), torch.arange(9)).masked_fill(~past, -torch.inf)
    torch.testing.assert_close(bias[0], expected.float(), rtol=1e-6, atol=0)


def test_queries_and_keys_may_stand_on_different_fractional_and_negative_places() -> None:
    m, n = (
        torch.tensor([[0.5, 100.25], [-3.0, 7.0]], dtype=torch.float64),
        torch.tensor([0.0, 2.5, 1e6], dtype=torch.float64),
    )
    actual = ALiBi(3).bias(m, n)
    assert actual.shape == (2, 3, 2, 3)
    torch.testing.assert_close(actual, expected_bias(3, m, n.expand(2, 3)).float(), rtol=1e-6, atol=0)
    exact = ALiBi(3).bias(m, n, dtype=torch.float64)
    torch.testing.assert_close(exact, expected_bias(3, m, n.expand(2, 3)), rtol=1e-14, atol=0)


def test_a_distance_of_a_million_is_exact() -> None:
    bias = ALiBi(2).bias(torch.tensor([1_000_001]), torch.tensor([0, 1_000_000]))
    assert bias[0, :, 0].tolist() == [[-1_000_001 / 16, -1 / 16], [-1_000_001 / 256, -1 / 256]]


@pytest.mark.parametrize("mask", [masks.causal(), masks.window(4), masks.prefix(3), masks.bidirectional()])
@pytest.mark.parametrize(
    "at",
    [Positions.count(9), Positions.of(torch.tensor([0.0, 2.5, 3, 8, 9, 10, 1, 0, 4])), Positions.packed([4, 5])],
    ids=["counted", "fractional", "packed"],
)
def test_the_bias_alone_makes_attention_with_torchs_own_kernel(at: Positions, mask: Mask) -> None:
    encoding = ALiBi(3)
    q, k, v = (torch.randn(2, 3, 9, 8) for _ in range(3))
    actual = F.scaled_dot_product_attention(q, k, v, attn_mask=encoding.bias(at, mask=mask))
    kernel = bind("reference", encoding, scale=8**-0.5)
    expected, _ = kernel(encoding, q, at, Keys(k, v, at), mask)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


def test_padded_keys_are_forbidden_in_the_bias_without_being_asked() -> None:
    at = Positions.padded(torch.tensor([[0, 1, 1], [1, 1, 1]]))
    bias = ALiBi(2).bias(at)
    assert bias.shape == (2, 2, 3, 3)
    assert bias[0, :, 1:, 0].isneginf().all() and bias[0, :, 1:, 1:].isfinite().all() and bias[1].isfinite().all()


def test_a_floating_mask_is_added_to_the_bias() -> None:
    mask = torch.randn(3, 3)
    torch.testing.assert_close(ALiBi(2).bias(3, mask=mask), ALiBi(2).bias(3) + mask, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_dtype_can_be_asked_for(dtype: torch.dtype) -> None:
    bias = ALiBi(8).bias(9, dtype=dtype)
    assert bias.dtype == dtype
    torch.testing.assert_close(bias[0], expected_bias(8, torch.arange(9), torch.arange(9)).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_queries_of_another_number_of_heads_are_refused(kernel: str) -> None:
    q, at = torch.zeros(1, 4, 3, 8), Positions.count(3)
    for encoding in (ALiBi(1), ALiBi(8)):
        with pytest.raises(ValueError, match=rf"built for {encoding.heads} heads, got 4; build it with heads=4"):
            bind(kernel, encoding, scale=1.0)(encoding, q, at, Keys(q, q, at), masks.causal())


@pytest.mark.parametrize("bias_max", [8.0, 4.0, 16.0, 1.5])
@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 13])
def test_bias_max_is_the_exponent_of_the_last_slope_of_a_power_of_two(heads: int, bias_max: float) -> None:
    # MPT takes the slopes for the next power of two at or above, with every second slope first.
    power = 2 ** math.ceil(math.log2(heads))
    plain = [2 ** (-bias_max * h / power) for h in range(1, power + 1)]
    expected = plain if power == heads else (plain[1::2] + plain[::2])[:heads]
    assert ALiBi(heads, bias_max=bias_max).slopes == pytest.approx(expected, rel=1e-12)


def test_the_falcon_form_divides_the_bias_too() -> None:
    whole, falcon = ALiBi(3), ALiBi(3, form="falcon", head_dim=16)
    torch.testing.assert_close(falcon.bias(9), whole.bias(9) / 4, rtol=1e-6, atol=0)
    zero = [0.0]
    assert falcon.formula_logit(zero, zero, 7.0, 3.0, 0, 1.0) == pytest.approx(-0.0625 * 4 / 4)
    learned = ALiBi(3, form="falcon", head_dim=16, learned=True)
    torch.testing.assert_close(learned.bias(9), falcon.bias(9), rtol=1e-6, atol=0)


def test_the_asymmetric_form_brings_the_past_half_a_position_nearer() -> None:
    # Ruoss et al. take the negative distance on both sides, plus 0.5 below the diagonal.
    expected = -(torch.arange(5)[:, None] - torch.arange(5)).abs().double() + 0.5 * torch.ones(5, 5).tril(-1)
    bias = ALiBi(2, form="asymmetric").bias(5, dtype=torch.float64)
    torch.testing.assert_close(bias[0], torch.stack((expected / 16, expected / 256)), rtol=0, atol=0)


def test_learned_slopes_start_as_the_published_ones_and_follow_their_logarithm() -> None:
    encoding = ALiBi(12, learned=True)
    assert [p.shape for p in encoding.parameters()] == [(12,)]
    torch.testing.assert_close(encoding.bias(50), ALiBi(12).bias(50), rtol=2e-6, atol=0)
    encoding.double()
    with torch.no_grad():
        encoding.log_slopes.copy_(torch.linspace(-3, 1, 12, dtype=torch.float64))
    expected = -torch.linspace(-3, 1, 12, dtype=torch.float64).exp()[:, None] * torch.arange(7).double()
    torch.testing.assert_close(encoding.by_distance(torch.arange(7)), expected, rtol=1e-14, atol=0)
    (slope,) = torch.autograd.grad(encoding.by_distance(torch.tensor(3))[5], encoding.log_slopes)
    assert slope.tolist() == pytest.approx([0] * 5 + [-3 * math.exp(-3 + 5 * 4 / 11)] + [0] * 6, rel=1e-6)


def test_learned_slopes_are_shared_by_all_layers() -> None:
    modules, by_layer = build_layers("alibi(learned=True)", Shape(12, 3, 4, 21), 3)
    assert len(modules) == 1 and by_layer == modules * 3


def test_chosen_heads_have_the_slopes_of_so_many_heads() -> None:
    bias = build("on(alibi, heads=(0, 2))", Shape(12, 3, 4, 21)).bias(4)
    torch.testing.assert_close(bias[0, [0, 2]], ALiBi(2).bias(4)[0], rtol=0, atol=0)
    assert not bias[0, 1].any()


def softmax_error(bias: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the largest difference between two biases' softmax weights over the past, for zero logits."""
    future = torch.ones(exact.shape[-2:], dtype=torch.bool).triu(1)
    weights = [b.double().masked_fill(future, -torch.inf).softmax(-1) for b in (bias, exact)]
    return (weights[0] - weights[1]).abs().max().item()


@pytest.mark.parametrize("heads", [3, 8])
def test_blooms_bias_by_the_keys_place_is_the_same_to_a_causal_softmax(heads: int) -> None:
    slopes = torch.tensor(authors_slopes(heads), dtype=torch.float64)
    bloom = slopes[:, None, None] * torch.arange(40.0, dtype=torch.float64).expand(40, 40)
    exact = ALiBi(heads).bias(40, dtype=torch.float64)[0]
    assert (bloom - exact).abs().max() > 10
    assert softmax_error(bloom, exact) < 1e-12


def test_half_precision_stays_near_double_where_bloom_and_falcon_collapse() -> None:
    # peers.md, 3a row 6: in bfloat16, slope times place has 5 different values for the last 64 keys.
    slope, place = ALiBi(8).slopes[0], torch.arange(4096)
    bloom = (slope * place).to(torch.bfloat16)
    assert bloom[-64:].unique().numel() == 5
    assert (bloom.double() - bloom[-1].double() - slope * (place - 4095)).abs()[-64:].max() == 4.5
    assert (slope * torch.arange(512)).to(torch.bfloat16)[-64:].unique().numel() == 33
    at = Positions.count(1, start=4095)
    actual = ALiBi(8).bfloat16().bias(at, Positions.count(4096))[0, 0, 0, -64:]
    assert actual.unique().numel() == 64 and actual.tolist() == [-0.5 * d for d in range(63, -1, -1)]


def test_no_kernel_needs_the_whole_bias_given_by_hand() -> None:
    # peers.md, 3a rows 22 and 23: contiguous tokens have 2 T - 1 distances, and the causal mask shows T of them.
    sizes = []

    class Counting(ALiBi):
        def by_distance(self, delta: torch.Tensor) -> torch.Tensor:
            sizes.append(delta.numel())
            return super().by_distance(delta)

    encoding, at = Counting(3), Positions.count(50)
    q = torch.zeros(2, 3, 50, 4)
    bind("sdpa", encoding, scale=0.5)(encoding, q, at, Keys(q, q, at), masks.causal())
    assert sizes == [50]
