"""Shards: parts of a comparison, each in its own folder, and the merge of their records."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import planted_runs
import pytest

from posenc import cli
from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results import drawer
from posenc.lab.runs import record
from posenc.lab.runs.settings import Settings
from posenc.lab.sweeps import shards, sweep
from posenc.lab.sweeps.shards import Shard
from posenc.lab.sweeps.workers import WorkerMessage, Workers, make_record

WORDS = ["compare", "--encodings", "none", "alibi", "--tasks", "repeat", "--seeds", "2", "--steps", "2", "--dim", "8"]
WORDS += ["--train-length", "2", "--heads", "1", "--layers", "1"]


def test_shards_are_disjoint_and_together_all() -> None:
    runs = list(range(11))
    parts = [Shard(number, 4).part(runs) for number in range(4)]
    assert sorted(run for part in parts for run in part) == runs and {len(part) for part in parts} == {2, 3}


@pytest.mark.parametrize("words", ["4/4", "1", "-1/4", "a/b", "1/0", "1/4/5", ""])
def test_what_is_no_shard_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="--shard is NUMBER/COUNT, counted from 0: of four shards 0/4, 1/4, 2/4 and"):
        Shard.parse(words)


def test_what_looks_at_all_records_is_not_for_shards(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--rates looks at the records of all runs, and a shard has its own"):
        shards.run_shard(Settings(rates=(0.1,)), Shard(0, 2), tmp_path)


class Here(Workers):
    """A stub of Workers that trains in this process."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.coming: list[WorkerMessage] = []

    def begin(self, key: str, experiment: Experiment) -> None:
        make_record(experiment, key, self.records, lambda **changes: None)
        self.coming.append(WorkerMessage(key, {"state": "done"}))

    def messages(self, seconds: float) -> Iterable[WorkerMessage]:  # ty: ignore[invalid-method-override]
        coming, self.coming = self.coming, []
        return coming


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "Workers", Here)
    monkeypatch.setattr(drawer.Drawer, "__call__", lambda *_: None)  # figures take longer than all else


def test_shards_put_together_are_the_comparison(tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]) -> None:
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    for number in range(3):
        assert cli.main([*WORDS, "--shard", f"{number}/3", "--out", str(parts)]) == 0
    folders = sorted(map(str, parts.glob("shard-*")))
    assert cli.main(["merge", *folders, "--out", str(parts)]) == 0
    assert "4 records are new" in capsys.readouterr().out
    assert cli.main([*WORDS, "--out", str(whole)]) == 0
    names = [sorted(path.name for path in (folder / "records").iterdir()) for folder in (parts, whole)]
    assert names[0] == names[1] and len(names[0]) == 4
    actual, expected = ([row["lengths"] for row in record.read_all(folder)] for folder in (parts, whole))
    assert actual == expected
    # The same again: nothing is new, and a shard of another count runs nothing that is there.
    for again in (folders, [str(parts)], [str(parts), folders[0]]):
        assert cli.main(["merge", *again, "--out", str(parts)]) == 0
        assert "0 records are new" in capsys.readouterr().out
    # What compare --shard was given as its --out stands for the shards in it.
    shutil.copytree(parts / "shard-1-of-3", tmp_path / "other" / "shard-1-of-3")
    assert cli.main(["merge", str(tmp_path / "other"), folders[0], "--out", str(tmp_path / "both")]) == 0
    assert len(list((tmp_path / "both" / "records").iterdir())) == len(
        Shard(0, 3).part("four") + Shard(1, 3).part("four")
    )
    assert cli.main([*WORDS, "--shard", "0/2", "--out", str(parts)]) == 0
    assert "0 runs of shard 0/2" in capsys.readouterr().out


def test_merging_names_what_is_damaged_and_takes_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, run in enumerate(planted_runs.runs(2)):
        planted_runs.write_record(tmp_path / str(number) / "records", run, record.key_of(run))
    [path] = (tmp_path / "1" / "records").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    record.write_failure(tmp_path / "1" / "records", "other", why := record.Failure("why"))
    assert cli.main(["merge", str(tmp_path / "0"), str(tmp_path / "1"), "--out", str(tmp_path / "all")]) == 1
    assert f"left out: {path}: it is no whole JSON" in capsys.readouterr().err
    assert len(record.read_all(tmp_path / "all")) == 1 and record.failures(tmp_path / "all") == {"other": why}


def test_folders_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no records in '.*'; make some with posenc compare --shard, or leave it out"):
        shards.merge([tmp_path / "nothing"], tmp_path / "out")
    for name in ("a", "b"):
        (tmp_path / name / "records").mkdir(parents=True)
        store.write(tmp_path / name / "settings.json", store.dump_json({"name": name}))
    with pytest.raises(ValueError, match=r"'.*a' and '.*b' were made with other settings; put each together with its"):
        shards.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
