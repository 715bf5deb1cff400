"""What a person sees in the terminal: live progress on stderr, tables on stdout."""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from posenc.lab.sweep import Progress, Sweep

# A file or a pipe has no width: rows go out whole.
OUT = Console(highlight=False, width=None if sys.stdout.isatty() else 300)
ERR = Console(stderr=True, highlight=False)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """Print a table on stdout."""
    drawn = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for header in headers:
        drawn.add_column(header, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(str(cell)) for cell in row))
    OUT.print(drawn)


def say(words: str = "") -> None:
    """Print plain words on stdout."""
    OUT.print(Text(words), soft_wrap=True)


def note(words: str) -> None:
    """Print plain words on stderr."""
    ERR.print(Text(words), soft_wrap=True)


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
        print(f"{standing(sweep)}  {running}", file=sys.stderr, flush=True)

    yield line


def standing(sweep: "Sweep") -> str:
    """How many runs are over, and how long the rest will take."""
    left = sweep.seconds_left()
    when = "" if left is None or sweep.done == len(sweep.runs) else f", about {duration(left)} left"
    return f"{sweep.done} of {len(sweep.runs)} runs done{when}"


def words(run: "Progress") -> str:
    """One run in words."""
    loss = "" if run.loss is None else f" loss {run.loss:.3f}"
    return f"{run.task} {run.spec} seed {run.seed}: step {run.step}/{run.steps}{loss}{score(run)}"


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
    shown = [run for run in runs if run.state in ("running", "measuring")]
    shown += [run for run in runs if run.state in ("done", "failed")][-12:]
    for run in shown:
        loss = "" if run.loss is None else f"{run.loss:.3f}"
        drawn.add_row(
            run.task,
            Text(run.spec),
            str(run.seed),
            f"{run.step}/{run.steps}",
            loss,
            score(run).strip(),
            run.state,
            style="" if run.state in ("running", "measuring") else "dim",
        )
    return Group(Text(standing(sweep), style="bold"), drawn)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
