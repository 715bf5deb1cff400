"""The attention view shows the weights of the records."""

import json

import numpy as np
import pytest
from fake_records import comparison, repeat
from tiers import rest_slow

from posenc.explorer.training_results import EXAMPLE
from posenc.lab.results import sections
from posenc.lab.results.sections import thousandths

EXPECTED = json.loads(EXAMPLE.read_text())["sections"]["attention"]["tasks"]


def square_weights(rows, tokens):
    return np.array([row + [0] * (tokens - len(row)) for row in rows]) / 1000


def example_model(task, label):
    [entry] = [m for t in EXPECTED if t["task"] == task for m in t["models"] if m["label"] == label]
    return entry


def sentence(page):
    return page.locator("#attention .sentence").inner_text()


def test_the_weights_in_a_page_are_those_of_the_first_run_that_learned():
    records = repeat({"rotary": (0.9, 0, 0, 0)}) + repeat({"rotary": (1.0, 0, 0, 0)}, first_seed=1)
    [[entry]] = [task["models"] for task in sections.record_sections(records)["attention"]["tasks"]]
    assert (entry["label"], entry["seed"], entry["learned"]) == ("rotary", 1, True)
    for name in ("with", "without"):
        expected = np.array(records[1]["attention"][name])
        actual = [[square_weights(head, 10) for head in layer] for layer in entry[name]]
        assert np.array(actual) == pytest.approx(expected, abs=0.0006)


def test_the_example_that_ships_is_small_and_has_the_form_of_a_run():
    example, run = json.loads(EXAMPLE.read_text()), sections.record_sections(comparison(("repeat",), seeds=1))
    assert EXAMPLE.stat().st_size < 500_000
    assert example["sections"].keys() == run.keys() and example["sections"]["run"]["provenance"].startswith(
        "posenc compare, "
    )
    for entry in (
        lambda s: s["attention"]["tasks"][0]["models"][0],
        lambda s: s["extrapolation"]["tasks"][0]["encodings"][0],
    ):
        assert entry(example["sections"]).keys() == entry(run).keys()


@pytest.mark.parametrize("causal", rest_slow([True, False], 1))
def test_weights_and_their_means_by_distance_are_those_of_numpy(visit, causal):
    weights = np.random.default_rng(3).dirichlet(np.ones(9), size=9)
    weights = np.tril(weights) if causal else weights
    page = visit("rotary", address="#sines")
    matrix, means = page.evaluate(
        "rows => { const m = posenc.formulas.weights(rows); return [m, posenc.formulas.weightByDistance(m)]; }",
        thousandths(weights),
    )
    assert np.array(matrix) == pytest.approx(weights, abs=0.00051)
    expected = {d: np.diagonal(matrix, -d).mean() for d in range(0 if causal else -8, 9)}
    assert {m["distance"]: m["mean"] for m in means} == pytest.approx(expected, abs=1e-6)


def test_what_is_pointed_at_is_what_the_records_hold(visit):
    page = visit(
        "rotary",
        "alibi",
        address="#attention?attention.task=text&encoding=rotary&attention.beside=alibi&attention.second=with"
        "&attention.layer=1&head=2&position=20&other=19",
    )
    maps = [square_weights(example_model("text", label)["with"][1][2], 32) for label in ("rotary", "alibi")]
    text = sentence(page)
    assert text.startswith("text, layer 1, head 2, query “")
    for label, weights in zip(("rotary", "alibi"), maps, strict=True):
        best = int(weights[20].argmax())
        assert f"{label}, with position: most weight, {weights[20, best]:.3g}, on" in text and f"({best}); " in text
        assert f"; {weights[20, 19]:.3g} on" in text
    page.get_by_label("Attention weights of rotary, with position, layer 1, head 2").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert "(19). rotary" in sentence(page) and f"{maps[0][19, 18]:.3g} on" in sentence(page)


def test_removing_positions_shows_the_other_map(visit):
    page = visit("rotary", address="#attention?attention.task=repeat&encoding=rotary&position=15&other=3")
    for key, title in (("with", "with position"), ("without", "position removed")):
        weights = square_weights(example_model("repeat", "rotary")[key][0][0], 22)
        assert f"rotary, {title}: most weight, {weights[15].max():.3g}" in sentence(page)
    page.locator("#attention").get_by_label("its positions").first.select_option("without")
    assert "with position" not in sentence(page)


@pytest.mark.slow
def test_a_token_that_is_tapped_is_labelled_whatever_the_width(visit):
    page = visit("alibi", address="#attention?attention.task=text&encoding=alibi", width=360)
    plot = page.get_by_label("Attention weights of alibi, with position")
    box = plot.locator("image").first.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 10.5 / 32, box["y"] + box["height"] * 17.5 / 32)
    tokens = example_model("text", "alibi")["tokens"]
    assert f"query “{tokens[17]}” (17)" in sentence(page).replace("␣", " ")
    labels = plot.locator("text").all_text_contents()
    assert tokens[17].replace(" ", "␣") in labels and tokens[10].replace(" ", "␣") in labels
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360


@pytest.mark.slow
def test_the_page_says_what_was_trained_and_does_not_invent_the_rest(visit):
    page = visit("sandwich", address="#attention?encoding=sandwich")
    assert "posenc compare, posenc" in page.locator("#attention .made").inner_text()
    # The records have no model with sandwich: the view shows another model's maps under that model's name.
    assert "sandwich" not in sentence(page)
