"""A fixed encoding against learned ones, on a copy task in one bidirectional block.

The input of the block is a sequence of random tokens, embedded, with the position added. The target is the same
embeddings without the position: the block has to copy each token and take its position off again.

What to look for: the fixed table (sinusoidal) keeps its size from the first step to the last, so the block has to
learn to subtract it. Over a few positions its slow pairs hardly move, so there is less to tell apart than in a random
table of the same size, and its loss falls lower than that of a learned table that starts as large. A learned table
can also shrink (compare its size before and after), and started as small as BERT and GPT-2 start it, it hardly stands
in the way at all. A low loss says here that position does no harm, not that it is of use: the task needs none, as the
last run shows.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from posenc import Block, Positions
from posenc.cli import terminal
from posenc.lab import figures

DIM, HEADS, TOKENS, VOCAB = 32, 4, 16, 50

# The entries of a sinusoidal table have a mean square of 1/2: a learned one of deviation 0.7 starts at the same size.
SPECS = ("sinusoidal", "learned(std=0.7)", "learned(std=0.02)", "none")


def size(block: Block) -> float:
    """The root mean square of what the block adds for position."""
    with torch.no_grad():
        vectors = block.attention.encoding.embed(torch.zeros(1, TOKENS, DIM), Positions.count(TOKENS))
    return vectors.square().mean().sqrt().item()


def train(spec: str, steps: int) -> tuple[list[str], list[float]]:
    """One row of the table, and the loss at every step."""
    # The same seed before each part: every encoding meets the same tokens and the same embeddings.
    torch.manual_seed(0)
    block = Block(DIM, HEADS, encoding=spec, max_len=TOKENS, causal=False)
    initial_size = size(block)
    embeddings = torch.randn(VOCAB, DIM, generator=torch.Generator().manual_seed(1))
    tokens = torch.Generator().manual_seed(2)
    optimizer = torch.optim.Adam(block.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for step in range(1, steps + 1):
        x = embeddings[torch.randint(VOCAB, (32, TOKENS), generator=tokens)]
        loss = F.mse_loss(block(x), x)  # the block adds the position; the target has none
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % max(steps // 4, 1) == 0:
            print(f"{spec:<18} step {step:>4}  mean squared error {loss.item():.6f}", flush=True)
    parameters = sum(p.numel() for p in block.attention.encoding.parameters())
    tail = losses[-max(steps // 20, 1) :]
    errors = [f"{losses[0]:.4f}", f"{sum(tail) / len(tail):.6f}"]
    return [spec, str(parameters), *errors, f"{initial_size:.3f}", f"{size(block):.3f}"], losses


@figures.styled
def draw(curves: dict[str, list[float]]) -> Figure:
    fig = figures.figure(8, 4.2, "Copy in one bidirectional block")
    ax = fig.add_subplot(xlabel="step", ylabel="mean squared error", yscale="log")
    for spec, losses in curves.items():
        # The mean of ten steps, so that the lines can be told apart.
        smooth = torch.tensor(losses).unfold(0, 10, 1).mean(1)
        ax.plot(range(10, len(losses) + 1), smooth, label=spec, color=figures.color(spec))
    figures.plain_log(ax.yaxis)
    ax.legend()
    return fig


def main(out: Path, quick: bool) -> None:
    steps = 20 if quick else 600
    rows, curves = [], {}
    for spec in SPECS:
        row, curves[spec] = train(spec, steps)
        rows.append(row)

    headers = ["encoding", "parameters", "error at step 1", "error at the end", "size before", "size after"]
    terminal.table(headers, rows, "\nMean squared error, and the size of what is added (root mean square)")

    print("Picture:", figures.save(draw(curves), out / "fixed_against_learned.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
