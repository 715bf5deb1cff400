"""A GGUF file as a transformers model: its config, and its tensors under transformers' names and in its layout."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.files.tensors import GGUFTensors, package
from posenc.checkpoints.vocabulary.reading import LONGEST, MOST_CHANNELS, MOST_HEADS, MOST_LAYERS, CannotRead
from posenc.foreign import count, matches, quoted, reading_with

MOST_TOKENS = 1 << 24
"""The tokens of a vocabulary."""

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""The architectures that are read, by the name that GGUF has for them, and transformers' class of each."""

INTERLEAVED = ("llama",)
"""Architectures whose queries and keys GGUF stores with their rotary pairs side by side; transformers has halves."""

COUNTS = {
    "block_count": ("num_hidden_layers", MOST_LAYERS),
    "context_length": ("max_position_embeddings", LONGEST),
    "embedding_length": ("hidden_size", MOST_CHANNELS),
    "feed_forward_length": ("intermediate_size", MOST_CHANNELS),
    "attention.head_count": ("num_attention_heads", MOST_HEADS),
    "attention.head_count_kv": ("num_key_value_heads", MOST_HEADS),
    "attention.key_length": ("head_dim", MOST_CHANNELS),
    "vocab_size": ("vocab_size", MOST_TOKENS),
}
"""What GGUF calls a count of the model -> what transformers calls it, and the largest that is believed."""

NUMBERS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
"""The same for other numbers."""

SCALING = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
"""What GGUF calls a number of the schedule -> what transformers calls it."""


