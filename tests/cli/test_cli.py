"""The command line as a person meets it: exit codes, what goes where, and one line for every mistake."""

import errno
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import weakref
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_origin

import pytest
import torch
from forks import ForkedCli
from rich.console import Console

import posenc.__main__ as main
from posenc import __version__, catalogue, cli
from posenc.cli import arguments, terminal
from posenc.lab import store
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.description import listing
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results import drawer
from posenc.lab.runs import checkpoint, config, record
from posenc.lab.runs import settings as settings_of_lab
from posenc.lab.sweeps import compare, sweep
from posenc.lab.sweeps.workers import make_record

SMALL = "--tasks repeat --seeds 1 --steps 2 --train-length 2 --dim 8 --heads 2 --layers 1".split()

OF_EXPERIMENT = (
    "train-length test-lengths steps tokens seconds batch rate matrix-rate schedule layers dim heads kv-heads head-dim "
    "intermediate-size feed-forward norm norm-first qk-norm joined-qk-norm branch-norm "
    "parallel-residual residual-scale embedding-norm softcap output-softcap init "
    "bias window dropout model text test-map device dtype "
    "compile"
)

SURFACE = {
    "compare": f"{OF_EXPERIMENT} encodings tasks preset label seeds seed-from rates maps stretch log shard out json",
    "merge": "out",
    "report": "table columns label figures style width height titles svg-text json",
    "board": "tasks encodings seconds workers out",
    "advise": "task train-length test-length bidirectional axes encoding rows all json",
    "list": "axes door used-by pager json",
    "lesson": "check weights run text open notebook solutions",
    "show": "tokens dim heads words ids vectors shift run out open json",
    "order": "json",
    "train": f"{OF_EXPERIMENT} task seed map stretch warmup final-rate weight-decay clip curriculum cool-down "
    "evaluate-every samples sample-tokens accumulation activation-checkpointing parallel keep config out threads log "
    "json",
    "generate": "prompt max-new-tokens temperature top-k seed trust",
    "check": "promise json",
    "inspect": "out json",
    "doctor": "json",
    "extend": "factor method measures replace text samples lengths start chunk dtype device cache "
    "longrope-factors plan out json",
    "explore": "run out open",
    "export": "out cache trust json",
    "eject": "out checkpoint trained-length bidirectional layout seq-dim tokens cache packed flex",
    "vectors": "out",
    "completion": "",
    "convert": "out layout stored max-length grid interpolate base shard-gigabytes json",
    "lab": "",
    "lab list": "json",
    "lab run": "tier seed-from out json",
    "lab page": "",
}
"""Every verb and its options. A change here is a change for everybody who has written a command down."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in an empty folder, its runs in this process, and draws nothing, which is what takes long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(drawer.Drawer, "__call__", lambda *_: None)
    monkeypatch.setattr(compare, "run_all", run_in_this_process)
    return tmp_path


DRAW = drawer.Drawer.__call__


def run_in_this_process(experiments: Sequence[Experiment], folder: Path, *, log=(), show) -> sweep.Sweep:
    result = sweep.Sweep()
    for run in experiments:
        key = record.key_of(run)
        result.runs[key] = sweep.Progress(key, str(run.spec), run.task, run.seed, run.steps)
        try:
            if not sweep.kept_record(folder / "records" / f"{key}.json"):
                make_record(run, key, folder / "records", lambda **changes: None, log)
        except Exception as error:
            result.failures[key] = f"{type(error).__name__}: {error}"
        result.runs[key].state = "failed" if key in result.failures else "done"
    show(result)
    return result


class Answer:
    """What a command answered."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def line(self) -> str:
        """The one line that a mistake is answered with."""
        assert self.out == "" and len(self.err.splitlines()) == 1, (self.out, self.err)
        return self.err.strip()


@pytest.fixture
def posenc(capsys: pytest.CaptureFixture[str]):
    """Run a command in this process."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        return Answer(code, *capsys.readouterr())

    return run


def full_from_now_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)


def process(*arguments: str) -> subprocess.CompletedProcess:
    options = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=options, timeout=240)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a comparison has filled."""
    folder = tmp_path_factory.mktemp("filled")
    small = {"steps": 2, "train_length": 2, "dim": 8, "heads": 2, "layers": 1}
    settings = settings_of_lab.Settings(("none", "alibi"), ("repeat",), seeds=1, changes=small)
    patch = pytest.MonkeyPatch()
    patch.setattr(compare, "run_all", run_in_this_process)
    patch.setattr(drawer.Drawer, "__call__", lambda *_: None)
    compare.compare(settings, folder)
    patch.undo()
    return folder


# The surface


def test_the_verbs_are_frozen() -> None:
    assert set(cli.VERBS) | {f"lab {verb}" for verb in cli.LAB} == set(SURFACE)


@pytest.mark.parametrize("verb", SURFACE)
def test_help_of_a_verb_has_its_options_and_an_example_that_it_understands(verb: str, posenc) -> None:
    answer = posenc("help", *verb.split(), "all")
    assert answer.code == 0 and answer.err == "" and f"usage: posenc {verb} " in answer.out
    options = re.findall(r"^  --([a-z][a-z-]*)", answer.out, re.MULTILINE)
    assert set(options) == {*SURFACE[verb].split()}
    # What options take is said, and nothing of empty defaults.
    assert not re.search(r"STR|default: *(\)|\'\'|None)", answer.out)
    assert verb in ("lab", "board", "advise", "lab list") or re.search("SPEC|NAME|PATH|SHELL", answer.out)
    example = re.search(r"Example: posenc (.*)", answer.out)
    assert example is not None and example[1].startswith(verb)
    cli.parse_command(shlex.split(example[1]))
    assert posenc(*verb.split(), "all", "--help").out == answer.out


@pytest.mark.parametrize("verb", ["compare", "train", "extend"])
def test_help_of_a_verb_with_very_many_options_begins_with_ten(verb: str, posenc) -> None:
    answer, first = posenc(verb, "--help"), cli.VERBS[verb].first
    starts = [rf"^\W*(--)?{name.replace('_', '-')}\b" for name in first]
    places = [options.start() for start in starts for options in [re.search(start, answer.out, re.M | re.I)] if options]
    assert len(places) == len(first) >= 10 and places == sorted(places)
    all_options = len(fields(cli.VERBS[verb])) - len(first)
    assert f"{all_options} more options: posenc help {verb} all" in answer.out


def test_every_verb_has_a_line_of_one_screen(posenc) -> None:
    answer = posenc("--help")
    assert answer.code == 0 and answer.err == "" and posenc("help").out == posenc("-h").out == answer.out
    lines = answer.out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [line[13:].split()[0] for line in lines[1:]] == list(cli.VERBS)
    assert all(len(line[25:].split()) > 3 for line in lines[1:])


def test_no_verb_is_bad_usage_and_says_what_there_is(posenc) -> None:
    answer = posenc()
    assert answer.code == 2 and answer.out == "" and answer.err == posenc("--help").out


