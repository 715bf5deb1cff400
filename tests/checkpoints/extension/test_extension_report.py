"""The report of an extension: every number that was measured is on it, and it needs nothing beside it."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from posenc.checkpoints.extension import report

LENGTHS = (8192, 12288, 16384)
BANDS, PLACES = "Perplexity of the tokens between positions", "Perplexity of the tokens around each position"
DEPTHS = "Share of pass keys said right in 16,384 tokens, by how much text stands before them"


def row(measure: str, number: str, length: int, value: float, error: float | None = None) -> dict[str, Any]:
    return {"measure": measure, "number": number, "length": length, "value": value, "error": error, "each": []}


def entry(name: str, mean: list[float], last: list[float], keys: bool = False, **more: Any) -> dict[str, Any]:
    values = [row("perplexity", "last", n, x, 0.04) for n, x in zip(LENGTHS, last, strict=True)]
    values += [row("perplexity", "mean", n, x) for n, x in zip(LENGTHS, mean, strict=True)]
    details = [
        {"words": BANDS, "at": ["0 to 8,192", "8,192 to 12,288"], "values": [mean[0], 91.5]},
        {"words": PLACES, "at": [100.0, 9000.0, 16000.0], "values": [mean[0], 20.0, last[-1]]},
    ]
    if keys:
        values.append(row("pass-keys", "right", 16384, 0.3125))
        details.append({"words": DEPTHS, "at": ["10%", "50%", "90%"], "values": [1.0, 0.5, 0.0]})
    return {
        "name": name,
        "words": f"what {name} does",
        "baseline": False,
        "spec": f"rotary(base=100000.0) <{name}>",
        "by_length": False,
        "config": {},
        "why_not": "",
        "values": values,
        "details": details,
        "passes": 1,
        "seconds": 90.0,
        "cpu_seconds": 171.0,
        "peak_mib": 2111.0,
        "per_second": 182.0,
        **more,
    }


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    last = {"name": "last", "words": "perplexity of the last 512 tokens", "more_is_better": False, "chance": None}
    mean = {"name": "mean", "words": "perplexity of all tokens", "more_is_better": False, "chance": None}
    right = {"name": "right", "words": "share of pass keys said right", "more_is_better": True, "chance": 0.1}
    return {
        "model": "somewhere/smollm2",
        "unit": "tokens",
        "trained": 8192,
        "target": 16384,
        "stretch": "The model serves 8,192 tokens now & is to serve 16,384.",
        "factor": 2.0,
        "lengths": [8192, 12288, 16384],
        "measures": [
            {"name": "perplexity", "numbers": [last, mean], "price": "mean"},
            {"name": "pass-keys", "numbers": [right], "price": "right"},
        ],
        "methods": [
            entry("none", [9.36, 11.88, 27.36], [8.25, 64.1, 1664.0], keys=True),
            entry("yarn", [9.51, 9.7, 9.8], [8.31, 8.42, 8.43], keys=True),
            entry("rerope", [9.9, 10.1, 10.2], [9.1, 9.2, 9.3], config=None, peak_mib=None),
        ],
        "left_out": {"longrope": "no factors <searched>"},
        "winner": "yarn",
        "in_words": "yarn wins & how",
        "price": ["What yarn costs short inputs: little."],
        "written": {"path": "x", "method": "yarn", "words": "transformers loads it."},
        "further": [{"measure": "pass-keys", "able": True, "words": "Keys were said."}],
        "tuned": entry(
            "yarn, tuned",
            [9.0, 9.1, 9.2],
            [8.0, 8.1, 8.22],
            loss=[3.0] * 10 + [2.5] * 10,
            tuning={"seconds": 33.0, "peak_mib": 900.0, "trained": 29_000_000, "parameters": 135_000_000},
        ),
        "made": {"command": "posenc extend smollm2 --factor 2", "dtype": "float32"},
    }


@pytest.fixture(scope="module")
def folder(record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    report.write(record, folder)
    return folder


def test_every_number_and_sentence_is_on_both_pages(folder: Path) -> None:
    said = ["9.36", "11.88", "27.36", "8.25 ± 0.040", "64.10", "1,664", "8.43", "8.22", "91.50", "182", "171", "2,111"]
    said += [
        "smollm2: from 8,192 to 16,384 tokens",
        "0.312",
        "0.500",
        "Keys were said.",
        "What yarn costs short inputs: little.",
        "transformers loads it.",
        "attach only",
        "0.100 by guessing",
    ]
    said += ["its loss went from 3.000 to 2.500 nats", "posenc extend smollm2 --factor 2", "8,192 to 12,288"]
    for name in ("report.html", "report.md"):
        page = (folder / name).read_text()
        assert [words for words in said if words not in page] == []


def test_the_page_needs_nothing_beside_it_and_escapes_what_it_says(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)|url\((?!#|["']?#)|@import|https?://(?!www\.w3\.org)""", page)
    assert "<searched>" not in page and "&lt;searched&gt;" in page and "yarn wins &amp; how" in page
    assert page.count("<svg") == 3 and page.count('<tr class="winner">') == 5


