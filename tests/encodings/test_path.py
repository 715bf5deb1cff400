"""PaTH agrees with matrix products, and with the authors' decoding, which updates keys in place."""

import functools
import math

import pytest
import torch
from torch import Tensor

from posenc import Attention, Keys, Positions, masks
from posenc.encoding.formulas import Token
from posenc.encodings.rules import path
from posenc.encodings.rules.path import PaTH
from posenc.kernels import bind
from posenc.tokens.masks import Mask

IN_ORDER = Positions.count(7)
ORDER = torch.tensor([[4, 0, 6, 2, 1, 5, 3]])
INTERLEAVED = Positions(torch.arange(7)[None, :, None], torch.arange(7)[None], torch.arange(7)[None] % 2)
PLACES = {
    "counted": (IN_ORDER, IN_ORDER),
    "later queries": (Positions.count(3, 4), IN_ORDER),
    "out of order, anywhere": (Positions(ORDER[..., None], ORDER), Positions(ORDER[..., None] * 0.5, ORDER)),
    "padded": (2 * (Positions.padded(torch.tensor([[0, 1, 1, 0, 1, 1, 1], [1] * 7])),)),
    "packed": (2 * (Positions.packed([3, 4]),)),
    "documents in turns": (2 * (INTERLEAVED,)),
}


