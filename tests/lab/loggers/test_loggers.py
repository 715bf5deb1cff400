"""Loggers: the events that they receive and write, and that none can end a run."""

import json
import sys
import types
from pathlib import Path

import pytest

from posenc.lab.loggers import LOGGERS, Logger, LoggerGroup, loggers_of

EXPERIMENT = {"spec": "rotary", "task": "copy", "seed": 3, "test_lengths": [12, 15]}
RECORD = {
    "key": "copy-rotary",
    "learned": True,
    "lengths": [
        {"length": 10, "factor": 1.0, "exact_match": 1.0, "bits_per_byte": None},
        {"length": 12, "factor": 1.2, "exact_match": 0.25, "bits_per_byte": None},
    ],
    "attention": {"tokens": ["^"]},
}


def follow_a_run(logger: Logger, folder: Path) -> None:
    logger.begin(EXPERIMENT, folder)
    logger.point(50, {"loss": 2.5, "score": 0.1})
    logger.point(100, {"loss": 1.5, "score": 0.6})
    logger.end(RECORD)


def test_a_file_of_lines_has_the_settings_the_points_and_the_scores(tmp_path: Path) -> None:
    (logger,) = loggers_of(["jsonl"])
    follow_a_run(logger, tmp_path / "new" / "run")
    lines = [json.loads(line) for line in (tmp_path / "new" / "run" / "log.jsonl").read_text().splitlines()]
    assert lines == [
        {"experiment": EXPERIMENT},
        {"step": 50, "loss": 2.5, "score": 0.1},
        {"step": 100, "loss": 1.5, "score": 0.6},
        {"learned": True, "lengths": RECORD["lengths"]},
    ]


def test_a_line_is_there_at_once_and_a_run_that_goes_on_adds_to_those_before(tmp_path: Path) -> None:
    for step in (50, 100):
        (logger,) = loggers_of(["jsonl"])
        logger.begin(EXPERIMENT, tmp_path)
        logger.point(step, {"loss": float("nan")})
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[1] == {"step": 50, "loss": None} and lines[3] == {"step": 100, "loss": None} and len(lines) == 4


