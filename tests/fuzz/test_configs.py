"""Hostile configs: every config.json or params.json is read, or refused with one short message."""

import copy
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fuzz.driver import run_cases, short_and_long

from posenc.checkpoints.inspection.inspect import inspect, reading_as_json
from posenc.checkpoints.inspection.portrait import describe_reading

pytest.importorskip("transformers")

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
KINDS = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
BERT = {"position_embedding_type": "absolute", "type_vocab_size": 2}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 64}

WHISPER = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_mel_bins": 4, "max_source_positions": 8}

SOUND_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **TINY, "rope_theta": 5e5, "rope_scaling": LLAMA3, "architectures": ["X"]},
    "qwen2": {"model_type": "qwen2", **TINY, **KINDS, "rope_scaling": YARN, "use_sliding_window": True},
    "phi3": {"model_type": "phi3", **TINY, "rope_scaling": LONGROPE, "pad_token_id": 0},
    "gemma3_text": {"model_type": "gemma3_text", **TINY, **KINDS, "head_dim": 16, "query_pre_attn_scalar": 16},
    "gpt_neox": {"model_type": "gpt_neox", **TINY, "rotary_pct": 0.5, "rotary_emb_base": 1e4},
    "gpt2": {"model_type": "gpt2", **GPT},
    "gptj": {"model_type": "gptj", **GPT, "rotary_dim": 8},
    "bert": {"model_type": "bert", **TINY, **BERT, "max_position_embeddings": 64},
    "t5": {"model_type": "t5", "d_model": 32, "d_kv": 16, "num_layers": 2, "num_heads": 2, "d_ff": 8, "vocab_size": 64},
    "bloom": {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64},
    "falcon": {"model_type": "falcon", **TINY, "alibi": True},
    "mixtral": {"model_type": "mixtral", **TINY, **EXPERTS},
    "gpt_oss": {"model_type": "gpt_oss", **TINY, **KINDS, **EXPERTS, "head_dim": 16, "rope_scaling": YARN},
    "deepseek_v3": {"model_type": "deepseek_v3", **TINY, **LATENT, "n_routed_experts": 4, "first_k_dense_replace": 2},
    "smollm3": {"model_type": "smollm3", **TINY, "no_rope_layers": [1, 0], "pad_token_id": 0},
    "vit": {"model_type": "vit", **TINY, "image_size": 32, "patch_size": 16},
    "qwen2_vl": {"model_type": "qwen2_vl", "text_config": {**TINY, "rope_theta": 1e6}, "vision_config": {"depth": 1}},
    "mpt": {"model_type": "mpt", "d_model": 32, "n_heads": 2, "n_layers": 2, "attn_config": {"alibi": True}},
    "roberta": {"model_type": "roberta", **TINY, "max_position_embeddings": 66, "pad_token_id": 1},
    "whisper": {"model_type": "whisper", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, **WHISPER},
    "unknown": {"model_type": "nonesuch", **TINY, "rope_theta": 1e4, "rope_scaling": YARN},
    "meta": {"dim": 32, "n_layers": 2, "n_heads": 2, "rope_theta": 5e5, "use_scaled_rope": True, "max_seq_len": 64},
}
"""A valid configuration for each kind of positional encoding, and for each reader."""

RUBBISH = [
    *(None, True, False, 0, -1, 1, 3, 0.5, 1e8, 10**8, 10**9, -(10**9), 1e29, 10**39, 10**400, 1e308, -1e308, 5e-324),
    *(float("nan"), float("inf"), "", "8", "a" * 100_000, "\x1b[31m\x07", "\ud800", "../../etc/passwd", "evil.py:X"),
    *([], {}, [[]], [1] * 50_000, ["x", None, 3], {"a": {"b": [{}]}}, {"rope_type": "yarn"}, [10**9, -1], "yarn"),
    *(2048, 1 << 20, (1 << 22) - 1, 1 << 24, 1 << 31, (1 << 63) - 1, "linear", {"full_attention": {"factor": 2}}),
]
"""Wrong values of every type and size."""


def faulty_config(seed: int) -> dict[str, Any]:
    """Return a valid configuration with one to three faults: wrong values, or keys dropped, renamed, nested, copied."""
    random = Random(seed)
    config = copy.deepcopy(random.choice(list(SOUND_CONFIGS.values())))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        part = config
        while (
            inner := [value for value in part.values() if isinstance(value, dict) and value]
        ) and random.random() < 0.5:
            part = random.choice(inner)
        if not part:
            continue
        key = random.choice(list(part))
        fault = random.choice(("value", "value", "value", "value", "item", "drop", "rename", "nest", "copy"))
        if fault == "value":
            part[key] = copy.deepcopy(random.choice(RUBBISH))
        elif fault == "item" and isinstance(part[key], list):
            part[key] = [*part[key], copy.deepcopy(random.choice(RUBBISH))]
        elif fault == "drop":
            del part[key]
        elif fault == "rename":
            part[random.choice(("hidden_size", "rope_theta", "head_dim", "x" * 300, "\x1b]0;"))] = part.pop(key)
        elif fault == "nest":
            part[key] = {key: part[key]}
        else:
            donor = random.choice(list(SOUND_CONFIGS.values()))
            donor_key = random.choice(list(donor))
            part[donor_key] = copy.deepcopy(donor[donor_key])
    return config


@short_and_long(25, 1_000)
def test_a_broken_config_is_read_or_refused_in_a_sentence(seeds: range, tmp_path: Path) -> None:
    file = tmp_path / "config.json"

    def read(seed: int) -> None:
        """Read and describe a config, as the command does."""
        file.write_text(json.dumps(faulty_config(seed)))
        reading = inspect(file)
        text = describe_reading(reading)
        assert len(text) < 200_000 and not set(text) & set("\x1b\x07\x00\ud800"), text[:500]
        json.dumps(reading_as_json(reading))

    counts = run_cases(read, seeds, cpu=20, memory=1 << 30)
    assert counts["read"] and counts["refused"]
