"""The page, the sentences and the tables of a report follow from the records alone."""

import json
import math
import os
import re

import pytest
from fake_records import comparison, record, repeat
from tiers import rest_slow

from posenc.lab import figures
from posenc.lab.appearance import places
from posenc.lab.results import drawer, figure_tables, provenance, report, statistics, summary
from posenc.lab.results.summary import claims
from posenc.lab.runs.record import Failure
from posenc.lab.runs.train import LEARNED_BITS
from posenc.lab.views.page import Markup, sentence, template

SOME_ENCODINGS = ("none", "learned", "rotary", "alibi")


@pytest.fixture
def undrawn(monkeypatch):
    """Draw figures without writing their files, which takes most of the time."""
    monkeypatch.setattr(figures, "save", lambda *_, **__: None)
    monkeypatch.setattr(figures, "svg", lambda _: "<svg></svg>")


def paragraph(records, heading):
    return dict(summary.paragraphs(records))[heading]


@pytest.fixture(scope="module")
def page_and_records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    records = comparison(("repeat", "copy", "text"), seeds=2, encodings=SOME_ENCODINGS)
    # Attention maps take most of the time: two are enough.
    looked_at = {("repeat", spec) for spec in SOME_ENCODINGS[1:3]}
    records = [
        run if (run["experiment"]["task"], run["experiment"]["spec"]) in looked_at else run | {"attention": None}
        for run in records
    ]
    return report.write(records, folder, {"command": "posenc compare", "seeds": 2}), records


