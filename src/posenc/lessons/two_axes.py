"""Lesson 14: a patch of an image has a row and a column."""

from types import ModuleType

from posenc.lessons import answer, check_shape, compare

PLACE = 14


def grid_counts_columns_first(answers: ModuleType) -> None:
    """grid(rows, columns) is [[0, 0], [0, 1], ...]: (row, column) of each patch, and the column changes fastest"""
    grid = answer(answers, "grid")
    result = check_shape("grid(2, 3)", grid(2, 3), (6, 2)).tolist()
    assert result != [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]], "it says (column, row); the row comes first"
    assert result != [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2], [1, 2]], "it goes column by column; go row by row"
    assert result == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]], f"of 2 rows and 3 columns it makes {result}"


def rows_are_columns_apart(answers: ModuleType) -> None:
    """seen_in_a_row(query, key, columns): a patch has the position row * columns + column; take query minus key"""
    vectors = answer(answers, "seen_in_a_row")
    mistakes = {
        "one row down is not 1: read row by row, a whole row of patches lies between": 1,
        "this is key minus query; query minus key is asked for": -8,
    }
    compare("seen_in_a_row((3, 2), (2, 2), 8)", vectors((3, 2), (2, 2), 8), 8, mistakes)
    compare("seen_in_a_row((3, 2), (2, 2), 12)", vectors((3, 2), (2, 2), 12), 12, {"it does not read columns": 8})
    mistakes = {"take no absolute values: in the next row, and 7 columns to the left, is the next patch": 15}
    compare("seen_in_a_row((1, 0), (0, 7), 8)", vectors((1, 0), (0, 7), 8), 1, mistakes)
    mistakes = {"query minus key is negative where the key has the larger number; take no absolute value": 8}
    compare("seen_in_a_row((2, 2), (3, 2), 8)", vectors((2, 2), (3, 2), 8), -8, mistakes)


EXERCISES = (grid_counts_columns_first, rows_are_columns_apart)
