"""Stick-breaking attention agrees with products computed one key at a time."""

import math
from dataclasses import replace

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from posenc import Attention, Keys, Positions, Shape, build, masks
from posenc.encodings.rules.stick_breaking import StickBreaking
from posenc.kernels import bind
from posenc.kernels.block_sizes import SIZES
from posenc.tokens.masks import Mask


def weights_of(q: Tensor, k: Tensor, at: Positions, mask: Mask, itself: bool = False, scale: float = 1.0) -> Tensor:
    encoding = StickBreaking(itself=itself)
    kernel = bind("reference", encoding, scale=scale, need_weights=True)
    _, weights = encoding.attend(q, at, Keys(k, k, at), mask, kernel)
    assert weights is not None
    return weights


def sticks(logits: list[float], orders: list[int], query: int, itself: bool) -> list[float]:
    """Return the published products for one query in 60 digits."""
    with mpmath.workdps(60):
        beta = [1 / (1 + mpmath.exp(-mpmath.mpf(z))) for z in logits]
        weights = [0.0] * len(logits)
        for j, order in enumerate(orders):
            if 0 <= order < query or (itself and order == query):
                left = mpmath.mpf(1)
                for k, middle in enumerate(orders):
                    if order < middle < query or (itself and order < middle == query):
                        left *= 1 - beta[k]
                weights[j] = float(beta[j] * left)
        return weights


@given(st.lists(st.floats(-60, 60), min_size=1, max_size=9), st.booleans(), st.randoms(use_true_random=False))
def test_each_key_takes_its_share_of_what_the_nearer_ones_left(logits: list[float], itself: bool, random) -> None:
    orders = list(range(len(logits)))
    random.shuffle(orders)
    at = Positions(torch.zeros(1, len(logits), 1), torch.tensor([orders]))
    queries = torch.ones(1, 1, len(logits), 1, dtype=torch.float64)
    keys = torch.tensor(logits, dtype=torch.float64).view(1, 1, -1, 1)
    weights = weights_of(queries, keys, at, masks.bidirectional(), itself)[0, 0]
    for t, order in enumerate(orders):
        assert weights[t].tolist() == pytest.approx(sticks(logits, orders, order, itself), rel=1e-12, abs=1e-300)
    assert float(weights.sum(-1).max()) <= 1 + 1e-12


def test_by_hand() -> None:
    # The shares are 3/4, 1/2 and 1/5 for keys 0, 1 and 2; query 3 starts with the nearest key.
    logits = torch.tensor([math.log(3), 0.0, -math.log(4), 50.0], dtype=torch.float64).view(1, 1, 4, 1)
    queries = torch.ones_like(logits)
    weights = weights_of(queries, logits, Positions.count(4), masks.causal())[0, 0]
    assert weights[3].tolist() == pytest.approx([0.75 * 0.5 * 0.8, 0.5 * 0.8, 0.2, 0.0])
    assert weights[3].sum().item() == pytest.approx(1 - 0.25 * 0.5 * 0.8)
    assert not weights[0].any()
    assert weights_of(queries, logits, Positions.count(4), masks.causal(), itself=True)[0, 0, 0, 0].item() == 0.75


@pytest.mark.parametrize("mask", [masks.causal(), masks.bidirectional(), masks.prefix(4)])
def test_whatever_the_mask_a_query_takes_only_from_before_it(mask: Mask) -> None:
    q, k = torch.randn(2, 1, 3, 6, 4, dtype=torch.float64)
    weights = weights_of(q, k, Positions.count(6), mask)
    assert not weights.triu().any()
    torch.testing.assert_close(weights, weights_of(q, k, Positions.count(6), masks.causal()), rtol=0, atol=0)


def test_a_hidden_key_breaks_nothing_off() -> None:
    q, k = torch.randn(2, 1, 3, 6, 4, dtype=torch.float64)
    visible = torch.tensor([True, True, False, True, False, True])
    weights = weights_of(q, k, Positions.count(6), Mask(tensor=visible.expand(6, 6)))
    order = torch.tensor([[0, 1, -1, 2, -1, 3]])
    alone = weights_of(q[:, :, visible], k[:, :, visible], Positions.count(4), masks.causal())
    torch.testing.assert_close(weights[:, :, visible][..., visible], alone, rtol=0, atol=1e-15)
    padded = weights_of(q, k, Positions(order[..., None], order), masks.causal())
    torch.testing.assert_close(padded[:, :, visible][..., visible], alone, rtol=0, atol=1e-15)
    assert not weights[..., ~visible].any() and not padded[..., ~visible].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_extreme_logits_give_finite_weights_and_gradients(dtype: torch.dtype) -> None:
    q = torch.full((1, 1, 64, 1), 100.0, dtype=dtype, requires_grad=True)
    k = torch.linspace(-300, 300, 64).to(dtype).view(1, 1, 64, 1)
    weights = weights_of(q, k, Positions.count(64), masks.causal())
    weights.float().square().sum().backward()
    assert weights.isfinite().all() and q.grad is not None and q.grad.isfinite().all()
    assert weights.dtype == dtype and (weights.sum(-1) <= 1).all()
    # The nearest key with a positive logit takes all the weight.
    assert weights[0, 0, 63, 62] == 1


