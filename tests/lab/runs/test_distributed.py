"""Training on two processes, each with half of the batch, gives the gradients of one process with all of it."""

import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from posenc import Decoder, catalogue

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed training")


def model(spec: str) -> Decoder:
    torch.manual_seed(0)
    made = Decoder(11, dim=16, heads=2, layers=2, encoding=spec, max_len=32).double()
    with torch.no_grad():
        for parameter in made.stack.encodings.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def slopes(made: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    made(ids).square().sum().backward()
    found = {name: p.grad for name, p in made.named_parameters() if p.grad is not None}
    whole = {name: slope.full_tensor() if isinstance(slope, DTensor) else slope for name, slope in found.items()}
    return {name.removeprefix("module."): slope for name, slope in whole.items() if bool(slope.any())}


def wrapped_by_data(made: Decoder) -> nn.Module:
    return DistributedDataParallel(made, find_unused_parameters=True)


def sharded(made: Decoder) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for block in made.stack.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def work(rank: int, specs: list[str]) -> None:
    # What a rank returns might be written into, and is not.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    ids = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(3))
    for spec in specs:
        expected = slopes(model(spec), ids)
        for wrap in (wrapped_by_data, sharded):
            got = slopes(wrap(model(spec)), ids[2 * rank : 2 * rank + 2])
            assert got.keys() == expected.keys(), f"{spec}, {wrap.__name__}"
            for name, slope in expected.items():
                # What the two found is averaged, and a loss that is a sum is added up.
                torch.testing.assert_close(2 * got[name], slope, rtol=0, atol=1e-9, msg=f"{spec}, {name}")


def test_two_processes_find_the_gradients_of_one(tmp_path) -> None:
    on_ranks(2, work, tmp_path, ["rotary", "learned + kerple"])


@pytest.mark.slow
def test_two_processes_find_the_gradients_of_one_with_every_encoding(tmp_path) -> None:
    specs = [name for name in catalogue.names() if all(one.axes < 2 for one in model(name).stack.encodings)]
    on_ranks(2, work, tmp_path, [*specs, "alibi(learned=True)", "rotary + forgetting"])
