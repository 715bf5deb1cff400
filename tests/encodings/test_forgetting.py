"""Forgetting attention agrees with sums computed token by token."""

import math

import pytest
import torch
from torch import Tensor

from posenc import Attention, Keys, Positions, masks
from posenc.encoding.formulas import Token
from posenc.encodings.content_biases.forgetting import Forgetting


def written_out(gates: Tensor, at: Positions, keys_at: Positions) -> Tensor:
    """Return the float64 sums [B, H, T, S] of ln f between key and query."""
    B, H, S = gates.shape
    T = at.tokens
    bias = torch.zeros(B, H, T, S, dtype=torch.float64)
    i, j = at.order.expand(B, -1).tolist(), keys_at.order.expand(B, -1).tolist()
    for b in range(B):
        for t in range(T):
            for s in range(S):
                path = [k for k in range(S) if j[b][s] < j[b][k] <= i[b][t] and j[b][k] >= 0]
                if at.document is not None and keys_at.document is not None:
                    path = [k for k in path if keys_at.document[0, k] == at.document[0, t]]
                for h in range(H):
                    bias[b, h, t, s] = math.fsum(gates[b, h, k].item() for k in path)
    return bias


def bias_of(encoding: Forgetting, gates: Tensor, at: Positions, keys_at: Positions) -> Tensor:
    q = torch.zeros(gates.shape[0], encoding.heads, at.tokens, 4, dtype=gates.dtype)
    k = torch.zeros(gates.shape[0], 1, keys_at.tokens, 4, dtype=gates.dtype)
    return encoding.biases(q, at, Keys(k, k, keys_at, {"forgetting": gates}))[0].dense(gates.dtype)


IN_ORDER = Positions.count(9)
SHUFFLED_ORDER = torch.tensor([[4, 0, 8, 2, 6, 1, 7, 3, 5]])
INTERLEAVED = Positions(torch.arange(9)[None, :, None], torch.arange(9)[None], torch.arange(9)[None] % 2)
PLACES = {
    "counted": (IN_ORDER, IN_ORDER),
    "a later query": (Positions.count(2, 7), IN_ORDER),
    "out of order, anywhere": (IN_ORDER, Positions(SHUFFLED_ORDER[..., None] * 0.5 - 3, SHUFFLED_ORDER)),
    "padded inside": (2 * (Positions.padded(torch.tensor([[0, 1, 1, 0, 1, 1, 1, 0, 1], [1] * 9])),)),
    "packed": (2 * (Positions.packed([4, 5]),)),
    "documents in turns": (2 * (INTERLEAVED,)),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_gates_between_key_and_query_are_added_up(place: str) -> None:
    at, keys_at = PLACES[place]
    gates = torch.nn.functional.logsigmoid(torch.randn(2, 3, 9, dtype=torch.float64))
    actual = bias_of(Forgetting(5, 3), gates, at, keys_at)
    visible = masks.bidirectional().allowed(at, keys_at).expand_as(actual)
    torch.testing.assert_close(actual[visible], written_out(gates, at, keys_at)[visible], rtol=0, atol=1e-12)


def test_a_gate_forgets_half_at_first_and_less_than_a_hundredth_when_it_starts_at_five() -> None:
    x = torch.randn(1, 1, 6)
    for start, share in ((0.0, 0.5), (5.0, 0.993307)):
        gate = Forgetting(6, 2, start=start, std=0.0).remember(x, Positions.count(1))["forgetting"]
        assert gate.exp().flatten().tolist() == pytest.approx([share, share], abs=1e-6)


def test_gates_are_the_log_sigmoid_of_one_token_alone() -> None:
    encoding = Forgetting(4, 3, std=1.0).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    gates = encoding.remember(x, Positions.count(5))["forgetting"].detach()
    for b, h, t in ((0, 0, 0), (1, 2, 4), (0, 1, 3)):
        z = float(encoding.weight[h].detach() @ x[b, t] + encoding.offset[h].detach())
        assert gates[b, h, t].item() == pytest.approx(math.log(1 / (1 + math.exp(-z))), abs=1e-12)
        assert encoding.formula_gate(x[b, t].tolist(), h) == pytest.approx(gates[b, h, t].item(), abs=1e-12)
    assert encoding.formula_gate([1e3] * 4, 0) <= 0 and encoding.formula_gate([-1e3] * 4, 0) <= 0


def test_the_sum_is_added_to_the_scaled_logit_and_does_not_multiply_the_weight() -> None:
    encoding = Forgetting(4, 1)
    query = Token([1.0, 2.0], 2.0, 2)
    keys = [Token([3.0, 1.0], float(t), t, {"forgetting": gate}) for t, gate in enumerate((-9.0, -0.5, -0.25))]
    # The key's own gate does not count, and nothing is divided by the square root of the head dimension.
    assert encoding.formula_logits(query, keys, 0, 0.1) == pytest.approx([0.5 - 0.75, 0.5 - 0.25, 0.5])
    weights = encoding.formula_weights(encoding.formula_logits(query, keys, 0, 0.1), query, keys)
    assert weights[0] / weights[2] == pytest.approx(math.exp(-0.75)) and math.fsum(weights) == pytest.approx(1)


def test_a_token_that_the_mask_hides_is_forgotten_through_all_the_same() -> None:
    attention = Attention(12, 3, encoding=Forgetting(12, 3, std=1.0)).double()
    x = torch.randn(1, 4, 12, dtype=torch.float64)
    visible = torch.tensor([True, False, True, True]).expand(4, 4).tril()
    _, weights = attention(x, mask=visible, need_weights=True)
    x[:, 1] += 1
    _, changed_weights = attention(x, mask=visible, need_weights=True)
    assert not weights[..., 1].any() and (weights - changed_weights)[:, :, 3].abs().max() > 1e-3


@pytest.mark.parametrize("way", ["bfloat16", "float16", "autocast"])
def test_almost_open_gates_are_not_rounded_shut_in_half_precision(way: str) -> None:
    encoding, x = Forgetting(8, 2, start=9.0, std=0.0), torch.randn(1, 4096, 8)
    at = Positions.count(4096)
    if way == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            gates = encoding.remember(x, at)["forgetting"]
    else:
        dtype = getattr(torch, way)
        gates = encoding.to(dtype).remember(x.to(dtype), at)["forgetting"]
    assert gates.dtype == torch.float32
    # ln sigmoid(9) is -0.000123, far below bfloat16's spacing near 1; after 4,095 tokens the factor is about half.
    last = bias_of(encoding.float(), gates, at.rows(slice(4095, 4096)), at)[0, 0, 0, 0].item()
    assert last == pytest.approx(-4095 * math.log1p(math.exp(-9)), rel=1e-3)


def test_near_keys_keep_their_precision_after_a_hundred_thousand_tokens() -> None:
    at = Positions.count(100_000)
    gates = torch.full((1, 1, 100_000), -math.log(2))
    bias = bias_of(Forgetting(4, 1), gates, at.rows(slice(99_999, 100_000)), at)[0, 0, 0]
    # At a prefix sum of -69,315 the float32 spacing is 0.0078.
    assert bias[-4:].tolist() == pytest.approx([-3 * math.log(2), -2 * math.log(2), -math.log(2), 0], rel=1e-6)
