"""What attention knows about order: the same tokens in another order, with and without position.

An untrained stack reads a sequence, then the same tokens with all but the last one reordered. Two differences are
measured:

    equivariance   max |f(x)[perm] - f(x[perm])|: zero if reordered tokens give the same outputs, reordered
    last token     max |f(x)[last] - f(x[perm])[last]|: zero if the last token cannot tell the order of the others

What to look for, without position: bidirectional attention is equivariant at any depth (not invariant: the outputs
move with their tokens). A causal stack tells its last token nothing about the order with one layer, but something
with two: the second layer sees prefixes that differ. So "without position a transformer reads a bag of words" is true
of encoders, and of decoders of one layer only. With position every difference is far above rounding.
"""

import argparse
from pathlib import Path

import torch

from posenc.cli import terminal
from posenc.lab.description.describe import order_table
from posenc.lab.evaluation.order import order_tests

SPECS = ("sinusoidal", "rotary", "alibi")


def main(out: Path, quick: bool) -> None:
    results = {spec: order_tests(spec) for spec in (SPECS[:1] if quick else SPECS)}
    terminal.table(*order_table(results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="unused: this example prints a table")
    parser.add_argument("--quick", action="store_true", help="one encoding only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
