"""What a pass costs: foreseen, to tell how long is left, and metered."""

import ctypes
import gc
import os
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


LARGE = 4 << 20
"""Bytes of a block that goes back: the keys of a layer are as many, in a long text, and what layers pass on is not."""

M_MMAP_THRESHOLD = -3
"""What glibc calls this setting of its allocator."""


def without_holes() -> None:
    """For a command, which has its process to itself: memory that is freed serves blocks of any size.

    Keys that grow by being copied leave holes among them. By itself glibc learns from the largest block that it saw to
    keep such blocks, and does not give them back to the system; PyTorch keeps blocks of a GPU as they were cut. Of
    other allocators nothing is asked, and what the environment says of PyTorch's stands.
    """
    if Path("/proc/self").exists() and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, LARGE)
    said = any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    if torch.cuda.is_available() and not said:
        # PyTorch reads those when it is imported; later this is the one way.
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


class Meter:
    """Time and memory of what is done inside: wall and CPU seconds, and the peak of the process's memory (MiB).

    devices  GPUs, whose own memory is read then, of all of them together
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices = devices

    def __enter__(self) -> "Meter":
        for device in self.devices:
            torch.accelerator.reset_peak_memory_stats(device)
        # Models and what was found out about them hold one another, and go only when somebody looks for them.
        gc.collect()
        clear = Path("/proc/self/clear_refs")
        self.sees_peaks = clear.exists()
        if self.sees_peaks:
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                # What an earlier pass has freed is not this one's.
                trim(0)
            # Writing 5 sets the peak back to what is held now.
            clear.write_text("5")
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        self.peak_mib = None
        if self.devices:
            self.peak_mib = sum(map(torch.accelerator.max_memory_allocated, self.devices)) / 2**20
        elif self.sees_peaks:
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            self.peak_mib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
