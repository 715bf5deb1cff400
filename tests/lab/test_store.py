"""The store: a failed write never damages existing files, and damage is detected."""

import ast
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_records import record as fake_record

from posenc.checkpoints.extension import runs
from posenc.checkpoints.extension.settings import Settings
from posenc.foreign import CannotRead
from posenc.lab import store
from posenc.lab.experiments.recipes import recipe
from posenc.lab.results import report
from posenc.lab.runs import checkpoint as checkpoints
from posenc.lab.runs import record
from posenc.lab.runs import settings as settings_of_lab
from posenc.lab.runs import train as training
from posenc.lab.store import CannotWrite


class FailingSystem:
    """Fails the system call number `at` that changes a disk, and with `for_good` all later ones."""

    CALLS = ("open", "write", "fsync", "replace", "rename", "mkdir")

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at, self.for_good, self.count, self.error = 0, False, 0, errno.ENOSPC
        for name in self.CALLS:
            patch.setattr(os, name, self.failing(getattr(os, name)))

    def failing(self, plain: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            if plain.__name__ == "open" and not args[1] & os.O_WRONLY:
                return plain(*args, **kwargs)
            self.count += 1
            if self.at and (self.count == self.at or (self.for_good and self.count > self.at)):
                raise OSError(self.error, os.strerror(self.error))
            return plain(*args, **kwargs)

        return call

    def fail(self, at: int, for_good: bool) -> None:
        self.at, self.for_good, self.count = at, for_good, 0


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> FailingSystem:
    return FailingSystem(monkeypatch)


def tiny(**changes: Any) -> Any:
    small = {"train_length": 2, "dim": 4, "heads": 1, "layers": 1, "batch": 2, "steps": 6, "evaluate_every": 2}
    return recipe("copy", "learned", **(small | changes))


@pytest.fixture(scope="module")
def run() -> training.Run:
    return training.train(training.start(tiny()), stop_step=4)


def state(run: training.Run) -> list[Any]:
    """The state that a checkpoint must restore."""
    weights = [tensor.tolist() for tensor in run.model.state_dict().values()]
    inner = [optimizer.state_dict()["state"] for optimizer in run.optimizers]
    moments = [[tensor.tolist() for values in state.values() for tensor in values.values()] for state in inner]
    return [run.experiment, run.step, run.cpu_s, run.curve, run.generator.get_state().tolist(), weights, moments]


# What is written, and what it reads as: (write the number n into a folder, what the folder holds now).


def checkpoint(folder: Path, run: training.Run, n: int) -> None:
    run.step = n
    checkpoints.save(run, folder)


def settings(folder: Path, n: int) -> None:
    settings_of_lab.write_settings(settings_of_lab.Settings(seeds=n), folder)


def put(folder: Path, n: int) -> None:
    runs.PassResults(folder / "measurements.jsonl").get_or_run({"number": n}, lambda: {"value": n})


STORES: dict[str, tuple[Callable[..., Any], Callable[[Path], int]]] = {
    "checkpoint": (checkpoint, lambda folder: checkpoints.load(folder).step),
    "record": (
        lambda folder, n: record.write(fake_record() | {"key": "a", "steps": n}, folder),
        lambda folder: record.read(folder / "a.json")["steps"],
    ),
    "settings": (settings, lambda folder: (settings_of_lab.read_settings(folder) or {})["seeds"]),
    "kept results": (
        put,
        lambda folder: max(
            found["value"] for found in runs.PassResults(folder / "measurements.jsonl").entries.values()
        ),
    ),
    "a folder of files": (
        lambda folder, n: appear(folder / f"{n}"),
        lambda folder: max(int(path.name) for path in folder.iterdir() if path.name.isdigit()),
    ),
}


def appear(target: Path) -> None:
    with store.new_folder(target) as folder:
        store.put(folder / "a", [b"a"])
        store.put(folder / "b", [b"b", b"", b"c"])


FAILURES = [(what, for_good) for what in STORES for for_good in (False, True)]


@pytest.mark.parametrize(
    ("kind", "for_good"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case == ("checkpoint", True))) for case in FAILURES],
)
def test_a_failure_of_any_single_call_loses_nothing(
    kind: str,
    for_good: bool,
    tmp_path: Path,
    system: FailingSystem,
    run: training.Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, read = STORES[kind]
    args, failures = (run,) if kind == "checkpoint" else (), 0
    new_run = training.start(run.experiment)
    # Building the model is what takes time.
    monkeypatch.setattr(checkpoints, "model_of", lambda *_: new_run.model)
    monkeypatch.setattr(checkpoints, "start", lambda experiment, **options: new_run)
    write(tmp_path / "before", *args, 2)
    while True:
        folder = shutil.copytree(tmp_path / "before", tmp_path / f"{failures}")
        system.fail(failures + 1, for_good)
        try:
            write(folder, *args, 4)
        except CannotWrite as error:
            system.fail(0, False)
            words = "cannot be written: No space left on device; what was finished before is kept; make room"
            assert words in str(error) and ".part" not in str(error) and str(folder) in str(error)
        else:
            if system.count < system.at:
                break
            # A call whose failure does not matter, such as making a folder that is there.
            system.fail(0, False)
            assert read(folder) == 4
        failures += 1
        # The new state, where only the call failed that brings the folder to disk.
        assert read(folder) in (2, 4)
        # A system that fails for good refuses to clean up too; the next one who holds the folder does.
        with store.locked_folder(folder):
            assert not [path for path in folder.rglob("*") if store.TEMPORARY.fullmatch(path.name)]
        assert read(folder) in (2, 4)
    system.fail(0, False)
    assert read(folder) == 4 and failures >= 5


def test_a_folder_that_is_being_filled_is_nobodys_to_clear_and_neither_is_what_others_have_named(
    tmp_path: Path,
) -> None:
    (tmp_path / ".mine.part").mkdir()
    (tmp_path / ".mine.part" / "file").touch()
    (tmp_path / ".report.12-0123abcd.part").touch()
    with store.new_folder(tmp_path / "target") as folder:
        store.clear_folders(tmp_path)
        assert folder.is_dir()
        (folder / "file").touch()
    assert {path.name for path in tmp_path.iterdir()} == {".mine.part", ".report.12-0123abcd.part", "target"}


def test_a_folder_that_was_opened_is_closed(tmp_path: Path) -> None:
    with store.folder_descriptor(tmp_path) as file:
        os.fstat(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_what_is_forgotten_is_gone_and_what_is_no_generation_of_these_files_stays(tmp_path: Path) -> None:
    for name, files in (("step-000001", "ab"), ("step-000002", "a"), ("step-000003", "ab")):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    store.remove_generations(tmp_path, "ab", kept_names=["step-000003"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000003"]


@pytest.mark.slow
def test_a_report_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, system: FailingSystem) -> None:
    short = fake_record("none", attention=None, order=None, ablation=None, pictures=None)
    report.write([short], tmp_path)
    calls, contents = system.count, {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    # A figure, and the page, which comes last.
    for at in (calls // 3, calls - 1):
        system.fail(at, True)
        with pytest.raises(CannotWrite, match="No space left on device"):
            report.write([short], tmp_path)
        system.fail(0, False)
        store.clear(tmp_path)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == contents


@pytest.mark.parametrize(
    ("number", "todo"),
    [(errno.EROFS, "choose another folder"), (errno.EDQUOT, "make room"), (errno.EFBIG, "make room")],
)
def test_what_to_do_depends_on_what_the_system_says(number: int, todo: str, tmp_path: Path, system) -> None:
    system.error = number
    system.fail(1, True)
    with pytest.raises(CannotWrite, match=rf"{os.strerror(number)}; what was finished before is kept; {todo}") as error:
        store.write(tmp_path / "a", b"a")
    assert error.value.errno == number


@pytest.mark.parametrize(
    ("number", "passed_over"), [(errno.EINVAL, ["folder"]), (errno.ENOTSUP, ["folder"]), (errno.EIO, [])], ids=str
)
def test_only_a_drive_that_brings_no_folder_to_disk_is_passed_over(
    number: int, passed_over: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(file: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("folder", "file"):
        refusal = pytest.raises(CannotWrite, match=f"{name}' cannot be written: {os.strerror(number)}")
        with nullcontext() if name in passed_over else refusal:
            store.to_disk(tmp_path / name)


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path, run: training.Run) -> None:
    import resource

    checkpoint(tmp_path, run, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(CannotWrite, match=r"step-000004' cannot be written: File too large; .*; make room"):
            checkpoint(tmp_path, run, 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoints.load(tmp_path).step == 2


def flips(path: Path, step: int = 1) -> Iterator[int]:
    """Flip the bytes of a file one by one, or each `step`-th byte."""
    whole = path.read_bytes()
    for place in range(0, len(whole), step):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        yield place
    path.write_bytes(whole)


# Every byte takes minutes. Tensors are held to one checksum each, so that a sample says as much.
sample = pytest.mark.parametrize("step", [241, pytest.param(1, marks=pytest.mark.slow)])


@sample
def test_every_byte_of_a_checkpoint_is_noticed_or_does_not_matter(
    step: int, tmp_path: Path, run: training.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.step = 4
    checkpoints.save(run, tmp_path)
    expected = state(checkpoints.load(tmp_path))
    # Building the model is what takes time, and no damage changes what is built.
    new_run = training.start(run.experiment)
    monkeypatch.setattr(checkpoints, "start", lambda experiment, **options: new_run)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path.name for path in files] == ["model.safetensors", "optimizer.safetensors", "run.json"]
    for path in files:
        flip_count = error_count = 0
        for place in flips(path, step if path.suffix == ".safetensors" else 1):
            flip_count += 1
            try:
                second_run = checkpoints.load(tmp_path)
            except CannotRead as error:
                assert path.name in str(error), (path, place, str(error))
                error_count += 1
            else:
                assert state(second_run) == expected, (path, place)
        assert error_count > 0.9 * flip_count


@sample
def test_every_byte_of_a_record_is_noticed_or_does_not_matter(step: int, tmp_path: Path) -> None:
    whole = fake_record("none") | {"key": "a", "attention": {"tokens": [], "with": [], "without": []}, "curve": []}
    path = record.write(whole, tmp_path)
    expected = json.loads(json.dumps(whole))
    for place in flips(path, min(step, 5)):
        try:
            assert record.read(path) == expected, place
        except CannotRead as error:
            assert "a.json" in str(error), place


def test_every_byte_of_kept_results_is_noticed_or_does_not_matter(tmp_path: Path) -> None:
    put(tmp_path, 1)
    put(tmp_path, 2)
    path = tmp_path / "measurements.jsonl"
    whole = runs.PassResults(path).entries
    for place in flips(path):
        messages: list[str] = []
        entries = runs.PassResults(path, messages.append).entries
        assert all(entries[key] == whole[key] for key in entries), place
        assert entries == whole or "measurements.jsonl: 1 lines are damaged" in messages[0], place


@pytest.mark.parametrize("indent", [None, 1])
def test_sealed_json_is_json_and_comes_back(indent: int | None, tmp_path: Path) -> None:
    facts = {"a": {"b": [1.5, None, "}"]}, "c": float("inf"), "checksum of": "\N{SNOWMAN}"}
    (tmp_path / "a.json").write_bytes(store.dump_json(facts, indent))
    assert {**json.loads((tmp_path / "a.json").read_text())}.keys() == {*facts, "checksum"}
    assert store.read_checked_json(tmp_path / "a.json") == facts


def test_json_without_its_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    with pytest.raises(CannotRead, match=r"a\.json: it has lost its checksum$"):
        store.read_checked_json(tmp_path / "a.json")
    for wrong in (
        '{"a": 1, "checksum": 3}',
        '{"checksum": "", "a": 1}',
        store.dump_json({"a": 1}).decode().replace("1", "2", 1),
    ):
        (tmp_path / "a.json").write_text(wrong)
        with pytest.raises(CannotRead, match=r"a\.json: it does not fit its checksum: it was damaged or changed$"):
            store.read_checked_json(tmp_path / "a.json")


def test_a_link_out_of_its_folder_is_not_followed(tmp_path: Path) -> None:
    store.write(tmp_path / "elsewhere.json", store.dump_json({"a": 1}))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(CannotRead, match=r"a\.json: it is a link to '.*elsewhere\.json', outside its folder"):
        store.read_checked_json(tmp_path / "folder" / "a.json")
    (tmp_path / "link").symlink_to(tmp_path)
    assert store.read_checked_json(tmp_path / "link" / "elsewhere.json") == {"a": 1}


def test_the_generations_are_those_that_are_there_the_latest_last(tmp_path: Path) -> None:
    names = ["step-000002", "step-000002.2", "step-000002.10", "step-000010", "step-999999", "step-1000000"]
    for name in (*reversed(names), "step-3x", "step-", "steps-000004", ".step-000020.1-00000000.part"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000030").write_text("")
    assert store.generations(tmp_path) == names


HOLD = """
import sys
from pathlib import Path
from posenc.lab import store

with store.locked_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_held_by_one_process_and_let_go_when_that_is_killed(tmp_path: Path) -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], env=environ, **pipes) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(store.InUse, match=r"another posenc is at work in '.*'; wait until it is over, or choose"):
            with store.locked_folder(tmp_path):
                pass
        process.kill()
    with store.locked_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_run_of_extend_holds_its_folder_and_keeps_its_settings(tmp_path: Path) -> None:
    setup = Settings("it", 2.0)
    with (
        runs.claim_folder(setup, tmp_path / "run", print),
        pytest.raises(store.InUse, match="another posenc is at work"),
    ):
        with runs.claim_folder(setup, tmp_path / "run", print):
            pass
    with pytest.raises(ValueError, match=r"holds a run with other settings \(factor\)"):
        with runs.claim_folder(Settings("it", 3.0), tmp_path / "run", print):
            pass
    for again in (Settings("it", 2.0, ("yarn",)), setup):
        with runs.claim_folder(again, tmp_path / "run", print):
            assert store.read_checked_json(tmp_path / "run" / "settings.json")["methods"] == list(again.methods)


def test_results_of_another_torch_are_kept_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 2)
    monkeypatch.setattr(torch, "__version__", "9.9")
    words: list[str] = []
    assert runs.PassResults(tmp_path / "measurements.jsonl", words.append).get_or_run({"number": 2}, dict)["value"] == 2
    assert words[0].startswith("passes are kept from posenc ") and words[0].endswith("; another --out makes them again")


def test_a_lock_is_made_in_the_folder_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".lock").symlink_to(tmp_path / "made")
    with pytest.raises(ValueError, match=r"^cannot write into '.*folder': .+; choose another folder with --out$"):
        with store.locked_folder(tmp_path / "folder"):
            pass
    assert not (tmp_path / "made").exists()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    with store.locked_folder(tmp_path / "link"), pytest.raises(store.InUse), store.locked_folder(tmp_path / "other"):
        pass


def test_a_system_without_locks_is_answered_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def no_locks(*_) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ValueError, match=r"^cannot write into '.*': No locks available; choose another folder with"):
        with store.locked_folder(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_says_why_and_what_to_choose(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(ValueError, match=r"^cannot write into '.*': .+; choose another folder with --out$"):
            with store.locked_folder(folder):
                pass


def test_only_what_was_left_half_written_is_cleared(tmp_path: Path) -> None:
    parts = [".a.json.12-0123abcd.part", "records/.b.json.1-ffffffff.part", ".step-000002.7-00000000.part/model"]
    files = ["a.part", ".a.part", "records/a.json", ".b.12-0123abcd.part.txt", "deep/er/.c.json.1-ffffffff.part"]
    for name in parts + files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    with store.locked_folder(tmp_path):
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*files, ".lock"}


def test_temporary_names_never_meet(tmp_path: Path) -> None:
    names = {store.temporary_name(tmp_path / ("a" * 300)).name for _ in range(1000)}
    assert len(names) == 1000 and all(store.TEMPORARY.fullmatch(name) and len(name) < 100 for name in names)


def test_nothing_else_in_the_package_writes_a_file_of_a_run() -> None:
    """Only the store renames files and writes under temporary names."""
    package = Path(store.__file__).parent.parent
    wrong = []
    for file in sorted([*package.glob("lab/**/*.py"), Path(runs.__file__)]):
        # What loggers write is for other tools, and no run's.
        if file.name == "store.py" or file.parent.name == "loggers":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("replace", "rename", "write_text", "write_bytes"):
                if node.attr in ("replace", "rename") and ast.unparse(node.value) not in ("os", "shutil"):
                    continue
                wrong.append(f"{file.name}: {ast.unparse(node)}")
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "open" and "rb" not in ast.unparse(node):
                wrong.append(f"{file.name}: {ast.unparse(node)}")
    assert wrong == []


def test_a_folder_within_a_run_is_no_link(tmp_path: Path) -> None:
    assert store.subfolder(tmp_path, "figures") == tmp_path / "figures"
    (tmp_path / "figures").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="figures' is a link, and what is written there belongs into the folder its"):
        store.subfolder(tmp_path, "figures")
