"""Encodings of ejected files that add to embeddings: tokens outside a grid, positions out of tables, weights."""

import pytest
import torch
from standalone.test_forms import DIM, module_of, pair_of, samples

from posenc import Shape, build
from posenc.standalone import eject
from posenc.tokens.positions import Positions

INITIAL = (
    "learned", "learned(std=0.5)", "learned_grid(std=0.5)", "learned_factorised(std=0.5)", "continuous_time",
    "continuous_time(size=50)", "fourier_features(kind='learned', scale=3)", "sinusoidal(scaled=True)",
)  # fmt: skip


def test_tokens_outside_a_grid_have_the_first_rows() -> None:
    encoding, grid = pair_of("learned_grid(grid=(3, 4), prefix=2)")
    at, x = Positions.grid(3, 4, prefix=2), samples(1, 14, DIM)
    torch.testing.assert_close(grid(x, at.coords[0]), encoding(x, positions=at))


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("place", [(3, 0), (0, 4), (-3, -3), (-1, 2), (2, -1)])
def test_a_place_out_of_a_grid_is_no_other_cell(prefix: int, place: tuple[int, int]) -> None:
    cls, _ = module_of(eject(f"learned_grid(grid=(3, 4), prefix={prefix})"))
    with pytest.raises(IndexError):
        cls(DIM)(torch.zeros(1, 1, DIM), torch.tensor([place]))


@pytest.mark.parametrize("spec", ["learned", "learned_factorised", "learned_factorised(combine='summed')"])
def test_a_position_out_of_a_table_raises(spec: str) -> None:
    cls, _ = module_of(eject(spec))
    table = cls(DIM, max_seq_len=16)
    with pytest.raises((IndexError, ValueError)):
        table(torch.zeros(1, 17, DIM))
    for position in (-1, 16):
        with pytest.raises(IndexError):
            table(torch.zeros(1, 1, DIM), torch.tensor([position]))


@pytest.mark.parametrize("spec", INITIAL)
def test_initial_weights_are_spread_as_the_librarys(spec: str) -> None:
    cls, arguments = module_of(eject(spec, trained_length=64))
    shape = Shape(512, 4, 8, 64)
    arguments = {name: 512 if name == "d_model" else size for name, size in arguments.items()}
    torch.manual_seed(0)
    actual, expected = cls(**arguments).state_dict(), build(spec, shape).state_dict()
    assert list(actual) == list(expected)
    for name, weight in actual.items():
        if weight.numel() > 49:
            assert weight.std().item() == pytest.approx(expected[name].std().item(), rel=0.3)
            assert weight.mean().item() == pytest.approx(expected[name].mean().item(), abs=0.4 * weight.std().item())


def test_a_table_that_squeezes_positions_has_no_form() -> None:
    with pytest.raises(ValueError, match="no readable form yet with overrun='interpolate'"):
        eject("learned(overrun='interpolate')")


def test_odd_widths_have_a_channel_without_a_pair() -> None:
    for layout in ("interleaved", "concatenated", "sines_first", "cosines_first"):
        encoding = build(f"sinusoidal(layout={layout})", Shape(7, 1, 7, 64)).double()
        cls, _ = module_of(eject(f"sinusoidal(layout={layout})"))
        x = samples(1, 5, 7)
        torch.testing.assert_close(cls(7)(x), encoding(x))


def test_positions_of_several_axes_are_required() -> None:
    for spec in ("sinusoidal(axes=2)", "fourier_features(axes=2)", "learned_factorised(fold=False)", "learned_grid"):
        cls, arguments = module_of(eject(spec))
        with pytest.raises(TypeError, match="position_ids"):
            cls(**arguments)(torch.zeros(1, 3, DIM))
