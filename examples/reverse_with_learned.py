"""Reversing a sequence with a learned encoding, in an encoder.

Every output place has to name the token that stands at the mirrored place of the input. The content of a token says
nothing about where to look: only position does. A table with one trained vector for each place is enough.

What to look for: exact match (the whole sequence right) stays near zero while single tokens are being learned, then
rises quickly to 100 %. The attention map shows how: in the end place i looks at place n - 1 - i, which is the
anti-diagonal.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

from posenc import Encoder
from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.appearance import LIGHT

VOCAB, TOKENS, DIM, HEADS, LAYERS = 26, 12, 64, 4, 1
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@figures.styled
def draw(curve: list[tuple[int, float, float]]) -> Figure:
    step, losses, matches = zip(*curve, strict=True)
    fig = figures.figure(8, 3.8, "Reversing with a learned encoding")
    left, right = fig.subplots(1, 2)
    left.plot(step, losses, marker="o", color=LIGHT[0])
    left.set(title="loss falls", xlabel="step", ylabel="cross-entropy, nats", ylim=(0, None))
    right.plot(step, [100 * match for match in matches], marker="o", color=LIGHT[1])
    right.set(title="exact match rises", xlabel="step", ylabel="held-out sequences right, %", ylim=(-3, 103))
    return fig


def main(out: Path, quick: bool) -> None:
    steps = 20 if quick else 120
    torch.manual_seed(0)
    encoder = Encoder(VOCAB, DIM, HEADS, LAYERS, encoding="learned(std=0.5)", max_len=TOKENS)
    read_out = nn.Linear(DIM, VOCAB)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *read_out.parameters()], lr=3e-3, weight_decay=0.01)
    generator = torch.Generator().manual_seed(1)
    held_out = torch.randint(VOCAB, (512, TOKENS), generator=torch.Generator().manual_seed(2))

    def exact_match() -> float:
        with torch.inference_mode():
            return (read_out(encoder(held_out)).argmax(-1) == held_out.flip(1)).all(1).float().mean().item()

    began = time.process_time()
    curve = []
    for step in range(1, steps + 1):
        ids = torch.randint(VOCAB, (64, TOKENS), generator=generator)
        loss = F.cross_entropy(read_out(encoder(ids)).flatten(0, 1), ids.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(steps // 24, 1) == 0 or step == steps:
            curve.append((step, loss.item(), exact_match()))
            print(f"step {step:>4}  loss {loss.item():.4f}  exact match {curve[-1][2]:.1%}", flush=True)
    print(f"{time.process_time() - began:.1f} CPU s")

    words = LETTERS[:TOKENS]
    ids = torch.tensor([[LETTERS.index(letter) for letter in words]])
    with torch.inference_mode():
        hidden, weights = encoder(ids, need_weights=True)
        answer = "".join(LETTERS[i] for i in read_out(hidden)[0].argmax(-1).tolist())
    weight_on_mirror = weights[0][0].flip(-1).diagonal(dim1=-2, dim2=-1)  # [heads, places]: weight on n - 1 - i
    print(f"{words} -> {answer}")
    terminal.table(
        ["head", "mean weight on the mirrored place", "of the best place"],
        [[str(h), f"{row.mean():.3f}", f"{row.max():.3f}"] for h, row in enumerate(weight_on_mirror)],
        "\nThe anti-diagonal in numbers",
    )

    print("Picture:", figures.save(draw(curve), out / "reverse_with_learned.png"))
    title = "Reversing with a learned encoding"
    fig = figures.attention_maps(weights[0][0].numpy(), list(words), title)
    print("Picture:", figures.save(fig, out / "reverse_with_learned_attention.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
