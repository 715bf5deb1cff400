"""Add a position to a token's vector, or concatenate the two? The same table of sines and cosines in three ways.

    added                       x + PE(p)
    concatenated and projected  W [x, PE(p)] = W_1 x + W_2 PE(p): a sum again, of two projections that are learned
    concatenated                the last quarter of x makes room for a table of that width

What to look for: the first lines print that the projection of a concatenation is a sum, to rounding. So adding loses
nothing that a projection would keep, and what is left is a question of training, which a comparison answers. A model
that concatenates has that many channels fewer for its tokens, or is that much wider.

    posenc compare --tasks reverse repeat --encodings sinusoidal examples/add_or_concatenate.py:ProjectedConcatenation
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from posenc import Encoder, Encoding, Positions, Sinusoidal
from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.appearance import LIGHT

VOCAB, TOKENS, DIM, HEADS = 26, 12, 64, 4


class ProjectedConcatenation(Encoding):
    """Concatenate sines and cosines to each token's vector, and project both back to its width.

    x -> W [x, PE(p)],   W [dim, 2 dim]

    dim  width of the embeddings

    Source: this example, 2026.
    """

    source = "This example, 2026"

    def __init__(self, dim: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.sines = Sinusoidal(dim)
        self.projection = nn.Linear(2 * dim, dim, bias=False, device=device, dtype=dtype)

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        table = self.sines.encode(at).to(x)
        return self.projection(torch.cat((x, table.expand_as(x)), -1))


class Concatenation(Encoding):
    """Give the last channels of each token's vector to sines and cosines.

    x -> [x_0 ... x_(dim - width - 1), PE(p)],   PE of `width` channels

    dim    width of the embeddings
    width  channels that position gets; default: a quarter

    Source: this example, 2026.
    """

    source = "This example, 2026"

    def __init__(self, dim: int, width: int | None = None) -> None:
        super().__init__()
        self.width = max(2, dim // 4) if width is None else width
        self.sines = Sinusoidal(self.width)

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        table = self.sines.encode(at).to(x)
        return torch.cat((x[..., : -self.width], table.expand(*x.shape[:-1], -1)), -1)


def train(encoding: Encoding, steps: int) -> list[float]:
    """The loss at every step of an encoder that learns to reverse twelve letters."""
    torch.manual_seed(0)
    encoder = Encoder(VOCAB, DIM, HEADS, 1, encoding=encoding)
    read_out = nn.Linear(DIM, VOCAB)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *read_out.parameters()], lr=3e-3)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        ids = torch.randint(VOCAB, (64, TOKENS), generator=generator)
        loss = F.cross_entropy(read_out(encoder(ids)).flatten(0, 1), ids.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@figures.styled
def draw(curves: dict[str, list[float]]) -> Figure:
    fig = figures.figure(8, 4.2, "Reversing twelve letters, position added or concatenated")
    ax = fig.add_subplot(xlabel="step", ylabel="cross-entropy, nats")
    for place, (name, losses) in enumerate(curves.items()):
        ax.plot(range(1, len(losses) + 1), losses, label=name, color=LIGHT[place])
    ax.legend()
    return fig


def main(out: Path, quick: bool) -> None:
    torch.manual_seed(0)
    x, at, projection = torch.randn(2, TOKENS, DIM), Positions.count(TOKENS), ProjectedConcatenation(DIM)
    of_tokens, of_positions = projection.projection.weight.chunk(2, -1)
    with torch.inference_mode():
        sums = x @ of_tokens.T + projection.sines.table(at) @ of_positions.T
        print(f"W [x, PE] and W_1 x + W_2 PE differ by at most {(projection(x) - sums).abs().max():.1e}")

    ways = {
        "added": Sinusoidal(DIM),
        "concatenated and projected": projection,
        "concatenated": Concatenation(DIM),
    }
    curves = {name: train(encoding, 20 if quick else 300) for name, encoding in ways.items()}
    terminal.table(
        ["", "loss at step 1", "at the end"],
        [[name, f"{losses[0]:.3f}", f"{losses[-1]:.4f}"] for name, losses in curves.items()],
    )
    print("Picture:", figures.save(draw(curves), out / "add_or_concatenate.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the picture")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
