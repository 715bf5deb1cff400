"""Readings of transformers' configurations, old keys and new, compared with its rotary modules and with formulas."""

import copy
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers import LlamaConfig  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

from posenc.catalogue import build  # noqa: E402
from posenc.checkpoints.formats.huggingface import read  # noqa: E402
from posenc.checkpoints.kinds.rotary.keys import rope_parameters  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402
from posenc.checkpoints.vocabulary.specs import CannotExpress  # noqa: E402
from posenc.encoding.base import Shape  # noqa: E402

LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
}
IMAGES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES |= {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8}
BARE = {key: value for key, value in LLAMA.items() if key != "model_type"}

LISTS = {"short_factor": [1.0 + k / 8 for k in range(16)], "long_factor": [2.0 + k for k in range(16)]}

ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn with all": {
        **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0},
        **{"beta_slow": 2.0, "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.9},
    },
    "yarn with a temperature": {
        **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.25}
    },
    "llama3": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 128,
    },
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64, **LISTS},
}


def layer(config, index=0):
    part = read(config).parts[0]
    return part.layers[index], part.encoding(index)


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_every_schedule_has_the_frequencies_of_transformers_own_module(rope):
    rope = {**rope, "rope_theta": 5000.0}
    module = LlamaRotaryEmbedding(LlamaConfig(**BARE, rope_parameters=copy.deepcopy(rope)))
    reading = read({**LLAMA, "rope_parameters": rope})
    frequencies, temperature = reading.parts[0].encoding(1).spectrum()
    torch.testing.assert_close(frequencies.flatten().float(), module.inv_freq, rtol=1e-5, atol=0)
    assert float(temperature) == pytest.approx(module.attention_scaling, rel=1e-6)
    assert not reading.unknown
    assert not reading.not_covered


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_what_is_written_is_read_back_as_the_same_spec(rope):
    first_layer, encoding = layer({**LLAMA, "rope_parameters": {**rope, "rope_theta": 5000.0}})
    assert layer({**LLAMA, "rope_parameters": rope_parameters(encoding)})[0].spec == first_layer.spec


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        ("rotary", {"rope_type": "default", "rope_theta": 10_000.0}),
        ("rotary(partial=0.5)", {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}),
        (
            "proportional_rotary(base=1000000)",
            {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        ),
        (
            "multimodal_rotary(sections=(8, 12, 12))",
            {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [8, 12, 12]},
        ),
    ],
)
def test_rope_parameters_are_written_where_transformers_has_words_for_them(spec, keys):
    assert rope_parameters(build(spec, Shape(64, 1, 64, 256))) == keys


@pytest.mark.parametrize(
    "spec",
    [
        "rotary(schedule=ntk(factor=4))",
        "rotary(schedule=ntk_fixed(factor=4))",
        "rotary(schedule=yarn(factor=4, trained_length=64, ramp=turns))",
        "proportional_rotary(schedule=yarn(factor=4, trained_length=64))",
        "multimodal_rotary(order=time_last)",
        "alibi",
        "none",
    ],
)
def test_what_transformers_has_no_words_for_is_not_written(spec):
    with pytest.raises(CannotExpress, match=rf"transformers has no rope_parameters for {spec.partition('(')[0]}"):
        rope_parameters(build(spec, Shape(64, 1, 64, 256)))


def test_old_keys_are_read():
    old = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert layer(old)[0].spec == "rotary(base=500000, schedule=linear(factor=4.0))"
    assert not read(old).unknown


def test_a_share_of_each_head_is_read():
    spec = layer({**LLAMA, "model_type": "stablelm", "partial_rotary_factor": 0.25, "num_key_value_heads": 2})[0].spec
    assert spec == "rotary(partial=0.25)"


def test_layers_without_rotary_are_those_of_the_list():
    config = {**LLAMA, "model_type": "smollm3", "no_rope_layers": [1, 0], "rope_theta": 2e6, "pad_token_id": 0}
    assert [layer.spec for layer in read(config).parts[0].layers] == ["rotary(base=2000000)", "none"]


