"""kill -9 at any moment: nothing finished is lost or made again, and the next call ends as if nothing had been.

Most kills are placed by events: a forked process kills itself at its n-th call that changes the disk, with half of
what it was writing written. The long runs kill whole commands with all their workers at random moments.
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
from forked import Forked

from posenc.checkpoints.files.folder_writer import write_folder
from posenc.lab import store
from posenc.lab.board import rows
from posenc.lab.experiments.recipes import recipe
from posenc.lab.results import report
from posenc.lab.runs import checkpoint, record
from posenc.lab.runs.single_run import train_one
from posenc.lab.sweeps import sweep
from posenc.lab.sweeps.workers import run_one

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed")

TINY: dict[str, Any] = {"train_length": 2, "dim": 4, "heads": 1, "layers": 1, "batch": 2}
KILLS = [range(24, 60, 23), pytest.param("random", marks=pytest.mark.slow)]
"""The events at which processes are killed: some, and twenty at random."""


def events(kills: Any) -> list[int]:
    random = Random(7)
    return [random.randrange(1, 14) for _ in range(20)] if kills == "random" else list(kills)


def killed_at(event: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed at its n-th event; whether it came so far."""
    with warnings.catch_warnings():
        # The suite's own threads wait for their pipes, and the child never runs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            count_down(event)
            work()
            os._exit(0)
        finally:
            os._exit(70)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), "the work itself failed"
    return code != 0


