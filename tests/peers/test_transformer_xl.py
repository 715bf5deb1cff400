"""TransformerXL against transformers' XLNet and Wav2Vec2-BERT, which shift tensors instead."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from posenc import Keys, Positions, masks
from posenc.encodings.content_biases.transformer_xl import TransformerXL
from posenc.kernels import bind

pytest.importorskip("transformers", reason="transformers is not installed; it comes with the peers extra")


def reference_logits(encoding: TransformerXL, q: Tensor, k: Tensor, start: int = 0) -> Tensor:
    """Return all four terms over sqrt(head_dim), for queries from `start` on and keys from 0."""
    at, keys_at = Positions.count(q.shape[2], start), Positions.count(k.shape[2])
    kernel = bind("reference", encoding, scale=q.shape[-1] ** -0.5)
    return kernel.logits(encoding, q, at, Keys(k, k, keys_at), masks.bidirectional())


@pytest.mark.parametrize("clamp", [-1, 4])
@pytest.mark.parametrize(("attn_type", "memory"), [("bi", 0), ("uni", 0), ("bi", 5), ("uni", 5)])
def test_xlnet_gives_the_same(attn_type: str, memory: int, clamp: int) -> None:
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    T, H, D, dim = 7, 3, 4, 12
    torch.manual_seed(0)
    layer = XLNetRelativeAttention(
        SimpleNamespace(d_model=dim, n_head=H, d_head=D, layer_norm_eps=1e-12, dropout=0.0)
    ).double()
    layer.scale = 1.0 / D**0.5
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    model = SimpleNamespace(d_model=dim, attn_type=attn_type, bi_data=False, clamp_len=clamp)
    model.positional_embedding = XLNetModel.positional_embedding
    r = XLNetModel.relative_positional_encoding(model, T, T + memory, bsz=2).double()
    encoding = TransformerXL(dim, H, D, max_distance=None if clamp < 0 else clamp).double()
    with torch.no_grad():
        encoding.content_bias.copy_(layer.r_w_bias)
        encoding.distance_bias.copy_(layer.r_r_bias)
        encoding.weight.copy_(layer.r.flatten(1).T)
    q, k = torch.randn(2, H, T, D).double(), torch.randn(2, H, T + memory, D).double()
    v = torch.eye(T + memory).double()[:, None, None].expand(-1, 2, H, -1)  # the output is then the weights
    reference = layer.rel_attn_core(
        q.permute(2, 0, 1, 3), k.permute(2, 0, 1, 3), v, torch.einsum("ibh,hnd->ibnd", r, layer.r)
    ).permute(1, 2, 0, 3)
    actual = reference_logits(encoding, q, k, memory)
    if attn_type == "uni":
        # XLNet's table then ends at distance 0: future keys get another distance's row, and are always masked.
        past = torch.ones(T, T + memory, dtype=torch.bool).tril(memory)
        reference, actual = (w.masked_fill(~past, 0.0) for w in (reference, actual.softmax(-1)))
        reference, actual = reference / reference.sum(-1, keepdim=True), actual / actual.sum(-1, keepdim=True)
    else:
        actual = actual.softmax(-1)
    # XLNet's sinusoid is float32.
    torch.testing.assert_close(actual, reference, rtol=0, atol=3e-6)


def test_wav2vec2_bert_gives_the_same_in_the_interleaved_layout() -> None:
    from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as peer

    T, H, D = 9, 2, 5
    dim = H * D
    torch.manual_seed(0)
    table = peer.Wav2Vec2BertRelPositionalEmbedding(SimpleNamespace(max_source_positions=20, hidden_size=dim))
    linear = torch.nn.Linear(dim, dim, bias=False, dtype=torch.float64)
    u, v = torch.randn(2, H, D, dtype=torch.float64)
    module = SimpleNamespace(linear_pos=linear, head_size=D, pos_bias_u=u, pos_bias_v=v, scaling=D**-0.5)
    q, k = (torch.randn(2, H, T, D, dtype=torch.float64) for _ in range(2))
    r = table(torch.zeros(1, T, dim, dtype=torch.float64))
    rotated_q, bias = peer._apply_relative_position_encoding(module, q, k, r)
    encoding = TransformerXL(dim, H, D, layout="interleaved").double()
    with torch.no_grad():
        encoding.content_bias.copy_(u)
        encoding.distance_bias.copy_(v)
        encoding.weight.copy_(linear.weight)
    expected = rotated_q @ k.transpose(-1, -2) * D**-0.5 + bias
    torch.testing.assert_close(reference_logits(encoding, q, k), expected, rtol=0, atol=3e-6)
