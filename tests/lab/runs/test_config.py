"""Settings from a file: equal to flags, overridden by flags, and errors name the file."""

import json
from pathlib import Path

import pytest

from posenc import cli
from posenc.cli.training import Train
from posenc.foreign import CannotRead, read_toml, toml_text
from posenc.lab.experiments.execution import Execution
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import config
from posenc.lab.runs.single_run import train_run

TINY = {"train_length": 3, "dim": 16, "heads": 2, "layers": 1, "batch": 4, "warmup": 2, "steps": 2, "evaluate_every": 2}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parse(text: str, *arguments: str) -> Train:
    Path("run.toml").write_text(text)
    return cli.parse_command(["train", *arguments, "--config", "run.toml"])


def test_a_file_says_what_flags_say() -> None:
    text = (
        'spec = "alibi"\ntask = "copy"\ndim = 32\nrate = 1e-3\ntest-lengths = [6, 9]\ncompile = true\nlog = ["jsonl"]\n'
    )
    flags = ["alibi", "--task", "copy", "--dim", "32", "--rate", "1e-3", "--test-lengths", "6", "9", "--compile"]
    actual, expected = parse(text), cli.parse_command(["train", *flags, "--log", "jsonl", "--config", "run.toml"])
    assert actual == expected and actual.dim == 32 and actual.test_lengths == (6, 9) and actual.compile


def test_flags_win() -> None:
    text = (
        'spec = "alibi"\nsteps = 5\ntest_lengths = [6, 9]\ncompile = true\nactivation_checkpointing = true\nseed = 3\n'
    )
    verb = parse(text, "rotary", "--steps=7", "--test-lengths", "8", "--no-compile")
    assert (verb.spec, verb.steps, verb.test_lengths, verb.compile) == ("rotary", 7, (8,), False)
    assert verb.activation_checkpointing and verb.seed == 3
    # Wherever it stands.
    assert parse(text, "--steps", "7", "shaw").spec == "shaw" and parse(text, "--compile", "shaw").spec == "shaw"
    assert parse(text, "--log", "jsonl", "tensorboard").spec == "alibi"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepps = 5", r"^run\.toml: there is no setting 'stepps'; did you mean 'steps'\? posenc train --help has all"),
        ('config = "a.toml"', r"^run\.toml: there is no setting 'config'; .*posenc train --help has all$"),
        ("[model]\ndim = 3", r"^run\.toml: model: expected a word or a number, got "),
        ("dim = [3]", r"^run\.toml: dim: expected a word or a number, got "),
        ("dim = true", r"^run\.toml: dim: expected a word or a number, got "),
        ("compile = 1", r"^run\.toml: compile: expected true or false, got "),
        ("log = 'jsonl'", r"^run\.toml: log: expected a list, got "),
        ("dim = ", r"^run\.toml: it is no TOML \("),
        ("dim = 1\ndim = 2", r"^run\.toml: it is no TOML \("),
        (
            "spec = 'mine.py:Mine'",
            r"^run\.toml: spec: it names code to run, 'mine\.py:Mine', and code that a file names is run only where "
            r"you name it too; give this setting on the command line$",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, words: str) -> None:
    with pytest.raises(CannotRead, match=words):
        parse(text)


def test_only_toml_is_read() -> None:
    with pytest.raises(
        ValueError, match=r"^settings are read from a \.toml file, got 'run\.yaml'; write them as TOML$"
    ):
        cli.parse_command(["train", "--config", "run.yaml"])
    with pytest.raises(CannotRead, match=r"^none\.toml: there is no such file"):
        cli.parse_command(["train", "--config", "none.toml"])


def test_a_value_of_another_kind_is_refused_as_a_flag_is() -> None:
    with pytest.raises(ValueError, match=r"^--dim takes a whole number, such as 8, got 'wide'$"):
        parse('dim = "wide"')


def test_a_run_writes_its_settings_and_they_make_the_same_run(here: Path) -> None:
    execution = Execution(accumulation=2, samples=("ab|",), sample_tokens=3)
    changes = TINY | {"window": (2, None), "clip": 0.5, "test_lengths": (5,)}
    first = train_run("rotary, none", "copy", 7, here / "one", None, lambda words: None, execution=execution, **changes)
    settings = str(here / "one" / config.FILE)
    assert cli.main(["train", "--config", settings, "--out", str(here / "two"), "--json"]) == 0
    file_a, second = (next((here / name).glob("step-*")) / "model.safetensors" for name in ("one", "two"))
    assert file_a.read_bytes() == second.read_bytes()
    assert (here / "two" / config.FILE).read_text() == Path(settings).read_text()
    facts = json.loads((second.parent / "run.json").read_text())
    assert facts["experiment"] == json.loads(json.dumps(first.experiment.to_dict()))
    # And the folder that they lie in goes on by them.
    assert cli.main(["train", "--config", settings, "--out", str(here / "one")]) == 0


def test_every_setting_of_a_run_is_a_flag() -> None:
    names = set(Train.__dataclass_fields__)
    settings = {*recipe("copy", "rotary").__dataclass_fields__, *Execution.__dataclass_fields__} - {"own_files"}
    assert settings <= names


def test_what_is_written_is_read_back(here: Path) -> None:
    facts = {"a": 'quotes " and \\ and \x7f and \n ü 😀', "b": 1e-05, "c": [1, 2], "d": True, "e": -3}
    Path("all.toml").write_text(toml_text(facts), encoding="utf-8")
    settings = read_toml("all.toml")
    assert settings["a"].startswith('quotes " and \\ and ') and settings["a"].endswith("ü 😀")
    assert {name: settings[name] for name in "bcde"} == {name: facts[name] for name in "bcde"}
    Path("large.toml").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(CannotRead, match=r"large\.toml"):
        read_toml("large.toml")