def test_the_version_is_one_line_and_takes_no_torch() -> None:
    result = process(
        "-c", "import sys; from posenc.cli import main; main(['--version']); print('torch' in sys.modules)"
    )
    python = ".".join(map(str, sys.version_info[:3]))
    assert result.stdout == f"posenc {__version__}, torch {torch.__version__}, Python {python}\nFalse\n", result.stderr


@pytest.mark.parametrize(
    "shell, words", [("bash", "complete -o default -F"), ("zsh", "bashcompinit"), ("fish", "complete -c posenc")]
)
def test_a_shell_learns_to_complete(shell: str, words: str, posenc) -> None:
    answer = posenc("completion", shell)
    assert answer.code == 0 and answer.err == "" and words in answer.out and "used-by" in answer.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_verbs_and_options(posenc, here: Path) -> None:
    (here / "script").write_text(posenc("completion", "bash").out)
    line = "source ./script; COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))"
    line += "; _posenc; echo ${{COMPREPLY[@]}}"
    for words, completions in (("posenc comp", "compare completion"), ("posenc list --us", "--used-by")):
        process = subprocess.run(["bash", "-c", line.format(words)], capture_output=True, text=True, check=True)
        assert sorted(process.stdout.split()) == completions.split(), process.stderr


def test_the_default_encodings_are_those_of_the_laboratory() -> None:
    assert cli.parse_command(["compare"]).encodings == cli.parse_command(["order"]).specs == ENCODINGS


def test_help_comes_without_torch() -> None:
    script = (
        "import sys; from posenc.cli import main\n"
        "try: main(['compare', '--help'])\n"
        "except SystemExit as left: assert left.code == 0\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
        "import posenc; assert 'torch' not in sys.modules"
    )
    result = process("-c", script)
    assert result.returncode == 0, result.stderr


# Mistakes


def test_a_wrong_verb_is_answered_with_the_near_one(posenc) -> None:
    answer = posenc("comprae")
    assert answer.code == 2
    assert answer.line == "posenc: no verb 'comprae'; did you mean 'compare'? posenc help has all"
    assert posenc("help", "x").line == "posenc: no verb 'x'; posenc help has all"


@pytest.mark.parametrize(
    "command, words",
    [
        ("compare --stepps 3", "compare has no option '--stepps'; did you mean '--steps'? posenc help compare has all"),
        (
            "compare --no-steps",
            "compare has no option '--no-steps'; did you mean '--steps'? posenc help compare has all",
        ),
        (
            "lab run alibi --teer gpu",
            "lab run has no option '--teer'; did you mean '--tier'? posenc help lab run has all",
        ),
        ("compare --steps ten", "--steps takes a whole number, such as 8, got 'ten'"),
        ("compare --steps=", "--steps takes a whole number, such as 8, got ''"),
        ("compare --test-lengths 1.5", "--test-lengths takes a whole number, such as 8, got '1.5'"),
        ("train --rate fast --steps 3", "--rate takes a number, such as 0.5, got 'fast'"),
        ("train --steps --rate 1", "--steps takes a value, and none follows; give one, or leave --steps out"),
        ("compare --tasks --encodings", "--tasks takes a value, and none follows; give one, or leave --tasks out"),
        ("compare --label Ripple", "--label takes SPEC=NAME, as in --label \"mine.py:Mine=Ripple\"; got 'Ripple'"),
        (
            "compare --label rotray=RoPE",
            f"--label names 'rotray', which is not compared; there are: {', '.join(ENCODINGS)}",
        ),
        ("compare --label rotary=a alibi=a", "two encodings would be called 'a'; give each a label of its own"),
        ("compare --label rotary=", "a label must be one line of 1 to 40 letters, got ''"),
        ("list --json=yes", "--json takes no value, got 'yes'"),
        ("show", "something is missing; it is written posenc show [OPTIONS] SPEC; posenc help show says more"),
        (
            "list a b",
            "'b' is one argument too many; it is written posenc list [OPTIONS] NAME; posenc help list says more",
        ),
        ("merge x", "it needs --out too; it is written posenc merge PATH ... --out PATH; posenc help merge says more"),
        (
            "advise --task x",
            "it needs --train-length and --test-length too; it is written posenc advise [OPTIONS] --task TEXT "
            "--train-length INT --test-length INT; posenc help advise says more",
        ),
        ("compare --tasks a,b", "'a,b' is several names; put spaces between: a b"),
        ("report x --figures png,pdf", "'png,pdf' is several names; put spaces between: png pdf"),
        ("lab", "lab has list, run, page; name one"),
        ("lab rn", "lab has list, run, page; 'rn' is none of them; did you mean 'run'?"),
        ("completion bsh", "no completion for 'bsh'; there are: bash, zsh, fish; did you mean 'bash'?"),
    ],
)
def test_options_that_a_verb_cannot_take_are_answered_in_one_line(command: str, words: str, posenc) -> None:
    answer = posenc(*command.split())
    assert answer.code == 2 and answer.line == f"posenc: {words}"


def list_options() -> list[tuple[str, str, list[str]]]:
    """(verb, option, two values) of every option that takes several values."""
    options = []
    for verb, cls in cli.VERBS.items():
        for name, kind in arguments.option_types(cls).items():
            if get_origin(kind) is tuple:
                values = {int: ["7", "9"], float: ["0.5", "0.25"]}.get(get_args(kind)[0], ["x", "y"])
                options.append((verb, name, values))
    return options


REQUIRED_ARGUMENTS = {
    "report": ["m"],
    "generate": ["m"],
    "show": ["rotary"],
    "check": ["rotary"],
    "inspect": ["m"],
    "extend": ["m"],
    "convert": ["--out", "n", "m"],
    "export": ["--out", "model.onnx", "m"],
}
"""What a verb cannot be without."""


@pytest.mark.parametrize("verb, name, values", list_options())
def test_a_list_that_is_given_twice_adds_up(verb: str, name: str, values: list[str]) -> None:
    first, second = values
    option = "--" + name.replace("_", "-")
    arguments = REQUIRED_ARGUMENTS.get(verb, [])
    second_value = {"generate": "--seed=1", "board": "--seconds=1"}.get(verb, "--json")
    for words in (
        [*arguments, option, first, second],
        [*arguments, option, first, option, second],
        [*arguments, f"{option}={first}", second_value, f"{option}={second}"],
        [option, first, f"--{name}", second, *arguments],
        *([[option, ",".join(values), *arguments], [*arguments, f"{option}={first},{second}"]] if first < "a" else []),
    ):
        assert list(map(str, getattr(cli.parse_command([verb, *words]), name))) == values, words


def test_commas_stand_between_numbers_and_part_nothing_else() -> None:
    verb = cli.parse_command(["extend", "--lengths", "256,512", "a,b"])
    assert (verb.lengths, str(verb.path)) == ((256, 512), "a,b")
    with pytest.raises(ValueError, match=r"^--lengths takes a whole number, such as 8, got '256,'$"):
        cli.parse_command(["extend", "m", "--lengths", "256,"])


