"""Lesson 14: a patch of an image has a row and a column."""

from types import ModuleType

import torch

from posenc.lessons import answer

PLACE = 14


def grid_counts_columns_first(theirs: ModuleType) -> None:
    """grid(rows, columns) is [[0, 0], [0, 1], ...]: (row, column) of each patch, and the column changes fastest"""
    grid = answer(theirs, "grid")
    given = grid(2, 3)
    assert torch.is_tensor(given), f"grid gives a {type(given).__name__}, not a tensor"
    assert tuple(given.shape) == (6, 2), f"2 rows of 3 patches are 6 tokens with 2 numbers, got {tuple(given.shape)}"
    given = given.long().tolist()
    assert given != [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]], "it says (column, row); the row comes first"
    assert given != [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]], "it goes column by column; go row by row"
    assert given == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]], f"of 2 rows and 3 columns it makes {given}"


def rows_are_columns_apart(theirs: ModuleType) -> None:
    """seen_in_a_row(query, key, columns) is the difference of row columns + column"""
    seen = answer(theirs, "seen_in_a_row")
    assert seen((3, 2), (2, 2), 8) != 1, "one row down is not 1: read row by row, a whole row of patches lies between"
    assert seen((3, 2), (2, 2), 8) == 8, f"one row down in an image of 8 columns is 8, got {seen((3, 2), (2, 2), 8)}"
    assert seen((3, 2), (2, 2), 12) == 12, "in an image of 12 columns one row down is 12"
    assert seen((1, 0), (0, 7), 8) == 1, (
        f"the end of a row and the beginning of the next are 1 apart, got {seen((1, 0), (0, 7), 8)}: do not take "
        "absolute values of rows and columns"
    )
    assert seen((2, 2), (3, 2), 8) == -8, "it is query minus key: for a key below the query it is negative"


EXERCISES = (grid_counts_columns_first, rows_are_columns_apart)
