"""What the checks of exercises share: a name out of a file of answers, and numbers held to those that are right."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def answer(theirs: ModuleType, name: str) -> Callable[..., Any]:
    """The function that a file of answers calls `name`.

    Raises AssertionError where there is no function of that name yet, and when it is called and gives nothing.
    """
    assert hasattr(theirs, name), f"there is no {name} in it yet"
    function = getattr(theirs, name)
    assert callable(function), f"{name} is a {type(function).__name__}, and no function"

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        given = function(*arguments)
        assert given is not None, f"{name} gives nothing; does it return its result?"
        return given

    return called


def tensor(call: str, given: Any, shape: tuple[int, ...]) -> Tensor:
    """What an answer gives; raises AssertionError where it is no tensor of that shape."""
    assert torch.is_tensor(given), f"{call} gives a {type(given).__name__}, not a tensor"
    assert given.shape == shape, f"{call} has the shape {list(given.shape)}, not {list(shape)}"
    return given


def same(
    call: str,
    given: Any,
    wanted: Tensor | float,
    mistakes: Mapping[str, Tensor | float] | None = None,
    *,
    within: float = 1e-5,
) -> None:
    """Raises AssertionError where what an answer gives is not what is wanted.

    call      what was called, in words or as code
    mistakes  what is given by those who err in a way that is known, under the words that help them
    within    how far numbers may be off, besides a share of 1e-4
    """
    wanted = torch.as_tensor(wanted, dtype=torch.float64)
    try:
        numbers = torch.as_tensor(given).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(f"{call} gives a {type(given).__name__}, and no numbers") from None

    def equal(other: Tensor | float) -> bool:
        other = torch.as_tensor(other, dtype=torch.float64)
        return numbers.shape == other.shape and torch.allclose(numbers, other, rtol=1e-4, atol=within)

    if equal(wanted):
        return
    for words, wrong in (mistakes or {}).items():
        assert not equal(wrong), f"{call}: {words}"
    assert numbers.shape == wanted.shape, f"{call} has the shape {list(numbers.shape)}, not {list(wanted.shape)}"
    if not wanted.dim():
        raise AssertionError(f"{call} is {numbers.item():.5g}, not {wanted.item():.5g}")
    off = ~torch.isclose(numbers, wanted, rtol=1e-4, atol=within)
    place = off.nonzero()[0].tolist()
    raise AssertionError(
        f"{call} differs in {int(off.sum())} of {off.numel()} numbers; the first stands at {place}: "
        f"{numbers[tuple(place)].item():.5g}, not {wanted[tuple(place)].item():.5g}"
    )


def nearest(given: Any, right: Sequence[Tensor]) -> Tensor:
    """The one of several right tensors that is nearest to what an answer gives."""
    fits = torch.is_tensor(given) and given.shape == right[0].shape
    return min(right, key=lambda tensor: float((given - tensor).abs().max())) if fits else right[0]
