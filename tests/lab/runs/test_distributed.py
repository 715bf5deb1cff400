"""Two processes with half a batch each have the gradients of one process with the whole batch."""

import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from posenc import Decoder, catalogue

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed training")


def model(spec: str) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(11, dim=16, heads=2, layers=2, encoding=spec, max_len=32).double()
    with torch.no_grad():
        for parameter in decoder.stack.encodings.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return decoder


def gradients_of(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    model(ids).square().sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    whole = {name: slope.full_tensor() if isinstance(slope, DTensor) else slope for name, slope in gradients.items()}
    return {name.removeprefix("module."): slope for name, slope in whole.items() if bool(slope.any())}


def with_ddp(model: Decoder) -> nn.Module:
    return DistributedDataParallel(model, find_unused_parameters=True)


def with_fsdp(model: Decoder) -> nn.Module:
    mesh = init_device_mesh("cpu", (2,))
    for block in model.stack.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def work(rank: int, specs: list[str]) -> None:
    # A rank's output could be overwritten, and is not.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    ids = torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(3))
    for spec in specs:
        expected = gradients_of(model(spec), ids)
        for wrap in (with_ddp, with_fsdp):
            actual = gradients_of(wrap(model(spec)), ids[2 * rank : 2 * rank + 2])
            assert actual.keys() == expected.keys(), f"{spec}, {wrap.__name__}"
            for name, slope in expected.items():
                # What the two found is averaged, and a loss that is a sum is added up.
                torch.testing.assert_close(2 * actual[name], slope, rtol=0, atol=1e-9, msg=f"{spec}, {name}")


def test_two_processes_find_the_gradients_of_one(tmp_path) -> None:
    run_on_ranks(2, work, tmp_path, ["rotary", "learned + kerple"])


@pytest.mark.slow
def test_two_processes_find_the_gradients_of_one_with_every_encoding(tmp_path) -> None:
    specs = [name for name in catalogue.names() if all(encoding.axes < 2 for encoding in model(name).stack.encodings)]
    run_on_ranks(2, work, tmp_path, [*specs, "alibi(learned=True)", "rotary + forgetting"])
