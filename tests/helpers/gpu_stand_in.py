"""A stand-in for a GPU: tensors of the meta device, and stand-ins for its kernels that record their inputs."""

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.attention.flex_attention as torchs
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo import trace_rules
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.kernels import flex
from posenc.kernels.rotation import rotate_pairs, rotate_pairs_triton


class KernelCall(NamedTuple):
    """One call of a kernel: its name, the dtypes of queries, keys and values, and its other tensors."""

    kernel: str
    dtypes: set[torch.dtype]
    other_inputs: list[tuple[torch.Size, torch.dtype]]


class FusedKernel(torch.autograd.Function):
    """A kernel that saves its inputs for backward, and makes no attention matrix in either pass."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        q, _, v, *_ = inputs
        return q.new_empty((*q.shape[:-1], v.shape[-1]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(torch.empty_like(x) if x.is_floating_point() else None for x in ctx.saved_tensors)


def closure_tensors(function: Any) -> list[Tensor]:
    """Return the tensors of a closure, and of the closures in it."""
    if isinstance(function, Tensor):
        return [function]
    parts = [cell.cell_contents for cell in function.__closure__ or ()] if isinstance(function, FunctionType) else []
    parts = list(function) if isinstance(function, (list, tuple)) else parts
    return list({id(x): x for part in parts for x in closure_tensors(part)}.values())


class MemoryMeter(TorchDispatchMode):
    """Count the peak bytes of living tensors, the numbers of the largest tensor, and the operators.

    It also records operators with a CPU tensor: its copy would wait for the GPU, and stop the capture of a CUDA graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.living: list[tuple[StorageWeakRef, int]] = []
        self.from_cpu: list[str] = []
        self.peak = self.largest = self.operators = 0

    def __torch_dispatch__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        self.operators += 1
        # A 0-dimensional tensor is passed by value with the kernel's launch.
        if any(isinstance(x, Tensor) and x.is_cpu and x.dim() for x in leaves):
            self.from_cpu.append(f"{func} of {[x.shape for x in leaves if isinstance(x, Tensor)]}")
        self.living = [(storage, size) for storage, size in self.living if not storage.expired()]
        living_storages = {storage.cdata for storage, _ in self.living}
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in living_storages:
                self.living.append((StorageWeakRef(x.untyped_storage()), x.untyped_storage().nbytes()))
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
        self.peak = max(self.peak, sum(size for _, size in self.living))
        return out


def install_gpu_stand_in(monkeypatch: pytest.MonkeyPatch) -> list[KernelCall]:
    """Let posenc treat meta tensors as a GPU's, and return the list that records kernel calls."""
    calls: list[KernelCall] = []
    # The compiler looks functions up once in a process; do it before they are replaced.
    trace_rules.get_torch_obj_rule_map()

    def note(kernel: str, q: Tensor, k: Tensor, v: Tensor, other_inputs: list[Tensor]) -> Tensor:
        calls.append(KernelCall(kernel, {q.dtype, k.dtype, v.dtype}, [(x.shape, x.dtype) for x in other_inputs]))
        return FusedKernel.apply(q, k, v, *other_inputs)

    def sdpa(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        return note("sdpa", q, k, v, [] if attn_mask is None else [attn_mask])

    def attend(q: Tensor, k: Tensor, v: Tensor, score_mod: Any = None, block_mask: Any = None, **options: Any) -> Any:
        out = note("flex", q, k, v, closure_tensors([score_mod, block_mask]))
        return out if options.get("return_aux") is None else (out, torchs.AuxOutput(lse=out[..., 0].float()))

    def rotate_into(out: Tensor, x: Tensor, cos: Tensor, *_: Any, **options: Any) -> Tensor:
        calls.append(KernelCall("triton", {x.dtype}, [(cos.shape, cos.dtype)]))
        return out

    def tensor(data: Any, *, device: Any = None, build: Callable[..., Tensor] = torch.tensor, **options: Any) -> Tensor:
        assert device is None or torch.device(device).type == "cpu", f"{data} is copied from the CPU"
        return build(data, device=device, **options)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(F, "scaled_dot_product_attention", sdpa)
    monkeypatch.setattr(flex, "flex_attention", lambda device, name: attend)
    # The stand-in for a block mask is the mask's closure, with its tensors.
    monkeypatch.setattr(torchs, "create_block_mask", lambda rule, *sizes, **options: rule)
    monkeypatch.setattr(rotate_pairs, "triton_serves", lambda: True)
    monkeypatch.setattr(rotate_pairs_triton, "rotate_into", rotate_into)
    # Reading a number would make the CPU wait for the GPU; meta tensors have none to read.
    replacements = {"device_of": lambda x: "cuda", "is_watched": lambda: False, "may_be_read": lambda *tensors: True}
    for module in [module for name, module in sys.modules.items() if name.startswith("posenc.")]:
        for name, stands in replacements.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stands)
    return calls