def count_down(left: int) -> None:
    """From here on this process dies at its n-th call that changes the disk."""

    def counted(plain: Callable) -> Callable:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if plain.__name__ == "write":
                    plain(given[0], given[1][: len(given[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*given, **named)

        return call

    for name in ("write", "fsync", "replace", "rename", "mkdir", "unlink"):
        setattr(os, name, counted(getattr(os, name)))


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if store.TEMPORARY.fullmatch(path.name)]


@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_training_that_is_killed_ends_in_the_same_bits(kills: Any, tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        train_one("learned", "copy", 0, folder, None, lambda words: None, **TINY, steps=12, evaluate_every=2)

    work(tmp_path / "whole")
    folder, last, died = tmp_path / "killed", 0, 0
    for event in events(kills):
        died += killed_at(event, lambda: work(folder))
        if checkpoint.is_there(folder):
            step = checkpoint.load(folder).step
            assert step >= last
            last = step
    assert died
    work(folder)
    found, whole = checkpoint.load(folder), checkpoint.load(tmp_path / "whole")
    for (name, one), other in zip(found.model.state_dict().items(), whole.model.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert [(p["step"], p["loss"], p["score"]) for p in found.curve] == [
        (p["step"], p["loss"], p["score"]) for p in whole.curve
    ]
    names = {path.name for path in folder.iterdir()}
    assert names == {".lock", "settings.toml", "step-000010", "step-000012"} and not leftovers(folder)


@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_runs_that_are_killed_lose_no_record_and_make_none_twice(kills: Any, tmp_path: Path) -> None:
    runs = [recipe("repeat", "none", seed, **TINY, steps=2) for seed in range(4)]

    def work(folder: Path) -> None:
        with store.held(folder):
            for run in runs:
                path = folder / f"{record.key_of(run)}.json"
                if not sweep.kept_record(path):
                    run_one(run, path.stem, folder, lambda **changes: None)

    folder, finished, died = tmp_path / "killed", {}, 0
    for event in events(kills):
        died += killed_at(event, lambda: work(folder))
        now = {path.name: path.read_bytes() for path in folder.glob("*.json")}
        assert now.items() >= finished.items()
        finished = now
    assert died
    work(folder)
    work(tmp_path / "whole")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
    assert [facts(path) for path in sorted(folder.glob("*.json"))] == [
        facts(path) for path in sorted((tmp_path / "whole").glob("*.json"))
    ]


def facts(path: Path) -> dict[str, Any]:
    """A record without its times."""
    found = record.read(path)
    curve = [{name: value for name, value in point.items() if name != "cpu_s"} for point in found["curve"]]
    times = ("cpu_s", "wall_s", "train_cpu_s", "cpu_s_to_learned")
    return {name: value for name, value in found.items() if name not in times} | {"curve": curve}


@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_a_board_that_is_killed_loses_no_row_and_makes_no_run_twice(kills: Any, tmp_path: Path) -> None:
    runs = [recipe(task, "none", seed, **TINY, steps=2) for seed in range(2) for task in ("repeat", "copy")]

    def work(board: Path) -> None:
        work, made = board / "work", board / "made"
        with store.held(board), store.held(work):
            rows.fold(work, board)
            for place, run in enumerate(runs):
                key = record.key_of(run)
                if key in {row["key"] for row in rows.read(board)} or (work / "records" / f"{key}.json").exists():
                    continue
                run_one(run, key, work / "records", lambda **changes: None)
                # Not through os, whose calls are counted.
                with made.open("a") as file:
                    print(key, file=file)
                if place % 2:
                    rows.fold(work, board)

    board, before, died = tmp_path / "killed", set(), 0
    board.mkdir()
    for event in events(kills):
        died += killed_at(event, lambda: work(board))
        now = {row["key"] for row in rows.read(board)} | {path.stem for path in board.glob("work/records/*.json")}
        assert now >= before
        before = now
    assert died
    work(board)
    (tmp_path / "whole").mkdir()
    work(tmp_path / "whole")
    made = (board / "made").read_text().split()
    assert len(made) == len(set(made))
    found, whole = ({row["key"]: row for row in rows.read(one)} for one in (board, tmp_path / "whole"))
    assert found.keys() == whole.keys() == set(map(record.key_of, runs))
    for key, row in found.items():
        assert row["lengths"] == whole[key]["lengths"]
    assert not leftovers(board) and not list(board.glob("work/records/*.json"))


FILLS = """
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
    (tmp_path / "fills.py").write_text(FILLS)
    board = tmp_path / "board"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "fills.py"), str(board)]
    filling = subprocess.Popen(command, env=environ, start_new_session=True)
    deadline = time.monotonic() + 240
    # Past the search, in the midst of what counts.
    while sum(1 for _ in board.glob("work/records/*-seed10*.json")) < 2:
        assert filling.poll() is None and time.monotonic() < deadline, "it ended, or came to nothing"
        time.sleep(0.02)
    os.killpg(filling.pid, signal.SIGKILL)
    filling.wait()
    done = {path.stem: path.read_bytes() for path in board.glob("work/records/*.json")}
    kept = {row["key"]: row for row in rows.read(board)}
    assert done or kept
    expected = kept | {key: rows.row_of(record.read(board / "work" / "records" / f"{key}.json")) for key in done}
    assert subprocess.run(command, env=environ, timeout=240).returncode == 0
    found = {row["key"]: row for row in rows.read(board)}
    # What was finished is kept to its times, so it was not made again.
    assert all(found[key] == row for key, row in expected.items())
    assert sum(row["experiment"]["seed"] >= 100 for row in found.values()) == 8
    assert not leftovers(board) and not list(board.glob("work/records/*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", KILLS, ids=["some", "random"])
def test_a_report_that_is_killed_is_the_one_before_or_whole(kills: Any, tmp_path: Path) -> None:
    short = fake_record("none", attention=None, order=None, ablation=None, pictures=None)
    report.write([short], tmp_path / "whole")
    whole = (tmp_path / "whole" / "report.html").read_bytes()
    folder = tmp_path / "killed"

    def work() -> None:
        with store.held(folder):
            report.write([short], folder)

    died = 0
    for event in events(kills) if kills == "random" else [24]:
        died += killed_at(event, work)
        page = folder / "report.html"
        assert not page.exists() or page.read_bytes() == whole
    assert died
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
    died = 0
    with store.appearing(tmp_path / "of another that lives") as other:
        for event in events(kills):
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            died += killed_at(event % 8 + 1, work)
            assert set(leftovers(tmp_path)) >= {other}
            assert not (tmp_path / "new").exists() or whole("new") == whole("before")
        assert died
        shutil.rmtree(tmp_path / "new", ignore_errors=True)
        work()
        assert whole("new") == whole("before") and leftovers(tmp_path) == [other]
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
    """And with them their reports: a comparison ends with one."""
    random, finished, died = Random(11), {}, 0
    began = time.monotonic()
    assert Forked(*COMMANDS[verb], "--out", str(tmp_path / "whole")).ended()[0] == 0
    took = time.monotonic() - began
    for _ in range(20):
        folder = tmp_path / "killed"
        command = Forked(*COMMANDS[verb], "--out", str(folder))
        # So soon that it takes many to come to the end.
        time.sleep(random.uniform(0, took / 4))
        command.kill()
        died += command.ended()[0] == -signal.SIGKILL
        now = {path.name: path.read_bytes() for path in (folder / "records").glob("*.json")}
        assert now.items() >= finished.items()
        finished = now
        if verb == "train" and checkpoint.is_there(folder):
            checkpoint.load(folder)
    assert died >= 10
    assert Forked(*COMMANDS[verb], "--out", str(folder)).ended()[0] == 0
    assert not leftovers(folder)
    names = [sorted(path.relative_to(one) for path in one.rglob("*")) for one in (folder, tmp_path / "whole")]
    assert names[0] == names[1]
    for path in (folder / "records").glob("*.json"):
        assert facts(path) == facts(tmp_path / "whole" / "records" / path.name)
    if verb == "train":
        weights = [checkpoint.load(one).model.state_dict() for one in (folder, tmp_path / "whole")]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
