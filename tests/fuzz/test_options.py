"""Options of every verb with values of any make: done, or refused in one short sentence, and never a traceback."""

import contextlib
import io
from pathlib import Path
from random import Random
from typing import get_type_hints

import pytest
from fuzz.driver import hold, short_and_long

from posenc import cli, testing
from posenc.cli import arguments
from posenc.foreign import visible
from posenc.lab.description import pictures
from posenc.lab.runs import train
from posenc.lab.sweeps import compare

EVERY = [verb for verb in cli.VERBS if verb not in ("board", "list", "order")]
QUICK = [verb for verb in EVERY if verb not in ("extend", "convert", "inspect", "show")]
"""Without the verbs that import transformers or draw pictures."""

SHORT = 40

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
    """What costs time or writes far away is left out; everything that looks at options before it is not."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("some words\n")
    (tmp_path / "mine.py").write_text("from posenc import Encoding\nclass Mine(Encoding):\n    'x'\n")
    monkeypatch.chdir(tmp_path)
    stop = ValueError("understood")

    def done(*_, **__):
        raise stop

    stopped = (compare, "run_all"), (train, "train"), (testing, "verdicts"), (pictures.Drawn, "save")
    for module, name in stopped:
        monkeypatch.setattr(module, name, done)


def value(random: Random, kind: str) -> str:
    near = {"int": NUMBERS, "float": (*NUMBERS, *FLOATS)}.get(kind, WORDS)
    return random.choice(near if random.random() < 0.85 else (*NUMBERS, *FLOATS, *WORDS))


def command(random: Random, verb: str) -> list[str]:
    """A verb with a few of its options, each with a value of its kind, of another, or none."""
    given = [verb]
    chosen = get_type_hints(cli.VERBS[verb])
    options = arguments.options_of(cli.VERBS[verb])
    for name in random.sample(list(chosen), min(len(chosen), random.choice((1, 2, 2, 3, 5)))):
        words = str(chosen[name])
        kind = "bool" if "bool" in words else "int" if "int" in words else "float" if "float" in words else "word"
        values = [value(random, kind) for _ in range(random.choice((0, 1, 1, 1, 2)) if kind != "bool" else 0)]
        given += [arguments.flag(name), *values] if name in options else values
    return given


def answer(typed: list[str]) -> int:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(typed)
        except SystemExit as left:
            code = left.code
    said = err.getvalue()
    assert code in (0, 1, 2) and visible(said) == said and len(said) < 20_000, (code, said)
    assert code == 0 or said, "it failed without a word"
    if code:
        raise ValueError(said.splitlines()[-1][:900])
    return code


@short_and_long(SHORT, 1_000)
def test_whatever_its_options_a_verb_ends_well_or_says_why(seeds):
    def read(seed):
        random = Random(seed)
        answer(command(random, random.choice(QUICK if seed < SHORT else EVERY)))

    assert hold(read, seeds, refused=ValueError, cpu=30.0, memory=2 << 30)["refused"]
