"""Window relative position tables agree with hand-counted rows and torch's interpolation."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from posenc import Positions
from posenc.encodings.distance_biases.grid_bias import GridBias

WINDOWS = [(3, 4), (2, 5), (4,), (1, 3), (2, 2, 3)]


def by_hand(encoding: GridBias, m: tuple[float, ...], n: tuple[float, ...], head: int) -> float:
    """Read the table (nested lists) at a distance by linear interpolation."""
    sizes = [2 * size - 1 for size in encoding.window]
    table = encoding.table[:, head].reshape(sizes)
    where = [min(max(a - b + w - 1, 0), 2 * w - 2) for a, b, w in zip(m, n, encoding.window, strict=True)]
    total = 0.0
    for cell in itertools.product(*map(range, sizes)):
        weight = math.prod(max(0.0, 1 - abs(c - p)) for c, p in zip(cell, where, strict=True))
        total += weight * table[cell].item()
    return total


def test_sizes_in_a_list_are_sizes() -> None:
    assert str(GridBias(2, window=[4, 4])) == str(GridBias(2, window=(4, 4)))


@pytest.mark.parametrize("window", WINDOWS)
def test_every_pair_inside_the_window_reads_its_own_row(window: tuple[int, ...]) -> None:
    encoding = GridBias(2, window=window)
    cells = list(itertools.product(*map(range, window)))
    bias = encoding.bias(Positions.grid(*window))[0]
    for i, m in enumerate(cells):
        for j, n in enumerate(cells):
            assert bias[1, i, j].item() == pytest.approx(by_hand(encoding, m, n, 1), abs=1e-7)
    assert bias[0].unique().numel() == math.prod(2 * n - 1 for n in window)


@given(seed=st.integers(0, 10_000), window=st.lists(st.integers(1, 4), min_size=1, max_size=3), whole=st.booleans())
def test_fractions_mix_the_rows_around_them_and_far_distances_read_the_edge(
    seed: int, window: list[int], whole: bool
) -> None:
    torch.manual_seed(seed)
    encoding, axes = GridBias(2, window=tuple(window), std=1.0).double(), len(window)
    m, n = torch.rand(1, 3, axes, dtype=torch.float64) * 12, torch.rand(1, 4, axes, dtype=torch.float64) * 12
    m, n = (m.round().long(), n.round().long()) if whole else (m, n)
    bias = encoding.bias(m, n, dtype=torch.float64)[0]
    for i, j in itertools.product(range(3), range(4)):
        p, r = tuple(m[0, i].tolist()), tuple(n[0, j].tolist())
        expected = by_hand(encoding, p, r, 1)
        assert bias[1, i, j].item() == pytest.approx(expected, abs=1e-12)
        p, r = (p, r) if axes > 1 else (p[0], r[0])
        assert encoding.formula_logit([0.0], [0.0], p, r, 1, 1.0) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("old", "new"), [((7, 7), (12, 12)), ((7, 7), (4, 9)), ((5,), (8,)), ((2, 3, 4), (3, 3, 2))])
def test_resampling_is_torchs_linear_interpolation(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    encoding = GridBias(3, window=old, std=1.0).double()
    picture = encoding.table.T.reshape(1, 3, *(2 * n - 1 for n in old))
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[len(old)]
    expected = F.interpolate(picture, [2 * n - 1 for n in new], mode=mode, align_corners=False).reshape(3, -1).T
    table = encoding.table.detach().clone()
    twin = encoding.resampled(*new)
    torch.testing.assert_close(twin.table, expected, rtol=0, atol=1e-12)
    assert twin.window == new and encoding.table.equal(table) and twin.table.dtype == torch.float64
    assert twin.table.requires_grad and str(twin) == f"grid_bias(window={new}, std=1.0)"


def test_resampling_to_the_same_window_changes_nothing_and_the_middle_stays() -> None:
    encoding = GridBias(2, window=(4, 6))
    assert encoding.resampled(4, 6).table.equal(encoding.table)
    middle = [table[len(table) // 2] for table in (encoding.table, encoding.resampled(9, 3).table)]
    torch.testing.assert_close(*middle)


def test_the_table_has_a_row_for_each_distance_and_the_given_deviation() -> None:
    assert GridBias(4, window=(7, 7)).table.shape == (169, 4)
    assert GridBias(64, window=(20, 20), std=0.5).table.std().item() == pytest.approx(0.5, rel=0.02)
    assert GridBias(64, window=(20, 20)).table.std().item() == pytest.approx(0.02, rel=0.02)
    assert not GridBias(4, std=0.0).table.any()


def test_half_precision_tables_are_mixed_in_float32() -> None:
    encoding = GridBias(2, window=(3, 3), std=1.0).bfloat16()
    delta = torch.tensor([[0.3, -1.7]])
    expected = GridBias(2, window=(3, 3)).double()
    expected.load_state_dict(encoding.state_dict())
    torch.testing.assert_close(encoding.by_distance(delta).double(), expected.by_distance(delta), rtol=0, atol=1e-6)


def test_resampling_needs_as_many_sizes_as_the_window_has() -> None:
    with pytest.raises(ValueError, match=r"window must have 2 sizes as the old one \(7, 7\), got \(9,\)"):
        GridBias(2).resampled(9)


@pytest.mark.parametrize("dtype", [torch.long, torch.float32])
def test_gradients_of_many_distances_in_a_row_add_up_in_half_precision(dtype: torch.dtype) -> None:
    bias = GridBias(2, window=(3,)).bfloat16()
    bias.by_distance(torch.arange(3000).to(dtype)).float().sum().backward()
    assert bias.table.grad is not None and bias.table.grad[-1].tolist() == [2992, 2992]
