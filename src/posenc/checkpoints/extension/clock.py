"""What a run says while it works and how long is left, and what a pass has cost."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from posenc.lab.results.summary import duration

Say = Callable[[str], None]


class Clock:
    """Says how far the work is and how long the rest will take, at most every few seconds.

    Work is counted in tokens that are read.
    """

    def __init__(self, say: Say, every: float = 10.0) -> None:
        self.say, self.every = say, every
        self.began = self.last = time.monotonic()
        self.total = self.done = 0.0

    def expect(self, work: float) -> None:
        self.total += work

    @contextmanager
    def during(self, words: str, work: float) -> Generator[Callable[[float], None]]:
        """What a pass of so much work tells the share of it that is done; what nobody expected is expected now."""
        self.total = max(self.total, self.done + work)

        def tell(share: float) -> None:
            now = time.monotonic()
            if now - self.last < self.every:
                return
            self.last, done = now, self.done + share * work
            left = (now - self.began) * max(self.total - done, 0.0) / done if done else 0.0
            self.say(f"{words}: {share:.0%}; about {duration(left)} left in all")

        yield tell
        self.done += work


GPU_MEMORY = torch.accelerator if hasattr(torch.accelerator, "max_memory_allocated") else torch.cuda
"""Where torch says how much a GPU held: before torch 2.9 in the module of CUDA alone."""


class Meter:
    """Time and memory of what is done inside: wall and CPU seconds, and the most that was held (MiB).

    devices  GPUs, whose own memory is read then, of all of them together; else it is the most that the process has held
             since it began, which Linux alone says
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.devices = devices

    def __enter__(self) -> "Meter":
        for device in self.devices:
            GPU_MEMORY.reset_peak_memory_stats(device)
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu
        self.peak_mib = None
        if self.devices:
            self.peak_mib = sum(map(GPU_MEMORY.max_memory_allocated, self.devices)) / 2**20
        elif (status := Path("/proc/self/status")).exists():
            lines = status.read_text(encoding="utf-8").splitlines()
            self.peak_mib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
