"""CoPE agrees with the published equations in plain loops."""

import math

import pytest
import torch
from torch import Tensor

from posenc import Positions, masks
from posenc.encoding.formulas import Token
from posenc.encoding.keys import Keys
from posenc.encodings.content_biases.contextual import Contextual

IN_ORDER = Positions.count(7)


def published_logits(encoding: Contextual, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> Tensor:
    """Return q_i . e(p_ij), scaled or not, computed pair by pair, [B, H, T, S]."""
    group, root = q.shape[1] // k.shape[1], math.sqrt(q.shape[-1])
    B, H, T, S = *q.shape[:3], k.shape[2]
    table = encoding.table.detach()
    i, j = at.order.expand(B, -1), keys_at.order.expand(B, -1)
    visible = masks.causal().allowed(at, keys_at).expand(B, 1, T, S)[:, 0]
    bias = torch.zeros(B, H, T, S, dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                gates = torch.sigmoid(k[b, h // group] @ q[b, h, t] / root).tolist()
                rows = (table @ q[b, h, t]).tolist()
                for s in range(S):
                    later = [c for c in range(S) if visible[b, t, c] and j[b, s] <= j[b, c] <= i[b, t]]
                    p = min(math.fsum(gates[c] for c in later), encoding.positions - 1)
                    low, high = math.floor(p), math.ceil(p)
                    at_low, at_high = rows[low], rows[high]
                    value = at_low if low == high else (high - p) * at_low + (p - low) * at_high
                    bias[b, h, t, s] = value / root if encoding.divided else value
    return bias


def random(heads: int = 3, kv_heads: int = 3, tokens: int = 7, keys: int = 7) -> tuple[Tensor, Tensor]:
    return (
        2 * torch.randn(2, heads, tokens, 4, dtype=torch.float64),
        torch.randn(2, kv_heads, keys, 4, dtype=torch.float64),
    )


def perturbed_encoding(positions: int = 4, divided: bool = True) -> Contextual:
    encoding = Contextual(4, positions=positions, divided=divided).double()
    torch.nn.init.normal_(encoding.table)
    return encoding


ORDER = torch.tensor([[4, 0, 6, 2, 1, 5, 3]])
INTERLEAVED = Positions(torch.arange(7)[None, :, None], torch.arange(7)[None], torch.arange(7)[None] % 2)
PLACES = {
    "counted": (IN_ORDER, IN_ORDER),
    "later queries": (Positions.count(7, 3), IN_ORDER),
    "out of order, anywhere": (Positions(ORDER[..., None], ORDER), Positions(ORDER[..., None] * 0.5, ORDER)),
    "padded": (2 * (Positions.padded(torch.tensor([[0, 1, 1, 0, 1, 1, 1], [1] * 7])),)),
    "packed": (2 * (Positions.packed([3, 4]),)),
    "documents in turns": (2 * (INTERLEAVED,)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("divided", [True, False])
@pytest.mark.parametrize("kv_heads", [3, 1])
def test_each_key_stands_where_the_query_counts_it(place: str, divided: bool, kv_heads: int) -> None:
    at, keys_at = PLACES[place]
    encoding, (q, k) = perturbed_encoding(divided=divided), random(kv_heads=kv_heads)
    actual = encoding.bias(at, keys_at, q=q, k=k)
    expected = published_logits(encoding, q, k, at, keys_at)
    visible = masks.bidirectional().allowed(at, keys_at).expand_as(actual)
    torch.testing.assert_close(actual[visible], expected[visible], rtol=0, atol=1e-12)


def test_a_gate_belongs_to_the_pair_and_not_to_the_token() -> None:
    q, k = random()
    position = perturbed_encoding(positions=50).position(q, IN_ORDER, Keys(k, k, IN_ORDER))
    # With one gate per token, two queries would give equal counts to the tokens both see.
    difference = position[:, :, :, 0] - position[:, :, :, 1]
    assert (difference[:, :, 2:].amax(-1) - difference[:, :, 2:].amin(-1)).min() > 0.05
    again = perturbed_encoding(positions=50).position(q, IN_ORDER, Keys(k, k, IN_ORDER))
    gates = (q * k).sum(-1).div(2).sigmoid()
    torch.testing.assert_close(again.diagonal(dim1=2, dim2=3), gates, rtol=0, atol=1e-12)


def test_open_gates_count_every_token_and_closed_gates_none() -> None:
    q, encoding = torch.full((1, 1, 7, 4), 30.0), Contextual(4, positions=5)
    for sign, expected in ((1, (IN_ORDER.order.T - IN_ORDER.order + 1).clamp(0, 4)), (-1, torch.zeros(7, 7))):
        position = encoding.position(q, IN_ORDER, Keys(sign * q, q, IN_ORDER))[0, 0]
        torch.testing.assert_close(position, expected.float(), rtol=0, atol=1e-6)


def test_a_key_after_the_query_stands_at_position_zero() -> None:
    encoding, (q, k) = perturbed_encoding(), random()
    bias = encoding.bias(7, q=q, k=k)
    zero = (q @ encoding.table[0] / 2)[..., None].expand_as(bias)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    torch.testing.assert_close(bias[..., future], zero[..., future], rtol=0, atol=1e-12)


def test_it_starts_as_no_position_and_its_table_is_shared_by_the_heads() -> None:
    q, k = random()
    assert not Contextual(4).double().bias(7, q=q, k=k).any()
    assert [tuple(p.shape) for p in Contextual(4, positions=9).parameters()] == [(9, 4)]


def test_the_scalar_formula_is_the_published_one() -> None:
    encoding = Contextual(2, positions=3).double()
    encoding.table.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    query = Token([1.0, -1.0], 2.0, 2)
    # Each gate is one half, so the counts are 1.5, 1 and 0.5, and 0 after the query.
    keys = [Token([0.5, 0.5], 0.0, order) for order in (0, 1, 2, 3)]
    biases = [-0.5, -1.0, 0.0, 1.0]
    assert encoding.formula_logits(query, keys, 0, 7.0) == pytest.approx([a / math.sqrt(2) for a in biases])


def test_a_thousand_half_open_gates_are_all_counted_in_half_precision() -> None:
    zeros = torch.zeros(1, 1, 1001, 4, dtype=torch.bfloat16)
    keys = Keys(zeros, zeros, Positions.count(1001))
    position = Contextual(4, positions=2000).bfloat16().position(zeros[:, :, -1:], Positions.count(1, 1000), keys)
    assert position[0, 0, 0, 0].item() == 500.5
