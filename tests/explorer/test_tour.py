"""Moving between views: by letters, buttons, links and the browser's back and forward; one at a time, or all."""

import re

import pytest
from explorer.page_actions import settle
from playwright.sync_api import expect

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow


@pytest.fixture
def tour(shared_page):
    """The shared page and its views' names; the test is skipped if there is one view."""

    def start():
        page = shared_page()
        names = page.evaluate("() => posenc.names")
        if len(names) < 2:
            pytest.skip("the page has one view")
        return page, names

    return start


def current(page):
    return page.locator("nav a[aria-current]").get_attribute("href").removeprefix("#")


def test_letters_go_to_the_next_and_the_previous_view(tour):
    page, names = tour()
    for name in names[1:]:
        page.keyboard.press("j")
        expect(page.locator(f"#{name} h2")).to_be_focused()
    page.keyboard.press("j")
    assert current(page) == names[-1]
    page.keyboard.press("K")
    assert current(page) == names[-2]
    expect(page.locator(f"#{names[-2]} h2")).to_be_in_viewport()


def test_letters_within_lists_and_with_control_are_no_commands(tour):
    page, names = tour()
    page.get_by_label("Colours").focus()  # at the foot of the page, below the last view
    settle(page)
    page.keyboard.press("k")
    page.keyboard.press("Control+k")
    assert current(page) == names[-1]
    page.keyboard.press("Escape")


def test_who_speaks_to_the_machine_turns_the_letters_off(tour):
    page, names = tour()
    page.get_by_label("J and K").uncheck()
    settle(page)
    page.keyboard.press("k")
    assert current(page) == names[-1]
    expect(page).to_have_url(re.compile("keys=false"))


def test_buttons_say_where_one_is_and_end_at_the_ends(tour):
    page, names = tour()
    previous_button, next_button = (page.get_by_role("button", name=f"{label} view") for label in ("Previous", "Next"))
    expect(previous_button).to_be_disabled()
    next_button.focus()
    for _ in names[1:]:
        page.keyboard.press("Enter")
    expect(next_button).to_be_disabled()
    expect(page.locator("nav")).to_contain_text(f"{len(names)} of {len(names)}")


def test_back_and_forward_go_through_the_views_that_were_asked_for(tour):
    page, names = tour()
    page.get_by_role("link", name=re.compile(".")).and_(page.locator(f"[href='#{names[-1]}']")).click()
    expect(page).to_have_title(re.compile(re.escape(page.locator(f"#{names[-1]} h2").inner_text())))
    page.go_back()
    expect(page.locator("nav a[aria-current]")).to_have_attribute("href", f"#{names[0]}")
    page.go_forward()
    expect(page.locator("nav a[aria-current]")).to_have_attribute("href", f"#{names[-1]}")


def test_the_last_view_stays_the_one_that_was_asked_for(tour):
    page, names = tour()
    page.keyboard.press("j")
    for _ in names:
        page.keyboard.press("j")
    page.wait_for_timeout(300)
    assert current(page) == names[-1]


def test_one_view_at_a_time(visit):
    page = visit()
    names = page.evaluate("() => posenc.names")
    for name in names:
        assert [view for view in names if page.locator(f"#{view}").is_visible()] == [name]
        expect(page.locator("nav")).to_contain_text(f"{names.index(name) + 1} of {len(names)}")
        expect(page.locator(f"#{name} .figure")).to_be_visible()
        if name != names[-1]:
            page.get_by_role("button", name="Next: ").click()
    page.get_by_label("All views").check()
    for name in names:
        expect(page.locator(f"#{name}")).to_be_visible()
    settle(page)
    assert "only=false" in page.evaluate("() => location.hash")


def test_an_encoding_is_pointed_at_from_the_head_of_the_page(visit):
    page = visit("rotary", "alibi")
    page.get_by_label("alibi").first.check(force=True)
    expect(page).to_have_url(re.compile("encoding=alibi"))
    page.get_by_label("each view's own").check(force=True)
    settle(page)
    assert "encoding" not in page.evaluate("() => location.hash")


def test_only_the_view_that_the_reader_is_in_speaks_and_once_it_rests(shared_page):
    page = shared_page()
    page.evaluate(
        "() => { window.spoken = []; for (const place of document.querySelectorAll('[aria-live]')) "
        "new MutationObserver(() => spoken.push(place.textContent)).observe(place, "
        "{ childList: true, characterData: true, subtree: true }); }"
    )
    slider = page.locator("#sines input[type=range]").first
    slider.focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(900)
    sentence = page.locator("#sines .sentence").inner_text()
    assert page.evaluate("() => spoken") == [sentence]
