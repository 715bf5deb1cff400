"""Each kind of position code is found in the running model, read as a spec and replaced.

The oracle is transformers' own code on the same weights.
"""

from typing import Any

import pytest
import torch
from tiers import rest_slow
from tiny_models import states, tiny_model
from torch import Tensor

transformers = pytest.importorskip("transformers")

from posenc.catalogue import build  # noqa: E402
from posenc.checkpoints import attach, detach, inspect  # noqa: E402
from posenc.checkpoints.formats import huggingface  # noqa: E402
from posenc.checkpoints.inspection import configs  # noqa: E402
from posenc.checkpoints.inspection.inspect import reading_as_json  # noqa: E402
from posenc.checkpoints.inspection.portrait import describe_reading  # noqa: E402
from posenc.checkpoints.kinds.kind import Mismatch  # noqa: E402
from posenc.checkpoints.kinds.rotary.module import RotaryTable, TableForm  # noqa: E402
from posenc.checkpoints.models.dry_run import run_dry  # noqa: E402
from posenc.encoding.base import Shape  # noqa: E402

BERT = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
BERT |= {"max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
T5 = {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "pad_token_id": 0}
BART = {"vocab_size": 97, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
IDS = torch.randint(4, 97, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MPNet", {}),
        ("Esm", {"position_embedding_type": "absolute", "token_dropout": False, "mask_token_id": 3}),
        ("Longformer", {"attention_window": 8}),
        ("Luke", {"entity_vocab_size": 9, "entity_emb_size": 32}),
        ("Roberta", {}),
    ],
    ids=lambda inputs: inputs if isinstance(inputs, str) else "",
)
@pytest.mark.parametrize("mask", rest_slow(["none", "left", "ones", "right"], 2))
def test_a_table_behind_the_row_of_padding_is_read_at_the_same_rows(name: str, options: Any, mask: str) -> None:
    model = tiny_model(name, **BERT | options)
    ids, inputs = IDS.clone(), {}
    if mask != "none":
        inputs["attention_mask"] = torch.ones_like(ids)
    if mask in ("right", "left"):
        real = slice(0, 8) if mask == "right" else slice(4, 12)
        ids[0], inputs["attention_mask"][0] = 1, 0
        ids[0, real], inputs["attention_mask"][0, real] = IDS[0, real], 1
    bare = states(model, input_ids=ids, **inputs)
    attachment = attach(model)
    assert any("position_embeddings" in path for path in attachment.replaced)
    present = inputs.get("attention_mask", torch.ones_like(ids)).bool()
    torch.testing.assert_close(states(model, input_ids=ids, **inputs)[present], bare[present], rtol=1e-4, atol=1e-4)
    detach(model)
    assert torch.equal(states(model, input_ids=ids, **inputs), bare)


@pytest.mark.parametrize("name", rest_slow(["Bart", "Marian", "M2M100", "Pegasus", "MBart", "Blenderbot"], 3))
def test_a_subclass_of_embedding_that_counts_by_itself_is_seen(name: str) -> None:
    model = tiny_model(name, **BART, pad_token_id=1)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS.flip(0), "attention_mask": torch.ones_like(IDS)}
    bare = states(model, **inputs)
    replacements = attach(model).replaced
    assert {path.partition(".")[0] for path in replacements} == {"encoder", "decoder"}
    sines = name in ("Pegasus", "Marian", "M2M100")
    assert all(spec.startswith("sinusoidal" if sines else "learned") for spec in replacements.values())
    torch.testing.assert_close(states(model, **inputs), bare, rtol=1e-4, atol=1e-4)


def test_distilbert_is_no_llama() -> None:
    config = transformers.DistilBertConfig(dim=64, hidden_dim=64, n_heads=4, n_layers=2).to_dict()
    reading = configs.read(config)
    assert reading.format == "transformers" and reading.parts[0].embed.startswith("learned")
    sines = configs.read(config | {"sinusoidal_pos_embds": True, "n_layers": 1})
    assert sines.parts[0].embed.startswith(("sinusoidal", "learned"))


