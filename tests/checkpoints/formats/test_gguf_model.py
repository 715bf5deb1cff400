"""GGUF files written here from tiny transformers models, as llama.cpp's converter does: what is loaded is the same."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

from posenc.checkpoints.conversion.convert import Request, convert  # noqa: E402
from posenc.checkpoints.files.tensors import GGUFTensors  # noqa: E402
from posenc.checkpoints.formats.gguf import architectures  # noqa: E402
from posenc.checkpoints.formats.gguf import model as gguf_model  # noqa: E402
from posenc.checkpoints.formats.gguf.architectures import ARCHITECTURES  # noqa: E402
from posenc.checkpoints.formats.gguf.model import open_model  # noqa: E402
from posenc.checkpoints.formats.load import load, quietly, without_weights  # noqa: E402
from posenc.checkpoints.inspection.inspect import inspect  # noqa: E402
from posenc.checkpoints.vocabulary.ledger import SPEAKS_OF_POSITION  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402

SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}

MULTIPLIERS = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.125}
MULTIPLIERS |= {"logits_scaling": 8.0}
MULTIPLIED = {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.125, "logit_scale": 8.0}
MOE = {"num_experts": 4, "num_experts_per_tok": 2}
LOCAL_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
COUNTED = {"expert_count": 4, "expert_used_count": 2}
CAPPED = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
EPSILON = {"attention.layer_norm_epsilon": 1e-5, "rope.freq_base": None}
HEADS_ALIKE = {"num_key_value_heads": 4}
LLAMA_3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LLAMA_3 |= {"original_max_position_embeddings": 8192}
LONG: dict[str, Any] = {"short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 8.0], "factor": 2.0}
LONG |= {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
PLAIN = {"rope_type": "default", "rope_theta": 5e5}
YARN_SAID = {"rope.freq_base": 5e5, "rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}
YARN_SAID |= {"rope.scaling.original_context_length": 32}
LINEAR_SAID = {"rope.freq_base": 1e6, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
NEAR_AND_FAR = {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}

LATENT = {"q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 6}
LATENT |= {"moe_intermediate_size": 16, "n_shared_experts": 2, "first_k_dense_replace": 1, **HEADS_ALIKE}
LATENT_SAID = COUNTED | {"attention.q_lora_rank": 16, "attention.kv_lora_rank": 12, "rope.dimension_count": 4}
LATENT_SAID |= {"attention.key_length": 16, "attention.value_length": 12, "attention.head_count_kv": 1}
LATENT_SAID |= {"attention.key_length_mla": 16, "attention.value_length_mla": 6, "expert_gating_func": 1}
LATENT_SAID |= {"expert_feed_forward_length": 16, "expert_shared_count": 2, "leading_dense_block_count": 1}
GROUPED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
GROUPED_SAID = {"expert_group_count": 2, "expert_group_used_count": 1}
WIDE_MOE = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
WIDE_SAID = {"expert_feed_forward_length": 16, "expert_shared_count": 1, "leading_dense_block_count": 1}
WIDE_SAID |= {"expert_gating_func": 2, "expert_weights_norm": True}
BOTH_NEAR_AND_FAR = {
    "full_attention": {"rope_type": "default", "rope_theta": 1.6e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
ENCODER = {"attention.causal": False, "attention.layer_norm_epsilon": 1e-12, "token_type_count": 2}

GEMMA_4 = {"num_hidden_layers": 6, "head_dim": 8, "global_head_dim": 16, "sliding_window": 8}
GEMMA_4 |= {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2}
GEMMA_4 |= {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40, "final_logit_softcapping": 30.0}
GEMMA_4_SAID = {"attention.key_length": 16, "attention.value_length": 16, "attention.shared_kv_layers": 2}
GEMMA_4_SAID |= {"attention.key_length_swa": 8, "attention.value_length_swa": 8, "attention.sliding_window": 8}
GEMMA_4_SAID |= {"attention.sliding_window_pattern": [True, False] * 3, "embedding_length_per_layer_input": 8}
GEMMA_4_SAID |= {"rope.dimension_count": 16, "rope.dimension_count_swa": 8, "rope.freq_base": 1e6}
GEMMA_4_SAID |= {"rope.freq_base_swa": 1e4, "final_logit_softcapping": 30.0}
GEMMA_4_SAID |= {"feed_forward_length": [48] * 4 + [96] * 2}

T5 = {"num_decoder_layers": 3, "d_ff": 48, "d_kv": 16, "pad_token_id": 0, "decoder_start_token_id": 0}
T5_SAID: dict[str, Any] = {"attention.key_length": 16, "attention.value_length": 16, "rope.freq_base": None}
T5_SAID |= {"attention.relative_buckets_count": 32, "attention.head_count_kv": None, "feed_forward_length": 48}
T5_SAID |= {"attention.layer_norm_epsilon": 1e-6, "attention.layer_norm_rms_epsilon": 1e-6}
T5_SAID |= {"decoder_start_token_id": 0}

STATEFUL = {"num_hidden_layers": 4, "head_dim": 32, "linear_key_head_dim": 4, "linear_value_head_dim": 6}
STATEFUL |= {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_conv_kernel_dim": 4}
STATEFUL_SAID: dict[str, Any] = {"ssm.conv_kernel": 4, "ssm.state_size": 4, "ssm.group_count": 2}
STATEFUL_SAID |= {"ssm.time_step_rank": 6, "ssm.inner_size": 36, "full_attention_interval": 4}
STATEFUL_SAID |= {"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 8}
SECTIONS = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1]}
SECTIONS |= {"mrope_interleaved": True}
MAMBA = {"num_hidden_layers": 4, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_d_head": 8}
MAMBA |= {"mamba_expand": 2}
MAMBA_SAID: dict[str, Any] = {"ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2, "ssm.inner_size": 64}
MAMBA_SAID |= {"ssm.time_step_rank": 8, "vocab_size": 40}
RECURRENT: dict[str, Any] = {"context_length": 1 << 20, "attention.head_count": 0, "attention.head_count_kv": None}
RECURRENT |= {"feed_forward_length": 0, "ssm.conv_kernel": 4, "ssm.state_size": 8}
RECURRENT |= {"attention.layer_norm_rms_epsilon": 1e-5}
NEMOTRON = {"num_hidden_layers": 4, "head_dim": 8, "ssm_state_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8}
NEMOTRON |= {"n_groups": 2, "expand": 2}

CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", {"head_dim": 16, "tie_word_embeddings": True}, {"attention.key_length": 16}),
    "llama, biases": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}, {"vocab_size": 40}),
    "llama, YaRN": ("llama", "llama", {"rope_parameters": YARN}, YARN_SAID),
    "llama, 3.1": ("llama", "llama", {"rope_parameters": LLAMA_3, "head_dim": 32}, {"attention.key_length": 32}),
    "mixtral": ("mixtral", "llama with expert_count", {"rope_parameters": PLAIN, **LOCAL_MOE}, COUNTED),
    "mistral": ("mistral", "mistral3", {"sliding_window": None, "head_dim": 8}, {}),
    "arcee": ("arcee", "arcee", {}, {}),
    "smollm3": ("smollm3", "smollm3", {"num_hidden_layers": 5, "rope_parameters": PLAIN}, {}),
    "llama4": (
        "llama4_text",
        "llama4",
        {"num_hidden_layers": 5, "head_dim": 8, "rope_parameters": LLAMA_3, "intermediate_size": 16}
        | {"intermediate_size_mlp": 48, "num_local_experts": 4, "interleave_moe_layer_step": 2},
        {"expert_count": 4, "expert_used_count": 1, "expert_feed_forward_length": 16, "feed_forward_length": 48}
        | {"interleave_moe_layer_step": 2, "rope.dimension_count": 8, "vocab_size": 40},
    ),
    "granite": ("granite", "granite", MULTIPLIERS, MULTIPLIED),
    "granite, experts": ("granitemoe", "granitemoe", MULTIPLIERS | LOCAL_MOE, MULTIPLIED | COUNTED),
    "olmo": ("olmo", "olmo", {"clip_qkv": 0.5}, {"attention.clamp_kqv": 0.5, "attention.layer_norm_epsilon": 1e-5}),
    "olmo2": ("olmo2", "olmo2", {}, {}),
    "olmo3": (
        "olmo3",
        "olmo2 with attention.sliding_window",
        {
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN},
        },
        YARN_SAID
        | {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, True, True, False]}
        | {"rope.freq_base_swa": 5e5},
    ),
    "olmoe": ("olmoe", "olmoe", MOE, COUNTED),
    "qwen2": ("qwen2", "qwen2", {"tie_word_embeddings": True}, {}),
    "qwen2, experts": (
        "qwen2_moe",
        "qwen2moe",
        MOE | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
        COUNTED | {"expert_feed_forward_length": 16, "expert_shared_feed_forward_length": 24},
    ),
    "qwen3": ("qwen3", "qwen3", {"head_dim": 16}, {"attention.key_length": 16, "attention.value_length": 16}),
    "qwen3, experts": (
        "qwen3_moe",
        "qwen3moe",
        MOE | {"moe_intermediate_size": 16, "norm_topk_prob": True, "head_dim": 8},
        COUNTED | {"expert_feed_forward_length": 16},
    ),
    "qwen3_next": (
        "qwen3_next",
        "qwen3next",
        STATEFUL | MOE | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24},
        STATEFUL_SAID | COUNTED | {"expert_feed_forward_length": 16, "expert_shared_feed_forward_length": 24},
    ),
    "qwen3.5": (
        "qwen3_5_text",
        "qwen35",
        STATEFUL | {"rope_parameters": SECTIONS},
        STATEFUL_SAID | {"rope.dimension_sections": [2, 1, 1, 0], "rope.freq_base": 1e7},
    ),
    "qwen3.5, experts": (
        "qwen3_5_moe_text",
        "qwen35moe",
        STATEFUL
        | MOE
        | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "rope_parameters": SECTIONS}
        | {"linear_num_value_heads": 2},
        STATEFUL_SAID
        | COUNTED
        | {"expert_feed_forward_length": 16, "expert_shared_feed_forward_length": 24, "feed_forward_length": None}
        | {"rope.dimension_sections": [2, 1, 1, 0], "rope.freq_base": 1e7, "full_attention_interval": None}
        | {"ssm.time_step_rank": 2, "ssm.inner_size": 12},
    ),
    "granite, hybrid": (
        "granitemoehybrid",
        "granitehybrid",
        MULTIPLIERS | LOCAL_MOE | MAMBA | {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 24},
        MULTIPLIED
        | COUNTED
        | MAMBA_SAID
        | {"expert_shared_feed_forward_length": 24, "attention.head_count_kv": [0, 2, 0, 2]}
        | {"rope.scaling.finetuned": False, "rope.dimension_count": 8},
    ),
    "granite, hybrid without experts": (
        "granitemoehybrid",
        "granitehybrid",
        MULTIPLIERS
        | MAMBA
        | {"layer_types": ["mamba", "mamba", "attention", "mamba"], "shared_intermediate_size": 48}
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": None},
        MULTIPLIED
        | MAMBA_SAID
        | {"attention.head_count_kv": [0, 0, 2, 0], "rope.scaling.finetuned": False, "expert_count": 0},
    ),
    "bamba": (
        "bamba",
        "granitehybrid with rope.scaling.finetuned",
        MAMBA | {"attn_layer_indices": [1, 2]},
        MAMBA_SAID
        | {"attention.head_count_kv": [0, 2, 2, 0], "rope.scaling.finetuned": True, "rope.dimension_count": 4},
    ),
    "nemotron_h": (
        "nemotron_h",
        "nemotron_h",
        NEMOTRON | {"layers_block_type": ["mamba", "mlp", "attention", "mamba"]},
        MAMBA_SAID
        | {"attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 48, 0, 0], "attention.key_length": 8}
        | {"rope.scaling.finetuned": False, "attention.layer_norm_rms_epsilon": 1e-5},
    ),
    "nemotron_h, experts": (
        "nemotron_h",
        "nemotron_h_moe",
        NEMOTRON
        | {"layers_block_type": ["mamba", "moe", "attention", "moe"], "n_routed_experts": 4, "num_experts_per_tok": 2}
        | {"moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 24, "routed_scaling_factor": 2.5},
        MAMBA_SAID
        | COUNTED
        | {"attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 16, 0, 16], "attention.key_length": 8}
        | {"expert_feed_forward_length": 16, "expert_shared_feed_forward_length": 24, "expert_shared_count": 1}
        | {"expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1}
        | {"rope.scaling.finetuned": False, "attention.layer_norm_rms_epsilon": 1e-5},
    ),
    "mamba": (
        "mamba",
        "mamba",
        {"state_size": 8, "time_step_rank": 4, "intermediate_size": 64},
        RECURRENT | {"ssm.inner_size": 64, "ssm.time_step_rank": 4, "ssm.dt_b_c_rms": False},
    ),
    "falcon_mamba": (
        "falcon_mamba",
        "mamba with ssm.dt_b_c_rms",
        {"state_size": 8, "time_step_rank": 4, "intermediate_size": 64, "tie_word_embeddings": False},
        RECURRENT | {"ssm.inner_size": 64, "ssm.time_step_rank": 4, "ssm.dt_b_c_rms": True},
    ),
    "mamba2": (
        "mamba2",
        "mamba2",
        {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2},
        RECURRENT | {"ssm.inner_size": 64, "ssm.time_step_rank": 8, "ssm.group_count": 2},
    ),
    "jamba": (
        "jamba",
        "jamba",
        MOE
        | {"num_hidden_layers": 4, "mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 4}
        | {"attn_layer_offset": 2, "expert_layer_period": 2, "expert_layer_offset": 1},
        COUNTED
        | {"ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 8, "ssm.time_step_rank": 4}
        | {"attention.head_count_kv": [0, 0, 2, 0]},
    ),
    "mimo2": (
        "mimo_v2_flash",
        "mimo2",
        WIDE_MOE
        | {"num_hidden_layers": 4, "head_dim": 12, "v_head_dim": 8, "sliding_window": 8, "n_routed_experts": 4}
        | {"layer_types": ["full_attention", "sliding_attention"] * 2},
        COUNTED
        | {"attention.key_length": 12, "attention.value_length": 8, "rope.dimension_count": 4, "rope.freq_base": 5e6}
        | {"rope.freq_base_swa": 1e4, "attention.sliding_window": 8, "attention.sliding_window_pattern": [0, 1] * 2}
        | {"attention.head_count_kv": [2, 4] * 2, "attention.value_scale": 0.707, "expert_feed_forward_length": 16},
    ),
    "bitnet": (
        "bitnet",
        "bitnet",
        {"hidden_act": "silu", "rope_parameters": PLAIN, "tie_word_embeddings": True},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
    ),
    "seed_oss": ("seed_oss", "seed_oss", {"head_dim": 8}, {}),
    "gemma": ("gemma", "gemma", {"head_dim": 16}, {"attention.key_length": 16}),
    "gemma2": (
        "gemma2",
        "gemma2",
        {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
        CAPPED | {"attention.key_length": 16, "attention.sliding_window": 8},
    ),
    "gemma3": (
        "gemma3_text",
        "gemma3",
        {
            **{"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 7},
            "rope_parameters": NEAR_AND_FAR,
        },
        LINEAR_SAID | {"attention.key_length": 16, "attention.sliding_window": 8},
    ),
    "gemma3n": (
        "gemma3n_text",
        "gemma3n",
        {
            "num_hidden_layers": 6,
            "head_dim": 16,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
        }
        | {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 40}
        | {"laurel_rank": 5, "altup_active_idx": 1, "activation_sparsity_pattern": [0.95, 0.0, 0.5, 0.0, 0.0, 0.0]},
        {
            "attention.key_length": 16,
            "attention.sliding_window": 8,
            "rope.freq_base": 1e6,
            "final_logit_softcapping": 30.0,
        }
        | {"attention.sliding_window_pattern": [True, False] * 3, "attention.shared_kv_layers": 2}
        | {"embedding_length_per_layer_input": 8, "altup.active_idx": 1, "altup.num_inputs": 4}
        | {"activation_sparsity_scale": [1.6448535919189453, -math.inf, 0.0, *[-math.inf] * 3]},
    ),
    "gemma4": ("gemma4_text", "gemma4", GEMMA_4 | {"use_double_wide_mlp": True}, GEMMA_4_SAID),
    "gemma4, experts": (
        "gemma4_text",
        "gemma4",
        GEMMA_4
        | {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "num_global_key_value_heads": 1}
        | {"attention_k_eq_v": True, "enable_moe_block": True, "moe_intermediate_size": 16}
        | {"num_experts": 4, "top_k_experts": 2},
        GEMMA_4_SAID
        | COUNTED
        | {"attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0, "feed_forward_length": 48}
        | {"attention.head_count_kv": [2, 1] * 3, "expert_feed_forward_length": 16},
    ),
    "phi": (
        "phi",
        "phi2",
        {"partial_rotary_factor": 0.5, **HEADS_ALIKE},
        EPSILON | {"rope.dimension_count": 4},
    ),
    "phi3": (
        "phi3",
        "phi3",
        {"original_max_position_embeddings": 64, "sliding_window": 8},
        {"rope.scaling.original_context_length": 64, "attention.sliding_window": 8},
    ),
    "phi3, long": (
        "phi3",
        "phi3",
        {"original_max_position_embeddings": 32, "rope_parameters": LONG},
        {
            "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": 1.0954451150103321,
            "attention.sliding_window": 0,
        },
    ),
    "gpt2": ("gpt2", "gpt2", HEADS_ALIKE, EPSILON),
    "starcoder": ("gpt_bigcode", "starcoder", {"num_key_value_heads": 1}, EPSILON),
    "starcoder2": ("starcoder2", "starcoder2", {}, {"attention.layer_norm_epsilon": 1e-5}),
    "gptneox": (
        "gpt_neox",
        "gptneox",
        {"rotary_pct": 0.5, **HEADS_ALIKE},
        EPSILON | {"rope.dimension_count": 4, "use_parallel_residual": True},
    ),
    "gptneox, one after another": (
        "gpt_neox",
        "gptneox",
        {"rotary_pct": 0.25, "use_parallel_residual": False, **HEADS_ALIKE},
        EPSILON | {"rope.dimension_count": 2, "use_parallel_residual": False},
    ),
    "bloom": ("bloom", "bloom", HEADS_ALIKE, EPSILON),
    "mpt": (
        "mpt",
        "mpt",
        {"max_seq_len": 64, "attn_config": {"clip_qkv": 0.5}, **HEADS_ALIKE},
        EPSILON | {"attention.max_alibi_bias": 8.0, "attention.clamp_kqv": 0.5},
    ),
    "falcon 7B": (
        "falcon",
        "falcon",
        {"num_kv_heads": 1, "multi_query": True, "num_key_value_heads": 1},
        EPSILON | {"tensor_data_layout": "jploski"},
    ),
    "falcon 40B": (
        "falcon",
        "falcon",
        {"num_kv_heads": 2, "new_decoder_architecture": True},
        EPSILON | {"tensor_data_layout": "jploski"},
    ),
    "falcon 11B": (
        "falcon",
        "falcon",
        {"num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        EPSILON | {"tensor_data_layout": "jploski"},
    ),
    "dbrx": (
        "dbrx",
        "dbrx",
        {
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 5e5},
            "rope_parameters": PLAIN,
            "max_seq_len": 64,
        }
        | {
            "d_model": 32,
            "max_seq_len": 64,
            "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
        },
        COUNTED | {"feed_forward_length": 24, "attention.clamp_kqv": 0.5, "attention.layer_norm_epsilon": 1e-5},
    ),
    "stablelm": (
        "stablelm",
        "stablelm",
        {"partial_rotary_factor": 0.25, "use_qkv_bias": True},
        EPSILON | {"rope.dimension_count": 2, "use_parallel_residual": False},
    ),
    "stablelm 12B": (
        "stablelm",
        "stablelm",
        {"partial_rotary_factor": 0.25, "qk_layernorm": True, "use_parallel_residual": True},
        EPSILON | {"rope.dimension_count": 2, "use_parallel_residual": True},
    ),
    "nemotron": (
        "nemotron",
        "nemotron",
        {"partial_rotary_factor": 0.5, "head_dim": 8},
        {"rope.dimension_count": 4, "attention.layer_norm_epsilon": 1e-5, "rope.scaling.type": "none"},
    ),
    "command-r": (
        "cohere",
        "command-r",
        {"use_qk_norm": True, "logit_scale": 0.25},
        {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.25, "rope.scaling.type": "none"},
    ),
    "cohere2": (
        "cohere2",
        "cohere2",
        {"sliding_window": 8, "num_hidden_layers": 5},
        {"attention.layer_norm_epsilon": 1e-5, "logit_scale": 0.0625, "attention.sliding_window": 8},
    ),
    "glm4": ("glm4", "glm4", {"head_dim": 8, "partial_rotary_factor": 0.5}, {"rope.dimension_count": 4}),
    "exaone4": (
        "exaone4",
        "exaone4",
        {"sliding_window": 8, "num_hidden_layers": 5, "sliding_window_pattern": 4},
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, True, True, False, True]},
    ),
    "exaone4, small": (
        "exaone4",
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2},
        {},
    ),
    "ernie4_5": ("ernie4_5", "ernie4_5", {"head_dim": 8, "use_bias": True}, {}),
    "jais2": ("jais2", "jais2", {"head_dim": 8}, {"attention.layer_norm_epsilon": 1e-5}),
    "hunyuan": ("hunyuan_v1_dense", "hunyuan-dense", {"head_dim": 8}, {}),
    "hunyuan, experts": (
        "hunyuan_v1_moe",
        "hunyuan-moe",
        {"num_experts": 4, "moe_topk": 2, "head_dim": 8},
        COUNTED | {"expert_feed_forward_length": 48, "expert_shared_feed_forward_length": 48, "expert_shared_count": 1},
    ),
    "gpt-oss": (
        "gpt_oss",
        "gpt-oss",
        LOCAL_MOE | {"head_dim": 32, "sliding_window": 8, "rope_parameters": YARN | {"truncate": False}},
        COUNTED
        | YARN_SAID
        | {"attention.key_length": 32, "expert_feed_forward_length": 48, "attention.sliding_window": 8},
    ),
    "deepseek2": (
        "deepseek_v2",
        "deepseek2",
        LATENT | {"n_routed_experts": 4, "num_experts_per_tok": 2},
        LATENT_SAID,
    ),
    "deepseek2, groups and no small queries": (
        "deepseek_v2",
        "deepseek2",
        LATENT | GROUPED | {"q_lora_rank": None, "topk_method": "group_limited_greedy", "routed_scaling_factor": 2.0},
        LATENT_SAID | GROUPED_SAID | {"attention.q_lora_rank": None, "expert_weights_scale": 2.0},
    ),
    "deepseek2, third": (
        "deepseek_v3",
        "deepseek2 with expert_gating_func 2",
        LATENT | GROUPED | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        LATENT_SAID
        | GROUPED_SAID
        | YARN_SAID
        | {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
        | {"rope.scaling.yarn_log_multiplier": 0.1},
    ),
    "minicpm3": (
        "minicpm3",
        "minicpm3",
        {"q_lora_rank": 16, "kv_lora_rank": 12, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, **HEADS_ALIKE},
        {"attention.q_lora_rank": 16, "attention.kv_lora_rank": 12, "attention.key_length": 16}
        | {"rope.dimension_count": 4},
    ),
    "chatglm": ("glm", "chatglm", {"head_dim": 8, "partial_rotary_factor": 0.5}, {"rope.dimension_count": 4}),
    "glm4, experts": (
        "glm4_moe",
        "glm4moe",
        WIDE_MOE | {"n_routed_experts": 4, "head_dim": 8, "use_qk_norm": True},
        COUNTED | WIDE_SAID | {"rope.dimension_count": 4, "expert_group_count": 1, "expert_group_used_count": 1},
    ),
    "dots1": (
        "dots1",
        "dots1",
        WIDE_MOE | {"n_routed_experts": 4, "n_shared_experts": 1, "head_dim": 8, "first_k_dense_replace": 1},
        COUNTED | WIDE_SAID | {"expert_weights_norm": False, "expert_group_count": 1, "expert_group_used_count": 1},
    ),
    "afmoe": (
        "afmoe",
        "afmoe",
        WIDE_MOE | MOE | {"num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8, "mup_enabled": True},
        COUNTED | WIDE_SAID | {"attention.sliding_window": 8, "expert_shared_count": 2},
    ),
    "ernie4_5, experts": (
        "ernie4_5_moe",
        "ernie4_5-moe",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
        COUNTED
        | {"expert_feed_forward_length": 16, "expert_shared_count": 2, "leading_dense_block_count": 1}
        | {"interleave_moe_layer_step": 1, "expert_shared_feed_forward_length": 24},
    ),
    "lfm2": (
        "lfm2",
        "lfm2",
        {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"]}
        | {"block_auto_adjust_ff_dim": False, "conv_L_cache": 4, "norm_eps": 1e-6, "tie_word_embeddings": True},
        {"attention.head_count_kv": [0, 2, 0, 2], "shortconv.l_cache": 4, "attention.layer_norm_rms_epsilon": 1e-6}
        | {"vocab_size": 40},
    ),
    "lfm2, experts": (
        "lfm2_moe",
        "lfm2moe",
        MOE
        | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1}
        | {"moe_intermediate_size": 16, "norm_eps": 1e-6},
        COUNTED
        | {"attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "attention.layer_norm_rms_epsilon": 1e-6}
        | {"expert_feed_forward_length": 16, "leading_dense_block_count": 1, "expert_gating_func": 2},
    ),
    "apertus": ("apertus", "apertus", {"rope_parameters": LLAMA_3}, {}),
    "phimoe": (
        "phimoe",
        "phimoe",
        LOCAL_MOE | {"attention_bias": True, "lm_head_bias": True, "rope_parameters": PLAIN},
        COUNTED | {"attention.sliding_window": 0, "rope.scaling.original_context_length": 64},
    ),
    "minimax-m2": (
        "minimax_m2",
        "minimax-m2",
        LOCAL_MOE | {"head_dim": 16, "partial_rotary_factor": 0.5},
        COUNTED
        | {"expert_feed_forward_length": 48, "rope.dimension_count": 8, "expert_gating_func": 2}
        | {"attention.key_length": 16, "attention.value_length": 16},
    ),
    "exaone4, experts": (
        "exaone_moe",
        "exaone-moe",
        WIDE_MOE | MOE | {"num_hidden_layers": 4, "sliding_window": 8, "head_dim": 8},
        COUNTED
        | WIDE_SAID
        | {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, True, True, False]}
        | {"expert_shared_feed_forward_length": 16, "expert_weights_scale": 2.5, "nextn_predict_layers": 0}
        | {"expert_group_count": 1, "expert_group_used_count": 1, "rope.scaling.type": "none"},
    ),
    "falcon-h1": (
        "falcon_h1",
        "falcon-h1",
        MAMBA
        | {"mamba_d_ssm": 64, "embedding_multiplier": 0.5, "lm_head_multiplier": 0.25, "key_multiplier": 2.0}
        | {"attention_in_multiplier": 0.5, "attention_out_multiplier": 4.0, "ssm_in_multiplier": 0.25}
        | {"ssm_out_multiplier": 0.5, "mlp_multipliers": [0.5, 2.0], "ssm_multipliers": [0.5, 2.0, 1.0, 0.25, 4.0]},
        MAMBA_SAID | {"attention.key_length": 8, "attention.value_length": 8},
    ),
    "falcon-h1, normed": (
        "falcon_h1",
        "falcon-h1",
        MAMBA | {"mamba_d_ssm": 64, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
        MAMBA_SAID | {"attention.key_length": 8, "attention.value_length": 8},
    ),
    "glm-dsa": (
        "glm_moe_dsa",
        "glm-dsa",
        LATENT
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "index_n_heads": 2, "index_head_dim": 8}
        | {"index_topk": 16, "n_shared_experts": 1},
        LATENT_SAID
        | {"attention.indexer.head_count": 2, "attention.indexer.key_length": 8, "attention.indexer.top_k": 16}
        | {"expert_shared_count": 1, "expert_gating_func": 2, "expert_weights_scale": 2.5, "expert_weights_norm": True}
        | {"expert_group_count": 1, "expert_group_used_count": 1},
    ),
    "kimi-linear": (
        "kimi_linear",
        "kimi-linear",
        {key: value for key, value in LATENT.items() if key != "first_k_dense_replace"}
        | {"num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "q_lora_rank": None}
        | {"layer_types": ["linear_attention", "full_attention"] * 2, "linear_head_dim": 8, "linear_num_heads": 4},
        LATENT_SAID
        | {"attention.q_lora_rank": None, "attention.head_count_kv": [0, 1, 0, 1], "kda.head_dim": 8}
        | {"ssm.conv_kernel": 4, "expert_gating_func": None, "expert_weights_scale": 2.446, "vocab_size": 40},
    ),
    "jina-bert-v3": (
        "jina_embeddings_v3",
        "jina-bert-v3",
        HEADS_ALIKE | {"type_vocab_size": 2, "pad_token_id": 0},
        ENCODER | {"attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 2e4},
    ),
    "bert": ("bert", "bert", HEADS_ALIKE, ENCODER),
    "nomic-bert": (
        "nomic_bert",
        "nomic-bert",
        HEADS_ALIKE | {"pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3}},
        ENCODER | {"rope.freq_base": 1e3},
    ),
    "eurobert": ("eurobert", "eurobert", {}, {"attention.causal": False, "rope.scaling.type": "none"}),
    "modern-bert": (
        "modernbert",
        "modern-bert",
        HEADS_ALIKE | {"num_hidden_layers": 4, "local_attention": 8, "rope_parameters": BOTH_NEAR_AND_FAR},
        {"attention.causal": False, "attention.layer_norm_epsilon": 1e-5, "rope.freq_base": 1.6e5, "vocab_size": 40}
        | {"rope.freq_base_swa": 1e4, "attention.sliding_window": 8, "attention.sliding_window_pattern": 3}
        | {"rope.scaling.type": "none"},
    ),
    "t5": ("t5", "t5", T5 | {"feed_forward_proj": "relu"}, T5_SAID | {"decoder_block_count": 3}),
    "t5, a head of its own": (
        "t5",
        "t5",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "relative_attention_num_buckets": 16},
        T5_SAID | {"decoder_block_count": 3, "attention.relative_buckets_count": 16},
    ),
    "umt5": (
        "umt5",
        "t5 with enc.blk.1.attn_rel_b.weight",
        T5 | {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 2, "tie_word_embeddings": False},
        T5_SAID,
    ),
    "t5encoder": ("t5", "t5encoder", T5 | {"feed_forward_proj": "gated-gelu"}, T5_SAID),
    "umt5, encoder": (
        "umt5",
        "t5encoder with enc.blk.1.attn_rel_b.weight",
        T5 | {"feed_forward_proj": "gated-gelu"},
        T5_SAID,
    ),
    "gemma-embedding": (
        "gemma3_text",
        "gemma-embedding",
        {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "num_hidden_layers": 6}
        | {"use_bidirectional_attention": True, "rope_parameters": NEAR_AND_FAR},
        LINEAR_SAID | {"attention.key_length": 16, "attention.sliding_window": 8},
    ),
}
"""Cases: transformers' model_type, the architecture, the config, and what the file says besides the usual keys."""


