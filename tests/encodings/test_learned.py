"""Tests of the learned absolute encoding: its table, and positions past its end."""

import copy

import pytest
import torch
from torch import Tensor

from posenc import Positions
from posenc.encodings.added.learned import Learned


def table_of(rows: int = 5, dim: int = 3, **options) -> Learned:
    return Learned(dim, rows, **options).double()


def interpolated_row(table: Tensor, row: float) -> Tensor:
    """Interpolate the table linearly at a fractional row."""
    low = int(row)
    share = row - low
    return (1 - share) * table[low] + share * table[min(low + 1, len(table) - 1)]


def added_vectors(encoding: Learned, positions, batch: int = 1) -> Tensor:
    tokens = positions.tokens if isinstance(positions, Positions) else positions.shape[-1]
    return encoding(torch.zeros(batch, tokens, encoding.dim, dtype=torch.float64), positions=positions)


@pytest.mark.parametrize("overrun", ["error", "clamp", "interpolate"])
def test_inside_the_table_every_policy_adds_the_row_of_the_position(overrun: str) -> None:
    encoding = table_of(overrun=overrun)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    assert torch.equal(encoding(x), x + encoding.table[:4])
    assert torch.equal(encoding(x, offset=1), x + encoding.table[1:5])


def test_ids_read_their_rows_in_any_order_and_batch() -> None:
    encoding = table_of()
    ids = torch.tensor([[4, 0, 0], [1, 3, 2]])
    assert torch.equal(added_vectors(encoding, ids, batch=2), encoding.table[ids])


@pytest.mark.parametrize("row", [0.0, 0.25, 2.5, 3.999, 4.0])
@pytest.mark.parametrize("overrun", ["error", "clamp"])
def test_a_fraction_mixes_the_two_neighbouring_rows(overrun: str, row: float) -> None:
    encoding = table_of(overrun=overrun)
    actual = added_vectors(encoding, torch.tensor([row], dtype=torch.float64))[0, 0]
    torch.testing.assert_close(actual, interpolated_row(encoding.table, row), rtol=0, atol=1e-15)
    assert [encoding.formula_added(row, c) for c in range(3)] == pytest.approx(actual.tolist(), abs=1e-15)


def test_past_the_table_the_default_is_an_error_with_position_size_and_remedy() -> None:
    words = (
        r"position 5 is past the learned table of 5 rows; build it with max_len=6 or more, "
        r"or choose overrun='clamp' or overrun='interpolate'"
    )
    for positions in (Positions.count(6), torch.arange(6), torch.tensor([[0], [5]])):
        with pytest.raises(ValueError, match=words):
            added_vectors(table_of(), positions, batch=2)
    with pytest.raises(ValueError, match=r"position 4.25 is past the learned table of 5 rows; build it with max_len=6"):
        added_vectors(table_of(), torch.tensor([4.25]))


@pytest.mark.parametrize("overrun", ["error", "clamp", "interpolate"])
def test_before_the_table_is_an_error_under_every_policy(overrun: str) -> None:
    at = Positions.of(torch.tensor([1.0, -0.5]), horizon=2)
    with pytest.raises(
        ValueError, match=r"a learned table starts at position 0, got position -0\.5; shift the positions"
    ):
        added_vectors(table_of(overrun=overrun), at)


def test_clamp_reads_the_last_row_past_the_table() -> None:
    encoding = table_of(overrun="clamp")
    assert torch.equal(added_vectors(encoding, Positions.count(9))[0], encoding.table[[0, 1, 2, 3, 4, 4, 4, 4, 4]])
    assert torch.equal(added_vectors(encoding, torch.tensor([1e6, 4.5]))[0], encoding.table[[4, 4]])


def test_interpolate_squeezes_a_declared_length_into_the_table() -> None:
    encoding = table_of(overrun="interpolate")
    actual = added_vectors(encoding, Positions.count(9).with_horizon(9))[0]
    expected = torch.stack([interpolated_row(encoding.table, p * 4 / 8) for p in range(9)])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-15)


