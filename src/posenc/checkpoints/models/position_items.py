"""Find modules and tensors of a transformers model that carry position, by name or dry run."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

SPEAKS_OF_POSITION = re.compile(
    r"rotary|rope|alibi|posit|relative|sinus|distance_emb|attention_biases|timescale|inv_freq|bias_table"
    r"|(?<![a-z])(rel_)?pos(?![a-z])|(?<![a-z])pos_?(emb|enc|bias|conv)|(?<![a-z])ape(?![a-z])|omega|(?<![a-z])wpe(?![a-z])"
)
"""Names of modules and tensors that carry position, in lower case with underscores."""

NOT_POSITION = re.compile(
    r"positionwise|position_wise|post_|position_ids|_index$|composition|temporal_pos_bias_none|relative_(\w+_)?head$"
)
"""Exceptions: layers for each token alone, counts, and heads of relative depth."""


@dataclass(frozen=True)
class PositionItem:
    """A tensor or module of a model that carries position.

    kind    "frequencies" (radians per position), "table" (trained), "fixed" (computed numbers), "module" (no tensors of
            its own)
    path    its name in the model
    owner   the module that holds it
    values  the tensor; None for a module
    config  the configuration of the nearest enclosing module that has one
    label   for one of several frequencies of a module, such as "sliding_attention"
    """

    kind: str
    path: str
    owner: nn.Module
    values: Tensor | None
    config: Any
    label: str = ""


def carries_position(name: str) -> bool:
    """Whether a module or tensor is named for position."""
    # "Qwen2RotaryEmbedding" -> "qwen2_rotary_embedding"
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return bool(SPEAKS_OF_POSITION.search(name)) and not NOT_POSITION.search(name)


def position_items(model: nn.Module, by_position: Collection[str] = ()) -> list[PositionItem]:
    """Return the modules and tensors of a model that carry position.

    by_position  paths of tables that were looked up by position, which count whatever their names
    """
    items: list[PositionItem] = []
    modules: dict[str, PositionItem] = {}
    for path, module, config in with_configs(model):
        speaks = carries_position(type(module).__name__)
        name = path.rpartition(".")[2]
        tensors = 0
        for tensor_name, values in [*module._parameters.items(), *module._buffers.items()]:
            if values is None or not values.is_floating_point() or "original" in tensor_name:
                continue
            full = f"{path}.{tensor_name}".lstrip(".")
            if tensor_name.endswith("inv_freq") and values.dim() == 1 and path:
                label = tensor_name.removesuffix("inv_freq").rstrip("_")
                items.append(PositionItem("frequencies", full, module, values, config, label))
                tensors += 1
            elif full in by_position or speaks or carries_position(tensor_name) or carries_position(name):
                kind = "table" if tensor_name in module._parameters else "fixed"
                items.append(PositionItem(kind, full, module, values, config))
                tensors += 1
        for attribute, values in vars(module).items():
            # VideoMAE's sines are a plain attribute, no buffer.
            is_table = isinstance(values, Tensor) and values.is_floating_point() and not attribute.endswith("inv_freq")
            if is_table and carries_position(attribute):
                items.append(PositionItem("module", f"{path}.{attribute}".lstrip("."), module, None, config))
                tensors += 1
        if speaks and not tensors and not any(path.startswith(f"{empty}.") for empty in modules):
            modules[path] = PositionItem("module", path, module, None, config)
    paths = [item.path for item in items]
    return items + [item for path, item in modules.items() if not any(h.startswith(f"{path}.") for h in paths)]


def with_configs(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """Yield all modules with their paths, and the configuration of the nearest enclosing module that has one."""
    configs: dict[str, Any] = {}
    for path, module in model.named_modules():
        config = getattr(module, "config", None)
        configs[path] = config if hasattr(config, "to_dict") else configs.get(path.rpartition(".")[0])
        yield path, module, configs[path]
