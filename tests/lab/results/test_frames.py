"""Tidy tables have the numbers of the records, one row for each measurement."""

import math
import sys

import pandas
import pytest
from fake_records import comparison, record

from posenc import lab
from posenc.lab.results import frames
from posenc.lab.runs import record as records_on_disk

RECORDS = comparison(("repeat", "text"), seeds=2, encodings=("none", "rotary", "alibi"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for run in RECORDS:
        records_on_disk.write(run, folder / "records")
    return folder


def test_a_row_is_a_run_at_a_length(folder):
    frame = lab.load(folder)
    assert isinstance(frame, pandas.DataFrame) and len(frame) == len(RECORDS) * 4
    run = record("alibi", "repeat", 1)
    row = frame[(frame.encoding == "alibi") & (frame.task == "repeat") & (frame.seed == 1) & (frame.length == 12)]
    (row,) = row.to_dict("records")
    assert row["factor"] == 1.2 and row["exact_match"] == run["lengths"][1]["exact_match"] and row["learned"] is True
    assert row["rate"] == 0.005 and row["batch"] == 64 and row["test_lengths"] == "12 15 20"
    assert row["version_torch"] == "2.13.0" and row["key"] == run["key"] and row["parameters"] == 103_452
    assert row["steps_to_learned"] == run["steps_to_learned"] and row["trained_length"] == 10
    assert row["spec"] == "alibi" and row["built"] == "alibi" and math.isnan(row["perplexity_ratio"])


@pytest.mark.parametrize(
    ("kind", "rows", "columns"),
    [
        ("runs", 12, {"in_distribution_exact_match", "cpu_s"}),
        ("lengths", 48, {"length", "sliding_bits_per_byte"}),
        ("curve", 6 * 20 + 6 * 16, {"step", "loss", "score", "cpu_s", "cpu_s_of_run"}),
        ("ablation", 60, {"ablation", "score", "measure"}),
        ("order", 72, {"attention", "layers", "layers_of_run", "position", "difference"}),
    ],
)
def test_every_kind_has_its_rows(folder, kind, rows, columns):
    frame = lab.load(folder, kind)
    assert len(frame) == rows and columns <= set(frame.columns)
    assert list(frame.columns[:4]) == ["task", "encoding", "seed", "learned"] and frame.columns.is_unique


def test_a_number_of_the_row_stands_before_that_of_its_run(folder):
    curve = lab.load(folder, "curve")
    first = curve[(curve.task == "repeat") & (curve.encoding == "alibi") & (curve.seed == 0)].iloc[0]
    run = record("alibi", "repeat", 0)
    assert first.cpu_s == run["curve"][0]["cpu_s"] and first.cpu_s_of_run == run["cpu_s"]


def test_a_column_of_which_nothing_is_known_holds_floats():
    rows = frames.rows([record("alibi")], "lengths")
    assert frames.data_frame(rows)["bits_per_byte"].dtype == float


def test_a_column_has_one_type():
    assert frames.unify_types([1, None, 2.5]) == [1.0, None, 2.5]
    assert [type(x) for x in frames.unify_types([1, 2.5])] == [float, float]
    assert frames.unify_types([1, "a"]) == ["1", "a"] and frames.unify_types([None]) == [None]


def test_settings_in_which_runs_differ_are_in_their_names_and_columns():
    runs = [record("rotary"), record("rotary", key="other")]
    runs[1]["experiment"] = runs[1]["experiment"] | {"rate": 0.01}
    rows = frames.rows(runs, "runs")
    assert [row["encoding"] for row in rows] == ["rotary [rate=0.005]", "rotary [rate=0.01]"]
    assert [row["spec"] for row in rows] == ["rotary", "rotary"] and [row["rate"] for row in rows] == [0.005, 0.01]


def test_records_themselves_are_to_be_had(folder):
    records = lab.load(folder, "records")
    assert sorted(run["key"] for run in records) == sorted(run["key"] for run in RECORDS) and records[0]["pictures"]


def test_wrong_words_are_refused_and_tables_where_records_are_drawn(folder, tmp_path):
    with pytest.raises(ValueError, match=r"what must be one of runs, lengths, .*; got 'length'; did you mean 'length"):
        lab.load(folder, "length")
    with pytest.raises(ValueError, match="no records in"):
        lab.load(tmp_path)
    with pytest.raises(ValueError, match=r"figures are drawn from a list of records, .*; got DataFrame"):
        lab.figures.learning(lab.load(folder, "curve"), "repeat")


def test_a_missing_library_is_named_with_what_brings_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"this needs pandas, .* pip install 'posenc\[lab\]'"):
        lab.load(folder)


def test_the_lab_hands_out_no_name_that_it_does_not_have():
    with pytest.raises(AttributeError, match=r"module 'posenc.lab' has no attribute 'lode'"):
        lab.lode  # noqa: B018
