"""Helpers for the checks of exercises: find a function among the answers, and compare its numbers."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


def answer(answers: ModuleType, name: str) -> Callable[..., Any]:
    """Return the function `name` of a file of answers.

    Raises AssertionError if there is no such function yet, and later if it returns None.
    """
    assert hasattr(answers, name), f"there is no {name} in it yet"
    function = getattr(answers, name)
    assert callable(function), f"{name} is a {type(function).__name__}, and no function"

    @functools.wraps(function)
    def checked_call(*arguments: Any) -> Any:
        result = function(*arguments)
        assert result is not None, f"{name} gives nothing; does it return its result?"
        return result

    return checked_call


def check_shape(call: str, result: Any, shape: tuple[int, ...]) -> Tensor:
    """Return the result of an answer; raises AssertionError unless it is a tensor of this shape."""
    assert torch.is_tensor(result), f"{call} gives a {type(result).__name__}, not a tensor"
    assert result.shape == shape, f"{call} has the shape {list(result.shape)}, not {list(shape)}"
    return result


def compare(
    call: str,
    result: Any,
    expected: Tensor | float,
    mistakes: Mapping[str, Tensor | float] | None = None,
    *,
    tolerance: float = 1e-5,
) -> None:
    """Raise AssertionError unless the result of an answer equals the expected numbers.

    call       the call, as code or in words
    mistakes   results of known mistakes, by the hint for each
    tolerance  absolute tolerance, besides a relative one of 1e-4
    """
    expected = torch.as_tensor(expected, dtype=torch.float64)
    try:
        numbers = torch.as_tensor(result).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(f"{call} gives a {type(result).__name__}, and no numbers") from None

    def equal(value: Tensor | float) -> bool:
        value = torch.as_tensor(value, dtype=torch.float64)
        return numbers.shape == value.shape and torch.allclose(numbers, value, rtol=1e-4, atol=tolerance)

    if equal(expected):
        return
    for words, wrong in (mistakes or {}).items():
        assert not equal(wrong), f"{call}: {words}"
    assert numbers.shape == expected.shape, f"{call} has the shape {list(numbers.shape)}, not {list(expected.shape)}"
    if not expected.dim():
        raise AssertionError(f"{call} is {numbers.item():.5g}, not {expected.item():.5g}")
    differs = ~torch.isclose(numbers, expected, rtol=1e-4, atol=tolerance)
    place = differs.nonzero()[0].tolist()
    raise AssertionError(
        f"{call} differs in {int(differs.sum())} of {differs.numel()} numbers; the first stands at {place}: "
        f"{numbers[tuple(place)].item():.5g}, not {expected[tuple(place)].item():.5g}"
    )


def nearest_of(result: Any, right: Sequence[Tensor]) -> Tensor:
    """Return the right tensor that is nearest to the result of an answer."""
    fits = torch.is_tensor(result) and result.shape == right[0].shape
    return min(right, key=lambda tensor: float((result - tensor).abs().max())) if fits else right[0]
