"""Terminal output: live progress on stderr, tables on stdout.

All text goes through `terminal_text`, which removes control characters: names may come from foreign files. Without
rich, everything is plain text.
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

from posenc.foreign import shorten, visible

if TYPE_CHECKING:
    from posenc.lab.sweeps.sweep import Progress, Sweep
    from posenc.testing import Verdict

# A file or a pipe has no width unless COLUMNS gives one: rows are not wrapped.
WIDTH = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 300


class PlainConsole:
    """The used part of rich's Console, for when rich is not installed."""

    is_terminal = False

    def __init__(self, *, stderr: bool = False, width: int | None = None, **ignored_options: Any) -> None:
        self.stderr, self.width = stderr, width or shutil.get_terminal_size().columns

    def print(self, words: str, **ignored_options: Any) -> None:
        print(words, file=sys.stderr if self.stderr else sys.stdout)


def console(**options: Any) -> Any:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return PlainConsole(**options)
    return Console(highlight=False, **options)


STDOUT, STDERR = console(width=WIDTH), console(stderr=True)

FAST_SECONDS, SLOW_SECONDS = 10, 60
"""Seconds between two lines of progress in a log: after a run has ended, and otherwise."""


def terminal_text(words: object, style: str = "") -> Any:
    """Return words without markup and control characters."""
    if isinstance(STDOUT, PlainConsole):
        return visible(str(words))
    from rich.text import Text

    return Text(visible(str(words)), style)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table on stdout."""
    if isinstance(STDOUT, PlainConsole):
        lines = [list(map(terminal_text, line)) for line in (headers, *rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        say("\n".join([*filter(None, [title]), *("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)]))
        return
    from rich.table import Table

    rich_table = Table(
        title=None if title is None else terminal_text(title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for header in headers:
        rich_table.add_column(terminal_text(header), overflow="fold")
    for row in rows:
        rich_table.add_row(*map(terminal_text, row))
    if STDOUT.is_terminal:
        STDOUT.print(rich_table)
        return
    with STDOUT.capture() as capture:
        STDOUT.print(rich_table)
    # A file would keep the blanks that fill the last column.
    STDOUT.print(terminal_text("\n".join(line.rstrip() for line in capture.get().splitlines())), soft_wrap=True)


def index(title: str, entries: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of names under a title, each with its words, cut to the width of the terminal."""
    widest = max([19, *(len(name) for name, _ in entries)])
    return [title.upper(), *(shorten(f"{name:<{widest}}  {words}", STDOUT.width) for name, words in entries)]


def wrap(name: str, words: str) -> list[str]:
    """Return a name and its words, wrapped to the width of the terminal."""
    return textwrap.wrap(words, STDOUT.width, initial_indent=f"{name:<19}  ", subsequent_indent=" " * 21)


def pages(lines: Iterable[str], *, pager: bool = True) -> None:
    """Print lines on stdout, through a pager if the terminal has fewer lines.

    The pager is PAGER, else less.
    """
    text = terminal_text("\n".join(lines))
    with (
        STDOUT.pager()
        if pager and STDOUT.is_terminal and len(text.plain.splitlines()) >= STDOUT.height
        else nullcontext()
    ):
        STDOUT.print(text, soft_wrap=True)


def verdict(result: "Verdict", command: str) -> None:
    """Print the verdict on one promise on stdout, with advice if it is broken.

    command  repeats the test
    """
    promise = result.promise.replace("_", " ")
    if result.good:
        say(f"{result.word:<10}  {promise:<40}  {result.message}".rstrip())
        return
    say(f"{result.word:<10}  {promise}")
    say(f"    found: {result.message}")
    say(f"    to do: {result.advice}")
    say(f"    again: {command}")


def markdown(text: str) -> None:
    """Print Markdown on stdout: formatted and paged in a terminal, else unchanged."""
    if not STDOUT.is_terminal:
        write_text(text)
        return
    from rich.markdown import Markdown

    with STDOUT.pager() if text.count("\n") >= STDOUT.height else nullcontext():
        STDOUT.print(Markdown(visible(text), hyperlinks=False))


def tables(entries: Iterable[tuple[Sequence[str], Sequence[Sequence[str]], str]]) -> None:
    """Print tables on stdout, each with its headers, rows and title."""
    for headers, lines, title in entries:
        table(headers, lines, title)
        say()


@contextmanager
def show_status(words: str) -> Generator[None]:
    """Show on stderr what is being done, in a terminal only, and remove it at the end."""
    if not STDERR.is_terminal:
        yield
        return
    with STDERR.status(terminal_text(words)):
        yield


def say(words: str = "") -> None:
    """Print plain text on stdout."""
    STDOUT.print(terminal_text(words), soft_wrap=True)


def note(words: str) -> None:
    """Print plain text on stderr."""
    STDERR.print(terminal_text(words), soft_wrap=True)


def progress(words: str) -> None:
    """Print progress on stderr; in a log with the time of day."""
    note(words if STDERR.is_terminal else f"{time.strftime('%H:%M:%S')}  {words}")


def open_page(page: Path | str) -> None:
    """Open a file or an address in the browser; without a desktop, print the address."""
    address = page if isinstance(page, str) else page.resolve().as_uri()
    desktop = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not (desktop and webbrowser.open(address)):
        hint = "" if isinstance(page, str) else f", or copy {page} to where there is one"
        note(f"No browser opened here: open {address} in one{hint}")


def write_text(text: str) -> None:
    """Print a text on stdout unchanged, but without control characters in a terminal."""
    print(visible(text) if sys.stdout.isatty() else text)


@contextmanager
def live() -> Generator[Callable[["Sweep"], None]]:
    """Yield a function that shows the progress of a sweep.

    In a terminal it is one line that changes; in a log a line with the time of day, at most every ten seconds after
    runs have ended and every minute otherwise. A failed run gets a line at once.
    """
    last, last_count, failure_keys = -math.inf, 0, set[tuple[str, str]]()

    def line(sweep: "Sweep") -> None:
        nonlocal last, last_count
        for key, reason in sweep.failures.items() - failure_keys:
            progress(f"failed: {sweep.runs[key].failure(reason).words}")
            failure_keys.add((key, reason))
        if status is not None:
            status.update(terminal_text(progress_text(sweep)))
            return
        count = sweep.done_count + len(sweep.failures)
        if time.monotonic() - last < (FAST_SECONDS if count > last_count else SLOW_SECONDS) and count < len(sweep.runs):
            return
        last, last_count = time.monotonic(), count
        progress(progress_text(sweep))

    with STDERR.status("") if STDERR.is_terminal else nullcontext() as status:
        yield line


def progress_text(sweep: "Sweep") -> str:
    """Return how many runs are done, the time left, and the running ones as text."""
    from posenc.lab.results.summary import duration

    rest, failures = sweep.seconds_left(), len(sweep.failures)
    when = f", {failures} failed" if failures else ""
    when += "" if rest is None or sweep.done_count + failures == len(sweep.runs) else f", about {duration(rest)} left"
    running = "; ".join(describe_run(run) for run in sweep.runs.values() if run.state in ("running", "measuring"))
    return f"{sweep.done_count} of {len(sweep.runs)} runs done{when}  {running}".rstrip()


def describe_run(run: "Progress") -> str:
    """Return one run as text."""
    loss = "" if run.loss is None else f" loss {run.loss:.3f}"
    score = "" if run.score is None else f" exact match {run.score:.1%}"
    if run.score is not None and run.task == "text":
        score = f" bits per byte {run.score:.3f}"
    return f"{run.task} {run.spec} seed {run.seed}: step {run.how_far}{loss}{score}"