def test_a_rotary_module_that_never_runs_is_no_position_code() -> None:
    options = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = tiny_model("Falcon", **options, alibi=True, new_decoder_architecture=False)
    reading = huggingface.read(model.config)
    assert {layer.spec for layer in reading.parts[0].layers} == {"alibi(form='falcon')"}
    assert "rotary_emb.inv_freq is built and turns nothing" in reading.parts[0].remarks
    with pytest.raises(ValueError, match="ALiBi of FalconModel is made by a function, which stays as it is"):
        attach(model)


@pytest.mark.parametrize("name", rest_slow(["T5", "UMT5", "MT5", "LongT5"], 2))
def test_buckets_are_told_of_each_stack(name: str) -> None:
    options = T5 | {"decoder_start_token_id": 0, **({"num_decoder_layers": 2} if name != "T5" else {})}
    model = tiny_model(name, **options)
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS.flip(0), "attention_mask": torch.ones_like(IDS)}
    bare = states(model, **inputs)
    reading = huggingface.read(model.config)
    assert [(part.name, part.layers[0].spec) for part in reading.parts] == [
        ("encoder", "t5_bias(causal=False)"),
        ("decoder", "t5_bias"),
    ]
    assert not reading.not_covered
    replacements = attach(model).replaced
    assert {path.partition(".")[0] for path in replacements} == {"encoder", "decoder"}
    torch.testing.assert_close(states(model, **inputs), bare, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("base", rest_slow([10_000.0, 5e6, 2e6], 2))
def test_pairs_of_time_height_and_width_are_told_with_any_base(base: float) -> None:
    rope = {"rope_type": "default", "rope_theta": base, "mrope_section": [16, 24, 24]}
    text = {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = transformers.Qwen2VLTextConfig(**text, intermediate_size=48, vocab_size=97, rope_parameters=rope)
    reading = huggingface.read(config)
    assert all("multimodal_rotary" in layer.spec for layer in reading.parts[0].layers), reading
    assert not reading.contradictions


def test_an_image_tower_does_not_count_the_positions_of_text(tmp_path: Any) -> None:
    text = BERT | {"project_dim": 32}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
    vision |= {"image_size": 32, "patch_size": 8}
    model = tiny_model("AltCLIP", text_config=text, vision_config=vision, projection_dim=16)
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "pixel_values": torch.randn(2, 3, 32, 32)}
    with torch.no_grad():
        bare = model(**inputs).text_embeds
        attach(model)
        torch.testing.assert_close(model(**inputs).text_embeds, bare, rtol=1e-4, atol=1e-4)
    detach(model)
    model.save_pretrained(tmp_path)
    assert {part.name for part in inspect(tmp_path).parts} == {"text_config", "vision_config"}


def test_a_live_model_is_not_touched_by_being_read() -> None:
    model = tiny_model("Roberta", **BERT).bfloat16().train()
    calls: list[Any] = []
    model.register_forward_hook(lambda *call: calls.append(call))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    reading, pieces = huggingface.read_live(model)
    assert reading.parts[0].embed == "learned" and pieces[0].path == "embeddings.position_embeddings"
    assert not calls and model.training and model.dtype == torch.bfloat16
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


VIT = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
WHISPER = {"vocab_size": 97, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 8}
WHISPER |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
WHISPER |= {"max_source_positions": 20, "max_target_positions": 30, "pad_token_id": 1, "bos_token_id": 0}
WHISPER |= {"eos_token_id": 2, "decoder_start_token_id": 3}
SPEECH = {"input_feat_per_channel": 8, "num_conv_layers": 1, "conv_kernel_sizes": [3], "conv_channels": 16}
CTRL = {"vocab_size": 97, "n_positions": 64, "n_embd": 32, "dff": 48, "n_layer": 1, "n_head": 4}
DETR = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
DETR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_queries": 5}
BACKBONE = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1] * 4, "layer_type": "basic"}


