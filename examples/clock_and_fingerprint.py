"""What a sinusoidal position looks like: as the hands of many clocks, and as a fingerprint.

Each pair of channels (sin, cos) is the tip of a clock hand that turns at its own speed. All hands together tell the
position, as hours, minutes and seconds tell the time.

What to look for: the first pair is the fastest (6.28 positions to a turn); the slowest falls short of 2 pi times the
base, because the exponent is 2k/dim. Only pairs that complete a turn within the trained length can say on their own
where a token is; the table counts them. The fingerprints of neighbours differ in the left channels only.
"""

import argparse
from pathlib import Path

import torch

from posenc import Sinusoidal
from posenc.cli import terminal
from posenc.lab import figures

DIM, LENGTH, POSITION = 32, 128, 21


def main(out: Path, quick: bool) -> None:
    encoding = Sinusoidal(DIM)
    table = encoding.table(LENGTH, dtype=torch.float64)[0]
    waves = encoding.wavelengths

    rows = [
        [f"pair {k}", f"{wave:,.2f}", f"{LENGTH / wave:.2f}", f"{POSITION / wave % 1 * 360:.0f}"]
        for k, wave in enumerate(waves.tolist())
    ]
    headers = [
        "",
        "wavelength (positions)",
        f"turns in {LENGTH} positions",
        f"hand at position {POSITION} (degrees)",
    ]
    terminal.table(headers, rows, f"{encoding} at {DIM} channels")
    print(f"\n{int((waves <= LENGTH).sum())} of {len(waves)} pairs complete a turn within {LENGTH} positions")
    print(f"the slowest wavelength is {waves[-1]:,.0f} positions; 2 pi base is {2 * torch.pi * encoding.base:,.0f}")
    norms = table.norm(dim=1)
    print(f"the length of every row is sqrt(dim / 2) = {(DIM / 2) ** 0.5:.6f}: {norms.min():.6f} to {norms.max():.6f}")
    similarity = table @ table[0]
    rises = int((similarity[1:] > similarity[:-1]).sum())
    print(f"the dot product with position 0 is not monotone: it rises at {rises} of {LENGTH - 1} steps\n")

    pictures = {
        "clock": figures.clock(encoding.frequencies.numpy(), POSITION, f"Position {POSITION} as clock hands"),
        "fingerprint": figures.fingerprint(table.numpy(), [0, 1, 2, 21, 22, 127], "Fingerprints of six positions"),
        "heatmap": figures.heatmap(table.numpy(), "Sinusoidal: one row for each position"),
        "wavelengths": figures.spectrum(waves.numpy(), None, LENGTH, "Wavelengths of the pairs", "", "positions"),
        "similarity": figures.similarity_matrix(table.numpy(), "Cosine between positions"),
    }
    for name, figure in pictures.items():
        print("Picture:", figures.save(figure, out / f"sinusoidal_{name}.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="the same: this example is quick anyway")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
