"""Interpolated tables are bit-exact at integers; fractions, positions past the end and NaN are checked by hand."""

import pytest
import torch
import torch.nn.functional as F

from posenc.encoding.interpolation import interpolate, interpolate_on_axes, neighbours

TABLE = torch.tensor([[0.0, 1.0], [10.0, 3.0], [30.0, -5.0]])


def read(row: torch.Tensor) -> torch.Tensor:
    return F.embedding(row, TABLE)


def test_a_place_lies_above_its_row_by_its_share() -> None:
    row, share = neighbours(torch.tensor([2.25, 0.0, -0.5, torch.nan]))
    assert row.tolist() == [2, 0, -1, 0] and row.dtype == torch.int64
    assert share[:3].tolist() == [0.25, 0.0, 0.5] and share[3].isnan()


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_whole_places_give_their_rows_to_the_bit(dtype: torch.dtype) -> None:
    values = interpolate(read, torch.tensor([[2, 0], [1, 1]], dtype=dtype), 2)
    assert torch.equal(values, TABLE[torch.tensor([[2, 0], [1, 1]])])


def test_a_fraction_mixes_the_rows_around_it_and_the_last_stands_above_itself() -> None:
    values = interpolate(read, torch.tensor([0.25, 1.5, 2.75]), 2)
    assert values.tolist() == [[2.5, 1.5], [20.0, -1.0], [30.0, -5.0]]


def test_numbers_and_vectors_are_read_alike() -> None:
    values = interpolate(lambda row: TABLE[row, 0], torch.tensor([0.25, 1.5]), 2)
    assert values.tolist() == [2.5, 20.0]


def test_a_place_that_is_not_known_gives_no_number() -> None:
    values = interpolate(read, torch.tensor([torch.nan, 1.0]), 2)
    assert values[0].isnan().all() and values[1].tolist() == [10.0, 3.0]


def test_the_gradient_goes_to_the_two_rows_by_their_shares() -> None:
    table = TABLE.clone().requires_grad_()
    interpolate(lambda row: F.embedding(row, table), torch.tensor([1.25]), 2).sum().backward()
    assert table.grad is not None and table.grad.tolist() == [[0.0, 0.0], [0.75, 0.75], [0.25, 0.25]]


def test_on_two_axes_four_cells_are_mixed() -> None:
    grid = torch.arange(12.0).view(3, 4)

    def cells(cell: torch.Tensor) -> torch.Tensor:
        return grid[cell[..., 0].clamp(max=2), cell[..., 1].clamp(max=3)][..., None]

    place = torch.tensor([[1.25, 2.5], [0.0, 3.0], [2.0, 0.5], [torch.nan, 0.0]])
    values = interpolate_on_axes(cells, place, torch.float32)[..., 0]
    # The grid is a plane, which linear interpolation gives back.
    assert values[:3].tolist() == [4 * 1.25 + 2.5, 3.0, 8.5] and values[3].isnan()
    assert torch.equal(interpolate_on_axes(cells, torch.tensor([[1, 2]]), torch.float32), torch.tensor([[6.0]]))
