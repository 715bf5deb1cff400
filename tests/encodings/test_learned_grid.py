"""Tests of the learned grid: rows, prefix, interpolation between cells, and resampling."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import in_one_graph

from posenc import Positions
from posenc.encodings.added.learned_grid import LearnedGrid


def added_vectors(encoding: LearnedGrid, positions) -> torch.Tensor:
    tokens = positions.tokens if isinstance(positions, Positions) else positions.shape[1]
    return encoding(torch.zeros(1, tokens, encoding.dim, dtype=torch.float64), positions=positions)[0]


def test_every_cell_reads_its_row_with_the_last_axis_fastest() -> None:
    encoding = LearnedGrid(3, grid=(2, 3, 4)).double()
    assert torch.equal(added_vectors(encoding, Positions.grid(2, 3, 4)), encoding.table)
    cell = torch.tensor([[[1, 2, 3], [0, 1, 2]]])
    assert torch.equal(added_vectors(encoding, cell), encoding.table[[1 * 12 + 2 * 4 + 3, 1 * 4 + 2]])


def test_prefix_tokens_come_first_and_stand_outside_the_grid() -> None:
    encoding = LearnedGrid(3, grid=(2, 2), prefix=2).double()
    at = encoding.positions()
    assert at.coords[0].tolist() == [[-1, -1], [-2, -2], [0, 0], [0, 1], [1, 0], [1, 1]]
    assert at.order.tolist() == [[0, 1, 2, 3, 4, 5]]
    # The table has the layout of ViT's pos_embed: one row for each token of [CLS] + patches.
    assert torch.equal(added_vectors(encoding, at), encoding.table)
    assert torch.equal(added_vectors(encoding, at.with_coords(at.coords.double())), encoding.table)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=2, max_size=3), prefix=st.integers(0, 2))
def test_between_cells_the_nearest_ones_are_mixed_along_each_axis(
    data: st.DataObject, sizes: list[int], prefix: int
) -> None:
    encoding = LearnedGrid(2, grid=tuple(sizes), prefix=prefix).double()
    place = [data.draw(st.floats(0, n - 1, width=32)) for n in sizes]
    expected = encoding.table[prefix:].detach().view(*sizes, 2)
    for p in place:
        low = int(p)
        expected = (1 - (p - low)) * expected[low] + (p - low) * expected[min(low + 1, len(expected) - 1)]
    actual = added_vectors(encoding, torch.tensor([[place]], dtype=torch.float64))[0]
    assert actual.tolist() == pytest.approx(expected.tolist(), abs=1e-14)
    assert [encoding.formula_added(tuple(place), c) for c in range(2)] == pytest.approx(expected.tolist(), abs=1e-14)


def keys_kernel(x: float, a: float) -> float:
    """Return Keys' cubic convolution kernel (1981)."""
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def weights_by_hand(old: int, new: int, antialias: bool) -> list[list[float]]:
    """Return each old cell's weight in each new one. Borders repeat, or are cut and renormalised if antialiased."""
    rows = []
    for i in range(new):
        centre, row = (i + 0.5) * old / new, [0.0] * old
        if antialias:
            wide = max(old / new, 1)
            row = [
                keys_kernel((j + 0.5 - centre) / wide, -0.5) if int(centre - 2 * wide + 0.5) <= j else 0.0
                for j in range(old)
            ]
            row = [w / math.fsum(row) for w in row]
        else:
            first = math.floor(centre - 0.5) - 1
            for j in range(first, first + 4):
                row[min(max(j, 0), old - 1)] += keys_kernel(centre - 0.5 - j, -0.75)
        rows.append(row)
    return rows


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize(("old", "new"), [((4, 6), (7, 3)), ((5, 5), (5, 5)), ((3, 2, 4), (2, 5, 4)), ((1, 3), (2, 9))])
def test_resampling_is_bicubic_on_every_axis_and_leaves_the_prefix_alone(
    old: tuple, new: tuple, antialias: bool
) -> None:
    encoding = LearnedGrid(3, grid=old, prefix=2, overrun="clamp").double()
    expected = encoding.table[2:].detach().view(*old, 3)
    for axis, (n, m) in enumerate(zip(old, new, strict=True)):
        weights = torch.tensor(weights_by_hand(n, m, antialias), dtype=torch.float64)
        expected = torch.einsum("mn,n...->m...", weights, expected.movedim(axis, 0)).movedim(0, axis)
    twin = encoding.resampled(*new, antialias=antialias)
    assert (twin.grid, twin.prefix, twin.overrun, twin.std) == (new, 2, "clamp", 0.02)
    assert torch.equal(twin.table[:2], encoding.table[:2])
    torch.testing.assert_close(twin.table[2:], expected.flatten(0, -2), rtol=0, atol=1e-12)


