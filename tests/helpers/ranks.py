"""Work of several processes on this machine that make up a group of ranks, each with its share.

How to use it: `on_ranks(2, work, tmp_path, ...)` calls `work(rank, ...)` in two processes of one gloo group, and raises
what one of them raised. All end when one does, and none waits longer than a minute for another.
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


def on_ranks(ranks: int, work: Callable[..., None], folder: Path, *given: Any) -> None:
    given = (ranks, str(folder / f"store of {work.__name__}"), work, given)
    with warnings.catch_warnings():
        # The suite's own threads wait for their pipes, and no rank runs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        # A rank that is forked does not import torch by itself, which takes longer than most works.
        start_processes(one_rank, given, nprocs=ranks, start_method="fork" if sys.platform == "linux" else "spawn")


def one_rank(rank: int, ranks: int, store: str, work: Callable[..., None], given: tuple) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=limit)
    try:
        work(rank, *given)
    finally:
        dist.destroy_process_group()


def refused(act: Callable[[], Any]) -> str:
    """What is said where something is refused."""
    try:
        act()
    except ValueError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def near(got: dict[str, Tensor], wanted: dict[str, Tensor], atol: float, what: str) -> None:
    """The same tensors, each as near as the largest number in it allows."""
    assert got.keys() == wanted.keys(), f"{what}: {got.keys() ^ wanted.keys()}"
    for name, x in wanted.items():
        bound = atol * max(1.0, x.abs().max().item())
        off = (got[name] - x).abs().max().item()
        assert off <= bound, f"{what}: {name} is off by {off:.3g}, more than {bound:.3g}"
