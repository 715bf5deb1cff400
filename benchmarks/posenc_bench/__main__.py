"""Measure another posenc with this benchmark, to have both from one occasion; the options are those of posenc bench.

PYTHONPATH=path/to/other/src:benchmarks python -m posenc_bench rotation models --out runs/before
"""

import argparse
import sys
from pathlib import Path

from posenc_bench import report, run

parser = argparse.ArgumentParser(prog="python -m posenc_bench", description=(__doc__ or "").splitlines()[0])
parser.add_argument("what", nargs="*", choices=[*run.WHAT, []])
parser.add_argument("--shapes", choices=run.SHAPES, default="quick")
parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--out", type=Path, default=Path("runs/bench"))
given = parser.parse_args()
result = run.bench(
    given.what, shapes=given.shapes, with_peers=given.peers, doing=lambda words: print(words, file=sys.stderr)
)
for path in report.save(result, given.out):
    print(f"Written: {path}")
