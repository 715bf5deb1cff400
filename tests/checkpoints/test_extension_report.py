"""The report of an extension: every number that was measured is on it, and it needs nothing beside it."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from posenc.checkpoints.extension import extension_report


def entry(name: str, mean: list[float], last: list[float], **more: Any) -> dict[str, Any]:
    lengths = [{"length": n, "mean": m, "last": x} for n, m, x in zip((8192, 12288, 16384), mean, last, strict=True)]
    return {
        "name": name,
        "words": f"what {name} does",
        "spec": f"rotary(base=100000.0) <{name}>",
        "by_length": False,
        "config": {},
        "why_not": "",
        "lengths": lengths,
        "bands": [[0, 8192, mean[0]], [8192, 12288, 91.5], [12288, 16384, 92.5]],
        "curve": {"tokens": [100.0, 9000.0, 16000.0], "perplexity": [mean[0], 20.0, last[-1]]},
        "passes": 1,
        "seconds": 90.0,
        "cpu_seconds": 171.0,
        "tokens_per_second": 182.0,
        "peak_mib": 2111.0,
        **more,
    }


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    keys = [{"length": 16384, "depth": depth, "right": 1, "trials": 2} for depth in (0.1, 0.5, 0.9)]
    return {
        "model": "somewhere/smollm2",
        "trained": 8192,
        "target": 16384,
        "factor": 2.0,
        "lengths": [8192, 12288, 16384],
        "last": 512,
        "methods": [
            entry("none", [9.36, 11.88, 27.36], [8.25, 64.1, 1664.0], passkey=keys),
            entry("yarn", [9.51, 9.7, 9.8], [8.31, 8.42, 8.43], passkey=keys),
            entry("rerope", [9.9, 10.1, 10.2], [9.1, 9.2, 9.3], config=None, peak_mib=None),
        ],
        "left_out": {"longrope": "no factors <searched>"},
        "winner": "yarn",
        "in_words": "yarn wins & how",
        "written": {"path": "x", "method": "yarn", "words": "transformers loads it."},
        "passkey": {"able": True, "words": "Keys were said."},
        "tuned": entry(
            "yarn, tuned", [9.0, 9.1, 9.2], [8.0, 8.1, 8.22], loss=[3.0] * 10 + [2.5] * 10, tuning_seconds=33.0
        ),
        "made": {"command": "posenc extend smollm2 --factor 2", "dtype": "float32"},
    }


@pytest.fixture(scope="module")
def folder(record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    extension_report.write(record, folder)
    return folder


def test_every_number_and_sentence_is_on_both_pages(folder: Path) -> None:
    said = ["9.36", "11.88", "27.36", "8.25", "64.10", "1,664", "8.43", "8.22", "91.50", "92.50", "182", "171", "2,111"]
    said += [
        "smollm2: from 8,192 to 16,384 tokens",
        "1 of 2",
        "Keys were said.",
        "transformers loads it.",
        "attach only",
    ]
    said += ["its loss went from 3.000 to 2.500 nats", "posenc extend smollm2 --factor 2", "8,192 to 12,288"]
    for name in ("report.html", "report.md"):
        page = (folder / name).read_text()
        assert [words for words in said if words not in page] == []


def test_the_page_needs_nothing_beside_it_and_escapes_what_it_says(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)|url\((?!#|["']?#)|@import|https?://(?!www\.w3\.org)""", page)
    assert "<searched>" not in page and "&lt;searched&gt;" in page and "yarn wins &amp; how" in page
    assert page.count("<svg") == 4 and page.count('<tr class="winner">') == 4


def test_figures_lie_beside_the_pages(folder: Path) -> None:
    names = ["pass-keys.png", "perplexity-by-length.png", "perplexity-by-position.png", "tuning.png"]
    assert sorted(file.name for file in (folder / "figures").iterdir()) == names
    assert sorted(re.findall(r"\(figures/([\w.-]+)\)", (folder / "report.md").read_text())) == names


def test_tables_have_a_row_for_every_method_and_a_cell_for_every_header(record: dict[str, Any]) -> None:
    for of in (extension_report.table, extension_report.cost, extension_report.bands, extension_report.in_short):
        headers, rows = of(record)
        assert [row[0] for row in rows] == ["none", "yarn", "rerope", "yarn, tuned"]
        assert {len(row) for row in rows} == {len(headers)}
    headers, rows = extension_report.table(record)
    assert headers[1:] == [f"{kind} at {n}" for kind in ("mean", "last 512") for n in ("8,192", "12,288", "16,384")]
    assert rows[0][1:] == ["9.36", "11.88", "27.36", "8.25", "64.10", "1,664"]
    assert [row[-1] for row in extension_report.cost(record)[1]] == ["as it is", "config", "attach only", "config"]


def test_what_was_not_done_is_not_shown(record: dict[str, Any]) -> None:
    less = copy.deepcopy(record) | {"tuned": None, "passkey": None}
    for one in less["methods"]:
        one.pop("passkey", None)
    assert extension_report.key_table(less) is None and extension_report.pass_keys(less) is None
    assert extension_report.tuning(less) is None
    assert extension_report.sentences(less) == [
        "yarn wins & how",
        "The extended checkpoint (yarn): transformers loads it.",
        "Left out, longrope: no factors <searched>.",
    ]


@pytest.mark.parametrize(("value", "words"), [(8.4321, "8.43"), (64.1, "64.10"), (243.7, "244"), (1664.2, "1,664")])
def test_perplexities_have_as_many_digits_as_mean_something(value: float, words: str) -> None:
    assert extension_report.number(value) == words


def test_markdown_shows_letter_by_letter_what_others_have_named(record: dict[str, Any]) -> None:
    evil = "](http://x)<script>|`_*\x1b[31m"
    named = copy.deepcopy(record) | {"model": f"some/{evil}".replace("//", ""), "made": {"command": evil, evil: evil}}
    for method in named["methods"]:
        method["words"] = method["name"] = method["spec"] = evil
    page = extension_report.markdown(named | {"winner": evil}, [{"says": evil, "name": "a"}])
    bare = re.sub(r"(`+) .*? \1", "", page)
    assert not re.search(r"(?<!\\)(<script|\]\(http)", bare) and "\x1b" not in page
    assert re.search(r"\\<script", bare)


def test_no_figure_is_written_where_a_link_leads(tmp_path: Path) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir(), folder.mkdir()
    (folder / "figures").symlink_to(elsewhere)
    with pytest.raises(ValueError, match="figures' is a link"):
        extension_report.write({}, folder)
    assert not list(folder.glob("report.*"))
