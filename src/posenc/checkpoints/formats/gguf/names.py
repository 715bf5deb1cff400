"""The names that a GGUF file has for the tensors of transformers' models."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.checkpoints.files.tensors import GGUFTensors, package
from posenc.checkpoints.models.skeleton import with_own_keys
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import matches

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

CHECKPOINT_NAMES = {
    r"model\.layers\.(\d+)\.feed_forward\.experts\.gate_up_proj$": (
        r"blk.\1.ffn_gate_exps.weight",
        r"blk.\1.ffn_up_exps.weight",
    ),
    r"^.*layers\.(\d+)\.[\w.]+\.dt_bias$": (r"blk.\1.ssm_dt.bias",),
    r"\.forget_gate\.": (".",),
    r"^.*layers\.(\d+)\.self_attn\.conv1d\.weight$": tuple(rf"blk.\1.ssm_conv1d_{one}.weight" for one in "qkv"),
    r"^.*layers\.(\d+)\.linear_attn\.in_proj_qkvz\.weight$": (r"blk.\1.attn_qkv.weight", r"blk.\1.attn_gate.weight"),
    r"^.*layers\.(\d+)\.shared_mlp\.input_linear\.weight$": (
        r"blk.\1.ffn_gate_shexp.weight",
        r"blk.\1.ffn_up_shexp.weight",
    ),
    r"^model\.layers\.(\d+)\.shared_mlp\.input_linear\.weight$": (r"blk.\1.ffn_gate.weight", r"blk.\1.ffn_up.weight"),
    r"^.*layers\.(\d+)\.shared_mlp\.output_linear\.weight$": (r"blk.\1.ffn_down.weight",),
    r"^model\.(layers\.\d+\.mixer\.)": (r"backbone.\1",),
    r"^model\.(layers\.\d+\.mixer\.gate\.)e_score_correction_bias$": (r"backbone.\1e_score_correction.bias",),
    r"^.*layers\.(\d+)\.router\.scale$": (r"blk.\1.ffn_gate_inp.scale",),
    r"^.*layers\.(\d+)\.router\.per_expert_scale$": (r"blk.\1.ffn_down_exps.scale",),
    r"\w+\.experts\.gate_up_proj$": ("mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight"),
    r"\w+\.experts\.gate_up_proj_bias$": ("mlp.experts.gate_proj.bias", "mlp.experts.up_proj.bias"),
    r"\w+\.experts\.(up|down)_proj$": (r"mlp.experts.\1_proj.weight",),
    r"\w+\.experts\.down_proj_bias$": ("mlp.experts.down_proj.bias",),
    r"\.router\.weight$": (".router.layer.weight",),
    r"mlp\.router\.weight$": ("block_sparse_moe.gate.weight",),
    r"mlp\.[\w.]*e_score_correction_bias$": ("mlp.gate.e_score_correction.bias",),
    r"\.norms\.\d+\.weight$": (".weight",),
    r"\.attn_sub_norm\.": (".inner_attn_ln.",),
    r"\.ffn_sub_norm\.": (".ffn_layernorm.",),
    r"kv_b_proj\.weight$": ("k_b_proj.weight", "v_b_proj.weight"),
    r"^layers\.(\d+)\.self_attn\.([qkv])_proj\.": (r"blk.\1.attn_\2.",),
    r"^layers\.(\d+)\.mlp\.fc": (r"encoder.layers.\1.mlp.fc",),
    r"^layers\.(\d+)\.post_attention_layernorm": (r"encoder.layers.\1.norm1",),
    r"^layers\.(\d+)\.post_mlp_layernorm": (r"encoder.layers.\1.norm2",),
    r"^.*altup_projections\.(\d+)\.weight$": (r"altup_proj.weight[\1]",),
    r"^.*altup_unembed_projections\.(\d+)\.weight$": (r"altup_unembd_proj.weight[\1]",),
    r"^.*layers\.(\d+)\.mlp\.act_fn\.(alpha_[pn]|beta|eps)$": (r"xielu.\2[\1]",),
}
"""Names in transformers' models -> in the checkpoints that the gguf package has names for: experts in one tensor, where
gates stand before what they multiply; norms with one tensor for each head; the keys and values of latent attention. A
name that transformers kept is tried first. What begins with blk is a stored name by itself; altup_proj.weight[2] is one
of several tensors in one, and xielu.beta[3] the number of layer 3 in a list that the file has among its keys."""


def stored_names(arch: str, model: Any, layers: int, file: GGUFTensors) -> dict[str, tuple[str, ...]]:
    """For each tensor of a model the names that the file has for it: one, or several that it is made of."""
    gguf = package(file.path)
    (number,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, layers)
    rows = model.get_input_embeddings().weight
    # The first of them has to be there.
    tied = [name for name, p in model.named_parameters(remove_duplicate=False) if p is rows][1:]
    found: dict[str, tuple[str, ...]] = {}
    for name in model.state_dict():
        tried = [
            [kept_as(one, model.base_model_prefix, names, file) for one in pieces] for pieces in in_checkpoints(name)
        ]
        there = (each for each in tried if all(is_there(one, file) for one in each))
        stored = next(there, None)
        if stored is not None:
            found[name] = tuple(stored)
        elif name not in tied:
            missing = next((one for each in tried for one in each if one and one not in file), "a tensor")
            raise CannotRead(
                f"it lacks {missing}, which is {name} in transformers; it may be truncated", file=file.path
            )
    return found


def is_there(name: str, file: GGUFTensors) -> bool:
    return of_several(name)[0] in file or together(name) in file or in_keys(name, file) is not None


def kept_as(name: str, prefix: str, names: Any, file: GGUFTensors) -> str:
    """What a file calls a tensor of checkpoints, or "" where the gguf package has no name for it."""
    if name.startswith("blk.") or name.endswith("]"):
        return name
    ends = (".weight", ".bias")
    found = names.get_name(name, ends) or names.get_name(name.removeprefix(f"{prefix}."), ends) or ""
    # A parameter of a module's own, to which the converter gives an end.
    return next((found + end for end in ends if found + end in file), found)


def in_checkpoints(name: str) -> Iterator[list[str]]:
    """What checkpoints may call a tensor of transformers' models, or its pieces."""
    yield [name]
    for pattern, pieces in CHECKPOINT_NAMES.items():
        if re.search(pattern, name):
            yield [re.sub(pattern, one, name) for one in pieces]


