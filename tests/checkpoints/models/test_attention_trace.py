"""Masks and scales of released models, measured on their modules at full width with a few layers."""

import math

import pytest
from tiers import rest_slow

pytest.importorskip("transformers")

from posenc.checkpoints.formats.huggingface import read
from posenc.checkpoints.inspection.portrait import describe_reading
from posenc.checkpoints.models.attention_trace import Reach, sight_reach
from posenc.checkpoints.vocabulary.reading import CannotRead


def hf_config(model_type: str, width: int, heads: int, layers: int, **keys):
    sizes = {"hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers}
    return {"model_type": model_type, **sizes, **keys}


PYTHIA = hf_config(
    "gpt_neox", 2048, 16, 3, intermediate_size=8192, rotary_pct=0.25, vocab_size=50304, max_position_embeddings=2048
)
MISTRAL = hf_config(
    "mistral", 4096, 32, 3, intermediate_size=14336, num_key_value_heads=8, sliding_window=4096, vocab_size=32000
)
GEMMA_2_27B = hf_config(
    *("gemma2", 4608, 32, 4),
    **{"intermediate_size": 36864, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 144},
    **{"sliding_window": 4096, "attn_logit_softcapping": 50.0, "max_position_embeddings": 8192},
)
GEMMA_3_27B = hf_config(
    *("gemma3_text", 5376, 32, 8),
    **{"intermediate_size": 21504, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168},
    **{"sliding_window": 1024, "rope_theta": 1_000_000, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
)
MODERNBERT = hf_config(
    *("modernbert", 768, 12, 5),
    **{"intermediate_size": 1152, "local_attention": 128, "global_attn_every_n_layers": 3, "vocab_size": 50368},
    **{"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "max_position_embeddings": 8192},
)
SCOUT = hf_config(
    *("llama4_text", 5120, 40, 5),
    **{"intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_key_value_heads": 8, "head_dim": 128},
    **{"attention_chunk_size": 8192, "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1},
    **{"num_local_experts": 16, "rope_theta": 500000.0, "use_qk_norm": True, "max_position_embeddings": 10485760},
)
GPT_OSS = hf_config(
    *("gpt_oss", 2880, 64, 4),
    **{"intermediate_size": 2880, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    **{"num_local_experts": 32, "rope_theta": 150000, "layer_types": ["sliding_attention", "full_attention"] * 2},
    rope_scaling={
        **{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        "original_max_position_embeddings": 4096,
    },
)
QWEN_2 = hf_config(
    *("qwen2", 3584, 28, 4),
    **{"intermediate_size": 18944, "num_key_value_heads": 4, "sliding_window": 131072, "max_window_layers": 4},
    **{"use_sliding_window": False, "rope_theta": 1000000.0, "max_position_embeddings": 131072},
)
QWEN_2_WINDOWED = QWEN_2 | {"use_sliding_window": True, "max_window_layers": 3}
COMMAND_R7B = hf_config(
    *("cohere2", 4096, 32, 5),
    **{"intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096, "sliding_window_pattern": 4},
    **{"rope_theta": 50000, "vocab_size": 256000},
)
SMOLLM_3 = hf_config(
    *("smollm3", 2048, 16, 5),
    **{"intermediate_size": 11008, "num_key_value_heads": 4, "no_rope_layer_interval": 4, "rope_theta": 5000000.0},
    **{"use_sliding_window": False, "sliding_window": None, "vocab_size": 128256},
)
ESM_2 = hf_config(
    *("esm", 1280, 20, 3),
    **{"intermediate_size": 5120, "position_embedding_type": "rotary", "vocab_size": 33, "pad_token_id": 1},
    **{"max_position_embeddings": 1026, "mask_token_id": 32, "token_dropout": True},
)
YARN_40 = {
    **{"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1},
    **{"mscale": 1.0, "mscale_all_dim": 1.0},
}
DEEPSEEK_V3 = hf_config(
    *("deepseek_v3", 7168, 128, 4),
    **{"intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_key_value_heads": 128},
    **{"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"first_k_dense_replace": 3, "rope_theta": 10000, "max_position_embeddings": 163840, "rope_scaling": YARN_40},
)
KIMI_K2 = DEEPSEEK_V3 | {
    **{"num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1},
    **{"n_group": 1, "topk_group": 1, "rope_theta": 50000.0, "max_position_embeddings": 131072},
    "rope_scaling": YARN_40 | {"factor": 32.0, "beta_fast": 1.0},
}
JAMBA = hf_config(
    *("jamba", 4096, 32, 8),
    **{"intermediate_size": 14336, "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4},
    **{"expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 16, "sliding_window": None},
)
GRANITE_4_TINY = hf_config(
    *("granitemoehybrid", 1536, 12, 10),
    **{"intermediate_size": 512, "num_key_value_heads": 4, "attention_multiplier": 0.0078125, "num_local_experts": 62},
    **{"layer_types": ["attention" if i == 5 else "mamba" for i in range(10)], "mamba_n_heads": 48},
    **{"position_embedding_type": "nope", "mamba_expand": 2, "mamba_d_head": 64, "mamba_chunk_size": 256},
)
QWEN_3_NEXT = hf_config(
    *("qwen3_next", 2048, 16, 5),
    **{"intermediate_size": 5120, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4},
    **{"partial_rotary_factor": 0.25, "rope_theta": 10000000, "num_experts": 512},
)
NEMOTRON_H = hf_config(
    *("nemotron_h", 4096, 32, 20),
    **{"intermediate_size": 21504, "num_key_value_heads": 8, "attention_head_dim": 128, "head_dim": 128},
    **{"hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-", "mamba_num_heads": 128},
)
BERT = hf_config("bert", 768, 12, 3, intermediate_size=3072, vocab_size=30522, max_position_embeddings=512)
T5 = {
    **{"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_heads": 8, "num_layers": 6},
    **{"num_decoder_layers": 6, "relative_attention_num_buckets": 32, "vocab_size": 32128},
}
MINICPM_3 = hf_config(
    *("minicpm3", 2560, 40, 3),
    **{"intermediate_size": 6400, "num_key_value_heads": 40, "q_lora_rank": 768, "kv_lora_rank": 256},
    **{"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64},
)
GPT_NEO = {
    **{"model_type": "gpt_neo", "hidden_size": 2048, "num_heads": 16, "num_layers": 4, "window_size": 256},
    "attention_types": [[["global", "local"], 2]],
}

FULL, NO_ATTENTION = None, "does not attend"
"""The reach of a layer: full, a window (tokens), or none; a chunk is a tuple of one number."""


def cycle(*sees, layers):
    return [sees[i % len(sees)] for i in range(layers)]


MSCALE_40, MSCALE_32 = (0.1 * math.log(factor) + 1 for factor in (40, 32))

TABLE = {
    "Pythia 1.4B": (PYTHIA, True, cycle(FULL, layers=3), None),
    "Mistral 7B v0.1": (MISTRAL, True, cycle(4096, layers=3), None),
    "Gemma 2 27B": (GEMMA_2_27B, True, cycle(4096, FULL, layers=4), 144**-0.5),
    # 128 means 64 to either side, and posenc counts the token itself: distances below 65.
    "ModernBERT": (MODERNBERT, False, cycle(FULL, 65, 65, layers=5), None),
    "Llama 4 Scout": (SCOUT, True, cycle((8192,), (8192,), (8192,), FULL, layers=5), None),
    # The models up to here run in the fast tier.
    "Gemma 3 27B": (GEMMA_3_27B, True, cycle(*[1024] * 5, FULL, layers=8), 168**-0.5),
    "gpt-oss 20B": (GPT_OSS, True, cycle(128, FULL, layers=4), None),
    "Qwen 2 7B": (QWEN_2, True, cycle(FULL, layers=4), None),
    "Qwen 2 7B, windows on": (QWEN_2_WINDOWED, True, [FULL] * 3 + [131072], None),
    "Command R7B": (COMMAND_R7B, True, cycle(4096, 4096, 4096, FULL, layers=5), None),
    "SmolLM 3": (SMOLLM_3, True, cycle(FULL, layers=5), None),
    "ESM-2 650M": (ESM_2, False, cycle(FULL, layers=3), None),
    "DeepSeek-V3": (DEEPSEEK_V3, True, cycle(FULL, layers=4), 192**-0.5 * MSCALE_40**2),
    "Kimi K2": (KIMI_K2, True, cycle(FULL, layers=4), 192**-0.5 * MSCALE_32**2),
    "Jamba": (JAMBA, True, cycle(*[NO_ATTENTION] * 4, FULL, *[NO_ATTENTION] * 3, layers=8), None),
    "Granite 4 Tiny": (GRANITE_4_TINY, True, cycle(*[NO_ATTENTION] * 5, FULL, *[NO_ATTENTION] * 4, layers=10), 1 / 128),
    "Qwen 3 Next": (QWEN_3_NEXT, True, cycle(NO_ATTENTION, NO_ATTENTION, NO_ATTENTION, FULL, layers=5), None),
    "Nemotron-H 8B": (NEMOTRON_H, True, [FULL if i in (7, 18) else NO_ATTENTION for i in range(20)], None),
    "BERT": (BERT, False, cycle(FULL, layers=3), None),
    "BERT as a decoder": (BERT | {"is_decoder": True}, True, cycle(FULL, layers=3), None),
    "MiniCPM 3": (MINICPM_3, True, cycle(FULL, layers=3), None),
    "GPT-Neo 1.3B": (GPT_NEO, True, cycle(FULL, 256, layers=4), 1.0),
}


def sight(layer):
    if not layer.attends:
        return NO_ATTENTION
    return (layer.chunk,) if layer.chunk else layer.window


@pytest.mark.parametrize("name", rest_slow(TABLE, 5))
def test_a_released_model_is_read_as_it_runs(name):
    config, causal, sees, scale = TABLE[name]
    reading = read(config)
    part = reading.parts[0]
    assert part.shape.causal is causal
    assert [sight(layer) for layer in part.layers] == sees
    (actual,) = {layer.scale for layer in part.layers if layer.attends}
    assert actual == (None if scale is None else pytest.approx(scale, rel=1e-5))
    assert not any("measured" in sentence for sentence in reading.not_covered)
    assert not reading.contradictions


TINY = hf_config("llama", 64, 4, 2, intermediate_size=64, num_key_value_heads=4, vocab_size=64)


def test_layers_that_do_not_attend_are_named_with_what_they_have_instead():
    config = QWEN_3_NEXT | {"num_hidden_layers": 4}
    reading = read(config)
    assert "layers [0, 1, 2] do not attend: linear_attn (Qwen3NextGatedDeltaNet)" in reading.parts[0].remarks
    assert reading.understood["layer_types"].startswith("how far each layer sees, which is measured")
    assert "[does not attend]" in describe_reading(reading)


def test_windows_to_both_sides_and_chunks_are_told_in_words():
    small = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64}
    assert "window of 65 tokens: 64 to either side" in describe_reading(read(MODERNBERT | small))
    scout = SCOUT | small | {"head_dim": 16, "num_key_value_heads": 4, "intermediate_size_mlp": 64}
    assert "chunks of 8,192 tokens" in describe_reading(read(scout))


def test_a_window_that_no_layer_has_is_a_contradiction():
    (sentence,) = read(TINY | {"sliding_window": 16}).contradictions
    assert (
        sentence
        == "sliding_window is 16, and no layer has a window in a short pass without a cache; followed: the modules"
    )


def test_a_window_of_the_trained_length_leaves_nothing_out():
    reading = read(TINY | {"sliding_window": 2048, "max_position_embeddings": 2048})
    assert not reading.contradictions and not reading.unknown
    assert read(TINY | {"sliding_window": 2047, "max_position_embeddings": 2048}).contradictions


def test_a_window_may_be_named_by_what_it_holds_on_both_sides():
    sizes = {"num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 64, "dropout_rate": 0.0}
    reading = read(hf_config("t5gemma2_text", 64, 4, 2, sliding_window=32, **sizes) | {"layer_types": SLIDING})
    assert [layer.window for layer in reading.parts[0].layers] == [16, None] and not reading.contradictions


SLIDING = ["sliding_attention", "full_attention"]


def test_a_pattern_of_windows_is_told_by_how_far_each_layer_sees():
    sizes = {"num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 64, "sliding_window": 8, "num_experts": 2}
    types = {"layer_types": SLIDING, "mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 1}
    reading = read(hf_config("cohere2_moe", 64, 4, 2, prefix_dense_sliding_window_pattern=1, **sizes, **types))
    assert [layer.window for layer in reading.parts[0].layers] == [8, None] and not reading.unknown


def test_windows_of_single_layers_are_told_by_how_far_they_see():
    sizes = {"num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 64, "sliding_window": 8}
    layer_options = {"1": {"sliding_window": 12}, "2": {"sliding_window": None}}
    types = {"layer_types": [SLIDING[0], *SLIDING]}
    reading = read(hf_config("neomme", 64, 4, 3, per_layer_config=layer_options, **sizes, **types))
    assert [layer.window for layer in reading.parts[0].layers] == [9, 13, None] and not reading.unknown
    assert reading.understood["per_layer_config.1.sliding_window"] == "a window of 13 tokens, measured"


def test_a_decoder_that_is_asked_to_see_both_sides_is_said_to():
    small = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 64}
    reading = read({"model_type": "blip", "text_config": small | {"is_decoder": True}, "vision_config": small})
    text = next(part for part in reading.parts if part.name == "text_config")
    assert not text.shape.causal and not reading.contradictions
    assert "is_decoder is true, and tokens see both sides as it ran" in text.remarks


LONGFORMER = hf_config("longformer", 64, 4, 2, intermediate_size=64, vocab_size=64)


@pytest.mark.parametrize("size", [6, 512])
def test_a_band_of_keys_around_each_query_is_measured(size: int):
    """Longformer's paper: a window of w tokens, w / 2 on each side."""
    reading = read(LONGFORMER | {"attention_window": size})
    (part,) = reading.parts
    assert {(layer.window, layer.scale) for layer in part.layers} == {(size // 2 + 1, None)}
    assert not part.shape.causal and not reading.unknown and not reading.not_covered
    assert reading.understood["attention_window"].startswith(f"windows of {size // 2 + 1} tokens in 2 of 2 layers")


def test_an_architecture_without_a_cache_is_not_taken_for_a_decoder_where_no_run_shows_it():
    reading = read(LONGFORMER | {"attention_window": 6, "max_position_embeddings": 4})
    assert any("who sees whom could not be measured" in sentence for sentence in reading.not_covered)
    assert not reading.parts[0].shape.causal


def test_projections_may_be_convolutions_over_one_token():
    """SqueezeBERT's are, in groups; and its LayerNorm class has a convolution as well."""
    groups = {f"{name}_groups": 2 for name in ("q", "k", "v", "post_attention", "intermediate", "output")}
    reading = read(
        hf_config("squeezebert", 64, 4, 2, embedding_size=64, intermediate_size=128, vocab_size=64, **groups)
    )
    assert {layer.scale for layer in reading.parts[0].layers} == {None}
    assert not reading.not_covered and not reading.parts[0].shape.causal


def test_an_encoder_and_a_decoder_see_as_they_run_and_their_logits_are_not_scaled():
    encoder, decoder = read(T5).parts
    assert (encoder.shape.causal, decoder.shape.causal) == (False, True)
    assert {layer.scale for layer in (*encoder.layers, *decoder.layers)} == {1.0}


def test_a_run_that_ends_early_is_said_to_rest_on_the_keys():
    reading = read(TINY | {"num_key_value_heads": 3, "sliding_window": 16})
    assert any("who sees whom could not be measured" in sentence for sentence in reading.not_covered)


def test_a_base_below_zero_is_refused():
    with pytest.raises(CannotRead, match="the base of rotary must be positive, got -10000 from rope_theta"):
        read(TINY | {"rope_theta": -10000.0})


@pytest.mark.parametrize("size", [1, 2, 7, 64, 4096])
@pytest.mark.parametrize("far", [1 << 13, 10_007])
def test_edges_are_found_to_the_token(size: int, far: int):
    assert sight_reach(lambda query, key: query - size < key <= query, far) == Reach(window=size)
    if size > 1:
        assert sight_reach(lambda query, key: key <= query and key // size == query // size, far) == Reach(chunk=size)
    assert sight_reach(lambda query, key: key <= query, far) == Reach()


@pytest.mark.parametrize("far", [8, 9, 12])
def test_an_edge_that_the_last_tokens_alone_show_is_found(far: int):
    assert sight_reach(lambda query, key: query - 8 < key <= query, far) == Reach(window=8)
    assert sight_reach(lambda query, key: key <= query and key // 8 == query // 8, far) == Reach(chunk=8)


def test_attention_that_pools_an_image_belongs_to_no_layer():
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32}
    config = {"model_type": "aimv2_vision_model", "image_size": 16, "patch_size": 4, "use_head": True, **sizes}
    (part,) = read(config).parts
    assert len(part.layers) == 2 and not part.shape.causal and all(layer.attends for layer in part.layers)


def test_a_mask_that_looks_up_the_images_of_a_run_says_how_far_text_sees():
    text = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "head_dim": 16,
    }
    text |= {"global_head_dim": 16, "num_key_value_heads": 1, "vocab_size": 64, "sliding_window": 1024}
    text |= {"layer_types": ["sliding_attention", "full_attention"], "use_bidirectional_attention": "vision"}
    reading = read({"model_type": "gemma4_unified", "text_config": text})
    (part,) = reading.parts
    assert [layer.window for layer in part.layers] == [1024, None] and not reading.contradictions


def test_a_norm_that_gives_its_factor_alone_is_run():
    small = {"model_type": "hy_v4", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16}
    small |= {"num_key_value_heads": 1, "intermediate_size": 32, "moe_intermediate_size": 16, "num_experts": 4}
    reading = read(small | {"num_experts_per_tok": 2})
    assert not reading.not_covered and {layer.spec for layer in reading.parts[0].layers} == {"rotary"}
