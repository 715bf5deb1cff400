"""What reaches a terminal: words, and nothing that it would obey."""

import re
import sys

import pytest

from posenc import terminal
from posenc.lab.sweeps.sweep import Progress, Sweep
from posenc.testing import Verdict

ESCAPES = "x\x1b[31m\x1b]0;title\x07\x9b1m\u202e\r[bold]y[/bold]"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def sweep() -> Sweep:
    return Sweep({"key": Progress("key", ESCAPES, ESCAPES, 0, 10, 5, 1.0, 0.5, "running")})


def all_words() -> None:
    terminal.say(ESCAPES)
    terminal.note(ESCAPES)
    terminal.table([ESCAPES], [[ESCAPES]], ESCAPES)
    terminal.cards(ESCAPES, [(ESCAPES, [ESCAPES, ESCAPES])])
    for kept in (True, False):
        terminal.verdict(Verdict(ESCAPES, ESCAPES, kept, message=ESCAPES, advice=ESCAPES))
    terminal.OUT.print(terminal.drawing(sweep()))
    with terminal.live() as show:
        show(sweep())
    with terminal.doing(ESCAPES):
        pass


def test_names_are_shown_letter_by_letter(capsys: pytest.CaptureFixture[str]) -> None:
    all_words()
    answer = capsys.readouterr()
    assert not OBEYED.search(answer.out + answer.err)
    # What looks like markup is text too.
    assert answer.out.count("[bold]y[/bold]") >= 9 and answer.err.count("[bold]y[/bold]") == 3


def test_data_keeps_its_letters_except_on_a_terminal(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.data("a\tb\x0c\x1b[0m")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    terminal.data("a\tb\x0c\x1b[0m")
    mark = "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().out == f"a\tb\x0c\x1b[0m\na\tb{mark}{mark}[0m\n"
