"""Mixed rotary encoding against timm."""

import pytest
import torch

from posenc import Positions
from posenc.encodings.rotations.mixed_rotary import MixedRotary


@pytest.mark.parametrize("grid", ["ij", "xy"])
def test_timm_turns_patches_as_we_do(timm_layer, grid: str) -> None:
    timm = timm_layer("pos_embed_sincos")
    peer = timm.RotaryEmbeddingMixed(48, depth=2, num_heads=3, grid_indexing=grid)
    q, at = torch.randn(1, 3, 15, 16), Positions.grid(3, 5)
    at = at if grid == "ij" else Positions.of(at.coords.flip(-1))
    for layer in range(2):
        expected = timm.apply_rot_embed_cat(q, peer.get_embed([3, 5])[layer])
        encoding = MixedRotary(3, 16, layout="interleaved")
        with torch.no_grad():
            encoding.frequencies.copy_(peer.freqs[:, layer].permute(1, 2, 0))
        torch.testing.assert_close(encoding.query(q, at), expected, rtol=0, atol=5e-6)


def test_timm_starts_from_the_same_magnitudes_and_perpendicular_copies(timm_layer) -> None:
    frequencies = timm_layer("pos_embed_sincos").init_random_2d_freqs(16, 1, 3)
    reference = frequencies[:, 0].permute(1, 2, 0)  # [heads, pairs, 2]
    actual = MixedRotary(3, 16).frequencies.detach()
    torch.testing.assert_close(actual.norm(dim=-1), reference.norm(dim=-1), rtol=1e-5, atol=0)
    for f in (actual, reference):
        first, second = f.chunk(2, 1)
        torch.testing.assert_close(second, torch.stack((-first[..., 1], first[..., 0]), -1), rtol=0, atol=1e-6)
