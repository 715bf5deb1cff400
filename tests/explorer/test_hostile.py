"""Names from users are shown in a page as text, and never run."""

import pytest
from explorer.page_actions import settle, with_data
from tiers import rest_slow

HOSTILE = {
    "markup": "</script><script>window.hit=1</script><img src=x onerror=window.hit=1><b><!--<script>"
    "\"'`${window.hit=1}{window.hit=1}&lt;&quot;",
    "letters": "\u202etfel ot thgir\u2066\u200f one\r\ntwo\u2028three\x00\x1b[31m\ud800",
    "long": "x" * 10_000,
}


@pytest.fixture
def hostile_page(visit, browser, write_page, tmp_path):
    """A page with a hostile text after each text that a user may choose."""
    contexts, messages = [], []

    def start(words, width=1400):
        def change(data):
            data["command"] += words
            data["title"] += words
            for encoding in data["encodings"]:
                for part in ("name", "spec"):
                    encoding[part] += words
            for opened_door in data["sections"]["doors"]:
                for part in ("name", "idea", "cache"):
                    opened_door[part] += words

        file = tmp_path / "page.html"
        file.write_text(with_data(write_page("rotary", "alibi", "sinusoidal").read_text(encoding="utf-8"), change))
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: messages.append(dialog.message))
        page.goto(file.as_uri())
        settle(page)
        return page

    yield start
    for context in contexts:
        context.close()
    assert messages == []


@pytest.mark.parametrize("words", rest_slow(HOSTILE.values(), 1), ids=HOSTILE)
def test_a_hostile_name_is_text(hostile_page, words):
    page = hostile_page(words, width=360)
    page.get_by_text("What to ask").click()
    for chip in page.locator("header fieldset input").all():
        chip.check(force=True)
        settle(page)
    assert page.evaluate("() => window.hit") is None
    assert page.locator("#explorer :is(script, img, iframe, object, embed)").count() == 0
    assert page.locator("[role=alert]").count() == 0
    assert page.evaluate("() => document.scrollingElement.scrollWidth <= innerWidth")
    label = page.locator("header fieldset bdi").first.text_content()
    assert label.replace("\ufffd", "\ud800") == "rotary" + words  # half a letter may be shown as a mark
    assert page.locator("header details code bdi").text_content().startswith("posenc explore rotary alibi sinusoidal")


@pytest.mark.slow
def test_a_hostile_name_of_a_file_is_text(visit, tmp_path):
    folder = tmp_path / "<script>window.hit=1<" / "script>"
    folder.mkdir(parents=True)
    file = folder / "mine\u202e.py"
    file.write_text(
        "from posenc import ALiBi\n\n\nclass Mine(ALiBi):\n"
        '    """<script>window.hit=1</script> as an idea."""\n\n'
        '    source = "</script><img src=x onerror=window.hit=1>"\n'
    )
    page = visit(f"{file}:Mine")
    settle(page)
    assert page.evaluate("() => window.hit") is None
    assert page.locator("#explorer img").count() == 0
