"""A GGUF file as a transformers model: its config, and its tensors under transformers' names and in its layout."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.reading import CannotRead
from posenc.checkpoints.tensors import GGUFTensors

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""The architectures that are read, by the name that GGUF has for them, and transformers' class of each."""

INTERLEAVED = ("llama",)
"""Architectures whose queries and keys GGUF stores with their rotary pairs side by side; transformers has halves."""

KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
"""What GGUF calls a number of the model -> what transformers calls it."""

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
    said = {key: plain(field.contents()) for key, field in file.reader.fields.items()}
    architecture = said.get("general.architecture")
    if architecture not in CLASSES:
        raise CannotRead(
            f"{file.path} holds a {architecture}; posenc loads GGUF files of {', '.join(CLASSES)}. Load the original "
            f"checkpoint instead, or convert this file with transformers"
        )
    prefix = f"{architecture}."
    left = {key.removeprefix(prefix): value for key, value in said.items() if key.startswith(prefix)}
    found: dict[str, Any] = {name: left.pop(key) for key, name in KEYS.items() if key in left}
    needed = [key for key, name in KEYS.items() if name not in found and name not in ("head_dim", "vocab_size")]
    if missing := [key for key in needed if key != "attention.head_count_kv"]:
        raise CannotRead(f"{file.path} lacks {', '.join(prefix + key for key in missing)}; it is no whole model")
    found.setdefault("num_key_value_heads", found["num_attention_heads"])
    found.setdefault("head_dim", found["hidden_size"] // found["num_attention_heads"])
    found.setdefault("vocab_size", file.shape("token_embd.weight")[0])
    found["rope_parameters"] = rope_parameters(file, left, prefix, found["max_position_embeddings"])
    for key in ("attention.value_length", "rope.dimension_count"):
        if left.pop(key, found["head_dim"]) != found["head_dim"]:
            raise CannotRead(
                f"{file.path}: {prefix}{key} is {said[prefix + key]} where a head has {found['head_dim']} channels; "
                f"posenc loads GGUF files only where they are equal"
            )
    if left:
        raise CannotRead(f"{file.path} says {prefix}{next(iter(left))}, which posenc does not read in a GGUF file yet")
    if architecture == "llama":
        found["attention_bias"] = "blk.0.attn_q.bias" in file.stored
        found["mlp_bias"] = "blk.0.ffn_up.bias" in file.stored
    for kind in ("bos", "eos", "padding"):
        token = said.get(f"tokenizer.ggml.{kind}_token_id")
        found[f"{'pad' if kind == 'padding' else kind}_token_id"] = token
    return {
        "architectures": [CLASSES[architecture]],
        "model_type": architecture,
        "tie_word_embeddings": "output.weight" not in file.stored,
        **found,
    }


def rope_parameters(file: GGUFTensors, left: dict[str, Any], prefix: str, trained: int) -> dict[str, Any]:
    """The rotary part of the config; what it understands is taken out of `left`."""
    found = {"rope_type": "default", "rope_theta": left.pop("rope.freq_base", 10_000.0)}
    given = left.pop("rope.scaling.type", None)
    numbers = {name: left.pop(key) for key, name in SCALING.items() if key in left}
    if any(name.startswith("rope_f") for name in file):
        raise CannotRead(
            f"{file.path} divides its frequencies by numbers of its own (a tensor rope_freqs or rope_factors), which "
            f"posenc does not turn into a config; load the original checkpoint instead"
        )
    # Older files have a factor and no type, and llama.cpp takes that for linear.
    if "rope.scale_linear" in left:
        numbers.setdefault("factor", left.pop("rope.scale_linear"))
    kind = given or ("linear" if "factor" in numbers else "none")
    if kind == "none":
        return found
    if kind not in ("linear", "yarn"):
        raise CannotRead(f"{file.path}: {prefix}rope.scaling.type is '{kind}'; expected none, linear or yarn")
    if "factor" not in numbers:
        raise CannotRead(f"{file.path}: {prefix}rope.scaling.type is '{kind}', but there is no rope.scaling.factor")
    if kind == "yarn":
        numbers.setdefault("original_max_position_embeddings", trained)
    return found | {"rope_type": kind} | numbers


def plain(value: Any) -> Any:
    """A number as it was meant: GGUF holds 1e-05 as 9.999999747378752e-06, the nearest float32."""
    if not isinstance(value, float):
        return value
    import numpy

    return float(str(numpy.float32(value)))


def tensors(file: GGUFTensors, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors under the names that transformers has, dequantised to float32, one at a time.

    Raises CannotRead for a tensor that the model needs and the file lacks, or the other way round, and for one of
    another shape than the config says.
    """
    import gguf

    architecture = config["model_type"]
    (arch,) = (number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    unused = set(file)
    for name, shape in shapes(config).items():
        stored = names.get_name(name, (".weight", ".bias"))
        if stored not in file.stored:
            raise CannotRead(f"{file.path} lacks {stored}, which is {name} in transformers; it may be truncated")
        if file.shape(stored) != shape:
            raise CannotRead(
                f"{file.path}: {stored} has the shape {list(file.shape(stored))}, but by the file's own numbers "
                f"{name} has {list(shape)}"
            )
        unused.discard(stored)
        tensor = file[stored]
        if architecture in INTERLEAVED and ".attn_q." in stored:
            tensor = halves(tensor, config["num_attention_heads"])
        elif architecture in INTERLEAVED and ".attn_k." in stored:
            tensor = halves(tensor, config["num_key_value_heads"])
        yield name, tensor
    if unused:
        raise CannotRead(f"{file.path} holds {min(unused)}, which {config['architectures'][0]} has no place for")


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors that a model of this config has, by name; tied ones once."""
    import transformers

    kind = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = kind(kind.config_class(**config))
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name not in tied}


def halves(weight: Tensor, heads: int) -> Tensor:
    """Rows (2i, 2i + 1) of each head, which turn together, moved to (i, i + half): weights [O, I] or biases [O]."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
