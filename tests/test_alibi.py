"""ALiBi, against the authors' recipe and their pinned slopes."""

import math

import pytest
import torch
import torch.nn.functional as F

from posenc import Keys, Positions, masks
from posenc.encodings.alibi import ALiBi
from posenc.kernels import bind
from posenc.masks import Mask


def authors_slopes(heads: int) -> list[float]:
    """The recursive recipe of the released code, in our words."""
    if (heads & (heads - 1)) == 0:
        ratio = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [ratio * ratio**i for i in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return authors_slopes(power) + authors_slopes(2 * power)[0::2][: heads - power]


PINNED = {
    8: [2.0**-h for h in range(1, 9)],
    12: [2.0**-h for h in range(1, 9)] + [0.707107, 0.353553, 0.176777, 0.088388],
    6: [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125],
    3: [0.0625, 0.00390625, 0.25],
}


@pytest.mark.parametrize("heads", PINNED)
def test_slopes_are_the_pinned_ones(heads: int) -> None:
    assert ALiBi(heads).slopes == pytest.approx(PINNED[heads], abs=5e-7)


@pytest.mark.parametrize("heads", range(1, 34))
def test_slopes_follow_the_authors_recipe_for_any_number_of_heads(heads: int) -> None:
    assert ALiBi(heads).slopes == pytest.approx(authors_slopes(heads), rel=1e-12)
    zero = [0.0]
    got = [-ALiBi(heads).formula_logit(zero, zero, 1.0, 0.0, head, 1.0) for head in range(heads)]
    assert got == pytest.approx(authors_slopes(heads), rel=1e-12)


def test_the_first_slope_is_a_half_for_eight_heads_only() -> None:
    assert [ALiBi(heads).slopes[0] for heads in (8, 16, 4)] == pytest.approx([0.5, 2**-0.5, 0.25])


def test_a_head_sees_about_seven_over_its_slope_tokens() -> None:
    assert [7 / slope for slope in ALiBi(8).slopes] == [14, 28, 56, 112, 224, 448, 896, 1792]


def expected_bias(heads: int, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """[..., H, T, S] in float64 from coordinates [..., T] and [..., S]."""
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
    got = ALiBi(3).bias(m, n)
    assert got.shape == (2, 3, 2, 3)
    torch.testing.assert_close(got, expected_bias(3, m, n.expand(2, 3)).float(), rtol=1e-6, atol=0)
    exact = ALiBi(3).bias(m, n, dtype=torch.float64)
    torch.testing.assert_close(exact, expected_bias(3, m, n.expand(2, 3)), rtol=1e-14, atol=0)


def test_a_distance_of_a_million_is_exact() -> None:
    bias = ALiBi(2).bias(torch.tensor([1_000_001]), torch.tensor([0, 1_000_000]))
    assert bias[0, :, 0].tolist() == [[-1_000_001 / 16, -1 / 16], [-1_000_001 / 256, -1 / 256]]


@pytest.mark.parametrize("mask", [masks.causal(), masks.window(4), masks.prefix(3), masks.bidirectional()])
@pytest.mark.parametrize(
    "at",
    [
        Positions.count(9),
        Positions.of(torch.tensor([0.0, 2.5, 3, 8, 9, 10, 1, 0, 4])),
        Positions.packed([4, 5]),
    ],
    ids=["counted", "fractional", "packed"],
)
def test_the_bias_alone_makes_attention_with_torchs_own_kernel(at: Positions, mask: Mask) -> None:
    encoding = ALiBi(3)
    q, k, v = (torch.randn(2, 3, 9, 8) for _ in range(3))
    got = F.scaled_dot_product_attention(q, k, v, attn_mask=encoding.bias(at, mask=mask))
    kernel = bind("reference", encoding, scale=8**-0.5)
    expected, _ = kernel(encoding, q, at, Keys(k, v, at), mask)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)


def test_padded_keys_are_forbidden_in_the_bias_without_being_asked() -> None:
    at = Positions.padded(torch.tensor([[0, 1, 1], [1, 1, 1]]))
    bias = ALiBi(2).bias(at)
    assert bias.shape == (2, 2, 3, 3)
    assert bias[0, :, 1:, 0].isneginf().all() and bias[0, :, 1:, 1:].isfinite().all() and bias[1].isfinite().all()


def test_a_floating_mask_is_added_to_the_bias() -> None:
    added = torch.randn(3, 3)
    torch.testing.assert_close(ALiBi(2).bias(3, mask=added), ALiBi(2).bias(3) + added, rtol=0, atol=0)


def test_the_bias_is_added_after_the_scaling() -> None:
    q = [1.0, 2.0]
    assert ALiBi(8).formula_logit(q, q, 5.0, 3.0, 0, 0.1) == pytest.approx(0.1 * 5 - 0.5 * 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_dtype_can_be_asked_for(dtype: torch.dtype) -> None:
    bias = ALiBi(8).bias(9, dtype=dtype)
    assert bias.dtype == dtype
    torch.testing.assert_close(bias[0], expected_bias(8, torch.arange(9), torch.arange(9)).to(dtype), rtol=0, atol=0)


def test_there_is_at_least_one_head() -> None:
    with pytest.raises(ValueError, match="heads must be 1 or more, got 0"):
        ALiBi(0)


def test_several_axes_have_no_single_distance() -> None:
    with pytest.raises(ValueError, match="reads one axis, got positions with 2 axes"):
        ALiBi(2).bias(Positions.grid(2, 2))


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_queries_of_another_number_of_heads_are_refused(kernel: str) -> None:
    q, at = torch.zeros(1, 4, 3, 8), Positions.count(3)
    for encoding in (ALiBi(1), ALiBi(8)):
        with pytest.raises(ValueError, match=rf"a bias for {encoding.heads} heads, got queries of 4; build it for 4"):
            bind(kernel, encoding, scale=1.0)(encoding, q, at, Keys(q, q, at), masks.causal())
