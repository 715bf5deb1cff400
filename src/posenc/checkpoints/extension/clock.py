"""The progress of a run and its remaining time, and the cost of a pass."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from posenc.lab.results.summary import duration

Say = Callable[[str], None]


class Clock:
    """Reports the finished share of the work (tokens read) and the remaining time, at most every few seconds."""

    def __init__(self, say: Say, interval: float = 10.0) -> None:
        self.say, self.interval = say, interval
        self.began = self.last = time.monotonic()
        self.total = self.work_done = 0.0

    def expect(self, work: float) -> None:
        self.total += work

    @contextmanager
    def track(self, words: str, work: float) -> Generator[Callable[[float], None]]:
        """Yield the progress callback of a pass; unexpected work is added to the total."""
        self.total = max(self.total, self.work_done + work)

        def tell(share: float) -> None:
            now = time.monotonic()
            if now - self.last < self.interval:
                return
            self.last, work_done = now, self.work_done + share * work
            seconds = (now - self.began) * max(self.total - work_done, 0.0) / work_done if work_done else 0.0
            self.say(f"{words}: {share:.0%}; about {duration(seconds)} left in all")

        yield tell
        self.work_done += work


GPU_MEMORY = torch.accelerator if hasattr(torch.accelerator, "max_memory_allocated") else torch.cuda
"""The module with the peak memory of a GPU: before torch 2.9 that of CUDA alone."""


class Meter:
    """The time and memory of a block of code: wall and CPU seconds, and the peak memory (MiB).

    devices  GPUs, whose summed peak is read; without any it is the peak of the process since it began, on Linux alone
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
