"""The census of architectures: its table is right, and its verdicts see what goes wrong."""

import datetime
import os
import subprocess
import sys

import census
import pytest

from posenc.catalogue import build
from posenc.checkpoints.kinds.added.learned_table import EmbeddedRows
from posenc.checkpoints.kinds.distances.buckets import Buckets
from posenc.checkpoints.kinds.rotary.module import RotaryModule

MADE_WITH, ROWS = census.table()
PARTS = 20
SECONDS = 10
"""How much time of the processor the rows of a day may take."""


def of_part(part: int) -> list[str]:
    return sorted(ROWS)[part::PARTS]


def of_today() -> list[str]:
    """Some rows of a part that changes each day, the quickest first."""
    names, spent = [], 0.0
    for name in sorted(of_part(datetime.date.today().toordinal() % PARTS), key=lambda name: ROWS[name].seconds):
        # A row of a second takes half of one, as seconds are rounded up.
        spent += ROWS[name].seconds - 0.5
        if spent > SECONDS:
            break
        names.append(name)
    return names


def changed(names: list[str]) -> list[str]:
    """The rows that come out in another way, made anew in a process of its own."""
    pytest.importorskip("transformers")
    if census.versions() != MADE_WITH:
        pytest.skip(f"the table is of {MADE_WITH}, and {census.versions()} is installed")
    made = subprocess.run(
        [sys.executable, census.__file__, *names],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
    )
    assert made.returncode == 0, made.stderr
    rows = [census.Row.of(line) for line in made.stdout.splitlines()]
    assert [row.name for row in rows] == names
    return [f"{ROWS[row.name]}\n  now {row}" for row in rows if row != ROWS[row.name]]


def renewed(rows: list[str]) -> str:
    names = " ".join(row.split("\t")[0] for row in rows)
    told = "\n".join(rows)
    return (
        f"these rows of tests/census.tsv come out in another way:\n{told}\nwhere that is meant: python tests/census.py "
        f"--out tests/census.tsv {names}, then python tests/census.py --page"
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
    rows = changed(of_today())
    assert not rows, renewed(rows)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_row_of_the_table_comes_out_again(part):
    rows = changed(of_part(part))
    assert not rows, renewed(rows)


def with_another(kind, spec, monkeypatch):
    """A kind that lets another encoding than the model's own compute it, and does not compare them."""
    fill = kind.fill

    def filled(self, model, encodings, horizon, *, same):
        return fill(self, model, [build(spec, self.stack.shape)] * len(encodings), horizon, same=False)

    monkeypatch.setattr(kind, "fill", filled)


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_numbers_that_are_not_the_models_own_are_seen(name, monkeypatch):
    assert census.of(name).verdict == "equal"
    if name == "llama":
        with_another(RotaryModule, "rotary(base=9000)", monkeypatch)
    elif name == "t5":
        with_another(Buckets, "t5_bias(max_distance=20, causal=False)", monkeypatch)
    else:
        rows = EmbeddedRows.forward
        monkeypatch.setattr(EmbeddedRows, "forward", lambda self, ids: rows(self, ids + 1))
    row = census.of(name)
    assert row.verdict == "wrong" and "attached, outputs differ" in row.reason, row
