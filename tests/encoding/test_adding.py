"""Adding positions to embeddings: kept, sliced, in pieces or in place, it is the same addition."""

import mpmath
import pytest
import torch
from torch import Tensor, nn

from posenc import Decoder, Learned, Positions, Sinusoidal, TokenPositionEmbedding
from posenc.encodings import sinusoidal


def oracle(tokens: int, start: int, dim: int) -> Tensor:
    """The paper's numbers in 40 digits, interleaved, rounded to float64."""
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
    # In float32 they are off by half a unit in the last place.
    got = encoding(x.float(), offset=start)[0]
    assert ((got.double() - exact).abs() <= 2**-25 * (1 + 1e-6)).all()


@pytest.mark.parametrize("options", [{"layout": "concatenated", "endpoint": True}, {"layout": "sines_first"}, {}])
@pytest.mark.parametrize("start", [0, 5, 40])
def test_in_pieces_it_is_the_same_as_whole(monkeypatch: pytest.MonkeyPatch, options: dict, start: int) -> None:
    encoding, x = Sinusoidal(10, **options), torch.randn(2, 50, 10)
    whole = x + encoding.table(torch.arange(start, start + 50))
    # One piece, kept pieces of 16 rows, and pieces that nobody keeps.
    for long in (1 << 24, 1000, 1):
        monkeypatch.setattr(sinusoidal, "LONG", long)
        monkeypatch.setattr(sinusoidal, "WINDOW", 16)
        before = x.clone()
        torch.testing.assert_close(encoding(x, offset=start), whole, rtol=0, atol=1e-7)
        assert torch.equal(x, before)
        mine = x.clone()
        assert encoding.embed_in_place(mine, Positions.count(50, start)) is mine
        torch.testing.assert_close(mine, whole, rtol=0, atol=1e-7)


def test_in_pieces_gradients_are_recorded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinusoidal, "LONG", 1)
    x = torch.randn(1, 9, 4, requires_grad=True)
    [gradient] = torch.autograd.grad(Sinusoidal(4)(x).sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))


@pytest.mark.parametrize("start", [0, 3])
def test_a_slice_of_a_learned_table_is_what_a_look_up_gives(start: int) -> None:
    encoding, x = Learned(4, max_len=9), torch.randn(2, 6, 4)
    ids = torch.arange(start, start + 6)
    assert torch.equal(encoding(x, offset=start), encoding(x, positions=ids))
    upstream = torch.randn(2, 6, 4)
    [got] = torch.autograd.grad(encoding(x, offset=start), encoding.table, upstream)
    [expected] = torch.autograd.grad(encoding(x, positions=ids), encoding.table, upstream)
    assert torch.equal(got, expected) and got[start : start + 6].ne(0).all() and got.count_nonzero() == 24


@pytest.mark.parametrize("spec", ["sinusoidal", "learned", "sinusoidal(scaled=True) + learned"])
@pytest.mark.parametrize("scale", [False, True])
def test_added_in_place_a_model_has_the_same_values_and_gradients(spec: str, scale: bool) -> None:
    embedding = TokenPositionEmbedding(vocab=7, dim=8, encoding=spec, scale=scale, max_len=5).double()
    ids = torch.randint(7, (2, 5))
    assert embedding.encoding is not None
    apart = embedding.encoding.embed(embedding.token_vectors(ids), Positions.count(5))
    parameters, upstream = list(embedding.parameters()), torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.equal(embedding(ids), apart)
    for got, expected in zip(
        torch.autograd.grad(embedding(ids), parameters, upstream),
        torch.autograd.grad(apart, parameters, upstream),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


def test_token_vectors_that_a_hook_has_kept_are_not_overwritten() -> None:
    model = Decoder(vocab=7, dim=8, heads=2, layers=1, encoding="learned", max_len=5)
    kept: list[Tensor] = []

    def keep(module: nn.Module, given: tuple, out: Tensor) -> None:
        kept.append(out)

    model.embedding.token.register_forward_hook(keep)
    ids = torch.randint(7, (2, 5))
    model(ids)
    assert torch.equal(kept[0], model.embedding.token.weight[ids])
