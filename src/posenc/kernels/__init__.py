"""How attention is computed: kernels with one signature, chosen by name, that never fall back in silence.

A kernel is a function `(encoding, q, at, keys, mask, *, scale, dropout, weights) -> (output, weights or None)`.
"""

import difflib
from collections.abc import Callable

from torch import Tensor

from posenc.encoding import BoundKernel, Encoding
from posenc.kernels.reference import logits_on_grid, reference, take_values
from posenc.kernels.sdpa import sdpa

KERNELS: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {"sdpa": sdpa, "reference": reference}
"""The kernels, fastest first: "auto" takes the first that has no reason against it."""


def why_not(name: str, encoding: Encoding, *, weights: bool = False) -> str | None:
    """The reason why a kernel cannot serve this request, or None.

    Raises ValueError for an unknown kernel.
    """
    check_name(name)
    if name == "sdpa" and weights:
        return "sdpa returns no attention weights; use kernel='reference' or 'auto'"
    if name == "sdpa" and encoding.needs_weights:
        return f"{encoding} reads the attention weights, which sdpa does not return; use kernel='reference' or 'auto'"
    return None


def choose(name: str, encoding: Encoding, *, weights: bool = False) -> str:
    """The kernel that serves a request: the named one, or for "auto" the fastest that can.

    Raises ValueError with the reason when the named one cannot.
    """
    check_name(name)
    if name == "auto":
        return next(kernel for kernel in KERNELS if why_not(kernel, encoding, weights=weights) is None)
    reason = why_not(name, encoding, weights=weights)
    if reason is not None:
        raise ValueError(f"kernel '{name}' cannot do this: {reason}")
    return name


def bind(name: str, encoding: Encoding, *, scale: float, dropout: float = 0.0, weights: bool = False) -> BoundKernel:
    """The chosen kernel with one layer's scale, dropout and wish for weights."""
    kernel = KERNELS[choose(name, encoding, weights=weights)]
    return BoundKernel(kernel, logits_on_grid, take_values, scale=scale, dropout=dropout, weights=weights)


def check_name(name: str) -> None:
    """Raises ValueError, with the known names, unless `name` is a kernel or "auto"."""
    if name != "auto" and name not in KERNELS:
        near = difflib.get_close_matches(name, [*KERNELS, "auto"], 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"no kernel named '{name}'; there are: auto, {', '.join(sorted(KERNELS))}{hint}")


__all__ = ["KERNELS", "BoundKernel", "bind", "check_name", "choose", "why_not"]
