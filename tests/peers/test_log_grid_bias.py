"""LogGridBias, the log-spaced continuous position bias, against transformers' Swin-V2 and timm."""

import types

import pytest
import torch

from posenc import Positions
from posenc.encodings.distance_biases.log_grid_bias import LogGridBias

REASON = "the peers extra is not installed"


@pytest.mark.parametrize(("window", "trained_window"), [(4, 0), (7, 0), (6, 4)])
def test_transformers_has_the_same_bias_in_its_swin_v2(window: int, trained_window: int) -> None:
    peer = pytest.importorskip("transformers.models.swinv2.modeling_swinv2", reason=REASON)
    config = types.SimpleNamespace(qkv_bias=True, attention_probs_dropout_prob=0.0)
    peer_layer = peer.Swinv2SelfAttention(config, 12, 3, window, [trained_window, trained_window])
    encoding = LogGridBias(3, window=trained_window or window)
    network = peer_layer.continuous_position_bias_mlp
    with torch.no_grad():
        encoding.hidden.load_state_dict(network[0].state_dict())
        encoding.out.load_state_dict(network[2].state_dict())
        table = network(peer_layer.relative_coords_table).view(-1, 3)
    expected = 16 * table[peer_layer.relative_position_index].sigmoid().permute(2, 0, 1)
    torch.testing.assert_close(encoding.bias(Positions.grid(window, window))[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "trained_window"), [(4, 0), (6, 4)])
def test_timm_has_the_same_bias_in_its_swin_mode(window: int, trained_window: int, timm_layer) -> None:
    peer = timm_layer("pos_embed_rel").RelPosMlp(
        (window, window), 3, hidden_dim=512, mode="swin", pretrained_window_size=(trained_window, trained_window)
    )
    encoding = LogGridBias(3, window=trained_window or window)
    encoding.hidden.load_state_dict(peer.mlp.fc1.state_dict())
    encoding.out.load_state_dict(peer.mlp.fc2.state_dict())
    torch.testing.assert_close(
        encoding.bias(Positions.grid(window, window)), peer.eval().get_bias(), rtol=1e-5, atol=1e-5
    )
