"""Distributed training of one model: rows of a batch, collectives, and the rank that reads, writes and prints.

One process is `Ranks`, whose collectives return their arguments. `torchrun` starts several: `DistributedRanks` splits
the rows of one batch among them, replicates the model (DDP) or shards it (FSDP2), and only rank 0 touches the run's
folder. All ranks call each collective, in the same order.
"""

import os
import warnings
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posenc.foreign import quote

T = TypeVar("T")

PARALLEL = ("ddp", "fsdp")
TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The environment variables that torchrun sets for each process."""


@dataclass(frozen=True)
class Ranks:
    """A single process with every row and the whole model."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which reads, writes and prints."""
        return self.rank == 0

    def parts(self, rows: int, accumulation: int) -> list[slice]:
        """This rank's rows of a batch, in `accumulation` parts."""
        count = self.size * accumulation
        ends = [rows * part // count for part in range(count + 1)]
        part_numbers = range(self.rank * accumulation, (self.rank + 1) * accumulation)
        return [slice(ends[part], ends[part + 1]) for part in part_numbers]

    def device(self, name: str) -> str:
        """The device of this rank; cuda becomes cuda:LOCAL_RANK."""
        return name

    def distribute(self, model: nn.Module, blocks: Sequence[nn.Module], device: str) -> nn.Module:
        """Return the model on its device, sharded if this is FSDP; `blocks` are sharded one by one."""
        return model.to(device)

    def training_module(self, model: nn.Module) -> nn.Module:
        """The module that a training step calls, whose gradients cover all rows."""
        return model

    def no_sync(self, module: Any) -> AbstractContextManager[Any]:
        """A context without gradient exchange, for all parts of a batch but the last."""
        return nullcontext()

    def total(self, number: float) -> float:
        """The sum of a number over all ranks."""
        return number

    def broadcast(self, value: T) -> T:
        """The value of rank 0."""
        return value

    def check_same(self, name: str, value: object) -> None:
        """Raise ValueError where a rank has another value than rank 0."""

    def gather(self, tensor: Tensor) -> Tensor:
        """The full tensor, gathered from the shards of all ranks."""
        return tensor

    def shard(self, whole: Tensor, template: Tensor) -> Tensor:
        """Shard a full tensor like `template`. Rank 0 passes the values, the others an empty tensor of that shape."""
        return whole


SOLO = Ranks()


@dataclass(frozen=True)
class DistributedRanks(Ranks):
    """One of several processes.

    parallel  "ddp" or None: each rank holds the whole model; "fsdp": a shard of it
    """

    parallel: str | None = None

    def device(self, name: str) -> str:
        return f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" else name

    def distribute(self, model: nn.Module, blocks: Sequence[nn.Module], device: str) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if self.parallel != "fsdp":
            return model.to(device)
        # Each module moves to the device when it is sharded: the whole model need not fit there.
        mesh = init_device_mesh(torch.device(device).type, (self.size,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def training_module(self, model: nn.Module) -> nn.Module:
        from torch.distributed.fsdp import FSDPModule
        from torch.nn.parallel import DistributedDataParallel

        return model if isinstance(model, FSDPModule) else DistributedDataParallel(model)

    def no_sync(self, module: Any) -> AbstractContextManager[Any]:
        module = getattr(module, "_orig_mod", module)
        # FSDP exchanges gradients for every part: there is no memory for the full ones.
        return module.no_sync() if hasattr(module, "no_sync") else nullcontext()

    def total(self, number: float) -> float:
        tensor = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(tensor)
        return float(tensor)

    def broadcast(self, value: T) -> T:
        values = [value]
        dist.broadcast_object_list(values, 0)
        return values[0]

    def check_same(self, name: str, value: object) -> None:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        for rank, item in enumerate(values):
            if item != values[0]:
                raise ValueError(
                    f"rank {rank} has another {name} than rank 0 ({quote(item, 60)}, not {quote(values[0], 60)}); "
                    f"all of them need the same files and the same Python"
                )

    def gather(self, tensor: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def shard(self, whole: Tensor, template: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        whole = whole.to(template.device)
        if isinstance(template, DTensor) and template.shape == whole.shape:
            return distribute_tensor(whole, template.device_mesh, template.placements)
        dist.broadcast(whole, 0)
        return whole


@contextmanager
def join_ranks(parallel: str | None = None, device: str = "cpu") -> Generator[Ranks]:
    """Join the process group that torchrun started, for the block; without torchrun, yield SINGLE_PROCESS.

    parallel  as in DistributedRanks
    device    of the model: GPUs use NCCL

    An error in one rank ends all ranks: the first that fails raises it, the others SystemExit. Where a rank was killed,
    the others raise RuntimeError.

    Raises ValueError for an unknown `parallel`, and for any in a single process.
    """
    if parallel is not None and parallel not in PARALLEL:
        raise ValueError(f"parallel must be {' or '.join(PARALLEL)}, got {quote(parallel)}")
    if not all(name in os.environ for name in TORCHRUN_VARIABLES):
        if parallel is not None:
            wrong = f"parallel={parallel} is for several processes, and this is one"
            raise ValueError(f"{wrong}; start them with torchrun --nproc-per-node 2 -m posenc train ...")
        yield SOLO
        return
    if not dist.is_available():
        raise ValueError("this torch is built without torch.distributed; train in one process, or install another")
    on_gpus = torch.device(device).type == "cuda"
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    store, rank, size = next(iter(dist.rendezvous("env://")))
    # torchrun keeps one store through its restarts, with the addresses of dead processes.
    store = dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        with warnings.catch_warnings():
            # posenc never writes into a model's output.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            ranks = DistributedRanks(rank, size, parallel)
            # A barrier: no rank fails before all have joined.
            ranks.broadcast(None)
            yield ranks
            # A barrier: no rank leaves before all are done.
            ranks.broadcast(None)
        dist.destroy_process_group()
    except BaseException as error:
        # If the store is gone too, this rank raises its own error.
        with suppress(Exception):
            if store.add("failed", 1) > 1:
                raise SystemExit(1) from None
        if is_lost(error):
            raise RuntimeError(
                "another process of this training has ended in the middle of it; what was finished is kept, give the "
                "same command again"
            ) from None
        raise


def is_lost(error: BaseException) -> bool:
    """Whether an error is a backend's message that another rank has ended."""
    words = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Socket")
    return isinstance(error, RuntimeError) and (
        isinstance(error, dist.DistError) or any(word in str(error) for word in words)
    )