def random(heads: int = 3, kv_heads: int = 3, queries: int = 7) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return random queries, keys, and remembered values of seven tokens."""
    q = torch.randn(2, heads, queries, 4, dtype=torch.float64)
    k = torch.randn(2, kv_heads, 7, 4, dtype=torch.float64)
    w = torch.nn.functional.normalize(torch.randn(2, heads, 7, 4, dtype=torch.float64), dim=-1)
    return q, k, {"path_direction": w, "path_strength": 2 * torch.rand(2, heads, 7, dtype=torch.float64)}


def weights_of(
    q: Tensor, k: Tensor, memo: dict[str, Tensor], at: Positions, keys_at: Positions, mask: Mask, scale: float = 0.6
) -> Tensor:
    encoding = PaTH(5, q.shape[1], q.shape[-1])
    kernel = bind("reference", encoding, scale=scale, need_weights=True)
    _, weights = encoding.attend(q, at, Keys(k, k, keys_at, memo), mask, kernel)
    assert weights is not None
    return weights


def logits_by_products(q: Tensor, k: Tensor, memo: dict[str, Tensor], at: Positions, keys_at: Positions) -> Tensor:
    """Return k_j^T H_{j+1} ... H_i q_i with explicit matrices, [B, H, T, S]."""
    w, beta = memo["path_direction"], memo["path_strength"]
    B, H, T = q.shape[:3]
    i, j = at.order.expand(B, -1).tolist(), keys_at.order.expand(B, -1).tolist()
    together = masks.bidirectional().allowed(at, keys_at).expand(B, 1, T, 7)[:, 0]
    logits = torch.zeros(B, H, T, 7, dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                for s in range(7):
                    product = torch.eye(4, dtype=q.dtype)
                    for token in sorted(range(7), key=lambda token: j[b][token]):
                        if together[b, t, token] and j[b][s] < j[b][token] <= i[b][t]:
                            share = beta[b, h, token] * torch.outer(w[b, h, token], w[b, h, token])
                            product = product @ (torch.eye(4, dtype=q.dtype) - share)
                    logits[b, h, t, s] = k[b, h * k.shape[1] // H, s] @ product @ q[b, h, t]
    return logits


@functools.cache
def multiplied_at(place: str, kv_heads: int) -> tuple:
    q, k, memo = random(kv_heads=kv_heads, queries=PLACES[place][0].tokens)
    return q, k, memo, logits_by_products(q, k, memo, *PLACES[place])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("mask", [masks.causal(), masks.bidirectional()])
@pytest.mark.parametrize("block", [1, 3, 64])
def test_a_key_reaches_the_query_through_the_reflections_between(
    place: str, kv_heads: int, mask: Mask, block: int, monkeypatch
) -> None:
    monkeypatch.setattr(path, "BLOCK", block)
    at, keys_at = PLACES[place]
    q, k, memo, logits = multiplied_at(place, kv_heads)
    visible = mask.allowed(at, keys_at)
    expected = (0.6 * logits).masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
    torch.testing.assert_close(weights_of(q, k, memo, at, keys_at, mask), expected, rtol=0, atol=1e-12)


def test_gradients_go_through_blocks_as_through_one(monkeypatch) -> None:
    q, k, memo = random()
    leaves = [x.requires_grad_() for x in (q, k, *memo.values())]
    grads = []
    for block in (2, 64):
        monkeypatch.setattr(path, "BLOCK", block)
        weights = weights_of(q, k, memo, IN_ORDER, IN_ORDER, masks.causal())
        grads.append(torch.autograd.grad(weights.square().sum(), leaves))
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-12)


def test_keys_turned_in_place_token_by_token_give_the_same() -> None:
    q, k, memo = random()
    w, beta, cached_k = memo["path_direction"], memo["path_strength"], k.clone()
    weights = weights_of(q, k, memo, IN_ORDER, IN_ORDER, masks.causal())
    for t in range(7):
        # The new token's reflection is applied to every earlier key; the new key is added unchanged.
        past = cached_k[:, :, :t]
        share = beta[:, :, t, None] * (past @ w[:, :, t, :, None])[..., 0]
        cached_k[:, :, :t] = past - share[..., None] * w[:, :, t, None]
        row = (0.6 * (cached_k[:, :, : t + 1] @ q[:, :, t, :, None])[..., 0]).softmax(-1)
        torch.testing.assert_close(weights[:, :, t, : t + 1], row, rtol=0, atol=1e-12)


def test_other_biases_are_added_and_turned_queries_are_used() -> None:
    attention = Attention(12, 3, encoding="rotary + alibi + path").double()
    encoding = attention.encoding
    assert encoding is not None
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    _, weights = attention(x, mask=masks.causal(), need_weights=True)
    q, k = (attention.split(project(x), 3) for project in (attention.q_proj, attention.k_proj))
    q, k = encoding.query(q, IN_ORDER), encoding.key(k, IN_ORDER)
    logits = 0.5 * logits_by_products(q, k, encoding.remember(x, IN_ORDER), IN_ORDER, IN_ORDER)
    logits = logits + encoding.bias(7, causal=True, dtype=torch.float64)
    torch.testing.assert_close(weights, logits.softmax(-1), rtol=0, atol=1e-7)


def test_facts_are_a_unit_vector_and_a_strength_from_zero_to_two_for_each_token() -> None:
    encoding = PaTH(5, heads=3, head_dim=4, rank=2).double()
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    memo = encoding.remember(x, Positions.count(6))
    w, beta = memo["path_direction"].detach(), memo["path_strength"].detach()
    assert w.shape == (2, 3, 6, 4) and beta.shape == (2, 3, 6)
    torch.testing.assert_close(w.norm(dim=-1), torch.ones(2, 3, 6).double(), rtol=0, atol=1e-4)
    direction = (encoding.upper @ (encoding.lower @ x[1, 5])).detach().view(3, 4)[2]
    assert float(direction @ w[1, 2, 5] / direction.norm()) == pytest.approx(1, abs=1e-4)
    z = float((encoding.weight[2] @ x[1, 5] + encoding.offset[2]).detach())
    assert beta[1, 2, 5].item() == pytest.approx(2 / (1 + math.exp(-z)))
    # Only the token itself is used: a convolution would leak position information.
    torch.testing.assert_close(
        encoding.remember(x[:, 3:4], Positions.count(1))["path_direction"], memo["path_direction"][:, :, 3:4]
    )


def test_a_zero_embedding_has_a_finite_gradient() -> None:
    x = torch.zeros(1, 4, 12, requires_grad=True)
    Attention(12, 3, encoding="path")(x, mask=masks.causal()).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_path_of_five_hundred_reflections_is_not_lost_in_half_precision(dtype: torch.dtype) -> None:
    attention = Attention(16, 2, encoding="path").to(dtype)
    x = torch.randn(1, 500, 16).to(dtype)
    actual, exact = attention(x, mask=masks.causal()), attention.double()(x.double(), mask=masks.causal())
    assert actual.dtype == dtype
    assert (actual.double() - exact).norm() / exact.norm() < 4 * torch.finfo(dtype).eps


def test_the_scalar_formula_walks_back_from_the_query() -> None:
    query = Token([1.0, 0.0], 2.0, 2)
    root = math.sqrt(0.5)
    facts = [([0.0, 1.0], 9.0), ([root, root], 1.0), ([1.0, 0.0], 0.5)]
    keys = [Token([1.0, 2.0], float(t), t, {"path_direction": w, "path_strength": b}) for t, (w, b) in enumerate(facts)]
    # H_2 halves the first channel, H_1 then leaves (0.25, -0.25); the first token's own reflection does not count.
    assert PaTH(5, 1, 2).formula_logits(query, keys, 0, 2.0) == pytest.approx([-0.5, 1.0, 2.0])


def test_what_is_learned_begins_with_the_width_that_keeps_the_size_of_tokens() -> None:
    torch.manual_seed(0)
    encoding = PaTH(400, 20, 10, rank=1)
    for table in (encoding.lower, encoding.upper, encoding.weight):
        assert table.std().item() == pytest.approx(table.shape[1] ** -0.5, rel=0.1)
    assert not encoding.offset.any()
