"""Axial rotary encoding against timm and the vision towers of transformers."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from posenc import Positions
from posenc.encodings.rotations.axial_rotary import AxialRotary


def heads(head_dim: int, tokens: int) -> tuple[Tensor, Tensor]:
    return torch.randn(1, 2, tokens, head_dim), torch.randn(1, 2, tokens, head_dim)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_timm_turns_a_grid_as_we_do(timm_layer, half: bool, base: float) -> None:
    timm = timm_layer("pos_embed_sincos")
    peer = timm.RotaryEmbeddingCat(16, temperature=base, in_pixels=False, rotate_half=half)
    q, _ = heads(16, 15)
    expected = timm.apply_rot_embed_cat(q, peer.get_embed([3, 5]), half=half)
    encoding = AxialRotary(16, base=base, layout="half" if half else "interleaved")
    torch.testing.assert_close(encoding.query(q, Positions.grid(3, 5)), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("linear", "frequencies"), [(True, "pixel"), (False, "log_pixel")])
def test_timm_has_the_same_pixel_frequencies(timm_layer, linear: bool, frequencies: str) -> None:
    timm = timm_layer("pos_embed_sincos")
    peer = timm.RotaryEmbeddingCat(16, max_res=64, in_pixels=True, linear_bands=linear)
    q, _ = heads(16, 15)
    expected = timm.apply_rot_embed_cat(q, peer.get_embed([3, 5]))
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, 3), torch.linspace(-1, 1, 5), indexing="ij")
    at = Positions.of(torch.stack((rows, columns), -1).reshape(1, 15, 2))
    encoding = AxialRotary(16, layout="interleaved", frequencies=frequencies, resolution=64.0)
    # timm's angles reach 32 pi in float32.
    torch.testing.assert_close(encoding.query(q, at), expected, rtol=0, atol=5e-5)


def test_timm_swaps_the_coordinates_of_xy_grids_and_nothing_else(timm_layer) -> None:
    timm = timm_layer("pos_embed_sincos")
    peer = timm.RotaryEmbeddingCat(16, temperature=100.0, in_pixels=False, grid_indexing="xy")
    q, _ = heads(16, 15)
    expected = timm.apply_rot_embed_cat(q, peer.get_embed([3, 5]))
    at = Positions.of(Positions.grid(3, 5).coords.flip(-1))
    torch.testing.assert_close(AxialRotary(16, layout="interleaved").query(q, at), expected, rtol=0, atol=2e-6)


def config(base: float, head_dim: int) -> SimpleNamespace:
    return SimpleNamespace(rope_parameters={"rope_type": "axial", "rope_theta": base}, head_dim=head_dim)


def test_gemma_4_turns_patches_as_we_do() -> None:
    gemma = pytest.importorskip("transformers.models.gemma4.modeling_gemma4", reason="the peers extra is missing")
    at, (q, _) = Positions.grid(3, 5), heads(16, 15)
    cos, sin = gemma.Gemma4VisionRotaryEmbedding(config(100.0, 16))(q, at.coords)
    expected = gemma.apply_multidimensional_rope(q.transpose(1, 2), cos, sin, at.coords).transpose(1, 2)
    encoding = AxialRotary(16, layout="half_by_axis")
    torch.testing.assert_close(encoding.query(q, at), expected, rtol=0, atol=2e-6)


def test_qwen2_vl_turns_patches_as_we_do() -> None:
    qwen = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl", reason="the peers extra is missing")
    at, (q, k) = Positions.grid(3, 5), heads(16, 15)
    cos, sin = qwen.Qwen2VLVisionRotaryEmbedding(config(10_000.0, 16))(q, at.coords[0])
    expected = qwen.apply_rotary_pos_emb_vision(q[0].transpose(0, 1), k[0].transpose(0, 1), cos, sin)
    for x, y in zip(AxialRotary(16, base=10_000.0)(q, k, positions=at), expected, strict=True):
        torch.testing.assert_close(x[0], y.transpose(0, 1), rtol=0, atol=2e-6)


def test_pixtral_turns_patches_as_we_do() -> None:
    pixtral = pytest.importorskip("transformers.models.pixtral.modeling_pixtral", reason="the peers extra is missing")
    at, (q, k) = Positions.grid(3, 5), heads(16, 15)
    cos, sin = pixtral.PixtralVisionRotaryEmbedding(config(10_000.0, 16))(q, at.coords[0])
    expected = pixtral.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=0)
    actual = AxialRotary(16, base=10_000.0, frequencies="dealt")(q, k, positions=at)
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=2e-6)


def test_llama_4_counts_patches_from_one_column_first_and_leaves_its_class_token_unturned() -> None:
    llama = pytest.importorskip("transformers.models.llama4.modeling_llama4", reason="the peers extra is missing")
    config = SimpleNamespace(
        image_size=12, patch_size=3, hidden_size=32, num_attention_heads=2, rope_parameters={"rope_theta": 10_000.0}
    )
    q, k = heads(16, 17)
    table = llama.Llama4VisionRotaryEmbedding(config)(q)
    expected = llama.vision_apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), table)
    patches = Positions.grid(4, 4).coords.flip(-1) + 1
    at = Positions.of(torch.cat((patches, torch.zeros(1, 1, 2, dtype=torch.long)), 1))
    actual = AxialRotary(16, base=10_000.0, layout="interleaved")(q, k, positions=at)
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y.transpose(1, 2), rtol=0, atol=2e-6)
    assert torch.equal(actual[0][:, :, -1], q[:, :, -1])


def test_v_jepa_2_turns_the_two_channels_of_a_pair_by_different_angles_and_we_do_not() -> None:
    """A known difference: V-JEPA 2 repeats the frequencies f0 f1 .. f0 f1 .. and pairs channels 2p with 2p + 1."""
    vjepa = pytest.importorskip("transformers.models.vjepa2.modeling_vjepa2", reason="the peers extra is missing")
    q, _ = heads(64, 12)
    at = Positions.grid(3, 2, 2)
    module = SimpleNamespace(d_dim=20, h_dim=20, w_dim=20, attention_head_size=64)
    places = tuple(at.coords[0].T.float())
    reference = vjepa.VJEPA2RopeAttention.apply_rotary_embeddings(module, q, places)
    encoding = AxialRotary(64, axes=3, base=10_000.0, layout="interleaved")
    assert encoding.widths == (20, 20, 20)
    actual = encoding.query(q, at)
    torch.testing.assert_close(actual.norm(dim=-1), q.norm(dim=-1), rtol=1e-6, atol=0)
    assert (reference.norm(dim=-1) / q.norm(dim=-1) - 1).abs().max().item() > 0.01
    # The split and the unrotated channels agree with posenc; the others have the repeated frequencies.
    assert torch.equal(reference[..., 60:], q[..., 60:])
    cos = torch.stack([(p[:, None] * 10_000.0 ** -(torch.arange(10) / 10)).repeat(1, 2).cos() for p in places], 1)
    sin = torch.stack([(p[:, None] * 10_000.0 ** -(torch.arange(10) / 10)).repeat(1, 2).sin() for p in places], 1)
    x = q[..., :60]
    partner = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    torch.testing.assert_close(reference[..., :60], x * cos.flatten(1) + partner * sin.flatten(1), rtol=0, atol=2e-6)
