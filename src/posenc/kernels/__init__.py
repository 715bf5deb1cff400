"""How attention is computed: kernels with one signature, chosen by name, that never fall back in silence.

A kernel is a function `(encoding, q, at, keys, mask, *, scale, dropout, weights) -> (output, weights or None)`.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from posenc.encoding import BoundKernel, Encoding, Keys
from posenc.foreign import near
from posenc.kernels import blocked, flex, key_row, native, reference, rotate_pairs_triton, sdpa
from posenc.kernels.reference import logits_on_grid, take_values
from posenc.masks import Mask
from posenc.positions import Positions


class Kernel(NamedTuple):
    """One way of computing attention.

    attend   (encoding, q, at, keys, mask, *, scale, dropout, weights) -> (output, weights or None)
    why_not  (encoding, *, weights, dropout, q) -> the reason why it cannot serve this request, or None; q is None
             where nobody knows the queries yet
    exact    whether its results are off by rounding only, so that the contract holds it to all other kernels
    """

    attend: Callable[..., tuple[Tensor, Tensor | None]]
    why_not: Callable[..., str | None]
    exact: bool = True


KERNELS = {
    "blocked": Kernel(blocked.attend, blocked.why_not),
    "sdpa": Kernel(sdpa.attend, sdpa.why_not),
    "reference": Kernel(reference.attend, reference.why_not),
    "flex": Kernel(flex.attend, flex.why_not),
    "key_row": Kernel(key_row.attend, key_row.why_not, exact=False),
}
"""The kernels: those of "auto", fastest first, and those that serve by name only."""

AUTO = ("blocked", "sdpa", "reference")
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


__all__ = ["AUTO", "KERNELS", "BoundKernel", "Kernel", "bind", "check_name", "choose", "status", "why_not"]
