"""The extrapolation view: scores of the records beyond the trained length, and models without a score."""

import re

import pytest
from fake_records import comparison, repeat, with_scores

from posenc.explorer import training_results
from posenc.explorer.page import SHAPE
from posenc.foreign import CannotRead
from posenc.lab.results import sections
from posenc.lab.runs import record

# A view in a browser takes seconds; test_page.py opens all of them once.
pytestmark = pytest.mark.slow

SCORES = {
    "alibi": (1.0, 0.5, 0.25, 0.0),
    "none": (0.4, 0.0, 0.0, 0.0),
    "rotary": (1.0, 1.0, 0.75, 0.5),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    records = repeat(SCORES) + repeat({"rotary": (1.0, 1.0, 1.0, 0.7), "alibi": (0.9, 0.0, 0.0, 0.0)}, first_seed=1)
    for item in records:
        record.write(with_training_options(item), folder / "records")
    return folder


def with_training_options(item):
    """Add the training options that a record on disk has."""
    item["experiment"] |= {"warmup": 5, "weight_decay": 0.0, "evaluate_every": 50}
    return item


def sentence(page):
    return page.locator("#extrapolation .sentence").inner_text()


def test_scores_are_those_of_the_records(visit, run):
    page = visit(run=run, address="#extrapolation?extrapolation.length=15")
    assert sentence(page) == (
        "repeat, exact match, %, at 15 (trained to 10): alibi 25 %; rotary 87.5 % (75 to 100). Not learned: none."
    )
    assert "none: 40 % exact match at the trained length" in page.locator("#extrapolation .apart").inner_text()
    assert "99 % exact match" in page.locator("#extrapolation .apart").inner_text()
    assert "1 of 2 learned" in page.locator("#extrapolation fieldset").inner_text()


def test_arrow_keys_go_from_length_to_length(visit, run):
    page = visit(run=run, address="#extrapolation")
    plot = page.get_by_label("exact match, % of 2 encodings at 4 lengths, repeat")
    plot.focus()
    for key, length in (
        ("ArrowLeft", 15),
        ("ArrowLeft", 12),
        ("ArrowRight", 15),
        ("ArrowRight", 20),
        ("ArrowRight", 20),
    ):
        page.keyboard.press(key)
        assert f"at {length} (trained" in sentence(page)
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 56, box["y"] + 100)
    assert "at 10 (trained" in sentence(page)


def test_encodings_are_hidden_and_sorted_by_keys(visit, run):
    page = visit(run=run, address="#extrapolation")
    names = page.locator("#extrapolation fieldset label span")
    assert names.all_inner_texts() == ["alibi", "rotary"]
    page.locator("#extrapolation").get_by_label("order").select_option("score")
    assert names.all_inner_texts() == ["rotary", "alibi"]
    page.locator("#extrapolation").get_by_label("rotary").focus()
    page.keyboard.press("Space")
    assert "alibi 0 %. Not" in sentence(page)
    from playwright.sync_api import expect

    expect(page).to_have_url(re.compile(r"extrapolation\.hidden=2"))


def test_the_page_of_a_run_shows_its_encodings(visit, run):
    page = visit(run=run, address="#order")
    assert page.locator("#order svg g > text:first-of-type").all_text_contents() == ["no position", "alibi", "rotary"]


def test_infinite_perplexity_is_said_and_not_drawn(visit, tmp_path):
    records = comparison(("text",), seeds=1, encodings=("alibi", "rotary"))
    records[1]["lengths"][3]["perplexity_ratio"] = float("inf")
    for item in records:
        record.write(with_training_options(item), tmp_path / "records")
    page = visit(run=tmp_path, address="#extrapolation")
    assert sentence(page).endswith("alibi 0.984; rotary ∞.")
    assert page.locator("#extrapolation svg circle").count() == 1


def test_a_run_never_runs_the_code_that_its_specs_name(tmp_path, write_page):
    ran, code = tmp_path / "ran", tmp_path / "mine.py"
    code.write_text(f"open({str(ran)!r}, 'w')")
    spec = f"{code}:Mine"
    item = with_training_options(repeat({spec: SCORES["alibi"]})[0]) | {"key": "mine"}
    record.write(item, tmp_path / "records")
    text = write_page(run=tmp_path).read_text()
    assert not ran.exists() and '"labels":["' in text and "mine.py:Mine" in text


@pytest.mark.parametrize(
    ("spec", "is_built"), [("rotary + alibi", True), ("learned(max_len=10_000_000_000)", False), ("rotary(", False)]
)
def test_what_a_record_may_ask_for_is_bounded(spec, is_built):
    assert training_results.can_build(spec, SHAPE) is is_built


def test_a_damaged_record_is_named(tmp_path, write_page):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "one.json").write_text("{}")
    with pytest.raises(CannotRead, match=r"one\.json"):
        write_page(run=tmp_path)
    with pytest.raises(ValueError, match=r"no records in .*make some with posenc compare"):
        write_page(run=tmp_path / "elsewhere")


def test_a_model_that_is_too_large_is_left_out_by_name(monkeypatch):
    monkeypatch.setattr(sections, "MAX_WEIGHTS", 2 * 8 * 100)
    attention = sections.record_sections(repeat(SCORES))["attention"]
    assert [m["label"] for t in attention["tasks"] for m in t["models"]] == ["alibi"]
    assert attention["left_out"] == ["none on repeat", "rotary on repeat"]


def test_what_training_made_is_of_the_run_that_learned_and_saw_most():
    records = comparison(("repeat", "text"), seeds=2, encodings=("learned",))
    failed_run = with_scores(records[0], 0.5, 0, 0, 0) | {"trained_tokens": 1_000}
    picture = sections.trained_pictures([failed_run, *records])["learned"]
    assert (picture["task"], picture["seed"], len(picture["added"])) == ("text", 0, 128)
    assert picture["bias"] is None
