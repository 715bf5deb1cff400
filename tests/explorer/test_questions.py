"""The questions of the guide, and the answers that the page gives to them."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "explorer.md"
ROWS = re.findall(
    r"^\| [^|]* \| [^|]* \| `([a-z]+\??[^`]*)` \| (.*?) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE
)


def test_every_view_has_a_question(kept):
    assert {address.partition("?")[0] for address, _ in ROWS} == set(kept().evaluate("() => posenc.names"))


@pytest.mark.parametrize(("address", "answer"), ROWS, ids=[address for address, _ in ROWS])
def test_the_page_answers_as_the_guide_says(kept, address, answer):
    page = kept()
    page.evaluate("(hash) => { location.hash = hash; }", address)
    said = page.locator(f"#{address.partition('?')[0]} .said")
    from playwright.sync_api import expect

    expect(said).to_contain_text(answer)