def tiny(model_type: str, arch: str = "", **options: Any) -> Any:
    """A small model with random weights, which one can be added to and taken from again without rounding."""
    with quietly():
        config = transformers.AutoConfig.for_model(model_type, **SIZES | options)
        if model_type in ("bert", "roberta"):
            kind = transformers.BertModel if model_type == "bert" else transformers.RobertaModel
            model = kind(config, add_pooling_layer=False).eval()
        elif "t5" in model_type:
            kind = transformers.AutoModelForTextEncoding if "encoder" in arch else transformers.AutoModelForSeq2SeqLM
            model = kind.from_config(config).eval()
            if options.get("tie_word_embeddings") is False:
                model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        elif model_type == "jina_embeddings_v3":
            model = transformers.AutoModel.from_config(config, add_pooling_layer=False).eval()
        elif model_type in ("nomic_bert", "eurobert", "modernbert") or options.get("use_bidirectional_attention"):
            model = transformers.AutoModel.from_config(config).eval()
        else:
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(((parameter + torch.randn_like(parameter) * 0.2) * 256).round() / 256)
    return model


def keys_of(model: Any, arch: str, more: dict[str, Any]) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes, None for one that it does not write."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    wide = arch in ("gpt2", "starcoder", "falcon", "bloom", "mpt")
    usual = {
        "block_count": config.num_hidden_layers,
        "context_length": 64 if arch != "falcon" else 2048,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 4 * config.hidden_size if wide else getattr(config, "intermediate_size", None),
        "attention.head_count": getattr(config, "num_attention_heads", None),
        "attention.head_count_kv": config.to_dict().get("num_key_value_heads", getattr(config, "num_kv_heads", None)),
        "rope.freq_base": rope.get("rope_theta"),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
    }
    if arch == "starcoder":
        usual["attention.head_count_kv"] = 1
    if arch == "apertus":
        activations = [layer.mlp.act_fn for layer in model.model.layers]
        for name in ("alpha_p", "alpha_n", "beta", "eps"):
            usual[f"xielu.{name}"] = [getattr(one, name).item() for one in activations]
    return usual | more


