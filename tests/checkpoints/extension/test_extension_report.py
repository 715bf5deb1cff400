"""The report of an extension has every measured number, and needs no other file."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from posenc.checkpoints.extension import report

LENGTHS = (8192, 12288, 16384)


def row(measure: str, number: str, length: int, value: float, error: float | None = None) -> dict[str, Any]:
    return {"measure": measure, "number": number, "length": length, "value": value, "error": error, "each": []}


def entry(name: str, mean: list[float], last: list[float], keys: bool = False, **fields: Any) -> dict[str, Any]:
    values = [row("perplexity", "last", n, x, 0.04) for n, x in zip(LENGTHS, last, strict=True)]
    values += [row("perplexity", "mean", n, x) for n, x in zip(LENGTHS, mean, strict=True)]
    if keys:
        values.append(row("one-key", "right", 16384, 0.3125))
    return {
        "name": name,
        "words": f"what {name} does",
        "baseline": False,
        "spec": f"rotary(base=100000.0) <{name}>",
        "by_length": False,
        "config": {},
        "why_not": "",
        "values": values,
        "curve": [[100.0, 9000.0, 16000.0], [mean[0], 20.0, last[-1]]],
        "passes": 1,
        "seconds": 90.0,
        "cpu_seconds": 171.0,
        "peak_mib": 2111.0,
        "per_second": 182.0,
        **fields,
    }


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    last = {"name": "last", "words": "perplexity of the last 512 tokens", "more_is_better": False, "chance": None}
    mean = {"name": "mean", "words": "perplexity of all tokens", "more_is_better": False, "chance": None}
    right = {"name": "right", "words": "share of pass keys said right", "more_is_better": True, "chance": 0.1}
    return {
        "model": "somewhere/smollm2",
        "trained": 8192,
        "target": 16384,
        "stretch": "The model serves 8,192 tokens now & is to serve 16,384.",
        "factor": 2.0,
        "lengths": [8192, 12288, 16384],
        "measures": [
            {"name": "perplexity", "numbers": [last, mean], "price": "mean"},
            {"name": "one-key", "numbers": [right], "price": "right"},
        ],
        "methods": [
            entry("none", [9.36, 11.88, 27.36], [8.25, 64.1, 1664.0], keys=True),
            entry("yarn", [9.51, 9.7, 9.8], [8.31, 8.42, 8.43], keys=True),
            entry("rerope", [9.9, 10.1, 10.2], [9.1, 9.2, 9.3], config=None, peak_mib=None),
        ],
        "left_out": {"longrope": "no factors <searched>"},
        "winner": "yarn",
        "in_words": "yarn wins & how",
        "price": "What yarn costs short inputs: little.",
        "written": {"path": "x", "method": "yarn", "words": "transformers loads it."},
        "further": [{"measure": "one-key", "able": True, "words": "Keys were said."}],
        "made": {"command": "posenc extend smollm2 --factor 2", "dtype": "float32"},
    }


@pytest.fixture(scope="module")
def folder(record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    report.write(record, folder)
    return folder


def test_every_number_and_sentence_is_on_both_pages(folder: Path) -> None:
    texts = ["9.36", "11.88", "27.36", "8.25 ± 0.040", "64.10", "1,664", "8.43", "182", "171", "2,111"]
    texts += [
        "smollm2: from 8,192 to 16,384 tokens",
        "0.312",
        "Keys were said.",
        "What yarn costs short inputs: little.",
        "transformers loads it.",
        "attach only",
        "0.100 by guessing",
    ]
    texts.append("posenc extend smollm2 --factor 2")
    for name in ("report.html", "report.md"):
        page = (folder / name).read_text()
        assert [words for words in texts if words not in page] == []


def test_the_page_needs_nothing_beside_it_and_escapes_what_it_says(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)|url\((?!#|["']?#)|@import|https?://(?!www\.w3\.org)""", page)
    assert "<searched>" not in page and "&lt;searched&gt;" in page and "yarn wins &amp; how" in page
    assert page.count("<svg") == 1 and page.count('<tr class="winner">') == 3


def test_figures_lie_beside_the_pages(folder: Path) -> None:
    assert [file.name for file in (folder / "figures").iterdir()] == ["by-length.png"]
    assert re.findall(r"\(figures/([\w.-]+)\)", (folder / "report.md").read_text()) == ["by-length.png"]


def test_the_figure_has_a_panel_for_every_number_by_length_and_for_every_curve(record: dict[str, Any]) -> None:
    last, mean, places = report.draw_by_length(record).axes
    for ax, number, values in ((last, "last", [8.25, 64.1, 1664.0]), (mean, "mean", [9.36, 11.88, 27.36])):
        lines = [line for line in ax.lines if str(line.get_gid()).startswith("encoding-")]
        assert len(lines) == 3 and list(lines[0].get_xdata()) == list(LENGTHS), number
        assert list(lines[0].get_ydata()) == values
    lines = [line for line in places.lines if str(line.get_gid()).startswith("encoding-")]
    assert list(lines[1].get_xdata()) == [100.0, 9000.0, 16000.0] and list(lines[1].get_ydata()) == [9.51, 20.0, 8.43]
    single_length = copy.deepcopy(record)
    for entry in single_length["methods"]:
        entry["values"] = [row for row in entry["values"] if row["length"] == 16384]
        entry["curve"] = None
    assert report.draw_by_length(single_length) is None


def test_tables_have_a_row_for_every_method_and_a_cell_for_every_header(record: dict[str, Any]) -> None:
    perplexity, keys = record["measures"]
    for headers, rows in (report.value_table(record, perplexity), report.cost_table(record)):
        assert [row[0] for row in rows] == ["none", "yarn", "rerope"]
        assert {len(row) for row in rows} == {len(headers)}
    headers, rows = report.value_table(record, perplexity)
    assert headers[1:] == [f"{kind} at {n}" for kind in ("last", "mean") for n in ("8,192", "12,288", "16,384")]
    assert rows[0][4:] == ["9.36", "11.88", "27.36"] and rows[0][3] == "1,664 ± 0.040"
    assert report.value_table(record, keys) == (["method", "right at 16,384"], [["none", "0.312"], ["yarn", "0.312"]])
    assert [row[-1] for row in report.cost_table(record)[1]] == ["as it is", "config", "attach only"]
    short = report.short_tables(record)
    assert short[0][1][0][1:] == [f"{kind} at {n}" for kind in ("last", "mean") for n in ("8,192", "16,384")]
    assert short[0][0] == (
        "last: perplexity of the last 512 tokens (less is better); mean: perplexity of all tokens (less is better)."
    )


def test_what_was_not_done_is_not_shown(record: dict[str, Any]) -> None:
    shorter = copy.deepcopy(record) | {"further": [], "price": ""}
    for entry in shorter["methods"]:
        entry["values"] = [row for row in entry["values"] if row["measure"] != "one-key"]
    assert len(report.all_tables(shorter)) == 2 and len(report.all_tables(record)) == 3
    assert report.summary_sentences(shorter) == [
        "yarn wins & how",
        "The model serves 8,192 tokens now & is to serve 16,384.",
        "The extended checkpoint (yarn): transformers loads it.",
        "Left out, longrope: no factors <searched>.",
    ]


def test_no_figure_is_written_where_a_link_leads(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir(), folder.mkdir()
    (folder / "figures").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="figures' is a link"):
        report.write({}, folder)
    assert not list(folder.glob("report.*"))
