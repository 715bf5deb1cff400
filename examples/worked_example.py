"""From words to the vectors that a transformer reads, number by number.

words -> ids -> token vectors + position vectors = combined vectors, at a width of four, so that every number fits on
the page.

What to look for: "the" stands in the sentence twice. Its id and its token vector are the same both times; the
position vector differs, and so does the sum. Position 0 is sin 0 = 0 and cos 0 = 1 in every pair. The first pair
moves by one radian a position, the second a hundred times more slowly.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from posenc import Positions, Sinusoidal, TokenPositionEmbedding
from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.description.worked_example import worked_example

WORDS = ("the", "dog", "bit", "the", "man")
DIM = 4


@figures.styled
def draw(tokens: Tensor, positions: Tensor, sums: Tensor) -> Figure:
    fig = figures.figure(9.5, 3.2, "token vectors + position vectors = combined vectors")
    for ax, vectors in zip(fig.subplots(1, 3), (tokens, positions, sums), strict=True):
        table = vectors.numpy()
        ax.imshow(table, cmap=figures.DIVERGING, vmin=-4, vmax=4, aspect="auto")
        for (p, channel), value in np.ndenumerate(table):
            ax.text(channel, p, f"{value:+.2f}", ha="center", va="center", fontsize=8)
        ax.set_xticks(range(DIM), [f"channel {channel}" for channel in range(DIM)], fontsize=7)
        ax.set_yticks(range(len(WORDS)), [f"{p}  {word}" for p, word in enumerate(WORDS)])
        ax.grid(visible=False)
    left, middle, right = fig.axes
    left.set_title("token vectors")
    middle.set_title("+ position vectors")
    right.set_title("= combined vectors")
    return fig


def main(out: Path, quick: bool) -> None:
    # Step by step, with the parts of the library.
    vocabulary = list(dict.fromkeys(WORDS))
    ids = torch.tensor([[vocabulary.index(word) for word in WORDS]])
    torch.manual_seed(0)
    embedding = TokenPositionEmbedding(len(vocabulary), DIM, encoding="sinusoidal")
    with torch.inference_mode():
        tokens = embedding.token_vectors(ids)[0]
        positions = Sinusoidal(DIM).table(Positions.count(len(WORDS)))[0]
        sums = embedding(ids)[0]
    print("ids:", ids[0].tolist())
    print("token + position == combined:", torch.equal(tokens + positions, sums))
    print("both 'the' have one token vector:", torch.equal(tokens[0], tokens[3]))
    print(f"and stand {(sums[0] - sums[3]).norm():.3f} apart once position is added\n")

    # In one call, as a table.
    headers, rows = worked_example(WORDS, DIM).table()
    terminal.table(headers, rows, f"Sinusoidal at {DIM} channels")

    print("Picture:", figures.save(draw(tokens, positions, sums), out / "worked_example.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="the same: this example is quick anyway")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
