"""Who follows what PyTorch computes: recorders, profilers, tracers and transforms, each way in named once."""

from collections.abc import Callable
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.torch_version import TorchVersion
from torch.utils._device import DeviceContext

COMPILES = TorchVersion(torch.__version__) >= "2.9"
"""Whether torch.compile takes layers as they are written; older ones take encodings alone."""


def refuse_to_compile() -> NoReturn:
    """Raises RuntimeError, while a graph is made: no graph break hides it."""
    raise RuntimeError(
        f"torch.compile takes posenc's layers from torch 2.9 on, got {torch.__version__}; leave torch.compile out, or "
        f"install a newer torch"
    )


# As torch.compiler.assume_constant_result does, which imports the whole compiler.
vars(refuse_to_compile)["_dynamo_marked_constant"] = True


def is_exporting() -> bool:
    """Whether torch.export makes a graph; before torch 2.7 nothing tells."""
    return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()


def is_watched() -> bool:
    """Whether somebody follows what PyTorch computes, so that a tensor from elsewhere would surprise them.

    Modes for functions and operators, functional transforms and tracers do. A device context only says where new
    tensors lie. Not asked while a graph is compiled, which keeps by itself what others hold.
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
    """Whether torch.func, forward-mode differentiation or torch.jit.trace makes something else of what is written down.

    PyTorch's fused operators do not follow them all, and functions with a backward pass of their own follow none.
    """
    tracing = torch._C._get_tracing_state() is not None
    return tracing or forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def is_written_down() -> bool:
    """Whether operators are written down as a graph (make_fx, torch.export), or run without numbers (fake tensors).

    What were read of the data, and a number of blocks, would be the trace's own; and what a function with a backward
    pass of its own does would be written down without that pass.
    """
    if not torch._C._len_torch_dispatch_stack():
        return False
    modes = torch._C._TorchDispatchModeKey
    return any(torch._C._get_dispatch_mode(mode) is not None for mode in (modes.PROXY, modes.FAKE))


def is_recomputed() -> bool:
    """Whether what runs now may run a second time to go backward, or is that second time (activation checkpointing).

    What one layer computed for the others would then be missing, or belong to a graph that is used up.
    """
    if not torch.is_grad_enabled():
        return False
    # Before torch 2.8 nothing tells.
    hooks = getattr(vars(torch._C)["_autograd"], "_top_saved_tensors_default_hooks", None)
    return hooks is None or hooks(True) is not None or torch._C._current_graph_task_id() != -1


def may_be_read(*tensors: Tensor) -> bool:
    """Whether the numbers in these tensors may be looked at: they have some, and nobody follows the looking."""
    if torch.compiler.is_compiling() or is_watched():
        return False
    for x in tensors:
        if x.is_meta or not x.numel() or type(x) not in (Tensor, nn.Parameter):
            return False
    return True


def gpu_checks(x: Tensor, holds: Callable[[], Tensor], words: str) -> bool:
    """Whether x lies on a GPU, which then stops the program with these words unless all that `holds` gives is true.

    To read it would keep the CPU waiting for the GPU in every pass, and stop the capture of a graph.
    """
    if not (x.is_cuda or x.is_meta):
        return False
    torch._assert_async(holds().all(), words)
    return True
