"""Position code of distances is found in the running model, read as a spec, and replaced if it is exact.

The oracle is transformers' own code on the same weights.
"""

from typing import Any

import pytest
import torch
from tiers import rest_slow
from tiny_models import states, tiny_model

transformers = pytest.importorskip("transformers")

from posenc import catalogue  # noqa: E402
from posenc.catalogue import build  # noqa: E402
from posenc.checkpoints import attach, detach  # noqa: E402
from posenc.checkpoints.formats import huggingface  # noqa: E402
from posenc.checkpoints.kinds.all_kinds import KINDS  # noqa: E402
from posenc.encoding.base import Shape  # noqa: E402

IMAGE = {"image_size": 32, "patch_size": 4, "num_channels": 3}
SWIN = IMAGE | {"embed_dim": 16, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}


def specs_of(model: Any) -> set[str]:
    return {layer.spec for part in huggingface.read(model.config).parts for layer in part.layers}


def check_attached(model: Any, spec: str, **inputs: Any) -> Any:
    """Attach, compare outputs with the bare model's, and detach: the outputs are identical again."""
    bare = states(model, **inputs)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attachment = attach(model)
    assert any(spec in replacement for replacement in attachment.replaced.values()), attachment
    assert not attachment.left
    torch.testing.assert_close(states(model, **inputs), bare, rtol=1e-4, atol=1e-4)
    detach(model)
    assert torch.equal(states(model, **inputs), bare)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    return attachment


@pytest.mark.parametrize(
    ("name", "options", "spec"),
    [
        ("Swin", {}, "grid_bias(window=(4, 4))"),
        pytest.param("DonutSwin", {}, "grid_bias(window=(4, 4))", marks=pytest.mark.slow),
        pytest.param("MaskFormerSwin", {}, "grid_bias(window=(4, 4))", marks=pytest.mark.slow),
        ("Swinv2", {}, "log_grid_bias(window=4)"),
        pytest.param("Swinv2", {"pretrained_window_sizes": [8, 6]}, "log_grid_bias", marks=pytest.mark.slow),
    ],
    ids=["Swin", "DonutSwin", "MaskFormerSwin", "Swinv2", "Swinv2 trained in other windows"],
)
def test_a_window_of_patches_is_told_of_each_stage(name: str, options: Any, spec: str) -> None:
    if name == "MaskFormerSwin":
        from transformers.models.maskformer import modeling_maskformer_swin

        config = transformers.MaskFormerSwinConfig(**SWIN)
        torch.manual_seed(0)
        model = modeling_maskformer_swin.MaskFormerSwinModel(config).eval()
    else:
        model = tiny_model(name, **SWIN | options)
    reading = huggingface.read(model.config)
    assert [(part.name, part.shape.heads, part.shape.dim, len(part.layers)) for part in reading.parts] == [
        ("layers.0", 2, 16, 2),
        ("layers.1", 4, 32, 1),
    ]
    assert reading.parts[0].layers[0].spec == spec
    assert reading.parts[0].remarks == ("attention is within windows of 4 x 4 patches",)
    assert not reading.not_covered and not reading.unknown
    check_attached(model, spec, pixel_values=torch.randn(2, 3, 32, 32))


@pytest.mark.parametrize(
    ("name", "buffer", "words"),
    [
        (
            "Swin",
            "relative_position_index",
            "for each head and kind of pair, which a buffer tells; grid_bias has others",
        ),
        pytest.param(
            *("Swinv2", "relative_coords_table", "carries position, and no spec here says how"), marks=pytest.mark.slow
        ),
    ],
)
def test_a_window_that_reads_other_rows_is_left(name: str, buffer: str, words: str) -> None:
    model = tiny_model(name, **SWIN)
    path, owner = next((path, module) for path, module in model.named_modules() if buffer in module._buffers)
    owner._buffers[buffer] = owner._buffers[buffer].flip(-1)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    bare = states(model, **inputs)
    attachment = attach(model)
    assert path not in attachment.replaced and len(attachment.replaced) == 2
    torch.testing.assert_close(states(model, **inputs), bare, rtol=1e-4, atol=1e-4)
    reading, _ = huggingface.read_live(detach(model) or model)
    assert any(path.replace(".0", ".*") in sentence and words in sentence for sentence in reading.not_covered)


