"""The changelog: a page for each version, a line for each change, and fragments that are lines of the next page."""

import re
from pathlib import Path

import pytest
from code_in_texts import HOME

CHANGES = HOME / "docs" / "changes"
FRAGMENTS = sorted((CHANGES / "fragments").glob("*"))
PAGES = sorted(CHANGES.glob("*.md"))
LETTERS = 200


def is_an_entry(line: str) -> bool:
    return len(line) <= LETTERS and line.endswith(".") and not line[0].isspace()


def test_a_fragment_is_one_line_under_a_name_that_says_of_which_kind_it_is() -> None:
    for path in FRAGMENTS:
        assert re.fullmatch(r"\+[a-z0-9-]+\.(added|changed|fixed|removed)\.md", path.name), path.name
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) == 1 and is_an_entry(lines[0]), path.name


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_lines_under_four_headings_and_the_changelog_links_it(path: Path) -> None:
    assert f"[{path.stem}](docs/changes/{path.name})" in (HOME / "CHANGELOG.md").read_text(encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings[0] == path.stem and set(headings[1:]) <= {"Added", "Changed", "Fixed", "Removed"}
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line for line in entries if not (line.startswith("- ") or line == "The first version.")] == []
    assert [line for line in entries if not is_an_entry(line)] == []
