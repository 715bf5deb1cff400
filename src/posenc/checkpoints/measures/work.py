"""What a pass costs: foreseen, to tell how long is left, and metered."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Work:
    """How the cost of a token grows with the tokens before it: 1 + position / even, in any unit.

    even  the position where attention over the past costs as much as everything else (tokens)
    """

    even: float

    @classmethod
    def of(cls, model: Any) -> "Work":
        """Counted in products: two for each weight, four for each layer, channel and token of the past."""
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        layers, width = getattr(config, "num_hidden_layers", 1), getattr(config, "hidden_size", 1)
        weights = sum(p.numel() for p in model.parameters())
        return cls(weights / (2 * layers * width))

    def total(self, tokens: float) -> float:
        return tokens + tokens * tokens / (2 * self.even)

    def share(self, done: int, of: int, first: int = 0) -> float:
        """How much of the work from the first token on is done."""
        return (self.total(done) - self.total(first)) / (self.total(of) - self.total(first))


class Meter:
    """Time and memory of what is done inside: wall and CPU seconds, and the most that was held (MiB).

    devices  GPUs, whose own memory is read then, of all of them together; else it is the most that the process has held
             since it began, which Linux alone says
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices = devices

    def __enter__(self) -> "Meter":
        for device in self.devices:
            torch.accelerator.reset_peak_memory_stats(device)
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        self.peak_mib = None
        if self.devices:
            self.peak_mib = sum(map(torch.accelerator.max_memory_allocated, self.devices)) / 2**20
        elif (status := Path("/proc/self/status")).exists():
            lines = status.read_text(encoding="utf-8").splitlines()
            self.peak_mib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
