"""The initial loss is near ln V for every option of embedding and output."""

import math

import pytest
import torch
import torch.nn.functional as F

from posenc import Decoder, EncoderDecoder, TokenPositionEmbedding


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("encoding", ["rotary", "sinusoidal", "learned"])
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("vocab", "dim"), [(11, 32), (256, 64), (256, 512), (2000, 256)])
def test_the_first_loss_is_that_of_a_guess(vocab: int, dim: int, tied, scale, encoding, norm_first) -> None:
    model = Decoder(vocab, dim, 4, 2, encoding, max_len=64, tie_output=tied, scale_tokens=scale, norm_first=norm_first)
    ids = torch.randint(vocab, (4, 33))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()
    assert abs(loss - math.log(vocab)) < 0.5


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("tied", [False, True])
def test_so_is_that_of_an_encoder_decoder(tied: bool, norm_first: bool) -> None:
    model = EncoderDecoder(256, 128, 4, 2, tie_output=tied, norm_first=norm_first)
    ids = torch.randint(256, (4, 33))
    loss = F.cross_entropy(model(ids, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()
    assert abs(loss - math.log(256)) < 0.5


def test_a_tied_table_begins_with_the_deviation_that_it_says() -> None:
    assert TokenPositionEmbedding(50_257, 256, tied=True).std == 0.02
    table = TokenPositionEmbedding(1000, 512, tied=True)
    assert table.std == (math.log(1000) - 1.2) / 512 < 0.02
    assert table.token.weight.std().item() == pytest.approx(table.std, rel=0.01)
    assert TokenPositionEmbedding(10, 64).std == 1 and TokenPositionEmbedding(10, 64, scale=True).std == 1 / 8