def test_a_window_takes_the_encodings_of_its_kind() -> None:
    model = tiny_model("Swin", **SWIN)
    with pytest.raises(ValueError, match="is learned, not what a network makes its table; log_grid_bias"):
        attach(model, "log_grid_bias(window=4)")
    with pytest.raises(ValueError, match=r"has a window of \(4, 4\) patches, and grid_bias\(.*\) one of another size"):
        attach(model, "grid_bias(window=(5, 5))")
    with pytest.raises(ValueError, match="a network of distances makes its table; grid_bias"):
        attach(tiny_model("Swinv2", **SWIN), "grid_bias(window=(4, 4))")


def test_a_buffer_comes_back_where_the_model_is_by_then() -> None:
    model = tiny_model("Swinv2", **SWIN)
    owner = next(module for module in model.modules() if "relative_coords_table" in module._buffers)
    original = owner.relative_coords_table
    attach(model)
    assert owner.relative_coords_table is not original
    detach(model)
    assert owner.relative_coords_table is original
    attach(model)
    model.double()
    detach(model)
    assert owner.relative_coords_table.dtype == torch.float64


SPEECH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SPEECH |= {"num_mel_bins": 16, "subsampling_conv_channels": 8, "max_position_embeddings": 64}
SOUND = {"input_features": torch.randn(2, 80, 16, generator=torch.Generator().manual_seed(0))}
IDS = torch.randint(4, 97, (2, 12), generator=torch.Generator().manual_seed(0))
BERT = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
BERT |= {"max_position_embeddings": 64, "relative_attention": True}


def test_sines_of_distances_are_compared_by_a_conformer() -> None:
    model = tiny_model("Parakeet", "Encoder", "Encoder", **SPEECH)
    reading = huggingface.read(model.config)
    assert specs_of(model) == {"transformer_xl(layout='interleaved')"}
    assert not reading.not_covered and not reading.parts[0].remarks
    check_attached(model, "transformer_xl(layout='interleaved'", **SOUND)
    with pytest.raises(ValueError, match="differ: sines of distances below 1,024 by up to"):
        filled_with(model, "transformer_xl")


def test_sines_beside_what_else_a_module_gives_out_are_replaced() -> None:
    sizes = {"hidden_size": 16, "vocab_size": 97, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 8}
    sizes |= {"encoder_linear_units": 8, "decoder_linear_units": 8, "speech_decoder_postnet_units": 8}
    model = tiny_model("FastSpeech2Conformer", **sizes)
    reading = huggingface.read(model.config)
    assert {part.name for part in reading.parts} == {"encoder", "decoder"} and not reading.unknown
    attachment = check_attached(model, "transformer_xl(layout='interleaved'", input_ids=IDS)
    assert set(attachment.replaced) == {"encoder.pos_enc", "decoder.pos_enc"}
    attach(model)
    model.encoder.pos_enc.train()
    states = torch.randn(1, 300, 16)
    # In training the model drops some of the sines.
    assert (model.encoder.pos_enc(states)[1] == 0).float().mean() > 0.1
    model.encoder.pos_enc.eval()
    assert (model.encoder.pos_enc(states)[1] == 0).float().mean() < 0.1


def test_the_scale_is_that_of_keys_where_distances_are_compared_first() -> None:
    config = transformers.NemotronAsrStreamingEncoderConfig(**SPEECH)
    reading = huggingface.read(config)
    assert not reading.not_covered and reading.parts[0].layers[0].scale is None


