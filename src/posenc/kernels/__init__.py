"""How attention is computed: kernels with one signature, chosen by name, that never fall back in silence.

A kernel is a function `(encoding, q, at, keys, mask, *, scale, dropout, weights) -> (output, weights or None)`.
"""

import difflib
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from posenc.encoding import BoundKernel, Encoding, Keys
from posenc.kernels import reference, sdpa
from posenc.kernels.reference import logits_on_grid, take_values
from posenc.masks import Mask
from posenc.positions import Positions


class Kernel(NamedTuple):
    """One way of computing attention.

    attend   (encoding, q, at, keys, mask, *, scale, dropout, weights) -> (output, weights or None)
    why_not  (encoding, *, weights, dropout, q) -> the reason why it cannot serve this request, or None; q is None
             where nobody knows the queries yet
    """

    attend: Callable[..., tuple[Tensor, Tensor | None]]
    why_not: Callable[..., str | None]


KERNELS = {
    "sdpa": Kernel(sdpa.attend, sdpa.why_not),
    "reference": Kernel(reference.attend, reference.why_not),
}
"""The kernels, fastest first."""

AUTO = ("sdpa", "reference")
"""Those that "auto" chooses from, fastest first: all of them exact."""


def why_not(
    name: str, encoding: Encoding, *, weights: bool = False, dropout: float = 0.0, q: Tensor | None = None
) -> str | None:
    """The reason why a kernel cannot serve this request, or None.

    Raises ValueError for an unknown kernel.
    """
    check_name(name)
    return None if name == "auto" else KERNELS[name].why_not(encoding, weights=weights, dropout=dropout, q=q)


def choose(
    name: str, encoding: Encoding, *, weights: bool = False, dropout: float = 0.0, q: Tensor | None = None
) -> str:
    """The kernel that serves a request: the named one, or for "auto" the fastest that can.

    Raises ValueError with the reason when the named one cannot.
    """
    check_name(name)
    if name == "auto":
        asked = {"weights": weights, "dropout": dropout, "q": q}
        return next(kernel for kernel in AUTO if KERNELS[kernel].why_not(encoding, **asked) is None)
    reason = why_not(name, encoding, weights=weights, dropout=dropout, q=q)
    if reason is not None:
        raise ValueError(f"kernel '{name}' cannot do this: {reason}")
    return name


def bind(name: str, encoding: Encoding, *, scale: float, dropout: float = 0.0, weights: bool = False) -> BoundKernel:
    """A kernel with one layer's scale, dropout and wish for weights; what serves is chosen when the queries are known.

    Raises ValueError when it is certain already that the named kernel cannot.
    """
    choose(name, encoding, weights=weights, dropout=dropout)

    def attend(encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, **asked):
        chosen = choose(name, encoding, weights=asked["weights"], dropout=asked["dropout"], q=q)
        return KERNELS[chosen].attend(encoding, q, at, keys, mask, **asked)

    return BoundKernel(attend, logits_on_grid, take_values, scale=scale, dropout=dropout, weights=weights)


def check_name(name: str) -> None:
    """Raises ValueError, with the known names, unless `name` is a kernel or "auto"."""
    if name != "auto" and name not in KERNELS:
        near = difflib.get_close_matches(name, [*KERNELS, "auto"], 1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"no kernel named '{name}'; there are: auto, {', '.join(sorted(KERNELS))}{hint}")


__all__ = ["AUTO", "KERNELS", "BoundKernel", "Kernel", "bind", "check_name", "choose", "why_not"]
