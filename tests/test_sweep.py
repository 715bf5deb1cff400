"""Sweeps: what is finished stays finished, whatever ends a sweep, and one failure is one failure.

The story below is one folder's: Ctrl-C, then a kill, then the same command to the end with a damaged record in its way,
and all the while one encoding that fails. Real processes, so it is told once and asked about by many tests.
"""

import io
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from posenc import cli
from posenc.lab import record, sweep
from posenc.lab.recipes import Experiment, recipe
from posenc.lab.sweep import Progress, Sweep, ctrl_c_held, make_folder, run_all

SMALL = ["--tasks", "repeat", "--steps", "6", "--train-length", "3", "--dim", "16", "--heads", "2", "--layers", "1"]

OWN = '''
import time
from pathlib import Path

from posenc import Encoding

HOME = Path(__file__).parent


class Waiting(Encoding):
    """Waits in its first forward pass until a file is there."""

    def embed(self, x, at):
        (HOME / "reached").touch()
        while not (HOME / "open").exists():
            time.sleep(0.05)
        return x


class Failing(Encoding):
    """Fails in its first forward pass."""

    def embed(self, x, at):
        raise ArithmeticError("mine cannot count")
'''


@dataclass
class Ended:
    """How a command ended: its exit code, what it wrote, and the records that were there afterwards."""

    code: int
    out: str
    err: str
    records: dict[str, tuple[bytes, int]]
    others: list[str]


