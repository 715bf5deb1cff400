"""Learned tables of another size, against torch's interpolate, transformers' models and our own encodings."""

import numpy
import pytest
import torch
import torch.nn.functional as F

from posenc.checkpoints.conversion.tables import (
    resample,
    resampling,
    resize_grid,
    resize_positions,
)
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.learned_grid import LearnedGrid
from posenc.tokens.positions import Positions

SIZES = [(5, 9), (9, 5), (7, 7), (1, 4), (4, 1), (37, 16)]


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("align_corners", [True, False])
def test_between_two_rows_the_new_ones_are_numpys(old: int, new: int, align_corners: bool) -> None:
    table = torch.randn(old, 3, dtype=torch.float64)
    if align_corners:
        places = numpy.linspace(0, old - 1, new)
    else:
        places = numpy.clip((numpy.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    expected = numpy.stack([numpy.interp(places, numpy.arange(old), row) for row in table.T.numpy()], 1)
    actual = resample(table, [resampling(old, new, "linear", align_corners=align_corners)])
    torch.testing.assert_close(actual, torch.from_numpy(expected))


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_the_nearest_row_is_torchs_nearest_exact(old: int, new: int) -> None:
    table = torch.randn(old, 3, dtype=torch.float64)
    expected = F.interpolate(table.T[None], new, mode="nearest-exact")[0].T
    assert resample(table, [resampling(old, new, "nearest")]).equal(expected)


def test_the_nearest_row_keeps_the_ends_where_they_are_aligned() -> None:
    assert resampling(3, 5, "nearest", align_corners=True).argmax(1).tolist() == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(("old", "new"), [(5, 9), (12, 30), (7, 7)])
def test_a_table_that_is_a_straight_line_stays_one(old: int, new: int) -> None:
    # Lines are reproduced away from the ends.
    line = torch.arange(old, dtype=torch.float64)[:, None]
    actual = resample(line, [resampling(old, new)])[:, 0]
    expected = (torch.arange(new, dtype=torch.float64) + 0.5) * old / new - 0.5
    within_line = (expected >= 2) & (expected <= old - 3)
    assert within_line.any()
    torch.testing.assert_close(actual[within_line], expected[within_line])


def test_the_cubic_kernel_is_keys_with_minus_three_quarters() -> None:
    # At a distance of 1/2 from the two nearest of four rows: (a/8, 1/2 - a/8, ...) twice mirrored, with a = -3/4.
    row = resampling(5, 9, "cubic", align_corners=True)[3]
    torch.testing.assert_close(row, torch.tensor([-0.09375, 0.59375, 0.59375, -0.09375, 0.0], dtype=torch.float64))


def test_positions_read_what_learned_interpolate_reads() -> None:
    encoding = Learned(6, max_len=8, overrun="interpolate")
    at = Positions.count(20).with_horizon(20)
    expected = encoding(torch.zeros(1, 20, 6), positions=at)[0]
    torch.testing.assert_close(resize_positions(encoding.table.detach(), 20), expected.detach())


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_rows_before_the_first_position_are_kept(offset: int) -> None:
    table = torch.randn(offset + 8, 4)
    new = resize_positions(table, 15, offset=offset)
    assert new.shape == (offset + 15, 4) and new[:offset].equal(table[:offset])
    assert new[offset].equal(table[offset]) and new[-1].equal(table[-1]) and new[offset + 2].equal(table[offset + 1])


def test_half_precision_is_rounded_once() -> None:
    table = torch.randn(16, 4).bfloat16()
    new = resize_positions(table, 31)
    assert new.dtype == torch.bfloat16
    assert new.equal(resize_positions(table.double(), 31).bfloat16())


@pytest.mark.parametrize("new", [(9, 12), (3, 5), (10, 4), (6, 9)])
@pytest.mark.parametrize("how", ["linear", "cubic"])
def test_a_grid_is_torchs_interpolate_with_its_prefix_kept(new: tuple[int, int], how: str) -> None:
    table = torch.randn(1, 3 + 6 * 9, 5, dtype=torch.float64)
    mode = {"linear": "bilinear", "cubic": "bicubic"}[how]
    image = table[:, 3:].view(1, 6, 9, 5).permute(0, 3, 1, 2)
    expected = F.interpolate(image, new, mode=mode).permute(0, 2, 3, 1).flatten(1, 2)
    actual = resize_grid(table, (6, 9), new, how, prefix=3)
    assert actual.shape == (1, 3 + new[0] * new[1], 5) and actual[:, :3].equal(table[:, :3])
    torch.testing.assert_close(actual[:, 3:], expected)


def test_a_grid_of_three_axes_is_learned_grids_resampled() -> None:
    encoding = LearnedGrid(4, grid=(3, 4, 5), prefix=2)
    expected = encoding.resampled(5, 3, 6, antialias=False).table
    actual = resize_grid(encoding.table.detach(), (3, 4, 5), (5, 3, 6), prefix=2)
    torch.testing.assert_close(actual, expected.detach())


def test_bad_sizes_are_refused_with_what_was_expected() -> None:
    table = torch.randn(9, 4)
    for call, words in (
        (lambda: resampling(0, 3), "a table has 1 row or more, got 0 to resize to 3"),
        (lambda: resampling(3, 3, "spline"), "interpolation must be one of linear, cubic, nearest, got 'spline'"),
        (lambda: resize_positions(table, 4, offset=9), r"an offset in it, got \[9, 4\], 9"),
        (lambda: resize_positions(table, 0), "a table has 1 row or more, got 9 to resize to 0"),
        (
            lambda: resize_grid(table, (2, 4), (3, 3)),
            r"2 x 4 cells and 0 prefix rows needs 8 rows, got a table \[9, 4\]",
        ),
        (lambda: resize_grid(table, (3, 3), (3, 3, 1)), r"as many axes as the old one \(3, 3\), got \(3, 3, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


# transformers, where it ships the same thing


def test_vit_and_dinov2_resample_their_tables_like_this() -> None:
    from transformers import Dinov2Config, ViTConfig
    from transformers.models.dinov2.modeling_dinov2 import Dinov2Embeddings
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    small = {"hidden_size": 8, "image_size": 20, "patch_size": 4}
    for reference in (ViTEmbeddings(ViTConfig(**small)), Dinov2Embeddings(Dinov2Config(**small))):
        torch.nn.init.normal_(reference.position_embeddings)
        table = reference.position_embeddings.detach()
        for height, width in ((36, 24), (12, 20), (20, 36)):
            grid = (height // 4, width // 4)
            expected = reference.interpolate_pos_encoding(torch.zeros(1, 1 + grid[0] * grid[1], 8), height, width)
            torch.testing.assert_close(resize_grid(table, (5, 5), grid, prefix=1), expected.detach())