def of_several(name: str) -> tuple[str, int | None]:
    """The stored tensor, or the key, that a name is of, and which one of several it is there; None for all of it.

    >>> of_several("altup_proj.weight[2]"), of_several("output.weight")
    (('altup_proj.weight', 2), ('output.weight', None))
    """
    held, bracket, number = name.removesuffix("]").partition("[")
    return held, int(number) if bracket else None


def in_keys(name: str, file: GGUFTensors) -> Tensor | None:
    """The number of a layer in a list among the keys of a file, or the one number of all layers; None for no such key.

    >>> from types import SimpleNamespace
    >>> in_keys("xielu.beta[1]", SimpleNamespace(said={"xielu.beta": [0.5, 0.25]}, path="m.gguf"))
    tensor(0.2500)
    """
    key, layer = of_several(name)
    if layer is None or key not in file.said:
        return None
    given = file.said[key]
    matches(given, (float, [float]), file=file.path, field=key)
    if isinstance(given, list) and not layer < len(given):
        raise CannotRead(f"it has {len(given)} numbers, and layer {layer} has none", file=file.path, field=key)
    return torch.tensor(given[layer] if isinstance(given, list) else given)


def together(name: str) -> str:
    """The stored tensor that some files have for queries, keys and values, or the name itself."""
    return re.sub(r"\.attn_[qkv]\.", ".attn_qkv.", name)


def left_out(config: "PreTrainedConfig", layers: int, foretells: bool, file: GGUFTensors) -> dict[str, set[str]]:
    """The tensors that transformers leaves out, by the sentence that says which they are."""
    first = with_own_keys(config, layers)
    beyond, shared = behind(layers, file), behind(first, file) - behind(layers, file)
    found = {
        "Its layers that foretell further tokens are left out, as transformers leaves them out": (
            beyond if foretells else set[str]()
        ),
        f"Layers from {first} on attend to keys of others; their own are left out, as in transformers": (
            {name for name in shared if re.search(r"\.attn_(k|v|k_norm)\.weight$", name)}
        ),
        "Its tables of distances for cross-attention, which no model reads, are left out, as in transformers": (
            {name for name in file if re.fullmatch(r"dec\.blk\.\d+\.cross_attn_rel_b\.weight", name)}
        ),
    }
    return {sentence: names for sentence, names in found.items() if names}


def behind(layers: int, file: GGUFTensors) -> set[str]:
    """The tensors of blocks that come behind so many layers."""
    blocks = {name: re.match(r"blk\.(\d{1,9})\.", name) for name in file}
    return {name for name, block in blocks.items() if block and int(block[1]) >= layers}