def sound(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


TABLES = {
    "ASTModel, added whole": (
        ("AST", VIT | {"max_length": 32, "num_mel_bins": 24}),
        {"input_values": sound(2, 32, 24)},
        {"": "learned"},
    ),
    "Whisper, in slices, sines beside it": (
        ("Whisper", WHISPER),
        {"input_features": sound(2, 8, 40), "decoder_input_ids": IDS},
        {"encoder": "sinusoidal(layout='concatenated', endpoint=True)", "decoder": "learned"},
    ),
    "Speech2Text, sines in buffers": (
        ("Speech2Text", {key: BART[key] for key in BART if "max" not in key} | SPEECH | {"pad_token_id": 1}),
        {"input_features": sound(2, 20, 8), "decoder_input_ids": IDS},
        {part: "sinusoidal(layout='concatenated', endpoint=True)" for part in ("encoder", "decoder")},
    ),
    "CTRL, put back by its own forward": (
        ("CTRL", CTRL),
        {"input_ids": IDS},
        {"": "sinusoidal(layout='concatenated')"},
    ),
    "Audio Flamingo 3, an embedding whose weight is added": (
        (
            "AudioFlamingo3Encoder",
            {
                "num_mel_bins": 8,
                "hidden_size": 32,
                "num_attention_heads": 4,
                "num_hidden_layers": 1,
                "intermediate_size": 48,
                "max_source_positions": 20,
            },
        ),
        {"input_features": sound(2, 8, 40), "input_features_mask": torch.ones(2, 40)},
        {"": "learned"},
    ),
    "SAM 3 Lite's text, resampled to its length": (
        ("Sam3LiteTextText", VIT | {"vocab_size": 97, "max_position_embeddings": 20}),
        {"input_ids": IDS},
        {"": "learned"},
    ),
    "SAM, an axis for rows and one for columns": (
        ("SamVision", VIT | {"image_size": 32, "patch_size": 8, "output_channels": 8, "mlp_dim": 48, "window_size": 2}),
        {"pixel_values": sound(2, 3, 32, 32)},
        {"": "learned_grid(grid=(4, 4))"},
    ),
    "DINOv2 with registers, resampled in a way of its own": (
        ("Dinov2WithRegisters", VIT | {"image_size": 32, "patch_size": 8, "num_register_tokens": 2}),
        {"pixel_values": sound(2, 3, 48, 24)},
        {"": "learned_grid(grid=(4, 4), prefix=1)"},
    ),
    "VitPose, behind a row that is added to all": (
        ("VitPoseBackbone", VIT | {"image_size": [32, 24], "patch_size": [8, 8], "num_channels": 3}),
        {"pixel_values": sound(2, 3, 32, 24)},
        {"": "learned_grid(grid=(4, 3), prefix=1)"},
    ),
    "VitDet, resampled behind a row that is not read": (
        ("VitDet", VIT | {"image_size": 32, "patch_size": 8, "pretrain_image_size": 48}),
        {"pixel_values": sound(2, 3, 32, 32)},
        {"": "learned_grid(grid=(6, 6), prefix=1)"},
    ),
    "PegasusX, computed by a module": (
        ("PegasusX", BART | {"pad_token_id": 0, "block_size": 4, "num_global_tokens": 4}),
        {"input_ids": IDS, "decoder_input_ids": IDS.flip(0)},
        {part: "sinusoidal(layout='concatenated', endpoint=True)" for part in ("encoder", "decoder")},
    ),
    "RoFormer, sines that feed turns": (
        ("RoFormer", BERT | {"embedding_size": 32}),
        {"input_ids": IDS},
        {"": "rotary(layout='interleaved')"},
    ),
}


def build_model(name: str, options: dict[str, Any]) -> Any:
    if name != "VitPoseBackbone":
        return tiny_model(name, **options)
    torch.manual_seed(0)
    model = transformers.VitPoseBackbone(transformers.VitPoseBackboneConfig(**options)).eval()
    torch.nn.init.normal_(model.embeddings.position_embeddings)
    return model


@pytest.mark.parametrize("case", TABLES)
def test_a_table_is_told_and_computed_however_it_is_read(case: str, tmp_path: Any) -> None:
    (name, options), inputs, specs = TABLES[case]
    model = build_model(name, options)

    @torch.no_grad()
    def run() -> Tensor:
        out = model(**inputs)
        if isinstance(out, Tensor):
            return out
        return out.logits if "logits" in out else out[0] if isinstance(out[0], Tensor) else out[0][0]

    bare = run()
    model.save_pretrained(tmp_path)
    # A backbone cannot be built from its config alone.
    reading = huggingface.read_live(model)[0] if "Backbone" in name else inspect(tmp_path)
    actual_specs = {part.name: part.embed if part.embed != "none" else part.layers[0].spec for part in reading.parts}
    assert actual_specs == specs and not reading.contradictions
    assert name in ("SamVision", "VitDet") or (not reading.not_covered and not reading.unknown)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    assert len(attach(model).replaced) == len(specs)
    torch.testing.assert_close(run(), bare, rtol=1e-4, atol=1e-4)
    detach(model)
    assert torch.equal(run(), bare)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_layers_that_no_key_counts_are_those_that_ran() -> None:
    model = tiny_model("Bert", **BERT | {"num_hidden_layers": 3})
    vars(model.config)["num_hidden_layers"] = None
    part = huggingface.read_live(model)[0].parts[0]
    assert part.embed == "learned" and len(part.layers) == 3


def test_the_frames_of_a_video_share_a_grid() -> None:
    from transformers.models.videoprism.modeling_videoprism import VideoPrismVisionModel

    layers = {"num_spatial_layers": 1, "num_temporal_layers": 1, "num_frames": 4, "tubelet_size": [1, 8, 8]}
    sizes = {key: VIT[key] for key in VIT if "layers" not in key} | layers | {"image_size": 24}
    model = VideoPrismVisionModel(transformers.VideoPrismVisionConfig(**sizes)).eval()
    trace = run_dry(model, {"pixel_values_videos": torch.zeros(1, 4, 3, 24, 24)})
    assert trace.patches["spatial_embeddings.position_embeddings"] == (3, 3)
    assert trace.added_rows["temporal_embeddings.position_embeddings"] == 0


def test_a_table_of_one_axis_that_is_resampled_says_so() -> None:
    options = {"vocab_size": 97, "max_position_embeddings": 20}
    part = huggingface.read({"model_type": "sam3_lite_text_text_model"} | VIT | options).parts[0]
    assert part.remarks[0].endswith("is resampled by the model's own code before it is added")


def test_a_table_for_each_layer_is_no_grid() -> None:
    sizes = VIT | {"num_hidden_layers": 4, "image_size": [32, 32], "patch_size": 8, "num_detection_tokens": 20}
    reading = huggingface.read({"model_type": "yolos"} | sizes)
    assert not reading.parts and any("mid_position_embeddings" in sentence for sentence in reading.not_covered)


def test_a_grid_is_known_by_its_height_and_width() -> None:
    sizes = VIT | {"patch_size": 8, "pos_emb_height": 6, "pos_emb_width": 6, "layer_types": ["full_attention"]}
    reading = huggingface.read({"model_type": "muse_glimmer_vision"} | sizes)
    assert reading.parts[0].embed == "learned_grid(grid=(6, 6))" and not reading.unknown and not reading.not_covered


def test_a_large_table_and_keys_of_rotary_where_nothing_turns_are_understood() -> None:
    sizes = {"patch_size": 8, "max_image_size": 8 * 400, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    reading = huggingface.read({"model_type": "hunyuan_vl_vision"} | VIT | sizes)
    # 400 x 400 rows of 32 numbers exceed the limit of a skeleton.
    assert reading.parts[0].embed == "learned_grid(grid=(400, 400), prefix=1)"
    assert not reading.unknown and not reading.not_covered


@pytest.mark.parametrize("name", ["LayoutLM", "Lilt"])
def test_the_sides_of_boxes_have_tables_beside_that_of_positions(name: str) -> None:
    model = tiny_model(name, **BERT | {"hidden_size": 48}, max_2d_position_embeddings=40, channel_shrink_ratio=1)
    reading = huggingface.read_live(model)[0]
    assert not reading.unknown and not reading.not_covered
    corners, sides = torch.arange(24).view(2, 12), torch.arange(24).flip(0).view(2, 12) % 7
    mask, first = torch.ones_like(IDS).index_fill(1, torch.arange(4), 0), 2 if name == "Lilt" else 0
    inputs = {
        "input_ids": torch.where(mask.bool(), IDS, 1),
        "attention_mask": mask,
        "bbox": torch.stack((corners, corners.flip(1), corners + sides, corners.flip(1) + sides), -1),
        "position_ids": torch.where(mask.bool(), mask.cumsum(1) - 1 + first, max(first - 1, 0)),
    }
    bare = states(model, **inputs)
    del inputs["position_ids"]
    replacements = attach(model).replaced
    assert {path.rpartition(".")[2] for path in replacements} >= {f"{axis}_position_embeddings" for axis in "xyhw"}
    torch.testing.assert_close(states(model, **inputs)[mask.bool()], bare[mask.bool()], rtol=1e-4, atol=1e-4)


TEXT = {"vocab_size": 97, "embed_dim": 32, "layers": 1, "ffn_dim": 48, "attention_heads": 4, "pad_token_id": 1}


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_table_that_counts_from_tokens_of_padding_keeps_doing_so(side: str) -> None:
    from transformers.models.kosmos2.modeling_kosmos2 import Kosmos2TextModel

    torch.manual_seed(0)
    model = Kosmos2TextModel(transformers.models.kosmos2.Kosmos2Config(text_config=TEXT).text_config).eval()
    ids, mask = IDS.clone(), torch.ones_like(IDS)
    padding = slice(8, 12) if side == "right" else slice(0, 4)
    ids[0, padding], mask[0, padding] = 1, 0
    bare = states(model, input_ids=ids, attention_mask=mask)
    attach(model)
    filled_states = states(model, input_ids=ids, attention_mask=mask)
    torch.testing.assert_close(filled_states[mask.bool()], bare[mask.bool()], rtol=1e-4, atol=1e-4)


def test_sines_of_a_model_that_cannot_be_run_are_known_by_their_numbers() -> None:
    series = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 1}
    sizes = {key: BART[key] for key in BART if key not in ("vocab_size", "max_position_embeddings")}
    model = tiny_model("TimeSeriesTransformer", **series, **sizes)
    inputs = {
        "past_values": sound(2, 10),
        "past_time_features": sound(2, 10, 1),
        "past_observed_mask": torch.ones(2, 10),
    }
    inputs |= {"future_values": sound(2, 4), "future_time_features": sound(2, 4, 1)}
    bare = states(model, **inputs)
    spec = "sinusoidal(layout='concatenated')"
    assert list(attach(model).replaced.values()) == [spec, spec]
    torch.testing.assert_close(states(model, **inputs), bare, rtol=1e-4, atol=1e-4)


def musicgen() -> Any:
    from transformers.models.musicgen.modeling_musicgen import MusicgenDecoder

    sizes = {"hidden_size": 32, "ffn_dim": 48, "num_attention_heads": 4, "num_hidden_layers": 1, "num_codebooks": 1}
    config = transformers.MusicgenDecoderConfig(vocab_size=97, **sizes, pad_token_id=96, bos_token_id=96)
    return MusicgenDecoder(config).eval()


def test_sines_behind_their_cosines_are_sines() -> None:
    model = musicgen()
    bare = states(model, input_ids=IDS)
    assert list(attach(model).replaced.values()) == ["sinusoidal(layout='cosines_first', endpoint=True)"]
    torch.testing.assert_close(states(model, input_ids=IDS), bare, rtol=1e-4, atol=1e-4)


def test_computed_numbers_by_no_rule_that_is_known_are_not_called_learned() -> None:
    model = musicgen()
    model.embed_positions.weights.square_()
    reading = huggingface.read_live(model)[0]
    assert not reading.parts and "embed_positions.weights (Musicgen" in reading.not_covered[0]


@pytest.mark.parametrize("name", rest_slow(["TableTransformer", "DeformableDetr", "Detr"], 2))
def test_sines_on_two_axes_follow_the_padding_of_an_image(name: str) -> None:
    backbone = transformers.ResNetConfig(**BACKBONE, out_features=["stage3", "stage4"][name != "DeformableDetr" :])
    model = tiny_model(name, use_timm_backbone=False, backbone=None, backbone_config=backbone, **DETR)
    module = next(m for m in model.modules() if "SinePosition" in type(m).__name__)
    part = huggingface.read(model.config).parts[0]
    first = "one half" if name == "DeformableDetr" else "1"
    assert part.embed == "sinusoidal(axes=2)" and not part.is_complete
    assert f"rows and columns are counted from {first}, and the last is brought to 2 pi" in part.remarks[0]
    mask = torch.ones(2, 64, 96, dtype=torch.long)
    mask[1, 40:], mask[1, :, 70:] = 0, 0
    inputs = {"pixel_values": sound(2, 3, 64, 96), "pixel_mask": mask}
    outputs: list[Tensor] = []
    with torch.no_grad():
        bare = model(**inputs).last_hidden_state
        handle = module.register_forward_hook(lambda _, args, kwargs, out: outputs.append(out), with_kwargs=True)
        (path,) = attach(model).replaced
        assert torch.equal(mask, inputs["pixel_mask"]) and type(model.get_submodule(path)) is not type(module)
        torch.testing.assert_close(model(**inputs).last_hidden_state, bare, rtol=1e-4, atol=1e-4)
        assert not outputs
        detach(model)
        assert model.get_submodule(path) is module and torch.equal(model(**inputs).last_hidden_state, bare)
    handle.remove()


def test_sines_that_a_module_does_not_compute_are_refused() -> None:
    model = tiny_model("PegasusX", **BART, pad_token_id=0, block_size=4, num_global_tokens=4)
    piece = huggingface.read_live(model)[1][0]
    with pytest.raises(Mismatch, match=r"encoder.embed_positions and sinusoidal differ by up to \d"):
        piece.fill(model, [build("sinusoidal", Shape(32, 4, 8, 64))], None, exact=True)


@pytest.mark.parametrize(
    ("case", "path"),
    [
        ("ASTModel, added whole", "embeddings.position_embeddings"),
        ("CTRL, put back by its own forward", "pos_encoding"),
        ("Audio Flamingo 3, an embedding whose weight is added", "embed_positions.weight"),
    ],
)
def test_another_encoding_than_the_tables_own_is_what_is_added(case: str, path: str) -> None:
    (name, options), inputs, _ = TABLES[case]
    model, spec = tiny_model(name, **options), "sinusoidal(base=100)"
    table = model.get_buffer(path) if name == "CTRL" else model.get_parameter(path)
    count, wide = table.shape[-2:]
    bare = states(model, **inputs)
    attach(model, spec)
    filled_states = states(model, **inputs)
    detach(model)
    with torch.no_grad():
        table.copy_(build(spec, Shape(wide, 4, wide // 4, count)).table(count).view_as(table))
    torch.testing.assert_close(filled_states, states(model, **inputs), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(filled_states, bare, atol=1e-3)


def test_a_table_in_a_buffer_follows_a_cast_of_the_model() -> None:
    model = tiny_model("CTRL", **CTRL)
    attach(model)
    model.double()
    assert model.pos_encoding[IDS].dtype == torch.float64 and states(model, input_ids=IDS).dtype == torch.float64
    detach(model)
    assert model.pos_encoding.dtype == torch.float64 and states(model, input_ids=IDS).dtype == torch.float64


def test_sines_that_a_cast_has_rounded_are_sines() -> None:
    (_, options), _, specs = TABLES["Speech2Text, sines in buffers"]
    replacements = attach(tiny_model("Speech2Text", **options).bfloat16()).replaced
    assert list(replacements.values()) == list(specs.values())


def test_a_table_of_sines_that_is_multiplied_says_by_how_much() -> None:
    options = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    options |= {"num_attention_heads": 4, "max_position_embeddings": 64}
    config = transformers.models.canary.configuration_canary.CanaryDecoderConfig(**options)
    (part,) = huggingface.read(config).parts
    assert part.embed == "sinusoidal(layout='concatenated')"
    assert part.remarks == ("pos_emb multiplies its rows by 0.176777",)


def test_what_is_not_known_is_not_called_none() -> None:
    options = {"image_size": 32, "patch_size": 8, "output_channels": 8, "mlp_dim": 48, "window_size": 2}
    reading = configs.read(transformers.SamVisionConfig(**VIT, **options).to_dict())
    assert not reading.parts[0].is_complete and reading_as_json(reading)["parts"][0]["known"] is False
    assert "layer 0: not known" in describe_reading(reading)
    vit = huggingface.read(transformers.ViTConfig(**VIT, image_size=32, patch_size=8))
    assert vit.parts[0].is_complete and "layer 0: none" in describe_reading(vit)


SMALL = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 1}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}


@torch.no_grad()
def test_a_rotary_module_that_joins_two_axes_is_told_and_replaced_on_both() -> None:
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    model = tiny_model("NeoMME", **SMALL, **kinds)
    inputs = {"input_ids": IDS, "position_ids": torch.randint(0, 50, (2, 2, 12))}
    bare = states(model, **inputs)
    attachment = attach(model)
    assert "multimodal_rotary(sections=(8, 8), order='interleaved')" in attachment.replaced["rotary_emb"]
    torch.testing.assert_close(states(model, **inputs), bare, rtol=1e-5, atol=1e-5)


def test_channels_of_a_pair_that_read_other_axes_are_no_rotary() -> None:
    # HunYuan-VL shares out channels and not pairs: on a grid the two of a pair turn by different angles.
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 4, 4, 4]}
    reading = huggingface.read(transformers.HunYuanVLTextConfig(**SMALL, rope_parameters=rope))
    assert not reading.parts[0].is_complete
    assert any("turns its channels as no spec here says" in sentence for sentence in reading.not_covered)


def test_axes_that_take_turns_contradict_no_key_that_is_not_there() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}
    reading = huggingface.read(transformers.Cosmos3EdgeTextConfig(**SMALL, rope_parameters=rope))
    assert reading.parts[0].layers[0].spec == "multimodal_rotary(sections=(6, 5, 5), order='interleaved')"
    assert not reading.contradictions
    wrong = transformers.Cosmos3EdgeTextConfig(**SMALL, rope_parameters=rope | {"mrope_interleaved": False})
    assert any("and the modules turn (6, 5, 5) (interleaved)" in s for s in huggingface.read(wrong).contradictions)