@pytest.mark.parametrize(
    "command, expected",
    [
        ("generate --trust a b runs/x --seed 3", {"folder": Path("runs/x"), "trust": ("a", "b"), "seed": 3}),
        ("show --ids 1 2 rotary", {"spec": "rotary", "ids": (1, 2)}),
        ("check --promise=x alibi", {"spec": "alibi", "promise": ("x",)}),
        ("merge --out c a b", {"folders": (Path("a"), Path("b")), "out": Path("c")}),
        ("order --json a b", {"specs": ("a", "b"), "json": True}),
        ("train --log=jsonl alibi --rate 1e-3 --no-compile", {"spec": "alibi", "log": ("jsonl",), "rate": 0.001}),
    ],
)
def test_what_has_no_option_may_stand_anywhere(command: str, expected: dict[str, object]) -> None:
    verb = cli.parse_command(command.split())
    assert {name: getattr(verb, name) for name in expected} == expected


def test_a_list_that_is_given_twice_is_not_added_to_its_default() -> None:
    assert cli.parse_command(["compare", "--encodings", "rotary", "--encodings", "alibi"]).encodings == (
        "rotary",
        "alibi",
    )
    assert cli.parse_command(["check", "rotary"]).promise == ()


def test_check_holds_to_every_promise_that_is_named(posenc) -> None:
    answer = posenc("check", "rotary", "--promise", "has_a_source", "--promise", "the_spec_round_trips", "--json")
    assert {verdict["promise"] for verdict in json.loads(answer.out)} == {"has_a_source", "the_spec_round_trips"}


@pytest.mark.parametrize(
    "command, option",
    [
        ("generate x --seed 1 --seed 2", "--seed"),
        ("compare --train-length 4 --train_length 5", "--train_length"),
        ("check rotary --json --no-json", "--no-json"),
    ],
)
def test_an_option_of_one_value_that_is_given_twice_is_refused(command: str, option: str, posenc) -> None:
    answer = posenc(*command.split())
    assert answer.code == 2
    assert answer.line == f"posenc: {option} is given more than once; give it once, with the value that you mean"


MISTAKES = [
    (
        "compare --encodings rotarry",
        "no encoding named 'rotarry'; did you mean 'rotary'\\? posenc list encodings has all",
    ),
    ("compare --encodings rotary(", "'rotary\\(' is no spec .*; write for example rotary\\(base=500_000\\) \\+ .*"),
    (
        "compare --encodings mine.py:Mine",
        "no file 'mine.py' to take 'Mine' from; a spec of your own module is path/to/file.py:Class, with quotes .*",
    ),
    ("check x:X", r"'x:X' is no spec \(invalid syntax\); write for example rotary.*, or path/to/mine\.py:Mine for .*"),
    ("compare --tasks ", r"'' is no task .*; write for example copy\(symbols=10\), or path/to/mine\.py:Mine for .*"),
    ("compare --maps ", r"'' is no coordinate map .*; write for example interpolated\(factor=4\), or path/.*"),
    ("compare --log ", "'' is no logger .*; write for example wandb.*, or path/.*"),
    ("compare --encodings RotaryEmbedding", "no encoding named 'RotaryEmbedding'; did you mean 'rotary'\\? .*"),
    ("show MultiHeadAttention", "no encoding named 'MultiHeadAttention'; did you mean 'posenc.Attention'\\? posenc .*"),
    ("compare --tasks repeat --rates 1e-3 -1", "rate must be above 0, got -1.0"),
    ("train rotary --task repeat --log x", "no logger named 'x'; there are: jsonl, .*"),
    ("compare --tasks copy --dim 2147483647 --heads 3", "dim must be at most 65,536, got 2147483647"),
    ("compare --tasks copy --dim 65535 --heads 4", r"heads must divide dim=65535, got heads=4; the divisors up to .*"),
    ("train rotary --task copy --seed 99999999999999999999999", "seed must lie between .*, got 9+"),
    ("compare --tasks copy --seed-from -1", "seed must lie between 0 and .*, got -1"),
    (
        "compare --tasks repeat --out short.txt",
        "cannot write into 'short.txt': File exists; choose another folder with --out",
    ),
    (
        "compare --tasks repeat --encodings grid_bias",
        "grid_bias reads 2 axes, got positions with 1 axis; give coords of shape .*",
    ),
    ("export nowhere --out a.pt2", "'nowhere' is no folder that posenc train has filled; models of transformers .*"),
    ("board --workers -1", "workers must be a whole number of 1 or more, got -1"),
    ("board --seconds nan", "seconds must be 0 or more, got nan"),
    ("report nowhere", "no records in 'nowhere'; make some with posenc compare --out nowhere"),
    ("train rotary --task repeat --threads 100000000", "threads must lie between 1 and 1,024, got 100000000"),
    ("generate nowhere", "no checkpoint in 'nowhere': run.json is missing; train one with posenc train --out nowhere"),
    (
        "check alibi --promise has_a_sauce",
        "no promise named 'has_a_sauce'; did you mean 'has_a_source'\\? posenc check SPEC has all",
    ),
    ("list alibbi", "nothing is named 'alibbi'; did you mean 'alibi'\\? posenc list has all"),
    ("check alibbi", "no encoding named 'alibbi'; did you mean 'alibi'\\? posenc list encodings has all"),
]


