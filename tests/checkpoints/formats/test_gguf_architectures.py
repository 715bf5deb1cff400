"""Readings of GGUF metadata for each architecture, compared with transformers' modules of the original config."""

from dataclasses import replace
from typing import Any

import pytest

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from posenc.checkpoints.formats import config_json  # noqa: E402
from posenc.checkpoints.formats.gguf import architectures as archs  # noqa: E402
from posenc.checkpoints.formats.gguf.metadata import read  # noqa: E402
from posenc.checkpoints.vocabulary.differences import differences  # noqa: E402
from posenc.foreign import parse_json  # noqa: E402

SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
FILE_SIZES = {"block_count": 2, "context_length": 64, "embedding_length": 32, "attention.head_count": 4}
FILE_SIZES |= {"attention.head_count_kv": 2}

PLAIN = {"rope_type": "default", "rope_theta": 5e5}
YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0, "original_max_position_embeddings": 32}
LLAMA_3: dict[str, Any] = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
LLAMA_3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
NEAR_AND_FAR: dict[str, Any] = {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}
NEAR_AND_FAR |= {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
SECTIONS: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
SECTIONS |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}

ALIKE = """
arcee dots1 hunyuan-dense:hunyuan_v1_dense hunyuan-moe:hunyuan_v1_moe jais2 llama olmo olmo2 olmoe qwen2
qwen2moe:qwen2_moe qwen3moe:qwen3_moe starcoder2
"""
"""Architectures that need only sizes, with transformers' model_type if it has another name."""