def until(true: Callable[[], object], process: subprocess.Popen, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Story:
    """One folder, and the commands that were run on it one after another."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "out"
        (home / "mine.py").write_text(OWN)
        self.own = str(home / "mine.py")

    def command(self) -> list[str]:
        own = [f"{self.own}:{name}" for name in ("Failing", "Waiting")]
        return ["compare", "--encodings", "none", *own, *SMALL, "--out", str(self.folder)]

    def begin(self) -> subprocess.Popen:
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        # A shell starts background jobs, such as a test run, with Ctrl-C ignored, and children inherit that. Here a
        # person has started the command.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "posenc", *self.command()],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True,
            )  # fmt: skip
        finally:
            signal.signal(signal.SIGINT, before)

    def ended(self, code: int, out: str, err: str) -> Ended:
        files = list((self.folder / "records").iterdir())
        records = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files if file.suffix == ".json"}
        return Ended(code, out, err, records, [file.name for file in files if file.suffix != ".json"])

    def finished(self) -> list[Path]:
        return list((self.folder / "records").glob("repeat-none-*.json"))

    def interrupt(self) -> Ended:
        process = self.begin()
        until(lambda: self.finished() and (self.home / "reached").exists(), process)
        # As a terminal does it: to the command and all its workers.
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        return self.ended(process.returncode, out, err)

    def kill(self) -> Ended:
        (self.home / "reached").unlink()
        process = self.begin()
        until((self.home / "reached").exists, process)
        process.kill()
        # The pipes close when the last process that holds them is gone: a worker left behind would time out here.
        out, err = process.communicate(timeout=60)
        return self.ended(process.returncode, out, err)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    told = Story(tmp_path_factory.mktemp("sweep"))
    ends = {"interrupted": told.interrupt(), "killed": told.kill()}
    (told.home / "open").touch()
    record_of_none = told.finished()[0]
    record_of_none.write_bytes(record_of_none.read_bytes()[:200])
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main(told.command())
    return ends | {"gone on": told.ended(code, out.getvalue(), err.getvalue())}


def none_of(ended: Ended) -> tuple[str, tuple[bytes, int]]:
    return next((name, content) for name, content in ended.records.items() if name.startswith("repeat-none-"))


# On a busy machine a process takes long to import torch, and here are eight of them.
pytestmark = pytest.mark.timeout(900)
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@on_posix
def test_ctrl_c_ends_with_130_and_one_sentence_and_no_traceback(story) -> None:
    ended = story["interrupted"]
    assert ended.code == 130 and ended.out == ""
    assert ended.err.splitlines()[-1] == "posenc: interrupted; finished runs are kept, the same command goes on"
    assert "Traceback" not in ended.err and "Error" not in ended.err


@on_posix
@pytest.mark.parametrize("end", ["interrupted", "killed"])
def test_what_was_finished_has_a_whole_record_and_what_was_not_has_none(story, end: str) -> None:
    assert len(story[end].records) == 1 and none_of(story[end]) and not story[end].others


@on_posix
def test_workers_do_not_outlive_a_command_that_is_killed(story) -> None:
    assert story["killed"].code == -signal.SIGKILL


@on_posix
def test_the_same_command_keeps_what_was_finished(story) -> None:
    assert none_of(story["killed"]) == none_of(story["interrupted"])


@on_posix
def test_the_same_command_goes_on_to_the_end(story) -> None:
    ended = story["gone on"]
    assert len(ended.records) == 2 and none_of(ended)
    assert "3 of 3 runs done" in ended.err and "Report: " in ended.out


@on_posix
def test_a_damaged_record_is_set_aside_and_made_again(story) -> None:
    name, (content, _) = none_of(story["gone on"])
    aside = name.replace(".json", ".damaged")
    assert story["gone on"].others == [aside]
    assert f"{name} is not a whole record (JSONDecodeError); set aside as {aside}" in " ".join(
        story["gone on"].err.split()
    )
    made, before = json.loads(content), json.loads(none_of(story["killed"])[1][0])
    # The same seed: the same numbers.
    assert made["lengths"] == before["lengths"] and made["key"] == before["key"]


@on_posix
def test_an_encoding_that_fails_is_named_and_takes_nobody_with_it(story) -> None:
    ended = story["gone on"]
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert last.startswith("failed: ") and last.endswith("ArithmeticError: mine cannot count")
    assert "mine.py:Failing on repeat, seed 0" in last


def test_processes_are_started_while_ctrl_c_is_held_and_it_works_again_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyError), ctrl_c_held():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        raise KeyError
    assert signal.getsignal(signal.SIGINT) is before


# What needs no processes


def small(spec: str = "none", **changes) -> Experiment:
    return recipe("repeat", spec, **({"steps": 2, "train_length": 2, "dim": 8, "heads": 1, "layers": 1} | changes))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> queue.SimpleQueue:
    """A worker's news, where the test is the worker."""
    news: queue.SimpleQueue = queue.SimpleQueue()
    monkeypatch.setattr(sweep, "to_parent", news)
    return news


def test_a_worker_tells_what_it_does_and_writes_its_record_under_the_given_name(tmp_path: Path, here) -> None:
    sweep.run_one(small(evaluate_every=1), "a-key", str(tmp_path))
    news = [here.get() for _ in range(here.qsize())]
    assert {key for key, _ in news} == {"a-key"}
    assert news[0][1] == {"state": "running"} and news[-1][1] == {"state": "measuring"}
    assert [changes["step"] for _, changes in news[1:-1]] == [1, 2]
    assert record.read(tmp_path / "a-key.json")["experiment"]["spec"] == "none"


def test_a_sweep_whose_records_are_all_there_starts_nobody(
    tmp_path: Path, here, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = record.key_of(small())
    sweep.run_one(small(), key, str(tmp_path / "records"))
    monkeypatch.setattr(sweep, "ProcessPoolExecutor", None)
    shown: list[int] = []
    found = run_all([small()], tmp_path, show=lambda state: shown.append(state.done))
    assert found.runs[key].state == "kept" and shown == [1]


def standing(**steps: int) -> Sweep:
    runs = {name: Progress(name, name, "repeat", 0, 100, step) for name, step in steps.items()}
    return Sweep(runs, began=time.monotonic() - 10)


def test_the_time_left_goes_by_the_steps_done() -> None:
    assert standing(a=50, b=0).seconds_left() == pytest.approx(30, rel=0.05)
    assert standing(a=0).seconds_left() is None
    state = standing(a=0, b=50)
    state.runs["a"].state = "kept"
    assert state.seconds_left() == pytest.approx(10, rel=0.05) and state.done == 1


def test_a_folder_that_cannot_be_made_says_why_and_what_to_choose(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(ValueError, match=r"^cannot write into '.*': .+; choose another folder with --out$"):
            make_folder(folder)


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