def stored(model: Any, arch: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors as llama.cpp's converter writes them, by the rules of its classes, written out here again."""
    config = model.config
    heads, dim = getattr(config, "num_attention_heads", 1), config.hidden_size
    given = config.to_dict()
    kv = given.get("num_key_value_heads") or given.get("num_kv_heads") or heads
    norms: dict[str, list[torch.Tensor]] = {}
    for name, tensor in model.state_dict().items():
        tied = config.tie_word_embeddings and not arch.startswith("t5")
        if tied and name in ("lm_head.weight", "embed_out.weight"):
            continue
        if arch.startswith("t5") and name in {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}:
            continue
        if arch.startswith("t5") and name == "lm_head.weight" and model.lm_head.weight is model.shared.weight:
            continue
        if ".act_fn." in name:
            # Numbers of an activation are written as keys.
            continue
        permuted = ("llama", "mistral3", "arcee", "smollm3", "granite", "granitemoe", "granitehybrid", "olmo")
        if arch in permuted:
            for part, many in (("q_proj", heads), ("k_proj", kv)):
                if part in name and tensor.shape[0] % (2 * many) == 0:
                    # LlamaModel.permute: (head, half, pair) -> (head, pair, half).
                    split = tensor.numpy().reshape(many, 2, tensor.shape[0] // many // 2, *tensor.shape[1:])
                    tensor = torch.from_numpy(split.swapaxes(1, 2).reshape(tensor.shape).copy())
        if arch in ("gemma", "gemma2", "gemma3", "gemma-embedding", "nemotron") and name.endswith("norm.weight"):
            tensor = tensor + 1
        if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            tensor = tensor.transpose(1, 0)
        if arch in ("bloom", "gptneox") and "query_key_value" in name:
            # Queries, keys and values of each head, to those of all heads.
            each = tensor.reshape(heads, 3, dim // heads, *tensor.shape[1:])
            tensor = torch.cat([each[:, part].reshape(-1, *tensor.shape[1:]) for part in range(3)])
        if arch == "falcon" and "query_key_value" in name:
            groups = tensor.view(kv, heads // kv + 2, dim // heads, dim)
            parts = (groups[:, :-2], groups[:, [-2]], groups[:, [-1]])
            tensor = torch.cat([part.reshape(-1, dim) for part in parts])
        if arch == "bloom":
            name = name.removeprefix("transformer.")
        if arch == "kimi-linear" and re.search(r"conv1d|dt_bias|A_log|forget_gate", name):
            place = f"blk.{name.split('.')[2]}"
            if "conv1d" in name:
                for one, part in zip("qkv", tensor.chunk(3), strict=True):
                    yield f"{place}.ssm_conv1d_{one}.weight", part.reshape(1, len(part), 1, -1)
            elif "A_log" in name:
                yield f"{place}.ssm_a", -torch.exp(tensor)
            elif "dt_bias" in name:
                yield f"{place}.ssm_dt.bias", tensor
            else:
                yield name.replace("forget_gate.", ""), tensor
            continue
        latent = arch in ("deepseek2", "glm-dsa", "kimi-linear")
        if "kv_b_proj" in name and latent and not hasattr(config, "keeps_kv_b"):
            both = tensor.view(heads, -1, tensor.shape[-1]).split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
            yield name.replace("kv_b_proj", "k_b_proj"), both[0].transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), both[1]
            continue
        if arch.startswith("nemotron_h"):
            name = name.replace("model.layers.", "backbone.layers.")
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
            if ".experts." in name:
                yield f"model.layers.{name.split('.')[2]}.mlp.experts.{name.rpartition('.')[2]}.weight", tensor
                continue
        if "e_score_correction_bias" in name:
            layer, name = name.split(".mlp.")[0], "mlp.gate.e_score_correction.bias"
            name = f"{layer}.{name}"
        name = name.replace("expert_bias", "expert_bias.bias").replace("sinks", "sinks.weight")
        if arch == "gpt-oss" and ".experts." in name:
            name, end = (name.removesuffix("_bias"), "bias") if name.endswith("_bias") else (name, "weight")
            tensor = tensor if end == "bias" else tensor.transpose(1, 2)
            if "gate_up" in name:
                yield name.replace("gate_up_proj", f"gate_proj.{end}"), tensor[:, ::2]
                yield name.replace("gate_up_proj", f"up_proj.{end}"), tensor[:, 1::2]
            else:
                yield f"{name}.{end}", tensor
            continue
        if arch == "llama4" and ".experts." in name:
            place = name.rpartition(".")[0]
            for part, half in zip(("gate_proj", "up_proj"), tensor.transpose(1, 2).chunk(2, dim=1), strict=True):
                if "gate_up" in name:
                    yield f"{place}.{part}.weight", half
            if "down" in name:
                yield f"{place}.down_proj.weight", tensor.transpose(1, 2)
            continue
        if (stacked := re.match(r"model\.altup_(unembed_)?projections\.(\d)", name)) is not None:
            merged = re.sub(r"\.\d\.weight$", ".weight", name)
            norms.setdefault(merged, []).append(tensor)
            if stacked[2] == "2":
                yield merged, torch.stack(norms[merged])
            continue
        if arch == "gemma4" and ".router." in name and name.endswith("scale"):
            to = "ffn_down_exps" if "per_expert" in name else "ffn_gate_inp"
            yield f"blk.{name.split('.')[2]}.{to}.scale", tensor
            continue
        if arch == "gemma4" and ".experts." in name:
            yield f"{name}.weight", tensor
            continue
        if arch == "falcon-h1":
            tensor = multiplied(name, tensor, config)
        if re.search(r"\.(A_log|D|dt_bias|conv1d\.weight|in_proj_qkvz\.weight)$", name) or "linear_attn" in name:
            yield from of_a_state(name, tensor, arch, config)
            continue
        if arch.startswith("qwen3") and name.endswith("norm.weight") and arch in ("qwen3next", "qwen35", "qwen35moe"):
            tensor = tensor + 1
        if re.search(r"\.(mamba|mixer)\.norm\.weight$", name):
            tensor = tensor.reshape(2, -1)
        if arch == "granitehybrid" and "shared_mlp" in name:
            end = "_shexp" if config.num_local_experts else ""
            place = f"blk.{name.split('.')[2]}"
            if "input_linear" in name:
                yield f"{place}.ffn_gate{end}.weight", tensor.chunk(2)[0]
                yield f"{place}.ffn_up{end}.weight", tensor.chunk(2)[1]
            else:
                yield f"{place}.ffn_down{end}.weight", tensor
            continue
        if arch == "dbrx" and ".experts." in name:
            experts = tensor.view(config.ffn_config.moe_num_experts, -1, dim)
            yield f"{name}.weight", experts.permute(0, 2, 1) if name.endswith("w2") else experts
            continue
        if config.model_type == "roberta" and "position_embeddings" in name:
            # Its positions count from behind the token for padding.
            tensor = tensor[config.pad_token_id + 1 :]
        if arch == "bitnet":
            name = name.replace("attn_sub_norm", "inner_attn_ln").replace("ffn_sub_norm", "ffn_layernorm")
        if arch == "phimoe":
            name = name.replace("mlp.router", "block_sparse_moe.gate")
        if arch == "jina-bert-v3" and ".mlp." in name:
            name = f"encoder.{name}"
        if arch in ("nomic-bert", "jina-bert-v3"):
            for ours, theirs in (("post_attention_layernorm", "norm1"), ("post_mlp_layernorm", "norm2")):
                name = f"encoder.{name.replace(ours, theirs)}" if ours in name else name
        if arch in ("nomic-bert", "jina-bert-v3", "chatglm") and re.search(r"self_attn\.[qkv]_proj", name):
            if "q_proj" in name:
                state = model.state_dict()
                all_of_them = [state[name.replace("q_proj", f"{one}_proj")] for one in "qkv"]
                layer, end = re.findall(r"\d+", name)[0], name.rpartition(".")[2]
                yield f"blk.{layer}.attn_qkv.{end}", torch.cat(all_of_them)
            continue
        if name.endswith("experts.gate_up_proj"):
            place = name.replace("block_sparse_moe", "mlp").removesuffix("gate_up_proj")
            parts = ("gate_proj.weight", "up_proj.weight")
            if arch == "lfm2moe":
                place, parts = place.removeprefix("model."), ("w1.weight", "w3.weight")
            for part, half in zip(parts, tensor.chunk(2, dim=1), strict=True):
                yield place + part, half
            continue
        name = name.replace("block_sparse_moe.experts", "mlp.experts")
        if arch in ("granitemoe", "granitehybrid"):
            name = name.replace("router.weight", "router.layer.weight")
        if ".norms." in name:
            merged = name[: name.index(".norms.")] + ".weight"
            norms.setdefault(merged, []).append(tensor)
            many = heads if "q_layernorm" in name else kv
            if len(norms[merged]) < many:
                continue
            name, tensor = merged, torch.stack(norms[merged])
        # Older converters drop axes of one.
        yield name, tensor.squeeze() if "shared_expert_gate" in name or "conv.conv" in name else tensor


def multiplied(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """What FalconH1Model does to weights: the factors of the config are multiplied into them."""
    entering, leaving = config.attention_in_multiplier, config.attention_out_multiplier
    factors = {"down_proj": config.mlp_multipliers[1], "gate_proj": config.mlp_multipliers[0], "q_proj": entering}
    factors |= {"k_proj": config.key_multiplier * entering, "v_proj": entering, "o_proj": leaving}
    factors |= {"out_proj": config.ssm_out_multiplier, "in_proj": config.ssm_in_multiplier}
    factors |= {"lm_head": config.lm_head_multiplier, "embed_tokens": config.embedding_multiplier}
    found = next((factor for part, factor in factors.items() if f"{part}.weight" in name), 1.0)
    if "in_proj" in name:
        wide, groups = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
        sizes = [wide, wide, groups, groups, len(tensor) - 2 * wide - 2 * groups]
        parts = zip(tensor.split(sizes), config.ssm_multipliers, strict=True)
        tensor = torch.cat([one * factor for one, factor in parts])
    return tensor * found


def of_a_state(name: str, tensor: torch.Tensor, arch: str, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """What converters do to linear attention (Qwen3NextModel, Qwen3_5TextModel) and to mamba (Mamba2Model)."""
    place = f"blk.{name.split('.')[2]}"
    if name.endswith(".A_log"):
        tensor = -torch.exp(tensor)
    elif name.endswith("conv1d.weight"):
        tensor = tensor.squeeze()
    if "linear_attn" not in name:
        alone = tensor.dim() == 1 and not name.endswith("dt_bias") and arch != "jamba"
        tensor = tensor[:, None] if alone else tensor
    elif arch == "qwen3next" and "in_proj_qkvz" in name:
        heads, key, value = config.linear_num_key_heads, config.linear_key_head_dim, config.linear_value_head_dim
        each = value * config.linear_num_value_heads // heads
        q, k, v, z = tensor.view(heads, -1, tensor.shape[1]).split([key, key, each, each], dim=1)
        yield f"{place}.attn_qkv.weight", torch.cat([q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)])
        yield f"{place}.attn_gate.weight", z.flatten(0, 1)
        return
    elif arch != "qwen3next" and config.linear_num_value_heads != config.linear_num_key_heads and ".norm." not in name:
        heads, values, width = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim
        wide = width if re.search("in_proj_qkv|in_proj_z|conv1d|out_proj", name) else 1
        order = torch.arange(values * wide).view(heads, values // heads, wide).transpose(0, 1).flatten()
        axis = 1 if "out_proj" in name else 0
        kept = tensor.shape[axis] - values * wide
        tensor = tensor.index_select(axis, torch.cat([torch.arange(kept), order + kept]))
    stored = {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias", "D": "ssm_d"}
    end = name.rpartition(".")[2]
    yield (f"{place}.{stored[end]}" if end in stored else name), tensor


def divisors(rope: dict[str, Any], head_dim: int) -> torch.Tensor:
    """rope_freqs of LlamaModel.generate_extra_tensors."""
    out = []
    for pair in range(head_dim // 2):
        wavelength = 2 * torch.pi * rope["rope_theta"] ** (2 * pair / head_dim)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        length = rope["original_max_position_embeddings"]
        smooth = min(1.0, max(0.0, (length / wavelength - low) / (high - low)))
        out.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return torch.tensor(out)


def write(model: Any, path: Path, arch: str = "llama", leave_out: str = "", extra: str = "", **changes: Any) -> Path:
    """A GGUF file of a model; changes of its keys, two underscores for a dot, None for a key that is not written.

    extra  the name of one more tensor
    """
    more = changes.pop("more", {}) | {key.replace("__", "."): value for key, value in changes.items()}
    writer = gguf.GGUFWriter(path, arch)
    for key, value in keys_of(model, arch, more).items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        if value is not None:
            name = key if key.startswith(("tokenizer.", "xielu.")) else f"{arch}.{key}"
            kinds.get(type(value), writer.add_array)(name, value)
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, max(model.config.num_hidden_layers, 3))
    for name, tensor in stored(model, arch):
        named = names.get_name(name, (".weight", ".bias")) or name
        bare = name.endswith((".weight", ".bias", ".scale", ".ssm_a", ".ssm_d"))
        named = named if bare else f"{named}.weight"
        if named != leave_out:
            writer.add_tensor(named, tensor.contiguous().numpy())
    if extra:
        writer.add_tensor(extra, torch.ones(8).numpy())
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        width = getattr(model.config, "head_dim", model.config.hidden_size // model.config.num_attention_heads)
        writer.add_tensor("rope_freqs.weight", divisors(rope, width).numpy())
    if "full_attention" in rope and rope["full_attention"]["rope_type"] == "proportional":
        # Gemma4Model.generate_extra_tensors: a quarter of the pairs turns.
        pairs = model.config.per_layer_config["full_attention"].head_dim // 2
        still = torch.tensor([1.0] * (pairs // 4) + [1e30] * (pairs - pairs // 4))
        writer.add_tensor("rope_freqs.weight", still.numpy())
    for key in ("short_factor", "long_factor"):
        if key in rope:
            writer.add_tensor(f"rope_factors_{key.partition('_')[0]}.weight", torch.tensor(rope[key]).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def made(case: str, path: Path) -> tuple[Any, Path]:
    """The model of a case, and its file."""
    model_type, named, options, more = CASES[case]
    arch = named.partition(" ")[0]
    model = tiny(model_type, arch, **options)
    return model, write(model, path, arch, more=more)


@pytest.mark.parametrize("case", CASES)
def test_the_loaded_model_computes_what_the_written_one_does(case: str, tmp_path: Path) -> None:
    model, path = made(case, tmp_path / "model.gguf")
    given = {"input_ids": torch.randint(0, 40, (2, 30))}
    if CASES[case][1].partition(" ")[0] in architectures.STACKS:
        given["decoder_input_ids"] = torch.randint(0, 40, (2, 20))
    loaded = load(path)
    assert type(loaded.model) is type(model) and loaded.tokenizer is None and not loaded.model.training
    with torch.no_grad():
        difference = (loaded.model(**given)[0] - model(**given)[0]).abs().max()
    # Logarithms of decays are rounded.
    assert difference < 1e-5 if any(".ssm_a" in one for one in GGUFTensors(path)) else difference == 0
    left_open = ARCHITECTURES[CASES[case][1]].left_open
    assert len(loaded.notes) == len(left_open) and all(key in " ".join(loaded.notes) for key in left_open)


@pytest.mark.parametrize("case", ["gpt2", "stablelm 12B", "qwen2, experts", "falcon 40B", "bloom", "bert"])
def test_the_folder_that_it_becomes_computes_the_same(case: str, tmp_path: Path) -> None:
    model, path = made(case, tmp_path / "model.gguf")
    ids = torch.randint(0, 40, (2, 30))
    again = load(convert(path, tmp_path / "new", Request()).folder)
    with torch.no_grad():
        assert type(again.model) is type(model) and again.model(ids)[0].equal(model(ids)[0])


def test_every_architecture_that_is_loaded_is_tested_here_and_says_where_it_is_from() -> None:
    assert {named for _, named, _, _ in CASES.values()} == set(ARCHITECTURES)
    assert all(re.fullmatch(r"\w+\.py \w+", row.source) for row in ARCHITECTURES.values())


@pytest.mark.parametrize("case", ["llama", "gpt2", "bloom", "falcon 40B", "gemma", "nemotron", "olmo", "gpt-oss"])
def test_without_its_change_undone_it_is_refused_or_another_model(case: str, tmp_path: Path, monkeypatch) -> None:
    name = CASES[case][1]
    model, path = made(case, tmp_path / "model.gguf")
    monkeypatch.setitem(ARCHITECTURES, name, replace(ARCHITECTURES[name], changes={}))
    try:
        loaded = load(path)
    except CannotRead as refused:
        assert "has the shape" in str(refused) or "layout='interleaved'" in str(refused)
    else:
        ids = torch.arange(30)[None]
        with torch.no_grad():
            assert (loaded.model(ids).logits - model(ids).logits).abs().max() > 1e-3


def test_numbers_of_layers_in_keys_are_as_many_or_one_for_all(tmp_path: Path) -> None:
    model, _ = made("apertus", tmp_path / "m.gguf")
    for layer in model.model.layers:
        layer.mlp.act_fn.alpha_p.data.fill_(0.25)
    more = {"xielu.alpha_p": 0.25}
    ids = torch.arange(30)[None]
    with torch.no_grad():
        assert load(write(model, tmp_path / "n.gguf", "apertus", more=more)).model(ids).logits.equal(model(ids).logits)
    with pytest.raises(CannotRead, match=r"xielu.beta: it has 1 numbers, and layer 1 has none"):
        load(write(model, tmp_path / "o.gguf", "apertus", more={"xielu.beta": [0.5]}))
    with pytest.raises(CannotRead, match=r"it lacks xielu.eps\[0\], which is model.layers.0.mlp.act_fn.eps in"):
        load(write(model, tmp_path / "p.gguf", "apertus", more={"xielu.eps": None}))


def test_keys_of_layers_that_attend_to_those_of_others_are_left_out_and_said(tmp_path: Path) -> None:
    model_type, named, options, more = CASES["gemma3n"]
    model = tiny(model_type, **options)
    loaded = load(write(model, tmp_path / "m.gguf", named, extra="blk.4.attn_k.weight", more=more))
    assert loaded.notes == ("Layers from 4 on attend to keys of others; their own are left out, as in transformers",)
    with pytest.raises(CannotRead, match=r"holds blk.3.attn_k.bias, which Gemma3nForCausalLM has no place for"):
        load(write(model, tmp_path / "n.gguf", named, extra="blk.3.attn_k.bias", more=more))


def test_heads_of_layers_that_see_everything_are_told_apart_from_those_of_windows(tmp_path: Path) -> None:
    path = made("gemma4, experts", tmp_path / "m.gguf")[1]
    (part,) = inspect(path).parts
    assert part.shape.head_dim == 8 and part.kv_heads == 2
    assert [layer.rows for layer in part.layers] == [(4 * 8, 2 * 8), (4 * 16, 16)] * 3
    model_type, named, options, more = CASES["gemma4"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"attention.value_length_swa": 16}, "value_length_swa: expected 8, the channels of a head, got 16"),
        ({"attention.value_length": 8}, "value_length: expected 16, the channels of a head, got 8"),
        ({"feed_forward_length": []}, "feed_forward_length: expected int or a list of int, got None"),
        ({"attention.head_count_kv": [2, 2]}, "head_count_kv must have one entry for each of 6 layers, got 2"),
        ({"attention.head_count_kv": [2, 1] * 3}, r"layer 1 rows of queries and keys \(64, 16\) and \(64, 32\)"),
    ]
    for changes, message in wrong:
        with pytest.raises(CannotRead, match=message):
            load(write(tiny(model_type, **options), tmp_path / "n.gguf", named, more=more | changes))


def test_tables_of_cross_attention_that_nothing_reads_are_left_out_and_said(tmp_path: Path) -> None:
    model_type, named, options, more = CASES["t5"]
    name = "dec.blk.0.cross_attn_rel_b.weight"
    loaded = load(write(tiny(model_type, **options), tmp_path / "m.gguf", named, extra=name, more=more))
    said = "Its tables of distances for cross-attention, which no model reads, are left out, as in transformers"
    assert loaded.notes == (said,)


def test_a_head_of_its_own_is_kept_in_the_folder_that_a_t5_becomes(tmp_path: Path) -> None:
    model, path = made("t5, a head of its own", tmp_path / "m.gguf")
    again = load(convert(path, tmp_path / "new", Request()).folder)
    given = {"input_ids": torch.arange(30)[None], "decoder_input_ids": torch.arange(20)[None]}
    with torch.no_grad():
        assert not again.model.lm_head.weight.equal(again.model.shared.weight)
        assert again.model(**given).logits.equal(model(**given).logits)


def test_an_activation_that_a_newer_file_says_is_taken_and_not_noted(tmp_path: Path) -> None:
    model_type, named, options, more = CASES["bitnet"]
    model = tiny(model_type, **options | {"hidden_act": "relu2"})
    loaded = load(write(model, tmp_path / "m.gguf", named, more=more | {"hidden_activation": "relu2"}))
    ids = torch.arange(30)[None]
    with torch.no_grad():
        assert loaded.model(ids).logits.equal(model(ids).logits) and not loaded.notes
    with pytest.raises(CannotRead, match=r"bitnet.hidden_activation: expected nothing or str, got 3"):
        load(write(model, tmp_path / "n.gguf", named, more=more | {"hidden_activation": 3}))


def test_a_layer_without_keys_is_one_that_does_not_attend(tmp_path: Path) -> None:
    found = open_model(GGUFTensors(made("lfm2", tmp_path / "m.gguf")[1]))
    assert [layer.spec for layer in found.reading.parts[0].layers] == ["none", "rotary(base=1000000)"] * 2
    assert [layer.attends for layer in found.reading.parts[0].layers] == [False, True] * 2
    again = inspect(tmp_path / "m.gguf")
    assert not again.not_covered and "layers [0, 2] do not attend" in again.parts[0].besides


def test_layers_that_carry_a_state_do_not_attend_whether_the_file_counts_them_or_not(tmp_path: Path) -> None:
    model_type, named, options, more = CASES["qwen3.5"]
    for every in (4, None):
        path = write(
            tiny(model_type, **options), tmp_path / "m.gguf", named, more=more | {"full_attention_interval": every}
        )
        (part,) = inspect(path).parts
        assert [layer.attends for layer in part.layers] == [False, False, False, True]
        assert "layers [0, 1, 2] do not attend" in part.besides
    (part,) = inspect(made("granite, hybrid", tmp_path / "n.gguf")[1]).parts
    assert {layer.spec for layer in part.layers} == {"none"}
    assert [layer.attends for layer in part.layers] == [False, True, False, True]


def test_sizes_of_a_state_that_cannot_be_are_refused(tmp_path: Path) -> None:
    model_type, _, options, more = CASES["granite, hybrid"]
    for changes, message in (
        ({"ssm.inner_size": 60}, "ssm.inner_size: expected a multiple of 8, got 60"),
        ({"ssm.time_step_rank": None}, "ssm.time_step_rank: expected a whole number from 1 to 168, got None"),
        ({"ssm.state_size": 10_000_000}, "ssm.state_size: expected a whole number from 1 to 168, got 10000000"),
        ({"ssm.inner_size": 128}, "has the shape"),
    ):
        with pytest.raises(CannotRead, match=message):
            load(write(tiny(model_type, **options), tmp_path / "m.gguf", "granitehybrid", more=more | changes))


def test_a_change_that_nothing_asks_for_is_refused(tmp_path: Path, monkeypatch) -> None:
    row = replace(ARCHITECTURES["qwen2"], changes=architectures.PERMUTED)
    monkeypatch.setitem(ARCHITECTURES, "qwen2", row)
    with pytest.raises(CannotRead, match="qwen2 has no pairs side by side that could be taken apart"):
        load(made("qwen2", tmp_path / "model.gguf")[1])


def test_the_lists_name_architectures_that_there_are() -> None:
    """A name that is misspelt would be the wrong layout, in silence."""
    known, there = architectures, set(gguf.MODEL_ARCH_NAMES.values())
    named = [known.INTERLEAVED, known.HALF, known.MULTIMODAL, known.LEARNED, known.ALIBI, known.RECURRENT]
    named.append(known.WITHOUT_ROTARY)
    lists = [set(one) for one in named]
    assert sum(map(len, lists)) == len(set.union(*lists)) == len(known.KNOWN) and there >= known.KNOWN
    for facts in (known.WINDOW_EVERY, known.WINDOW_IN_ALL, known.NO_ROTARY_EVERY, known.ONLY_IN_WINDOWS):
        assert set(facts) <= known.INTERLEAVED | known.HALF
    for facts in (known.LOCAL_BASE, known.PLAIN_IN_WINDOWS, known.SCALED_BY_WIDTH):
        assert set(facts) <= known.HALF
    # T5's files say by a key that its positions are buckets of distances.
    assert {name.partition(" with ")[0] for name in ARCHITECTURES} - {"t5", "t5encoder"} <= known.KNOWN
    # Each is loaded, or it is known why not.
    loaded = {name for name in ARCHITECTURES if " " not in name}
    assert set(known.NOT_LOADED) | known.WITHOUT_CLASS == there - loaded
    kinds = {kind.replace("_", "-") for kind in transformers.models.auto.configuration_auto.CONFIG_MAPPING}
    assert not known.WITHOUT_CLASS & kinds and not known.WITHOUT_CLASS & set(known.NOT_LOADED)


def test_only_the_reader_of_positions_reads_keys_that_speak_of_them() -> None:
    own = {*architectures.KEYS, *(key for row in ARCHITECTURES.values() for key in row.settled)}
    assert not [key for key in own if SPEAKS_OF_POSITION.search(key)]


def test_numbers_come_as_they_were_meant(tmp_path: Path) -> None:
    found = open_model(GGUFTensors(write(tiny("llama"), tmp_path / "m.gguf", vocab_size=40)))
    assert found.config.rms_norm_eps == 1e-6 and found.config.vocab_size == 40
    assert found.said()["rope_parameters"] == {"rope_type": "default", "rope_theta": 10_000}
    assert found.said()["architectures"] == ["LlamaForCausalLM"] and not found.config.tie_word_embeddings
    assert found.reading.parts[0].layers[0].spec == "rotary"


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_type_is_linear_as_in_llama_cpp(key: str, tmp_path: Path) -> None:
    found = open_model(GGUFTensors(write(tiny("llama"), tmp_path / "m.gguf", more={key: 4.0})))
    assert found.config.rope_parameters == {"rope_type": "linear", "rope_theta": 10_000, "factor": 4}
    more = {key: 4.0, "rope.scaling.type": "none"}
    found = open_model(GGUFTensors(write(tiny("llama"), tmp_path / "n.gguf", more=more)))
    assert found.config.rope_parameters["rope_type"] == "default"


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("llama", {"pooling_type": 3}, "it says llama.pooling_type, which posenc does not read in a GGUF file yet"),
        ("llama", {"rope__scaling__wonder": 2.0}, "it says llama.rope.scaling.wonder, which posenc does not read"),
        ("llama", {"rope__scaling__type": "longrope"}, "the tensors rope_factors_short and rope_factors_long are miss"),
        (
            "llama",
            {"attention__sliding_window": 8},
            "it leaves open llama.attention.sliding_window: nothing says",
        ),
        ("bloom", {"rope__freq_base": 1e4}, "bloom has ALiBi, and its file has keys of rotary"),
        ("llama", {"attention__head_count": [4, 2]}, "it leaves open llama.attention.head_count differs from layer to"),
        ("gpt2", {"attention__head_count": None}, "gpt2.attention.head_count: it is missing; it is no whole model"),
        (
            "llama",
            {"attention__head_count": None, "attention__key_length": None},
            "open how many heads there are: ",
        ),
        ("llama", {"context_length": None}, "llama.context_length: it is missing; it is no whole model"),
        (
            "llama",
            {"attention__relative_buckets_count": 8, "rope__freq_base": None},
            "it has 2 stacks of layers, expected 1",
        ),
        ("llama", {"attention__layer_norm_rms_epsilon": float("nan")}, "expected a finite number, got nan"),
        ("llama", {"block_count": 900}, "by its keys queries alone are made with .* numbers, and its tensors have"),
        ("llama", {"rope__dimension_count": 8}, r"LlamaForCausalLM would not compute what it says: layer 0 rotary\("),
        ("llama", {"attention__value_length": 8}, "value_length: expected 16, the channels of a head, got 8"),
        (
            "llama",
            {"feed_forward_length": None},
            "llama.feed_forward_length: it is missing, and LlamaConfig needs its inter",
        ),
        (
            "nemotron",
            {"attention__layer_norm_rms_epsilon": 0.5},
            "rms_epsilon: expected 1e-05, as another key says",
        ),
        ("falcon", {"tensor_data_layout": "new"}, "falcon.tensor_data_layout: expected jploski, got 'new'"),
        (
            "mpt",
            {"attention__max_alibi_bias": 4.0},
            r"MptForCausalLM would not compute what it says: layer 0 alibi\(bias_max=4\) and none",
        ),
        ("llama", {"vocab_size": 0}, "llama.vocab_size: expected a whole number from 1 to 16,777,216, got 0"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_key(case: str, changes: dict, message: str, tmp_path: Path) -> None:
    model_type, named, options, more = CASES[{"falcon": "falcon 7B"}.get(case, case)]
    more = more | {key.replace("__", "."): value for key, value in changes.items()}
    path = write(tiny(model_type, **options), tmp_path / "m.gguf", named, more=more)
    with pytest.raises(CannotRead, match=message):
        load(path)


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        (
            "clip",
            "holds a 'clip', and it is no language model, and stands beside one.*; posenc loads GGUF files of",
        ),
        (
            "internlm2",
            r"holds a 'internlm2', and transformers [\d.]+ has no class for it. Load the original checkpoint",
        ),
        ("jina-bert-v3", "what llama.cpp's converter does to its weights is not known here"),
        ("nonesuch", "the gguf package that is installed has no names for its tensors"),
    ],
)
def test_another_architecture_is_refused_with_what_is_not_known_of_it(
    arch: str, message: str, tmp_path: Path, monkeypatch
) -> None:
    # What a newer package may name.
    others = {name: row for name, row in ARCHITECTURES.items() if name != "jina-bert-v3"}
    monkeypatch.setattr(gguf_model, "ARCHITECTURES", others)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", arch)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CannotRead, match=message):
        load(tmp_path / "m.gguf")


def test_a_key_that_this_transformers_does_not_have_is_no_silent_default(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "llama", replace(ARCHITECTURES["llama"], fixed={"wonder": 1}))
    with pytest.raises(CannotRead, match="LlamaConfig of this transformers has no wonder"):
        load(made("llama", tmp_path / "m.gguf")[1])


def test_what_transformers_refuses_is_quoted_whole(tmp_path: Path, monkeypatch) -> None:
    class Refusing(transformers.LlamaConfig):
        def __init__(self, **given: Any) -> None:
            raise ValueError("no such config\n" + "letters " * 45 + "the end")

    path = made("llama", tmp_path / "m.gguf")[1]
    monkeypatch.setattr(gguf_model, "within_bounds", lambda given: Refusing())
    with pytest.raises(CannotRead, match=r"cannot read it \(ValueError: no such config letters .*the end\)"):
        load(path)


def test_a_missing_tensor_and_one_too_many_are_named(tmp_path: Path) -> None:
    with pytest.raises(CannotRead, match=r"lacks blk.1.ffn_up.weight, which is model.layers.1.mlp.up_proj.weight in"):
        load(write(tiny("llama"), tmp_path / "a.gguf", leave_out="blk.1.ffn_up.weight"))
    model = tiny("llama")
    model.model.layers[0].register_buffer("extra", torch.zeros(8))
    with pytest.raises(CannotRead, match=r"holds model.layers.0.extra.weight, which LlamaForCausalLM has no place for"):
        load(write(model, tmp_path / "b.gguf"))


def test_layers_that_foretell_further_tokens_are_left_out_and_said(tmp_path: Path) -> None:
    model_type, named, options, more = CASES["glm4, experts"]
    model, more = tiny(model_type, **options), more | {"block_count": 3, "nextn_predict_layers": 1}
    given: dict[str, Any] = {"arch": named, "more": more}
    found = open_model(GGUFTensors(write(model, tmp_path / "a.gguf", extra="blk.2.nextn.enorm.weight", **given)))
    assert found.config.num_hidden_layers == 2 and [*found.shapes] == [*model.state_dict()]
    assert found.notes == ("Its layers that foretell further tokens are left out, as transformers leaves them out",)
    with pytest.raises(CannotRead, match=r"holds blk.1.nextn.enorm.weight, which Glm4MoeForCausalLM has no place for"):
        open_model(GGUFTensors(write(model, tmp_path / "b.gguf", extra="blk.1.nextn.enorm.weight", **given)))


def test_how_the_tokens_of_an_encoder_are_pooled_is_said(tmp_path: Path) -> None:
    model_type, named, options, more = CASES["eurobert"]
    path = write(tiny(model_type, **options), tmp_path / "m.gguf", named, more=more | {"pooling_type": 1})
    said = "How its tokens are pooled (pooling_type 1) is left to who calls the model"
    assert open_model(GGUFTensors(path)).notes == (said,)


def test_a_roberta_computes_what_a_bert_does_whose_table_begins_where_its_own_does(tmp_path: Path) -> None:
    model = tiny("roberta", pad_token_id=1, max_position_embeddings=66, **HEADS_ALIKE)
    ids = torch.randint(2, 40, (2, 30))
    loaded = load(write(model, tmp_path / "m.gguf", "bert", more=ENCODER))
    with torch.no_grad():
        assert type(loaded.model).__name__ == "BertModel" and loaded.model(ids)[0].equal(model(ids)[0])


def test_older_files_keep_keys_and_values_of_latent_attention_together(tmp_path: Path, monkeypatch) -> None:
    model_type, named, options, more = CASES["deepseek2"]
    model = tiny(model_type, **options)
    old: dict[str, Any] = {"attention.key_length": 16, "attention.value_length": 6, "attention.head_count_kv": 4}
    old |= {"attention.key_length_mla": None, "attention.value_length_mla": None}
    monkeypatch.setattr(model.config, "keeps_kv_b", True, raising=False)
    ids = torch.arange(30)[None]
    loaded = load(write(model, tmp_path / "m.gguf", named, more=more | old))
    with torch.no_grad():
        assert loaded.model(ids).logits.equal(model(ids).logits)


def test_divisors_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    model = tiny("gpt2")
    model.register_buffer("rope_freqs", torch.ones(4))
    with pytest.raises(CannotRead, match=r"it says rope_freqs.weight, which posenc does not read"):
        load(write(model, tmp_path / "m.gguf", "gpt2", more=EPSILON))


@pytest.mark.parametrize("shape", [(17, 32), (16, 31), (8,)])
def test_a_shape_that_contradicts_the_numbers_is_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    for part in ("v", "k"):
        model = tiny("llama")
        layer = model.model.layers[0].self_attn
        setattr(layer, f"{part}_proj", torch.nn.Linear(1, 1, bias=False))
        getattr(layer, f"{part}_proj").weight = torch.nn.Parameter(torch.ones(shape))
        with pytest.raises(CannotRead, match=rf"blk.0.attn_{part}.weight has the shape \[.*, but by .* has \[16, 32\]"):
            load(write(model, tmp_path / "m.gguf"))


def test_another_dtype_is_that_of_the_whole_model_and_refused_where_it_is_too_narrow(tmp_path: Path) -> None:
    model, path = made("llama", tmp_path / "m.gguf")
    loaded = load(path, dtype="bfloat16")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert load(path, dtype="float16").model.model.norm.weight.equal(model.model.norm.weight.half())
    with torch.no_grad():
        model.model.norm.weight.fill_(1e5)
    with pytest.raises(ValueError, match=r"norm.weight has numbers up to 100000, and torch.float16 ends at 65504"):
        load(write(model, tmp_path / "n.gguf", more={"attention.key_length": 16}), dtype="float16")


def test_a_tokenizer_that_is_not_made_is_said_and_the_model_is_loaded_without_it(tmp_path: Path) -> None:
    kept = {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.pre": "default", "tokenizer.ggml.bos_token_id": 3}
    path = write(tiny("qwen2"), tmp_path / "m.gguf", "qwen2", more=kept)
    loaded, words = (
        load(path),
        "The file has a tokenizer of the kind 'rwkv' that cuts words as 'default'; posenc makes",
    )
    assert loaded.tokenizer is None and len(loaded.notes) == 1 and loaded.notes[0].startswith(words)
    assert loaded.config.bos_token_id == 3
    done = convert(path, tmp_path / "new", Request())
    assert done.notes == loaded.notes
    assert {file.name for file in done.folder.iterdir()} == {"config.json", "model.safetensors"}


def test_the_tokenizer_of_a_file_goes_along_into_the_folder(tmp_path: Path) -> None:
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        "\u2581",
        *"abcdefghijklmnopqrstuvwxyz",
        "th",
        "the",
        "\u2581the",
        "er",
        "\u2581th",
    ]
    pieces += [f"<{number}>" for number in range(40 - len(pieces))]
    kept: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces}
    kept |= {"tokenizer.ggml.scores": [-float(number) for number in range(40)]}
    kept |= {"tokenizer.ggml.token_type": [2, 3, 3, *[1] * 32, *[5] * 5], "tokenizer.ggml.bos_token_id": 1}
    path = write(tiny("llama"), tmp_path / "m.gguf", more=kept)
    ids = load(path).tokenizer("the other")["input_ids"]
    assert [pieces[one] for one in ids] == ["<s>", "\u2581the", "\u2581", "o", "the", "r"]
    assert load(convert(path, tmp_path / "new", Request()).folder).tokenizer("the other")["input_ids"] == ids


def test_the_guide_names_every_architecture() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/convert-a-checkpoint.md").read_text(encoding="utf-8")
    named = re.findall(
        r"[\w-]+", re.sub(r"\(.*?\)", "", guide[guide.index("\nllama (") : guide.index("\n\nNothing is loaded")])
    )
    assert named == [name for name in ARCHITECTURES if " " not in name]


def test_what_is_loaded_says_the_same_of_positions_as_what_is_inspected(tmp_path: Path) -> None:
    for case in ("phi3", "gemma2"):
        path = made(case, tmp_path / f"{case}.gguf")[1]
        (said,), (loaded,) = inspect(path).parts, open_model(GGUFTensors(path)).reading.parts
        assert [layer.window for layer in said.layers] == [layer.window for layer in loaded.layers]
    assert inspect(tmp_path / "phi3.gguf").parts[0].besides == ("llama.cpp itself attends without the window",)


def test_shapes_alone_are_had_of_a_file_and_of_the_folder_that_holds_it(tmp_path: Path) -> None:
    write(tiny("llama"), tmp_path / "tiny.gguf")
    for path in (tmp_path, tmp_path / "tiny.gguf"):
        found = without_weights(path)
        assert type(found.model).__name__ == "LlamaForCausalLM" and found.model.dtype == torch.float32
        assert found.path == tmp_path / "tiny.gguf" and all(one.is_meta for one in found.model.parameters())
