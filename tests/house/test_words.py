"""The check of plain words sees what it is for; `run.py check` runs it over the whole project."""

import ast
import runpy
from pathlib import Path

import pytest

WORDS = runpy.run_path(str(Path(__file__).with_name("words.py")))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def rows(config, *, padded=True): width = 3", []),
        ("def of(found): one = given = 2", ["of", "found", "one", "given"]),
        ("class Held:\n    asked: int", ["Held", "asked"]),
        ("import os as inside\nfor __all__, expected in []: pass", ["inside"]),
    ],
)
def test_pronouns_prepositions_and_participles_are_banned(source: str, expected: list[str]) -> None:
    names = [name for name, _ in WORDS["bound_names"](ast.parse(source))]
    assert [name for name in names if WORDS["is_banned"](name)] == expected


def test_a_long_first_sentence_and_a_banned_word_are_faults() -> None:
    file = WORDS["ROOT"] / "CONTRIBUTING.md"  # which has a banned word on purpose
    tree = ast.parse(f'"""{"word " * 26}end."""')
    faults = WORDS["unclear_sentences"]({file: tree})
    assert any("long sentence" in fault for fault in faults) and any(fault.endswith("ever") for fault in faults)
