"""How near a result has to lie to what is expected, and what is said where it does not."""

import torch
from torch import Tensor


def same(got: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    """Raises AssertionError, with place and size of the largest difference, unless both are equal up to rounding."""
    if got.shape != expected.shape:
        raise AssertionError(f"{what}: got shape {list(got.shape)}, expected {list(expected.shape)}")
    off = (got.detach().double() - expected.detach().double()).abs()
    allowed = tolerance * (1 + expected.detach().double().abs())
    wrong = ~(off <= allowed)
    if not bool(wrong.any()):
        return
    worst = int(torch.where(wrong, off.nan_to_num(torch.inf, torch.inf), -1.0).argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(worst), off.shape)] if off.dim() else []
    raise AssertionError(
        f"{what}: differs in {int(wrong.sum())} of {off.numel()} numbers, most at {place}: "
        f"got {got.detach().flatten()[worst].item():.6g}, expected {expected.detach().flatten()[worst].item():.6g}"
    )


def near(got: Tensor, expected: Tensor, what: str, dtype: torch.dtype | None = None) -> None:
    """Raises AssertionError unless the two differ by roundings of a low precision, on average and in each token."""
    epsilon = torch.finfo(got.dtype if dtype is None else dtype).eps
    got, expected = got.detach(), expected.detach()
    off = (got.double() - expected).square().mean(-1).sqrt() / expected.square().mean(-1).sqrt()
    worst, average = float(off.max()), float(off.square().mean().sqrt())
    if not (worst <= 12 * epsilon and average <= 3 * epsilon):
        raise AssertionError(
            f"{what}: off by {average:.2g} on average and by {worst:.2g} in the worst token, relative to the exact "
            f"result; rounding explains {3 * epsilon:.2g} and {12 * epsilon:.2g}"
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
    if not (cosine > 0.9 and 0.8 < ratio < 1.25):
        raise AssertionError(
            f"{what}: {ratio:.3g} times as long as in double precision, at a cosine of {cosine:.3g} to it; "
            f"expected 0.8 to 1.25, and more than 0.9"
        )