def test_figures_lie_beside_the_pages(folder: Path) -> None:
    names = ["curve-1.png", "perplexity-by-length.png", "tuning.png"]
    assert sorted(file.name for file in (folder / "figures").iterdir()) == names
    assert sorted(re.findall(r"\(figures/([\w.-]+)\)", (folder / "report.md").read_text())) == names


def test_tables_have_a_row_for_every_method_and_a_cell_for_every_header(record: dict[str, Any]) -> None:
    perplexity, keys = record["measures"]
    for headers, rows in (report.table(record, perplexity), report.cost(record), report.detail_table(record, BANDS)):
        assert [row[0] for row in rows] == ["none", "yarn", "rerope", "yarn, tuned"]
        assert {len(row) for row in rows} == {len(headers)}
    headers, rows = report.table(record, perplexity)
    assert headers[1:] == [f"{kind} at {n}" for kind in ("last", "mean") for n in ("8,192", "12,288", "16,384")]
    assert rows[0][4:] == ["9.36", "11.88", "27.36"] and rows[0][3] == "1,664 ± 0.040"
    assert report.table(record, keys) == (["method", "right at 16,384"], [["none", "0.312"], ["yarn", "0.312"]])
    assert report.detail_table(record, DEPTHS)[1] == [[name, "1.00", "0.500", "0"] for name in ("none", "yarn")]
    assert [row[-1] for row in report.cost(record)[1]] == ["as it is", "config", "attach only", "config"]
    short = report.in_short(record)
    assert short[0][1][0][1:] == [f"{kind} at {n}" for kind in ("last", "mean") for n in ("8,192", "16,384")]
    assert short[0][0] == (
        "last: perplexity of the last 512 tokens (less is better); mean: perplexity of all tokens (less is better)."
    )


def test_what_was_not_done_is_not_shown(record: dict[str, Any]) -> None:
    less = copy.deepcopy(record) | {"tuned": None, "further": [], "price": []}
    for one in less["methods"]:
        one["values"] = [row for row in one["values"] if row["measure"] != "pass-keys"]
        one["details"] = [detail for detail in one["details"] if detail["words"] != DEPTHS]
    assert len(report.tables(less)) == 3 and len(report.tables(record)) == 5
    assert report.tuned(less) == []
    assert report.sentences(less) == [
        "yarn wins & how",
        "The model serves 8,192 tokens now & is to serve 16,384.",
        "The extended checkpoint (yarn): transformers loads it.",
        "Left out, longrope: no factors <searched>.",
    ]


