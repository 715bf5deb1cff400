"""Attention maps of one trained model, with its positions and with them taken away.

A small decoder with rotary learns to copy (cab| -> cab.), then the very same weights read one sequence twice: as
trained, and with the encoding replaced by nothing.

What to look for: with position, heads of the last layer look a fixed number of tokens back, a clean diagonal below the
separator: there stands the symbol to say next. Without position the diagonals are gone, and with them the answers: a
head can still find a kind of token, but not the one that stands at a given distance.
"""

import argparse
from pathlib import Path

import torch

from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.evaluation import evaluate
from posenc.lab.experiments import recipes
from posenc.lab.experiments.models import without_position
from posenc.lab.runs import record, train


def main(out: Path, quick: bool) -> None:
    length = 4 if quick else 8
    recipe = recipes.recipe("copy", "rotary", train_length=length, **({"steps": 20} if quick else {}))
    run = train.start(recipe)

    def say(run: train.Run) -> None:
        if run.step % 200 == 0:
            last = run.curve[-1]
            print(f"step {run.step:>4}  loss {last['loss']:.3f}  exact match {last['score']:.1%}", flush=True)

    train.train(run, say)
    print(f"step {run.step:>4}, {run.cpu_s:.1f} CPU s")

    intact = evaluate.exact_match(run.model, run.task, length, shortest=length)
    plain = without_position(run.model, run.experiment, run.task)
    score_without = evaluate.exact_match(plain, run.task, length, shortest=length)

    # The weights of one sequence: {"tokens": words, "with": [layer][head][query][key], "without": the same}.
    maps = record.attention_record(run)
    rows = []
    for name, weight_maps, match in (
        ("with position", maps["with"], intact),
        ("position removed", maps["without"], score_without),
    ):
        last = torch.tensor(weight_maps[-1])  # [heads, T, T]
        # The query at place length + 1 + i (behind the separator) has to find symbol i, at place 1 + i.
        target = last[:, torch.arange(length) + length + 1, torch.arange(length) + 1].mean(1)
        heads = " ".join(f"{weight:.2f}" for weight in target)
        rows.append([name, f"{match.exact_match:.1%}", f"{match.token_accuracy:.1%}", heads])
    headers = ["", "exact match", "tokens right", "mean weight on the symbol to say, heads of the last layer"]
    terminal.table(headers, rows, "\nThe same weights, read twice")

    fig = figures.attention({"experiment": recipe.to_dict(), "attention": maps})
    print("Picture:", figures.save(fig, out / "attention_maps.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