def test_many_small_shares_keep_their_size_in_bfloat16() -> None:
    # A thousand keys each take one percent of the rest: the last gets (1 - 0.01)^999 of a hundredth.
    queries = torch.ones(1, 1, 1001, 1, dtype=torch.bfloat16)
    k = torch.full_like(queries, math.log(0.01 / 0.99))
    beta = torch.sigmoid(k[0, 0, 0, 0].double()).item()
    weights = weights_of(queries, k, Positions.count(1001), masks.causal())
    assert weights[0, 0, 1000, 0].item() == pytest.approx(beta * (1 - beta) ** 999, rel=4e-3)
    assert weights[0, 0, 1000].double().sum().item() == pytest.approx(1 - (1 - beta) ** 1000, rel=4e-3)


def test_it_breaks_by_the_logits_of_the_whole_composition() -> None:
    attention = Attention(12, 3, encoding="rotary + alibi + stick_breaking").double()
    softmax = Attention(12, 3, encoding="rotary + alibi").double()
    softmax.load_state_dict(attention.state_dict())
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    _, weights = attention(x, mask=masks.causal(), need_weights=True)
    _, plain = softmax(x, mask=masks.bidirectional(), need_weights=True)
    # Ratios of softmax weights follow from logit differences; neighbours here have beta_a (1 - beta_b) : beta_b.
    beta_b = weights[..., 4, 3]
    beta_a = weights[..., 4, 2] / (1 - beta_b)
    difference = torch.logit(beta_a) - torch.logit(beta_b)
    torch.testing.assert_close(difference, (plain[..., 4, 2] / plain[..., 4, 3]).log(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "spec", ["stick_breaking", "stick_breaking(itself=True) + alibi", "stick_breaking + forgetting"]
)
@pytest.mark.parametrize("mask", [masks.causal(), masks.window(40), Mask(tensor=torch.rand(300, 300) < 0.7)])
def test_keys_in_pieces_from_the_nearest_give_what_all_give_at_once(spec: str, mask: Mask) -> None:
    encoding = build(spec, Shape(dim=12, heads=3, head_dim=4, max_len=300)).double()
    q, k, v = (torch.randn(2, 3, 300, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    at = Positions.count(300)
    memo = encoding.remember(torch.randn(2, 300, 12, dtype=torch.float64), at)

    def values(weights: bool) -> list[Tensor]:
        kernel = bind("auto", encoding, scale=0.5, need_weights=weights)
        out, _ = encoding.attend(q, at, Keys(k, v, at, memo, memo), mask, kernel)
        return [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]

    with SIZES.set_to(narrowest=16, rows_backwards=32):
        for actual, expected in zip(values(False), values(True), strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("logit", "pieces"), [(-9.0, 128), (0.0, 7)])
def test_keys_for_which_nothing_is_left_are_not_read(logit: float, pieces: int) -> None:
    encoding, calls = StickBreaking(), []
    q, at = torch.ones(1, 1, 16, 1), Positions.count(16, start=2032)
    keys = Keys(torch.full((1, 1, 2048, 1), logit), torch.ones(1, 1, 2048, 1), Positions.count(2048))
    kernel = bind("auto", encoding, scale=1.0)
    counting_kernel = replace(
        kernel, take_values=lambda *args, **kwargs: (calls.append(1), kernel.take_values(*args, **kwargs))[1]
    )
    with SIZES.set_to(narrowest=16):
        out, _ = encoding.attend(q, at, keys, masks.causal(), counting_kernel)
    assert len(calls) == pieces
    left = (1 - torch.tensor(logit).double().sigmoid()) ** torch.arange(2032, 2048)
    torch.testing.assert_close(out.flatten().double(), 1 - left, rtol=1e-5, atol=0)


def test_the_fused_kernel_is_refused_with_the_reason() -> None:
    attention = Attention(12, 3, encoding="stick_breaking", kernel="sdpa")
    with pytest.raises(ValueError, match=r"kernel 'sdpa' cannot do this: .*reads the"):
        attention(torch.randn(1, 3, 12))
