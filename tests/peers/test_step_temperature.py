"""StepTemperature against transformers' Llama 4, Ministral 3 and Inkling."""

import pytest
import torch
from torch import Tensor

from posenc import Attention, Positions, masks
from posenc.encodings.temperatures.step_temperature import StepTemperature


def factors(encoding: StepTemperature, at: Positions) -> Tensor:
    return encoding.query(torch.ones(1, 1, at.tokens, 1, dtype=torch.float64), at)[0, 0, :, 0]


@pytest.mark.parametrize("interval", [3, 100, 16384])
def test_ministral(interval: int) -> None:
    pytest.importorskip("transformers", reason="the peers extra is not installed")
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale

    ids = torch.cat((torch.arange(1000), torch.tensor([2**17 - 1, 2**17, 262_143, 1_000_000])))
    reference = get_llama_4_attn_scale(ids[None], 0.1, interval)[0, 0, :, 0]
    actual = factors(StepTemperature(interval=interval, form="ministral"), Positions.of(ids))
    torch.testing.assert_close(actual, reference.double(), rtol=0, atol=3e-7)


def attention_pair():
    """Return an Attention and a tiny Llama 4 layer with equal weights. The layer is one of four without rotary."""
    pytest.importorskip("transformers", reason="the peers extra is not installed")
    from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

    config = Llama4TextConfig(
        hidden_size=24,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
        num_hidden_layers=4,
        floor_scale=4,
        attn_scale=0.7,
        attn_implementation="eager",
    )
    peer = Llama4TextAttention(config, layer_idx=3).double().eval()
    assert not peer.use_rope
    spec = "step_temperature(interval=4, strength=0.7)"
    layer = Attention(24, 3, kv_heads=1, head_dim=8, encoding=spec, bias=False).double()
    layer.load_state_dict(peer.state_dict())
    return layer, peer


def test_llama4() -> None:
    layer, peer = attention_pair()
    x = 3 * torch.randn(2, 13, 24, dtype=torch.float64)
    mask = torch.zeros(13, 13, dtype=torch.float64).masked_fill(
        torch.ones(13, 13, dtype=torch.bool).triu(1), -torch.inf
    )
    expected, _ = peer(x, (x, x), mask[None, None])
    # transformers computes the logarithm in float32.
    torch.testing.assert_close(layer(x, mask=masks.causal()), expected, rtol=0, atol=1e-6)


def test_padding_on_the_left_does_not_move_llamas_steps() -> None:
    layer, peer = attention_pair()
    x = 3 * torch.randn(1, 9, 24, dtype=torch.float64)
    alone = layer(x, mask=masks.causal())
    x = torch.cat((torch.randn(1, 3, 24, dtype=torch.float64), x), 1)
    present = torch.tensor([[0] * 3 + [1] * 9])
    padded = layer(x, positions=Positions.padded(present), mask=masks.causal())
    torch.testing.assert_close(padded[:, 3:], alone, rtol=0, atol=1e-12)
    # Known difference: transformers counts tensor indices here, padding included, so its steps come too early.
    visible = torch.ones(12, 12, dtype=torch.bool).tril() & (present == 1)
    mask = torch.zeros(12, 12, dtype=torch.float64).masked_fill(~visible, torch.finfo(torch.float64).min)
    difference = (peer(x, (x, x), mask[None, None])[0][:, 3:] - alone).abs().max()
    assert difference > 1e-3


def test_inkling() -> None:
    pytest.importorskip("transformers", reason="the peers extra is not installed")
    from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig

    config = Inkling2TextConfig()
    encoding = StepTemperature(interval=config.log_scaling_n_floor, strength=config.log_scaling_alpha, form="inkling")
    assert (encoding.interval, encoding.strength) == (128_000, 0.1)
