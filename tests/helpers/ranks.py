"""Run a function in several processes of this machine that form a group of ranks.

How to use it: `run_on_ranks(2, work, tmp_path, ...)` calls `work(rank, ...)` in two processes of one gloo group, and
raises the error of a rank. All ranks end when one does, and none waits longer than a minute for another.
"""

import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes


def run_on_ranks(ranks: int, work: Callable[..., None], folder: Path, *arguments: Any) -> None:
    arguments = (ranks, str(folder / f"store of {work.__name__}"), work, arguments)
    with warnings.catch_warnings():
        # Python warns of threads; those of the suite only wait for pipes, and no rank runs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        # A forked rank does not import torch again, which takes longer than most functions.
        start_processes(run_rank, arguments, nprocs=ranks, start_method="fork" if sys.platform == "linux" else "spawn")


def run_rank(rank: int, ranks: int, store: str, work: Callable[..., None], arguments: tuple) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit)
    try:
        work(rank, *arguments)
    finally:
        dist.destroy_process_group()


def refusal(act: Callable[[], Any]) -> str:
    """Return the message of the ValueError that `act` raises."""
    try:
        act()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def assert_near(actual: dict[str, Tensor], expected: dict[str, Tensor], atol: float, label: str) -> None:
    """Assert equal names, and tensors equal up to `atol` times their largest number (at least 1)."""
    assert actual.keys() == expected.keys(), f"{label}: {actual.keys() ^ expected.keys()}"
    for name, x in expected.items():
        bound = atol * max(1.0, x.abs().max().item())
        error = (actual[name] - x).abs().max().item()
        assert error <= bound, f"{label}: {name} is off by {error:.3g}, more than {bound:.3g}"
