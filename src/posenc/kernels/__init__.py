"""How attention is computed: kernels with one signature, chosen by name, that never fall back in silence.

A kernel is a function that gives the output, and weights or None; its arguments are those of `Kernel.attend`.
"""

# Older compilers cannot read annotations of the functions that `bind` defines, unless they are text.
from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from posenc.encoding.base import Encoding
from posenc.encoding.biases import Bias
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.keys import Keys
from posenc.foreign import near
from posenc.kernels import cpu, flash, flex, reference, sdpa
from posenc.kernels.device import device_of
from posenc.kernels.reference import logits_on_grid, take_values
from posenc.kernels.request import Inputs, Request
from posenc.kernels.rotation import native, rotate_pairs_triton
from posenc.kernels.sinks import from_sums
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions


class Kernel(NamedTuple):
    """One way of computing attention.

    attend   (biases, q, at, keys, mask, *, scale, dropout, need_weights, sinks=None) -> (output, weights or None)
    why_not  (request) -> the reason why it cannot serve, or None
    """

    attend: Callable[..., tuple[Tensor, Tensor | None]]
    why_not: Callable[[Request], str | None]


KERNELS = {
    "blocked": Kernel(from_sums(cpu.attend), cpu.why_not),
    "sdpa": Kernel(sdpa.attend, sdpa.why_not),
    "reference": Kernel(reference.attend, reference.why_not),
    "flex": Kernel(from_sums(flex.attend), flex.why_not),
    "flash": Kernel(flash.attend, flash.why_not),
}
"""The kernels: those of "auto", fastest first, and those that serve by name only."""

AUTO = ("blocked", "sdpa", "reference")
"""Those that "auto" chooses from, fastest first; sdpa comes first where its mask is none, or of few pairs."""

AUTO_ON_CUDA = ("flex", "sdpa", "reference")
"""The same on a GPU of NVIDIA's."""


def why_not(
    name: str,
    encoding: Encoding,
    *,
    need_weights: bool = False,
    dropout: float = 0.0,
    q: Tensor | None = None,
    device: str | None = None,
) -> str | None:
    """The reason why a kernel cannot serve this request, or None.

    device  where, as "cpu" or "cuda"; default: where q is, or "cpu"

    Raises ValueError for an unknown kernel.
    """
    check_name(name)
    return None if name == "auto" else KERNELS[name].why_not(asked_for(encoding, need_weights, dropout, q, device))


def choose(
    name: str,
    encoding: Encoding,
    *,
    need_weights: bool = False,
    dropout: float = 0.0,
    q: Tensor | None = None,
    device: str | None = None,
) -> str:
    """The kernel that serves a request: the named one, or for "auto" the fastest that can.

    device  where, as "cpu" or "cuda"; default: where q is, or "cpu"

    Raises ValueError with the reason when the named one cannot.
    """
    return serving(name, asked_for(encoding, need_weights, dropout, q, device))


def asked_for(
    encoding: Encoding, need_weights: bool, dropout: float, q: Tensor | None, device: str | None = None
) -> Request:
    """A request of which no more is known."""
    return Request(encoding, need_weights, dropout, q, device=device or ("cpu" if q is None else device_of(q)))


def serving(name: str, request: Request) -> str:
    """The kernel that serves a request, as `choose` says it."""
    if name == "auto":
        if request.need_weights:
            return "reference"  # the only one that gives them
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
    seen: set[str] | None = None,
    shared: dict[Hashable, list[Bias]] | None = None,
    sinks: Tensor | None = None,
    softcap: float | None = None,
) -> BoundKernel:
    """A kernel with one layer's scale, dropout and wish for weights; what serves is chosen once the call is known.

    seen    where to note what served, as `served_by` says it
    shared  biases that the layers of one pass share, as BoundKernel says it
    sinks   of each head [H], and softcap, as BoundKernel says them

    Raises ValueError, when it is called, where the named kernel cannot serve.
    """

    def attend(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, mask: Mask, **asked):
        inputs = Inputs(biases, at, keys.at, mask)
        wanted = "sums" in asked, "sinks" in asked
        request = Request(encoding, asked["need_weights"], asked["dropout"], q, inputs, *wanted, device_of(q))
        kernel = serving(name, request)
        if seen is not None:
            seen.update((kernel, *(cpu.ways(biases, q, at, keys, mask) if kernel == "blocked" else ())))
        return KERNELS[kernel].attend(biases, q, at, keys, mask, **asked)

    def logits(biases: Sequence[Bias], q: Tensor, at: Positions, keys: Keys, *, scale: float) -> Tensor:
        serving(name, asked_for(encoding, need_weights, dropout, q))
        if seen is not None:
            seen.add("reference")
        return logits_on_grid(biases, q, at, keys, scale=scale)

    of_layer: dict[str, Any] = {"scale": scale, "sinks": sinks, "softcap": softcap}
    of_call: dict[str, Any] = {"dropout": dropout, "need_weights": need_weights, "shared": shared}
    return BoundKernel(attend, logits, take_values, **of_layer, **of_call)


def served_by(
    encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, *, name: str = "auto"
) -> tuple[str, ...]:
    """What serves one call, which is made for it: the kernel; and of attention in blocks, how each bias is had.

    >>> import torch
    >>> from posenc import ALiBi, Keys, Positions, masks
    >>> q, at = torch.zeros(1, 4, 200, 8), Positions.count(200)
    >>> served_by(ALiBi(4), q, at, Keys(q, q, at), masks.causal())
    ('blocked', 'distances in a row')
    """
    seen: set[str] = set()
    encoding.attend(q, at, keys, mask, bind(name, encoding, scale=q.shape[-1] ** -0.5, seen=seen))
    return tuple(sorted(seen, key=lambda word: (word not in KERNELS, word)))


def check_name(name: str) -> None:
    """Raises ValueError, with the known names, unless `name` is a kernel or "auto"."""
    known = ["auto", *sorted(KERNELS)]
    if name not in known:
        raise ValueError(f"no kernel named '{name}'; there are: {', '.join(known)}{near(name, known)}")


def status() -> dict[str, str]:
    """How the operators run on this machine: what serves, or why nothing faster does.

    >>> sorted(status())
    ['rotate_pairs on cpu', 'rotate_pairs on cuda']
    """
    no_triton = rotate_pairs_triton.why_not()
    return {
        "rotate_pairs on cpu": native.status(),
        "rotate_pairs on cuda": "Triton" if no_triton is None else f"PyTorch's own operators: {no_triton}",
    }


__all__ = ["AUTO", "KERNELS", "BoundKernel", "Kernel", "bind", "check_name", "choose", "served_by", "status", "why_not"]
