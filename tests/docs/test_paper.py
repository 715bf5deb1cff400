"""The technical report: its numbers are those of the records, and its template compiles."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from posenc.foreign.code import import_file

ROOT = Path(__file__).parents[2]
paper = import_file(str(ROOT / "docs" / "paper" / "paper.py"))

CLAIM = "docs/published/alibi-cpu-100.json.gz"
BENCH = paper.newest(ROOT / "benchmarks" / "results").relative_to(ROOT).as_posix()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The records that the report is made from, few of them, where they may be changed."""
    for name in ("pyproject.toml", "tests/census.tsv", CLAIM, BENCH, "docs/board/rows.jsonl.gz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def change_record(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_what_a_record_says_is_what_the_report_says(root: Path) -> None:
    facts = paper.facts(root)
    record = json.loads((root / BENCH).read_text())
    row = next(row for row in record["rows"] if row["what"] == "models" and row["kind"] == "posenc")
    assert facts["bench"]["rows"][0][:3] == [row["case"], row["candidate"], f"{row['value']:.2f}"]
    # A row that was held to float64 has its cost in the report too.
    assert any(single_row[:2] == ["T 1024: forward", "alibi"] for single_row in facts["bench"]["rows"])
    row["value"] = 7.125
    errors = next(row for row in record["rows"] if row["case"] == "T 1024: forward" and row["candidate"] == "alibi")
    assert ["T 1024: forward", "alibi", f"{errors['error']:.1e}"] in facts["bench"]["errors"]
    errors["error"] = 0.5
    (root / BENCH).write_text(json.dumps(record))
    verdict = json.loads(gzip.decompress((root / CLAIM).read_bytes())) | {"verdict": "not reproduced"}
    (root / CLAIM).write_bytes(gzip.compress(json.dumps(verdict).encode()))
    change_record(root / "tests" / "census.tsv", "\trefused\t", "\tequal\t")
    change_record(root / "pyproject.toml", 'version = "', 'version = "9.')
    board = root / "docs" / "board" / "rows.jsonl.gz"
    board.write_bytes(gzip.compress(b"".join(gzip.decompress(board.read_bytes()).splitlines(keepends=True)[1:])))
    changed_facts = paper.facts(root)
    assert changed_facts["version"] == f"9.{facts['version']}"
    assert changed_facts["bench"]["rows"][0][2] == "7.12"
    assert ["T 1024: forward", "alibi", "5.0e-01"] in changed_facts["bench"]["errors"]
    assert changed_facts["claims"][0]["verdict"] == "not reproduced"
    assert dict(changed_facts["census"]["rows"])["equal"] == dict(facts["census"]["rows"])["equal"] + 1
    assert changed_facts["board"][0][1] == facts["board"][0][1] - 1


def test_the_template_makes_a_pdf_of_the_facts(root: Path) -> None:
    typst = pytest.importorskip("typst")
    facts = paper.facts(root)
    first = paper.typeset(facts)
    facts["census"]["total"] = 123456789
    assert first.startswith(b"%PDF") and paper.typeset(facts) != first
    # A fact that the template needs and does not get is an error.
    del facts["census"]
    with pytest.raises(typst.TypstError, match="census"):
        paper.typeset(facts)


def test_no_number_stands_in_the_template(root: Path) -> None:
    """What the report measures is never typed: digits are those of layout, and of the words below."""
    words = re.sub(
        r"#set [^\n]*|#align.*?\n\]|#table\(columns[^\n]*|size: \d+pt|#let command[^\n]*",
        "",
        paper.TEMPLATE.read_text(),
    )
    assert set(re.findall(r"\d[\d_,.]*", words)) <= {"500_000", "100,000", "64", "3", "0"}


def test_more_than_one_file_is_refused(capsys) -> None:
    assert paper.main(["a.pdf", "b.pdf"]) == 2
    assert "takes one file at most" in capsys.readouterr().err


def test_without_a_whole_benchmark_it_says_what_to_run(root: Path) -> None:
    (root / BENCH).unlink()
    with pytest.raises(
        ValueError, match=r"has no record of `run.py bench` with models, attention, memory; run it with"
    ):
        paper.facts(root)
