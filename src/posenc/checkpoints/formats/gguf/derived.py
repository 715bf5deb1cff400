"""What some configs of transformers have in words of their own, from the keys and the tensors of a GGUF file."""

import statistics
from typing import Any

from posenc.checkpoints.files.tensors import GGUFTensors
from posenc.checkpoints.formats.gguf.architectures import BOTH_WAYS, Architecture
from posenc.checkpoints.formats.gguf.recurrent import layer_types, recurrent, within_file
from posenc.checkpoints.vocabulary.bounds import within_bounds
from posenc.checkpoints.vocabulary.ledger import Ledger
from posenc.checkpoints.vocabulary.reading import Part
from posenc.encoding import settings_of
from posenc.foreign import matches

RECURRENT = {"mamba", "falcon_mamba", "mamba2", "falcon_h1", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"}
RECURRENT |= {"granitemoehybrid", "bamba", "nemotron_h", "jamba"}
"""Models whose layers, or some of them, carry a state."""


def derived(arch: str, row: Architecture, part: Part, keys: Ledger, file: GGUFTensors) -> dict[str, Any]:
    """What some configs have in words of their own."""
    if row.model == "bloom":
        # As its released configs have it; the class itself has no use for a length.
        return {"seq_length": part.trained_length}
    if row.model == "mpt":
        clip = keys.take(f"{arch}.attention.clamp_kqv", "{}")
        matches(clip, (None, float), file=file.path, field=f"{arch}.attention.clamp_kqv")
        alibi = settings_of(part.encoding(0)).get("bias_max", 0)
        return {"attn_config": {"alibi_bias_max": int(alibi), "clip_qkv": clip}, "max_seq_len": part.trained_length}
    if row.model == "falcon":
        two = "blk.0.attn_norm_2.weight" in file
        several = two or part.kv_heads != 1
        found = {"num_kv_heads": part.kv_heads, "new_decoder_architecture": several, "multi_query": not several}
        return found | {"num_ln_in_parallel_attn": (2 if two else 1) if several else None}
    if row.model == "modernbert":
        return {"local_attention": keys.given.get(f"{arch}.attention.sliding_window")}
    if arch == "gemma3n":
        scales = keys.take(path := f"{arch}.activation_sparsity_scale", "{}")
        matches(scales, [float], file=file.path, field=path)
        # What is kept begins at so many standard deviations; configs have the share of what is not.
        shares = [round(statistics.NormalDist().cdf(one), 6) if one > -9 else 0.0 for one in scales]
        rows = {"laurel_rank": "blk.0.laurel_l.weight", "vocab_size_per_layer_input": "per_layer_token_embd.weight"}
        found = {name: file.shape(tensor)[0] for name, tensor in rows.items() if tensor in file}
        return found | {"activation_sparsity_pattern": shares}
    if arch == "gemma4":
        return gemma4(arch, part, keys, file)
    if arch == "mimo2":
        return {"mlp_layer_types": sparse(part, file)}
    if arch == "kimi-linear":
        within_file(arch, keys, file)
        keys.take(f"{arch}.leading_dense_block_count", "{} layers without experts")
        return two_parts(part) | {
            "layer_types": layer_types(part, "linear_attention"),
            "mlp_layer_types": sparse(part, file),
            "linear_num_heads": part.shape.heads,
        }
    if row.model == "dbrx":
        named = {"attention.clamp_kqv": "clip_qkv", "expert_count": "moe_num_experts", "expert_used_count": "moe_top_k"}
        found = {name: keys.take(f"{arch}.{key}", "{}") for key, name in named.items()}
        matches(
            found, {"clip_qkv": (None, float), "moe_num_experts": int, "moe_top_k": int}, file=file.path, field=arch
        )
        within_bounds(found)
        # Its class of attention asks for the base too, and turns by that of the whole config.
        base = settings_of(part.encoding(0))["base"]
        attention = {"kv_n_heads": part.kv_heads, "clip_qkv": found.pop("clip_qkv"), "rope_theta": base}
        wide = keys.given.get(f"{arch}.feed_forward_length")
        return {"attn_config": attention, "ffn_config": found | {"ffn_hidden_size": wide}}
    if arch == "llama4":
        kinds = ["chunked_attention" if layer.chunk else "full_attention" for layer in part.layers]
        chunk = next((layer.chunk for layer in part.layers if layer.chunk), None)
        # As llama.cpp tells Scout from Maverick.
        normed = keys.given.get(f"{arch}.expert_count") != 128
        return {"layer_types": kinds, "attention_chunk_size": chunk, "use_qk_norm": normed}
    if row.model in ("lfm2", "lfm2_moe"):
        return {"layer_types": layer_types(part, "conv")}
    if row.model in RECURRENT:
        return recurrent(arch, row, part, keys, file)
    if row.model in ("t5", "umt5"):
        return t5(arch, part, keys, file)
    if arch in BOTH_WAYS:
        return {"sliding_window": keys.given.get(f"{arch}.attention.sliding_window")}
    if part.layers[0].head_dim != part.shape.head_dim:
        found = two_parts(part)
        if row.model == "glm_moe_dsa":
            # By it transformers chooses the cache.
            found["layer_types"] = ["indexed_attention"] * len(part.layers)
        if row.model == "deepseek_v2":
            groups = keys.given.get(f"{arch}.expert_group_count") or 1
            found["topk_method"] = "greedy" if groups == 1 else "group_limited_greedy"
        return found
    return {}


def two_parts(part: Part) -> dict[str, Any]:
    """The channels of a head of latent attention that turn, and those that do not."""
    turned = part.layers[0].head_dim
    return {"qk_rope_head_dim": turned, "qk_nope_head_dim": part.shape.head_dim - turned}


def sparse(part: Part, file: GGUFTensors) -> list[str]:
    """Which layers have experts."""
    names = (f"blk.{index}.ffn_gate_exps.weight" for index in range(len(part.layers)))
    return ["sparse" if name in file else "dense" for name in names]


def t5(arch: str, part: Part, keys: Ledger, file: GGUFTensors) -> dict[str, Any]:
    """T5: its activation is told by whether there is a gate, as llama.cpp does it, and its buckets by their spec."""
    below = keys.peek(f"{arch}.decoder_block_count", len(part.layers))
    start = keys.take(path := f"{arch}.decoder_start_token_id", "{}", 0)
    matches(start, int, file=file.path, field=path)
    return {
        "n_positions": part.trained_length,
        "num_decoder_layers": below,
        "relative_attention_num_buckets": settings_of(part.encoding(0)).get("buckets", 32),
        "feed_forward_proj": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in file else "relu",
        "tie_word_embeddings": "output.weight" not in file,
        "decoder_start_token_id": start,
    }


def gemma4(arch: str, part: Part, keys: Ledger, file: GGUFTensors) -> dict[str, Any]:
    """Gemma 4: layers that see everything have heads of their own, and may have no values beside their keys.

    Those that attend to keys of others may have feed-forward layers of twice the width.
    """
    given = keys.take(path := f"{arch}.feed_forward_length", "{}") or None
    matches(given, (int, [int]), file=file.path, field=path)
    widths = given if isinstance(given, list) else [given]
    rows = "per_layer_token_embd.weight"
    found = {
        "intermediate_size": widths[0],
        "use_double_wide_mlp": len(set(widths)) > 1,
        "enable_moe_block": bool(keys.peek(f"{arch}.expert_count")),
        "vocab_size_per_layer_input": file.shape(rows)[0] if rows in file else None,
    }
    far = next((index for index, layer in enumerate(part.layers) if not layer.window), None)
    if far is not None:
        head_dim = part.layers[far].head_dim
        found |= {"global_head_dim": head_dim, "num_global_key_value_heads": part.layers[far].rows[1] // head_dim}
        found["attention_k_eq_v"] = f"blk.{far}.attn_v.weight" not in file
    return {name: value for name, value in found.items() if value is not None}
