"""Translating with the original transformer's recipe, small: an encoder-decoder with sinusoidal positions.

The language is made up: each word of the source becomes one word of the target, and the order is reversed. So the
decoder has to learn a dictionary and where to look. From the original (Vaswani et al. 2017, arXiv:1706.03762):
post-norm blocks, one table for source, target and output, tokens scaled by sqrt(dim), Adam(0.9, 0.98), a rate that
warms up and then falls as 1/sqrt(step), label smoothing 0.1 (section 5), and the average of the last five checkpoints
at the end (section 6.1).

What to look for: the rate at its peak and at the end; exact match of the last checkpoint against that of the average.
At this size the rate is still high when training ends, so a single checkpoint is noisy, and averaging is worth a lot.
The picture is the last layer's attention from the target to the source: reversed, so an anti-diagonal.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import EncoderDecoder, terminal
from posenc.lab import figures, recipes

PADDING, START, END = 0, 1, 2
WORDS = 26
DIM, HEADS, LAYERS, WARMUP = 64, 4, 1, 400
LONGEST = 8
SOURCE, TARGET = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

# The dictionary: source word i is target word DICTIONARY[i].
DICTIONARY = torch.randperm(WORDS, generator=torch.Generator().manual_seed(7))


def pairs(length: int, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Source ids [rows, length], and target ids between START and END."""
    words = torch.randint(WORDS, (rows, length), generator=generator)
    target = 3 + WORDS + DICTIONARY[words.flip(1)]
    return 3 + words, F.pad(F.pad(target, (1, 0), value=START), (0, 1), value=END)


def exact_match(model: EncoderDecoder, length: int) -> float:
    """The share of held-out sources that greedy generation translates without a mistake."""
    source, target = pairs(length, 256, torch.Generator().manual_seed(1000 + length))
    said = model.generate(source, target[:, :1], length + 1, stop=END)
    return (said == target).all(1).float().mean().item() if said.shape == target.shape else 0.0


def average(checkpoints: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([checkpoint[name] for checkpoint in checkpoints]).mean(0) for name in checkpoints[0]}


def main(out: Path, quick: bool) -> None:
    steps = 10 if quick else 1600
    torch.manual_seed(0)
    model = EncoderDecoder(3 + 2 * WORDS, DIM, HEADS, LAYERS, encoding="sinusoidal")
    optimizer, scheduler = recipes.original(model, DIM, WARMUP)
    generator = torch.Generator().manual_seed(1)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

    began, highest, checkpoints = time.process_time(), 0.0, []
    for step in range(1, steps + 1):
        length = int(torch.randint(2, LONGEST + 1, (1,), generator=generator))
        source, target = pairs(length, 64, generator)
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        rate = scheduler.get_last_lr()[0]
        highest = max(highest, rate)
        optimizer.step()
        scheduler.step()
        if step > steps - 250 and step % 50 == 0:
            checkpoints.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        if step % max(steps // 8, 1) == 0:
            print(f"step {step:>4}  rate {rate:.5f}  loss {loss.item():.3f}", flush=True)
    print(f"{time.process_time() - began:.1f} CPU s; the rate rose to {highest:.5f}, and ended at {rate:.5f}")

    lengths = range(2, LONGEST + 1)
    last = [exact_match(model, length) for length in lengths]
    if checkpoints:
        model.load_state_dict(average(checkpoints))
    averaged = [exact_match(model, length) for length in lengths]
    rows = [
        [name, *(f"{m:.1%}" for m in found), f"{sum(found) / len(found):.1%}"]
        for name, found in (("last checkpoint", last), ("average of five", averaged))
    ]
    headers = ["exact match at length", *map(str, lengths), "mean"]
    terminal.table(headers, rows, "\nGreedy generation with a KV cache, 256 held-out sources for each length")

    source, target = pairs(LONGEST, 1, torch.Generator().manual_seed(5))
    said = model.generate(source, target[:, :1], LONGEST + 1, stop=END)
    words = "".join(SOURCE[i - 3] for i in source[0])
    right = "".join(TARGET[i - 3 - WORDS] for i in target[0, 1:-1])
    answer = "".join(TARGET[i - 3 - WORDS] if i >= 3 + WORDS else "." for i in said[0, 1:])
    print(f"\n{words} -> {answer}   (right: {right}.)")

    with torch.inference_mode():
        _, weights = model(source, target[:, :-1], weights=True)
    fig = figures.attention_maps(
        weights[-1]["cross"][0].numpy(), None, f"From the target (rows) to the source: {words}"
    )
    print("Picture:", figures.save(fig, out / "translate_attention.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
