"""`posenc board` and `posenc advise`: results of every encoding on every task, and advice from them."""

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from posenc.cli.options import Folder, Names, Number, OneSpec, Specs, Usage, Whole


@dataclass(kw_only=True)
class Board:
    """Run every encoding on every task, and write the pages.

    Example: posenc board --encodings mine.py:Mine --tasks copy recall --out runs/board

    An encoding runs on the tasks that make sense for it. Rows in the folder or in the repository's own board are never
    computed again: the same command continues where it stopped. Ctrl-C loses the unfinished runs.
    """

    tasks: Names = ()
    """Tasks, such as copy "recall(symbols=16)". Default: all that ship."""
    encodings: Specs = ()
    """Specs, with commas between where layers differ; path/to/mine.py:Mine for your own. Default: all."""
    seconds: Number = None
    """Start no run after this many seconds."""
    workers: Whole = None
    """Runs at the same time. Default: one per core."""
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

    The answer comes from the most similar tasks of the board, with five of its rows, and names what was not measured.
    """

    task: Annotated[str, Usage("TEXT")]
    """A task of the board, or your own task in words."""
    train_length: int
    """The length of your sequences in training."""
    test_length: int
    """Their length after training."""
    bidirectional: bool = False
    """Every token sees all tokens, as in encoders. Default: only earlier tokens."""
    axes: int = 1
    """1 for sequences, 2 for images."""
    encoding: OneSpec = None
    """Your present encoding, to learn whether to keep it."""
    rows: Folder = None
    """The folder of a board. Default: the repository's own."""
    all: bool = False
    """Print every encoding that reaches your length, and the results of the others."""
    json: bool = False
    """Print the answer as JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.board import costs, rows, run
        from posenc.lab.board.advice import MAX_ROWS, NOT_MEASURED, Question, advise, nearest_tasks

        query = (self.task, self.train_length, self.test_length, not self.bidirectional, self.axes, self.encoding)
        folder = self.rows or run.COMMITTED
        question = Question(*query)
        # Read only the rows that the question needs.
        advice = advise(question, rows.read_existing(folder, partial(nearest_tasks, question)), costs.read(folder))
        if self.json:
            print(json.dumps(asdict(advice)))
            return
        max_rows = None if self.all else MAX_ROWS
        terminal.say(advice.answer)
        if advice.table:
            terminal.table(advice.headings, advice.table[:max_rows])
        terminal.say("\n".join([*(advice.sentences if self.all else advice.sentences[:1]), NOT_MEASURED]))
        if len(advice.table) > MAX_ROWS and not self.all:
            terminal.say(f"{len(advice.table) - MAX_ROWS} more: --all")