def test_layers_of_two_kinds_have_two_bases_and_a_window():
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    types = ["sliding_attention", "full_attention"]
    config = {**LLAMA, "model_type": "gemma3_text", "rope_parameters": rope, "layer_types": types, "head_dim": 32}
    config["num_key_value_heads"] = 2
    first, second = read({**config, "sliding_window": 16, "query_pre_attn_scalar": 64}).parts[0].layers
    assert (first.spec, first.window, first.scale) == ("rotary", 16, 0.125)
    assert (second.spec, second.window) == ("rotary(base=1000000, schedule=linear(factor=8.0))", None)


def test_the_scale_of_latent_attention_has_yarns_square():
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
    config = transformers.DeepseekV3Config(
        **BARE, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=4, v_head_dim=8,
        first_k_dense_replace=2, rope_parameters={**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}, num_key_value_heads=2,
    )  # fmt: skip
    first_layer, encoding = layer(config)
    assert (first_layer.head_dim, encoding.layout) == (8, "interleaved")
    assert first_layer.scale == pytest.approx(12**-0.5 * 1.8738542070926265, rel=1e-6)


def test_an_encoder_and_a_decoder_are_two_parts():
    config = transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, num_heads=4, num_layers=2, num_decoder_layers=3)
    encoder, decoder = read(config).parts
    assert (encoder.name, decoder.name, len(encoder.layers), len(decoder.layers)) == ("encoder", "decoder", 2, 3)
    assert (encoder.layers[0].spec, decoder.layers[0].spec) == ("t5_bias(causal=False)", "t5_bias")
    assert encoder.layers[0].scale == 1.0


def test_who_sees_the_future_is_asked_of_the_key_only_where_a_class_can_do_both():
    for model_type, causal in (("gpt_neox", True), ("bert", False), ("llama", True)):
        (part,) = read({**LLAMA, "model_type": model_type, "num_key_value_heads": 4}).parts
        assert part.shape.causal is causal
    assert read({**LLAMA, "model_type": "bert", "is_decoder": True}).parts[0].shape.causal


def test_a_table_counts_from_the_row_that_position_0_has():
    config = transformers.OPTConfig(
        vocab_size=64,
        hidden_size=32,
        num_attention_heads=2,
        num_hidden_layers=1,
        ffn_dim=32,
        max_position_embeddings=40,
    )
    (part,) = read(config).parts
    assert (part.embed, part.shape.max_len) == ("learned", 40)
    assert part.tables == {"decoder.embed_positions.weight": (42, 32)}
    assert part.remarks == ("the first 2 rows of decoder.embed_positions.weight are no positions",)


def test_what_no_encoding_can_be_is_refused():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    cannot = r"what the model says of positions cannot be: rotary: "
    with pytest.raises(CannotRead, match=cannot + "base must be above 1, got 1"):
        read({"model_type": "nonesuch", **sizes, "rope_theta": 1})
    with pytest.raises(CannotRead, match=cannot + "the rotary width must be an even number of channels"):
        read({"model_type": "qwen2", **sizes, "num_attention_heads": 2048})