def config(file: GGUFTensors) -> dict[str, Any]:
    """The transformers config of a GGUF file, as a dictionary.

    Raises CannotRead for an architecture that is not read, and for a key of the architecture that is not understood:
    a model that is loaded without it would compute something else.
    """
    said = {key: plain(value) for key, value in file.said.items()}
    architecture = said.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in CLASSES:
        raise CannotRead(
            f"it holds a {quoted(architecture)}; posenc loads GGUF files of {', '.join(CLASSES)}. Load the "
            f"original checkpoint instead, or convert this file with transformers",
            file=file.path,
        )
    prefix = f"{architecture}."
    left = {key.removeprefix(prefix): value for key, value in said.items() if key.startswith(prefix)}
    for key, value in left.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise CannotRead(f"expected a finite number, got {value}", file=file.path, field=prefix + key)
    found: dict[str, Any] = {}
    for key, (name, most) in COUNTS.items():
        if key in left:
            found[name] = count(left.pop(key), prefix + key, file=file.path, most=most)
    for key, name in NUMBERS.items():
        if key in left:
            matches(left[key], float, file=file.path, field=prefix + key)
            found[name] = left.pop(key)
    names = NUMBERS | {key: name for key, (name, _) in COUNTS.items()}
    needed = [key for key, name in names.items() if name not in found and name not in ("head_dim", "vocab_size")]
    if missing := [key for key in needed if key != "attention.head_count_kv"]:
        raise CannotRead(f"it lacks {', '.join(prefix + key for key in missing)}; it is no whole model", file=file.path)
    found.setdefault("num_key_value_heads", found["num_attention_heads"])
    found.setdefault("head_dim", found["hidden_size"] // found["num_attention_heads"])
    if found["head_dim"] % 2:
        raise CannotRead(f"a head has {found['head_dim']} channels, and rotary turns them in pairs", file=file.path)
    # Each layer has tensors of its own: no more are made than the file can fill.
    count(found["num_hidden_layers"], prefix + "block_count", file=file.path, most=max(len(file), 1))
    if "vocab_size" not in found:
        rows = file.shape("token_embd.weight")[:1] if "token_embd.weight" in file else ()
        found["vocab_size"] = count(*rows or [None], "token_embd.weight", file=file.path, most=MOST_TOKENS)
    found["rope_parameters"] = rope_parameters(file, left, prefix, found["max_position_embeddings"])
    for key in ("attention.value_length", "rope.dimension_count"):
        if left.pop(key, found["head_dim"]) != found["head_dim"]:
            raise CannotRead(
                f"{prefix}{key} is {said[prefix + key]} where a head has {found['head_dim']} channels; "
                f"posenc loads GGUF files only where they are equal",
                file=file.path,
            )
    if left:
        raise CannotRead(
            f"it says {prefix}{next(iter(left))}, which posenc does not read in a GGUF file yet", file=file.path
        )
    if architecture == "llama":
        found["attention_bias"] = "blk.0.attn_q.bias" in file.stored
        found["mlp_bias"] = "blk.0.ffn_up.bias" in file.stored
    for kind in ("bos", "eos", "padding"):
        token = said.get(key := f"tokenizer.ggml.{kind}_token_id")
        matches(token, (None, int), file=file.path, field=key)
        found[f"{'pad' if kind == 'padding' else kind}_token_id"] = token
    return {
        "architectures": [CLASSES[architecture]],
        "model_type": architecture,
        "tie_word_embeddings": "output.weight" not in file.stored,
        **found,
    }


def rope_parameters(file: GGUFTensors, left: dict[str, Any], prefix: str, trained: int) -> dict[str, Any]:
    """The rotary part of the config; what it understands is taken out of `left`."""
    form = {f"{key}?": float for key in (*SCALING, "rope.freq_base", "rope.scale_linear")}
    matches(left, form | {"rope.scaling.type?": str, "*": Any}, file=file.path, field=prefix.removesuffix("."))
    found = {"rope_type": "default", "rope_theta": left.pop("rope.freq_base", 10_000.0)}
    given = left.pop("rope.scaling.type", None)
    numbers = {name: left.pop(key) for key, name in SCALING.items() if key in left}
    if any(name.startswith("rope_f") for name in file):
        raise CannotRead(
            "it divides its frequencies by numbers of its own (a tensor rope_freqs or rope_factors), which "
            "posenc does not turn into a config; load the original checkpoint instead",
            file=file.path,
        )
    # Older files have a factor and no type, and llama.cpp takes that for linear.
    if "rope.scale_linear" in left:
        numbers.setdefault("factor", left.pop("rope.scale_linear"))
    kind = given or ("linear" if "factor" in numbers else "none")
    if kind == "none":
        return found
    if kind not in ("linear", "yarn"):
        raise CannotRead(f"{prefix}rope.scaling.type is {quoted(kind)}; expected none, linear or yarn", file=file.path)
    if "factor" not in numbers:
        raise CannotRead(f"{prefix}rope.scaling.type is '{kind}', but there is no rope.scaling.factor", file=file.path)
    if kind == "yarn":
        numbers.setdefault("original_max_position_embeddings", trained)
    return found | {"rope_type": kind} | numbers


def plain(value: Any) -> Any:
    """A number as it was meant: GGUF holds 1e-05 as 9.999999747378752e-06, the nearest float32."""
    if not isinstance(value, float) or not abs(value) < 1e38:
        return value
    import numpy

    return float(str(numpy.float32(value)))


def tensors(file: GGUFTensors, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors under the names that transformers has, dequantised to float32, one at a time.

    Raises CannotRead for a tensor that the model needs and the file lacks, or the other way round, and for one of
    another shape than the config says.
    """
    gguf = package(file.path)
    architecture = config["model_type"]
    (arch,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    unused = set(file)
    for name, shape in shapes(config).items():
        stored = names.get_name(name, (".weight", ".bias"))
        if stored not in file.stored:
            raise CannotRead(f"it lacks {stored}, which is {name} in transformers; it may be truncated", file=file.path)
        if file.shape(stored) != shape:
            raise CannotRead(
                f"{stored} has the shape {list(file.shape(stored))}, but by the file's own numbers "
                f"{name} has {list(shape)}",
                file=file.path,
            )
        unused.discard(stored)
        tensor = file[stored]
        if architecture in INTERLEAVED and ".attn_q." in stored:
            tensor = halves(tensor, config["num_attention_heads"])
        elif architecture in INTERLEAVED and ".attn_k." in stored:
            tensor = halves(tensor, config["num_key_value_heads"])
        yield name, tensor
    if unused:
        raise CannotRead(f"it holds {min(unused)}, which {config['architectures'][0]} has no place for", file=file.path)


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that a model of this config has, by name; tied ones once."""
    import transformers

    kind = getattr(transformers, config["architectures"][0])
    with reading_with("transformers"), torch.device("meta"):
        model = kind(kind.config_class(**config))
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows (2i, 2i + 1) of each head, which turn together, moved to (i, i + half): weights [O, I] or biases [O]."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
