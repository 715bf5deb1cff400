"""The processes that train one model together: who has which rows, what they add up, and who reads, writes and speaks.

One process alone is `Ranks`, whose methods give back what they were given. `torchrun` starts several: `Several` holds
each to the rows of one and the same batch, replicates the model (DDP) or shards it (FSDP2), and lets the first rank
alone touch the run's folder. Every method that talks to the others is called by all of them, in the same order.
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

from posenc.foreign import quoted

T = TypeVar("T")

PARALLEL = ("ddp", "fsdp")
LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process."""


@dataclass(frozen=True)
class Ranks:
    """One process, which has every row and the whole model."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether it is this process that reads, writes and speaks."""
        return self.rank == 0

    def parts(self, rows: int, accumulation: int) -> list[slice]:
        """The rows of a batch that go through this process's model, in so many parts, one after another."""
        count = self.size * accumulation
        ends = [rows * part // count for part in range(count + 1)]
        mine = range(self.rank * accumulation, (self.rank + 1) * accumulation)
        return [slice(ends[part], ends[part + 1]) for part in mine]

    def device(self, name: str) -> str:
        """The device of this process, where all are given one name."""
        return name

    def distributed(self, model: nn.Module, blocks: Sequence[nn.Module], device: str) -> nn.Module:
        """The model on its device, as this process holds it.

        blocks  the parts of it that are computed one after another
        """
        return model.to(device)

    def called(self, model: nn.Module) -> nn.Module:
        """What a training step calls, whose gradients are those of all rows."""
        return model

    def without_exchange(self, called: Any) -> AbstractContextManager[Any]:
        """A block in which gradients need not be exchanged, because a later part of the batch will do it."""
        return nullcontext()

    def total(self, number: float) -> float:
        """The sum over all ranks."""
        return number

    def agreed(self, value: T) -> T:
        """What the first rank says."""
        return value

    def same(self, what: str, value: object) -> None:
        """Raises ValueError where a rank has something else than the first."""

    def whole(self, held: Tensor) -> Tensor:
        """All of a tensor of which each rank may hold a shard."""
        return held

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """The shard of a full tensor, held like `like`; rank 0 has the values, others an empty tensor of its shape."""
        return whole


ALONE = Ranks()


@dataclass(frozen=True)
class Several(Ranks):
    """One of several processes.

    parallel  "ddp" or None: each holds the whole model; "fsdp": each a shard of it
    """

    parallel: str | None = None

    def device(self, name: str) -> str:
        return f"cuda:{os.environ['LOCAL_RANK']}" if name == "cuda" else name

    def distributed(self, model: nn.Module, blocks: Sequence[nn.Module], device: str) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if self.parallel != "fsdp":
            return model.to(device)
        # Each module goes to the device when it is sharded, and no earlier: all of it need not fit.
        mesh = init_device_mesh(torch.device(device).type, (self.size,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def called(self, model: nn.Module) -> nn.Module:
        from torch.distributed.fsdp import FSDPModule
        from torch.nn.parallel import DistributedDataParallel

        return model if isinstance(model, FSDPModule) else DistributedDataParallel(model)

    def without_exchange(self, called: Any) -> AbstractContextManager[Any]:
        called = getattr(called, "_orig_mod", called)
        # Shards exchange theirs each time: whole gradients are what there is no room for.
        return called.no_sync() if hasattr(called, "no_sync") else nullcontext()

    def total(self, number: float) -> float:
        summed = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(summed)
        return float(summed)

    def agreed(self, value: T) -> T:
        said = [value]
        dist.broadcast_object_list(said, 0)
        return said[0]

    def same(self, what: str, value: object) -> None:
        others: list[Any] = [None] * self.size
        dist.all_gather_object(others, value)
        for rank, other in enumerate(others):
            if other != others[0]:
                raise ValueError(
                    f"rank {rank} has another {what} than rank 0 ({quoted(other, 60)}, not {quoted(others[0], 60)}); "
                    f"all of them need the same files and the same Python"
                )

    def whole(self, held: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return held.full_tensor() if isinstance(held, DTensor) else held

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        whole = whole.to(like.device)
        if isinstance(like, DTensor) and like.shape == whole.shape:
            return distribute_tensor(whole, like.device_mesh, like.placements)
        dist.broadcast(whole, 0)
        return whole


@contextmanager
def joined(parallel: str | None = None, device: str = "cpu") -> Generator[Ranks]:
    """The ranks that this process is one of, for as long as the block lasts: those that torchrun started, or itself.

    parallel  as in Several
    device    where the model will be: GPUs exchange among themselves

    Whatever ends one of them in the block ends all, and only the first that fails goes on raising; in the others it is
    SystemExit. A rank that was killed is told of by those that miss it, as a RuntimeError.

    Raises ValueError for another word, or one that is said to a single process.
    """
    if parallel is not None and parallel not in PARALLEL:
        raise ValueError(f"parallel must be {' or '.join(PARALLEL)}, got {quoted(parallel)}")
    if not all(name in os.environ for name in LAUNCHED):
        if parallel is not None:
            wrong = f"parallel={parallel} is for several processes, and this is one"
            raise ValueError(f"{wrong}; start them with torchrun --nproc-per-node 2 -m posenc train ...")
        yield ALONE
        return
    if not dist.is_available():
        raise ValueError("this torch is built without torch.distributed; train in one process, or install another")
    on_gpus = torch.device(device).type == "cuda"
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    store, rank, size = next(iter(dist.rendezvous("env://")))
    # torchrun keeps one store through its restarts, with the addresses of processes that are gone.
    store = dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        with warnings.catch_warnings():
            # Nothing of ours writes into what a model gives.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            ranks = Several(rank, size, parallel)
            # None fails before all are here, and can be told of it.
            ranks.agreed(None)
            yield ranks
            # None leaves before all are done.
            ranks.agreed(None)
        dist.destroy_process_group()
    except BaseException as error:
        # Where nobody can say whether another has failed before this one, this one speaks.
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
    """Whether an error is what the backends say when another rank is gone."""
    words = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Socket")
    return isinstance(error, RuntimeError) and (
        isinstance(error, dist.DistError) or any(word in str(error) for word in words)
    )
