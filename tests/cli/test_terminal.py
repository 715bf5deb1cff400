"""What reaches a terminal: words, and nothing that it would obey."""

import io
import pydoc
import re
import sys
import time

import pytest
from rich.console import Console

from posenc.cli import terminal
from posenc.lab.sweeps.sweep import Progress, Sweep
from posenc.testing import Verdict

ESCAPES = "x\x1b[31m\x1b]0;title\x07\x9b1m\u202e\r[bold]y[/bold]"
CONTROL_CODES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def sweep() -> Sweep:
    return Sweep({"key": Progress("key", ESCAPES, ESCAPES, 0, 10, 5, 1.0, 0.5, "running")})


def all_words() -> None:
    terminal.say(ESCAPES)
    terminal.note(ESCAPES)
    terminal.table([ESCAPES], [[ESCAPES]], ESCAPES)
    terminal.pages(terminal.index(ESCAPES, [(ESCAPES, ESCAPES)]) + terminal.wrap(ESCAPES, ESCAPES))
    terminal.progress(ESCAPES)
    for words in (True, False):
        terminal.verdict(Verdict(ESCAPES, ESCAPES, words, message=ESCAPES, advice=ESCAPES), ESCAPES)
    with terminal.live() as show:
        show(sweep())
    with terminal.show_status(ESCAPES):
        pass


def test_names_are_shown_letter_by_letter(capsys: pytest.CaptureFixture[str]) -> None:
    all_words()
    answer = capsys.readouterr()
    assert not CONTROL_CODES.search(answer.out + answer.err)
    # What looks like markup is text too.
    assert answer.out.count("[bold]y[/bold]") >= 9 and answer.err.count("[bold]y[/bold]") == 4


def test_data_keeps_its_letters_except_on_a_terminal(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.write_text("a\tb\x0c\x1b[0m")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    terminal.write_text("a\tb\x0c\x1b[0m")
    mark = "\N{REPLACEMENT CHARACTER}"
    assert capsys.readouterr().out == f"a\tb\x0c\x1b[0m\na\tb{mark}{mark}[0m\n"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A terminal of 40 columns and 10 lines."""
    stream = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(terminal, "STDOUT", Console(file=stream, width=40, height=10, force_terminal=True))
    return stream


@pytest.mark.parametrize(("lines", "pager", "is_paged"), [(9, True, False), (10, True, True), (10, False, False)])
def test_what_is_longer_than_the_screen_goes_through_a_pager(
    lines: int, pager: bool, is_paged: bool, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager_input: list[str] = []
    monkeypatch.setattr(pydoc, "pager", pager_input.append)
    terminal.pages([f"line {number}" for number in range(lines)], pager=pager)
    output = "".join(pager_input) if is_paged else screen.getvalue()
    assert [line.rstrip() for line in output.splitlines()] == [f"line {number}" for number in range(lines)]
    assert bool(pager_input) == is_paged and (screen.getvalue() == "") == is_paged


def test_nothing_goes_through_a_pager_where_there_is_no_terminal(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pydoc, "pager", None)
    terminal.pages([str(number) for number in range(500)])
    assert capsys.readouterr().out.splitlines()[-1] == "499"


def test_markdown_is_set_for_reading_in_a_terminal_and_kept_in_a_pipe(
    screen: io.StringIO, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source: list[str] = []
    monkeypatch.setattr(pydoc, "pager", source.append)
    text = "# Title\n\nA **bold** word.\n\n```python\nx = 1\n```\n" + "\nmore\n" * 5
    terminal.markdown(text + "\x1b]0;title\x07")
    output = "".join(source)
    assert (
        "A bold word." in output and "x = 1" in output and not re.search(r"[#*`]", output) and screen.getvalue() == ""
    )
    assert not CONTROL_CODES.search(output)
    terminal.markdown("# Title")
    assert len(source) == 1 and "Title" in screen.getvalue()
    monkeypatch.setattr(terminal, "STDOUT", Console(file=io.StringIO()))
    terminal.markdown(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_a_line_of_an_index_ends_where_the_terminal_does(screen: io.StringIO) -> None:
    title, short, long = terminal.index("names", [("a", "few words"), ("b", "word " * 20)])
    assert title == "NAMES" and short == f"{'a':<19}  few words" and long.endswith("...") and len(long) == 40
    assert all(len(line) <= 40 for line in terminal.wrap("NAMES", "one, two, " * 20))


def test_a_table_in_a_file_has_no_blanks_at_the_ends_of_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.table(["name", "words"], [["a", "few"], ["b", "many more words"]])
    assert all(line == line.rstrip() for line in capsys.readouterr().out.splitlines())


def test_progress_in_a_log_has_the_time_of_day_and_comes_now_and_then(capsys, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    runs = {name: Progress(name, "copy", "rotary", 0, 10, 5, 1.0, 0.5, "running") for name in "abc"}
    with terminal.live() as show:
        for now[0], count in ((0, 0), (30, 0), (61, 0), (65, 1), (72, 1), (73, 2), (83, 2), (84, 3)):
            for name in "abc"[:count]:
                runs[name].state = "done"
            show(Sweep(runs))
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d  \d of 3 runs done", line) for line in lines)
    assert [line[10] for line in lines] == ["0", "0", "1", "2", "3"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_run_that_fails_is_told_of_at_once_and_once_and_is_not_done(is_terminal: bool, monkeypatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(terminal, "STDERR", Console(file=stream, force_terminal=is_terminal, width=100))
    runs = {name: Progress(name, name, "copy", 0, 10, 5, state="running") for name in "abc"}
    runs["b"].state = "failed"
    state = Sweep(runs, failures={"b": "its loss is nan"})
    with terminal.live() as show:
        show(state)
        show(state)
    assert stream.getvalue().count("failed: b on copy, seed 0: its loss is nan\n") == 1
    assert terminal.progress_text(state).startswith("0 of 3 runs done, 1 failed")


def test_progress_on_a_terminal_has_no_time(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "STDERR", Console(file=(stream := io.StringIO()), force_terminal=True, width=80))
    terminal.progress("step 5")
    assert "step 5" in stream.getvalue() and not re.search(r"\d\d:\d\d", stream.getvalue())
