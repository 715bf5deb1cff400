"""Engines: one rule for what becomes of a run, whoever carries it out; what a run needs; parts of a comparison."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import fake_records
import planted_runs
import pytest

from posenc import cli
from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results import drawer
from posenc.lab.runs import record
from posenc.lab.runs.settings import Settings
from posenc.lab.store import CannotWrite
from posenc.lab.sweeps import shards, sweep
from posenc.lab.sweeps.engines import Local, News, Ray, engine_of
from posenc.lab.sweeps.engines.worker import Besides, run_one
from posenc.lab.sweeps.shards import Shard

SMALL = {"steps": 2, "train_length": 2, "dim": 8, "heads": 1, "layers": 1}
WORDS = ["compare", "--encodings", "none", "alibi", "--tasks", "repeat", "--seeds", "2", "--steps", "2", "--dim", "8"]
WORDS += ["--train-length", "2", "--heads", "1", "--layers", "1"]


def write_record(folder: Path, experiment: Experiment, key: str) -> None:
    made = fake_records.record("none", "repeat", experiment.seed, key=key, experiment=experiment.to_dict())
    record.write(made, folder)


class Told:
    """An engine that does what the test says: a list of news for each time that a run begins, by its seed."""

    def __init__(self, **of_seed: list[News]) -> None:
        self.of_seed = {int(name[1:]): list(news) for name, news in of_seed.items()}
        self.begun: list[int] = []
        self.coming: list[News] = []
        self.closed = False

    def open(self, experiments: Sequence[Experiment], records: Path, besides: Besides) -> None:
        self.records = records

    def has_room(self, experiment: Experiment) -> bool:
        return not self.coming

    def begin(self, key: str, experiment: Experiment) -> None:
        self.begun.append(experiment.seed)
        left = self.of_seed.get(experiment.seed)
        found = left.pop(0) if left else News("", {"state": "done"})
        if found.changes.get("state") == "done":
            write_record(self.records, experiment, key)
        self.coming.append(replace(found, key=key))

    def news(self, seconds: float) -> Iterable[News]:
        coming, self.coming = self.coming, []
        return coming

    def close(self) -> None:
        self.closed = True


def told(tmp_path: Path, count: int, **of_seed: list[News]) -> tuple[sweep.Sweep, Told]:
    engine = Told(**of_seed)
    with store.held(tmp_path):
        found = sweep.run_all(planted_runs.runs(count), tmp_path, engine=engine)
    assert engine.closed or not engine.begun
    return found, engine


DIED, LOST = News("", died="it died"), News("", died="its machine went", lost=True)


def test_a_run_that_died_goes_to_the_end_of_the_line_and_is_set_aside_after_the_second_time(tmp_path: Path) -> None:
    found, engine = told(tmp_path, 4, s0=[DIED], s1=[DIED, DIED])
    assert engine.begun == [0, 1, 2, 3, 0, 1]
    assert [run.state for run in found.runs.values()] == ["done", "failed", "done", "done"]
    assert list(found.failures.values()) == ["it died, twice"]
    assert [*record.failures(tmp_path).values()] == [("none on repeat, seed 1: it died, twice", "none", "repeat")]


def test_a_run_is_less_to_blame_for_a_machine_that_is_lost(tmp_path: Path) -> None:
    found, engine = told(tmp_path, 2, s0=[LOST, LOST, DIED, LOST, LOST], s1=[LOST] * 5)
    assert [run.state for run in found.runs.values()] == ["done", "failed"]
    assert list(found.failures.values()) == ["its machine went, 5 times"] and engine.begun.count(0) == 6


def test_a_failed_run_is_named_and_tried_again_by_the_next_call_alone(tmp_path: Path) -> None:
    found, engine = told(tmp_path, 2, s0=[News("", failed="ValueError: planted")])
    assert list(found.failures.values()) == ["ValueError: planted"] and engine.begun == [0, 1]
    found, engine = told(tmp_path, 2)
    assert engine.begun == [0] and not found.failures and not record.failures(tmp_path)


def test_records_of_another_version_are_kept_until_they_are_deleted(tmp_path: Path, capsys) -> None:
    told(tmp_path, 2)
    path = sorted((tmp_path / "records").glob("*.json"))[1]
    other = record.read(path)
    other["versions"]["torch"] = "1.0"
    record.write(other, path.parent)
    capsys.readouterr()
    assert told(tmp_path, 2)[1].begun == []
    assert "and torch 1.0; to make them again, delete their records" in capsys.readouterr().err
    path.unlink()
    assert told(tmp_path, 2)[1].begun == [1]


def test_when_a_record_cannot_be_written_nothing_else_begins(tmp_path: Path) -> None:
    engine = Told(s0=[News("", failed=CannotWrite("no room"))])
    with store.held(tmp_path), pytest.raises(CannotWrite, match="no room"):
        sweep.run_all(planted_runs.runs(3), tmp_path, engine=engine)
    assert engine.begun == [0] and engine.closed


def test_a_record_that_cannot_be_read_again_is_no_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "write", lambda made, folder: store.write(folder / f"{made['key']}.json", b"half"))
    found, _ = told(tmp_path, 1)
    assert list(found.failures.values()) == ["its record was damaged when it was read again"]
    assert [path.suffix for path in (tmp_path / "records").iterdir() if path.suffix != ".failed"] == [".damaged"]


@pytest.mark.slow
def test_processes_of_this_machine_follow_the_same_rule(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    kinds = {0: "killed once", 1: "killed", 2: "failing"}
    found = planted_runs.sweep_on(Local(2), tmp_path / "out", home, 4, kinds)
    assert planted_runs.began(home) == {0: 2, 1: 2, 2: 1, 3: 1}
    killed = "its process was killed by SIGKILL (out of memory?), twice"
    assert sorted(found.failures.values()) == ["ArithmeticError: planted", killed]


# Names, and what an engine cannot do


def test_engines_are_had_by_name() -> None:
    assert engine_of("local") is None and isinstance(engine_of("ray", "127.0.0.1:6379"), Ray)
    with pytest.raises(ValueError, match="--engine"):
        engine_of("slurm")
    with pytest.raises(ValueError, match="--address is for --engine ray, and the engine is local; leave it out"):
        engine_of("local", "127.0.0.1:6379")


def test_ray_refuses_loggers_and_what_is_measured_besides(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--log is for --engine local: a logger writes on the machine of its run"):
        Ray().open([], tmp_path, Besides(log=("jsonl",)))
    with pytest.raises(ValueError, match="what is measured besides records is measured by --engine local alone"):
        Ray().open([], tmp_path, Besides(also=object()))  # ty: ignore[invalid-argument-type]


def test_ray_that_is_not_installed_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs ray, which is not installed: pip install 'posenc\[ray\]'"):
        Ray().open([], tmp_path, Besides())


def test_the_address_is_that_of_a_head() -> None:
    with pytest.raises(ValueError, match=r"--address is HOST:PORT of the head of a cluster.*'ray://host:10001'"):
        Ray("ray://host:10001").connect()


# Shards


def test_shards_are_disjoint_and_together_all() -> None:
    runs = list(range(11))
    parts = [Shard(number, 4).part(runs) for number in range(4)]
    assert sorted(run for part in parts for run in part) == runs and {len(part) for part in parts} == {2, 3}


@pytest.mark.parametrize("words", ["4/4", "1", "-1/4", "a/b", "1/0", "1/4/5", ""])
def test_what_is_no_shard_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match="--shard is NUMBER/COUNT, counted from 0: of four shards 0/4, 1/4, 2/4 and"):
        Shard.of(words)


@pytest.mark.parametrize(("changes", "option"), [({"until": 0.1}, "--seeds until"), ({"rates": (0.1,)}, "--rates")])
def test_what_looks_at_all_records_is_not_for_shards(tmp_path: Path, changes: dict, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} looks at the records of all runs, and a shard has its own"):
        shards.run_shard(Settings(**changes), Shard(0, 2), tmp_path)


class Here(Local):
    """An engine in this process, one run after another."""

    def __init__(self) -> None:
        super().__init__(1)
        self.waiting: list[News] = []

    def begin(self, key: str, experiment: Experiment) -> None:
        run_one(experiment, key, self.records, lambda **changes: None, self.besides)
        self.waiting.append(News(key, {"state": "done"}))

    def news(self, seconds: float) -> Iterable[News]:  # ty: ignore[invalid-method-override]
        waiting, self.waiting = self.waiting, []
        return waiting


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "Local", lambda count: Here())
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
    ours, theirs = ([one["lengths"] for one in record.read_all(folder)] for folder in (parts, whole))
    assert ours == theirs
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
        write_record(tmp_path / str(number) / "records", run, record.key_of(run))
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
        store.write(tmp_path / name / "settings.json", store.sealed({"name": name}))
    with pytest.raises(ValueError, match=r"'.*a' and '.*b' were made with other settings; put each together with its"):
        shards.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
