"""`posenc board` and `posenc advise`: every encoding on every task, and what that says to a question."""

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from posenc.cli.options import Folder, Names, Number, OneSpec, Specs, Taking, Whole


@dataclass(kw_only=True)
class Board:
    """Run every encoding on every task, and write the pages.

    Example: posenc board --encodings mine.py:Mine --tasks copy recall --out runs/board

    An encoding is run on the tasks that it has a meaning for. Rows that are there, in the folder or in the repository's
    own board, are never made again: the same command goes on where it stopped. Ctrl-C loses the runs in hand.
    """

    tasks: Names = ()
    """Tasks, such as copy "recall(symbols=16)". Default: all that ship."""
    encodings: Specs = ()
    """Specs, with commas between where layers differ; path/to/mine.py:Mine for your own. Default: all."""
    seconds: Number = None
    """Begin no run after so many seconds."""
    workers: Whole = None
    """Runs at once. Default: one for each core."""
    out: Path = Path("runs/board")
    """The folder for rows and pages; docs/board in the repository is its own board."""

    def run(self) -> int:
        from posenc.cli import terminal
        from posenc.lab.board import page, run

        board = run.Board(self.out, self.tasks, self.encodings)
        with terminal.live() as show:
            failures = run.fill(board, seconds=self.seconds, workers=self.workers, show=show)
        for path in page.write(board.rows(), board.costs(), self.out):
            terminal.say(f"Page: {path}")
        return 1 if failures else 0


@dataclass(kw_only=True)
class Advise:
    """Say which encodings carry as far as you need.

    Example: posenc advise --task "find a fact in a long document" --train-length 512 --test-length 2048

    It answers from the nearest tasks of the board, with five rows of it, and says what was not measured.
    """

    task: Annotated[str, Taking("TEXT")]
    """A task of the board, or what your model has to do, in words."""
    train_length: int
    """How long your sequences are in training."""
    test_length: int
    """How long they get afterwards."""
    bidirectional: bool = False
    """Whether every token sees all tokens, as in encoders. Default: only those before it."""
    axes: int = 1
    """1 for sequences, 2 for images."""
    encoding: OneSpec = None
    """The encoding that you have, to hear whether to keep it."""
    rows: Folder = None
    """The folder of a board. Default: the repository's own."""
    all: bool = False
    """Print every encoding that carries, and what becomes of the others."""
    json: bool = False
    """Print the answer as JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.board import costs, rows, run
        from posenc.lab.board.advice import MOST_ROWS, NOT_MEASURED, Question, advise, nearest

        asked = (self.task, self.train_length, self.test_length, not self.bidirectional, self.axes, self.encoding)
        folder = self.rows or run.COMMITTED
        question = Question(*asked)
        # Of all rows those are read that are asked for.
        found = advise(question, rows.there(folder, partial(nearest, question)), costs.read(folder))
        if self.json:
            print(json.dumps(asdict(found)))
            return
        most = None if self.all else MOST_ROWS
        terminal.say(found.answer)
        if found.table:
            terminal.table(found.headings, found.table[:most])
        terminal.say("\n".join([*(found.sentences if self.all else found.sentences[:1]), NOT_MEASURED]))
        if len(found.table) > MOST_ROWS and not self.all:
            terminal.say(f"{len(found.table) - MOST_ROWS} more: --all")