def test_a_conformer_computes_what_is_told_of_it() -> None:
    """The weights of a layer equal the encoding's with the layer's projections."""
    model = tiny_model("Parakeet", "Encoder", "Encoder", **SPEECH)
    model.set_attn_implementation("eager")
    layer = model.layers[0].self_attn
    torch.nn.init.normal_(layer.bias_u), torch.nn.init.normal_(layer.bias_v)
    encoding: Any = huggingface.read(model.config).parts[0].encoding(0)
    with torch.no_grad():
        encoding.content_bias.copy_(layer.bias_u), encoding.distance_bias.copy_(layer.bias_v)
        encoding.weight.copy_(layer.relative_k_proj.weight)
        x = torch.randn(1, 7, 32)
        _, weights = layer(x, position_embeddings=model.encode_positions(x))
        q, k = (projection(x).view(1, 7, 4, 8).transpose(1, 2) for projection in (layer.q_proj, layer.k_proj))
        logits = q @ k.mT * 8**-0.5 + encoding.bias(7, q=q, k=k)
    torch.testing.assert_close(weights, logits.softmax(-1), rtol=1e-4, atol=1e-5)


def filled_with(model: Any, spec: str) -> None:
    """Replace the first piece by another encoding that must be exact."""
    reading, pieces = huggingface.read_live(model)
    pieces[0].fill(model, [build(spec, reading.parts[0].shape)], None, exact=True)


@pytest.mark.parametrize("name", ["Deberta", "DebertaV2"])
def test_signed_buckets_are_told_and_stay(name: str) -> None:
    config = getattr(transformers, f"{name}Config")(**BERT, pos_att_type=["c2p", "p2c"])
    reading = huggingface.read(config)
    assert any("relative_attention compares signed buckets of distances" in s for s in reading.not_covered)
    assert not any(part.is_complete for part in reading.parts)
    config.relative_attention = False
    assert not huggingface.read(config).not_covered


DINO = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "patch_size": 4}


@pytest.mark.parametrize("heads", rest_slow([16, 2], 1))
def test_patches_with_coordinates_from_minus_one_to_one_are_told_and_replaced(heads: int) -> None:
    # A number of heads that equals the number of patches must not be confused with it.
    sizes = {"image_size": 32, "hidden_size": 16 * heads, "num_attention_heads": heads}
    model = tiny_model("DINOv3ViT", **DINO | sizes)
    reading = huggingface.read(model.config)
    assert specs_of(model) == {"image_rotary"} and not reading.not_covered and not reading.unknown
    check_attached(model, "image_rotary", pixel_values=torch.randn(2, 3, 24, 40))
    attach(model)
    model.rope_embeddings.train()
    torch.manual_seed(0)
    sines = model.rope_embeddings(torch.zeros(1, 3, 24, 24))
    detach(model)
    torch.manual_seed(0)
    assert all(torch.equal(a, b) for a, b in zip(sines, model.rope_embeddings(torch.zeros(1, 3, 24, 24)), strict=True))


def test_another_period_is_measured_and_refused() -> None:
    model = tiny_model("DINOv3ViT", **DINO | {"image_size": 32, "rope_theta": 50.0})
    assert specs_of(model) == {"image_rotary(base=50)"}
    with pytest.raises(ValueError, match="and image_rotary differ: at position"):
        filled_with(model, "image_rotary")


@pytest.mark.parametrize("axes", [2, 3])
def test_axes_are_read_off_rows_that_go_round_a_pair(axes: int) -> None:
    """The fastest pair has made more than a full turn at the end of a long row."""
    if axes == 2:
        sizes = {"image_size": 96, "patch_size": 4, "window_size": 8, "global_attn_indexes": [1]}
        model = tiny_model("Sam3ViT", **DINO | sizes, pretrain_image_size=32)
    else:
        model = tiny_model("MiniMaxM3VLVision", **DINO | {"image_size": 32, "num_attention_heads": 1})
    axes_said = "" if axes == 2 else "axes=3, "
    layout = ", layout='interleaved'" if axes == 2 else ""
    assert specs_of(model) == {f"axial_rotary({axes_said}base=10000{layout})"}
    if axes == 2:
        assert "patches stand 0.333 apart, not 1, in some layers" in huggingface.read(model.config).parts[0].remarks
        inputs = {"pixel_values": torch.randn(1, 3, 96, 96)}
        bare = states(model, **inputs)
        assert set(attach(model).replaced) == {"embeddings", "layers.0.rotary_emb", "layers.1.rotary_emb"}
        torch.testing.assert_close(states(model, **inputs), bare, rtol=1e-4, atol=1e-4)


