"""kill -9 at any moment: finished work is neither lost nor repeated, and the next call completes the rest.

Most kills are placed by events: a forked process kills itself at its n-th call that changes the disk, after half of
its bytes. The long runs kill whole commands with all their workers at random moments.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from fake_records import record as fake_record
from forks import ForkedCli

from posenc.checkpoints.files.folder_writer import write_folder
from posenc.lab import store
from posenc.lab.board import rows
from posenc.lab.experiments.recipes import recipe
from posenc.lab.results import report
from posenc.lab.runs import checkpoint, record
from posenc.lab.runs.single_run import train_run
from posenc.lab.sweeps import sweep
from posenc.lab.sweeps.workers import make_record

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed")

TINY: dict[str, Any] = {"train_length": 2, "dim": 4, "heads": 1, "layers": 1, "batch": 2}
KILLS = [range(24, 60, 23), pytest.param("random", marks=pytest.mark.slow)]
"""The events at which processes are killed: a few, and twenty at random."""


def kill_events(kills: Any) -> list[int]:
    random = Random(7)
    return [random.randrange(1, 14) for _ in range(20)] if kills == "random" else list(kills)


def is_killed_at(event: int, work: Callable[[], object]) -> bool:
    """Do the work in a child killed at its n-th event, and return whether it got there."""
    with warnings.catch_warnings():
        # Python warns of threads; those of the suite only wait for pipes, and the child never runs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            kill_after(event)
            work()
            os._exit(0)
        finally:
            os._exit(70)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), "the work itself failed"
    return code != 0


def kill_after(remaining: int) -> None:
    """Let this process kill itself at its n-th later call that changes the disk."""

    def with_count(plain: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal remaining
            remaining -= 1
            if remaining == 0:
                if plain.__name__ == "write":
                    plain(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*args, **kwargs)

        return call

    for name in ("write", "fsync", "replace", "rename", "mkdir", "unlink"):
        setattr(os, name, with_count(getattr(os, name)))


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if store.TEMPORARY.fullmatch(path.name)]


@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_training_that_is_killed_ends_in_the_same_bits(kills: Any, tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        train_run("learned", "copy", 0, folder, None, lambda words: None, **TINY, steps=12, evaluate_every=2)

    work(tmp_path / "whole")
    folder, last, kill_count = tmp_path / "killed", 0, 0
    for event in kill_events(kills):
        kill_count += is_killed_at(event, lambda: work(folder))
        if checkpoint.has_checkpoint(folder):
            step = checkpoint.load(folder).step
            assert step >= last
            last = step
    assert kill_count
    work(folder)
    run, whole = checkpoint.load(folder), checkpoint.load(tmp_path / "whole")
    for (name, actual), expected in zip(run.model.state_dict().items(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(actual, expected), name
    assert [(p["step"], p["loss"], p["score"]) for p in run.curve] == [
        (p["step"], p["loss"], p["score"]) for p in whole.curve
    ]
    names = {path.name for path in folder.iterdir()}
    assert names == {".lock", "settings.toml", "step-000010", "step-000012"} and not leftovers(folder)


@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_runs_that_are_killed_lose_no_record_and_make_none_twice(kills: Any, tmp_path: Path) -> None:
    runs = [recipe("repeat", "none", seed, **TINY, steps=2) for seed in range(4)]

    def work(folder: Path) -> None:
        with store.locked_folder(folder):
            for run in runs:
                path = folder / f"{record.key_of(run)}.json"
                if not sweep.kept_record(path):
                    make_record(run, path.stem, folder, lambda **changes: None)

    folder, records, kill_count = tmp_path / "killed", {}, 0
    for event in kill_events(kills):
        kill_count += is_killed_at(event, lambda: work(folder))
        now = {path.name: path.read_bytes() for path in folder.glob("*.json")}
        assert now.items() >= records.items()
        records = now
    assert kill_count
    work(folder)
    work(tmp_path / "whole")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
    assert [record_without_times(path) for path in sorted(folder.glob("*.json"))] == [
        record_without_times(path) for path in sorted((tmp_path / "whole").glob("*.json"))
    ]


def record_without_times(path: Path) -> dict[str, Any]:
    """Return a record without its times."""
    contents = record.read(path)
    curve = [{name: value for name, value in point.items() if name != "cpu_s"} for point in contents["curve"]]
    times = ("cpu_s", "wall_s", "train_cpu_s", "cpu_s_to_learned")
    return {name: value for name, value in contents.items() if name not in times} | {"curve": curve}


@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_a_board_that_is_killed_loses_no_row_and_makes_no_run_twice(kills: Any, tmp_path: Path) -> None:
    runs = [recipe(task, "none", seed, **TINY, steps=2) for seed in range(2) for task in ("repeat", "copy")]

    def work(board: Path) -> None:
        work, log = board / "work", board / "made"
        with store.locked_folder(board), store.locked_folder(work):
            rows.fold(work, board)
            for place, run in enumerate(runs):
                key = record.key_of(run)
                if key in {row["key"] for row in rows.read(board)} or (work / "records" / f"{key}.json").exists():
                    continue
                make_record(run, key, work / "records", lambda **changes: None)
                # The log is not written through os, because calls of os are counted.
                with log.open("a") as file:
                    print(key, file=file)
                if place % 2:
                    rows.fold(work, board)

    board, keys, kill_count = tmp_path / "killed", set(), 0
    board.mkdir()
    for event in kill_events(kills):
        kill_count += is_killed_at(event, lambda: work(board))
        now = {row["key"] for row in rows.read(board)} | {path.stem for path in board.glob("work/records/*.json")}
        assert now >= keys
        keys = now
    assert kill_count
    work(board)
    (tmp_path / "whole").mkdir()
    work(tmp_path / "whole")
    run_keys = (board / "made").read_text().split()
    assert len(run_keys) == len(set(run_keys))
    actual, whole = ({row["key"]: row for row in rows.read(folder)} for folder in (board, tmp_path / "whole"))
    assert actual.keys() == whole.keys() == set(map(record.key_of, runs))
    for key, row in actual.items():
        assert row["lengths"] == whole[key]["lengths"]
    assert not leftovers(board) and not list(board.glob("work/records/*.json"))


FILL_SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path

from posenc.lab.board import costs, run, scope

if __name__ == "__main__":
    whole, small = scope.experiment, {"train_length": 2, "test_lengths": (3,), "dim": 16, "layers": 1, "batch": 2}
    scope.experiment = lambda *given: replace(whole(*given), **small, steps=40)
    costs.DIM = 16
    out = Path(sys.argv[1])
    failed = run.fill(run.Board(out, ("copy",), ("none",), tuple(range(100, 108)), base=out), workers=2)
    assert not failed, failed
"""


