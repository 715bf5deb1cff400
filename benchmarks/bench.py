"""Measure the cost of encodings against the machine's limit, other libraries and the project's goals.

    python3 run.py bench rotation attention --shapes quick --out runs/bench
    PYTHONPATH=path/to/other/src python benchmarks/bench.py rotation models --out runs/before

Results are checked against float64 before they are timed; the exit code is 1 if one of ours is wrong. The second
command measures another version of posenc with the same benchmark, so that both are measured at the same time.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from posenc_bench import comparison, report, run


def arguments(command_line: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py bench", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("what", nargs="*", help=f"{', '.join(run.CASE_NAMES)}; default: all")
    add("--shapes", choices=run.SHAPES, default="quick", help="quick: the decisive shapes, in minutes; full: all")
    add("--threads", nargs="+", type=int, default=[1], help="one thread is timed by CPU time, several by wall time")
    add("--peers", action=argparse.BooleanOptionalAction, default=True, help="whether other libraries are measured")
    add("--compare", nargs=2, type=Path, help="two results (bench.json), before and after, side by side")
    add("--out", type=Path, default=Path("runs/bench"), help="the folder for results, tables and the plot")
    add("--json", action="store_true", help="print the results as JSON instead of words and tables")
    options = parser.parse_args(command_line)
    if options.compare and options.what:
        parser.error(f"--compare measures nothing, got {options.what[0]!r} to measure; leave it out")
    return options


def main(command_line: list[str] | None = None) -> int:
    options = arguments(command_line)
    if options.compare:
        paths = comparison.save(*map(report.read, options.compare), options.out)
    else:
        from posenc.cli import terminal

        show: Any = None if options.json else terminal.tables
        sizes = {"shapes": options.shapes, "threads": tuple(options.threads), "with_peers": options.peers}
        result = run.bench(tuple(options.what), **sizes, show=show, doing=terminal.progress)
        paths = report.save(result, options.out)
        if options.json:
            print(json.dumps(result))
            return 0
        terminal.table(*report.goals(result["rows"]), "Goals")
        terminal.say("\n".join(["", "What we lose at:", *report.losses(result["rows"])]))
    for path in paths:
        print(f"Written: {path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"run.py bench: {error}")
