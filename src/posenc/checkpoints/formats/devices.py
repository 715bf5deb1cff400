"""The devices of a model: which exist, and which one takes its tokens."""

import importlib.util
from typing import Any

import torch

from posenc import checks

AUTO = "auto"
"""A model spread over all devices: GPUs first, then the memory of the machine, then its disk."""


def check_device(name: str) -> None:
    """Raise ValueError for an unknown or unavailable device."""
    if name == AUTO:
        if importlib.util.find_spec("accelerate") is None:
            raise ValueError(
                "--device auto spreads a model by accelerate, which is not installed; `pip install 'posenc[hf]'`, or "
                "name one device"
            )
        return
    checks.device(name, "cpu, cuda, cuda:1, mps or auto")


def input_device(model: Any) -> torch.device:
    """Return the device of a model's tokens and logits: the first one of a model that is spread."""
    device_map = getattr(model, "hf_device_map", None)
    if device_map is None:
        return model.device
    return torch.device(next((place for place in device_map.values() if place not in ("cpu", "disk")), "cpu"))


def accelerators(model: torch.nn.Module) -> list[torch.device]:
    """Return the devices of a model with memory of their own."""
    devices = dict.fromkeys(parameter.device for parameter in model.parameters())
    return [device for device in devices if device.type not in ("cpu", "meta")]


def device_label(name: str) -> str:
    """Return the name of a device, with its model name if torch knows it."""
    if name == AUTO or torch.device(name).type != "cuda":
        return name
    return f"{name}, {torch.cuda.get_device_name(name)}"
