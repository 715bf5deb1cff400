"""A shift of position is a linear map: PE(p + k) = M_k PE(p), with one matrix M_k for every p.

Each pair (sin, cos) turns by k times its frequency, so M_k is made of 2 x 2 rotations along the diagonal.

What to look for: the largest error over a thousand positions is rounding. M_j M_k = M_(j+k), and M_(-k) undoes M_k.
This is what lets a model look a fixed number of tokens back, not a proof that it does: attention's logit has W
between the two encodings, and PE(p)' W PE(q) depends on p - q alone only if W commutes with these rotations, which
nothing enforces. The last line measures that. Rotary is what one gets by enforcing it.
"""

import argparse
from pathlib import Path

import torch

from posenc import Sinusoidal
from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.description.shift import shift_matrix

DIM = 8


def main(out: Path, quick: bool) -> None:
    encoding = Sinusoidal(DIM)
    table = encoding.table(1000, dtype=torch.float64)[0]
    rows = []
    for k in (1, 2, 10, 100):
        error = (table[:-k] @ shift_matrix(encoding, k).T - table[k:]).abs().max().item()
        rows.append([f"M_{k}", f"{error:.1e}"])
    headers = ["", "max |M_k PE(p) - PE(p + k)|"]
    terminal.table(headers, rows, f"The shift at {DIM} channels, positions 0 to 999, float64")

    composed_error = (shift_matrix(encoding, 2) @ shift_matrix(encoding, 3) - shift_matrix(encoding, 5)).abs().max()
    back = (shift_matrix(encoding, -7) @ shift_matrix(encoding, 7) - torch.eye(DIM, dtype=torch.float64)).abs().max()
    print(f"\nM_2 M_3 = M_5: error {composed_error:.1e};  M_-7 M_7 = 1: error {back:.1e}")

    # Logits of positions alone, through weights as an untrained attention has them: is a diagonal constant?
    torch.manual_seed(0)
    weight = torch.randn(DIM, DIM, dtype=torch.float64) / DIM**0.5
    for name, w in (("W = 1", torch.eye(DIM, dtype=torch.float64)), ("random W", weight)):
        logits = table[:64] @ w @ table[:64].T
        deviation = torch.stack([logits.diagonal(-d).std() for d in range(1, 32)]).mean()
        print(f"{name:<8}: logits at one distance spread by {deviation:.1e} on average")

    fig = figures.shift_matrix(shift_matrix(encoding, 1).numpy(), "M_1 with PE(p + 1) = M_1 PE(p)")
    print("Picture:", figures.save(fig, out / "linear_shift.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="the same: this example is quick anyway")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
