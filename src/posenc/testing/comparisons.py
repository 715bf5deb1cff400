"""Comparisons of a tensor with the expected one, and their error messages."""

import torch
from torch import Tensor

from posenc.verdicts import expect


class RoundingError(AssertionError):
    """Two results differ by no more than roundings of float32."""


def agree(actual: Tensor, expected: Tensor, label: str, tolerance: float = 1e-9) -> None:
    """Check that two tensors are equal up to rounding.

    Raises AssertionError with the index and the size of the largest difference; RoundingError if float32 explains it.
    """
    expect(actual.shape == expected.shape, f"{label}: got shape {list(actual.shape)}, expected {list(expected.shape)}")
    difference = (actual.detach().double() - expected.detach().double()).abs()
    tolerances = tolerance * (1 + expected.detach().double().abs())
    wrong = ~(difference <= tolerances)
    if not bool(wrong.any()):
        return
    worst = int(torch.where(wrong, difference.nan_to_num(torch.inf, torch.inf), -1.0).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst), difference.shape)] if difference.dim() else []
    numbers = [x.detach().flatten()[worst].item() for x in (actual, expected)]
    six, all_digits = ([f"{number:.{digits}g}" for number in numbers] for digits in (6, 17))
    texts = all_digits if six[0] == six[1] else six
    if actual.dtype != expected.dtype:
        texts = [f"{number} ({x.dtype})" for number, x in zip(texts, (actual, expected), strict=True)]
    rounding_explains = bool((difference <= 1e-5 * (1 + expected.detach().double().abs())).all())
    raise (RoundingError if rounding_explains else AssertionError)(
        f"{label}: differs in {int(wrong.sum())} of {difference.numel()} numbers, most at {index}: "
        f"got {texts[0]}, expected {texts[1]}"
    )


def agree_nearly(actual: Tensor, expected: Tensor, label: str, dtype: torch.dtype | None = None) -> None:
    """Raise AssertionError unless a result in low precision has rounding errors only, on average and per token."""
    epsilon = torch.finfo(actual.dtype if dtype is None else dtype).eps
    actual, expected = actual.detach(), expected.detach()
    error = (actual.double() - expected).square().mean(-1).sqrt() / expected.square().mean(-1).sqrt()
    worst, average = float(error.max()), float(error.square().mean().sqrt())
    expect(
        worst <= 12 * epsilon and average <= 3 * epsilon,
        f"{label}: off by {average:.2g} on average and by {worst:.2g} in the worst token, relative to the exact "
        f"result; rounding explains {3 * epsilon:.2g} and {12 * epsilon:.2g}",
    )


def agree_in_angle(actual: Tensor, expected: Tensor, label: str) -> None:
    """Raise AssertionError unless two gradients agree in direction and length, up to rounding in half precision."""
    gradient, exact = actual.detach().double().flatten(), expected.detach().flatten()
    length, exact_length = float(gradient.norm()), float(exact.norm())
    # What adds up to almost nothing is rounding alone.
    if exact_length < 1e-2:
        return
    cosine, ratio = float(gradient @ exact) / (length * exact_length) if length else 0.0, length / exact_length
    expect(
        cosine > 0.9 and 0.8 < ratio < 1.25,
        f"{label}: {ratio:.3g} times as long as in double precision, at a cosine of {cosine:.3g} to it; "
        f"expected 0.8 to 1.25, and more than 0.9",
    )