def without_script(page):
    """Return the page without the script that opens the target of a link."""
    assert page.count("<script>") == 1
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def tables(records, failures=()):
    """Return each table as encoding -> heading -> cell."""
    return [
        {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
        for headings, rows, _ in summary.plain_tables(records, failures)
    ]


def test_the_page_asks_nothing_of_the_network(page_and_records):
    page = without_script(page_and_records[0].read_text())
    assert not re.search(r"https?://|//[a-z]+\.|@import|<link|<iframe|\bsrc=", page)
    assert all(value.startswith(("#", "data:")) for value in re.findall(r'href="([^"]*)"', page))
    assert all(value.startswith("#") for value in re.findall(r"url\(([^)]*)\)", page))


def test_every_reference_inside_the_page_is_found_once(page_and_records):
    page = without_script(page_and_records[0].read_text())
    names = re.findall(r'\bid="([^"]*)"', page)
    assert len(names) == len(set(names))
    assert {*re.findall(r'href="#([^"]*)"', page), *re.findall(r"url\(#([^)]*)\)", page)} <= set(names)


def test_the_page_works_without_a_script(page_and_records):
    page = without_script(page_and_records[0].read_text())
    assert "<script" not in page
    # An encoding is selected by touch or keyboard, with rules of CSS alone.
    for label, place in places(SOME_ENCODINGS).items():
        chip = re.search(rf'<label class="chip" data-encoding="{place}".*?</label>', page)[0]
        assert '<input type="radio" name="encoding">' in chip and label in chip
        assert f':has([data-encoding="{place}"] input:checked) svg g[class^="encoding-"]:not(.encoding-{place})' in page
    assert '<input type="radio" name="encoding" checked>all' in page
    assert re.search(r'<g class="encoding-0"', page)


def test_what_is_wider_than_a_phone_scrolls_by_itself(page_and_records):
    page = without_script(page_and_records[0].read_text())
    frames = re.findall(r'<div class="scroll" tabindex="0" role="group" aria-label="Figure [^"]+"><svg', page)
    assert len(frames) == page.count("<svg") > 10
    assert len(re.findall(r'<div class="scroll"[^>]*>\s*<table', page)) == page.count("<table")
    assert re.search(r"\.scroll \{ overflow-x: auto;", page)
    # Figures stay so wide that their letters are legible.
    assert re.search(
        r"max-width: 40rem\).*?figure svg \{ min-width: calc\(var\(--natural, 62rem\) \* \.75\)", page, re.DOTALL
    )
    assert all(float(wide) > 25 for wide in re.findall(r"--natural: ([\d.]+)rem", page))


def test_tables_stay_whole_in_print_and_say_their_head_again(page_and_records):
    print_css = without_script(page_and_records[0].read_text()).rpartition("@media print {")[2]
    assert re.search(r"\.scroll, tbody tr \{ break-inside: avoid; \}", print_css)
    assert "thead { display: table-header-group; }" in print_css and ".scroll { overflow: visible;" in print_css


def test_scores_stand_before_what_the_models_are_like(page_and_records):
    (table,) = summary.task_tables(page_and_records[1], "repeat")
    headings = [column.heading for column in table.columns]
    assert headings[0] == "10 (trained)" and headings[-2:] == ["seeds", "parameters"]
    assert all(cells[-1].text == "103,452" and cells[-2].text == "2" for _, cells in table.rows)


def test_each_figure_names_itself_and_the_table_of_its_numbers(page_and_records):
    page = without_script(page_and_records[0].read_text())
    label = r'role="img" aria-label="Figure [^"]*: its numbers are in (the ta[a-z ]*|data.json)"'
    html_figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert len(html_figures) == page.count("<svg") == len(re.findall(label, page))
    table_pattern = r"<details>\s*<summary>Numbers of this figure</summary>.*?<tbody>\s*<tr>.*?<td>[^<]*\d"
    for figure in html_figures:
        has_table = "in the table below it" in figure
        assert bool(re.search(table_pattern, figure, re.DOTALL)) is has_table
        assert ('<a href="#table">' in figure) is ("are in the tables" in figure)


def test_the_numbers_of_figures_are_those_of_the_records():
    run = record("rotary")
    run["ablation"] |= {"intact": 1.0, "removed": 0.0, "shuffled": 0.08, "shifted": 1.0, "swapped": None}
    headings, rows = figure_tables.ablation([run], "repeat")
    assert headings == ["encoding", *figures.ABLATIONS.values()]
    assert rows == [["rotary", "100", "0", "8", "100", summary.DASH]]
    run["depths"] = [
        {"length": 10, "depth": 0.0, "exact_match": 1.0},
        {"length": 20, "depth": 0.5, "exact_match": 0.25},
    ]
    assert figure_tables.depths([run], "repeat") == (
        ["encoding", "place in the text, %", "found at length 10, %", "found at length 20, %"],
        [["rotary", "0", "100", summary.DASH], ["rotary", "50", summary.DASH, "25"]],
    )


def test_numbers_of_a_thousand_and_more_are_written_in_one_way(page_and_records):
    page = without_script(page_and_records[0].read_text())
    text = re.sub(r"<style>.*?</style>|<ul class=\"keys\">.*?</ul>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert "1,000" in text and not re.search(r"(?<![\w.,/-])[1-9]\d{3,}(?![\w-])", text)


def test_the_page_has_all_its_parts(page_and_records):
    page = page_and_records[0].read_text()
    assert len(page) < 4_000_000
    for part in ("answer", "table", "curves", "order", "pictures", "attention", "made"):
        assert f'<section id="{part}"' in page
    for words in (
        "corrected by Holm",
        "at most 5 of 100 cases",
        "sha256 9f9f",
        "posenc compare",
        "torch",
        "Linux-x86_64",
        "trained to 10",
        "What was not measured",
    ):
        assert words in page
    assert all(run["key"] in page for run in page_and_records[1])


def test_figures_stand_beside_the_page_and_in_it(page_and_records):
    page = page_and_records[0].read_text()
    files = {file.name for file in (page_and_records[0].parent / "figures").iterdir()}
    assert files == {name.removeprefix("figures/") for name in re.findall(r"figures/[\w-]+\.png", page)}
    kinds = {
        "extrapolation-copy.png",
        "learning-text.png",
        "ablation-repeat.png",
        "added.png",
        "wavelengths.png",
        "similarity.png",
        "bias.png",
    }
    assert kinds <= files
    assert sum(name.startswith("attention-") for name in files) == 2


def test_data_holds_all_records(page_and_records):
    assert json.loads((page_and_records[0].parent / "data.json").read_text()) == page_and_records[1]


@pytest.mark.slow
def test_a_report_on_many_runs_says_which_figures_it_leaves_out(tmp_path, monkeypatch):
    records, sentence = comparison(("repeat",), seeds=2, encodings=SOME_ENCODINGS[:2]), "Figures of ablations"
    short_page = report.write(records, tmp_path / "few").read_text()
    for module in (report, provenance):
        monkeypatch.setattr(module, "MOST_WITH_PICTURES", len(records) - 1)
    long_page = report.write(records, tmp_path / "many").read_text()
    assert sentence not in short_page
    assert f"{sentence}: with more than {len(records) - 1} runs they are left out" in long_page
    assert "figures/ablation-repeat.png" in short_page and "figures/ablation-repeat.png" not in long_page
    assert not (tmp_path / "many" / "figures" / "ablation-repeat.png").exists()
    assert "figures/learning-repeat.png" in long_page


def test_each_comparison_of_a_page_is_made_once(tmp_path, monkeypatch, undrawn):
    names = []
    real = claims.compute_comparison
    monkeypatch.setattr(claims, "compute_comparison", lambda *call: names.append(call[1].name) or real(*call))
    records = summary.records_for_display(comparison(("repeat",), seeds=3, encodings=SOME_ENCODINGS[1:3]))
    report.write(records, tmp_path, index=records)
    summary.answer(records)
    assert "reach" in names and len(names) == len(set(names))


def test_files_are_put_in_place_whole(tmp_path, monkeypatch, undrawn):
    report.write([record(attention=None)], tmp_path)
    content = (tmp_path / "report.html").read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="cannot be written: No space left on device"):
        report.write([record(seed=1, attention=None)], tmp_path)
    assert (tmp_path / "report.html").read_bytes() == content
    assert not [file for file in tmp_path.rglob("*") if file.name.endswith(".part")]


def test_no_picture_is_written_where_a_link_leads(tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir(), folder.mkdir()
    (folder / "figures").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="figures' is a link, and what is written there belongs into"):
        report.write([record()], folder)
    assert not list(elsewhere.iterdir())


def test_no_records_is_an_error_that_says_so(tmp_path):
    for call in (lambda: report.write([], tmp_path), lambda: summary.answer([]), lambda: summary.plain_tables([])):
        with pytest.raises(ValueError, match="list is empty"):
            call()


def test_names_are_escaped(tmp_path):
    spec = "path/to/<b>mine</b>.py:Mine(option='&\"$x$')"
    page = report.write(
        [record(spec, "<i>task</i>"), record("rotary", "<i>task</i>", attention=None)], tmp_path, {"<u>": "<s>"}
    ).read_text()
    assert "<b>mine" not in page and "<i>task" not in page and "<u>" not in page and "<s>" not in page
    assert "&lt;b&gt;mine" in page


def test_long_names_are_shown_short_and_stay_apart(tmp_path):
    long = "x" * 20_000
    parts = {"attention": None, "ablation": None, "pictures": None, "text": {"name": long}}
    runs = [record(long + end, long, **parts, encoding=long, key=long + end) for end in "ab"]
    for run in runs:
        run["versions"]["torch"] = long
        run["order"][0]["attention"] = long
        run["experiment"]["text"] = long
    page = report.write(runs, tmp_path, {"encodings": [long] * 9, "text": long}, [Failure(long)]).read_text()
    page = without_script(page)
    assert len(page) < 200_000 and not re.search("x{1001}", page)
    assert max(file.stat().st_size for file in (tmp_path / "figures").iterdir()) < 200_000
    assert json.loads((tmp_path / "data.json").read_text()) == runs
    records_on_page = summary.for_display(runs)
    assert len(summary.labels(records_on_page)) == 2 and len(summary.answer(records_on_page)) < 5_000
    for label in summary.labels(records_on_page):
        assert label in page and len(label) < 250


def test_runs_that_failed_have_rows_of_their_own(tmp_path, undrawn):
    records = repeat({"rotary": (1, 1, 1, 0.95)}, seeds=2)
    failed_pairs = [("rotary", "repeat"), ("<mine>", "repeat"), ("<mine>", "copy"), ("<mine>", "copy")]
    failures = [Failure(f"{spec} on {task}, seed {i}: why", spec, task) for i, (spec, task) in enumerate(failed_pairs)]
    repeat_rows, copy_rows = tables(records, failures)
    assert [row["seeds"] for row in repeat_rows.values()] == ["2 (1 failed)", "failed"]
    assert list(copy_rows) == ["<mine>"] and {*copy_rows["<mine>"].values()} == {"<mine>", "failed"}
    page = report.write(records, tmp_path, failures=failures).read_text()
    assert page.count('<tr><th scope="row">&lt;mine&gt;</th>\n<td class="missing">failed</td>') == 2
    assert "<li><b>4</b><span>failed</span></li>" in page and "Failed: &lt;mine&gt; on copy, seed 3: why" in page


def test_a_third_party_spec_is_like_any_other(tmp_path):
    spec = "path/to/mine.py:Mine(option=3)"
    assert f"In reach, `{spec}` is ahead of all others." in summary.answer(
        repeat({spec: (1, 1, 1, 0.95), "rotary": (1, 0, 0, 0)}, seeds=3)
    )


PARTS = (
    "lengths curve ablation pictures order attention parameters versions in_distribution experiment learned key".split()
)


@pytest.mark.parametrize("part", rest_slow(PARTS, 4))
def test_a_missing_part_is_left_out(tmp_path, undrawn, part):
    records = [record("sinusoidal"), record("alibi", "text")]
    for run in records:
        del run[part]
    assert report.write(records, tmp_path).stat().st_size > 5_000
    summary.plain_tables(records)


def test_an_empty_record_is_survived(tmp_path):
    assert "Nothing was learned" in summary.answer([{}])
    assert "not learned" in report.write([{}], tmp_path).read_text()


def test_nan_and_infinity_are_survived(tmp_path):
    first, second = record("rotary") | {"attention": None}, record("alibi", "text") | {"attention": None}
    first["curve"][3] |= {"loss": math.nan, "score": math.inf}
    first["lengths"][1]["exact_match"] = math.nan
    first["ablation"]["removed"] = math.inf
    second["lengths"][3] |= {"perplexity_ratio": math.inf, "bits_per_byte": math.inf}
    second["pictures"]["bias"]["heads"][0][3] = -math.inf
    page = without_script(report.write([first, second], tmp_path).read_text())
    assert not re.search(r"\bnan\b", page)
    assert "∞" in page
    data = json.loads((tmp_path / "data.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert data[0]["curve"][3]["loss"] is None


def test_not_learned_stands_where_numbers_would_mislead(page_and_records):
    cells = tables([run for run in page_and_records[1] if run["experiment"]["task"] == "copy"])[0]["none"]
    assert cells["exact match, % 10 (trained)"] == "13" and cells["seeds"] == "2 (not learned)"
    assert {cells[title] for title in cells if "x)" in title or "to 99 %" in title} == {"not learned"}


def test_not_learned_is_never_ranked():
    # It did best beyond the trained length by luck, which the text must not report.
    lucky = repeat({"none": (0.6, 1.0, 1.0, 1.0), "rotary": (1, 0.95, 0.2, 0.2), "shaw": (1, 0, 0, 0)}, seeds=3)
    for run in lucky[:3]:
        run |= {"steps_to_learned": 50, "cpu_s_to_learned": 0.1}
    text = paragraph(lucky, "repeat")
    assert "In reach, `rotary` is ahead of all others." in text
    assert (
        "2 of 3 encodings learned it (99 % exact match at the trained length, 10). `none` did not, and is not" in text
    )
    assert "`none`" not in text.replace("`none` did not", "")
    assert paragraph(lucky, "Which one do I need?").count("`none`") == 1


def test_medians_and_intervals_are_over_the_seeds_that_learned():
    records = repeat({"alibi": (1, 0, 0, 0)}, seeds=4)
    for run, (score, time_taken) in zip(records, ((0.2, 30.0), (0.9, 10.0), (0.4, 20.0), (0.99, 1.0)), strict=True):
        run["lengths"][1]["exact_match"], run["cpu_s_to_learned"] = score, time_taken
    records[3]["learned"] = False
    result = summary.results(records, "repeat")[0]
    assert result.at(12, "exact_match") == summary.Estimate(0.4, 0.2, 0.9, 3)
    row = tables(records)[0]["alibi"]
    assert row["exact match, % 12 (1.2x)"] == "40 (20..90)" and row["to 99 % CPU s"] == "20.0 (10.0..30.0)"
    assert row["seeds"] == "4 (3 of 4 learned)"
    assert "3 of 4 seeds only" in paragraph(records, "repeat")


@pytest.mark.parametrize("winner, loser", [("alibi", "shaw"), ("shaw", "alibi")])
def test_the_words_follow_the_winner(winner, loser):
    records = repeat({winner: (1, 0.97, 0.93, 0.5), loser: (1, 0.92, 0.3, 0.02)}, seeds=3)
    for run in records:
        run["cpu_s_to_learned"] = 40.0 if run["experiment"]["spec"] == winner else 4.0
    text = paragraph(records, "repeat")
    assert f"In reach, `{winner}` is ahead of all others." in text
    assert f"In CPU seconds to 99 %, `{loser}` is ahead of all others." in text
    summary_text = paragraph(records, "Which one do I need?")
    assert (
        f"`{winner}` on repeat in reach and exact match at 2x; " in summary_text
        and f"`{loser}` on repeat in CPU seconds to 99 %" in summary_text
    )


def test_equal_leaders_are_both_named():
    scores = {"alibi": (1, 1, 1, 0.95), "shaw": (1, 1, 1, 0.99), "rotary": (1, 0, 0, 0)}
    text = paragraph(repeat(scores, seeds=3), "repeat")
    assert "In reach, `alibi` and `shaw` are ahead of all others." in text


def test_where_nobody_carries_the_table_says_so():
    records = repeat({"alibi": (1, 0.5, 0.2, 0.0), "rotary": (1, 0, 0, 0)})
    assert {row["carries to"] for row in tables(records)[0].values()} == {summary.DASH}
    assert "No encoding is ahead" in paragraph(records, "Which one do I need?")


def test_where_nobody_learned_the_words_say_so():
    records = repeat({"alibi": (0.5, 1, 1, 1), "rotary": (0.2, 0, 0, 0)})
    assert paragraph(records, "Which one do I need?").startswith("Nothing was learned")
    assert "No encoding reached the mark" in paragraph(records, "repeat")


def test_one_seed_is_called_one_seed():
    assert "One seed each" in summary.answer(repeat({"alibi": (1, 1, 1, 1)}))
    assert "One seed" not in summary.answer(repeat({"alibi": (1, 1, 1, 1)}, seeds=3))
    assert any("one seed" in line for line in provenance.missing_measurements([record()]))


CROWNS = re.compile("Ahead of all others|` (is|are) ahead")
"""The phrases that rank one encoding above another."""


@pytest.mark.parametrize("seeds", [1, 2])
def test_with_fewer_than_three_seeds_nobody_is_called_the_best_whatever_the_scores(seeds):
    records = repeat({"alibi": (1, 1, 1, 1), "rotary": (1, 0, 0, 0), "shaw": (1, 1, 0.3, 0.2)}, seeds=seeds)
    records += comparison(("text",), seeds=seeds, encodings=("alibi", "shaw", "rotary"))
    for run in records:
        run["cpu_s_to_learned"] = 4.0 if run["experiment"]["spec"] == "alibi" else 40.0
    answer = summary.answer(records)
    assert not CROWNS.search(answer)
    assert "No encoding is ahead of all others by more than seeds differ" in answer
    alibi = tables(records)[0]["alibi"]
    assert alibi["carries to"].startswith("20") and alibi["to 99 % CPU s"] == "4.0"
    if seeds == 1:
        assert "One seed each, so no encoding is called the best" in answer
    else:
        assert "No encoding with fewer than three is called the best" in answer


def test_the_gate_of_text_is_told_with_its_margin():
    assert summary.LEARNED_TEXT.startswith(f"{LEARNED_BITS} bits per byte better")
    assert f"learned it ({summary.LEARNED_TEXT})" in paragraph([record("alibi", "text")], "text")


def test_the_words_on_text_follow_the_records():
    text = paragraph(comparison(("text",), seeds=3), "text")
    assert "In bits per byte, `shaw` is ahead of " in text and "In R(8), `alibi` is ahead of all others." in text


def test_runs_of_other_settings_are_kept_apart():
    records = [record("rotary"), record("rotary", key="other")]
    records[1]["experiment"] = records[1]["experiment"] | {"rate": 0.003}
    assert summary.labels(records) == ["rotary [rate=0.005]", "rotary [rate=0.003]"]


def test_runs_of_several_trained_lengths_tell_them_all_the_shortest_first():
    records = [record("rotary"), record("rotary", key="other")]
    records[1]["experiment"] = records[1]["experiment"] | {"train_length": 16}
    assert "learned it (99 % exact match at the trained length, 10 or 16)." in paragraph(records, "repeat")


def test_the_trained_length_of_a_record_without_its_settings_is_the_first_that_was_tested():
    bare = record()
    del bare["experiment"]
    assert summary.trained_length(bare) == 10 and summary.trained_length({}) is None


def test_specs_that_are_cycled_over_the_layers_stand_side_by_side():
    run = record()
    run["experiment"]["spec"] = ["rotary", "none"]
    assert summary.labels([run]) == ["rotary / none"]


def test_a_record_that_was_run_again_counts_once():
    assert len(summary.results([record(), record()])[0].runs) == 1


def test_percent_never_rounds_a_miss_to_a_hit():
    assert [summary.percent(x) for x in (1.0, 0.9999, 0.0001, 0.005, 0.125)] == ["100", "99.9", "0.1", "0.5", "12"]
    assert [summary.percent(x) for x in (math.inf, -math.inf)] == ["∞", "-∞"]


def test_numbers_have_the_digits_that_a_reader_can_use():
    assert [summary.ratio(x) for x in (1.004, 9.876, 12.34, math.inf)] == ["1.00", "9.88", "12", "∞"]
    assert [summary.count(x) for x in (10, 12.0, 62.5, 103_452, math.inf)] == ["10", "12", "62.5", "103,452", "∞"]


@pytest.mark.slow
def test_thirty_encodings_give_a_page_that_opens(tmp_path):
    specs = [
        f"path/to/a/rather/long/folder/mine_{i}.py:Mine(option={i}, another='a very long word indeed')"
        for i in range(28)
    ]
    records = [record(spec, "repeat") for spec in [*specs, "rotary", "sinusoidal"]]
    page = report.write(records, tmp_path)
    assert page.stat().st_size < 6_000_000
    assert len(summary.labels(records)) == 30


def test_a_long_list_of_names_is_cut_short():
    assert summary.join_words([str(i) for i in range(12)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8 and 3 others"


def test_settings_are_told_in_words():
    assert report.value_text({"seeds": [0, 1], "quick": True, "text": None, "rate": 0.5}) == (
        f"seeds 0, 1, quick yes, text {summary.DASH}, rate 0.5"
    )
    assert report.value_text((False, 1, 0)) == "no, 1, 0"
    assert [summary.duration(s) for s in (3, 119, 120, 7199, 7200)] == ["3 s", "119 s", "2 min", "120 min", "2.0 h"]
    assert sentence("from `a` to <b>\x1b") == "from <code>a</code> to &lt;b&gt;\N{REPLACEMENT CHARACTER}"


def test_a_template_shows_what_a_terminal_would_obey_letter_by_letter(tmp_path):
    (tmp_path / "page.html").write_text("{{ name }} {{ made }}")
    text = template(tmp_path / "page.html").render(name="<\x1b[2J", made=Markup("<b>"))
    assert text == "&lt;\N{REPLACEMENT CHARACTER}[2J <b>"


def test_figures_of_one_name_are_numbered_on(tmp_path):
    draw = drawer.Drawer(tmp_path)
    assert [draw.unique_name(name) for name in ("a", "A", "a", "b")] == ["a", "A-2", "a-3", "b"]


def test_the_facts_count_what_there_is():
    records = comparison(("repeat", "text"), seeds=2, encodings=("none", "rotary"))[:-1]
    for run in records:
        run["cpu_s"] = 30.0
    assert report.size_facts(records) == [
        ("encodings", "2"),
        ("tasks", "2"),
        ("seeds each", "1 to 2"),
        ("runs", "7"),
        ("of CPU time", "4 min"),
        ("parameters a model", "103,452"),
    ]
    names = [name for name, _ in report.size_facts([record()])]
    assert names == ["encoding", "task", "seed each", "run", "of CPU time", "parameters a model"]


def test_the_order_test_shows_its_numbers_and_who_is_blind():
    run = record("rotary")
    run["order"][0]["equivariance"], run["order"][1]["equivariance"] = 2e-15, None
    run["order"][2]["difference"], run["order"][3]["difference"] = 0.0099, 0.5
    table = report.order_of([run])
    assert table["groups"] == ["bidirectional", "causal, 1 layer", "causal, 2 layers"]
    [(label, cells)] = table["rows"]
    assert label == "rotary" and [cell["text"] for cell in cells] == [
        "blind", summary.DASH, "sees order", "sees order", "sees order", "sees order"
    ]  # fmt: skip
    assert [cell["value"] for cell in cells] == ["2e-15", "", "1e-02", "0.5", "54", "51"]
    assert report.order_of([record(order=None)]) is None


def test_a_text_is_what_is_measured_in_bits_and_not_in_exact_match():
    text_run = record("rotary", "text")
    text_run["in_distribution"]["exact_match"] = 1.0
    assert [summary.is_text(run) for run in (record(), record("rotary", "text"), text_run)] == [False, True, False]
    # One record of a text among others makes it a paragraph about text.
    runs = [record("rotary", "mine"), record("alibi", "text")]
    runs[1]["experiment"]["task"] = "mine"
    assert "than a table of byte pairs" in paragraph(runs, "mine")


def test_who_did_not_learn_is_told_with_the_score_that_there_is():
    def score_text(**scores):
        return summary.trained_score_text(summary.results([record("none", "copy", in_distribution=scores)])[0])

    assert score_text(exact_match=0.13) == "13 % exact match" and score_text(bits_per_byte=2.5) == "2.50 bits per byte"
    assert score_text() == ""


def test_a_cell_lies_between_bad_and_good():
    assert [summary.flatness(x) for x in (summary.EXPLODING_RATIO, summary.FLAT_RATIO)] == [0, 1]
    assert summary.to_cell(summary.Estimate(0.5, 0.2, 0.9, 3), summary.percent, lambda x: x) == summary.Cell(
        "50", "20..90", 0.5, is_missing=False
    )
    assert summary.to_cell(None, summary.percent).is_missing and not summary.Cell("").is_missing


def test_text_has_a_table_of_bits_and_one_of_how_perplexity_grows():
    bits, growth = summary.task_tables([record("rotary", "text")], "text")
    assert [(c.group, c.heading) for c in bits.columns[:3]] == [
        ("", "64 (trained)"), ("128 (2x)", "windows"), ("128 (2x)", "sliding")
    ]  # fmt: skip
    assert [(c.group, c.heading) for c in growth.columns] == [("R", "128 (2x)"), ("R", "256 (4x)"), ("R", "512 (8x)")]
    page = report.table_context(bits)
    assert page["groups"] == [("", 1), ("", 1), ("128 (2x)", 2), ("256 (4x)", 2), ("512 (8x)", 2), ("", 3)]
    assert page["grouped"] and page["meanings"]["windows"] == "windows side by side"


@pytest.fixture
def with_own():
    """Three seeds of an encoding of the user's own, far ahead of rotary and nearly as good as alibi."""
    shares = {"rotary": (1, 0.2, 0, 0), "mine.py:Mine": (1, 1, 0.95, 0.5), "alibi": (1, 1, 0.95, 0.51)}
    return [
        run | {"label": "Ripple"} if "mine" in run["experiment"]["spec"] else run for run in repeat(shares, seeds=3)
    ]


def test_each_pair_is_ahead_tied_or_behind_and_ones_own_encoding_is_first(with_own):
    reach, last, _ = summary.pair_tables(summary.results(with_own, "repeat"))
    assert (reach.measure, last.measure) == ("reach", "exact match at 2x")
    assert reach.labels == last.labels == ["Ripple", "rotary", "alibi"]
    assert [cell.text for cell in reach.rows[0]] == ["", "ahead of", "tied with"]
    assert [cell.text for cell in reach.rows[1]] == ["behind", "", "behind"]
    assert reach.rows[0][1].detail == "+0.5x, +0.5x to +0.5x" and last.rows[0][2].text == "tied with"
    assert re.fullmatch(r"-1 points, -\d+(\.\d)? to \+\d+(\.\d)?", last.rows[0][2].detail)
    sentence = "On repeat, `Ripple` is ahead of `rotary`, tied with `alibi` in reach"
    assert sentence in paragraph(with_own, "Which one do I need?").splitlines()[1]


def test_an_interval_holds_nothing_where_and_only_where_nothing_is_claimed():
    def seeds_of(*numbers):
        return dict(enumerate(numbers))

    families = [
        {"a": seeds_of(0, 1, 2, 2), "b": seeds_of(5, 6, 8, 9), "c": seeds_of(1, 1, 3, 2), "d": seeds_of(0, 9, 2, 5)},
        {"a": seeds_of(1.0, 1.1, 1.2), "b": seeds_of(1.3, 1.42, 1.5), "c": seeds_of(1.31, 1.4, 1.52)},
    ]
    for family in families:
        differences = statistics.compare(family).differences
        assert {d.p < statistics.LEVEL for d in differences} == {True, False}
        assert all((d.half_width < abs(d.mean)) is (d.p < statistics.LEVEL) for d in differences)


def test_a_name_that_a_person_gave_stands_for_the_spec_everywhere(tmp_path, with_own, undrawn):
    assert summary.labels(with_own) == ["rotary", "Ripple", "alibi"]
    page = report.write(with_own, tmp_path).read_text()
    assert "Ripple" in page and "mine.py" not in page.partition('<ul class="keys">')[0].partition("How it was made")[0]
    runs = [run | {"label": "RoPE"} if run["experiment"]["spec"] == "rotary" else run for run in with_own]
    assert figures.looks(runs)["RoPE"] == figures.looks(with_own)["rotary"]
    twice = [run | {"label": "Ripple"} for run in with_own]
    assert summary.labels(twice) == ["rotary", "mine.py:Mine", "alibi"]


def test_numbers_that_people_read_keep_their_digits_in_the_page() -> None:
    svg = drawer.svg_for_page('<svg width="9.12345pt"><path d="M 1.23456 2"/><text>0.00012</text></svg>', 0, "a figure")
    assert "<text>0.00012</text>" in svg and "M 1.23 2" in svg
    assert svg.startswith("<svg ") and svg.endswith("</svg>") and 'aria-label="a figure"' in svg


def test_pictures_mark_the_positions_that_training_has_shown_and_not_the_items_of_the_task() -> None:
    assert summary.trained_length(record("learned", "repeat")) == 10
    assert summary.trained_tokens(record("learned", "repeat")) == 22


def test_curves_say_what_their_lines_are():
    def caption(records):
        context = report.curves_of(records, "repeat", lambda name, context, says, shows: {"says": says})
        return context["figures"][1]["says"]

    assert caption([record()]).startswith("One run each. The same curves against steps")
    assert caption([record(seed=0), record(seed=1)]).startswith("Lines are medians over the seeds, bands reach from")


def test_how_runs_were_made_is_told_once_where_they_agree_and_task_by_task_where_they_do_not():
    runs = [record(seed=seed) for seed in range(4)] + [record(task="copy", seed=seed) for seed in range(2)]
    for number_of, run in enumerate(runs):
        run["versions"]["torch"] = f"2.{number_of}"
        run["experiment"] |= {"batch": 32 if run["experiment"]["task"] == "copy" else 64}
    rows = dict(provenance.provenance_rows(runs))
    assert rows["runs"] == "6" and rows["dim"] == "64" and rows["torch"] == "2.0, 2.1, 2.2, 2.3, 2.4, 2.5"
    assert rows["batch"] == "repeat: 64; copy: 32"
    assert rows["seed"] == "repeat: 0, 1, 2, 3; copy: 0 or 1" and rows["built"] == "rotary as rotary(base=100.0)"
    assert dict(provenance.provenance_rows([record(), {}]))["dim"] == f"repeat: 64; unnamed task: {summary.DASH}"
    many_runs = [record(versions={"torch": f"2.{minor}"}) for minor in range(14)]
    assert dict(provenance.provenance_rows(many_runs))["torch"].endswith("2.11 and 2 more")


def test_what_was_not_measured_is_listed():
    alone = record(lengths=[{"length": 10, "factor": 1.0, "exact_match": 1.0}], attention=None)
    lines = provenance.missing_measurements([alone])
    assert lines[0].startswith("Text: no language model was trained") and "rest on one seed" in lines[1]
    assert "Lengths beyond the trained one: `rotary` on repeat." in lines and "Attention maps." in lines
    assert provenance.missing_measurements([record("rotary", "text")])[0].startswith("Exact tasks: only text was used")
    text = provenance.missing_measurements([record("rotary", "text"), record("alibi", "repeat")])
    assert "repeat with `rotary`." in text and "text with `alibi`." in text
    assert not [line for line in text if line.startswith(("Text:", "Exact tasks:"))]
