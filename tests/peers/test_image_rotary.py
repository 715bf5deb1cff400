"""Image rotary encoding against DINOv3 in timm and transformers."""

from types import SimpleNamespace

import pytest
import torch

from posenc.encodings.rotations.image_rotary import ImageRotary, augmented, normalised_grid


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize(("side", "name"), [("each", "separate"), ("longest", "max"), ("shortest", "min")])
def test_timm_turns_patches_as_we_do(timm_layer, half: bool, side: str, name: str) -> None:
    timm = timm_layer("pos_embed_sincos")
    peer = timm.RotaryEmbeddingDinoV3(16, normalize_coords=name, rotate_half=half).eval()
    q = torch.randn(1, 2, 15, 16)
    expected = timm.apply_rot_embed_cat(q, peer.get_embed([3, 5]), half=half)
    actual = ImageRotary(16, layout="half" if half else "interleaved").query(q, normalised_grid(3, 5, side=side))
    torch.testing.assert_close(actual, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    "options", [{"shift": 0.5}, {"jitter": 1.5}, {"rescale": 2.0}, {"shift": 0.5, "jitter": 1.5, "rescale": 2.0}]
)
def test_timm_draws_the_same_augmentation_from_the_same_seed(timm_layer, options: dict) -> None:
    timm = timm_layer("pos_embed_sincos")
    peer = timm.RotaryEmbeddingDinoV3(16, **{f"{name}_coords": value for name, value in options.items()}).train()
    q = torch.randn(1, 2, 15, 16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        expected = timm.apply_rot_embed_cat(q, peer.get_embed([3, 5]), half=True)
    actual = ImageRotary(16).query(q, augmented(normalised_grid(3, 5), seed=11, **options))
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("training", [False, True])
def test_transformers_turns_patches_as_we_do(training: bool) -> None:
    dinov3 = pytest.importorskip(
        "transformers.models.dinov3_vit.modeling_dinov3_vit", reason="the peers extra is missing"
    )
    config = SimpleNamespace(
        rope_theta=100.0,
        hidden_size=32,
        num_attention_heads=2,
        image_size=32,
        patch_size=4,
        pos_embed_shift=None,
        pos_embed_jitter=None,
        pos_embed_rescale=2.0,
    )
    q, k = torch.randn(1, 2, 17, 16), torch.randn(1, 2, 17, 16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        cos, sin = dinov3.DINOv3ViTRopePositionEmbedding(config).train(training)(torch.zeros(1, 3, 12, 20))
    expected = dinov3.apply_rotary_pos_emb(q, k, cos, sin)
    at = normalised_grid(3, 5)
    at = augmented(at, seed=5, rescale=2.0) if training else at
    for x, y in zip((q, k), expected, strict=True):
        torch.testing.assert_close(ImageRotary(16).query(x[:, :, 2:], at), y[:, :, 2:], rtol=0, atol=2e-5)
