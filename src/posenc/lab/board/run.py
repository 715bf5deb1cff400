"""Filling the board: runs what is missing until it is told to stop, and keeps a row of each run that is over."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from posenc import checks
from posenc.lab import store
from posenc.lab.board import costs, rows, scope
from posenc.lab.board.costs import Costs
from posenc.lab.board.plan import plan
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.results.summary import Record
from posenc.lab.runs import record
from posenc.lab.sweeps.sweep import Sweep, run_all

IN_CHECKOUT, IN_WHEEL = Path(__file__).resolve().parents[4] / "docs" / "board", Path(__file__).with_name("committed")
COMMITTED = IN_CHECKOUT if IN_CHECKOUT.is_dir() else IN_WHEEL
"""The board of the repository; a wheel brings its rows along."""

WORK = "work"
"""The folder of full records, beside the rows that they become."""


@dataclass(frozen=True)
class Board:
    """What is asked of the board. Empty tuples ask for everything.

    out          the folder for rows and page
    base         a board whose rows are read too, and never made again
    """

    out: Path
    tasks: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = scope.SEEDS
    base: Path = COMMITTED

    def pairs(self) -> list[tuple[str, str]]:
        """(task, encoding), as far as they have a meaning. Raises ValueError for what there is not."""
        return scope.with_meaning(self.tasks or scope.tasks(), self.encodings)

    def rows(self) -> list[Record]:
        """Those of both folders; of those with one key that of `out`."""
        return list({row["key"]: row for folder in (self.base, self.out) for row in rows.read(folder)}.values())

    def costs(self) -> Costs:
        """Those of both folders; what both have is that of `out`."""
        return {**costs.read(self.base), **costs.read(self.out)}

    def plan(self) -> dict[str, dict[str, Experiment]]:
        return plan(self.pairs(), self.rows(), self.seeds)


def fill(
    board: Board,
    *,
    seconds: float | None = None,
    workers: int | None = None,
    show: Callable[[Sweep], None] = lambda sweep: None,
) -> dict[str, str]:
    """Run what is missing, for so many seconds at most; the same call goes on where an earlier one stopped.

    When the time is over, what has begun ends; on KeyboardInterrupt what is in hand is lost, and nothing else. Returns
    why runs failed, by their keys.

    Raises ValueError for what there is not, InUse where another process is at work there, CannotWrite.
    """
    checks.whole("workers", 1 if workers is None else workers, 1), checks.at_least("seconds", seconds, 0)
    until = math.inf if seconds is None else time.monotonic() + seconds
    work, pairs = board.out / WORK, board.pairs()
    with ExitStack() as stack:
        for folder in (board.out, work):
            stack.enter_context(store.held(folder))
        stack.callback(rows.fold, work, board.out)
        costs.add(board.out, pairs, board.costs())
        for stage in ("search", "evidence"):
            rows.fold(work, board.out)
            # What the search has found decides on the rates of the evidence.
            missing = board.plan()[stage]
            run_all([*missing.values()], work, workers=workers, show=show, more=lambda: time.monotonic() < until)
    return {key: failure.words for key, failure in record.failures(work).items()}
