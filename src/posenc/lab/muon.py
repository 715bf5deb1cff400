"""Muon: an optimiser for matrices, whose steps move every direction equally far."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

ROUNDS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of s -> a s + b s^3 + c s^5. Five rounds bring all singular values from 0.002 to 1 to between 0.68 and 1.21: equal
enough, and in fewer rounds than coefficients that converge need."""


class Muon(torch.optim.Optimizer):
    """Momentum for matrices, with the singular values of each step made equal: no direction outruns the others.

    M <- momentum M + (1 - momentum) G
    W <- W - lr sqrt(max(1, rows / columns)) orthogonal(momentum M + (1 - momentum) G)

    matrices   parameters of two axes. Embeddings, norms, biases and outputs are better off with AdamW
    lr         the singular values of a step, before the factor for upright matrices
    momentum   the share of the running mean that a step keeps

    PyTorch has a Muon as well, from 2.9 on. It takes one matrix after another, in bfloat16, which many CPUs can only
    imitate: with the matrices of the lab's decoder a step of it takes 15 times as long as one of this class, which
    takes all matrices of one shape together and in their own precision.

    Raises ValueError for a rate or momentum out of range, for parameters that are no matrices, and for a closure.
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> weight.grad = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    >>> Muon([weight], lr=1.0).step()
    >>> weight.diagonal().abs().round().tolist()  # the gradient's directions, at one speed
    [1.0, 1.0]
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        if not lr > 0:
            raise ValueError(f"lr must be above 0, got {lr}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
        super().__init__(matrices, {"lr": lr, "momentum": momentum})
        shapes = [tuple(p.shape) for group in self.param_groups for p in group["params"] if p.ndim != 2]
        if shapes:
            raise ValueError(f"Muon is for matrices, got parameters of shape {shapes}; give those to AdamW")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # ty: ignore[incompatible-method-override]
        """One step along the gradients that are there."""
        if closure is not None:
            raise ValueError("Muon evaluates nothing by itself; call backward first, then step() without a closure")
        for group in self.param_groups:
            alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "mean" not in state:
                    state["mean"] = torch.zeros_like(weight)
                mean = state["mean"].lerp_(weight.grad, 1 - group["momentum"])
                direction = weight.grad.lerp(mean, group["momentum"])
                rows, columns = weight.shape
                # Lying down, an upright matrix has the smaller product with itself.
                lying = direction.mT if rows > columns else direction
                alike.setdefault(lying.shape, []).append((weight, lying))
            for members in alike.values():
                steps = orthogonal(torch.stack([lying for _, lying in members]))
                for (weight, _), step in zip(members, steps, strict=True):
                    rows, columns = weight.shape
                    step = step.mT if rows > columns else step
                    weight.add_(step, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [N, n, m] with their own singular vectors, and with singular values near 1.

    Newton-Schulz rounds X <- a X + (b S + c S^2) X with S = X X^T need products only, no decomposition.
    """
    a, b, c = COEFFICIENTS
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT  # [N, n, n]
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x
