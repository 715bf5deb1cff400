"""One encoding shown to a person, and all of them in one overview."""

import json
from pathlib import Path

import pytest

from posenc import catalogue
from posenc.lab import tasks
from posenc.lab.describe import Shown, overview, reading_of_order, show
from posenc.lab.order import order_tests
from posenc.schedules import SCHEDULES

PICTURES = {
    "none": set(),
    "sinusoidal": {"heatmap", "similarity", "fingerprint", "wavelengths", "clock", "shift"},
    "learned": {"heatmap", "similarity", "fingerprint"},
    "rotary": {"wavelengths", "clock", "rotation"},
    "alibi": {"bias"},
    "t5_bias": {"bias"},
    "shaw": set(),
    "rotary + alibi": {"wavelengths", "clock", "rotation", "bias"},
}


def shown(spec: str, **changes) -> Shown:
    return show(spec, **({"tokens": 16, "dim": 16, "heads": 2, "words": ("a", "b", "a"), "shift": 3} | changes))


def test_the_overview_names_everything_that_ships_with_a_sentence_each() -> None:
    found = overview()
    assert [item["name"] for item in found["encodings"]] == catalogue.names()
    assert [item["name"] for item in found["tasks"]] == tasks.names()
    assert {item["name"] for item in found["schedules"]} == set(SCHEDULES)
    assert found["kernels"]
    assert all(len(item["idea"]) > 15 for kind in found.values() for item in kind)
    assert all(item["source"] for item in found["encodings"])


@pytest.mark.parametrize("spec", PICTURES)
def test_an_encoding_is_shown_with_the_pictures_it_has_and_no_other(spec: str) -> None:
    found = shown(spec)
    assert set(found.figures) == PICTURES[spec]
    assert found.text.startswith(str(found.facts["encoding"]))
    json.dumps(found.facts, allow_nan=False)


@pytest.mark.parametrize("spec", catalogue.names())
def test_every_lesson_gives_its_source_and_no_python(spec: str) -> None:
    text = shown(spec).text
    assert "Source: " in text and ">>>" not in text


def test_the_shift_of_sinusoidal_is_exact_and_says_how_exact() -> None:
    found = shown("sinusoidal", tokens=200)
    assert found.facts["shift"]["k"] == 3 and found.facts["shift"]["largest_error"] < 1e-10
    assert any(title.startswith("Shift by 3") for title, _, _ in found.tables)


def test_an_odd_width_has_no_shift_and_is_still_shown() -> None:
    found = shown("sinusoidal", dim=15, heads=3)
    assert "shift" not in found.figures and "heatmap" in found.figures


def test_what_adds_to_embeddings_has_a_worked_example_of_the_given_words() -> None:
    rows = next(rows for title, _, rows in shown("learned").tables if title.startswith("Worked example"))
    assert [row[1] for row in rows] == ["a", "b", "a"]
    assert not any(title.startswith("Worked example") for title, _, _ in shown("rotary").tables)


def test_pictures_are_saved_as_png_files(tmp_path: Path) -> None:
    paths = shown("alibi").save(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["bias.png"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("spec", "given", "words"),
    [
        ("rotary", {"tokens": 1}, "pictures need at least 2 positions, got 1"),
        ("rotary", {"heads": 3}, r"heads must divide dim=16, got heads=3; the divisors are \[1, 2, 4, 8, 16\]"),
        (
            "rotary",
            {"dim": 12, "heads": 4},
            "rotary: the rotary width must be an even number of channels to form pairs, got 3",
        ),
        ("rotery", {}, "no encoding named 'rotery'; .*; did you mean 'rotary'\\?"),
    ],
)
def test_what_cannot_be_shown_is_refused(spec: str, given: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        shown(spec, **given)


def test_the_reading_of_the_order_test_says_who_is_blind() -> None:
    headers, rows, title = reading_of_order({spec: order_tests(spec) for spec in ("sinusoidal", "none", "alibi")})
    readings = {(row[0], row[1], row[2]): row[5] for row in rows}
    assert len(headers) == len(rows[0]) == 6 and title
    assert readings["(no position)", "bidirectional", "2"] == "order-blind (reordered tokens give reordered outputs)"
    assert readings["(no position)", "causal", "1"] == "order-blind"
    assert readings["(no position)", "causal", "2"] == "tells the order apart"
    assert readings["none", "bidirectional", "1"].startswith("order-blind")
    for spec in ("sinusoidal", "alibi"):
        for attention in ("bidirectional", "causal"):
            assert readings[spec, attention, "1"] == "tells the order apart"
    # What has no position is said once, first.
    assert [row[0] for row in rows].count("(no position)") == 4 and rows[0][0] == "(no position)"


def test_a_table_that_starts_at_zero_is_drawn_with_something_to_say() -> None:
    shown = show("t5_bias", tokens=16, dim=16, heads=2, words=("a",), shift=1)
    assert any(value != 0 for head in shown.facts["bias"]["heads"] for value in head)


def test_sums_and_chosen_heads_are_shown_too() -> None:
    both = show("sinusoidal + alibi", tokens=16, dim=16, heads=2, words=("a", "b"), shift=1)
    assert {"heatmap", "bias"} <= both.figures.keys() and "Worked example" in both.tables[-2][0]
    some = show("on(rotary, heads=(0,))", tokens=16, dim=16, heads=2, words=("a",), shift=1)
    assert "wavelengths" in some.figures
