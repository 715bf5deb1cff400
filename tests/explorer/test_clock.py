"""The clock view: its hands agree with posenc's angles, and its controls move them."""

import math

import pytest

from posenc import Rotary, Sinusoidal

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow


def sentence(page):
    return page.locator("#clock .sentence").inner_text()


def set_address(page, address):
    page.evaluate("address => { location.hash = address }", address)
    page.wait_for_timeout(50)


def slider(page, name):
    return page.locator("#clock").get_by_role("slider", name=name, exact=True)


def test_it_counts_the_pairs_that_complete_a_turn(visit):
    page = visit("sinusoidal", address="#clock")
    for dim, base, length in ((128, 10_000, 4096), (128, 500_000, 4096), (64, 100, 12)):
        set_address(page, f"#clock?clock.dim={dim}&clock.base={base}&clock.length={length}")
        complete = int((Rotary(dim, base=float(base)).wavelengths <= length).sum())
        assert f"{complete} of {dim // 2} pairs complete a turn within {length:,} positions" in sentence(page)
        actual = page.evaluate("([d, b]) => posenc.formulas.wavelengths(d, b)", [dim, base])
        assert actual == pytest.approx(Sinusoidal(dim, base=float(base)).wavelengths.tolist(), rel=1e-6)


def test_hands_stand_at_position_times_frequency(visit):
    page = visit("sinusoidal", address="#clock?position=3&pair=1&clock.dim=8")
    angle = 3 * 10_000 ** (-2 / 8)
    for encoding, expected in (
        ("sinusoidal", (math.sin(angle), math.cos(angle))),
        ("rotary", (math.cos(angle), math.sin(angle))),
    ):
        page.locator("#clock").get_by_label("encoding").select_option(encoding)
        hand = page.locator("#clock .hand").nth(1)
        x, y = float(hand.get_attribute("x2")), -float(hand.get_attribute("y2"))
        assert (x / math.hypot(x, y), y / math.hypot(x, y)) == pytest.approx(expected, abs=1e-9)


def test_keys_move_from_pair_to_pair_and_the_slider_moves_the_hands(visit):
    page = visit("sinusoidal", address="#clock?position=12&pair=2")
    page.get_by_label("A clock for each of 32 pairs").press("ArrowRight")
    assert "pair 3 has made" in sentence(page)
    page.get_by_label("The fingerprints of positions").press("ArrowRight")
    assert "pair 4 has made" in sentence(page)
    slider(page, "position").press("ArrowRight")
    assert "Position 13: pair 4" in sentence(page)
    slider(page, "other position").press("ArrowRight")
    table = Sinusoidal(64).table(14)[0]
    assert f"with that of position 6 is {float(table[13] @ table[6]) / 32:.4g}." in sentence(page)
    # A setting out of range becomes the last in range, and an odd width is ignored.
    set_address(page, "#clock?position=4000&clock.length=50&pair=500&clock.dim=17")
    assert "Position 49: pair 31 has made" in sentence(page)


def test_a_finger_chooses_a_pair_and_nothing_is_wider_than_the_phone(visit):
    page = visit("sinusoidal", address="#clock", all_views=True, width=360)
    page.locator("#clock").get_by_text("pair 5", exact=True).tap()
    assert "pair 5 has made" in sentence(page)
    for view in ("clock", "arrows", "shift", "similarity"):
        page.wait_for_selector(f"#{view} .sentence")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_play_moves_the_position_until_it_is_stopped(visit):
    page = visit("sinusoidal", address="#clock?position=12")
    page.locator("#clock").get_by_role("button", name="Play").click()
    page.wait_for_timeout(400)
    assert sentence(page) == "The hands move."
    page.locator("#clock").get_by_role("button", name="Stop").click()
    last_sentence = sentence(page)
    assert "Position 12:" not in last_sentence
    page.wait_for_timeout(300)
    assert sentence(page) == last_sentence