@pytest.mark.slow
def test_filling_the_board_that_is_killed_with_all_its_workers_loses_what_is_in_hand_alone(tmp_path: Path) -> None:
    (tmp_path / "fills.py").write_text(FILL_SCRIPT)
    board = tmp_path / "board"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "fills.py"), str(board)]
    filling = subprocess.Popen(command, env=environ, start_new_session=True)
    deadline = time.monotonic() + 240
    # Wait until the search is over and the counted runs are going on.
    while sum(1 for _ in board.glob("work/records/*-seed10*.json")) < 2:
        assert filling.poll() is None and time.monotonic() < deadline, "the command ended early, or made no progress"
        time.sleep(0.02)
    os.killpg(filling.pid, signal.SIGKILL)
    filling.wait()
    records = {path.stem: path.read_bytes() for path in board.glob("work/records/*.json")}
    old_rows = {row["key"]: row for row in rows.read(board)}
    assert records or old_rows
    expected = old_rows | {key: rows.row_of(record.read(board / "work" / "records" / f"{key}.json")) for key in records}
    assert subprocess.run(command, env=environ, timeout=240).returncode == 0
    new_rows = {row["key"]: row for row in rows.read(board)}
    # The finished runs have their old times, so they were not repeated.
    assert all(new_rows[key] == row for key, row in expected.items())
    assert sum(row["experiment"]["seed"] >= 100 for row in new_rows.values()) == 8
    assert not leftovers(board) and not list(board.glob("work/records/*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_a_report_that_is_killed_is_the_one_before_or_whole(kills: Any, tmp_path: Path) -> None:
    short = fake_record("none", attention=None, order=None, ablation=None, pictures=None)
    report.write([short], tmp_path / "whole")
    whole = (tmp_path / "whole" / "report.html").read_bytes()
    folder = tmp_path / "killed"

    def work() -> None:
        with store.locked_folder(folder):
            report.write([short], folder)

    kill_count = 0
    for event in kill_events(kills) if kills == "random" else [24]:
        kill_count += is_killed_at(event, work)
        page = folder / "report.html"
        assert not page.exists() or page.read_bytes() == whole
    assert kill_count
    work()
    assert (folder / "report.html").read_bytes() == whole and not leftovers(folder)


@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_a_checkpoint_that_is_killed_while_it_is_written_is_not_there_and_the_next_clears_what_is_left(
    kills: Any, tmp_path: Path
) -> None:
    weights = [("a", torch.arange(3.0)), ("b", torch.arange(5))]

    def work(name: str = "new") -> None:
        if not (tmp_path / name).exists():
            write_folder(tmp_path / name, {"model_type": "none"}, weights)

    def whole(name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    work("before")
    kill_count = 0
    with store.new_folder(tmp_path / "of another that lives") as other_folder:
        for event in kill_events(kills):
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            kill_count += is_killed_at(event % 8 + 1, work)
            assert set(leftovers(tmp_path)) >= {other_folder}
            assert not (tmp_path / "new").exists() or whole("new") == whole("before")
        assert kill_count
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        work()
        assert whole("new") == whole("before") and leftovers(tmp_path) == [other_folder]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "new", "of another that lives"]


SMALL = ["--steps", "200", "--train-length", "3", "--dim", "8", "--heads", "1", "--layers", "1"]
COMMANDS = {
    "compare": ["compare", "--encodings", "none", "alibi", "--tasks", "repeat", "--seeds", "4", *SMALL],
    "train": ["train", "learned", "--task", "copy", *SMALL],
}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("verb", COMMANDS)
def test_commands_that_are_killed_with_all_their_workers_at_random_moments(verb: str, tmp_path: Path) -> None:
    """The test compares reports too, because a comparison ends with a report."""
    random, records, kill_count = Random(11), {}, 0
    start = time.monotonic()
    assert ForkedCli(*COMMANDS[verb], "--out", str(tmp_path / "whole")).outcome()[0] == 0
    duration = time.monotonic() - start
    for _ in range(20):
        folder = tmp_path / "killed"
        command = ForkedCli(*COMMANDS[verb], "--out", str(folder))
        # The kill comes so soon that the work needs many calls.
        time.sleep(random.uniform(0, duration / 4))
        command.kill()
        kill_count += command.outcome()[0] == -signal.SIGKILL
        now = {path.name: path.read_bytes() for path in (folder / "records").glob("*.json")}
        assert now.items() >= records.items()
        records = now
        if verb == "train" and checkpoint.has_checkpoint(folder):
            checkpoint.load(folder)
    assert kill_count >= 10
    assert ForkedCli(*COMMANDS[verb], "--out", str(folder)).outcome()[0] == 0
    assert not leftovers(folder)
    names = [sorted(path.relative_to(home) for path in home.rglob("*")) for home in (folder, tmp_path / "whole")]
    assert names[0] == names[1]
    for path in (folder / "records").glob("*.json"):
        assert record_without_times(path) == record_without_times(tmp_path / "whole" / "records" / path.name)
    if verb == "train":
        weights = [checkpoint.load(home).model.state_dict() for home in (folder, tmp_path / "whole")]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