def test_measures_of_all_lengths_say_how_far_they_rank_alike(record: dict[str, Any]) -> None:
    asked = copy.deepcopy(record) | {"tuned": None}
    # By perplexity, from the best: 8.25, 8.31, 8.42, 8.43, 64.1, 1,664; by keys the last two change places.
    shares = {"none": (0.9, 0.0, 0.1), "yarn": (0.8, 0.7, 0.6), "rerope": ()}
    for one in asked["methods"]:
        one["values"] = [row for row in one["values"] if row["measure"] != "pass-keys"]
        one["values"] += [
            {"measure": "pass-keys", "number": "right", "length": length, "value": share, "error": None, "samples": []}
            for length, share in zip(asked["lengths"], shares[one["name"]], strict=False)
        ]
    # 1 - 6 (1 + 1) / (6 (36 - 1))
    (words,) = report.agreement(asked)
    assert "perplexity and pass-keys rank the 6 pairs of method and length with a correlation of 0.94 (" in words
    assert words in report.sentences(asked)
    for row in asked["methods"][1]["values"]:
        row["value"] = None if row["measure"] == "pass-keys" else row["value"]
    assert report.agreement(asked) == []


def test_markdown_shows_letter_by_letter_what_others_have_named(record: dict[str, Any]) -> None:
    evil = "](http://x)<script>|`_*\x1b[31m"
    named = copy.deepcopy(record) | {"model": f"some/{evil}".replace("//", ""), "made": {"command": evil, evil: evil}}
    for method in named["methods"]:
        method["words"] = method["name"] = method["spec"] = evil
    page = report.markdown(named | {"winner": evil}, [{"says": evil, "name": "a"}])
    bare = re.sub(r"(`+) .*? \1", "", page)
    assert not re.search(r"(?<!\\)(<script|\]\(http)", bare) and "\x1b" not in page
    assert re.search(r"\\<script", bare)


def test_no_figure_is_written_where_a_link_leads(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir(), folder.mkdir()
    (folder / "figures").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="figures' is a link"):
        report.write({}, folder)
    assert not list(folder.glob("report.*"))


def test_a_search_is_a_sentence_a_table_and_a_picture(record: dict[str, Any]) -> None:
    losses = [(3.1, 2.2), (3.0, None), (2.9, 2.1), (2.8, 2.15), (2.7, 2.05), (2.6, 2.04), (2.5, 2.03)]
    trials = [{"kind": "bent", "factors": [1.0, 2.0], "screen": one, "loss": loss} for one, loss in losses]
    found = {"trials": trials, "starts": {"yarn": [1.0, 2.0], "ntk": [1.0, 1.5]}, "stretch": 2.0, "critical": 1}
    found |= {"factors": {"short_factor": [1.0, 1.0], "long_factor": [1.1, 2.5]}, "words": "longrope was searched."}
    of = record | {"search": found}
    said = report.sentences(of)
    assert set(said) - set(report.sentences(record)) == {"longrope was searched.", *report.agreement(of)}
    # One of five pairs of neighbours is in the other order.
    words = "In the search short texts and the target rank the 6 lists tried in both with a correlation of 0.94"
    assert any(one.startswith(words) for one in report.agreement(of))
    headers, rows = report.search_table(of)
    assert rows[0] == ["1: bent", "3.1000", "2.2000", "2.2000"] and rows[2] == ["4: bent", "2.8000", "2.1500", "2.1000"]
    assert [name for name, *_ in report.tables(of)][-1] == "The search of longrope's divisors" and len(headers) == 4
    assert report.found_divisors(of) == (
        ["list", "pair 0", "pair 1"],
        [["longrope, searched", "1.1", "2.5"], ["yarn", "1", "2"], ["ntk", "1", "1.5"]],
    )
    lines = report.divisors(of).axes[0].lines
    assert [list(line.get_ydata()) for line in lines[:3]] == [[1.1, 2.5], [1.0, 2.0], [1.0, 1.5]]
    assert report.divisors(record) is None


def test_what_a_recalibration_lost_is_said() -> None:
    tuning = {"seconds": 33.0, "peak_mib": 900.0, "trained": 29_000_000, "parameters": 145_000_000}
    lost = {"as it is": 2.1, "changed": 5.5, "tuned": 2.85}
    said = report.tuning_in_words({"name": "drope", "loss": [4.0, 3.0], "tuning": tuning, "recalibration": lost})
    assert "29,000,000 numbers among or beside the 145,000,000 of the model (20.0%)" in said
    assert said.endswith("2.100 nats a token before, 5.500 with the change alone, and 2.850 once tuned: +0.750 in all.")