WITHOUT_KIND = {
    "none": "nothing computes it",
    "continuous_time": "no released model that transformers has adds it",
    "fourier_features": "Perceiver and SAM make them in classes of their own, which are told as left",
    "learned_factorised": "Reformer's two tables are told as left",
    "deberta": "DeBERTa's signed buckets are told as left",
    "rotary_values": "the keys of DeepSeek-V4 say it, and no module of it can be told from rotary",
    "step_temperature": "a factor of queries inside attention, which the keys say and the model's own code computes",
    "log_temperature": "no released model that transformers has sharpens by it",
    "scalable_softmax": "no released model that transformers has sharpens by it",
    "shaw": "the tables of Granite's speech encoders and of Wav2Vec2-BERT are told as left",
    "inkling": "its profiles are chosen by tokens inside attention, which are told as left",
    "dual_chunk": "a way to run rotary, which a caller asks for",
    "rerope": "a way to run rotary, which a caller asks for",
    "self_extend": "a way to run rotary, which a caller asks for",
    **dict.fromkeys(
        (
            *("fire", "kerple", "sandwich", "mlp_bias", "tupe", "dape", "forgetting", "contextual", "stick_breaking"),
            *("path", "polar", "selective_rotary", "fourier_rotary", "learned_rotary", "mixed_rotary", "xpos"),
        ),
        "transformers has no model that was released with it",
    ),
}
"""Encodings that replace no kind of piece, and why."""


@pytest.mark.parametrize("name", catalogue.names())
def test_every_encoding_is_found_in_models_or_says_why_not(name: str) -> None:
    has_kind = any(issubclass(catalogue.find(name), kind.takes) for kind in KINDS)
    assert has_kind != (name in WITHOUT_KIND), f"{name}: name its Kind in takes, or the reason in WITHOUT_KIND"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_usual_encoding_of_a_kind_is_one_that_it_takes(kind: Any) -> None:
    assert isinstance(build(kind.default_spec, Shape(32, 4, 8, 16)), kind.takes)


BLOCKS = {"vocab_size": 97, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "num_mel_bins": 5}
BLOCKS |= {"intermediate_size": 48, "context_size": 8, "max_position_embeddings": 16}


def test_an_index_of_distances_is_told_as_shaw_and_stays() -> None:
    model = tiny_model("GraniteSpeech5Encoder", kind="", part="", **BLOCKS)
    (sentence,) = huggingface.read(model.config).not_covered
    assert "a vector for each distance up to 16, as shaw; the layers clip and look up by themselves" in sentence


def test_two_sided_clips_are_told_with_their_numbers() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"feature_projection_input_dim": 16, "left_max_position_embeddings": 5, "right_max_position_embeddings": 2}
    reading = huggingface.read(transformers.Wav2Vec2BertConfig(**sizes))
    assert any("a vector for each distance from -5 to 2; shaw clips both sides alike" in s for s in reading.not_covered)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("Wav2Vec2", {"num_hidden_layers": 1}, "tells places apart by a convolution over 128 tokens"),
        ("Segformer", {}, "convolutions over 3 x 3 tokens tell attention of places"),
        ("Beit", IMAGE | BERT | {"use_relative_position_bias": True}, "has rows for a window of patches, and 3 for a"),
        (
            "Funnel",
            {"block_sizes": [1], "d_model": 32, "n_head": 4, "d_head": 8},
            "which speak of position, and no spec",
        ),
        ("Swin", {"depths": [1], "num_heads": [2], "embed_dim": 16, "use_absolute_embeddings": False}, ""),
    ],
    ids=["convolution", "depthwise", "class token", "methods", "nothing left"],
)
def test_what_the_catalogue_has_no_entry_for_is_told_with_the_reason(name: str, options: Any, sentence: str) -> None:
    reading = huggingface.read(getattr(transformers, f"{name}Config")(**options))
    assert any(sentence in note for note in reading.not_covered) == bool(sentence), reading.not_covered
    assert all("carries position" not in note for note in reading.not_covered if "conv" in note)
