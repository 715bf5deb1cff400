"""What a person sees in the terminal: live progress on stderr, tables on stdout.

Everything goes through `shown`, which leaves nothing that a terminal would obey: names come from files of others too.
"""

import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from posenc.foreign import visible

if TYPE_CHECKING:
    from posenc.lab.sweeps.sweep import Progress, Sweep
    from posenc.testing import Verdict

# A file or a pipe has no width: rows go out whole.
OUT = Console(highlight=False, width=None if sys.stdout.isatty() else 300)
ERR = Console(stderr=True, highlight=False)


def shown(words: object, style: str = "") -> Text:
    """Words as a terminal shows them letter by letter: no markup, and no control characters."""
    return Text(visible(str(words)), style)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table on stdout."""
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
    OUT.print(drawn)


def cards(title: str, entries: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print names on stdout, each with its lines of words beside it; the first line stands out."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    drawn.add_column(no_wrap=True, min_width=18)
    drawn.add_column(overflow="fold")
    for name, lines in entries:
        first, *rest = lines
        drawn.add_row(shown(name, "bold"), Text("\n").join([shown(first), *(shown(line, "dim") for line in rest)]))
    OUT.print(shown(title.upper(), "bold"))
    OUT.print(drawn)


def verdict(found: "Verdict") -> None:
    """Print what came out of one promise on stdout, as soon as it is known; what is broken with what to do."""
    promise = found.promise.replace("_", " ")
    if found.good:
        say(f"{found.word:<10}  {promise:<40}  {found.message}".rstrip())
        return
    say(f"{found.word:<10}  {promise}")
    say(f"    found: {found.message}")
    say(f"    to do: {found.advice}")
    say(f"    again: posenc check {shlex.quote(found.subject)} --promise {found.promise}")


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


def data(text: str) -> None:
    """Print a text on stdout as it is; what a terminal would obey is left out where stdout is one."""
    print(visible(text) if sys.stdout.isatty() else text)


@contextmanager
def live() -> Generator[Callable[["Sweep"], None]]:
    """A function that shows how a sweep stands: a live table in a terminal, else a line every ten seconds."""
    if ERR.is_terminal:
        with Live(console=ERR, refresh_per_second=4, transient=True) as screen:
            yield lambda sweep: screen.update(drawing(sweep))
        return
    last = 0.0

    def line(sweep: "Sweep") -> None:
        nonlocal last
        if time.monotonic() - last < 10 and sweep.done < len(sweep.runs):
            return
        last = time.monotonic()
        running = "; ".join(words(run) for run in sweep.runs.values() if run.state in ("running", "measuring"))
        note(f"{standing(sweep)}  {running}")

    yield line


def standing(sweep: "Sweep") -> str:
    """How many runs are over, and how long the rest will take."""
    from posenc.lab.results.summary import duration

    left = sweep.seconds_left()
    when = "" if left is None or sweep.done == len(sweep.runs) else f", about {duration(left)} left"
    return f"{sweep.done} of {len(sweep.runs)} runs done{when}"


def words(run: "Progress") -> str:
    """One run in words."""
    loss = "" if run.loss is None else f" loss {run.loss:.3f}"
    return f"{run.task} {run.spec} seed {run.seed}: step {run.how_far}{loss}{score(run)}"


def score(run: "Progress") -> str:
    if run.score is None:
        return ""
    return f" bits per byte {run.score:.3f}" if run.task == "text" else f" exact match {run.score:.1%}"


def drawing(sweep: "Sweep") -> Group:
    """The sweep as a table: what is running, what is done, what is to come."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in ("task", "encoding", "seed", "step", "loss", "score", ""):
        drawn.add_column(header)
    runs = list(sweep.runs.values())
    rows = [run for run in runs if run.state in ("running", "measuring")]
    rows += [run for run in runs if run.state in ("done", "failed")][-12:]
    for run in rows:
        loss = "" if run.loss is None else f"{run.loss:.3f}"
        cells = (run.task, run.spec, run.seed, run.how_far, loss, score(run).strip(), run.state)
        drawn.add_row(
            *map(shown, cells),
            style="" if run.state in ("running", "measuring") else "dim",
        )
    return Group(shown(standing(sweep), "bold"), drawn)
