"""Fill the board: run what is missing, and keep a row of each finished run."""

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
"""The board of the repository; wheels contain its rows."""

WORK_FOLDER = "work"
"""The folder of full records, beside the rows."""


@dataclass(frozen=True)
class Board:
    """The extent of a board; an empty tuple means all.

    out          the folder of rows and pages
    base         a board whose rows are read too, and not run again
    """

    out: Path
    tasks: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ()
    seeds: tuple[int, ...] = scope.SEEDS
    base: Path = COMMITTED

    def pairs(self) -> list[tuple[str, str]]:
        """Return the supported pairs (task, encoding). Raises ValueError for unknown names."""
        return scope.meaningful_pairs(self.tasks or scope.board_tasks(), self.encodings)

    def rows(self) -> list[Record]:
        """Return the rows of both folders; of two with the same key, that of `out`."""
        return list({row["key"]: row for folder in (self.base, self.out) for row in rows.read(folder)}.values())

    def costs(self) -> Costs:
        """Return the costs of both folders; of two for the same encoding, that of `out`."""
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
    """Run what is missing for at most so many seconds; the same call resumes.

    When the time is over, running runs finish; KeyboardInterrupt loses them. Returns the reasons of failed runs by key.

    Raises ValueError for unknown names, InUse if another process works in the folder, CannotWrite.
    """
    checks.whole("workers", 1 if workers is None else workers, 1), checks.at_least("seconds", seconds, 0)
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    work, pairs = board.out / WORK_FOLDER, board.pairs()
    with ExitStack() as stack:
        for folder in (board.out, work):
            stack.enter_context(store.locked_folder(folder))
        stack.callback(rows.fold, work, board.out)
        costs.add(board.out, pairs, board.costs())
        for stage in ("search", "evidence"):
            rows.fold(work, board.out)
            # The search decides the rates of the evidence.
            todo = board.plan()[stage]
            run_all([*todo.values()], work, workers=workers, show=show, go_on=lambda: time.monotonic() < deadline)
    return {key: failure.words for key, failure in record.failures(work).items()}
