"""Sweeps: finished runs stay finished whatever ends a sweep, and a failure affects its own run alone.

The story below is one folder's: Ctrl-C, then a kill, then the same command to the end with a damaged record in its way,
and all the while one encoding that fails. Real processes, so it is told once and asked about by many tests; they are
forked, which saves each an import of torch.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from forks import FORKS, ForkedCli
from tiers import rest_slow

from posenc import cli
from posenc.cli import terminal
from posenc.lab import store
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe
from posenc.lab.results import drawer
from posenc.lab.runs import record
from posenc.lab.sweeps import sweep, workers
from posenc.lab.sweeps.sweep import Progress, Sweep, run_all
from posenc.lab.sweeps.workers import Workers, block_signals

SMALL = ["--tasks", "repeat", "--seeds", "1", "--steps", "6", "--train-length", "3", "--dim", "16", "--heads", "2"]
SMALL += ["--layers", "1"]

OWN_FILE = '''
import os
import signal
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


class KilledOnce(Encoding):
    """Kills its process in the first forward pass that there is."""

    def embed(self, x, at):
        if not (HOME / "killed").exists():
            (HOME / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x


class Killed(Encoding):
    """Kills its process, as the system does when the memory is gone."""

    def embed(self, x, at):
        os.kill(os.getpid(), signal.SIGKILL)


class Failing(Encoding):
    """Fails in its first forward pass."""

    def embed(self, x, at):
        raise ArithmeticError("mine cannot count")
'''


@dataclass
class End:
    """The end of a command: its exit code, its output, and the records in the folder."""

    code: int
    out: str
    err: str
    records: dict[str, tuple[bytes, int]]
    other_files: list[str]
    page: str


def wait_until(true: Callable[[], object], process: subprocess.Popen) -> None:
    while not true():
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        time.sleep(0.05)


class Story:
    """One folder, and the commands that run on it in turn."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "out"
        (home / "mine.py").write_text(OWN_FILE)
        self.own_file = str(home / "mine.py")

    def command(self, *names: str) -> list[str]:
        specs = [f"{self.own_file}:{name}" for name in ("Failing", "Waiting", *names)]
        return ["compare", "--encodings", "none", *specs, *SMALL, "--out", str(self.folder)]

    def begin(self, *names: str) -> subprocess.Popen:
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-m", "posenc", *self.command(*names)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True,
        )  # fmt: skip

    def result_of(self, code: int, out: str, err: str) -> End:
        files = list((self.folder / "records").iterdir())
        records = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in files if file.suffix == ".json"}
        other_files = [file.name for file in files if file.suffix != ".json"]
        page = self.folder / "report.html"
        return End(code, out, err, records, other_files, page.read_text() if page.exists() else "")

    def record_files(self) -> list[Path]:
        return list((self.folder / "records").glob("repeat-none-*.json"))

    def interrupt(self) -> End:
        command = ForkedCli(*self.command())
        command.wait_for(lambda: self.record_files() and (self.home / "reached").exists())
        # As a terminal does it: to the command and all its workers.
        command.kill(signal.SIGINT)
        return self.result_of(*command.outcome())

    def interrupt_as_started_by_a_person(self) -> End:
        process = self.begin()
        wait_until(lambda: self.record_files() and (self.home / "reached").exists(), process)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
        return self.result_of(process.returncode, out, err)

    def kill(self) -> End:
        (self.home / "reached").unlink()
        command = ForkedCli(*self.command())
        command.wait_for((self.home / "reached").exists)
        os.kill(command.process, signal.SIGKILL)
        # The pipes close when the last process that holds them is gone: a worker left behind would hold us here.
        return self.result_of(*command.outcome())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, End]:
    new_story = Story(tmp_path_factory.mktemp("sweep"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            drawer.Drawer, "__call__", lambda *_: None
        )  # of the forked commands; figures take longer than all else
        return ends_of(new_story)


def ends_of(story: Story) -> dict[str, End]:
    ends = {"interrupted": story.interrupt(), "killed": story.kill()}
    (story.home / "open").touch()
    record_of_none = story.record_files()[0]
    record_of_none.write_bytes(record_of_none.read_bytes()[:200])
    return ends | {"gone on": story.result_of(*ForkedCli(*story.command("KilledOnce", "Killed")).outcome())}


def none_of(end: End) -> tuple[str, tuple[bytes, int]]:
    return next((name, content) for name, content in end.records.items() if name.startswith("repeat-none-"))


# On a busy machine a process takes long to import torch, and here are eight of them.
pytestmark = pytest.mark.timeout(900)
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@on_posix
@pytest.mark.parametrize("start", rest_slow(["forked", "as a person starts it"], 1))
def test_ctrl_c_ends_with_130_and_one_sentence_and_no_traceback(start: str, story, tmp_path: Path) -> None:
    end = story["interrupted"] if start == "forked" else Story(tmp_path).interrupt_as_started_by_a_person()
    assert end.code == 130 and end.out == ""
    assert end.err.splitlines()[-1] == "posenc: interrupted; what was finished is kept, give the same command again"
    assert "Traceback" not in end.err


@on_posix
@pytest.mark.parametrize("end", ["interrupted", "killed"])
def test_what_was_finished_has_a_whole_record_and_what_was_not_has_none(story, end: str) -> None:
    assert len(story[end].records) == 1 and none_of(story[end])
    # What was being written when it was killed stays under its temporary name, until the next command clears it.
    names = [name for name in story[end].other_files if end == "interrupted" or not store.TEMPORARY.fullmatch(name)]
    assert all(name.endswith(".failed") for name in names)
    assert not any(store.TEMPORARY.fullmatch(name) for name in story["gone on"].other_files)


@on_posix
def test_workers_do_not_outlive_a_command_that_is_killed(story) -> None:
    assert story["killed"].code == -signal.SIGKILL


@on_posix
def test_the_same_command_keeps_what_was_finished(story) -> None:
    assert none_of(story["killed"]) == none_of(story["interrupted"])


@on_posix
def test_the_same_command_goes_on_to_the_end(story) -> None:
    end = story["gone on"]
    assert len(end.records) == 3 and none_of(end)
    assert "3 of 5 runs done, 2 failed" in end.err and "Report: " in end.out


@on_posix
def test_a_damaged_record_is_set_aside_and_made_again(story) -> None:
    name, (content, _) = none_of(story["gone on"])
    aside = name.replace(".json", ".damaged")
    assert aside in story["gone on"].other_files
    assert f"{name}: it is no whole JSON" in story["gone on"].err
    assert f"set aside as {aside}, the run is made again" in story["gone on"].err
    new_record, old_record = json.loads(content), json.loads(none_of(story["killed"])[1][0])
    # The same seed: the same numbers.
    assert new_record["lengths"] == old_record["lengths"] and new_record["key"] == old_record["key"]


@on_posix
def test_a_worker_that_is_killed_costs_its_own_run_and_that_run_is_tried_again(story) -> None:
    message = "its process was killed by SIGKILL (out of memory?)"
    assert f"mine.py:KilledOnce on repeat, seed 100: {message}; it is tried once more" in story["gone on"].err
    assert any(b":KilledOnce" in content for content, _ in story["gone on"].records.values())


@on_posix
def test_a_run_that_dies_twice_is_set_aside_with_its_reason(story) -> None:
    end, words = story["gone on"], "mine.py:Killed on repeat, seed 100: its process was killed by SIGKILL"
    assert end.code == 1 and f"{words} (out of memory?), twice" in end.err
    assert len([name for name in end.other_files if name.endswith(".failed")]) == 2
    assert f"{words} (out of memory?), twice" in end.page


@on_posix
@pytest.mark.slow
def test_a_command_as_a_person_starts_it_tries_again_and_sets_aside_too(tmp_path: Path) -> None:
    (tmp_path / "open").touch()
    process = Story(tmp_path).begin("KilledOnce", "Killed")
    _, err = process.communicate()
    assert process.returncode == 1 and "3 of 5 runs done, 2 failed" in err
    assert "its process was killed by SIGKILL (out of memory?), twice" in err


@on_posix
def test_an_encoding_that_fails_is_named_and_takes_nobody_with_it(story) -> None:
    end = story["gone on"]
    assert end.code == 1
    words = "mine.py:Failing on repeat, seed 100: ArithmeticError: mine cannot count"
    assert any("  failed: " in line and line.endswith(words) for line in end.err.splitlines())
    assert words in end.page


@on_posix
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_to_end_leaves_no_worker_and_no_half_record(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def live() -> Generator[Callable[[Sweep], None]]:
        yield lambda sweep: os.kill(os.getpid(), getattr(signal, name)) if multiprocessing.active_children() else None

    monkeypatch.setattr(terminal, "live", live)
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: FORKS)
    assert cli.main(["compare", "--encodings", "none", *SMALL, "--out", str(tmp_path)]) == code
    words = f"posenc: ended by {name}; what was finished is kept, give the same command again"
    assert capsys.readouterr().err.splitlines()[-1] == words
    assert multiprocessing.active_children() == [] and list((tmp_path / "records").iterdir()) == []


@on_posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGTERM"])
def test_a_signal_comes_when_a_process_is_wholly_started(name: str) -> None:
    came, number = [], getattr(signal, name)
    old_handler = signal.signal(number, lambda *_: came.append("later"))
    try:
        with block_signals():
            # To this thread: to the process, another one that holds nothing back could take it.
            signal.raise_signal(number)
            assert came == []
        assert came == ["later"]
    finally:
        signal.signal(number, old_handler)


@on_posix
def test_a_worker_can_be_asked_to_end() -> None:
    assert FORKS is not None
    with block_signals():
        process = FORKS.Process(target=wait_to_be_ended)
        process.start()
    process.terminate()
    process.join()
    assert process.exitcode == -signal.SIGTERM


def wait_to_be_ended() -> None:
    workers.set_up_worker()
    while True:
        time.sleep(1)


def small(spec: str = "none", **changes) -> Experiment:
    return recipe("repeat", spec, **({"steps": 2, "train_length": 2, "dim": 8, "heads": 1, "layers": 1} | changes))


def test_a_crew_that_ends_clears_what_its_workers_left_half_written(tmp_path: Path) -> None:
    store.temporary_name(tmp_path / "record.json").write_text("{")
    sweep.Scheduler(Workers(1, tmp_path), tmp_path, Sweep()).run_all({}, lambda sweep: None, lambda: False)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_tells_what_it_does_and_writes_its_record_under_the_given_name(tmp_path: Path) -> None:
    news: list[dict] = []
    workers.make_record(
        small(evaluate_every=1), record.key_of(small()), tmp_path, lambda **changes: news.append(changes)
    )
    assert news[0] == {"state": "running"} and news[-1] == {"state": "measuring"}
    assert [changes["step"] for changes in news[1:-1]] == [1, 2]
    assert record.read(tmp_path / f"{record.key_of(small())}.json")["experiment"]["spec"] == "none"


def test_a_sweep_whose_records_are_all_there_starts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = record.key_of(small())
    workers.make_record(small(), key, tmp_path / "records", lambda **changes: None)
    monkeypatch.setattr(sweep, "Scheduler", None)
    counts: list[int] = []
    result = run_all([small()], tmp_path, show=lambda state: counts.append(state.done_count))
    assert result.runs[key].state == "kept" and counts == [1]


def test_a_record_of_another_torch_is_kept_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = record.key_of(small())
    workers.make_record(small(), key, tmp_path / "records", lambda **changes: None)
    monkeypatch.setattr(torch, "__version__", "9.9")
    monkeypatch.setattr(sweep, "Scheduler", None)
    assert run_all([small()], tmp_path).runs[key].state == "kept"
    assert "1 of 1 runs are kept from posenc" in capsys.readouterr().err


def test_what_cannot_be_used_is_set_aside_and_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = [store.dump_json({"schema": schema, "key": "a"}).decode() for schema in (3, 4)]
    for content in ("one", "two", *newer):
        (tmp_path / "a.json").write_text(content)
        assert sweep.kept_record(tmp_path / "a.json") is None
    contents = {file.name: file.read_text() for file in tmp_path.iterdir()}
    names = ("a.damaged", "a.damaged-2", "a.other-schema", "a.other-schema-2")
    assert contents == dict(zip(names, ("one", "two", *newer), strict=True))
    assert "it has schema 4, this version reads 2; set aside as a.other-schema-2, the run" in capsys.readouterr().err


def standing(**steps: int) -> Sweep:
    runs = {name: Progress(name, name, "repeat", 0, 100, step, share=step / 100) for name, step in steps.items()}
    return Sweep(runs, began=time.monotonic() - 10)


def test_the_time_left_goes_by_the_steps_done() -> None:
    assert standing(a=50, b=0).seconds_left() == pytest.approx(30, rel=0.05)
    assert standing(a=0).seconds_left() is None
    state = standing(a=0, b=50)
    state.runs["a"].state = "kept"
    assert state.seconds_left() == pytest.approx(10, rel=0.05) and state.done_count == 1


@pytest.mark.slow
def test_when_there_is_to_be_no_more_what_has_begun_ends_and_nothing_else_begins(tmp_path: Path) -> None:
    small = {"train_length": 2, "dim": 4, "heads": 1, "layers": 1, "batch": 2, "steps": 600}
    runs = [recipe("repeat", "none", seed, **small) for seed in range(3)]
    states: list[list[str]] = []

    def is_open() -> bool:
        return not any("running" in state for state in states)

    def show(sweep: Sweep) -> None:
        states.append([run.state for run in sweep.runs.values()])

    with store.locked_folder(tmp_path):
        result = run_all(runs, tmp_path, workers=1, show=show, go_on=is_open)
    assert [run.state for run in result.runs.values()] == ["done", "waiting", "waiting"]
    assert [path.stem for path in (tmp_path / "records").glob("*.json")] == [record.key_of(runs[0])]
