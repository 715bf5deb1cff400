"""Attention kernels with one signature, chosen by name, that never fall back silently."""

# Older compilers cannot read annotations of the functions that `bind` defines, unless they are text.
from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.foreign import suggestion
from posenc.kernels import cpu, flash, flex, reference, sdpa
from posenc.kernels.device import device_of
from posenc.kernels.reference import logits_on_grid, take_values
from posenc.kernels.request import Inputs, Request
from posenc.kernels.rotation import native, rotate_pairs_triton
from posenc.kernels.sinks import add_sinks
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


class Kernel(NamedTuple):
    """An implementation of attention.

    attend   (biases, q, at, keys, mask, *, scale, dropout, need_weights, sinks=None) -> (output, weights or None)
    why_not  (request) -> the reason why it cannot serve the request, or None
    """

    attend: Callable[..., tuple[Tensor, Tensor | None]]
    why_not: Callable[[Request], str | None]


KERNELS = {
    "blocked": Kernel(add_sinks(cpu.attend), cpu.why_not),
    "sdpa": Kernel(sdpa.attend, sdpa.why_not),
    "reference": Kernel(reference.attend, reference.why_not),
    "flex": Kernel(add_sinks(flex.attend), flex.why_not),
    "flash": Kernel(flash.attend, flash.why_not),
}
"""All kernels: those of "auto", fastest first, and those chosen by name only."""

AUTO = ("blocked", "sdpa", "reference")
"""The kernels of "auto" on a CPU, fastest first; sdpa comes first without a mask matrix, or with a small one."""

AUTO_ON_CUDA = ("flex", "sdpa", "reference")
"""The kernels of "auto" on CUDA, fastest first."""


def why_not(
    name: str,
    encoding: Encoding,
    *,
    need_weights: bool = False,
    dropout: float = 0.0,
    q: Tensor | None = None,
    device: str | None = None,
) -> str | None:
    """Return the reason why a kernel cannot serve this request, or None.

    device  "cpu", "cuda", ...; default: that of q, or "cpu"

    Raises ValueError for an unknown kernel.
    """
    check_name(name)
    return None if name == "auto" else KERNELS[name].why_not(request_for(encoding, need_weights, dropout, q, device))


def choose(
    name: str,
    encoding: Encoding,
    *,
    need_weights: bool = False,
    dropout: float = 0.0,
    q: Tensor | None = None,
    device: str | None = None,
) -> str:
    """Return the name of the kernel for a request: the named one, or for "auto" the fastest possible.

    device  "cpu", "cuda", ...; default: that of q, or "cpu"

    Raises ValueError with the reason if the named one cannot serve.
    """
    return serving_kernel(name, request_for(encoding, need_weights, dropout, q, device))


def request_for(
    encoding: Encoding, need_weights: bool, dropout: float, q: Tensor | None, device: str | None = None
) -> Request:
    """Return a request without the inputs of a call."""
    return Request(encoding, need_weights, dropout, q, device=device or ("cpu" if q is None else device_of(q)))


def serving_kernel(name: str, request: Request) -> str:
    """Return the name of the kernel for a request, see `choose`."""
    if name == "auto":
        if request.need_weights:
            return "reference"  # the only one that returns them
        if not request.encoding.needs_weights and sdpa.is_fastest(request) and sdpa.why_not(request) is None:
            return "sdpa"
        order = AUTO_ON_CUDA if request.device == "cuda" else AUTO
        return next(kernel for kernel in order if KERNELS[kernel].why_not(request) is None)
    check_name(name)
    reason = KERNELS[name].why_not(request)
    if reason is not None:
        raise ValueError(f"kernel '{name}' cannot do this: {reason}")
    return name


def bind(
    name: str,
    encoding: Encoding,
    *,
    scale: float,
    dropout: float = 0.0,
    need_weights: bool = False,
    served: set[str] | None = None,
    shared_biases: dict[Hashable, list[Bias]] | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> BoundKernel:
    """Return a kernel bound to the settings of one layer; the implementation is chosen at each call.

    served         if a set, collects the names of the kernels used, see `served_by`
    shared_biases  see BoundKernel, as for sinks and softcap

    Raises ValueError at the call if the named kernel cannot serve.
    """

    def attend(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, mask: Mask, **options):
        inputs = Inputs(biases, at, keys.at, mask)
        needs = "sums" in options, "sinks" in options
        request = Request(encoding, options["need_weights"], options["dropout"], q, inputs, *needs, device_of(q))
        kernel = serving_kernel(name, request)
        if served is not None:
            served.update((kernel, *(cpu.form_names(biases, q, at, keys, mask) if kernel == "blocked" else ())))
        return KERNELS[kernel].attend(biases, q, at, keys, mask, **options)

    def logits(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, *, scale: float) -> Tensor:
        serving_kernel(name, request_for(encoding, need_weights, dropout, q))
        if served is not None:
            served.add("reference")
        return logits_on_grid(biases, q, at, keys, scale=scale)

    layer_options: dict[str, Any] = {"scale": scale, "sinks": sinks, "softcap": softcap}
    call_options: dict[str, Any] = {"dropout": dropout, "need_weights": need_weights, "shared_biases": shared_biases}
    return BoundKernel(attend, logits, take_values, **layer_options, **call_options)


def served_by(
    encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, *, name: str = "auto"
) -> tuple[str, ...]:
    """Return the kernel that serves a call, and the forms of biases in blocks. It runs the call.

    >>> import torch
    >>> from posenc import ALiBi, Keys, Positions, masks
    >>> q, at = torch.zeros(1, 4, 200, 8), Positions.count(200)
    >>> served_by(ALiBi(4), q, at, Keys(q, q, at), masks.causal())
    ('blocked', 'distances in a row')
    """
    served: set[str] = set()
    encoding.attend(q, at, keys, mask, bind(name, encoding, scale=q.shape[-1] ** -0.5, served=served))
    return tuple(sorted(served, key=lambda word: (word not in KERNELS, word)))


def check_name(name: str) -> None:
    """Raise ValueError, with the known names, unless `name` is a kernel or "auto"."""
    names = ["auto", *sorted(KERNELS)]
    if name not in names:
        raise ValueError(f"no kernel named '{name}'; there are: {', '.join(names)}{suggestion(name, names)}")


def status() -> dict[str, str]:
    """Return how the operators run on this machine, and why nothing faster does.

    >>> sorted(status())
    ['rotate_pairs on cpu', 'rotate_pairs on cuda']
    """
    no_triton = rotate_pairs_triton.why_not()
    return {
        "rotate_pairs on cpu": native.status(),
        "rotate_pairs on cuda": "Triton" if no_triton is None else f"PyTorch's own operators: {no_triton}",
    }


__all__ = ["AUTO", "KERNELS", "BoundKernel", "Kernel", "bind", "check_name", "choose", "served_by", "status", "why_not"]
