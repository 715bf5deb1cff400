"""Where heads look, in the page: what is said is what the records hold."""

import json

import numpy as np
import pytest
from fake_records import comparison, repeat
from tiers import rest_slow

from posenc.explorer.trained import EXAMPLE
from posenc.lab.results import sections
from posenc.lab.results.sections import thousandths

EXPECTED = json.loads(EXAMPLE.read_text())["sections"]["attention"]["tasks"]


def full(rows, tokens):
    return np.array([row + [0] * (tokens - len(row)) for row in rows]) / 1000


def model(task, label):
    [found] = [m for t in EXPECTED if t["task"] == task for m in t["models"] if m["label"] == label]
    return found


def said(page):
    return page.locator("#attention .said").inner_text()


def test_the_weights_in_a_page_are_those_of_the_first_run_that_learned():
    records = repeat({"rotary": (0.9, 0, 0, 0)}) + repeat({"rotary": (1.0, 0, 0, 0)}, first_seed=1)
    [[shown]] = [task["models"] for task in sections.of(records)["attention"]["tasks"]]
    assert (shown["label"], shown["seed"], shown["learned"]) == ("rotary", 1, True)
    for name in ("with", "without"):
        recorded = np.array(records[1]["attention"][name])
        found = [[full(head, 10) for head in layer] for layer in shown[name]]
        assert np.array(found) == pytest.approx(recorded, abs=0.0006)


def test_the_example_that_ships_is_small_and_has_the_form_of_a_run():
    example, run = json.loads(EXAMPLE.read_text()), sections.of(comparison(("repeat",), seeds=1))
    assert EXAMPLE.stat().st_size < 500_000
    assert example["sections"].keys() == run.keys() and example["sections"]["run"]["made"].startswith(
        "posenc compare, "
    )
    for of in (
        lambda s: s["attention"]["tasks"][0]["models"][0],
        lambda s: s["extrapolation"]["tasks"][0]["encodings"][0],
    ):
        assert of(example["sections"]).keys() == of(run).keys()


@pytest.mark.parametrize("causal", rest_slow([True, False], 1))
def test_weights_and_their_means_by_distance_are_those_of_numpy(opened, causal):
    drawn = np.random.default_rng(3).dirichlet(np.ones(9), size=9)
    drawn = np.tril(drawn) if causal else drawn
    page = opened("rotary", address="#sines")
    matrix, means = page.evaluate(
        "rows => { const m = posenc.formulas.weights(rows); return [m, posenc.formulas.weightByDistance(m)]; }",
        thousandths(drawn),
    )
    assert np.array(matrix) == pytest.approx(drawn, abs=0.00051)
    expected = {d: np.diagonal(matrix, -d).mean() for d in range(0 if causal else -8, 9)}
    assert {m["distance"]: m["mean"] for m in means} == pytest.approx(expected, abs=1e-6)


def test_what_is_pointed_at_is_what_the_records_hold(opened):
    page = opened(
        "rotary",
        "alibi",
        address="#attention?attention.task=text&encoding=rotary&attention.beside=alibi&attention.second=with"
        "&attention.layer=1&head=2&position=20&other=19",
    )
    maps = [full(model("text", label)["with"][1][2], 32) for label in ("rotary", "alibi")]
    text = said(page)
    assert text.startswith("text, layer 1, head 2, query “")
    for label, weights in zip(("rotary", "alibi"), maps, strict=True):
        best = int(weights[20].argmax())
        assert f"{label}, with position: most weight, {weights[20, best]:.3g}, on" in text and f"({best}); " in text
        assert f"; {weights[20, 19]:.3g} on" in text
    page.get_by_label("Attention weights of rotary, with position, layer 1, head 2").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert "(19). rotary" in said(page) and f"{maps[0][19, 18]:.3g} on" in said(page)


def test_removing_positions_shows_the_other_map(opened):
    page = opened("rotary", address="#attention?attention.task=repeat&encoding=rotary&position=15&other=3")
    kept, removed = (full(model("repeat", "rotary")[name][0][0], 22) for name in ("with", "without"))
    assert f"rotary, with position: most weight, {kept[15].max():.3g}" in said(page)
    assert f"rotary, position removed: most weight, {removed[15].max():.3g}" in said(page)
    page.locator("#attention").get_by_label("its positions").first.select_option("without")
    assert "with position" not in said(page)


@pytest.mark.slow
def test_a_token_that_is_tapped_is_labelled_whatever_the_width(opened):
    page = opened("alibi", address="#attention?attention.task=text&encoding=alibi", width=360)
    drawing = page.get_by_label("Attention weights of alibi, with position")
    box = drawing.locator("image").first.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 10.5 / 32, box["y"] + box["height"] * 17.5 / 32)
    tokens = model("text", "alibi")["tokens"]
    assert f"query “{tokens[17]}” (17)" in said(page).replace("␣", " ")
    shown = drawing.locator("text").all_text_contents()
    assert tokens[17].replace(" ", "␣") in shown and tokens[10].replace(" ", "␣") in shown
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360


@pytest.mark.slow
def test_the_page_says_what_was_trained_and_does_not_invent_the_rest(opened):
    page = opened("sandwich", address="#attention?encoding=sandwich")
    assert "posenc compare, posenc" in page.locator("#attention .made").inner_text()
    # Nothing was trained for sandwich: the maps of a model that was are shown under its own name.
    assert "sandwich" not in said(page)
