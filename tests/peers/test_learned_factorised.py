"""LearnedFactorised against Reformer's axial position embeddings."""

import types

import pytest
import torch

from posenc import Positions
from posenc.encodings.added.learned_factorised import LearnedFactorised


def axial(training: bool):
    peer = pytest.importorskip(
        "transformers.models.reformer.modeling_reformer", reason="the peers extra is not installed"
    )
    config = types.SimpleNamespace(
        axial_pos_shape=(4, 6),
        axial_pos_embds_dim=(3, 5),
        hidden_dropout_prob=0.0,
        hidden_size=8,
        attn_layers=["local"],
        local_attn_chunk_length=4,
    )
    layer = peer.AxialPositionEmbeddings(config).train(training)
    encoding = LearnedFactorised(8, grid=(4, 6), widths=(3, 5))
    with torch.no_grad():
        for weight, table in zip(layer.weights, encoding.tables, strict=True):
            weight.normal_()
            table.copy_(weight.flatten(0, 1))
    return layer, encoding


@pytest.mark.parametrize("training", [False, True])
def test_reformer_agrees_on_every_position(training: bool) -> None:
    layer, encoding = axial(training)
    reference = layer(torch.arange(24)[None])
    assert torch.equal(encoding(torch.zeros(1, 24, 8)), reference)


def test_reformer_agrees_on_ids_in_any_order_and_refuses_to_train_on_fewer() -> None:
    layer, encoding = axial(False)
    ids = torch.tensor([[23, 0, 7], [5, 6, 1]])
    assert torch.equal(encoding(torch.zeros(2, 3, 8), positions=ids), layer(ids))
    # Known difference: Reformer trains on exactly 24 tokens.
    with pytest.raises(ValueError, match="If training, make sure"):
        layer.train()(ids)
    assert encoding.train()(torch.zeros(2, 3, 8), positions=ids).shape == (2, 3, 8)


def test_a_position_past_the_tables_is_an_error_in_both() -> None:
    _, encoding = axial(False)
    with pytest.raises(ValueError, match="position 24 is out of learned tables of 4 x 6 positions"):
        encoding(torch.zeros(1, 1, 8), positions=Positions.count(1, start=24))
