"""Multimodal rotary encoding against Qwen2-VL and Qwen3-VL in transformers, and timm."""

from types import SimpleNamespace

import pytest
import torch

from posenc import Positions
from posenc.encodings.rotations.multimodal_rotary import MultimodalRotary, text_and_grids


@pytest.mark.parametrize(
    ("module", "name", "order", "sections"),
    [
        ("qwen2_vl.modeling_qwen2_vl", "Qwen2VLRotaryEmbedding", "chunked", (16, 24, 24)),
        ("qwen3_vl.modeling_qwen3_vl", "Qwen3VLTextRotaryEmbedding", "interleaved", (24, 20, 20)),
    ],
)
def test_qwen_turns_text_and_images_as_we_do(module: str, name: str, order: str, sections: tuple[int, ...]) -> None:
    qwen = pytest.importorskip(f"transformers.models.{module}", reason="the peers extra is missing")
    config = SimpleNamespace(
        max_position_embeddings=512,
        head_dim=128,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6, "mrope_section": list(sections)},
    )
    at = text_and_grids(3, (2, 3, 5), 4)
    q, k = torch.randn(2, 3, at.tokens, 128), torch.randn(2, 1, at.tokens, 128)
    cos, sin = getattr(qwen, name)(config)(q, at.coords.movedim(-1, 0).expand(3, 2, -1))
    expected = qwen.apply_rotary_pos_emb(q, k, cos, sin)
    encoding = MultimodalRotary(128, base=1e6, order=order)
    assert encoding.sections_in_use == sections
    for x, y in zip(encoding(q, k, positions=at), expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def test_timm_cuts_sections_down_in_silence_and_we_name_what_it_takes(timm_layer) -> None:
    """A known difference: GenLIP's (8, 12, 12) of 32 pairs acts as (11, 11, 10)."""
    timm = timm_layer("pos_embed_sincos")
    peer = timm.RotaryEmbeddingMRope(64, mrope_section=(8, 12, 12))
    q = torch.randn(1, 2, 15, 64)
    expected = timm.apply_rot_embed_cat(q, peer.get_embed([3, 5]), half=True)
    with pytest.raises(ValueError, match=r"say sections=\(11, 11, 10\)"):
        MultimodalRotary(64, sections=(8, 12, 12), order="interleaved")
    patches = Positions.grid(1, 3, 5)
    actual = MultimodalRotary(64, sections=(11, 11, 10), order="interleaved").query(q, patches)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


def test_text_and_grids_have_the_positions_that_qwen2_vl_gives_them() -> None:
    qwen = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl", reason="the peers extra is missing")
    stub = SimpleNamespace(
        config=SimpleNamespace(
            vision_config=SimpleNamespace(spatial_merge_size=2),
            image_token_id=7,
            video_token_id=8,
            vision_start_token_id=6,
        )
    )
    # Two words and the start token, an image of 4 by 6 patches merged two by two, one word.
    ids = torch.tensor([[1, 2, 6] + [7] * 6 + [3]])
    model = qwen.Qwen2VLModel
    stub.get_vision_position_ids = lambda *args, **options: model.get_vision_position_ids(stub, *args, **options)
    options = {"mm_token_type_ids": (ids == 7).int(), "image_grid_thw": torch.tensor([[1, 4, 6]])}
    places, _ = model.get_rope_index(stub, ids, **options)
    expected = text_and_grids(3, (1, 2, 3), 1).coords
    assert torch.equal(places.movedim(0, -1), expected)
