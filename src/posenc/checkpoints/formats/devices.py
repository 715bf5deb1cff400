"""Where a model computes: which devices there are, and which one takes its tokens."""

import importlib.util
from typing import Any

import torch

from posenc import checks

AUTO = "auto"
"""A model spread over what there is: GPUs first, then the memory of the machine, then its disk."""


def check_device(name: str) -> None:
    """Raises ValueError for a device that is none, or that is not there."""
    if name == AUTO:
        if importlib.util.find_spec("accelerate") is None:
            raise ValueError(
                "--device auto spreads a model by accelerate, which is not installed; `pip install 'posenc[hf]'`, or "
                "name one device"
            )
        return
    checks.device(name, "cpu, cuda, cuda:1, mps or auto")


def first_of(model: Any) -> torch.device:
    """The device that takes a model's tokens and gives its logits: of one that is spread, where it begins."""
    spread = getattr(model, "hf_device_map", None)
    if spread is None:
        return model.device
    return torch.device(next((place for place in spread.values() if place not in ("cpu", "disk")), "cpu"))


def accelerators_of(model: Any) -> list[torch.device]:
    """The devices of a model whose memory is not that of the machine."""
    found = dict.fromkeys(parameter.device for parameter in model.parameters())
    return [device for device in found if device.type not in ("cpu", "meta")]


def device_in_words(name: str) -> str:
    """A device with what it is called by who made it, where torch knows that."""
    if name == AUTO or torch.device(name).type != "cuda":
        return name
    return f"{name}, {torch.cuda.get_device_name(name)}"
