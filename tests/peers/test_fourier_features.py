"""Fourier features against timm's bands, Perceiver and SAM in transformers."""

import types

import pytest
import torch

from posenc import Positions
from posenc.encodings.added.fourier_features import FourierFeatures

REASON = "the peers extra is not installed"


@pytest.mark.parametrize(("linear", "kind"), [(True, "linear"), (False, "log2")])
def test_timm_has_the_same_bands(timm_layer, linear: bool, kind: str) -> None:
    peer = timm_layer("pos_embed_sincos")
    reference = peer.pixel_freq_bands(8, 224.0, linear_bands=linear) / torch.pi
    actual = FourierFeatures(16, 224, kind=kind).frequencies
    torch.testing.assert_close(actual.float(), reference, rtol=1e-6, atol=0)


@pytest.mark.parametrize("axes", [1, 2])
def test_perceiver_has_the_same_waves_in_another_order(axes: int) -> None:
    peer = pytest.importorskip("transformers.models.perceiver.modeling_perceiver", reason=REASON)
    sizes, K = (9,) * axes, 5
    place = peer.build_linear_positions(sizes).view(1, -1, axes)
    reference = peer.generate_fourier_features(place, K, max_resolution=sizes, concat_pos=False)
    encoding = FourierFeatures(2 * K * axes, 9, axes=axes)
    at = Positions.grid(*sizes)
    actual = encoding.encode(at).float()
    # Known difference: Perceiver has the sines of all axes before all cosines.
    waves = actual.view(*actual.shape[:2], axes, 2, K).transpose(2, 3).flatten(2)
    torch.testing.assert_close(waves, reference.view_as(waves), rtol=0, atol=1e-5)


def test_sam_agrees_with_its_random_directions_and_cell_centres() -> None:
    peer = pytest.importorskip("transformers.models.sam.modeling_sam", reason=REASON)
    layer = peer.SamPositionalEmbedding(types.SimpleNamespace(scale=1.0, num_pos_feats=8))
    encoding, at = FourierFeatures(16, 12, axes=2, kind="gaussian", centres=True, seed=4), Positions.grid(12, 12)
    with torch.no_grad():
        layer.positional_embedding.copy_(torch.tensor(encoding.random_frequencies).view(2, 8))
        # SAM adds half a cell and divides by the size outside of the layer.
        reference = layer(((at.coords.float() + 0.5) / 12).view(1, 12, 12, 2)).view(1, 144, 16)
    torch.testing.assert_close(encoding.encode(at).float(), reference, rtol=0, atol=2e-5)
