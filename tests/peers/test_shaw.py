"""Shaw's key term against Wav2Vec2-BERT's relative_key of transformers."""

from types import SimpleNamespace

import pytest
import torch

from posenc.encodings.content_biases.shaw import Shaw

pytest.importorskip("transformers", reason="transformers is not installed; it comes with the peers extra")


@pytest.mark.parametrize("clip", [2, 64])
def test_wav2vec2_bert_gives_the_same_with_equal_clips_on_both_sides(clip: int) -> None:
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import _apply_relative_key_position_encoding

    encoding = Shaw(5, max_distance=clip, values=False, std=1.0).double()
    module = SimpleNamespace(
        left_max_position_embeddings=clip,
        right_max_position_embeddings=clip,
        distance_embedding=lambda row: encoding.key_table[row],
        scaling=5**-0.5,
    )
    q, k = (torch.randn(2, 3, 9, 5, dtype=torch.float64) for _ in range(2))
    _, reference = _apply_relative_key_position_encoding(module, q, k)
    torch.testing.assert_close(encoding.bias(9, q=q), reference, rtol=0, atol=1e-13)


def test_its_released_clips_of_64_and_8_are_not_ours() -> None:
    """Released models clip at 64 frames back and 8 ahead; Shaw clips both sides alike."""
    from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import _apply_relative_key_position_encoding

    encoding = Shaw(5, max_distance=64, values=False, std=1.0).double()
    rows = encoding.key_table[: 64 + 8 + 1]
    module = SimpleNamespace(
        left_max_position_embeddings=64,
        right_max_position_embeddings=8,
        distance_embedding=lambda row: rows[row],
        scaling=5**-0.5,
    )
    q, k = (torch.randn(1, 1, 30, 5, dtype=torch.float64) for _ in range(2))
    _, reference = _apply_relative_key_position_encoding(module, q, k)
    visible = torch.ones(30, 30, dtype=torch.bool).tril(8)
    actual = encoding.bias(30, q=q)
    torch.testing.assert_close(actual[..., visible], reference[..., visible], rtol=0, atol=1e-13)
    # With the last row ahead repeated, both agree.
    with torch.no_grad():
        encoding.key_table[64 + 9 :] = encoding.key_table[64 + 8]
    torch.testing.assert_close(encoding.bias(30, q=q), reference, rtol=0, atol=1e-13)
