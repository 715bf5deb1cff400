"""The census of architectures: its table is right, and its verdicts see what goes wrong."""

import datetime
import os
import subprocess
import sys

import census
import pytest
from tiers import rest_slow

from posenc.catalogue import build
from posenc.checkpoints.kinds.added.learned_table import ComputedEmbedding
from posenc.checkpoints.kinds.distances.buckets import Buckets
from posenc.checkpoints.kinds.rotary.module import RotaryModule

MADE_WITH, ROWS = census.table()
PARTS = 20
DAYS = 400
"""Days in which each row of at most SECONDS is computed again; the few others wait for --all."""
SECONDS = 6


def of_day(day: int) -> list[str]:
    """Return the rows of a day: quick and slow ones in equal shares."""
    quick = [row for row in ROWS.values() if row.seconds <= SECONDS]
    return [row.name for row in sorted(quick, key=lambda row: (row.seconds, row.name))[day % DAYS :: DAYS]]


def of_the_installed() -> None:
    pytest.importorskip("transformers")
    if census.versions() != MADE_WITH:
        pytest.skip(f"the table is of {MADE_WITH}, and {census.versions()} is installed")


def in_a_process(*words: str) -> list[str]:
    """Return the lines that tests/census.py prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.run([sys.executable, census.__file__, *words], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


def changed_rows(rows: list[census.Row]) -> list[str]:
    return [f"{ROWS[row.name]}\n  now {row}" for row in rows if row != ROWS[row.name]]


def failure_message(rows: list[str]) -> str:
    names = " ".join(row.split("\t")[0] for row in rows)
    lines = "\n".join(rows)
    return (
        f"these rows of tests/census.tsv come out in another way:\n{lines}\nwhere that is meant: python "
        f"tests/census.py --out tests/census.tsv {names}, then python tests/census.py --page"
    )


def test_the_table_has_every_architecture_once_and_none_is_wrong():
    pytest.importorskip("transformers")
    if census.versions() == MADE_WITH:
        assert sorted(ROWS) == census.names()
    assert {row.verdict for row in ROWS.values()} <= set(census.VERDICTS)
    assert not [row for row in ROWS.values() if row.verdict not in ("equal", "none") and not row.reason]


def test_the_page_is_what_the_table_makes():
    assert census.PAGE.read_text(encoding="utf-8") == census.page(), "renew it: python tests/census.py --page"


def test_some_rows_of_the_table_come_out_again_each_day():
    of_the_installed()
    # In this process, which has imported most of transformers by then.
    rows = changed_rows([census.in_time(name) for name in of_day(datetime.date.today().toordinal())])
    assert not rows, failure_message(rows)


def test_every_row_but_the_dearest_has_its_day():
    quick = {row.name for row in ROWS.values() if row.seconds <= SECONDS}
    assert sorted(name for day in range(DAYS) for name in of_day(day)) == sorted(quick)
    assert len(quick) > 0.95 * len(ROWS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_row_of_the_table_comes_out_again(part):
    of_the_installed()
    names = sorted(ROWS)[part::PARTS]
    rows = [census.Row.parse(line) for line in in_a_process(*names)]
    assert [row.name for row in rows] == names
    rows = changed_rows(rows)
    assert not rows, failure_message(rows)


FAMILIES = {"qwen2_vl": 2, "qwen3_5": 5, "glm4v": 2}
"""Architectures of several parts, and a number of layers that has each layer type."""


@pytest.mark.parametrize("name", FAMILIES)
def test_a_dtype_within_changes_nothing_and_published_lengths_and_bases_are_read(name):
    pytest.importorskip("transformers")
    assert census.reading_faults(name, FAMILIES[name]) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(5 * PARTS))
def test_every_default_config_reads_the_same_in_half_precision_and_as_published(part):
    of_the_installed()
    lines = in_a_process("--again", *sorted(ROWS)[part :: 5 * PARTS])
    assert not [line for line in lines if not line.split("\t")[1].startswith(("the same", "refused"))]


def with_another(kind, spec, monkeypatch):
    """Patch a kind: another encoding replaces the model's own without a comparison."""
    fill = kind.fill

    def fill_with_another(self, model, encodings, horizon, *, exact):
        return fill(self, model, [build(spec, self.stack.shape)] * len(encodings), horizon, exact=False)

    monkeypatch.setattr(kind, "fill", fill_with_another)


@pytest.mark.parametrize("name", rest_slow(["llama", "bert", "t5"], 2))
def test_numbers_that_are_not_the_models_own_are_seen(name, monkeypatch):
    assert census.examine(name).verdict == "equal"
    if name == "llama":
        with_another(RotaryModule, "rotary(base=9000)", monkeypatch)
    elif name == "t5":
        with_another(Buckets, "t5_bias(max_distance=20, causal=False)", monkeypatch)
    else:
        rows = ComputedEmbedding.forward
        monkeypatch.setattr(ComputedEmbedding, "forward", lambda self, ids: rows(self, ids + 1))
    row = census.examine(name)
    assert row.verdict == "wrong" and "attached, outputs differ" in row.reason, row