def test_a_flat_table_stays_flat_and_the_antialias_flag_changes_a_shrunk_one() -> None:
    encoding = LearnedGrid(1, grid=(12, 12)).double()
    sharp, smooth = (encoding.resampled(5, 5, antialias=flag).table.detach() for flag in (False, True))
    assert float((sharp - smooth).abs().max()) > 1e-3
    torch.nn.init.constant_(encoding.table, 0.7)
    for antialias in (True, False):
        actual = encoding.resampled(17, 5, antialias=antialias).table
        torch.testing.assert_close(actual, torch.full_like(actual, 0.7), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ([[2, 0]], r"position \(2, 0\) is out of .* 2 x 3 cells; for an image of such cells use resampled\(3, 3\)"),
        ([[0, 1], [1, 5]], r"position \(1, 5\) .* use resampled\(2, 6\), or choose overrun='clamp'"),
        ([[0.0, 2.5]], r"position \(0.0, 2.5\) is out of the learned grid"),
        ([[-0.5, 0.0]], r"position \(-0.5, 0.0\) is out of the learned grid .*; shift the positions"),
    ],
)
def test_out_of_the_grid_is_an_error_with_place_size_and_remedy(place: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        added_vectors(LearnedGrid(4, grid=(2, 3)).double(), torch.tensor([place]))


def test_a_prefix_token_that_does_not_exist_is_refused() -> None:
    at = LearnedGrid(4, grid=(2, 3), prefix=2).positions()
    with pytest.raises(ValueError, match="cells and the 1 prefix tokens from -1 to -1; shift the positions"):
        added_vectors(LearnedGrid(4, grid=(2, 3), prefix=1).double(), at)


def test_clamp_reads_the_border() -> None:
    encoding = LearnedGrid(4, grid=(2, 3), prefix=1, overrun="clamp").double()
    actual = added_vectors(encoding, torch.tensor([[[9.0, 0.5], [1.0, 99.0], [5.0, 5.0]]], dtype=torch.float64))
    torch.testing.assert_close(actual[0], encoding.table[1 + 3 : 1 + 5].mean(0), rtol=0, atol=1e-15)
    assert torch.equal(actual[1:], encoding.table[[6, 6]])
    with pytest.raises(ValueError, match="shift the positions"):
        added_vectors(encoding, torch.tensor([[[-0.25, 0.0]]]))


@in_one_graph
def test_in_a_compiled_graph_what_is_out_of_reach_is_nan_and_the_rest_right() -> None:
    encoding = LearnedGrid(4, grid=(2, 3), prefix=1).double()
    run = torch.compile(lambda x, at: encoding(x, positions=at), backend="eager", fullgraph=True)
    actual = run(
        torch.zeros(1, 4, 4, dtype=torch.float64), torch.tensor([[[1.0, 2.0], [1.0, 3.0], [-1.0, -1.0], [0.0, 0.5]]])
    )
    assert actual[0, 1].isnan().all()
    expected = torch.stack((encoding.table[6], encoding.table[0], encoding.table[1:3].mean(0)))
    torch.testing.assert_close(actual[0, [0, 2, 3]], expected, rtol=0, atol=1e-15)


def test_resampling_needs_a_size_for_each_axis() -> None:
    with pytest.raises(ValueError, match=r"a grid of 2 axes needs as many sizes of 1 or more, got \(4,\)"):
        LearnedGrid(4, grid=(2, 3)).resampled(4)


def test_the_table_starts_normal_and_max_len_makes_a_square() -> None:
    encoding = LearnedGrid(64, max_len=20, std=0.5)
    assert encoding.cells == (20, 20) and encoding.table.std().item() == pytest.approx(0.5, rel=0.05)
    assert encoding.resampled(4, 5).table.dtype == torch.float32
