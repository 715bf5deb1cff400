"""The cache view agrees with posenc's cache: tokens, positions, error messages, and the code that it shows."""

import math
import random
import re

import pytest
import torch
from explorer.page_actions import settle
from playwright.sync_api import expect

from posenc import Decoder
from posenc.catalogue import build
from posenc.explorer.page import SHAPE, SPECS
from posenc.lab.views.sections import moves

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow

TOKENS, DOCUMENT = "ABCDEFGHIJKLMNOP", "wxyz"


def decoder(spec: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(vocab=64, dim=64, heads=4, layers=1, encoding=spec, max_len=128).eval()


def ids(text: str) -> torch.Tensor:
    return torch.tensor([[ord(letter) % 64 for letter in text]])


LETTERS = {ord(letter) % 64: letter for letter in TOKENS + DOCUMENT}


class RealCache:
    """A cache of posenc, with the value vector of each token to tell the tokens apart."""

    def __init__(self, spec: str) -> None:
        self.model = decoder(spec)
        self.cache, self.document = self.model.cache(), self.model.cache()
        with torch.no_grad():
            self.model(ids(TOKENS), cache=self.cache)
            self.model(ids(DOCUMENT), cache=self.document)
        value, document_value = (cache.layers[0].keys.v[0, 0].clone() for cache in (self.cache, self.document))
        self.token_values = list(zip(TOKENS + DOCUMENT, torch.cat((value, document_value)), strict=True))

    def run_line(self, line: str) -> str:
        """Run a line of the page, and return its error's message or an empty string."""
        try:
            exec(line, {"cache": self.cache, "document": self.document})
        except ValueError as error:
            return str(error)
        return ""

    def rows(self) -> list[list]:
        """Return (token, position, position at which its key was first rotated) in order of position."""
        keys = self.cache.layers[0].keys
        if keys is None:
            return []
        first = keys.at.coords if keys.turned is None else keys.turned
        rows = []
        for n, place in enumerate(keys.at.order[0].tolist()):
            if place >= 0:
                token = next(name for name, value in self.token_values if torch.equal(value, keys.v[0, 0, n]))
                rows.append([token, place, int(first[0, n, 0])])
        return sorted(rows, key=lambda row: row[1])


def sentence(page):
    return page.locator("#cache .sentence").inner_text().replace("\N{MINUS SIGN}", "-")


def table_rows(page):
    """Return the rows of the table "The numbers"."""
    if page.locator("#cache .numbers").count() == 0:
        return []
    if not page.locator("#cache .numbers[open]").count():
        page.locator("#cache .numbers > summary").click()
    page.locator("#cache .numbers tbody tr").first.wait_for()
    cells = page.locator("#cache .numbers tbody").evaluate(
        "(body) => [...body.rows].map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    return [[token, *(float(number) for number in numbers)] for token, *numbers in cells]


def code_lines(page):
    """Return each line of code after the two that fill the cache, with the error that the page promises."""
    first, second, *lines = page.locator("#cache pre").inner_text().split("\n")
    assert (first, second) == ("cache = model.cache()", "model(tokens, cache=cache)")
    return [(line.partition("  # ")[0], line.partition("  # ValueError: ")[2]) for line in lines]


def random_operation(chance):
    """Return a random cache operation as the address writes it."""
    a, b = sorted(chance.sample(range(22), 2))
    shift, sinks, window = chance.choice((-20, -5, -2, 1, 3, 9)), chance.randint(0, 3), chance.randint(2, 6)
    return chance.choice(
        (
            f"drop-{a}-{min(b, a + 5)}",
            f"move-{a}-{b}-{shift}",
            f"move-0-99-{shift}",
            f"crop-{6 + a}",
            f"splice-{a}",
            f"evict-{sinks}-{window}",
            f"evict_in_place-{sinks}-{window}",
        )
    )


@pytest.mark.parametrize(
    "spec", ["rotary", "learned", "alibi", "rotary(schedule=dynamic_ntk(factor=2))", "rotary + xpos"]
)
def test_any_operations_leave_what_they_leave_in_a_cache_of_posenc(visit, spec):
    chance, page = random.Random(spec), visit(spec, address="#cache")
    problems = set()
    for _ in range(10):
        operations = ".".join(random_operation(chance) for _ in range(6))
        page.evaluate("(hash) => (location.hash = hash)", f"#cache?only=true&cache.done={operations}")
        expect(page.locator("#cache pre")).to_have_text(re.compile(r"(\n.*){7}"))
        real = RealCache(spec)
        for line, problem in code_lines(page):
            assert real.run_line(line) == problem, (operations, line)
            problems.add(re.split(r"[,;\d]", problem)[0].strip())
        assert [row[:3] for row in table_rows(page)] == real.rows(), operations
        page.evaluate("(hash) => (location.hash = hash)", "#cache?only=true")
        expect(page.locator("#cache pre")).not_to_contain_text("cache.")
    fixed_keys = {"tokens would stand elsewhere"}
    clashes = {"a token would come to order -", "two tokens of a row would have order", "the cache holds"}
    assert problems - {""} >= (fixed_keys if spec in ("learned", "rotary + xpos") else clashes)


def test_every_spec_of_a_page_says_what_becomes_of_its_keys(visit):
    page = visit(address="#cache")
    cells = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator("#cache .ways tr").all()
    }
    assert {name: way for name, (way, _) in cells.items()} == {spec: build(spec, SHAPE).moves for spec in SPECS}
    assert [name for name, (_, words) in cells.items() if words == "keys are rotated by the difference"] == ["rotary"]


def test_angles_are_those_by_which_a_moved_key_differs(visit):
    page = visit("rotary(base=500)", address="#cache?cache.done=move-0-16-5&position=9&pair=3")
    spectrum = build("rotary(base=500)", SHAPE).spectrum()[0].flatten()
    row = table_rows(page)[4]
    assert row[:4] == ["E", 9, 4, 5]
    assert row[4:] == pytest.approx((5 * spectrum).tolist(), rel=1e-5)
    assert sentence(page).endswith(
        f"pair 3 is rotated by 5 \N{MULTIPLICATION SIGN} {spectrum[3]:.4g} = {5 * spectrum[3]:.4g} rad."
    )
    # posenc's key before and after the move.
    real = RealCache("rotary(base=500)")
    layer = real.cache.layers[0]
    key_before = layer.keys.k[0, 0, 4, [3, 11]].tolist()
    real.cache.move(by=5)
    key_after = layer.rotated_keys(layer.keys, build("rotary(base=500)", SHAPE)).k[0, 0, 4, [3, 11]].tolist()
    angle = math.atan2(*reversed(key_after)) - math.atan2(*reversed(key_before))
    assert angle % (2 * math.pi) == pytest.approx(row[7], abs=1e-5)


@pytest.mark.parametrize(
    ("spec", "way", "in_rows", "keys_turn", "angles"),
    [
        ("rotary", "exact", True, True, True),
        ("on(rotary, heads=(0, 1))", "exact", True, True, False),
        ("polar", "exact", True, True, False),
        ("learned_rotary", "exact", True, True, False),
        ("alibi", "exact", True, False, False),
        ("rotary(schedule=dynamic_ntk(factor=2))", "unturned", True, False, False),
        ("axial_rotary", "exact", False, False, False),
    ],
)
def test_what_the_page_is_told_of_an_encoding(spec, way, in_rows, keys_turn, angles):
    key_moves = moves.key_moves(build(spec, SHAPE), SHAPE)
    facts = (key_moves["way"], key_moves["in_rows"], key_moves["is_rotated"], key_moves["angles"] is not None)
    assert facts == (way, in_rows, keys_turn, angles)
    assert key_moves["refusal"] == ""


def test_buttons_do_it_and_take_it_back(visit):
    page = visit("rotary", address="#cache")
    button = page.locator("#cache .operations").get_by_role("button")
    button.filter(has_text="drop 5\N{EN DASH}12").click()
    state = "8 tokens are held, 3 keys are rotated again. P stands at 7, and its key was first rotated at 15"
    assert state in sentence(page)
    assert page.locator("#cache .turned").count() == 3
    button.filter(has_text="splice wxyz at 5").click()
    assert "12 tokens are held, 7 keys are rotated again" in sentence(page)
    button.filter(has_text="undo").click()
    assert "8 tokens are held" in sentence(page)
    button.filter(has_text="start anew").click()
    assert "16 tokens are held, 0 keys are rotated again" in sentence(page)
    expect(button.filter(has_text="undo")).to_be_disabled()


def test_a_refusal_is_said_in_the_words_of_the_library(visit):
    page = visit("learned", address="#cache?cache.done=drop-5-13")
    assert sentence(page).startswith(
        f"Refused: {moves.key_moves(build('learned', SHAPE), SHAPE)['refusal']}. learned (recomputed): 16"
    )
    page.locator("#cache .operations").get_by_role("button", name="the same, in place").click()
    assert sentence(page).startswith("learned (recomputed): 6 tokens are held, 0 of them at a new position")


def test_keys_and_fingers_choose_a_range(visit):
    page = visit("rotary", address="#cache", width=390)
    row = page.locator("#cache svg.row")
    row.focus()
    page.keyboard.press("Home")
    for key in ("ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator("#cache .operations").first).to_contain_text("drop 1\N{EN DASH}3")
    page.locator("#cache .letter", has_text="G").tap(force=True)
    expect(page.locator("#cache .operations").first).to_contain_text("drop 6")
    settle(page)
    assert page.evaluate("() => [posenc.settingsNow().position, posenc.settingsNow().other]") == [6, 6]
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize(
    "operations", ["drop-5", "drop-5-13-2", "burn-1", "move-1-2-1e9", "crop--3", "drop-1-2." * 13 + "drop-1-2"]
)
def test_operations_of_the_address_that_are_none_are_left(visit, operations):
    assert "16 tokens are held" in sentence(visit("rotary", address=f"#cache?cache.done={operations}"))


def test_an_address_that_is_typed_while_the_page_writes_its_own_is_read(visit):
    page = visit("rotary", address="#cache")
    page.evaluate(
        """async () => {
            const due = [], later = window.setTimeout;
            window.setTimeout = (call) => due.push(call);
            document.querySelector("#cache .operations button").click();
            await Promise.resolve();
            location.hash = "#cache?cache.done=crop-3";
            due.forEach((call) => call());
            window.setTimeout = later;
        }"""
    )
    expect(page.locator("#cache .sentence")).to_contain_text("3 tokens are held")


def test_all_may_be_forgotten_and_something_comes_in_its_place(visit):
    page = visit("rotary", address="#cache?cache.done=crop-0.evict-2-4")
    assert "0 tokens are held" in sentence(page)
    page.locator("#cache .operations").get_by_role("button", name="splice wxyz at 0").click()
    assert "4 tokens are held, 0 keys are rotated again" in sentence(page)


def test_encodings_of_several_axes_alone_have_no_row(visit):
    page = visit("axial_rotary", address="#cache")
    assert sentence(page) == "No encoding of this page reads positions on one axis."
    assert page.locator("#cache .ways td").all_inner_texts() == [
        "exact",
        "positions have several axes, and this row has one",
    ]
