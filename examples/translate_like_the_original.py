"""Translating with the original transformer's recipe, small: an encoder-decoder with sinusoidal positions.

The languages are those of the task `translation`: subject, object, verb becomes verb, subject, object, with adjectives
behind their nouns. So the decoder has to learn a dictionary and where to look. From the original (Vaswani et al. 2017,
arXiv:1706.03762): post-norm blocks, one table for source, target and output, tokens scaled by sqrt(dim),
Adam(0.9, 0.98), a rate that warms up and then falls as 1/sqrt(step), label smoothing 0.1 (section 5), and the average
of the last five checkpoints at the end (section 6.1).

What to look for: the rate at its peak and at the end; exact match of the last checkpoint against that of the average.
At this size the rate is still high when training ends, so a single checkpoint is noisy, and averaging them helps.
The picture is the last layer's attention from the target to the source: the verb, then each phrase backwards, so two
short anti-diagonals.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from posenc import EncoderDecoder
from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.experiments import recipes
from posenc.lab.tasks import END, task_of

TASK = task_of("translation")
DIM, HEADS, LAYERS, WARMUP = 64, 4, 2, 400
LONGEST = 6


def exact_match(model: EncoderDecoder, length: int) -> float:
    """The share of held-out sources that greedy generation translates without a mistake."""
    batch = TASK.batch(length, 256, torch.Generator().manual_seed(1000 + length))
    outputs = model.generate(batch.source, batch.ids[:, :1], length + 1, eos_token_id=END)[:, 1:]
    return (outputs == batch.targets).all(1).float().mean().item() if outputs.shape == batch.targets.shape else 0.0


def average(checkpoints: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([checkpoint[name] for checkpoint in checkpoints]).mean(0) for name in checkpoints[0]}


def main(out: Path, quick: bool) -> None:
    steps = 10 if quick else 1600
    torch.manual_seed(0)
    model = EncoderDecoder(TASK.vocab, DIM, HEADS, LAYERS, encoding="sinusoidal")
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=recipes.ORIGINAL_BETAS, eps=recipes.ORIGINAL_EPS)
    scheduler = LambdaLR(optimizer, lambda step_index: recipes.original_rate(step_index, DIM, WARMUP))
    generator = torch.Generator().manual_seed(1)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

    began, highest, checkpoints = time.process_time(), 0.0, []
    lengths = TASK.lengths(LONGEST)
    for step in range(1, steps + 1):
        length = lengths[int(torch.randint(len(lengths), (1,), generator=generator))]
        batch = TASK.batch(length, 64, generator)
        logits = model(batch.source, batch.ids)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), label_smoothing=0.1)
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

    last = [exact_match(model, length) for length in lengths]
    if checkpoints:
        model.load_state_dict(average(checkpoints))
    average_scores = [exact_match(model, length) for length in lengths]
    rows = [
        [name, *(f"{m:.1%}" for m in scores), f"{sum(scores) / len(scores):.1%}"]
        for name, scores in (("last checkpoint", last), ("average of five", average_scores))
    ]
    headers = ["exact match at length", *map(str, lengths), "mean"]
    terminal.table(headers, rows, "\nGreedy generation with a KV cache, 256 held-out sources for each length")

    batch = TASK.batch(LONGEST, 1, torch.Generator().manual_seed(5))
    outputs = model.generate(batch.source, batch.ids[:, :1], LONGEST + 1, eos_token_id=END)
    words, right, answer = (TASK.decode(ids[0].tolist()) for ids in (batch.source, batch.targets, outputs))
    print(f"\n{words} -> {answer}   (right: {right})")

    with torch.inference_mode():
        _, weights = model(batch.source, batch.ids, need_weights=True)
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