def test_frequencies_in_steps_of_an_odd_width_are_those_of_another_base() -> None:
    options = SMALL | {"head_dim": 42, "num_experts_per_tok": 1, "n_routed_experts": 4, "moe_intermediate_size": 16}
    options |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    model = tiny_model("Glm4Moe", **options)
    reading = huggingface.read(model.config)
    encoding: Any = reading.parts[0].encoding(0)
    assert not reading.contradictions
    expected = 1e4 ** (-torch.arange(0, 21, 2, dtype=torch.float64) / 21)
    torch.testing.assert_close(encoding.spectrum()[0], expected, rtol=1e-12, atol=0)
    assert attach(model).replaced


@torch.no_grad()
def test_ids_that_name_the_row_first_fill_frequencies_that_have_the_column_first() -> None:
    options = {"image_size": 56, "patch_size": 14, "hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = tiny_model("Step3p7Vision", **options)
    images = torch.randn(2, 3, 28, 56)
    bare = states(model, pixel_values=images)
    attachment = attach(model)
    assert not attachment.left and "axial_rotary" in attachment.replaced["rotary_emb"]
    torch.testing.assert_close(states(model, pixel_values=images), bare, rtol=1e-5, atol=1e-5)
    ids = torch.tensor([[1, 5], [2, 0]])
    original = detach(model) or model.rotary_emb(torch.zeros(1), ids)[0]
    # With other numbers the order of the axes stays.
    encoding = build("axial_rotary", Shape(64, 2, 32, 1))
    rotary = next(piece for piece in huggingface.read_live(model)[1] if piece.path == "rotary_emb")
    rotary.fill(model, [encoding], None, exact=False)
    actual = model.rotary_emb(torch.zeros(1), ids)[0]
    assert torch.allclose(actual[:, [0, 8]], original[:, [0, 8]]) and not torch.allclose(actual, original)


def test_sizes_that_are_named_after_the_encoder_and_the_decoder_are_those_of_their_stacks() -> None:
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "encoder_num_attention_heads": 2}
    sizes |= {"decoder_num_attention_heads": 4, "decoder_num_key_value_heads": 2}
    config = transformers.MoonshineConfig(**sizes, encoder_num_hidden_layers=1, decoder_num_hidden_layers=2)
    encoder, decoder = huggingface.read(config).parts
    assert encoder.layers[0].spec == "rotary(layout='interleaved', partial=0.875)"
    assert (encoder.shape.heads, encoder.kv_heads, len(encoder.layers)) == (2, 2, 1)
    assert (decoder.shape.heads, decoder.kv_heads, len(decoder.layers)) == (4, 2, 2)


