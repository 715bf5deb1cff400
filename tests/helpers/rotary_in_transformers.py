"""Print the rotary tables that the installed transformers (4 or 5) computes for configs, without posenc.

Standard input: {"folders": [a folder with a config.json each], "lengths": [[tokens, ...], pair list each]}.
Printed: for each folder and length the rotary of each layer, {"frequencies": [...], "temperature": x}; or its "error".
"""

import json
import re
import sys
from typing import Any

import torch


def rotary_of(model: Any, config: Any, layer: int) -> tuple[Any, str]:
    """Return a layer's rotary module and the prefix of its buffers, in any version's layout."""
    modules = {
        path: module
        for path, module in model.named_modules()
        if "vis" not in path and any("inv_freq" in name for name in buffers(module))
    }
    layer_modules = [module for path, module in modules.items() if re.search(rf"(^|\.){layer}\.", path)]
    if layer_modules:
        return layer_modules[0], ""
    kind = (getattr(config, "layer_types", None) or ["full_attention"] * (layer + 1))[layer]
    for path, module in modules.items():
        if f"{kind}_inv_freq" in buffers(module):
            return module, f"{kind}_"
        if kind in path.split("."):
            return module, ""
    local = [path for path in modules if "local" in path]
    names = local if local and kind == "sliding_attention" else [path for path in modules if path not in local]
    return modules[names[0]], ""


def buffers(module: Any) -> dict[str, Any]:
    return dict(module.named_buffers(recurse=False))


@torch.no_grad()
def rotaries(folder: str, lengths: list[int]) -> dict[str, Any]:
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    config._attn_implementation = "eager"
    model = transformers.AutoModel.from_config(config).eval()
    config = config.get_text_config()
    layers_by_length: dict[str, Any] = {}
    for length in lengths:
        layers = []
        for layer in range(config.num_hidden_layers):
            module, prefix = rotary_of(model, config, layer)
            kind = {"layer_type": prefix[:-1]} if prefix else {}
            axes = (3, 1, 1) if "mrope" in str(vars(config)) else (1, 1)
            module(torch.zeros(1), torch.full(axes, length - 1), **kind)
            frequencies = getattr(module, f"{prefix}inv_freq")
            temperature = getattr(module, f"{prefix}attention_scaling", getattr(module, "attention_scaling", 1.0))
            layers.append({"frequencies": frequencies.tolist(), "temperature": float(temperature)})
        layers_by_length[str(length)] = layers
    return layers_by_length


def rotaries_or_error(folder: str, lengths: list[int]) -> dict[str, Any]:
    try:
        return rotaries(folder, lengths)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    request = json.load(sys.stdin)
    print(json.dumps([rotaries_or_error(*pair) for pair in zip(request["folders"], request["lengths"], strict=True)]))
