"""Checks whether PyTorch is tracing, transforming or recomputing the current operations."""

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.torch_version import TorchVersion
from torch.utils._device import DeviceContext

COMPILES_LAYERS = TorchVersion(torch.__version__) >= "2.9"
"""Whether torch.compile compiles whole layers; older versions compile encodings alone."""


def refuse_to_compile() -> NoReturn:
    """Raise RuntimeError during compilation, where no graph break can hide it."""
    raise RuntimeError(
        f"torch.compile needs torch 2.9 or newer for posenc's layers, got {torch.__version__}; leave torch.compile "
        f"out, or install a newer torch"
    )


# This is what torch.compiler.assume_constant_result does; calling it would import the whole compiler.
vars(refuse_to_compile)["_dynamo_marked_constant"] = True


def is_exporting() -> bool:
    """Whether torch.export is running; False before torch 2.7, which cannot tell."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def is_watched() -> bool:
    """Whether a mode, transform or tracer intercepts operations, so that a cached tensor would be foreign to it.

    Function modes, dispatch modes, functional transforms and tracers intercept; a device context does not. Callers do
    not ask under torch.compile, which handles cached tensors itself.
    """
    modes = torch._C._len_torch_function_stack()
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
        or (modes and any(type(torch._C._get_function_stack_at(n)) is not DeviceContext for n in range(modes)))
    )


def is_transformed() -> bool:
    """Whether torch.func, forward-mode differentiation or torch.jit.trace transforms the operations.

    PyTorch's fused operators support some of them, and custom autograd functions support none.
    """
    tracing = torch._C._get_tracing_state() is not None
    return tracing or forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def is_traced() -> bool:
    """Whether operators are traced into a graph (make_fx, torch.export), or run on fake tensors.

    A trace would bake in values read from data, and lose custom backward passes.
    """
    if not torch._C._len_torch_dispatch_stack():
        return False
    modes = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in (modes.PROXY, modes.FAKE))


def is_recomputed() -> bool:
    """Whether this forward pass may be recomputed, or is the recomputation (activation checkpointing).

    Results shared between layers would then be missing, or belong to a freed graph.
    """
    if not torch.is_grad_enabled():
        return False
    # Before torch 2.8 there is no such function, and the answer is unknown.
    hooks = getattr(vars(torch._C)["_autograd"], "_top_saved_tensors_default_hooks", None)
    return hooks is None or hooks(True) is not None or torch._C._current_graph_task_id() != -1


def may_be_read(*tensors: Tensor) -> bool:
    """Whether the values of these tensors can be read: they are real tensors and nothing traces the read."""
    if torch.compiler.is_compiling() or is_watched():
        return False
    for x in tensors:
        if x.is_meta or not x.numel() or type(x) not in (Tensor, nn.Parameter):
            return False
    return True


def assert_on_gpu(x: Tensor, condition: Callable[[], Tensor], message: str) -> bool:
    """Assert on the GPU that `condition()` is true everywhere; return False if x is not on a GPU.

    Reading the values on the CPU would synchronise every pass, and break the capture of a CUDA graph.
    """
    if not (x.is_cuda or x.is_meta):
        return False
    torch._assert_async(condition().all(), message)
    return True