def test_tensorboard_has_curves_over_steps_and_over_lengths(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed; it comes with the test extra")
    from tensorboardX import proto

    (logger,) = loggers_of(["tensorboard"])
    follow_a_run(logger, tmp_path)
    (file,) = (tmp_path / "tensorboard").iterdir()
    data, scalars, texts = file.read_bytes(), [], []
    while data:
        # Each event stands behind its length (8 bytes) and a checksum (4), and before another checksum.
        length = int.from_bytes(data[:8], "little")
        event = proto.event_pb2.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        for value in event.summary.value:
            if value.HasField("simple_value"):
                scalars.append((value.tag, event.step, value.simple_value))
            else:
                texts.append(value.tensor.string_val[0].decode())
    assert scalars == [
        ("loss", 50, 2.5),
        ("score", 50, pytest.approx(0.1)),
        ("loss", 100, 1.5),
        ("score", 100, pytest.approx(0.6)),
        ("by_length/exact_match", 10, 1.0),
        ("by_length/exact_match", 12, 0.25),
    ]
    assert [json.loads(text) for text in texts] == [EXPERIMENT]


def test_samples_are_lines_and_texts(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed; it comes with the test extra")
    loggers = LoggerGroup(loggers_of(["jsonl", "tensorboard"]))
    loggers.tell("begin", EXPERIMENT, tmp_path)
    loggers.tell("sample", 50, "def ", "def one():\n    two")
    loggers.tell("end", RECORD)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[1:-1] == [{"step": 50, "prompt": "def ", "text": "def one():\n    two"}]
    (file,) = (tmp_path / "tensorboard").iterdir()
    data = file.read_bytes()
    assert b"sample/def-7ad91533" in data and b"    def one():\n        two\n" in data


def test_samples_reach_a_tool_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    loggers = LoggerGroup(loggers_of(["wandb"]))
    loggers.tell("begin", EXPERIMENT, tmp_path)
    loggers.tell("sample", 50, "def ", "def one()")
    assert wandb.calls[-1] == ("log", {"sample/def-7ad91533": (["prompt", "text"], [["def ", "def one()"]])}, 50)


class Wandb(types.ModuleType):
    """A stub of wandb that stores its calls."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list = []
        self.summary = types.SimpleNamespace(update=lambda values: self.calls.append(("summary", values)))

    def init(self, **options):
        self.calls.append(("init", options))
        return self

    def log(self, values, step):
        self.calls.append(("log", values, step))

    def Table(self, columns, data):
        return columns, data

    def finish(self):
        self.calls.append(("finish",))


@pytest.mark.parametrize("mode", [None, "online"])
def test_wandb_stays_offline_unless_the_environment_says_otherwise(
    mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    (logger,) = loggers_of(['wandb(project="mine")'])
    follow_a_run(logger, tmp_path / "run")
    options = {"project": "mine", "name": "run", "dir": str(tmp_path / "run"), "config": EXPERIMENT}
    assert wandb.calls == [
        ("init", options | {"mode": mode or "offline", "reinit": "create_new"}),
        ("log", {"loss": 2.5, "score": 0.1}, 50),
        ("log", {"loss": 1.5, "score": 0.6}, 100),
        ("summary", {"exact_match/length_10": 1.0, "exact_match/length_12": 0.25}),
        ("finish",),
    ]
    assert (tmp_path / "run").is_dir()


PROMPTS = ("def ", "def-", "", 'a/b \\ <q>\n: *?"|', "../../q", "x" * 600)
"""What may stand in the name of no file, and two that differ in no letter of a name."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a command, with no environment variables of loggers."""
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def follow_two_runs(logger: Logger, folder: Path) -> None:
    for name in ("one", "two"):
        logger.begin(EXPERIMENT, folder / name)
        logger.point(50, {"loss": float("nan"), "score": 0.1})
        for prompt in PROMPTS:
            logger.sample(50, prompt, f"{prompt}, and on")
        logger.end(RECORD)


def test_wandb_itself_keeps_all_of_a_run_in_its_folder(tmp_path: Path, here: Path) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed; it comes with the loggers extra")
    (logger,) = loggers_of(["wandb"])
    follow_two_runs(logger, tmp_path)
    # A process of its own writes the file, a moment after the run has ended.
    wandb.teardown()
    assert [file for file in here.rglob("*") if file.is_file()] == []
    for name in ("one", "two"):
        (run,) = (tmp_path / name / "wandb").glob("offline-run-*")
        (content,) = (file.read_bytes() for file in run.glob("*.wandb"))
        assert b"test_lengths" in content and b"exact_match/length_12" in content
        rows = [json.loads(file.read_text())["data"] for file in run.rglob("sample/*.table.json")]
        assert sorted(rows) == sorted([[prompt, f"{prompt}, and on"]] for prompt in PROMPTS)


@pytest.mark.parametrize(("name", "library"), [("wandb", "wandb"), ("tensorboard", "tensorboardX")])
def test_a_library_that_is_missing_is_told_of_before_anything_begins(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ValueError, match=f"^the logger {name} needs {library}; install it with `pip install {library}`$"
    ):
        loggers_of([name])


OWN_FILE = """
from posenc.lab.loggers import Logger

class Mine(Logger):
    def begin(self, experiment, folder):
        self.told = [("begin", experiment["spec"], folder.name)]

    def point(self, step, values):
        self.told.append((step, values))
        if step == 100:
            raise OSError("the disk\\nis full")
"""


def test_one_of_your_own_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_FILE)
    (logger,) = loggers_of([f"{tmp_path / 'mine.py'}:Mine"])
    logger.begin(EXPERIMENT, tmp_path / "run")
    logger.point(50, {"loss": 1.0})
    logger.end(RECORD)
    assert logger.told == [("begin", "rotary", "run"), (50, {"loss": 1.0})]


def test_a_logger_that_fails_is_left_out_with_one_warning_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_FILE)
    together = LoggerGroup(loggers_of([f"{tmp_path / 'mine.py'}:Mine", "jsonl"]))
    together.tell("begin", EXPERIMENT, tmp_path / "run")
    together.tell("point", 50, {"loss": 1.0})
    words = r"mine\.py:Mine\(\) fails and is left out from now on; the run goes on: OSError: the disk is full$"
    with pytest.warns(RuntimeWarning, match=words) as caught_warnings:
        together.tell("point", 100, {"loss": 0.5})
    assert len(caught_warnings) == 1
    together.tell("point", 150, {"loss": 0.25})
    together.tell("end", RECORD)
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line).get("step") for line in lines] == [None, 50, 100, 150, None]


def test_a_logger_that_cannot_begin_or_end_is_left_out_too(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file, where a folder has to be")
    together = LoggerGroup(loggers_of(["jsonl"]))
    with pytest.warns(RuntimeWarning, match=r"^the logger jsonl\(\) fails and is left out .*FileExistsError"):
        together.tell("begin", EXPERIMENT, tmp_path / "run")
    assert together.loggers == []
    together = LoggerGroup(loggers_of(["jsonl"]))
    together.tell("begin", EXPERIMENT, tmp_path / "other")
    with pytest.warns(RuntimeWarning, match=r"^the logger jsonl\(\) fails and is left out .*KeyError: 'learned'"):
        together.tell("end", {"lengths": []})


def test_the_folder_is_the_list_of_loggers() -> None:
    assert set(LOGGERS) == {"jsonl", "tensorboard", "wandb"}


def test_what_is_no_logger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^no logger named 'wandbb'; there are: jsonl, .*did you mean 'wandb'\?$"):
        loggers_of(["wandbb"])
    with pytest.raises(ValueError, match=r"^a logger must be one of jsonl, tensorboard, .*, got '5'$"):
        loggers_of(["5"])
    with pytest.raises(ValueError, match=r"^the logger 'jsonl' is named twice; name it once$"):
        loggers_of(["jsonl", "jsonl"])
