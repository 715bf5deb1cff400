"""Position embeddings are equal from a cached table, a slice and a look-up."""

import mpmath
import pytest
import torch
from torch import Tensor

from posenc import Learned, Sinusoidal


def oracle(tokens: int, start: int, dim: int) -> Tensor:
    """Return the paper's table in 40 digits, interleaved, rounded to float64."""
    with mpmath.workdps(40):
        rows = [
            [
                float((mpmath.sin, mpmath.cos)[c % 2](p / mpmath.power(10_000, mpmath.mpf(c - c % 2) / dim)))
                for c in range(dim)
            ]
            for p in range(start, start + tokens)
        ]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("tokens", "start"), [(5, 0), (300, 0), (129, 1000), (40, 123_456)])
@pytest.mark.parametrize("dim", [6, 7])
def test_tokens_in_a_row_have_the_numbers_of_the_paper(tokens: int, start: int, dim: int) -> None:
    encoding, exact = Sinusoidal(dim), oracle(tokens, start, dim)
    x = torch.zeros(1, tokens, dim, dtype=torch.float64)
    torch.testing.assert_close(encoding(x, offset=start)[0], exact, rtol=0, atol=1e-15 + 3e-16 * (start + tokens))
    # In float32 the error is half a unit in the last place.
    single = encoding(x.float(), offset=start)[0]
    assert ((single.double() - exact).abs() <= 2**-25 * (1 + 1e-6)).all()


@pytest.mark.parametrize("start", [0, 3])
def test_a_slice_of_a_learned_table_is_what_a_look_up_gives(start: int) -> None:
    encoding, x = Learned(4, max_len=9), torch.randn(2, 6, 4)
    ids = torch.arange(start, start + 6)
    assert torch.equal(encoding(x, offset=start), encoding(x, positions=ids))
    upstream = torch.randn(2, 6, 4)
    [actual] = torch.autograd.grad(encoding(x, offset=start), encoding.table, upstream)
    [expected] = torch.autograd.grad(encoding(x, positions=ids), encoding.table, upstream)
    assert torch.equal(actual, expected) and actual[start : start + 6].ne(0).all() and actual.count_nonzero() == 24
