"""Factorised tables, folded and not, agree with loops written from the formula."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc import Positions
from posenc.encodings.added.learned_factorised import LearnedFactorised
from posenc.encodings.added.learned_grid import LearnedGrid


def added_vectors(encoding: LearnedFactorised, positions) -> torch.Tensor:
    tokens = positions.tokens if isinstance(positions, Positions) else positions.shape[-1 if encoding.fold else 1]
    return encoding(torch.zeros(1, tokens, encoding.dim, dtype=torch.float64), positions=positions)[0]


def vector(encoding: LearnedFactorised, cell) -> torch.Tensor:
    """Return the vector of an integer cell from the tables alone."""
    rows = [table[c] for table, c in zip(encoding.tables, cell, strict=True)]
    return torch.cat(rows) if encoding.combine == "concatenated" else torch.stack(rows).sum(0)


@pytest.mark.parametrize("combine", ["concatenated", "summed"])
@pytest.mark.parametrize("grid", [(3, 4), (2, 3, 2)])
def test_folded_positions_run_row_by_row(grid: tuple, combine: str) -> None:
    encoding = LearnedFactorised(7, grid=grid, combine=combine).double()
    cells = Positions.grid(*grid).coords[0].tolist()
    expected = torch.stack([vector(encoding, cell) for cell in cells])
    assert torch.equal(added_vectors(encoding, Positions.count(len(cells))), expected)
    apart = LearnedFactorised(7, grid=grid, combine=combine, fold=False).double()
    apart.load_state_dict(encoding.state_dict())
    assert torch.equal(added_vectors(apart, Positions.grid(*grid)), expected)


@settings(max_examples=25, deadline=None)
@given(p=st.floats(0, 11, width=32), combine=st.sampled_from(["concatenated", "summed"]))
def test_between_folded_positions_the_two_neighbours_are_mixed(p: float, combine: str) -> None:
    encoding = LearnedFactorised(5, grid=(3, 4), combine=combine).double()
    low = int(p)
    pair = [vector(encoding, divmod(q, 4)) for q in (low, min(low + 1, 11))]
    expected = (1 - (p - low)) * pair[0] + (p - low) * pair[1]
    actual = added_vectors(encoding, torch.tensor([p], dtype=torch.float64))[0]
    assert actual.tolist() == pytest.approx(expected.tolist(), abs=1e-15)
    assert [encoding.formula_added(p, c) for c in range(5)] == pytest.approx(expected.tolist(), abs=1e-15)


@settings(max_examples=25, deadline=None)
@given(r=st.floats(0, 2, width=32), c=st.floats(0, 3, width=32), combine=st.sampled_from(["concatenated", "summed"]))
def test_between_cells_each_axis_is_mixed_by_itself(r: float, c: float, combine: str) -> None:
    encoding = LearnedFactorised(5, grid=(3, 4), combine=combine, fold=False).double()
    rows = []
    for table, p in zip(encoding.tables, (r, c), strict=True):
        low = int(p)
        rows.append((1 - (p - low)) * table[low] + (p - low) * table[min(low + 1, len(table) - 1)])
    expected = torch.cat(rows) if combine == "concatenated" else rows[0] + rows[1]
    actual = added_vectors(encoding, torch.tensor([[[r, c]]], dtype=torch.float64))[0]
    assert actual.tolist() == pytest.approx(expected.tolist(), abs=1e-15)
    assert [encoding.formula_added((r, c), k) for k in range(5)] == pytest.approx(expected.tolist(), abs=1e-15)


@pytest.mark.parametrize(
    ("max_len", "sizes"), [(1, (1, 1)), (5, (2, 3)), (16, (4, 4)), (17, (4, 5)), (21, (5, 5)), (4096, (64, 64))]
)
def test_the_grid_of_a_length_is_nearly_square_and_long_enough(max_len: int, sizes: tuple) -> None:
    encoding = LearnedFactorised(4, max_len)
    assert encoding.sizes == sizes and math.prod(sizes) >= max_len
    assert sum(table.shape[0] for table in encoding.tables) == sum(sizes)
    assert LearnedFactorised(4, max_len, fold=False).sizes == (max_len, max_len)


def test_channels_are_shared_out_evenly_unless_widths_say_otherwise() -> None:
    def widths(**options) -> list[int]:
        return [table.shape[1] for table in LearnedFactorised(8, grid=(2, 2, 2), **options).tables]

    assert widths() == [3, 3, 2] and widths(widths=(1, 1, 6)) == [1, 1, 6] and widths(combine="summed") == [8, 8, 8]


@pytest.mark.parametrize("antialias", [True, False])
def test_resampling_a_table_of_each_axis_is_resampling_the_whole_grid(antialias: bool) -> None:
    encoding = LearnedFactorised(6, grid=(5, 3), combine="summed", fold=False).double()
    whole = LearnedGrid(6, grid=(5, 3)).double()
    with torch.no_grad():
        whole.table.copy_(added_vectors(encoding, Positions.grid(5, 3)))
    twin = encoding.resampled(3, 7, antialias=antialias)
    assert twin.sizes == (3, 7) and twin.combine == "summed"
    expected = whole.resampled(3, 7, antialias=antialias).table
    torch.testing.assert_close(added_vectors(twin, Positions.grid(3, 7)), expected, rtol=0, atol=1e-14)
    half = encoding.float().resampled(3, 7, antialias=antialias)
    torch.testing.assert_close(added_vectors(half, Positions.grid(3, 7)).double(), expected, rtol=0, atol=1e-7)


def test_folded_tables_do_not_resample_and_say_why() -> None:
    with pytest.raises(ValueError, match=r"folds positions over its grid; only tables of several axes resample"):
        LearnedFactorised(6, grid=(5, 3)).resampled(3, 7)
    with pytest.raises(ValueError, match=r"a grid of 2 axes needs as many sizes of 1 or more, got \(0, 3\)"):
        LearnedFactorised(6, grid=(5, 3), fold=False).resampled(0, 3)


def test_any_number_of_tokens_may_be_trained_on() -> None:
    # Reformer's own code raises unless the tokens fill the grid.
    encoding = LearnedFactorised(6, grid=(5, 3)).train()
    encoding(torch.zeros(2, 4, 6)).sum().backward()
    grads = [table.grad for table in encoding.tables]
    assert grads[0] is not None and grads[0][:, 0].tolist() == [6.0, 2.0, 0.0, 0.0, 0.0]
    assert grads[1] is not None and grads[1][:, 0].tolist() == [4.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("fold", "place", "words"),
    [
        (
            True,
            [15],
            r"position 15 is out of learned tables of 5 x 3 positions, .*; build them with max_len=16 or more",
        ),
        (
            True,
            [-0.5],
            "position -0.5 is out of learned tables of 5 x 3 positions, which begin at 0; shift the positions",
        ),
        (
            False,
            [[[1, 3]]],
            r"position \(1, 3\) is out of .*; build them with grid=\(5, 4\) or more, or choose overrun='clamp'",
        ),
    ],
)
def test_out_of_the_tables_is_an_error_with_position_sizes_and_remedy(fold: bool, place: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        added_vectors(LearnedFactorised(4, grid=(5, 3), fold=fold).double(), torch.tensor(place))


def test_clamp_reads_the_last_rows() -> None:
    encoding = LearnedFactorised(4, grid=(5, 3), overrun="clamp").double()
    assert torch.equal(added_vectors(encoding, torch.tensor([14, 15, 900])), vector(encoding, (4, 2)).expand(3, 4))
    apart = LearnedFactorised(4, grid=(5, 3), fold=False, overrun="clamp").double()
    assert torch.equal(added_vectors(apart, torch.tensor([[[2, 9]]]))[0], vector(apart, (2, 2)))


def test_in_a_compiled_graph_what_is_out_of_reach_is_nan_and_the_rest_right() -> None:
    encoding = LearnedFactorised(4, grid=(2, 3)).double()
    run = torch.compile(lambda x, at: encoding(x, positions=at), backend="eager", fullgraph=True)
    actual = run(torch.zeros(1, 3, 4, dtype=torch.float64), torch.tensor([5, 6, 1]))
    assert actual[0, 1].isnan().all()
    assert torch.equal(actual[0, [0, 2]], torch.stack((vector(encoding, (1, 2)), vector(encoding, (0, 1)))))
