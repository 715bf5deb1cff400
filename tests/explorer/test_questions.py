"""The page asks the guide's questions, and gives the guide's answers."""

import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "explorer.md"
ROWS = re.findall(
    r"^\| ([^|]*) \| ([^|]*) \| `([a-z]+\??[^`]*)` \| (.*?) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE
)


def test_what_to_ask_has_the_questions_of_the_guide_one_for_each_view(visit):
    page = visit()
    page.get_by_text("What to ask").click()
    links = page.locator("header details a")
    questions = links.evaluate_all("(all) => all.map((one) => [one.innerText, one.getAttribute('href')])")
    assert questions == [[question, f"#{address}"] for view, question, address, _ in ROWS if view]
    assert [href[1:].partition("?")[0] for _, href in questions] == page.evaluate("() => posenc.names")
    links.last.click()
    page.locator("#cache .sentence", has_text="8 tokens are held").wait_for()


@pytest.mark.parametrize(("address", "answer"), [row[2:] for row in ROWS], ids=[row[2] for row in ROWS])
def test_the_page_answers_as_the_guide_says(shared_page, address, answer):
    page = shared_page()
    page.evaluate("(hash) => { location.hash = hash; }", address)
    sentence = page.locator(f"#{address.partition('?')[0]} .sentence")
    from playwright.sync_api import expect

    expect(sentence).to_contain_text(answer)
