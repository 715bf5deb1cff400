"""Table files have the exact numbers of the records, in the format of their names."""

import csv
import json
import re
import sys

import pyarrow.parquet
import pytest
from fake_records import comparison, record, with_scores

from posenc.lab.results import frames, tables
from posenc.lab.runs.record import Failure

RECORDS = comparison(("copy", "text"), seeds=3, encodings=("none", "t5_bias", "alibi"))
ROWS = frames.rows(RECORDS, "lengths")


def write_table(tmp_path, ending, records=RECORDS):
    return tables.write(records, tmp_path / "new" / f"results{ending}")


def test_csv_holds_every_digit(tmp_path):
    with open(write_table(tmp_path, ".csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(ROWS) == 72 and list(rows[0]) == list(ROWS[0])
    assert [row["exact_match"] for row in rows] == [
        "" if r["exact_match"] is None else repr(r["exact_match"]) for r in ROWS
    ]
    assert {row["learned"] for row in rows} == {"True", "False"}


def test_parquet_holds_numbers_in_their_types(tmp_path):
    table = pyarrow.parquet.read_table(write_table(tmp_path, ".parquet"))
    assert table["exact_match"].to_pylist() == [row["exact_match"] for row in ROWS]
    assert str(table.schema.field("length").type) == "int64" and str(table.schema.field("learned").type) == "bool"
    assert table.shape == (72, len(ROWS[0]))


def test_json_lines_know_no_nan(tmp_path):
    runs = [with_scores(record("alibi"), 1, float("nan"), float("inf"), 0)]
    rows = [json.loads(line) for line in write_table(tmp_path, ".jsonl", runs).read_text().splitlines()]
    assert [row["exact_match"] for row in rows] == [1, None, None, 0]


def test_latex_is_set_with_booktabs_and_intervals(tmp_path):
    text = write_table(tmp_path, ".tex").read_text()
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 3
    assert r"\texttt{t5\_bias}" in text and r"exact match, \%" in text and "not learned" in text
    runs = [with_scores(record("alibi", seed=seed), 1, score, 0, 0) for seed, score in enumerate((0.5, 0.7, 0.9))]
    assert r"70\\[-3pt]{\tiny 50--90}" in write_table(tmp_path, ".tex", runs).read_text()


def test_every_row_of_a_latex_table_has_all_its_columns(tmp_path):
    text = write_table(tmp_path, ".tex").read_text()
    text = re.sub(r"\\begin\{tabular\}\[t\].*?\\end\{tabular\}", "", text)
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        widths = [
            sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line))
            + len(re.findall(r"(?<!\\)&", line))
            + 1
            for line in lines
        ]
        assert len(lines) == 5 and set(widths) == {len(columns)}


def test_columns_are_chosen_by_what_stands_above_them(tmp_path):
    def columns(*names):
        text = tables.write(RECORDS, tmp_path / "t.md", names).read_text()
        return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| encoding")]

    assert columns("sliding", "seeds", "R")[1:] == [
        ["encoding", "128 (2x) sliding", "256 (4x) sliding", "512 (8x) sliding", "seeds"],
        ["encoding", "R 128 (2x)", "R 256 (4x)", "R 512 (8x)"],
    ]
    assert len(columns()) == 3 and "parameters" in columns()[0]
    assert "parameters" not in write_table(tmp_path, ".tex").read_text()
    assert "103,452" in tables.write(RECORDS, tmp_path / "t.tex", ["parameters"]).read_text()
    with pytest.raises(ValueError, match=r"no column 'slidng'; there are: .*; did you mean 'sliding'"):
        columns("slidng")
    failures = [Failure("why", "mine.py:Mine", "copy")]
    assert "| `mine.py:Mine` | failed |" in tables.write(RECORDS, tmp_path / "t.md", ["seeds"], failures).read_text()
    with pytest.raises(ValueError, match=r"\.csv holds every column, and --columns is for .tex, .md; leave it out"):
        tables.write(RECORDS, tmp_path / "t.csv", ["seeds"])


def test_latex_shows_every_letter_of_a_name():
    assert tables.latex(r"a_b\c{d}^~#$%&<>|'") == (
        r"a\_b\textbackslash{}c\{d\}\textasciicircum{}\textasciitilde{}\#\$\%\&\textless{}\textgreater{}\textbar{}"
        r"\textquotesingle{}"
    )


def test_markdown_has_a_table_for_each_task(tmp_path):
    runs = [record("a|b"), record("alibi", "copy")]
    text = write_table(tmp_path, ".md", runs).read_text()
    assert (
        re.findall("^## .*", text, re.MULTILINE)
        == ["## repeat: medians over the seeds that learned", "## copy: medians over the seeds that learned"]
        and r"| `a\|b` |" in text
    )
    for block in text.split("## ")[1:]:
        lines = block.strip().splitlines()[2:]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1 and len(lines) == 3


def test_another_ending_is_refused_and_a_missing_library_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"a table is written as .csv, .parquet, .jsonl, .tex, .md; got 'results.xls'"):
        write_table(tmp_path, ".xls")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"this needs pyarrow, .* pip install 'posenc\[frames\]'"):
        write_table(tmp_path, ".parquet")
    assert not (tmp_path / "new").exists()
