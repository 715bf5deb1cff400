"""Muon: the singular values it makes, its steps against float64 loops and PyTorch's own, and what it refuses."""

import math
import re

import pytest
import torch

from posenc.lab.muon import COEFFICIENTS, Muon, orthogonal

SHAPES = [(8, 8), (5, 12), (12, 5), (1, 7), (7, 1), (8, 8)]


def by_singular_values(matrix: torch.Tensor) -> torch.Tensor:
    """The same rounds in scalars: each is the odd polynomial of the singular values, in float64."""
    u, values, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    a, b, c = COEFFICIENTS
    values = values / values.square().sum().sqrt()
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    return u @ torch.diag(values) @ v


def drawn(shapes: list[tuple[int, int]], seed: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 5), (5, 12), (33, 64)])
def test_the_rounds_are_a_polynomial_of_the_singular_values(shape, dtype: torch.dtype, close: float) -> None:
    stack = torch.stack(drawn([shape] * 3, seed=1, dtype=dtype))
    made = orthogonal(stack)
    assert made.dtype == dtype
    for matrix, result in zip(stack, made, strict=True):
        torch.testing.assert_close(result.double(), by_singular_values(matrix), atol=close, rtol=0)


def test_singular_values_come_close_to_one_from_far_apart() -> None:
    u, v = (torch.linalg.qr(matrix)[0] for matrix in drawn([(40, 40), (40, 40)], seed=2))
    # The rounds begin with a Frobenius norm of 1, which brings the smallest value to 0.0026.
    values = torch.linspace(math.log(0.005), 0, 40, dtype=torch.float64).exp()
    made = torch.linalg.svdvals(orthogonal((u @ torch.diag(values) @ v)[None])[0])
    assert 0.68 < made.min() and made.max() < 1.21


def stepped(weights: list[torch.Tensor], seeds: list[int], momentum: float = 0.9) -> list[torch.Tensor]:
    """Weights after one step for each seed that draws gradients."""
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = Muon(parameters, 0.1, momentum)
    for seed in seeds:
        for parameter, grad in zip(parameters, drawn(SHAPES, seed, parameters[0].dtype), strict=True):
            parameter.grad = grad
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_follow_their_equation_for_every_shape_in_one_model(momentum: float) -> None:
    weights = drawn(SHAPES, seed=3)
    made = stepped(weights, [4, 5, 6], momentum=momentum)
    for place, (weight, result) in enumerate(zip(weights, made, strict=True)):
        rows, columns = weight.shape
        mean = torch.zeros_like(weight)
        for seed in (4, 5, 6):
            grad = drawn(SHAPES, seed)[place]
            mean = momentum * mean + (1 - momentum) * grad
            direction = momentum * mean + (1 - momentum) * grad
            weight = weight - 0.1 * math.sqrt(max(1, rows / columns)) * by_singular_values(direction)
        torch.testing.assert_close(result, weight, atol=1e-11, rtol=0)


def test_no_matrix_depends_on_those_beside_it() -> None:
    grads = drawn(SHAPES, seed=7)
    together = stepped([torch.zeros(shape, dtype=torch.float64) for shape in SHAPES], [7])
    for grad, result in zip(grads, together, strict=True):
        alone = torch.nn.Parameter(torch.zeros_like(grad))
        alone.grad = grad
        Muon([alone], 0.1, 0.9).step()
        torch.testing.assert_close(alone.detach(), result, atol=1e-12, rtol=0)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon to compare with")
def test_steps_are_those_of_pytorch_up_to_its_bfloat16() -> None:
    weights = drawn(SHAPES, seed=8, dtype=torch.float32)
    theirs = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = torch.optim.Muon(theirs, lr=0.1, momentum=0.9, weight_decay=0.0)
    for seed in (9, 10, 11):
        for parameter, grad in zip(theirs, drawn(SHAPES, seed, torch.float32), strict=True):
            parameter.grad = grad
        optimizer.step()
    for ours, their, weight in zip(stepped(weights, [9, 10, 11]), theirs, weights, strict=True):
        assert (ours - weight).norm() > 0.1
        assert (ours - their).norm() < 0.03 * (ours - weight).norm()


def test_a_matrix_without_a_gradient_stays_and_a_gradient_of_zero_moves_nothing() -> None:
    still, zero = torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3, 3))
    zero.grad = torch.zeros(3, 3)
    optimizer = Muon([still, zero], 0.1)
    optimizer.step()
    assert torch.equal(still, torch.ones(3, 3)) and torch.equal(zero, torch.ones(3, 3))
    assert still not in optimizer.state


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lr": 0.0}, "lr must be above 0, got 0.0"),
        ({"lr": math.nan}, "lr must be above 0, got nan"),
        ({"lr": 0.1, "momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"lr": 0.1, "momentum": -0.1}, "momentum must be at least 0 and below 1, got -0.1"),
    ],
)
def test_values_out_of_range_are_refused(given: dict, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        Muon([torch.nn.Parameter(torch.zeros(2, 2))], **given)


def test_what_is_no_matrix_is_refused_with_its_shape() -> None:
    words = "Muon is for matrices, got parameters of shape [(3,), (2, 2, 2)]; give those to AdamW"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        Muon([torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (3,), (2, 2, 2))], 0.1)


def test_a_closure_is_refused() -> None:
    optimizer = Muon([torch.nn.Parameter(torch.zeros(2, 2))], 0.1)
    with pytest.raises(ValueError, match=r"^Muon evaluates nothing by itself; call backward first, then step\(\) "):
        optimizer.step(lambda: 0.0)
