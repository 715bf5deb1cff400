"""What a person sees in the terminal: live progress on stderr, tables on stdout.

Everything goes through `shown`, which leaves nothing that a terminal would obey: names come from files of others too.
Where rich is not installed, everything is plain text.
"""

import math
import os
import shutil
import sys
import textwrap
import time
import webbrowser
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.foreign import shortened, visible

if TYPE_CHECKING:
    from posenc.lab.sweeps.sweep import Progress, Sweep
    from posenc.testing import Verdict

# A file or a pipe has no width unless COLUMNS says one: rows go out whole.
WIDTH = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 300


class Plain:
    """What is used here of rich's Console, where rich is not installed."""

    is_terminal = False

    def __init__(self, *, stderr: bool = False, width: int | None = None, **unused: Any) -> None:
        self.stderr, self.width = stderr, width or shutil.get_terminal_size().columns

    def print(self, words: str, **unused: Any) -> None:
        print(words, file=sys.stderr if self.stderr else sys.stdout)


def console(**options: Any) -> Any:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return Plain(**options)
    return Console(highlight=False, **options)


OUT, ERR = console(width=WIDTH), console(stderr=True)

SOON, SELDOM = 10, 60
"""Seconds between two lines of progress in a log: where something has ended, and where nothing has."""


def shown(words: object, style: str = "") -> Any:
    """Words as a terminal shows them letter by letter: no markup, and no control characters."""
    if isinstance(OUT, Plain):
        return visible(str(words))
    from rich.text import Text

    return Text(visible(str(words)), style)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table on stdout."""
    if isinstance(OUT, Plain):
        lines = [list(map(shown, line)) for line in (headers, *rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        say("\n".join([*filter(None, [title]), *("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)]))
        return
    from rich.table import Table

    drawn = Table(
        title=None if title is None else shown(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for header in headers:
        drawn.add_column(shown(header), overflow="fold")
    for row in rows:
        drawn.add_row(*map(shown, row))
    if OUT.is_terminal:
        OUT.print(drawn)
        return
    with OUT.capture() as kept:
        OUT.print(drawn)
    # A file keeps the blanks that fill the last column.
    OUT.print(shown("\n".join(line.rstrip() for line in kept.get().splitlines())), soft_wrap=True)


def index(title: str, entries: Sequence[tuple[str, str]]) -> list[str]:
    """Names under a title, each on one line with as much of its words as the terminal is wide."""
    widest = max([19, *(len(name) for name, _ in entries)])
    return [title.upper(), *(shortened(f"{name:<{widest}}  {words}", OUT.width) for name, words in entries)]


def in_lines(name: str, words: str) -> list[str]:
    """A name and words that need more than the width of the terminal, on as many lines as they take."""
    return textwrap.wrap(words, OUT.width, initial_indent=f"{name:<19}  ", subsequent_indent=" " * 21)


def pages(lines: Iterable[str], *, pager: bool = True) -> None:
    """Print lines on stdout; through the user's pager where that is a terminal with fewer lines.

    The pager is what PAGER says, else less.
    """
    text = shown("\n".join(lines))
    with OUT.pager() if pager and OUT.is_terminal and len(text.plain.splitlines()) >= OUT.height else nullcontext():
        OUT.print(text, soft_wrap=True)


def verdict(found: "Verdict", again: str) -> None:
    """Print what came out of one promise on stdout, as soon as it is known; what is broken with what to do.

    again  the command that tries it once more
    """
    promise = found.promise.replace("_", " ")
    if found.good:
        say(f"{found.word:<10}  {promise:<40}  {found.message}".rstrip())
        return
    say(f"{found.word:<10}  {promise}")
    say(f"    found: {found.message}")
    say(f"    to do: {found.advice}")
    say(f"    again: {again}")


def markdown(text: str) -> None:
    """Print Markdown on stdout: set for reading where that is a terminal, through its pager, else as it is."""
    if not OUT.is_terminal:
        data(text)
        return
    from rich.markdown import Markdown

    with OUT.pager() if text.count("\n") >= OUT.height else nullcontext():
        OUT.print(Markdown(visible(text), hyperlinks=False))


def tables(found: Iterable[tuple[Sequence[str], Sequence[Sequence[str]], str]]) -> None:
    """Print tables on stdout, each with its headers, its lines and its title."""
    for headers, lines, title in found:
        table(headers, lines, title)
        say()


@contextmanager
def doing(words: str) -> Generator[None]:
    """Say on stderr what is being done, in a terminal only, and take it away when it is done."""
    if not ERR.is_terminal:
        yield
        return
    with ERR.status(shown(words)):
        yield


def say(words: str = "") -> None:
    """Print plain words on stdout."""
    OUT.print(shown(words), soft_wrap=True)


def note(words: str) -> None:
    """Print plain words on stderr."""
    ERR.print(shown(words), soft_wrap=True)


def progress(words: str) -> None:
    """Say on stderr how far something is; in a log, which is read later, with the time of day."""
    note(words if ERR.is_terminal else f"{time.strftime('%H:%M:%S')}  {words}")


def open_page(page: Path | str) -> None:
    """Open a file or an address in the reader's browser; where there is no desktop, say where it is."""
    address = page if isinstance(page, str) else page.resolve().as_uri()
    desktop = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not (desktop and webbrowser.open(address)):
        copied = "" if isinstance(page, str) else f", or copy {page} to where there is one"
        note(f"No browser opened here: open {address} in one{copied}")


def data(text: str) -> None:
    """Print a text on stdout as it is; what a terminal would obey is left out where stdout is one."""
    print(visible(text) if sys.stdout.isatty() else text)


@contextmanager
def live() -> Generator[Callable[["Sweep"], None]]:
    """A function that shows how a sweep stands: one line that changes in a terminal, else lines with the time of day.

    Such a line comes when runs have ended, at most every ten seconds, and once in a minute in any case. Of a run that
    fails there is a line at once.
    """
    last, done, told = -math.inf, 0, set[tuple[str, str]]()

    def line(sweep: "Sweep") -> None:
        nonlocal last, done
        for key, reason in sweep.failures.items() - told:
            progress(f"failed: {sweep.runs[key].failure(reason).words}")
            told.add((key, reason))
        if status is not None:
            status.update(shown(standing(sweep)))
            return
        over = sweep.done + len(sweep.failures)
        if time.monotonic() - last < (SOON if over > done else SELDOM) and over < len(sweep.runs):
            return
        last, done = time.monotonic(), over
        progress(standing(sweep))

    with ERR.status("") if ERR.is_terminal else nullcontext() as status:
        yield line


def standing(sweep: "Sweep") -> str:
    """How many runs are over, how long the rest will take, and which are running."""
    from posenc.lab.results.summary import duration

    left, failed = sweep.seconds_left(), len(sweep.failures)
    when = f", {failed} failed" if failed else ""
    when += "" if left is None or sweep.done + failed == len(sweep.runs) else f", about {duration(left)} left"
    running = "; ".join(words(run) for run in sweep.runs.values() if run.state in ("running", "measuring"))
    return f"{sweep.done} of {len(sweep.runs)} runs done{when}  {running}".rstrip()


def words(run: "Progress") -> str:
    """One run in words."""
    loss = "" if run.loss is None else f" loss {run.loss:.3f}"
    score = "" if run.score is None else f" exact match {run.score:.1%}"
    if run.score is not None and run.task == "text":
        score = f" bits per byte {run.score:.3f}"
    return f"{run.task} {run.spec} seed {run.seed}: step {run.how_far}{loss}{score}"
