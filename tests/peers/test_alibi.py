"""ALiBi against x_transformers and the released models of transformers."""

import math

import pytest
import torch
from torch import Tensor

from posenc import Positions, Shape, build
from posenc.encodings.distance_biases.alibi import ALiBi

REASON = "the peers extra is not installed"


def weights(bias: Tensor) -> Tensor:
    """Return the causal softmax of a bias [..., T, T]."""
    future = torch.ones(bias.shape[-2:], dtype=torch.bool).triu(1)
    return bias.double().masked_fill(future, -torch.inf).softmax(-1)


@pytest.mark.parametrize(("heads", "total"), [(1, 1), (3, 3), (8, 8), (12, 12), (2, 3), (6, 8)])
def test_x_transformers_has_the_same_bias_also_on_chosen_heads(heads: int, total: int) -> None:
    peer = pytest.importorskip("x_transformers.x_transformers", reason=REASON)
    reference = peer.AlibiPositionalBias(heads, total)
    encoding = build(f"on(alibi, heads={tuple(range(heads))})", Shape(24, total, 4, 32))
    torch.testing.assert_close(encoding.bias(20)[0], reference(20, 20), rtol=1e-6, atol=0)
    at = torch.tensor([[0.0, 3.5, 9, 9], [4.0, 1, 0, 200]])
    torch.testing.assert_close(encoding.bias(at), reference.forward_custom_pos(at), rtol=1e-6, atol=0)


@pytest.mark.parametrize("heads", [3, 8, 12])
def test_blooms_bias_gives_the_same_weights_in_float32(heads: int) -> None:
    peer = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason=REASON)
    reference = peer.build_alibi_tensor(torch.ones(1, 40), heads, torch.float32).expand(-1, 40, -1)
    torch.testing.assert_close(weights(ALiBi(heads).bias(40)[0]), weights(reference), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("tokens", "values", "error"), [(512, 33, 1.0), (4096, 5, 4.5)])
@pytest.mark.parametrize("model", ["bloom", "falcon"])
def test_half_precision_stays_near_double_where_theirs_collapses(
    model: str, tokens: int, values: int, error: float
) -> None:
    # Known difference: slope times position in bfloat16, which rounds positions past 256.
    peer = pytest.importorskip(f"transformers.models.{model}.modeling_{model}", reason=REASON)
    reference = peer.build_alibi_tensor(torch.ones(1, tokens), 8, torch.bfloat16)[0, 0, -64:].double()
    assert reference.unique().numel() == values
    exact = -0.5 * torch.arange(63, -1, -1, dtype=torch.float64)
    # The softmax ignores a constant, so the differences to the query's own position are compared.
    assert (reference - reference[-1] - exact).abs().max().item() == error
    actual = ALiBi(8).bfloat16().bias(Positions.count(1, start=tokens - 1), Positions.count(tokens))[0, 0, 0, -64:]
    assert actual.double().equal(exact)


@pytest.mark.parametrize("heads", [2, 3, 8])
def test_falcon_divides_the_bias_by_the_root_of_the_heads_width(heads: int) -> None:
    transformers = pytest.importorskip("transformers", reason=REASON)
    peer = pytest.importorskip("transformers.models.falcon.modeling_falcon", reason=REASON)
    config = transformers.FalconConfig(
        vocab_size=16, hidden_size=heads * 16, num_hidden_layers=1, num_attention_heads=heads, alibi=True,
        new_decoder_architecture=False, multi_query=False,
    )  # fmt: skip
    model, masks = peer.FalconModel(config).eval(), []
    model.h[0].self_attention.register_forward_pre_hook(
        lambda _, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    with torch.no_grad():
        # With zero queries and keys, the attention weights are the softmax of the bias.
        model.h[0].self_attention.query_key_value.weight.zero_()
        attentions = model(torch.zeros(1, 12, dtype=torch.long), output_attentions=True).attentions[0][0]
    bias = ALiBi(heads, form="falcon", head_dim=16).bias(12)[0]
    # Positions below 256 and slopes that are powers of two are exact in bfloat16.
    torch.testing.assert_close(masks[0][0].double().softmax(-1), weights(bias), rtol=0, atol=1e-6)
    assert (weights(ALiBi(heads).bias(12)[0]) - weights(bias)).abs().max() > 0.02
    # Known difference: unlike Falcon's sdpa path, this path adds the bias to a mask that already has it.
    torch.testing.assert_close(attentions.double(), weights(2 * bias), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bias_max", [8, 4, 16])
@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12])
def test_mpts_bias_is_that_of_the_last_query(heads: int, bias_max: int) -> None:
    peer = pytest.importorskip("transformers.models.mpt.modeling_mpt", reason=REASON)
    reference = peer.build_mpt_alibi_tensor(heads, 30, alibi_bias_max=bias_max)
    actual = ALiBi(heads, bias_max=float(bias_max)).bias(Positions.count(1, start=29), Positions.count(30))
    torch.testing.assert_close(actual[0], reference, rtol=1e-6, atol=0)


def test_tokens_past_the_trained_length_are_served_where_mpt_fails() -> None:
    transformers = pytest.importorskip("transformers", reason=REASON)
    peer = pytest.importorskip("transformers.models.mpt.modeling_mpt", reason=REASON)
    config = transformers.MptConfig(d_model=16, n_heads=2, n_layers=1, max_seq_len=8, vocab_size=11)
    model = peer.MptModel(config).eval()
    assert model(torch.zeros(1, 8, dtype=torch.long)).last_hidden_state.shape == (1, 8, 16)
    # Known difference: MPT's table has max_seq_len positions.
    with pytest.raises(RuntimeError, match="size of tensor"):
        model(torch.zeros(1, 12, dtype=torch.long))
    bias = build("alibi", Shape(16, 2, 8, max_len=8)).bias(12)
    assert bias[0, 0, 11, 0].item() == -11 / 16 and math.isfinite(bias.sum())
