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
    assert any("long sentence" in fault for fault in WORDS["unclear_sentences"]({file: tree}))
    assert any(fault.endswith("ever") for fault in WORDS["banned_words"](file))


def test_the_names_of_a_page_are_read(tmp_path: Path) -> None:
    (tmp_path / "View.svelte").write_text("<script>\n  let shown = $state(0);\n  function rows() {}\n</script>\n")
    assert list(WORDS["names_of_page"](tmp_path / "View.svelte")) == [("shown", 2), ("rows", 3)]
