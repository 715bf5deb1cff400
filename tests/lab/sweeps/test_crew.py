"""The scheduler: runs whose worker dies, fails or cannot write its record, and existing records."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from planted_runs import runs, write_record

from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.runs import record
from posenc.lab.store import CannotWrite
from posenc.lab.sweeps import sweep
from posenc.lab.sweeps.workers import WorkerMessage, Workers


class ScriptedWorkers(Workers):
    """A stub of Workers with scripted messages: a list for each seed, one for each start of its run."""

    def __init__(self, **of_seed: list[WorkerMessage]) -> None:
        self.of_seed = {int(name[1:]): list(news) for name, news in of_seed.items()}
        self.seeds: list[int] = []
        self.coming: list[WorkerMessage] = []
        self.is_closed = False

    def has_room(self) -> bool:
        return not self.coming

    def begin(self, key: str, experiment: Experiment) -> None:
        self.seeds.append(experiment.seed)
        left = self.of_seed.get(experiment.seed)
        message = left.pop(0) if left else WorkerMessage("", {"state": "done"})
        if message.changes.get("state") == "done":
            write_record(self.records, experiment, key)
        self.coming.append(replace(message, key=key))

    def messages(self, seconds: float) -> Iterable[WorkerMessage]:  # ty: ignore[invalid-method-override]
        coming, self.coming = self.coming, []
        return coming

    def close(self) -> None:
        self.is_closed = True

    def sweep(self, folder: Path, count: int) -> sweep.Sweep:
        """Run a sweep of `count` runs with scripted workers."""
        self.records = folder / "records"
        with store.locked_folder(folder), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep, "Workers", lambda *args: self)
            return sweep.run_all(runs(count), folder)


def run_script(tmp_path: Path, count: int, **of_seed: list[WorkerMessage]) -> tuple[sweep.Sweep, ScriptedWorkers]:
    workers = ScriptedWorkers(**of_seed)
    state = workers.sweep(tmp_path, count)
    assert workers.is_closed or not workers.seeds
    return state, workers


DEATH = WorkerMessage("", exit_words="it died")


def test_a_run_that_died_goes_to_the_end_of_the_line_and_is_set_aside_after_the_second_time(tmp_path: Path) -> None:
    state, workers = run_script(tmp_path, 4, s0=[DEATH], s1=[DEATH, DEATH])
    assert workers.seeds == [0, 1, 2, 3, 0, 1]
    assert [run.state for run in state.runs.values()] == ["done", "failed", "done", "done"]
    assert list(state.failures.values()) == ["it died, twice"]
    assert [*record.failures(tmp_path).values()] == [("none on repeat, seed 1: it died, twice", "none", "repeat")]


def test_a_failed_run_is_named_and_tried_again_by_the_next_call_alone(tmp_path: Path) -> None:
    state, workers = run_script(tmp_path, 2, s0=[WorkerMessage("", error="ValueError: planted")])
    assert list(state.failures.values()) == ["ValueError: planted"] and workers.seeds == [0, 1]
    state, workers = run_script(tmp_path, 2)
    assert workers.seeds == [0] and not state.failures and not record.failures(tmp_path)


def test_records_of_another_version_are_kept_until_they_are_deleted(tmp_path: Path, capsys) -> None:
    run_script(tmp_path, 2)
    path = sorted((tmp_path / "records").glob("*.json"))[1]
    old_record = record.read(path)
    old_record["versions"]["torch"] = "1.0"
    record.write(old_record, path.parent)
    capsys.readouterr()
    assert run_script(tmp_path, 2)[1].seeds == []
    assert "and torch 1.0; to make them again, delete their records" in capsys.readouterr().err
    path.unlink()
    assert run_script(tmp_path, 2)[1].seeds == [1]


def test_when_a_record_cannot_be_written_nothing_else_begins(tmp_path: Path) -> None:
    workers = ScriptedWorkers(s0=[WorkerMessage("", error=CannotWrite("no room"))])
    with pytest.raises(CannotWrite, match="no room"):
        workers.sweep(tmp_path, 3)
    assert workers.seeds == [0] and workers.is_closed


def test_a_record_that_cannot_be_read_again_is_no_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "write", lambda data, folder: store.write(folder / f"{data['key']}.json", b"half"))
    state, _ = run_script(tmp_path, 1)
    assert list(state.failures.values()) == ["its record was damaged when it was read again"]
    assert [path.suffix for path in (tmp_path / "records").iterdir() if path.suffix != ".failed"] == [".damaged"]
