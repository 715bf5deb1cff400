"""Commands with random options and values succeed, or fail with one short message and no traceback."""

import contextlib
import io
from pathlib import Path
from random import Random
from typing import get_type_hints

import pytest
from fuzz.driver import run_cases, short_and_long

from posenc import cli, testing
from posenc.cli import arguments
from posenc.foreign import visible
from posenc.lab.description import pictures
from posenc.lab.runs import train
from posenc.lab.sweeps import compare

ALL_VERBS = [verb for verb in cli.VERBS if verb not in ("board", "list", "order")]
QUICK_VERBS = [verb for verb in ALL_VERBS if verb not in ("extend", "convert", "inspect", "show")]
"""The verbs that neither import transformers nor draw figures."""

SHORT_SEEDS = 40

NUMBERS = ("0", "1", "2", "3", "8", "16", "-1", "2147483647", "2147483648", "9" * 23, "9" * 400, "-" + "9" * 30)
FLOATS = ("0.5", "nan", "inf", "-inf", "1e308", "1e-320", "1e999", "1_000", "0x10", "1e3")
WORDS = (
    *(
        "",
        " ",
        "-",
        "--",
        "none",
        "rotary",
        "alibi",
        "all",
        "full",
        "copy",
        "text",
        "yarn",
        "rotery",
        "half",
        "\x1b[31m",
    ),
    *(
        "\ud800",
        "päth",
        "a,b",
        "rotary,none",
        "mine.py:Mine",
        "nowhere.py:Mine",
        "folder",
        "file",
        "/dev/null",
        "/proc",
    ),
    *("a" * 300, "a" * 15_000, "../..", "folder/", "'", '"', "(", "rotary(", "x=y", "partial=0.5", "float32", "pose"),
)


@pytest.fixture(autouse=True)
def nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop each command after reading its options, before it trains or writes outside the folder."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("some words\n")
    (tmp_path / "mine.py").write_text("from posenc import Encoding\nclass Mine(Encoding):\n    'x'\n")
    monkeypatch.chdir(tmp_path)
    stop = ValueError("understood")

    def stop_here(*_, **__):
        raise stop

    slow_functions = (compare, "run_all"), (train, "train"), (testing, "verdicts"), (pictures.Gallery, "save")
    for module, name in slow_functions:
        monkeypatch.setattr(module, name, stop_here)


def value(random: Random, kind: str) -> str:
    candidates = {"int": NUMBERS, "float": (*NUMBERS, *FLOATS)}.get(kind, WORDS)
    return random.choice(candidates if random.random() < 0.85 else (*NUMBERS, *FLOATS, *WORDS))


def command(random: Random, verb: str) -> list[str]:
    """Return a verb with a few options, each with values of its type, another type, or none."""
    words_of_command = [verb]
    types = get_type_hints(cli.VERBS[verb])
    options = arguments.option_types(cli.VERBS[verb])
    for name in random.sample(list(types), min(len(types), random.choice((1, 2, 2, 3, 5)))):
        words = str(types[name])
        kind = "bool" if "bool" in words else "int" if "int" in words else "float" if "float" in words else "word"
        values = [value(random, kind) for _ in range(random.choice((0, 1, 1, 1, 2)) if kind != "bool" else 0)]
        words_of_command += [arguments.flag(name), *values] if name in options else values
    return words_of_command


def run_command(command_words: list[str]) -> int:
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            code = cli.main(command_words)
        except SystemExit as exit_error:
            code = exit_error.code
    message = stderr.getvalue()
    assert code in (0, 1, 2) and visible(message) == message and len(message) < 20_000, (code, message)
    assert code == 0 or message, "a command that fails must print a message"
    if code:
        raise ValueError(message.splitlines()[-1][:900])
    return code


@short_and_long(SHORT_SEEDS, 1_000)
def test_whatever_its_options_a_verb_ends_well_or_says_why(seeds):
    def read(seed):
        random = Random(seed)
        run_command(command(random, random.choice(QUICK_VERBS if seed < SHORT_SEEDS else ALL_VERBS)))

    assert run_cases(read, seeds, errors=ValueError, cpu=30.0, memory=2 << 30)["refused"]
