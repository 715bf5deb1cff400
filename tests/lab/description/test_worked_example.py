"""The worked example: every number by hand."""

import math

import pytest

from posenc.lab.description.worked_example import worked_example


def test_the_same_word_has_the_same_token_vector_and_another_sum() -> None:
    example = worked_example()
    assert example.tokens == ["the", "dog", "bit", "the", "man"] and example.ids == [0, 1, 2, 0, 3]
    assert example.token_vectors[0] == example.token_vectors[3] != example.token_vectors[1]
    assert example.combined[0] != example.combined[3]


def test_the_position_vectors_are_sines_and_cosines() -> None:
    for position, vector in enumerate(worked_example(dim=4).position_vectors):
        expected = [math.sin(position), math.cos(position), math.sin(position / 100), math.cos(position / 100)]
        assert vector == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned(std=1.0)"])
@pytest.mark.parametrize("dim", [1, 3, 4])
def test_combined_is_the_sum_number_by_number(encoding: str, dim: int) -> None:
    example = worked_example(["a", "b", "a"], dim, encoding)
    for token, position, combined in zip(
        example.token_vectors, example.position_vectors, example.combined, strict=True
    ):
        assert len(token) == len(position) == len(combined) == dim
        assert combined == pytest.approx([t + p for t, p in zip(token, position, strict=True)], abs=1e-6)


def test_the_table_has_a_row_for_each_token_with_signs_and_three_digits() -> None:
    headers, rows = worked_example(["x", "y"], 2).table()
    assert headers == ["position", "token", "id", "token vector", "+ position vector", "= combined vector"]
    assert [row[:3] for row in rows] == [["0", "x", "0"], ["1", "y", "1"]]
    assert rows[0][4] == "+0.000 +1.000" and rows[1][4] == "+0.841 +0.540"
    assert all(number[0] in "+-" and len(number) == 6 for row in rows for cell in row[3:] for number in cell.split())


def test_a_seed_gives_the_same_example() -> None:
    assert worked_example(seed=4) == worked_example(seed=4) != worked_example(seed=5)


def test_ids_and_vectors_of_ones_own_are_what_is_added_to() -> None:
    vectors = [[1.0, 0.0], [-1.0, 0.5]]
    example = worked_example(["a", "b", "a"], ids=[1, 0, 1], vectors=vectors)
    assert example.ids == [1, 0, 1] and example.token_vectors == [vectors[1], vectors[0], vectors[1]]
    assert example.combined[1] == pytest.approx([1 + math.sin(1), math.cos(1)], abs=1e-6)


def test_ids_alone_say_which_words_are_the_same_however_large_they_are() -> None:
    example = worked_example(["a", "b", "unknown"], ids=[128_000, 7, 7])
    assert example.ids == [128_000, 7, 7]
    assert example.token_vectors[0] != example.token_vectors[1] == example.token_vectors[2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": []}, "a worked example needs at least one token"),
        ({"tokens": ["a"], "ids": [1, 2]}, "each word has one id; there are 1 words and 2 ids"),
        ({"tokens": ["a", "a"], "ids": [1, 2]}, "a word has one id, and 'a' has 1 and 2"),
        ({"tokens": ["a"], "ids": [-1]}, "an id must be a whole number of 0 or more, got -1"),
        ({"tokens": ["a"], "ids": [2], "vectors": [[1.0]]}, "id 2 has no vector: 1 are given, for ids 0 to 0"),
        ({"tokens": ["a"], "vectors": [[1.0], [1.0, 2.0]]}, "vectors must all have one width, .* they have 1, 2"),
        ({"tokens": ["a"], "vectors": [[1.0]], "dim": 4}, "dim=4 and vectors of 1 numbers are given; leave dim out"),
        ({"dim": 0}, "dim must be 1 or more, got 0"),
        (
            {"encoding": "alibi"},
            r"alibi adds nothing to embeddings; a worked example needs one that does, such as sinusoidal or learned",
        ),
        ({"encoding": "sinusodal"}, "no encoding named 'sinusodal'; did you mean 'sinusoidal'\\?"),
    ],
)
def test_what_cannot_be_worked_is_refused(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        worked_example(**options)
