"""Keys of encodings that transformers does not build, code that a checkpoint brings, and unknown schedules."""

import json

import pytest

pytest.importorskip("transformers")

from posenc import cli
from posenc.catalogue import build
from posenc.checkpoints.inspection.configs import read
from posenc.checkpoints.vocabulary.reading import UNHEARD
from posenc.encoding.base import Shape

SIZES = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 512}
MPT = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512, "vocab_size": 64}
DBRX = {"model_type": "dbrx"} | {key: value for key, value in MPT.items() if key != "model_type"}
CODE = {"auto_map": {"AutoModel": "org/impl--modeling_bert.JinaBertModel"}}
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_d_head": 32, "shared_intermediate_size": 64}


@pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"model_type": "bert", "position_embedding_type": "alibi"} | SIZES | CODE, ["position_embedding_type"]),
        ({"model_type": "bert", "position_embedding_type": "relative_key"} | SIZES, ["position_embedding_type"]),
        (
            {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": 2e4} | SIZES | CODE,
            ["position_embedding_type", "rotary_emb_base"],
        ),
        ({"model_type": "bert", "rope_scaling": {"type": "linear", "factor": 4.0}} | SIZES, ["rope_scaling.type"]),
        ({"model_type": "llama", "alibi": True} | SIZES, ["alibi"]),
        ({"model_type": "bloom", "rotary_base": 5e3, "n_layer": 2, "n_head": 4, "hidden_size": 64}, ["rotary_base"]),
        (DBRX | {"attn_config": {"rope_theta": 5e5, "kv_n_heads": 2}}, ["attn_config.rope_theta"]),
        (MPT | {"attn_config": {"alibi": False, "rope": True, "rope_theta": 5e4}}, ["attn_config.rope_theta"]),
    ],
)
def test_a_key_that_names_an_encoding_which_no_layer_has_is_a_contradiction(config: dict, keys: list[str]) -> None:
    reading = read(config)
    named_keys = [sentence.split(" is ")[0] for sentence in reading.contradictions if UNHEARD in sentence]
    assert named_keys == keys == [sentence.split(" is ")[0] for sentence in reading.contradictions[: len(named_keys)]]
    assert not set(keys) & set(reading.unknown)
    notes = [sentence for sentence in reading.not_covered if "code of its own" in sentence]
    assert bool(notes) == ("auto_map" in config) and all("JinaBertModel) is not read" in note for note in notes)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}} | SIZES,
        {"model_type": "bert", "position_embedding_type": "absolute"} | SIZES,
        {"model_type": "esm", "position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 2} | SIZES,
        {"model_type": "gpt_neox", "rotary_pct": 0.25, "rotary_emb_base": 5000} | SIZES,
        # An odd number of channels, which transformers rounds up.
        {"model_type": "gpt_neox", "rotary_pct": 0.2, "rotary_emb_base": 5000} | SIZES,
        MPT | {"attn_config": {"alibi": True}},
        DBRX | {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2}},
        {"model_type": "granitemoehybrid", "position_embedding_type": "nope", "rope_theta": 5e5, "num_local_experts": 0}
        | {"layer_types": ["mamba", "attention"]} | MAMBA | SIZES,
        {"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4, "head_dim": 16} | SIZES,
    ],
)  # fmt: skip
def test_keys_that_some_layer_follows_or_that_an_architecture_turns_off_are_none(config: dict) -> None:
    assert read(config).contradictions == ()


def test_the_report_begins_with_it_and_the_exit_code_is_not_0(tmp_path, capsys) -> None:
    config = {"model_type": "bert", "position_embedding_type": "alibi"} | SIZES
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cli.main(["inspect", str(tmp_path)]) == 1
    words = capsys.readouterr().out
    assert words.index("Contradictory") < words.index("learned")
    (tmp_path / "config.json").write_text(json.dumps(config | {"position_embedding_type": "absolute"}))
    assert cli.main(["inspect", str(tmp_path)]) == 0


@pytest.mark.parametrize("model_type", ["llama", "newllama"])
def test_an_unknown_schedule_costs_its_spec_and_not_the_report(model_type: str) -> None:
    for place in ("rope_parameters", "rope_scaling"):
        reading = read({"model_type": model_type, place: {"rope_type": "swirl", "factor": 2.0}} | SIZES)
        (part,) = reading.parts
        assert [at.spec for at in part.layers] == ["none"] * 2 and not part.is_complete and part.trained_length == 512
        assert any("there is no schedule swirl here; known are default, linear" in s for s in reading.not_covered)


def test_the_ntk_of_gte_is_that_of_a_number_system() -> None:
    rope = {"type": "ntk", "factor": 2.0}
    gte = {"model_type": "new", "rope_theta": 160000, "rope_scaling": rope, "hidden_size": 256} | SIZES
    layer = read(gte | {"hidden_size": 256}).parts[0].layers[0]
    frequencies = build(layer.spec, Shape(256, 4, 64, 512)).frequencies
    # The numbers of GTE's own NTKScalingRotaryEmbedding.
    assert frequencies[:3].tolist() == pytest.approx([0.978572, 0.658502, 0.443120], abs=1e-6)
    mixed_spec = read(gte | {"rope_scaling": rope | {"mixed_b": 0.5}}).parts[0].layers[0].spec
    assert "ntk_mixed(factor=2.0, power=0.5)" in mixed_spec


def test_nanochat_turns_the_other_way_round() -> None:
    reading = read({"model_type": "nanochat", "rope_theta": 5e3} | SIZES)
    assert reading.not_covered == ()
    assert {layer.spec for layer in reading.parts[0].layers} == {"rotary(base=5000, layout='swapped')"}


def test_a_table_that_no_spec_covers_is_no_lost_key() -> None:
    config = {"model_type": "wav2vec2-bert", "position_embeddings_type": "relative_key", "intermediate_size": 96}
    reading = read(config | SIZES)
    assert reading.contradictions == () and "shaw clips both sides alike" in reading.not_covered[0]


def test_mrope_as_qwen_published_it_contradicts_nothing() -> None:
    rope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    config = {"model_type": "qwen2_vl", "rope_theta": 1e6, "rope_scaling": rope, "num_key_value_heads": 4} | SIZES
    vision = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 4}
    reading = read(config | {"vision_config": vision})
    assert reading.contradictions == () and "sections=(2, 3, 3)" in reading.parts[0].layers[0].spec