def test_chunks_and_windows_of_what_never_attends_are_understood():
    small = {"hidden_size": 32, "num_heads": 2, "head_dim": 32, "n_groups": 1, "num_hidden_layers": 1}
    stages = {"embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2]}
    for name, key, sizes in (("mamba2", "chunk_size", small), ("focalnet", "focal_windows", stages)):
        reading = read({"model_type": name, **sizes})
        assert not reading.unknown and not reading.not_covered
        assert reading.understood[key].startswith("nothing attends")


@pytest.mark.parametrize("name", ["roberta", "mpnet", "esm", "longformer"])
def test_a_length_that_counts_rows_of_padding_is_not_the_trained_one(name):
    config = {"model_type": name, "max_position_embeddings": 66, "num_hidden_layers": 1, "pad_token_id": 1}
    config |= {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    extra = {"esm": {"vocab_size": 33, "mask_token_id": 32, "position_embedding_type": "absolute"}}
    (part,) = read(config | extra.get(name, {})).parts
    assert (part.trained_length, part.shape.max_len) == (64, 64)


def test_sections_of_time_height_and_width_are_measured():
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}
    config = {**LLAMA, "model_type": "qwen2_vl_text", "rope_parameters": rope, "num_key_value_heads": 2}
    assert layer(config)[0].spec == "multimodal_rotary(base=1000000, sections=(4, 6, 6))"


def test_a_tower_of_images_reads_rows_and_columns():
    config = transformers.PixtralVisionConfig(
        hidden_size=64, num_attention_heads=2, num_hidden_layers=1, intermediate_size=64, patch_size=4, image_size=32
    )
    assert layer(config)[0].spec == "axial_rotary(base=10000, frequencies='dealt')"


def test_position_code_that_no_spec_describes_is_named():
    config = transformers.Wav2Vec2Config(
        hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=32
    )
    (sentence,) = read(config).not_covered
    assert "encoder.pos_conv_embed (Wav2Vec2PositionalConvEmbedding) tells places apart by a convolution" in sentence


def test_keys_that_nobody_reads_are_named_and_not_ignored():
    rope = {"rope_type": "default", "rope_theta": 1e4, "wobble": 3}
    assert read({**LLAMA, "rope_parameters": rope}).unknown == {"rope_parameters.wobble": 3}
    assert read({**LLAMA, "rope_wobble": 3}).unknown == {"rope_wobble": 3}


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_key_is_named_as_the_file_spells_it(name: str, is_nested: bool):
    def message(rope: dict, **keys: object) -> str:
        whole = {**LLAMA, name: rope, **keys}
        with pytest.raises(CannotRead) as reading:
            read({"model_type": "llava", "text_config": whole, "vision_config": IMAGES} if is_nested else whole)
        return str(reading.value)

    place = f"text_config.{name}" if is_nested else name
    assert message({"rope_type": "yarn", "factor": "x"}).startswith(f"{place}.factor must be a finite number")
    assert message({"rope_type": "linear", "factor": -1}).startswith(f"{place} cannot be: linear")
    outer = f"{place.removesuffix(name)}rope_theta"
    assert message({"rope_type": "linear", "factor": 2}, rope_theta="x").startswith(f"{outer} must be a finite number")
    reading = read({**LLAMA, name: {"rope_type": "linear", "factor": 2.0, "wobble": 3}, "rope_theta": 500.0})
    assert reading.unknown == {f"{name}.wobble": 3} and f"{name}.factor" in reading.understood


def test_what_only_the_defaults_say_is_marked():
    notes = read(LLAMA).understood
    assert notes["max_position_embeddings"] == "trained length 256 tokens"
    assert notes["rope_parameters.rope_theta"].endswith("(not in the file: default, or from another key)")


def test_keys_that_only_seem_to_speak_of_position_are_no_unknown_keys():
    assert read({**LLAMA, "image_seq_length": 9, "num_hash_buckets": 9, "dropout_positions": 0.1}).unknown == {}


def test_a_list_of_nothing_says_nothing():
    assert not read({**LLAMA, "window_block_indices": []}).unknown
    assert read({**LLAMA, "window_block_indices": [1]}).unknown == {"window_block_indices": [1]}


def test_chunks_are_of_layers_without_attention_only_where_there_may_be_some():
    chunks = {**LLAMA, "model_type": "newhybrid", "chunk_size": 128}
    assert read(chunks).unknown == {"chunk_size": 128}
    assert not read(chunks | {"layers_block_type": ["mamba", "attention"]}).unknown


def test_a_model_that_could_not_be_run_is_not_said_to_be_without_positions():
    config = transformers.RwkvConfig(hidden_size=32, num_hidden_layers=1, vocab_size=64, context_length=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.RwkvModel, "forward", lambda *args, **kwargs: 1 / 0)
        (sentence,) = read(config).not_covered
    assert sentence.startswith("the model: it could not be run (ZeroDivisionError")


def test_where_tokens_stand_is_the_models_own_business():
    reading = read({**LLAMA, "reset_position_index_per_cell": True, "position_id_per_seconds": 25})
    assert not reading.unknown and "own code counts" in reading.understood["position_id_per_seconds"]


def test_keys_of_a_rotary_that_turns_nothing_are_understood():
    config = transformers.BambaConfig(
        hidden_size=64, num_attention_heads=2, num_key_value_heads=2, num_hidden_layers=1, intermediate_size=64,
        mamba_n_heads=4, mamba_d_head=32, mamba_n_groups=1, vocab_size=64,
    )  # fmt: skip
    reading = read(config.to_dict())
    assert "rotary_emb.inv_freq is built and turns nothing" in reading.parts[0].remarks
    assert not reading.unknown and reading.understood["rope_parameters.rope_theta"] == "nothing turns"


def test_the_order_of_sections_is_contradicted_only_where_a_key_says_another():
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
    config = {**LLAMA, "model_type": "qwen3_vl_text", "head_dim": 16, "num_key_value_heads": 2}
    unsaid = read({**config, "rope_parameters": rope})
    assert "order='interleaved'" in unsaid.parts[0].layers[0].spec and not unsaid.contradictions
    (sentence,) = read({**config, "rope_parameters": rope | {"mrope_interleaved": False}}).contradictions
    assert sentence.startswith("mrope_section says (4, 2, 2) (chunked), and the modules turn (4, 2, 2) (interleaved)")


def test_which_layers_are_scaled_is_told_by_what_each_turns():
    sizes = {"num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2}
    config = {**LLAMA, "model_type": "molmo2_text", **sizes, "rope_scaling_layers": [0, 1]}
    assert not read(config).unknown


def test_latent_attention_in_which_no_channel_turns_is_read():
    sizes = {"head_dim": 0, "qk_rope_head_dim": 0, "qk_nope_head_dim": 16, "rope_theta": 1e4}
    assert read({**LLAMA, "model_type": "newllama", **sizes}).parts[0].shape.head_dim == 16


def test_numbers_that_json_cannot_write_are_read_as_transformers_marks_them():
    limits = [0.0, {"__float__": "Infinity"}]
    reading = read({"model_type": "mamba2", "num_hidden_layers": 1, "vocab_size": 9, "time_step_limit": limits})
    assert all(layer.spec == "none" for part in reading.parts for layer in part.layers)


def test_an_architecture_that_nobody_knows_is_read_by_its_keys_and_the_layout_is_left_open():
    reading = read({**LLAMA, "model_type": "newllama", "rope_theta": 5e5})
    assert reading.parts[0].layers[0].spec == "rotary(base=500000)"
    assert "layout: transformers does not know the architecture newllama here" in reading.not_covered[0]


def test_without_transformers_the_keys_are_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.models.auto.configuration_auto", None)
    reading = read({**LLAMA, "rope_theta": 7e5, "initializer_range": 0.5})
    assert reading.parts[0].layers[0].spec == "rotary(base=700000)"
    assert "half is assumed" in reading.not_covered[0]


def test_a_configuration_object_is_not_changed():
    config = LlamaConfig(**BARE)
    keys = config.to_dict()
    read(config)
    assert config.to_dict() == keys
    assert config._attn_implementation != "eager" or "_attn_implementation" in keys


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"vocab": 3}, "expected a config.json of transformers with model_type or hidden_size, got the keys vocab"),
        (3, "expected a dictionary or a configuration of transformers, got int"),
        ({**BARE, "rope_parameters": {"rope_type": "linear"}}, "the schedule linear needs factor, and it is not given"),
        ({**BARE, "rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "cannot be: linear: factor must be 1"),
        ({**BARE, "rope_parameters": {"rope_type": "linear", "factor": "two"}}, "factor must be a finite number"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(config, message):
    with pytest.raises(CannotRead, match=message):
        read(config)
