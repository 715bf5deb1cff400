"""DAPE agrees with its network evaluated for every pair."""

import pytest
import torch
from torch import Tensor

from posenc import Attention, Positions, masks
from posenc.encodings.added.learned import Learned
from posenc.encodings.content_biases.forgetting import Forgetting
from posenc.encodings.content_biases.shaw import Shaw
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.encodings.none import NoPE
from posenc.encodings.rotations.rotary import Rotary
from posenc.encodings.rules.stick_breaking import StickBreaking
from posenc.encodings.wrappers.dape import DAPE


def pair_by_pair(encoding: DAPE, logits: Tensor, bias: Tensor) -> Tensor:
    """Return A + B + f([A; B]) in float64, one pair at a time."""
    state = {name: p.detach().double().tolist() for name, p in encoding.named_parameters() if "encoding" not in name}
    B, _, T, S = logits.shape
    out = torch.zeros_like(logits)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                a, c = logits[b, :, t, s].tolist(), bias[b, :, t, s].tolist()
                hidden = []
                for row, offset in zip(state["first.weight"], state["first.bias"], strict=True):
                    z = sum(w * x for w, x in zip(row, a + c, strict=True)) + offset
                    hidden.append(z if z > 0 else 0.01 * z)
                for h, (row, offset) in enumerate(zip(state["second.weight"], state["second.bias"], strict=True)):
                    out[b, h, t, s] = a[h] + c[h] + sum(w * x for w, x in zip(row, hidden, strict=True)) + offset
    return out


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("spec", ["dape(alibi, width=5)", "dape(alibi)", "rotary + dape(alibi, width=5)"])
def test_the_network_corrects_every_pair_from_all_heads(kernel: str, kv_heads: int, spec: str) -> None:
    attention = Attention(12, 3, kv_heads=kv_heads, encoding=spec, kernel=kernel).double()
    whole = attention.encoding
    assert whole is not None
    (encoding,) = (module for module in whole.modules() if isinstance(module, DAPE))
    x, at = torch.randn(2, 6, 12, dtype=torch.float64), Positions.count(6)
    q = whole.query(attention.split(attention.q_proj(x), 3), at)
    k = whole.key(attention.split(attention.k_proj(x), kv_heads), at).repeat_interleave(3 // kv_heads, 1)
    v = attention.split(attention.v_proj(x), kv_heads).repeat_interleave(3 // kv_heads, 1)
    bias = ALiBi(3).bias(6, dtype=torch.float64).expand(2, -1, -1, -1)
    logits = pair_by_pair(encoding, (q @ k.mT / 2).detach(), bias)
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    expected = logits.masked_fill(~visible, -torch.inf).softmax(-1) @ v
    expected = attention.o_proj(expected.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, mask=masks.causal()), expected, rtol=0, atol=1e-7)


def test_another_bias_beside_it_is_added_and_not_seen_by_the_network() -> None:
    calls: list[Tensor] = []
    attention = Attention(12, 3, encoding="alibi + dape(alibi)").double()
    (encoding,) = (module for module in attention.modules() if isinstance(module, DAPE))
    corrections = encoding.corrections
    encoding.corrections = lambda pairs: calls.append(pairs) or corrections(pairs)  # type: ignore[method-assign]
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    _, weights = attention(x, mask=masks.causal(), need_weights=True)
    (pairs,) = calls
    torch.testing.assert_close(pairs[:, 3:], ALiBi(3).bias(5, dtype=torch.float64), rtol=0, atol=0)
    total = pairs[:, :3] + 2 * pairs[:, 3:] + corrections(pairs)
    total = total.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(weights, total.softmax(-1), rtol=0, atol=1e-7)


@pytest.mark.parametrize("bias", [Shaw(4, max_distance=2, values=False), Forgetting(12, 3)])
def test_biases_that_read_queries_or_gates_can_be_adapted(bias) -> None:
    attention = Attention(12, 3, encoding=DAPE(bias, heads=3))
    out = attention(torch.randn(1, 5, 12), mask=masks.causal())
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bias.parameters())


def test_far_biases_reach_the_network_unrounded_in_bfloat16() -> None:
    encoding = DAPE(ALiBi(2), heads=2, width=4).bfloat16()
    pairs = torch.tensor([0.0, 0.0, -1000.5, -62.53125])[None, :, None, None]
    exact = encoding.corrections(pairs.double())
    torch.testing.assert_close(encoding.corrections(pairs).double(), exact, rtol=1e-5, atol=1e-4)


def test_one_head_has_no_formula() -> None:
    with pytest.raises(NotImplementedError, match="mixes the logits of all heads"):
        DAPE(ALiBi(2), heads=2).formula_logit([1.0], [1.0], 1, 0, 0, 1.0)


@pytest.mark.parametrize("encoding", [Rotary(4), NoPE(), Shaw(4), Learned(12, 8), StickBreaking()])
def test_only_a_bias_can_be_adapted(encoding) -> None:
    with pytest.raises(ValueError, match=r"dape adapts a bias and nothing else, as in dape\(kerple\); .* opens "):
        DAPE(encoding, heads=3)
