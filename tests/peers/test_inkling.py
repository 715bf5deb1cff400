"""Inkling's bias against transformers and x-transformers."""

import pytest
import torch
from torch import Tensor

from posenc import Keys, Positions, masks
from posenc.encodings.content_biases.inkling import Inkling
from posenc.kernels import bind


def reference_logits(encoding: Inkling, x: Tensor, at: Positions, keys_at: Positions) -> Tensor:
    zeros = [x.new_zeros(x.shape[0], encoding.heads, n, 4) for n in (at.tokens, keys_at.tokens)]
    keys = Keys(zeros[1], zeros[1], keys_at, {}, encoding.remember(x, at))
    return bind("reference", encoding, scale=1.0).logits(encoding, zeros[0], at, keys, masks.bidirectional())


@pytest.mark.parametrize(("T", "S"), [(9, 9), (3, 12)])
@pytest.mark.parametrize("extent", [4, 50])
def test_transformers_gives_the_same(extent: int, T: int, S: int) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed; it comes with the peers extra")
    from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

    peer = InklingRelativeLogits(5, extent).double()
    torch.nn.init.normal_(peer.proj)
    encoding = Inkling(7, 3, max_distance=extent, rank=5).double()
    with torch.no_grad():
        encoding.profiles.copy_(peer.proj)
    x, at, keys_at = torch.randn(2, T, 7).double(), Positions.count(T, S - T), Positions.count(S)
    mixture = encoding.to_mixture(x).view(2, T, 3, 5)
    expected = peer(mixture, at.coords[0, :, 0], keys_at.coords[0, :, 0])
    torch.testing.assert_close(reference_logits(encoding, x, at, keys_at), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("T", "S"), [(9, 9), (3, 12)])
def test_x_transformers_gives_the_same_without_its_bias_on_the_mixture(T: int, S: int) -> None:
    module = pytest.importorskip("x_transformers.x_transformers", reason="the peers extra is not installed")
    peer = module.RelativeProjPositionalBias(7, 3, num_distance_basis=5, max_dist=4).double()
    encoding = Inkling(7, 3, max_distance=4, rank=5).double()
    with torch.no_grad():
        encoding.profiles.copy_(peer.distance_bank)
        encoding.to_mixture.weight.copy_(peer.to_distance_weights[0].weight)
    x, at, keys_at = torch.randn(2, T, 7).double(), Positions.count(T, S - T), Positions.count(S)
    actual, with_bias = reference_logits(encoding, x, at, keys_at), peer(x, S)
    # x-transformers' Linear has a bias, unlike the released models, and adds a profile to every token's own.
    assert (actual - with_bias).abs().max() > 1e-3
    with torch.no_grad():
        peer.to_distance_weights[0].bias.zero_()
    torch.testing.assert_close(actual, peer(x, S), rtol=0, atol=1e-12)
