"""A mini-GPT on real text, from first step to generated sample.

A decoder with rotary positions learns to predict the next byte of the Python standard library's own text (or of a
file of yours, with --text). The loop is plain PyTorch: draw windows, take the loss, step.

What to look for: the loss starts a little above ln 257 = 5.5 nats (every byte as likely as any other) and falls at once
to about 2.5, as the model learns which bytes are frequent and which follow which; then slowly on. The sample has the
look of Python and no sense. It is made through a KV cache, one token at a time; reading the whole text again for each
token gives the same tokens, at a cost that grows with the square of the length.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from posenc import Decoder
from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.appearance import LIGHT
from posenc.lab.texts import data

BOS, VOCAB = 256, 257
WINDOW, BATCH = 64, 16


def windows(source: data.JoinedPieces, generator: torch.Generator) -> torch.Tensor:
    """A batch of windows, each behind a beginning-of-sequence token."""
    start = torch.randint(0, len(source) - WINDOW, (BATCH,), generator=generator)
    ids = source.windows(start, WINDOW).long()
    return torch.cat((torch.full((BATCH, 1), BOS), ids), 1)


def loss_of(model: Decoder, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def sample(model: Decoder, prompt: str, tokens: int) -> tuple[str, float]:
    """What the model makes of a prompt, and the CPU seconds that took."""
    began = time.process_time()
    ids = torch.tensor([[BOS, *prompt.encode()]])
    out = model.generate(ids, tokens, temperature=0.7, top_k=20, seed=1)[0, 1:]
    return bytes(i for i in out.tolist() if i < 256).decode(errors="replace"), time.process_time() - began


def sample_slowly(model: Decoder, prompt: str, tokens: int) -> tuple[list[int], float]:
    """The likeliest tokens without a cache: the whole sequence is read again for each."""
    began = time.process_time()
    ids = torch.tensor([[BOS, *prompt.encode()]])
    with torch.inference_mode():
        for _ in range(tokens):
            ids = torch.cat((ids, model(ids)[:, -1:].argmax(-1)), 1)
    return ids[0].tolist(), time.process_time() - began


@figures.styled
def draw(curve: list[tuple[int, float, float]]) -> Figure:
    step, train_loss, held_out = zip(*curve, strict=True)
    fig = figures.figure(8, 4, "Mini-GPT on text")
    ax = fig.add_subplot(xlabel="step", ylabel="cross-entropy, nats per byte")
    ax.plot(step, train_loss, label="training text, mean since the last point", color=LIGHT[0])
    ax.plot(step, held_out, label="held-out files", color=LIGHT[1], marker="o")
    ax.legend()
    return fig


def main(out: Path, quick: bool, text: str | None) -> None:
    steps = 20 if quick else 900
    source = data.load_text(text)
    print(f"text: {source.name}, {len(source.train):,} bytes to train on, {len(source.test):,} held out")
    torch.manual_seed(0)
    model = Decoder(VOCAB, dim=64, heads=4, layers=2, encoding="rotary(base=1000)", max_len=WINDOW)
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters, {model.stack.encoding_of[0]}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(1)
    unseen = torch.cat([windows(source.test, torch.Generator().manual_seed(i)) for i in range(4)])

    began, losses, curve = time.process_time(), [], []
    for step in range(1, steps + 1):
        loss = loss_of(model, windows(source.train, generator))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step == 1 or step % max(steps // 15, 1) == 0:
            with torch.inference_mode():
                held_out = loss_of(model, unseen).item()
            curve.append((step, sum(losses) / len(losses), held_out))
            losses.clear()
            bits = held_out / math.log(2)
            print(
                f"step {step:>4}  loss {curve[-1][1]:.3f}  held out {held_out:.3f} ({bits:.3f} bits per byte)",
                flush=True,
            )
    print(f"{time.process_time() - began:.1f} CPU s")

    words, _ = sample(model, "def ", 20 if quick else 240)
    print(f"\nA sample, drawn at temperature 0.7 from the 20 likeliest bytes:\n{words}\n")

    rows = []
    for tokens in (8, 16) if quick else (64, 192, 448):
        began = time.process_time()
        fast = model.generate(torch.tensor([[BOS, *b"def "]]), tokens)[0].tolist()
        with_cache = time.process_time() - began
        slow, seconds_without = sample_slowly(model, "def ", tokens)
        agreeing = sum(a == b for a, b in zip(fast, slow, strict=True))
        rows.append([str(tokens), f"{with_cache:.2f}", f"{seconds_without:.2f}", f"{agreeing} of {len(fast)}"])
    headers = ["tokens", "CPU s with the cache", "CPU s without", "tokens that agree"]
    terminal.table(headers, rows, "The likeliest continuation of 'def '")
    print("Picture:", figures.save(draw(curve), out / "mini_gpt.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    parser.add_argument("--text", help="a text file, or a folder of them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick, arguments.text)
