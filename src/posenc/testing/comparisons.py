"""How near a result has to lie to what is expected, and what is said where it does not."""

import torch
from torch import Tensor

from posenc.verdicts import expect


class Rounded(AssertionError):
    """Two results differ by no more than roundings of float32."""


def same(got: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    """Raises AssertionError, with place and size of the largest difference, unless both are equal up to rounding.

    It is Rounded where float32 would explain the difference.
    """
    expect(got.shape == expected.shape, f"{what}: got shape {list(got.shape)}, expected {list(expected.shape)}")
    off = (got.detach().double() - expected.detach().double()).abs()
    allowed = tolerance * (1 + expected.detach().double().abs())
    wrong = ~(off <= allowed)
    if not bool(wrong.any()):
        return
    worst = int(torch.where(wrong, off.nan_to_num(torch.inf, torch.inf), -1.0).argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(worst), off.shape)] if off.dim() else []
    numbers = [x.detach().flatten()[worst].item() for x in (got, expected)]
    six, all_digits = ([f"{number:.{digits}g}" for number in numbers] for digits in (6, 17))
    shown = all_digits if six[0] == six[1] else six
    if got.dtype != expected.dtype:
        shown = [f"{number} ({x.dtype})" for number, x in zip(shown, (got, expected), strict=True)]
    explained = bool((off <= 1e-5 * (1 + expected.detach().double().abs())).all())
    raise (Rounded if explained else AssertionError)(
        f"{what}: differs in {int(wrong.sum())} of {off.numel()} numbers, most at {place}: "
        f"got {shown[0]}, expected {shown[1]}"
    )


def near(got: Tensor, expected: Tensor, what: str, dtype: torch.dtype | None = None) -> None:
    """Raises AssertionError unless the two differ by roundings of a low precision, on average and in each token."""
    epsilon = torch.finfo(got.dtype if dtype is None else dtype).eps
    got, expected = got.detach(), expected.detach()
    off = (got.double() - expected).square().mean(-1).sqrt() / expected.square().mean(-1).sqrt()
    worst, average = float(off.max()), float(off.square().mean().sqrt())
    expect(
        worst <= 12 * epsilon and average <= 3 * epsilon,
        f"{what}: off by {average:.2g} on average and by {worst:.2g} in the worst token, relative to the exact "
        f"result; rounding explains {3 * epsilon:.2g} and {12 * epsilon:.2g}",
    )


def alike(got: Tensor, expected: Tensor, what: str) -> None:
    """Raises AssertionError unless two gradients have one direction and one length, up to roundings of half
    precision."""
    mine, exact = got.detach().double().flatten(), expected.detach().flatten()
    length, wanted = float(mine.norm()), float(exact.norm())
    # What adds up to almost nothing is rounding alone.
    if wanted < 1e-2:
        return
    cosine, ratio = float(mine @ exact) / (length * wanted) if length else 0.0, length / wanted
    expect(
        cosine > 0.9 and 0.8 < ratio < 1.25,
        f"{what}: {ratio:.3g} times as long as in double precision, at a cosine of {cosine:.3g} to it; "
        f"expected 0.8 to 1.25, and more than 0.9",
    )
