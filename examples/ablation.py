"""What a trained model loses when its positions are removed, shuffled, shifted or swapped.

Four decoders learn to say one symbol as often as the prompt does (aaa| -> aaa.). Nothing is trained again: only the
positions that the encodings see at test time are changed.

What to look for: shifting all positions by the same amount does nothing to rotary and to ALiBi, which see differences
alone; sinusoidal meets vectors that it never saw, and a learned table reads rows that training never visited. Swapped
neighbours change every difference by a little: too much for rotary, whose fast pairs tell neighbours apart, and little
to ALiBi, whose bias they hardly move. Shuffled positions are no position at all.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.evaluation.ablate import ablate
from posenc.lab.experiments import recipes
from posenc.lab.runs import train

SPECS = ("sinusoidal", "learned", "rotary", "alibi")


@figures.styled
def draw(results: dict[str, dict[str, float | None]]) -> Figure:
    kinds = list(results[SPECS[0]])
    fig = figures.figure(8, 4.2, "The same model with its positions changed at test time")
    ax = fig.add_subplot(ylabel="exact match, %", ylim=(0, 112))
    for place, (spec, scores) in enumerate(results.items()):
        left = [i + 0.2 * (place - 1.5) for i in range(len(kinds))]
        heights = [100 * (score or 0) for score in scores.values()]
        bars = ax.bar(left, heights, width=0.18, label=spec, color=figures.color(spec))
        ax.bar_label(bars, ["?" if score is None else f"{100 * score:.0f}" for score in scores.values()], fontsize=7)
    ax.set_xticks(range(len(kinds)), kinds)
    fig.legend(loc="outside lower center", ncols=4)
    return fig


def main(out: Path, quick: bool) -> None:
    changes = {"steps": 10, "train_length": 4} if quick else {"evaluate_every": 500}
    results: dict[str, dict[str, float | None]] = {}
    for spec in SPECS:
        run = train.train(train.start(recipes.recipe("repeat", spec, **changes)))
        results[spec] = ablate(run)
        print(f"{spec}: {run.step} steps, {run.cpu_s:.1f} CPU s", flush=True)

    kinds = list(results[SPECS[0]])
    rows = [
        [
            spec if scores["intact"] >= train.LEARNED_SCORE else f"{spec} (not learned)",
            *("cannot be asked" if score is None else f"{score:.1%}" for score in scores.values()),
        ]
        for spec, scores in results.items()
    ]
    terminal.table(["encoding", *kinds], rows, "\nExact match at the trained length (one seed)")

    print("Picture:", figures.save(draw(results), out / "ablation.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
