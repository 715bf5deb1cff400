"""A GPU that is not there: tensors without numbers, and stand-ins for its kernels, which record what they are given."""

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


class Served(NamedTuple):
    """One call of a kernel: which, the dtypes of queries, keys and values, and what tensors were given beside them."""

    kernel: str
    dtypes: set[torch.dtype]
    beside: list[tuple[torch.Size, torch.dtype]]


class Fused(torch.autograd.Function):
    """A kernel that keeps what it is given for its backward pass, and makes no matrix of pairs in either."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        ctx.save_for_backward(*given)
        q, _, v, *_ = given
        return q.new_empty((*q.shape[:-1], v.shape[-1]))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(torch.empty_like(x) if x.is_floating_point() else None for x in ctx.saved_tensors)


def tensors_in(function: Any) -> list[Tensor]:
    """The tensors that a closure holds, through the closures that it holds."""
    if isinstance(function, Tensor):
        return [function]
    inside = [cell.cell_contents for cell in function.__closure__ or ()] if isinstance(function, FunctionType) else []
    inside = list(function) if isinstance(function, (list, tuple)) else inside
    return list({id(x): x for part in inside for x in tensors_in(part)}.values())


class Memory(TorchDispatchMode):
    """Counts the bytes of all tensors that live at once, the numbers of the largest one made, and the operators.

    Notes which read a tensor of the CPU: its copy would wait for the GPU, and stop the capture of a graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.living: list[tuple[StorageWeakRef, int]] = []
        self.from_cpu: list[str] = []
        self.peak = self.largest = self.operators = 0

    def __torch_dispatch__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = torch.utils._pytree.tree_leaves((args, kwargs))
        self.operators += 1
        # A number without axes goes along with the call of a kernel.
        if any(isinstance(x, Tensor) and x.is_cpu and x.dim() for x in given):
            self.from_cpu.append(f"{func} of {[x.shape for x in given if isinstance(x, Tensor)]}")
        self.living = [(storage, size) for storage, size in self.living if not storage.expired()]
        known = {storage.cdata for storage, _ in self.living}
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in known:
                self.living.append((StorageWeakRef(x.untyped_storage()), x.untyped_storage().nbytes()))
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
        self.peak = max(self.peak, sum(size for _, size in self.living))
        return out


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """Have tensors of the meta device computed with as a GPU's; what its kernels are given is noted."""
    calls: list[Served] = []
    # The compiler looks functions up once in a process: before others stand in for them.
    trace_rules.get_torch_obj_rule_map()

    def note(kernel: str, q: Tensor, k: Tensor, v: Tensor, beside: list[Tensor]) -> Tensor:
        calls.append(Served(kernel, {q.dtype, k.dtype, v.dtype}, [(x.shape, x.dtype) for x in beside]))
        return Fused.apply(q, k, v, *beside)

    def sdpa(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        return note("sdpa", q, k, v, [] if attn_mask is None else [attn_mask])

    def fused(q: Tensor, k: Tensor, v: Tensor, score_mod: Any = None, block_mask: Any = None, **options: Any) -> Any:
        out = note("flex", q, k, v, tensors_in([score_mod, block_mask]))
        return out if options.get("return_aux") is None else (out, torchs.AuxOutput(lse=out[..., 0].float()))

    def rotate_into(out: Tensor, x: Tensor, cos: Tensor, *_: Any, **options: Any) -> Tensor:
        calls.append(Served("triton", {x.dtype}, [(cos.shape, cos.dtype)]))
        return out

    def tensor(data: Any, *, device: Any = None, made: Callable[..., Tensor] = torch.tensor, **options: Any) -> Tensor:
        assert device is None or torch.device(device).type == "cpu", f"{data} is copied from the CPU"
        return made(data, device=device, **options)

    monkeypatch.setattr(torch, "tensor", tensor)
    monkeypatch.setattr(F, "scaled_dot_product_attention", sdpa)
    monkeypatch.setattr(flex, "flex_attention", lambda device, name: fused)
    # A mask in blocks is made of the closure: the stand-in keeps that.
    monkeypatch.setattr(torchs, "create_block_mask", lambda rule, *sizes, **options: rule)
    monkeypatch.setattr(rotate_pairs, "triton_serves", lambda: True)
    monkeypatch.setattr(rotate_pairs_triton, "rotate_into", rotate_into)
    # A number that is read would keep the CPU waiting for a GPU: of these tensors none can be.
    others = {"device_of": lambda x: "cuda", "is_watched": lambda: False, "may_be_read": lambda *tensors: True}
    for module in [module for name, module in sys.modules.items() if name.startswith("posenc.")]:
        for name, stands in others.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stands)
    return calls