@pytest.mark.parametrize(("command", "words"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_a_mistake_is_answered_in_one_line_and_with_exit_code_2(command: str, words: str, posenc, here: Path) -> None:
    (here / "short.txt").write_text("a word.\n")
    answer = posenc(*command.split(" "))
    assert answer.code == 2
    assert re.fullmatch(f"posenc: {words}", answer.line), answer.line
    assert not [file for file in here.glob("runs/**/*.*") if file.name != ".lock"]


NO_DEVICE = r"there is no device {} here; torch \S+ has cpu.*: give one of these"
NOT_HERE = [
    ("compare --tasks repeat --device cuda:77", NO_DEVICE.format("cuda:77")),
    ("compare --tasks repeat --shard 0/2 --device meta", NO_DEVICE.format("meta")),
    ("compare --tasks repeat --rates 1e-3 --device gpu", "device must be cpu, cuda, cuda:1 or mps, got 'gpu'"),
    ("train rotary --task repeat --device cpu:3", NO_DEVICE.format("cpu:3")),
    ("train rotary --task repeat --device CPU", "device must be cpu, cuda, cuda:1 or mps, got 'CPU'"),
    ("lab run alibi --tier gpu", NO_DEVICE.format("cuda")),
]


@pytest.mark.parametrize(("command", "words"), NOT_HERE, ids=[command for command, _ in NOT_HERE])
def test_a_device_that_is_not_here_is_one_line(command: str, words: str, posenc, monkeypatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **message: None)
    answer = posenc(*command.split())
    assert answer.code == 2 and re.fullmatch(f"posenc: {words}", answer.line), answer.line


def test_a_model_of_another_machine_generates_on_this_one(posenc, here: Path) -> None:
    posenc(*TRAIN)
    file = here / "kept" / "step-000004" / "run.json"
    facts = json.loads(file.read_text()) | {"checksum": None}
    facts["experiment"]["device"] = "cuda:77"
    file.write_bytes(store.dump_json({name: value for name, value in facts.items() if name != "checksum"}))
    assert posenc("generate", "kept", "--max-new-tokens", "3").code == 0
    assert "there is no device cuda:77 here" in posenc(*TRAIN[:-2], "--device", "cuda:77").line


# What each verb prints


def test_list_names_everything_for_people_and_as_json(posenc) -> None:
    answer = posenc("list")
    assert answer.code == 0 and answer.err == ""
    assert all(name in answer.out for name in (*catalogue.names(), "yarn", "randomised", "recall", "sdpa", "llama3.1"))
    assert answer.out.index("BIAS THE LOGITS") < answer.out.index("alibi")
    entries = json.loads(posenc("list", "--json").out)
    assert {"encodings", "schedules", "coordinate_maps", "tasks", "kernels", "presets", "claims"} <= set(entries)


def test_list_shows_one_encoding_whole(posenc) -> None:
    answer = posenc("list", "rotary")
    assert answer.code == 0 and answer.err == ""
    assert "rope, roformer" in answer.out and "KV cache" in answer.out and "yarn" not in answer.out
    assert json.loads(posenc("list", "rotary + alibi", "--json").out)["class"] == "Rotary + ALiBi"


def test_whatever_list_names_can_be_asked_for(posenc) -> None:
    entries = json.loads(posenc("list", "--json").out)
    for kind, word in listing.KINDS.items():
        lines = posenc("list", kind).out.splitlines()
        assert [line.split()[0] for line in lines[1:]] == [entry["name"] for entry in entries[kind]]
        for name in (entry["name"] for entry in entries[kind][::5]):
            answer = posenc("list", name)
            assert answer.code == 0 and re.search(rf"^{word} +{re.escape(name)}$", answer.out, re.MULTILINE), answer.out


def test_a_name_of_two_kinds_is_told_of_both(posenc) -> None:
    answer = posenc("list", "copy")
    assert answer.out.startswith("task ") and "\nclaim " in answer.out
    assert "symbols=26, times=1" in answer.out and "posenc lab run copy" in answer.out
    card = json.loads(posenc("list", "copy", "--json").out)
    assert card["kind"] == "task" and [second["kind"] for second in card["also"]] == ["claim"]
    assert json.loads(posenc("list", "claims", "--json").out)[0]["name"] == "alibi"


@pytest.mark.parametrize(
    "options, names",
    [
        ("--axes 2 --door bias", ["grid_bias", "log_grid_bias"]),
        ("--used-by deberta", ["deberta"]),
        ("--door bias --used-by llama", None),
        ("--door remember", ["forgetting", "inkling", "path", "selective_rotary"]),
        ("--axes 3", ["multimodal_rotary"]),
    ],
)
def test_list_chooses(options: str, names: list[str] | None, posenc) -> None:
    answer = posenc("list", *options.split(), "--json")
    assert (answer.code == 0) == (names is not None)
    assert names is None or [entry["name"] for entry in json.loads(answer.out)["encodings"]] == names
    listed_names = posenc("list", *options.split()).out
    assert all(name in listed_names for name in names or ()) and "SCHEDULES" not in listed_names


@pytest.mark.parametrize(
    "command, words",
    [
        ("list --door bais", "no door named 'bais'; there are: embed, turn, .*; did you mean 'bias'\\?"),
        (
            "list --axes 2 --door remember",
            r"no encoding is left; --axes 2 alone leaves \d; --door remember alone leaves 4",
        ),
        ("list --used-by lamma", r"no encoding is left; --used-by 'lamma' alone leaves 0; .*did you mean 'Llama'\?"),
        ("list --axes 0", r"no encoding is left; --axes 0 alone leaves 0; there are encodings of 1, 2, any axes"),
        ("list yarn --axes 0", "--axes chooses among all encodings, and 'yarn' is named; leave one out"),
        ("list rope", "nothing is named 'rope'; did you mean 'rotary'\\? posenc list has all"),
        ("list schedule", "nothing is named 'schedule'; did you mean 'schedules'\\? posenc list has all"),
    ],
)
def test_what_list_cannot_find_is_answered_with_what_there_is(command: str, words: str, posenc) -> None:
    answer = posenc(*command.split())
    assert answer.code == 2 and re.fullmatch(f"posenc: {words}", answer.line), answer.line


@pytest.mark.parametrize("width", [80, 120])
def test_list_fits_a_terminal_and_shows_more_in_a_wider_one(
    width: int, posenc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "STDOUT", Console(file=(stream := io.StringIO()), width=width, highlight=False))
    assert posenc("list").code == 0
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width and len(lines) < 100
    (alibi,) = [line for line in lines if line.startswith("alibi ")]
    assert alibi.endswith("...") == (width == 80) and ("used by BLOOM" in alibi) == (width == 120)


def test_order_prints_a_table_or_json(posenc) -> None:
    answer = posenc("order", "sinusoidal", "alibi")
    assert (
        answer.code == 0 and answer.err == "" and "order-blind" in answer.out and "tells the order apart" in answer.out
    )
    results = json.loads(posenc("order", "alibi", "--json").out)
    assert list(results) == ["alibi"] and len(results["alibi"]) == 8


def test_show_explains_draws_and_gives_numbers(posenc, here: Path) -> None:
    answer = posenc("show", "alibi", "--tokens", "8", "--out", "pictures")
    assert answer.code == 0 and "Press" in answer.out and "Picture: pictures/bias.png" in answer.out
    assert (here / "pictures" / "bias.png").is_file()
    assert json.loads(posenc("show", "sinusoidal", "--tokens", "8", "--json").out)["shift"]["k"] == 1


def test_pictures_are_opened_where_there_is_a_display(posenc, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    monkeypatch.setattr(webbrowser, "open", lambda address: pages.append(address) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    answer = posenc("show", "alibi", "--tokens", "8", "--open")
    assert answer.code == 0 and answer.err == ""
    assert pages == [(here / "runs" / "show" / "bias.png").as_uri()]
    two_pages = posenc("show", "alibi", "--open", "--json")
    assert (
        two_pages.code == 2
        and two_pages.line == "posenc: --open shows pictures, and --json draws none; leave one of them out"
    )


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="these always have a display")
def test_without_a_display_it_says_where_the_pictures_lie(posenc, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webbrowser, "open", None)
    answer = posenc("show", "alibi", "--tokens", "8", "--open")
    picture = here / "runs" / "show" / "bias.png"
    words = (
        f"No browser opened here: open {picture.as_uri()} in one, or copy runs/show/bias.png to where there is one\n"
    )
    assert answer.code == 0 and answer.err == words


@pytest.mark.parametrize("out", ["taken", "taken/within"])
def test_a_folder_for_pictures_that_cannot_be_made_is_one_line(posenc, here: Path, out: str) -> None:
    (here / "taken").write_text("mine")
    answer = posenc("show", "alibi", "--tokens", "8", "--out", out)
    assert answer.code == 1 and (here / "taken").read_text() == "mine"
    words = f"posenc: '{out}/bias.png' cannot be written: .*; what was finished before is kept; choose another folder\n"
    assert re.fullmatch(words, answer.err)


@pytest.mark.slow
def test_check_answers_with_verdicts_and_an_exit_code(posenc) -> None:
    answer = posenc("check", "none")
    assert answer.code == 0 and answer.out.splitlines()[0].strip() == "none" and answer.err == ""
    assert re.search(r"^kept +has a source *$", answer.out, re.MULTILINE)
    assert re.search(r"^no meaning  every parameter learns +none has no parameters$", answer.out, re.MULTILINE)
    assert re.fullmatch(r"23 promises: \d+ kept, \d+ no meaning", answer.out.splitlines()[-1])
    verdicts = json.loads(posenc("check", "none", "--promise", "has_a_source", "every_parameter_learns", "--json").out)
    assert [(verdict["promise"], verdict["kept"]) for verdict in verdicts] == [
        ("has_a_source", True),
        ("every_parameter_learns", None),
    ]


def test_a_broken_promise_is_answered_with_numbers_and_what_to_do(posenc, here: Path) -> None:
    (here / "wrong.py").write_text(OWN_ENCODING.replace("- self.slope * abs(m - n)", "- 2 * self.slope * abs(m - n)"))
    answer = posenc("check", "wrong.py:Mine", "--promise", "has_a_source", "--promise", "says_what_the_paper_says")
    assert answer.code == 1 and answer.err == ""
    name, good, bad, message, todo, again, total = answer.out.splitlines()
    assert (name, good, bad) == ("wrong.py:Mine", "kept        has a source", "broken      says what the paper says")
    assert re.match(r"    found: .*\d", message) and todo.startswith("    to do: compare the doors with your formula")
    assert again == "    again: posenc check wrong.py:Mine --promise says_what_the_paper_says"
    assert total == "2 promises: 1 kept, 1 broken"


def test_a_mistake_that_breaks_everything_is_answered_once(posenc, here: Path) -> None:
    (here / "wrong.py").write_text(OWN_ENCODING.replace("delta.abs()", "delta.abs().no_such_thing()"))
    answer = posenc("check", "wrong.py:Mine")
    assert answer.code == 1 and answer.out.splitlines()[1] == "broken      a forward pass works"
    assert answer.out.splitlines()[-1] == "1 promise: 1 broken"
    assert re.search(r"to do: look at by_distance, line \d+ of wrong.py; ", answer.out)


def test_each_verdict_is_printed_before_the_next_promise_is_tried(posenc, monkeypatch: pytest.MonkeyPatch) -> None:
    from posenc import testing

    class Pipe(io.StringIO):
        """A pipe whose reader sees what was flushed, and nothing else."""

        text = ""

        def flush(self) -> None:
            self.text = self.getvalue()

    pipe = Pipe()

    def slowly(*_):
        for promise in ("has_a_source", "every_parameter_learns"):
            assert (promise == "has_a_source") == ("has a source" not in pipe.text)
            yield testing.Verdict("none", promise, True)

    monkeypatch.setattr(testing, "verdicts", slowly)
    monkeypatch.setattr(sys, "stdout", pipe)
    assert posenc("check", "none").code == 0
    assert "every parameter learns" in pipe.text


def test_a_gap_that_has_closed_asks_to_be_deleted(posenc, here: Path) -> None:
    gap = '    gaps = {"has_a_source": "none"}'
    (here / "closed.py").write_text(OWN_ENCODING.replace("    def __init__", f"{gap}\n\n    def __init__"))
    answer = posenc("check", "closed.py:Mine", "--promise", "has_a_source")
    assert answer.code == 1 and answer.out.splitlines()[1] == "stale gap   has a source"
    assert "    to do: delete it from `gaps`\n" in answer.out


def test_an_encoding_that_cannot_be_built_is_one_line(posenc, here: Path) -> None:
    (here / "broken.py").write_text(OWN_ENCODING.replace("self.heads, self.slope = heads, slope", "self.heads = head"))
    for verb in ("check", "list", "show"):
        answer = posenc(verb, "broken.py:Mine")
        assert answer.code == 2
        assert re.fullmatch(
            r"posenc: broken.py:Mine: Mine fails, in line 15 of '.*/broken.py': NameError: name 'head' is not defined",
            answer.line,
        )


def test_compare_prints_data_on_stdout_and_progress_on_stderr(posenc, here: Path) -> None:
    answer = posenc("compare", "--encodings", "none", "--out", "out", "--json", *SMALL)
    assert answer.code == 0 and "1 of 1 runs done" in answer.err
    records = json.loads(answer.out)
    assert [record["encoding"] for record in records] == ["none"]
    settings = json.loads((here / "out" / "settings.json").read_text())
    assert (here / "out" / "report.html").is_file() and settings["changes"]["steps"] == 2


def test_report_writes_the_page_again_with_the_same_words(posenc, run_folder: Path, here: Path) -> None:
    folder = shutil.copytree(run_folder, here / "copy")
    (folder / "report.html").unlink()
    answer = posenc("report", "copy")
    assert answer.code == 0 and answer.err == ""
    assert "alibi" in answer.out and "not learned" in answer.out and "Report: copy/report.html" in answer.out
    assert (folder / "report.html").is_file()
    # In the order in which the comparison asked for them.
    assert [path["experiment"]["spec"] for path in json.loads(posenc("report", "copy", "--json").out)] == [
        "none",
        "alibi",
    ]


@pytest.mark.slow
def test_report_writes_tables_and_figures_for_a_paper(posenc, run_folder: Path, here: Path, monkeypatch) -> None:
    monkeypatch.setattr(drawer.Drawer, "__call__", DRAW)
    folder = shutil.copytree(run_folder, here / "copy")
    shutil.rmtree(folder / "figures", ignore_errors=True)
    size = "--width 3.25 --height 2.5 --no-titles --style classic".split()
    answer = posenc("report", "copy", "--figures", "pdf", "--table", "a.csv", "b.tex", *size)
    assert answer.code == 0 and "table: a.csv\ntable: b.tex\n" in answer.err
    assert (here / "a.csv").read_text().startswith("task,encoding,seed,") and "toprule" in (here / "b.tex").read_text()
    files = list((folder / "figures").iterdir())
    assert files and all(b"MediaBox [ 0 0 234 180 ]" in path.read_bytes() for path in files)


def damage(where: str, content: str, run_folder: Path, here: Path) -> None:
    folder = shutil.copytree(run_folder, here / "copy")
    next(folder.glob(where)).write_text(content)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (
            "records/repeat-none*",
            "copy/records/repeat-none-.*json: it is no whole JSON .*; move it out of the folder, or give the posenc "
            "compare again that made it: it sets the file aside and makes the run again",
        ),
        ("settings.json", "copy/settings.json: it is no whole JSON .*; delete it, the records are what counts"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(where: str, words: str, posenc, run_folder: Path, here: Path) -> None:
    damage(where, "{", run_folder, here)
    answer = posenc("report", "copy")
    assert answer.code == 2 and re.fullmatch(f"posenc: {words}", answer.line)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encodings": 3}, "encodings: expected a list of str, got 3"),
        ({"task_names": 3}, "task_names: expected a list of str or nothing, got 3"),
        ({"preset": "zzz"}, "preset: expected default or full, got 'zzz'"),
        ({"preset": None, "seeds": 1}, "preset: expected str, got None"),
    ],
)
def test_settings_that_hold_something_else_are_one_line(
    settings: dict, words: str, posenc, run_folder: Path, here: Path
) -> None:
    damage("settings.json", store.dump_json(settings).decode(), run_folder, here)
    answer = posenc("report", "copy")
    assert answer.code == 2
    assert answer.line == f"posenc: copy/settings.json: {words}; delete it, the records are what counts"


def test_records_of_other_versions_are_told_apart(posenc, run_folder: Path, here: Path) -> None:
    folder = shutil.copytree(run_folder, here / "copy")
    path = next((folder / "records").glob("repeat-none-*"))
    other_record = record.read(path)
    other_record["versions"]["torch"] = "1.0"
    record.write(other_record, path.parent)
    answer = posenc("report", "copy")
    words = f"posenc {__version__} and torch 1.0 made none on repeat, seed 100"
    assert answer.code == 0 and words in answer.err and words in (folder / "report.html").read_text()


def test_a_folder_in_which_another_process_is_at_work_is_refused_and_can_be_reported(
    posenc, run_folder: Path, here: Path
) -> None:
    shutil.copytree(run_folder, here / "copy")
    with store.locked_folder(here / "copy"):
        for command in (["compare", *SMALL], TRAIN[:-2]):
            answer = posenc(*command, "--out", "copy")
            words = "another posenc is at work in 'copy'; wait until it is over, or choose another folder with --out"
            assert answer.code == 2 and answer.line == f"posenc: {words}"
        assert posenc("report", "copy").code == 0


def test_a_full_disk_is_one_line_and_loses_no_record(
    posenc, run_folder: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(run_folder, here / "copy")
    names = {file.name: file.read_bytes() for file in (folder / "records").iterdir()}
    monkeypatch.setattr(drawer.Drawer, "__call__", DRAW)
    full_from_now_on(monkeypatch)
    answer = posenc("report", "copy")
    words = (
        r"posenc: 'copy/figures/\w.*png' cannot be written: No space left on device; what was finished before is kept;"
    )
    assert answer.code == 1 and re.fullmatch(f"{words} make room and give the same command again", answer.line)
    assert {file.name: file.read_bytes() for file in (folder / "records").iterdir()} == names


def test_a_disk_that_fills_up_during_a_comparison_names_the_runs(
    posenc, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write", full)
    answer = posenc("compare", "--encodings", "none", "--out", "out", *SMALL)
    assert answer.code == 1 and answer.out == ""
    assert (
        answer.err.splitlines()[-1]
        == "posenc: every run failed; the first: OSError: [Errno 28] No space left on device"
    )


TRAIN = "train rotary,none --task copy --steps 4 --dim 8 --heads 2 --train-length 2 --out kept".split()


def test_train_keeps_a_checkpoint_resumes_and_generates_from_it(posenc) -> None:
    answer = posenc(*TRAIN)
    assert answer.code == 0 and "Checkpoint: kept" in answer.out and "step 4/4" in answer.err
    assert "exact match" in answer.err and "bits per byte" not in answer.err
    again = posenc(*TRAIN, "--json")
    assert (
        re.fullmatch(r"\d\d:\d\d:\d\d  going on at step 4 of 4\n", again.err) and json.loads(again.out)[-1]["step"] == 4
    )
    text = posenc("generate", "kept", "--prompt", "ab|", "--max-new-tokens", "3")
    assert text.code == 0 and text.out.startswith("ab|") and text.err == ""
    by_seed = [
        posenc("generate", "kept", "--prompt", "ab|", "--temperature", "2", "--seed", seed).out for seed in "0012"
    ]
    assert by_seed[0] == by_seed[1] and len(set(by_seed)) > 1
    sample = posenc(*TRAIN, "--seed", "5")
    assert sample.code == 2 and "holds a run of other settings (seed 100 -> 5)" in sample.line
    wrong = posenc("generate", "kept", "--prompt", "a b")
    assert wrong.code == 2 and "a prompt for this task is written in" in wrong.line
    refusal = posenc("generate", "kept", "--max-new-tokens", "0")
    assert refusal.code == 2 and refusal.line == "posenc: max_new_tokens must be a whole number of 1 or more, got 0"


def test_training_on_a_text_tells_its_bits_per_byte(posenc, here: Path) -> None:
    (here / "words.txt").write_text("all cats are grey at night " * 800)
    sizes = "--train-length 4 --steps 2 --batch 2 --layers 1 --dim 8 --heads 1 --threads 1".split()
    answer = posenc("train", "none", "--task", "text", "--text", "words.txt", "--out", "kept", *sizes)
    assert answer.code == 0 and "bits per byte" in answer.err and "exact match" not in answer.err


@pytest.mark.parametrize("name", ["run.json", "model.safetensors", "optimizer.safetensors"])
def test_a_damaged_checkpoint_is_one_line(name: str, posenc, here: Path) -> None:
    posenc(*TRAIN)
    file = here / "kept" / "step-000004" / name
    file.write_bytes(file.read_bytes()[:20])
    # Generation reads the model alone.
    reads = [TRAIN] if name == "optimizer.safetensors" else [["generate", "kept"], TRAIN]
    for command in reads:
        answer = posenc(*command)
        assert answer.code == 2 and f"posenc: kept/step-000004/{name}: it " in answer.line


@pytest.mark.slow
def test_generation_needs_neither_the_optimisers_nor_the_compiler(posenc, here: Path) -> None:
    posenc(*TRAIN)
    (here / "kept" / "step-000004" / "optimizer.safetensors").unlink()
    script = ["generate", "kept", "--prompt", "ab|", "--max-new-tokens", "3"]
    code = f"import sys; from posenc.cli import main; print(main({script}), 'torch._dynamo' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=False)
    assert process.stdout.splitlines()[-1] == "0 False", process.stderr


@pytest.mark.parametrize("file", ["settings.toml", "step-000004"])
def test_a_disk_that_is_full_when_a_run_writes_is_one_line(file: str, posenc, monkeypatch: pytest.MonkeyPatch) -> None:
    if file != "settings.toml":
        monkeypatch.setattr(config, "write_config", lambda *arguments: None)
    full_from_now_on(monkeypatch)
    answer = posenc(*TRAIN)
    assert answer.code == 1 and answer.out == ""
    words = f"'kept/{file}' cannot be written: No space left on device; what was finished before is kept; make room"
    assert answer.err.splitlines()[-1].startswith(f"posenc: {words}")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_to_end_is_as_clean_as_ctrl_c(
    name: str, code: int, posenc, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(signal, name)
    plain = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda run, folder: (plain(run, folder), os.kill(os.getpid(), number)))
    handlers = signal.getsignal(number)
    answer = posenc(*TRAIN)
    assert answer.code == code and answer.out == ""
    words = f"posenc: ended by {name}; what was finished is kept, give the same command again"
    assert answer.err.splitlines()[-1] == words
    assert signal.getsignal(number) is handlers
    assert checkpoint.load(here / "kept").step == 4


OWN_ENCODING = '''
from posenc import Encoding


class Mine(Encoding):
    """Subtract from each logit a number times the distance.

    Source: a test, 2026.
    """

    source = "a test, 2026"

    def __init__(self, heads: int, slope: float = 0.5) -> None:
        super().__init__()
        self.heads, self.slope = heads, slope

    def by_distance(self, delta):
        return (-self.slope * delta.abs().float()).expand(self.heads, *delta.shape)

    def formula_logit(self, q, k, m, n, head, scale):
        return super().formula_logit(q, k, m, n, head, scale) - self.slope * abs(m - n)
'''


def test_an_encoding_of_ones_own_is_compared_shown_ordered_and_checked(posenc, here: Path) -> None:
    (here / "path").mkdir()
    (here / "path" / "mine.py").write_text(OWN_ENCODING)
    spec = "path/mine.py:Mine(slope=0.25)"
    comparison = posenc("compare", "--encodings", spec, f"rotary + {spec}", "--out", "out", "--json", *SMALL)
    assert comparison.code == 0, comparison.err
    assert json.loads(comparison.out)[0]["encoding"] == spec
    picture = posenc("show", spec, "--tokens", "8", "--json")
    bias = json.loads(picture.out)["bias"]
    assert dict(zip(bias["distance"], bias["heads"][0], strict=True))[2] == -0.5
    assert list(json.loads(posenc("order", spec, "--json").out)) == [spec]
    verdict = posenc("check", spec, "--promise", "says_what_the_paper_says", "a_cache_changes_nothing")
    assert verdict.out.splitlines()[-1] == "2 promises: 2 kept" and verdict.code == 0 and verdict.err == ""


def test_a_file_of_ones_own_that_cannot_be_imported_is_one_line(posenc, here: Path) -> None:
    (here / "mine.py").write_text("import nothing_of_this_name\n")
    answer = posenc("order", "mine.py:Mine")
    assert answer.code == 2
    assert (
        answer.line
        == "posenc: 'mine.py' could not be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'"
    )


def test_errors_of_many_lines_are_told_in_one() -> None:
    assert cli.error_line(RuntimeError("size mismatch:\n\tone\n\ttwo")) == "size mismatch: one two"
    assert cli.error_line(OSError(28, "No space left on device", "a file")) == "No space left on device: 'a file'"
    assert cli.error_line(OSError(28, "No space left on device")) == "No space left on device: the output"


@pytest.mark.parametrize("fault", [lambda: int("x"), lambda: torch.zeros(2).view(3), lambda: open(b"a\0b")])
def test_a_fault_within_a_verb_stays_a_traceback(fault, posenc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.VERBS["list"], "run", lambda self: fault())
    with pytest.raises((ValueError, RuntimeError)):
        posenc("list")


def test_ctrl_c_is_one_sentence_and_130(posenc, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.VERBS["list"], "run", interrupt)
    answer = posenc("list")
    assert answer.code == 130
    assert answer.line == "posenc: interrupted; what was finished is kept, give the same command again"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_python_cleans_up_behind_an_object_ends_it_too(
    number: signal.Signals, posenc, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Left:
        def __del__(self) -> None:
            signal.raise_signal(number)

    def interrupt(self) -> int:
        left = Left()
        weakref.finalize(left, signal.raise_signal, number)
        del left
        time.sleep(10)
        return 0

    hook = sys.unraisablehook
    monkeypatch.setattr(cli.VERBS["list"], "run", interrupt)
    began = time.monotonic()
    assert posenc("list").code == 128 + number
    assert sys.unraisablehook is hook and time.monotonic() - began < 5


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_drops_is_answered_when_the_command_is_through(
    number: signal.Signals, posenc, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_names = []

    def drop(self) -> int:
        # As C code does that forgets whatever a callback raises.
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
            finished_names.append("not reached")
        finished_names.append("the rest")
        return 0

    handler = signal.getsignal(number)
    monkeypatch.setattr(cli.VERBS["list"], "run", drop)
    assert posenc("list").code == 128 + number and finished_names == ["the rest"]
    assert signal.getsignal(number) == handler


def test_without_a_terminal_there_are_no_escape_codes(posenc, run_folder: Path) -> None:
    for command in (["list"], ["order", "alibi"], ["compare", "--help"], ["report", str(run_folder)], ["lst"]):
        answer = posenc(*command)
        assert "\x1b" not in answer.out + answer.err and len(answer.out + answer.err) > 40


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the command is forked")
def test_a_reader_who_has_enough_of_much_ends_it_without_a_word() -> None:
    # More than a pipe holds.
    command = ForkedCli("list", "--json")
    command.hang_up()
    assert command.outcome() == (1, "", "")


@pytest.mark.parametrize("command", [["--help"], ["compare", "--help"]])
def test_a_reader_who_has_enough_ends_it_without_a_word(command: list[str]) -> None:
    options = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"}
    write_end, pipe = os.pipe()
    os.close(write_end)
    with open(pipe, "wb") as out:
        whole = [sys.executable, "-m", "posenc", *command]
        process = subprocess.run(whole, stdout=out, stderr=subprocess.PIPE, text=True, env=options, timeout=240)
    assert process.returncode == 1 and process.stderr == ""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_the_shell_has_closed_takes_nothing(stream, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in (("alibi", 0), ("nonesuch", 2)):
        monkeypatch.setattr(sys, stream, None)
        monkeypatch.setattr(sys, "argv", ["posenc", "list", name, "--json"])
        assert main.main() == code
        getattr(sys, stream).close()


PICTURES = r"pictures and numbers need numpy: pip install 'posenc\[lab\]'\n$"
WITH_TORCH_ALONE = [
    ("", 2, "", r"posenc: positional encodings\. posenc help VERB .*\nfirst +lesson "),
    ("help", 0, r"posenc: positional encodings\. posenc help VERB ", ""),
    ("help list", 0, r"usage: posenc list \[OPTIONS\] NAME\n\nList the encodings.*--axes INT .*--used-by TEXT ", ""),
    ("list", 0, r"ADDED TO EMBEDDINGS\ncontinuous_time  +Add .*\n\nSCHEDULES +", ""),
    ("list rotary", 0, r"encoding +rotary\n.*\nsource +Su et al", ""),
    ("list schedules", 0, r"SCHEDULES\nclipped +", ""),
    ("list --door bias --used-by bloom", 0, r"BIAS THE LOGITS\nalibi +", ""),
    ("list alibi --json", 0, r'\{"kind": "encoding", "name": "alibi"', ""),
    ("list --jsn", 2, "", r"posenc: list has no option '--jsn'; did you mean '--json'\?"),
    (
        "list a b",
        2,
        "",
        r"posenc: 'b' is one argument too many; it is written posenc list \[OPTIONS\] NAME; posenc help list says",
    ),
    (
        "show rotary(base=500)+alibi",
        0,
        r"rotary\(base=500\) \+ alibi\nopens by_dist.*\n\nRotate .*\n\nSubtract",
        PICTURES,
    ),
    ("show rotary --json", 1, "", r"posenc: this needs numpy, which is not installed: pip install 'posenc\[lab\]'"),
    ("show rotari", 2, "", r"posenc: no encoding named 'rotari'; did you mean 'rotary'\?"),
    ("check alibi --promise has_a_source", 0, r"alibi\nkept +has a source\n1 promise: 1 kept\n", ""),
    ("check copy --promise has_a_source", 0, r"copy\nkept +has a source\n1 promise: 1 kept\n", ""),
    ("lesson", 0, r"lesson\n1 +\w.*\n2 +\w.*\nRead one: posenc lesson 1\n", ""),
    ("lesson 1", 0, r"# ", ""),
    ("lesson 1 --open", 1, "", r"posenc: this needs matplotlib, which is not installed: pip install 'posenc\[lab\]'"),
    ("lesson 1 --check answers.py", 1, r"not yet +.*\n0 of \d right\n.*", ""),
    ("compare --encodings none --tasks copy", 1, "", r"posenc: this needs numpy, .*: pip install 'posenc\[lab\]'"),
]


@pytest.fixture(scope="module")
def answers_with_torch_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What one process answers, in which nothing of the extra lab can be imported."""
    script = """
import contextlib, io, json, sys
from posenc import __main__
# torch brings jinja2
brought = {name for modules in __main__.EXTRAS.values() for name in modules} - {"jinja2"}
sys.modules.update(dict.fromkeys(brought))
from posenc.__main__ import main
answers = {}
for command in COMMANDS:
    sys.argv, out, err = ["posenc", *command.split()], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main()
    answers[command] = code, out.getvalue(), err.getvalue()
print(json.dumps(answers))
"""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "answers.py").touch()
    commands = repr([command for command, *_ in WITH_TORCH_ALONE])
    result = process("-c", f"import os; os.chdir({str(folder)!r})\n{script.replace('COMMANDS', commands)}")
    assert result.returncode == 0, result.stderr
    return {command: Answer(*answer) for command, answer in json.loads(result.stdout).items()}


@pytest.mark.parametrize(("command", "code", "out", "err"), WITH_TORCH_ALONE)
def test_with_torch_alone_it_lists_shows_checks_and_reads_lessons_in_plain_text(
    command: str, code: int, out: str, err: str, answers_with_torch_alone
) -> None:
    answer = answers_with_torch_alone[command]
    assert (answer.code, bool(answer.out), bool(answer.err)) == (code, bool(out), bool(err)), answer.err
    assert re.match(out, answer.out, re.DOTALL) and re.match(err, answer.err)


@pytest.mark.slow
def test_with_torch_and_the_terminal_alone_every_verb_answers_or_names_what_is_missing(here: Path) -> None:
    script = """
import sys
from posenc import __main__ as main
# torch brings jinja2
for missing in {m for modules in main.EXTRAS.values() for m in modules} - {"rich", "jinja2"}:
    sys.modules[missing] = None
for command in COMMANDS:
    sys.argv = ["posenc", *command.split()]
    print("code", main.main(), flush=True)
"""
    commands = {
        "list rotary": "",
        "order none": "",
        "check alibi --promise has_a_source": "",
        "inspect model": "",
        "train none --task copy --steps 1 --dim 8 --heads 1 --out run": "",
        "show rotary --json": "numpy",
        "compare --encodings none --tasks copy --out run": "numpy",
        "report run": "numpy",
        "extend model": "matplotlib",
    }
    (here / "model").mkdir()
    config = {
        "model_type": "llama",
        "rope_theta": 500.0,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    (here / "model" / "config.json").write_text(json.dumps(config))
    result = process("-c", script.replace("COMMANDS", repr([*commands])))
    assert re.findall(r"^code (\d)$", result.stdout, re.MULTILINE) == ["1" if m else "0" for m in commands.values()]
    output = [line for line in result.stderr.splitlines() if line.startswith("posenc: ")]
    module = [name for name in commands.values() if name]
    assert output == [f"posenc: this needs {n}, which is not installed: pip install 'posenc[lab]'" for n in module]


def test_the_extras_are_those_of_the_package() -> None:
    # Part of Python from 3.11 on.
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra, modules in main.EXTRAS.items():
        names = [re.split("[<>=]", name)[0] for name in extras["optional-dependencies"][extra]]
        assert {name.removesuffix("-py").replace("-", "_") for name in names} == set(modules)
    assert extras["scripts"]["posenc"] == "posenc.__main__:main"


ESCAPES = "x\x1b[31m\x1b]0;title\x07\x9b1m\u202e\r"


@pytest.mark.parametrize(
    "command",
    [
        [ESCAPES],
        ["compare", "--" + ESCAPES],
        ["compare", "--steps", ESCAPES],
        ["compare", ESCAPES],
        ["compare", "--preset", ESCAPES],
        ["compare", "--tasks", ESCAPES],
        ["compare", "--tasks", "text", "--text", ESCAPES],
        ["compare", "--encodings", ESCAPES],
        ["compare", "--encodings", f"rotary(base='{ESCAPES}')"],
        ["compare", "--encodings", f"{ESCAPES}.py:Mine"],
        ["train", "rotary", "--task", "copy", "--out", f"short/{ESCAPES}"],
        ["report", ESCAPES],
        ["generate", ESCAPES],
        ["check", "alibi", "--promise", ESCAPES],
        ["list", ESCAPES],
        ["show", f"sinusoidal({ESCAPES}=1)"],
        ["inspect", ESCAPES],
        ["extend", ESCAPES, "--method", ESCAPES],
        ["convert", ESCAPES, "--out", ESCAPES],
    ],
)
def test_nothing_that_a_terminal_would_obey_comes_back(command: list[str], posenc, here: Path) -> None:
    (here / "short").write_text("")
    answer = posenc(*command)
    assert answer.code in (1, 2) and answer.err
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", answer.out + answer.err), answer


@pytest.mark.parametrize(
    "command",
    ["compare --encodings {}", "compare --tasks {}", "compare --preset {}", "report {}", "generate {}", "{}", "list {}",
     "check alibi --promise {}", "inspect {}", "compare --encodings {}.py:Mine",
     "compare --encodings rotary({}=1)", "compare --encodings rotary(layout={})", "convert {} --out x",
     "compare --tasks text --text {}", "extend {}", "show alibi --out {}"],
)  # fmt: skip
def test_a_message_quotes_little_of_a_long_input(command: str, posenc) -> None:
    answer = posenc(*command.format("a" * 15_000).split(" "))
    assert answer.code in (1, 2) and len(answer.err) < 1_500


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train rotary --d-model 64", "did you mean '--dim'"),
        ("train rotary --num-heads 4", "did you mean '--heads'"),
        ("compare --num-hidden-layers 2", "did you mean '--layers'"),
        ("compare --max-seq-len 9", "did you mean '--train-length'"),
        ("train rotary --attn-pdrop 0.1", "did you mean '--dropout'"),
    ],
)
def test_the_words_of_the_field_are_answered(posenc, line: str, words: str) -> None:
    answer = posenc(*line.split())
    assert answer.code == 2 and words in answer.err