def test_interpolate_leaves_sequences_that_fit_alone() -> None:
    encoding = table_of(overrun="interpolate")
    for length in (1, 3, 5):
        assert torch.equal(added_vectors(encoding, Positions.count(3).with_horizon(length))[0], encoding.table[:3])


def test_interpolate_needs_a_declared_length_past_the_table() -> None:
    with pytest.raises(
        ValueError,
        match=r"squeezes by the declared horizon of each sequence, and none is declared; give positions.with_horizon",
    ):
        added_vectors(table_of(overrun="interpolate"), Positions.count(6))


def test_interpolate_depends_on_the_declared_length_and_on_nothing_else() -> None:
    encoding = table_of(overrun="interpolate")
    whole = added_vectors(encoding, Positions.count(9).with_horizon(12))
    alone = torch.cat([added_vectors(encoding, Positions.count(1, start=p).with_horizon(12)) for p in range(9)], 1)
    torch.testing.assert_close(whole, alone, rtol=0, atol=0)
    at = Positions.of(torch.arange(4).expand(2, 4)).with_horizon(torch.tensor([12, 4]))
    pair = added_vectors(encoding, at, batch=2)
    torch.testing.assert_close(pair[0], whole[0, :4], rtol=0, atol=0)
    torch.testing.assert_close(pair[1], encoding.table[:4], rtol=0, atol=0)


def test_a_declared_length_that_is_too_short_is_refused_with_the_one_needed() -> None:
    with pytest.raises(
        ValueError,
        match="is past the learned table of 5 rows; the declared horizon is too short for it: declare at least 10",
    ):
        added_vectors(table_of(overrun="interpolate"), Positions.count(10).with_horizon(8))


def test_gradients_reach_the_rows_that_were_read_and_no_others() -> None:
    encoding = table_of(rows=6)
    added_vectors(encoding, torch.tensor([0.0, 2.25], dtype=torch.float64)).sum().backward()
    grad = encoding.table.grad
    assert grad is not None and grad[:, 0].tolist() == [1.0, 0.0, 0.75, 0.25, 0.0, 0.0]


def compile_encoding(encoding: Learned):
    return torch.compile(lambda x, ids: encoding(x, positions=ids), backend="eager", fullgraph=True)


def test_in_a_compiled_graph_rows_out_of_reach_are_nan_and_the_others_right() -> None:
    encoding = table_of()
    x = torch.zeros(1, 4, 3, dtype=torch.float64)
    actual = compile_encoding(encoding)(x, torch.tensor([0, 4, 5, 1]))
    assert actual[0, 2].isnan().all()
    assert torch.equal(actual[0, [0, 1, 3]], encoding.table[[0, 4, 1]])
    assert compile_encoding(encoding)(x, torch.tensor([0.0, -0.5, 1.0, 2.0]))[0, 1].isnan().all()


def test_in_a_compiled_graph_the_last_squeezed_position_is_still_in_the_table() -> None:
    # In floating point 5 * (3/5) exceeds 3 by one unit in the last place.
    encoding = table_of(rows=4, overrun="interpolate")
    run = torch.compile(
        lambda x: encoding(x, positions=Positions.count(6).with_horizon(6)), backend="eager", fullgraph=True
    )
    actual = run(torch.zeros(1, 6, 3, dtype=torch.float64))
    torch.testing.assert_close(actual[0, -1], encoding.table[-1], rtol=0, atol=1e-12)


def test_the_table_starts_normal_with_the_given_deviation() -> None:
    table = Learned(64, 512, std=0.5).table
    assert table.mean().item() == pytest.approx(0, abs=0.02) and table.std().item() == pytest.approx(0.5, rel=0.02)
    assert Learned(64, 512).table.std().item() == pytest.approx(0.02, rel=0.02)


def test_a_table_can_be_made_on_a_device_in_a_dtype_and_copied() -> None:
    encoding = Learned(3, 5, device="meta", dtype=torch.bfloat16)
    assert encoding.table.is_meta and encoding.table.dtype == torch.bfloat16
    assert encoding(torch.zeros(1, 5, 3, device="meta")).is_meta
    real = encoding.to_empty(device="cpu")
    real.reset_parameters()
    assert torch.equal(copy.deepcopy(real).table, real.table)