# fmt: off
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("llama", "llama", {"head_dim": 16}, {"attention.key_length": 16}),
    ("llama", "llama", {"rope_parameters": YARN}, {"rope.freq_base": 5e5, "rope.scaling.type": "yarn",
     "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 32}),
    ("llama", "llama", {"rope_parameters": LLAMA_3, "head_dim": 32}, {"rope.freq_base": 5e5,
     "attention.key_length": 32, "rope_freqs.weight": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0,
     2.6945297718048096, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]}),
    ("llama", "mixtral", {"rope_parameters": PLAIN}, {"rope.freq_base": 5e5}),
    ("mistral3", "mistral", {"sliding_window": None}, {}),
    ("smollm3", "smollm3", {"num_hidden_layers": 5, "rope_parameters": PLAIN}, {"block_count": 5,
     "rope.freq_base": 5e5}),
    ("llama4", "llama4_text", {"num_hidden_layers": 5, "head_dim": 8, "rope_parameters": LLAMA_3},
     {"block_count": 5, "rope.freq_base": 5e5, "rope_freqs.weight": [1.0, 1.0, 2.6945297718048096, 8.0]}),
    ("granite", "granite", {"attention_multiplier": 0.125}, {"attention.scale": 0.125}),
    ("granitemoe", "granitemoe", {"attention_multiplier": 0.125}, {"attention.scale": 0.125}),
    ("olmo2", "olmo3", {"num_hidden_layers": 4, "sliding_window": 8, "rope_parameters": {"full_attention": YARN,
     "sliding_attention": PLAIN}}, {"block_count": 4, "rope.freq_base": 5e5, "rope.scaling.type": "yarn",
     "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 32, "attention.sliding_window": 8,
     "attention.sliding_window_pattern": [True, True, True, False]}),
    ("qwen3", "qwen3", {"head_dim": 16}, {"attention.key_length": 16}),
    ("qwen3next", "qwen3_next", {"num_hidden_layers": 4, "head_dim": 32}, {"block_count": 4,
     "attention.key_length": 32, "rope.dimension_count": 8}),
    ("qwen35", "qwen3_5_text", {"num_hidden_layers": 4, "head_dim": 32, "rope_parameters": SECTIONS},
     {"block_count": 4, "rope.freq_base": 1e7, "attention.key_length": 32, "rope.dimension_count": 8,
     "rope.dimension_sections": [2, 1, 1, 0]}),
    ("qwen35moe", "qwen3_5_moe_text", {"num_hidden_layers": 4, "head_dim": 32, "rope_parameters": SECTIONS},
     {"block_count": 4, "rope.freq_base": 1e7, "attention.key_length": 32, "rope.dimension_count": 8,
     "rope.dimension_sections": [2, 1, 1, 0]}),
    ("granitehybrid", "granitemoehybrid", {"attention_multiplier": 0.125, "num_hidden_layers": 4,
     "mamba_n_heads": 8, "layer_types": ["mamba", "attention", "mamba", "attention"]}, {"block_count": 4,
     "attention.head_count_kv": [0, 2, 0, 2], "attention.scale": 0.125, "rope.scaling.finetuned": False}),
    ("granitehybrid", "granitemoehybrid", {"attention_multiplier": 0.125, "num_hidden_layers": 4,
     "mamba_n_heads": 8, "layer_types": ["mamba", "mamba", "attention", "mamba"]}, {"block_count": 4,
     "attention.head_count_kv": [0, 0, 2, 0], "attention.scale": 0.125, "rope.scaling.finetuned": False}),
    ("granitehybrid", "bamba", {"num_hidden_layers": 4, "mamba_n_heads": 8, "attn_layer_indices": [1, 2]},
     {"block_count": 4, "attention.head_count_kv": [0, 2, 2, 0], "rope.dimension_count": 4}),
    ("nemotron_h", "nemotron_h", {"head_dim": 8}, {"block_count": 4, "attention.head_count_kv": [0, 0, 2, 0]}),
    ("nemotron_h_moe", "nemotron_h", {"head_dim": 8}, {"block_count": 4, "attention.head_count_kv": [0, 0, 2,
     0]}),
    ("mamba", "mamba", {}, {"attention.head_count": 0, "attention.head_count_kv": None}),
    ("mamba", "falcon_mamba", {}, {"attention.head_count": 0, "attention.head_count_kv": None}),
    ("mamba2", "mamba2", {"num_heads": 8, "head_dim": 8}, {"attention.head_count": 0, "attention.head_count_kv":
     None}),
    ("jamba", "jamba", {"num_hidden_layers": 4, "attn_layer_offset": 2}, {"block_count": 4,
     "attention.head_count_kv": [0, 0, 2, 0]}),
    ("mimo2", "mimo_v2_flash", {"num_hidden_layers": 4, "head_dim": 12, "sliding_window": 8, "layer_types":
     ["full_attention", "sliding_attention"] * 2}, {"block_count": 4, "attention.head_count_kv": [2, 4, 2, 4],
     "rope.freq_base": 5e6, "attention.key_length": 12, "rope.dimension_count": 4, "rope.freq_base_swa": 1e4,
     "attention.sliding_window": 8, "attention.sliding_window_pattern": [0, 1, 0, 1]}),
    ("bitnet", "bitnet", {}, {"rope.freq_base": 5e5}),
    ("seed_oss", "seed_oss", {"head_dim": 8}, {}),
    ("gemma", "gemma", {"head_dim": 16}, {"attention.key_length": 16}),
    ("gemma2", "gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
     {"attention.key_length": 16, "attention.sliding_window": 8}),
    ("gemma3", "gemma3_text", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16,
     "num_hidden_layers": 7, "rope_parameters": NEAR_AND_FAR}, {"block_count": 7, "rope.freq_base": 1e6,
     "rope.scaling.factor": 8.0, "attention.key_length": 16, "attention.sliding_window": 8}),
    ("gemma3n", "gemma3n_text", {"num_hidden_layers": 6, "head_dim": 16, "sliding_window": 8, "layer_types":
     ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2}, {"block_count": 6,
     "rope.freq_base": 1e6, "attention.key_length": 16, "attention.sliding_window": 8,
     "attention.sliding_window_pattern": [True, False] * 3}),
    ("gemma4", "gemma4_text", {"num_hidden_layers": 6, "head_dim": 8, "global_head_dim": 16, "sliding_window":
     8, "layer_types": ["sliding_attention", "full_attention"] * 3}, {"block_count": 6, "rope.freq_base": 1e6,
     "attention.key_length": 16, "attention.key_length_swa": 8, "attention.sliding_window": 8,
     "attention.sliding_window_pattern": [True, False] * 3, "rope.freq_base_swa": 1e4, "rope_freqs.weight":
     [1.0, 1.0, *[1e30] * 6]}),
    ("gemma4", "gemma4_text", {"num_hidden_layers": 6, "head_dim": 8, "global_head_dim": 16, "sliding_window":
     8, "layer_types": ["sliding_attention", "full_attention"] * 3, "num_global_key_value_heads": 1,
     "attention_k_eq_v": True}, {"block_count": 6, "attention.head_count_kv": [2, 1, 2, 1, 2, 1],
     "rope.freq_base": 1e6, "attention.key_length": 16, "attention.key_length_swa": 8,
     "attention.sliding_window": 8, "attention.sliding_window_pattern": [True, False] * 3, "rope.freq_base_swa":
     1e4, "rope_freqs.weight": [1.0, 1.0, *[1e30] * 6]}),
    ("phi2", "phi", {"num_key_value_heads": 4}, {"rope.dimension_count": 4, "attention.head_count_kv": None}),
    ("phi3", "phi3", {"sliding_window": 8}, {"attention.sliding_window": 8}),
    ("phi3", "phi3", {"original_max_position_embeddings": 32, "rope_parameters": {"short_factor": [1.0, 1.5,
     2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 8.0], "factor": 2.0, "rope_type": "longrope", "rope_theta": 1e4,
     "original_max_position_embeddings": 32}}, {"rope.scaling.original_context_length": 32,
     "rope.scaling.attn_factor": 1.0954452, "rope_factors_short.weight": [1.0, 1.5, 2.0, 2.5],
     "rope_factors_long.weight": [2.0, 3.0, 4.0, 8.0]}),
    ("gpt2", "gpt2", {"num_key_value_heads": 4}, {"attention.head_count_kv": None}),
    ("starcoder", "gpt_bigcode", {}, {"attention.head_count_kv": 1}),
    ("gptneox", "gpt_neox", {"rotary_pct": 0.5, "num_key_value_heads": 4}, {"rope.dimension_count": 4,
     "attention.head_count_kv": None}),
    ("gptneox", "gpt_neox", {"num_key_value_heads": 4}, {"rope.dimension_count": 2, "attention.head_count_kv":
     None}),
    ("bloom", "bloom", {"num_key_value_heads": 4}, {"attention.head_count_kv": None}),
    ("mpt", "mpt", {"num_key_value_heads": 4}, {"attention.max_alibi_bias": 8.0, "attention.head_count_kv":
     None}),
    ("dbrx", "dbrx", {"rope_parameters": PLAIN}, {"rope.freq_base": 5e5}),
    ("stablelm", "stablelm", {}, {"rope.dimension_count": 2}),
    ("nemotron", "nemotron", {}, {"rope.dimension_count": 4}),
    ("command-r", "cohere", {}, {"rope.freq_base": 5e5}),
    ("cohere2", "cohere2", {"sliding_window": 8, "num_hidden_layers": 5}, {"block_count": 5,
     "attention.sliding_window": 8}),
    ("glm4", "glm4", {"head_dim": 8}, {"rope.dimension_count": 4}),
    ("exaone4", "exaone4", {"sliding_window": 8, "num_hidden_layers": 5}, {"block_count": 5,
     "attention.sliding_window": 8}),
    ("exaone4", "exaone4", {"sliding_window": None, "layer_types": ["full_attention", "full_attention"]}, {}),
    ("ernie4_5", "ernie4_5", {"head_dim": 8}, {"rope.freq_base": 5e5}),
    ("gpt-oss", "gpt_oss", {"head_dim": 32, "sliding_window": 8, "rope_parameters": {"rope_type": "yarn",
     "rope_theta": 5e5, "factor": 2.0, "original_max_position_embeddings": 32, "truncate": False}},
     {"rope.freq_base": 5e5, "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0,
     "rope.scaling.original_context_length": 32, "attention.key_length": 32, "attention.sliding_window": 8}),
    ("deepseek2", "deepseek_v2", {"qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "num_key_value_heads": 4},
     {"attention.kv_lora_rank": 12, "rope.dimension_count": 4, "attention.key_length_mla": 16,
     "attention.head_count_kv": None}),
    ("deepseek2", "deepseek_v3", {"qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "num_key_value_heads": 4,
     "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0,
     "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0}}, {"rope.freq_base": 5e5,
     "attention.kv_lora_rank": 12, "rope.dimension_count": 4, "attention.key_length_mla": 16,
     "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 32,
     "rope.scaling.yarn_log_multiplier": 0.1, "attention.head_count_kv": None}),
    ("minicpm3", "minicpm3", {"qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "num_key_value_heads": 4},
     {"attention.kv_lora_rank": 12, "attention.key_length": 16, "rope.dimension_count": 4,
     "attention.head_count_kv": None}),
    ("chatglm", "glm", {"head_dim": 8}, {"rope.dimension_count": 4}),
    ("glm4moe", "glm4_moe", {}, {"rope.dimension_count": 4}),
    ("afmoe", "afmoe", {"num_experts_per_tok": 2, "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8},
     {"block_count": 4, "attention.sliding_window": 8}),
    ("ernie4_5-moe", "ernie4_5_moe", {}, {"rope.freq_base": 5e5}),
    ("lfm2", "lfm2", {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv",
     "full_attention"]}, {"block_count": 4, "attention.head_count_kv": [0, 2, 0, 2], "rope.freq_base": 1e6}),
    ("lfm2moe", "lfm2_moe", {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
     {"block_count": 3, "attention.head_count_kv": [0, 2, 0], "rope.freq_base": 1e6}),
    ("apertus", "apertus", {"rope_parameters": LLAMA_3}, {"rope.freq_base": 5e5, "rope_freqs.weight": [1.0, 1.0,
     2.6945297718048096, 8.0]}),
    ("phimoe", "phimoe", {"rope_parameters": PLAIN}, {"rope.freq_base": 5e5}),
    ("minimax-m2", "minimax_m2", {"head_dim": 16, "partial_rotary_factor": 0.5}, {"rope.freq_base": 5e6,
     "rope.dimension_count": 8, "attention.key_length": 16}),
    ("exaone-moe", "exaone_moe", {"num_experts_per_tok": 2, "num_hidden_layers": 4, "sliding_window": 8},
     {"block_count": 4, "attention.sliding_window": 8}),
    ("falcon-h1", "falcon_h1", {"num_hidden_layers": 4, "mamba_n_heads": 8, "key_multiplier": 1.0},
     {"block_count": 4}),
    ("glm-dsa", "glm_moe_dsa", {"qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "num_key_value_heads": 4},
     {"attention.kv_lora_rank": 12, "rope.dimension_count": 4, "attention.key_length_mla": 16,
     "attention.head_count_kv": None}),
    ("kimi-linear", "kimi_linear", {"qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "num_key_value_heads": 4,
     "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}, {"block_count": 4,
     "attention.head_count_kv": [0, 1, 0, 1], "attention.kv_lora_rank": 12, "rope.dimension_count": 4,
     "attention.key_length_mla": 16}),
    ("jina-bert-v3", "jina_embeddings_v3", {"num_key_value_heads": 4}, {"rope.freq_base": 2e4,
     "attention.causal": False, "attention.head_count_kv": None}),
    ("bert", "bert", {"num_key_value_heads": 4}, {"attention.causal": False, "attention.head_count_kv": None}),
    ("nomic-bert", "nomic_bert", {"num_key_value_heads": 4, "pad_token_id": 0}, {"rope.freq_base": 1000.0,
     "attention.causal": False, "attention.head_count_kv": None}),
    ("eurobert", "eurobert", {}, {"attention.causal": False}),
    ("modern-bert", "modernbert", {"num_key_value_heads": 4, "num_hidden_layers": 4, "local_attention": 8},
     {"block_count": 4, "rope.freq_base": 1.6e5, "attention.causal": False, "rope.freq_base_swa": 1e4,
     "attention.sliding_window": 8, "attention.head_count_kv": None}),
    ("gemma-embedding", "gemma3_text", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16,
     "num_hidden_layers": 6, "use_bidirectional_attention": True, "rope_parameters": NEAR_AND_FAR},
     {"block_count": 6, "rope.freq_base": 1e6, "rope.scaling.factor": 8.0, "attention.key_length": 16,
     "attention.sliding_window": 8}),
    ("falcon", "falcon", {"multi_query": True, "num_kv_heads": 1, "num_key_value_heads": 1},
     {"attention.head_count_kv": 1}),
    ("falcon", "falcon", {"num_kv_heads": 2, "new_decoder_architecture": True}, {}),
]
# fmt: on
"""An architecture, transformers' model_type, and keys of its config and of the file apart from sizes; None for a key
that the file lacks."""

for name in ALIKE.split():
    CASES.append((name.partition(":")[0], name.rpartition(":")[2], {}, {}))

WITH_PERMUTATION = "arcee granite granitehybrid granitemoe llama mistral3 olmo smollm3".split()
"""Architectures whose pairs are neighbours after conversion, and half the rotary width apart in transformers."""


@pytest.mark.slow
def test_each_architecture_does_what_the_modules_of_transformers_do() -> None:
    wrong = {}
    for number, (arch, model_type, options, keys) in enumerate(CASES):
        metadata = {"general.architecture": arch}
        for key, value in (FILE_SIZES | keys).items():
            metadata |= {} if value is None else {key if key in archs.TABLES else f"{arch}.{key}": value}
        reading = read(metadata)
        if arch in WITH_PERMUTATION:
            (part,) = reading.parts
            specs = [layer.spec.replace("layout='interleaved'", "layout='half'") for layer in part.layers]
            layers = tuple(replace(layer, spec=spec) for layer, spec in zip(part.layers, specs, strict=True))
            assert layers != part.layers or all(spec == "none" for spec in specs)
            reading = replace(reading, parts=(replace(part, layers=layers),))
        config = transformers.AutoConfig.for_model(model_type, **SIZES | options)
        # transformers' config has no parts for a model without positions.
        expected = replace(reading, parts=()) if arch in archs.RECURRENT else reading
        if faults := differences(expected, config_json.read(parse_json(config.to_json_string()))):
            wrong[f"{number}, {arch}"] = faults
        if reading.not_covered or reading.unknown or reading.contradictions:
            wrong[f"{number}, {arch}, left"] = [*reading.not_covered, *reading.unknown, *reading.contradictions]
    assert wrong == {}


def test_the_lists_name_architectures_that_there_are() -> None:
    """A misspelt name would be the wrong layout, in silence."""
    there = set(gguf.MODEL_ARCH_NAMES.values())
    tables = [archs.INTERLEAVED, archs.HALF, archs.MULTIMODAL, archs.LEARNED, archs.ALIBI, archs.RECURRENT]
    lists = [set(table) for table in (*tables, archs.WITHOUT_ROTARY)]
    assert sum(map(len, lists)) == len(set.union(*lists)) == len(archs.ARCHITECTURES) and there >= archs.ARCHITECTURES
    for facts in (archs.WINDOW_EVERY, archs.WINDOW_IN_ALL, archs.NO_ROTARY_EVERY, archs.ONLY_IN_WINDOWS):
        assert set(facts) <= archs.INTERLEAVED | archs.HALF
    for facts in (archs.LOCAL_BASE, archs.PLAIN_IN_WINDOWS, archs.SCALED_BY_WIDTH):
        assert set(facts) <= archs.HALF
    assert {arch for arch, *_ in CASES} <= archs.ARCHITECTURES
