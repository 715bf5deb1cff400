"""Configs of released models: the published position settings, few layers, and two heads of the true width."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def small(model_type: str, wide: int, longest: int, layers: int = 2, **options: Any) -> dict[str, Any]:
    """Return a config with the published position settings, few layers, and two heads of true width."""
    sizes = {"model_type": model_type, "hidden_size": 2 * wide, "num_attention_heads": 2, "vocab_size": 32}
    sizes |= {"num_key_value_heads": 2, "num_hidden_layers": layers, "intermediate_size": 16, "pad_token_id": 0}
    return sizes | {"max_position_embeddings": longest} | options


LLAMA3 = {"high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}
YARN = {"original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0}
YARN_4 = {"factor": 4.0, "original_max_position_embeddings": 32768}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
LISTS = {"short_factor": [1 + k / 48 for k in range(48)], "long_factor": [1 + k * 1.3 for k in range(48)]}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
MOE = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 8}
VISION = {"depth": 1, "hidden_size": 16, "num_heads": 2, "patch_size": 4, "intermediate_size": 16}
VISION |= {"num_position_embeddings": 16, "deepstack_visual_indexes": []}

PUBLISHED_CONFIGS: dict[str, dict[str, Any]] = {
    "Llama 3.1": small(
        "llama", 128, 131072, rope_theta=5e5, rope_scaling={"factor": 8.0, "rope_type": "llama3", **LLAMA3}
    ),
    "Llama 3.2": small(
        "llama", 64, 131072, head_dim=64, rope_theta=5e5, rope_scaling={"factor": 32.0, "rope_type": "llama3", **LLAMA3}
    ),
    "Qwen2.5": small("qwen2", 128, 32768, rope_theta=1e6, sliding_window=131072, use_sliding_window=False),
    # The model card's recipe leaves max_position_embeddings unchanged; other configs have the extended length.
    "Qwen2.5 by its recipe": small("qwen2", 128, 32768, rope_theta=1e6, rope_scaling={"type": "yarn", **YARN_4}),
    "Qwen2.5 with YaRN": small("qwen2", 64, 131072, rope_theta=1e6, rope_scaling={"type": "yarn", **YARN_4}),
    "Qwen3": small("qwen3", 128, 40960, head_dim=128, rope_theta=1e6, sliding_window=None, use_sliding_window=False),
    "Qwen3 by its recipe": small(
        "qwen3", 128, 40960, head_dim=128, rope_theta=1e6, rope_scaling={"rope_type": "yarn", **YARN_4}
    ),
    "gpt-oss": small(
        *("gpt_oss", 64, 131072),
        **{"head_dim": 64, "rope_theta": 150000, "sliding_window": 128, "initial_context_length": 4096, **EXPERTS},
        rope_scaling={"factor": 32.0, "rope_type": "yarn", "truncate": False, **YARN},
        layer_types=["sliding_attention", "full_attention"],
    ),
    "Phi-3": small(
        *("phi3", 96, 131072),
        **{"original_max_position_embeddings": 4096, "rope_theta": 1e4, "rope_scaling": {"type": "longrope", **LISTS}},
    ),
    "Phi-4-mini": small(
        *("phi3", 128, 131072),
        **{"original_max_position_embeddings": 4096, "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        rope_scaling={"type": "longrope", **LISTS},
    ),
    # The factor is not the ratio of the two lengths, which transformers 4 uses.
    "Llama with LongRoPE": small(
        *("llama", 96, 65536),
        **{"rope_theta": 1e4, "head_dim": 96},
        rope_scaling={"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 8192, **LISTS},
    ),
    "DeepSeek-V3": small(
        *("deepseek_v3", 64, 163840),
        **{"first_k_dense_replace": 1, "rope_theta": 10000, **LATENT, **MOE},
        rope_scaling={"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, **YARN},
    ),
    "Gemma 3": small(
        *("gemma3_text", 256, 131072, 6),
        **{"head_dim": 256, "sliding_window": 1024, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256},
        **{"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
    ),
    "SmolLM3": small("smollm3", 128, 65536, 4, rope_theta=5e6, no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4),
    "Mistral 0.1": small("mistral", 128, 32768, rope_theta=1e4, sliding_window=4096),
    "Mistral 0.3": small("mistral", 128, 32768, rope_theta=1e6, sliding_window=None, head_dim=None),
    "Qwen2-VL": small(
        *("qwen2_vl", 128, 32768),
        **{"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        vision_config=VISION | {"embed_dim": 16, "mlp_ratio": 1},
    ),
    "Qwen3-VL": {
        "model_type": "qwen3_vl",
        "text_config": small(
            *("qwen3_vl_text", 128, 262144),
            **{"head_dim": 128, "rope_theta": 5e6},
            rope_scaling={"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        ),
        "vision_config": VISION | {"model_type": "qwen3_vl", "out_hidden_size": 256},
        "tie_word_embeddings": True,
    },
    "Pythia": small("gpt_neox", 64, 2048, rotary_pct=0.25, rotary_emb_base=10000),
    "Falcon": small("falcon", 64, 2048, rope_theta=500042.0, alibi=False, new_decoder_architecture=True),
    "Phi-2": small("phi", 80, 2048, rope_theta=1e4, partial_rotary_factor=0.4),
    "OLMo 3": small(
        *("olmo3", 128, 65536),
        **{"rope_theta": 500000, "sliding_window": 4096, "layer_types": ["sliding_attention", "full_attention"]},
        rope_scaling={"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836, **YARN}
        | {"original_max_position_embeddings": 8192},
    ),
    "ModernBERT": small(
        *("modernbert", 64, 8192, 3),
        **{"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "local_attention": 128},
    ),
    "ModernBERT decoder": small(
        *("modernbert-decoder", 64, 8192, 3),
        **{"global_rope_theta": 160000.0, "local_rope_theta": 160000.0, "local_attention": 128},
    ),
}
"""The published keys; the sizes and the numbers in LongRoPE's lists are made up."""


def installed_rotaries(
    python: str, folder: Path, configs: Sequence[dict[str, Any]], lengths: Sequence[list[int]]
) -> list[dict[str, Any]]:
    """Return rotary tables for configs and lengths, computed by a Python's transformers in a new process."""
    request = {"folders": [str(folder / str(number)) for number in range(len(configs))], "lengths": list(lengths)}
    for where, config in zip(request["folders"], configs, strict=True):
        Path(where).mkdir()
        Path(where, "config.json").write_text(json.dumps(config))
    result = subprocess.run(
        [python, Path(__file__).with_name("rotary_in_transformers.py")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)
