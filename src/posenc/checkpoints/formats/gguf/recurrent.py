"""What configs of transformers say of layers that carry a state from token to token, from the keys of a GGUF file."""

from typing import Any

from posenc.checkpoints.files.tensors import GGUFTensors
from posenc.checkpoints.formats.gguf.architectures import Architecture
from posenc.checkpoints.vocabulary.ledger import Ledger
from posenc.checkpoints.vocabulary.reading import CannotRead, Part
from posenc.foreign import count, matches

SIZES = ("ssm.inner_size", "ssm.state_size", "ssm.conv_kernel", "ssm.time_step_rank", "ssm.group_count", "kda.head_dim")
"""Keys by which transformers makes states, in memory."""


def recurrent(arch: str, row: Architecture, part: Part, keys: Ledger, file: GGUFTensors) -> dict[str, Any]:
    """Widths, which layers attend, and where experts are."""
    widest = within_file(arch, keys, file)
    still = [index for index, layer in enumerate(part.layers) if not layer.attends]
    kinds = layer_types(part, "linear_attention")
    inner = count(keys.take(path := f"{arch}.ssm.inner_size", "{} channels of a state"), path, most=widest)
    if row.model == "jamba":
        return {"mamba_expand": whole_times(inner, part.shape.dim, arch)} | periods(part, file)
    if row.model in ("mamba", "falcon_mamba"):
        keys.take(f"{arch}.ssm.dt_b_c_rms", "what enters a state is normed: {}")
        return alone(inner, part, arch, file)
    heads = count(keys.peek(path := f"{arch}.ssm.time_step_rank"), path, most=widest)
    width = whole_times(inner, heads, arch)
    if row.model.startswith("qwen"):
        return {"layer_types": kinds, "linear_value_head_dim": width}
    if row.model == "mamba2":
        keys.take(path, "{} heads of a state")
        return alone(inner, part, arch, file) | {"head_dim": width, "num_heads": heads}
    if row.model == "nemotron_h":
        return nemotron(kinds, arch, keys, file, widest) | {
            "mamba_head_dim": width,
            "expand": max(inner // part.shape.dim, 1),
        }
    first = still[0] if still else 0
    biases = [f"blk.{first}.{name}.bias" in file for name in ("ssm_conv1d", "ssm_in")]
    mamba = {"mamba_d_head": width, "mamba_conv_bias": biases[0], "mamba_proj_bias": biases[1]}
    if row.model == "falcon_h1":
        return falcon_h1(mamba | {"mamba_d_ssm": inner}, file)
    mamba["mamba_expand"] = whole_times(inner, part.shape.dim, arch)
    if row.model == "bamba":
        return mamba | {"attn_layer_indices": [index for index in range(len(kinds)) if index not in still]}
    shared = (name for name in ("blk.0.ffn_gate_shexp.weight", "blk.0.ffn_gate.weight") if name in file)
    return mamba | {
        "layer_types": kinds,
        "position_embedding_type": None if all(layer.spec == "none" for layer in part.layers) else "rope",
        "num_local_experts": keys.peek(f"{arch}.expert_count", 0),
        "num_experts_per_tok": keys.peek(f"{arch}.expert_used_count", 0),
        "shared_intermediate_size": next((file.shape(name)[0] for name in shared), 0),
    }


def layer_types(part: Part, others: str) -> list[str]:
    """Which layers attend, and what those are that do not."""
    return ["full_attention" if layer.attends else others for layer in part.layers]


def within_file(arch: str, keys: Ledger, file: GGUFTensors) -> int:
    """The longest axis of a tensor. Raises CannotRead for a size of a state that has no room in it."""
    widest = max((size for name in file for size in file.shape(name)), default=1)
    for name in SIZES:
        if keys.has(path := f"{arch}.{name}"):
            count(keys.peek(path), path, file=file.path, most=widest)
    return widest


def nemotron(kinds: list[str], arch: str, keys: Ledger, file: GGUFTensors, widest: int) -> dict[str, Any]:
    """Nemotron H, whose layers attend, or carry a state, or are feed-forward alone, by their tensors."""
    kinds = list(kinds)
    for index, kind in enumerate(kinds):
        if kind != "full_attention" and f"blk.{index}.ssm_in.weight" not in file:
            kinds[index] = "moe" if f"blk.{index}.ffn_up_exps.weight" in file else "mlp"
    first = kinds.index("linear_attention") if "linear_attention" in kinds else 0
    given = keys.take(path := f"{arch}.feed_forward_length", "{}")
    matches(given, (int, [int]), file=file.path, field=path)
    # Files do not say of how many groups experts are chosen, where there is one.
    one_group = keys.peek(f"{arch}.expert_group_count", 1) == 1
    return ({"topk_group": 1} if one_group else {}) | {
        "layers_block_type": kinds,
        "intermediate_size": count(max([given] if isinstance(given, int) else [0, *given]), path, most=widest),
        "use_conv_bias": f"blk.{first}.ssm_conv1d.bias" in file,
        "mamba_proj_bias": f"blk.{first}.ssm_in.bias" in file,
    }


def alone(inner: int, part: Part, arch: str, file: GGUFTensors) -> dict[str, Any]:
    """Mamba, which has nothing beside its states."""
    return {
        "expand": whole_times(inner, part.shape.dim, arch),
        "use_bias": "blk.0.ssm_in.bias" in file,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in file,
    }


def falcon_h1(mamba: dict[str, Any], file: GGUFTensors) -> dict[str, Any]:
    """Falcon H1: its factors were multiplied into the weights, so that none are left.

    Raises CannotRead where embeddings are the head too: these two have factors of their own.
    """
    if "output.weight" not in file:
        raise CannotRead(
            "it lacks output.weight, and its embeddings hold a factor that its head has not", file=file.path
        )
    ones = {f"{name}_multiplier": 1.0 for name in ("embedding", "lm_head", "key", "attention_in", "attention_out")}
    ones |= {"ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0}
    # llama.cpp norms what the gate has let through.
    normed = {"mamba_rms_norm": "blk.0.ssm_norm.weight" in file, "mamba_norm_before_gate": False}
    return mamba | ones | normed | {"mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5}


def whole_times(inner: int, of: int, arch: str) -> int:
    """How many times a number goes into the channels of a state. Raises CannotRead where something is left."""
    if inner % of:
        raise CannotRead(f"expected a multiple of {of}, got {inner}", field=f"{arch}.ssm.inner_size")
    return inner // of


def periods(part: Part, file: GGUFTensors) -> dict[str, int]:
    """Jamba: after how many layers the next one attends, or has experts, and where the first of them is."""
    attend = [index for index, layer in enumerate(part.layers) if layer.attends]
    experts = [index for index in range(len(part.layers)) if f"blk.{index}.ffn_gate_exps.weight" in file]
    found: dict[str, int] = {}
    for name, layers in (("attn", attend), ("expert", experts)):
        # One that comes only once is as far from the next as the model is long.
        period = layers[1] - layers[0] if len(layers) > 1 else len(part.layers)
        found |= {f"{name}_layer_period": period, f"{name}_layer_offset": layers[0] if layers else len(part.layers)}
    return found
