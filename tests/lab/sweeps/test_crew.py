"""What becomes of a run whose worker dies, fails or cannot write its record, and of records that are there already."""

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
from posenc.lab.sweeps.workers import News, Workers


class Told(Workers):
    """Workers of whom the test says what is heard: a list of news for each time that a run begins, by its seed."""

    def __init__(self, **of_seed: list[News]) -> None:
        self.of_seed = {int(name[1:]): list(news) for name, news in of_seed.items()}
        self.begun: list[int] = []
        self.coming: list[News] = []
        self.closed = False

    def has_room(self) -> bool:
        return not self.coming

    def begin(self, key: str, experiment: Experiment) -> None:
        self.begun.append(experiment.seed)
        left = self.of_seed.get(experiment.seed)
        found = left.pop(0) if left else News("", {"state": "done"})
        if found.changes.get("state") == "done":
            write_record(self.records, experiment, key)
        self.coming.append(replace(found, key=key))

    def news(self, seconds: float) -> Iterable[News]:  # ty: ignore[invalid-method-override]
        coming, self.coming = self.coming, []
        return coming

    def close(self) -> None:
        self.closed = True

    def sweep(self, folder: Path, count: int) -> sweep.Sweep:
        """A sweep of so many runs, with these workers."""
        self.records = folder / "records"
        with store.held(folder), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sweep, "Workers", lambda *given: self)
            return sweep.run_all(runs(count), folder)


def told(tmp_path: Path, count: int, **of_seed: list[News]) -> tuple[sweep.Sweep, Told]:
    workers = Told(**of_seed)
    found = workers.sweep(tmp_path, count)
    assert workers.closed or not workers.begun
    return found, workers


DIED = News("", died="it died")


def test_a_run_that_died_goes_to_the_end_of_the_line_and_is_set_aside_after_the_second_time(tmp_path: Path) -> None:
    found, workers = told(tmp_path, 4, s0=[DIED], s1=[DIED, DIED])
    assert workers.begun == [0, 1, 2, 3, 0, 1]
    assert [run.state for run in found.runs.values()] == ["done", "failed", "done", "done"]
    assert list(found.failures.values()) == ["it died, twice"]
    assert [*record.failures(tmp_path).values()] == [("none on repeat, seed 1: it died, twice", "none", "repeat")]


def test_a_failed_run_is_named_and_tried_again_by_the_next_call_alone(tmp_path: Path) -> None:
    found, workers = told(tmp_path, 2, s0=[News("", failed="ValueError: planted")])
    assert list(found.failures.values()) == ["ValueError: planted"] and workers.begun == [0, 1]
    found, workers = told(tmp_path, 2)
    assert workers.begun == [0] and not found.failures and not record.failures(tmp_path)


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
    workers = Told(s0=[News("", failed=CannotWrite("no room"))])
    with pytest.raises(CannotWrite, match="no room"):
        workers.sweep(tmp_path, 3)
    assert workers.begun == [0] and workers.closed


def test_a_record_that_cannot_be_read_again_is_no_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "write", lambda made, folder: store.write(folder / f"{made['key']}.json", b"half"))
    found, _ = told(tmp_path, 1)
    assert list(found.failures.values()) == ["its record was damaged when it was read again"]
    assert [path.suffix for path in (tmp_path / "records").iterdir() if path.suffix != ".failed"] == [".damaged"]
