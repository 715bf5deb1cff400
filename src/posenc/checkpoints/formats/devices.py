"""Where a model computes: which devices there are, which one takes its tokens, and how much memory is at hand."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import torch

from posenc.foreign import quoted

AUTO = "auto"
"""A model spread over what there is: GPUs first, then the memory of the machine, then its disk."""

MEMINFO = Path("/proc/meminfo")
"""Where Linux says how much memory is free."""

UNITS = {"MB": 10**6, "GB": 10**9, "MiB": 1 << 20, "GiB": 1 << 30}


def check_device(name: str) -> None:
    """Raises ValueError for a device that is none, or that is not there."""
    if name == AUTO:
        if importlib.util.find_spec("accelerate") is None:
            raise ValueError(
                "--device auto spreads a model by accelerate, which is not installed; `pip install 'posenc[hf]'`, or "
                "name one device"
            )
        return
    try:
        asked = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device must be cpu, cuda, cuda:1, mps or auto, got {quoted(name)}") from None
    if asked.type == "cpu":
        return
    there = torch.accelerator.current_accelerator(check_available=True)
    if there is None or there.type != asked.type:
        raise ValueError(
            f"{asked.type} was asked for and torch {torch.__version__} sees none; give --device cpu, or install a "
            f"torch that is built for it"
        )
    if (count := torch.accelerator.device_count()) <= (asked.index or 0):
        raise ValueError(f"{name} was asked for and torch sees {there.type}:0 to {there.type}:{count - 1}")


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


def at_hand(name: str) -> int | None:
    """The bytes that are free on a device, or on all of them for `auto`; None where it is not known."""
    if name == AUTO:
        count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
        own = [torch.accelerator.get_memory_info(index)[0] for index in range(count)]
        return sum(own) + (at_hand("cpu") or 0)
    device = torch.device(name)
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    if device.type != "cpu":
        return torch.accelerator.get_memory_info(device)[0]
    if not MEMINFO.exists():
        return None
    found = re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text(encoding="utf-8"))
    return int(found[1]) * 1024 if found else None


def bytes_of(said: str) -> int:
    """How many bytes "24GB" or "16GiB" are; raises ValueError for anything else.

    >>> bytes_of("24GB"), bytes_of("1.5 GiB")
    (24000000000, 1610612736)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(MB|GB|MiB|GiB)", said)
    if found is None or not float(found[1]):
        raise ValueError(f"--memory takes a number and a unit, {', '.join(UNITS)}, such as 24GB; got {quoted(said)}")
    return round(float(found[1]) * UNITS[found[2]])