@torch.no_grad()
def test_cosines_that_stand_twice_for_each_axis_are_handed_out_so() -> None:
    config = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "head_dim": 32, "patch_size": 4}
    module = transformers.models.gemma4.modeling_gemma4.Gemma4VisionRotaryEmbedding(
        transformers.Gemma4VisionConfig(**config)
    )
    encoding: Any = build("axial_rotary(layout='half_by_axis')", Shape(64, 2, 32, 1))
    sample = torch.randint(0, 90, (2, 7, 2))
    form = TableForm(2).measure(module, sample, None)
    replacement = RotaryTable({None: (encoding, form)}, None, module)
    for actual, expected in zip(replacement(torch.zeros(1), sample), module(torch.zeros(1), sample), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_sines_among_the_attributes_of_a_module_are_told() -> None:
    config = transformers.VideoMAEConfig(**VIT, image_size=32, patch_size=16, num_frames=2)
    assert "embeddings.position_embeddings (VideoMAEEmbeddings) carries" in " ".join(
        huggingface.read(config).not_covered
    )


def test_a_table_within_the_attention_of_a_layer_is_not_added_to_embeddings() -> None:
    small = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    small |= {"head_dim": 32, "q_lora_rank": 16, "o_lora_rank": 16, "index_head_dim": 32, "index_n_heads": 2}
    config = transformers.DeepseekV4Config(**small, moe_intermediate_size=16, n_routed_experts=4, num_experts_per_tok=2)
    reading = huggingface.read(config)
    assert reading.parts[0].embed == "none" and not reading.parts[0].tables
    assert any("compressor.position_bias (DeepseekV4CSACompressor) carries" in s for s in reading.not_covered)


def test_keys_of_rotary_where_nothing_turns_are_understood() -> None:
    config = transformers.EsmConfig(
        **{key: BERT[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
        **{"intermediate_size": 32, "pad_token_id": 1, "mask_token_id": 3, "position_embedding_type": "absolute"},
    )
    reading = huggingface.read(config.to_dict() | {"rope_theta": 10_000.0})
    assert reading.parts[0].embed == "learned" and not reading.unknown
    assert reading.understood["rope_theta"] == "nothing turns"
