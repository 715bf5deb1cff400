"""The view of a transformer block and its doors: their sentences, and the encodings that open them."""

import pytest

from posenc import catalogue
from posenc.explorer import page as explorer


@pytest.fixture
def page(visit):
    return visit("rotary", "alibi", address="#block")


def sentence(page):
    return page.locator("#block .sentence").inner_text()


def test_every_encoding_of_the_catalogue_and_the_page_has_its_doors():
    spec = "rotary(schedule=dynamic_ntk(factor=4)) + alibi"
    entries = {entry["name"]: entry for entry in explorer.door_table([spec])}
    assert set(catalogue.names()) < set(entries)
    for name in catalogue.names():
        assert entries[name]["doors"] == sorted(catalogue.build(name, explorer.SHAPE).doors), name
    assert entries[spec]["doors"] == ["by_distance", "turn"]
    assert entries[spec]["cache"] == "all keys are turned anew at each step"


def test_a_door_says_what_happens_there_and_who_opens_it(page):
    start = "Door 1, embed: added to the embeddings: 6 encodings open it. rotary opens door 2."
    assert sentence(page).startswith(start)
    page.get_by_role("button", name="Door 3, bias").click()
    words = page.locator("#block .words").inner_text()
    assert "scale · q_i · k_j + bias_h(i, j)" in words
    biases = {"by_distance", "biases"}
    opening = [name for name in catalogue.names() if catalogue.build(name, explorer.SHAPE).doors & biases]
    assert f"{len(opening)} encodings open it" in words
    assert page.locator("#block .chips button").all_inner_texts()[0] == "alibi"
    assert set(page.locator("#block .chips button").all_inner_texts()) == set(opening)


@pytest.mark.slow
def test_keys_go_through_the_doors(page):
    page.get_by_role("button", name="Door 1, embed").focus()
    page.keyboard.press("ArrowUp")
    assert sentence(page).startswith("Door 2, turn")
    assert page.evaluate("() => document.activeElement.id") == "block-door-turn"
    page.get_by_role("button", name="Door 4, attend").focus()
    page.keyboard.press("Enter")
    assert sentence(page).startswith("Door 4, attend")
    assert page.locator("#block .door[aria-pressed=true]").count() == 1


def test_an_encoding_lights_up_its_doors_and_says_what_is_cached(page):
    def lit():
        return page.evaluate("() => [...document.querySelectorAll('#block .door.lit')].map((door) => door.id).sort()")

    assert lit() == ["block-door-turn"]
    cache = "A KV cache holds keys already turned by their positions, and values; besides: nothing more."
    assert cache in sentence(page)
    choice = page.locator("#block").get_by_role("combobox", name="encoding")
    choice.select_option("forgetting")
    assert lit() == ["block-door-bias", "block-door-remember"]
    assert "keys as they are projected" in sentence(page)
    assert "8 numbers per token and layer beside k and v" in sentence(page)
    choice.select_option("log_temperature")
    assert lit() == ["block-door-turn"] and "keys as they are projected" in sentence(page)
    choice.select_option("none")
    assert lit() == [] and "none opens none." in sentence(page)
    page.get_by_role("button", name="Door 4, attend").click()
    page.locator("#block .chips").get_by_role("button", name="shaw", exact=True).click()
    assert lit() == ["block-door-attend", "block-door-bias"]
    assert page.locator("#block .door.lit").first.get_attribute("aria-label").endswith("; open for shaw")


@pytest.mark.slow
def test_the_address_keeps_it_on_a_phone(visit):
    page = visit("rotary", address="#block?encoding=path&block.door=remember", width=360)
    assert sentence(page).startswith(
        "Door +, remember: kept beside keys and values: 4 encodings open it. path opens doors 4 and +."
    )
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
    heights = page.evaluate(
        "() => [...document.querySelectorAll('#block svg text')].map((text) => text.getBoundingClientRect().height)"
    )
    # A line of letters of 11 px takes some 12.
    assert min(heights) >= 12
