"""How far three encodings carry beyond the length that they were trained on.

The same small decoder is trained on windows of 32 bytes of text, and then asked about windows up to 8 times as long.

What to look for: sinusoidal is defined at any length and yet breaks at once; rotary sees only differences and breaks
too, because differences beyond the trained length are as new as positions are; ALiBi stays flat. Flat does not mean
that the longer window is used: the sliding columns predict the same bytes with more and more text before them, and
with ALiBi they hardly move.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from posenc.cli import terminal
from posenc.lab import figures
from posenc.lab.evaluation import evaluate
from posenc.lab.experiments import recipes
from posenc.lab.runs import train

SPECS = ("sinusoidal", "rotary", "alibi")


@figures.styled
def draw(curves: dict[str, list[tuple[int, float]]]) -> Figure:
    fig = figures.figure(8, 4.2, "Text: perplexity beyond the trained length")
    ax = fig.add_subplot(xlabel="window, bytes", ylabel="perplexity / perplexity at the trained length", yscale="log")
    for place, (spec, points) in enumerate(curves.items()):
        ax.plot(*zip(*points, strict=True), marker=figures.MARKERS[place], color=figures.color(spec), label=spec)
    lengths = [length for length, _ in curves[SPECS[0]]]
    ax.set_xscale("log", base=2)
    ax.set_xticks(lengths, [str(length) for length in lengths])
    figures.plain_log(ax.yaxis)
    figures.mark_trained(ax, lengths[:1])
    ax.legend()
    return fig


def main(out: Path, quick: bool) -> None:
    changes = {"steps": 10, "train_length": 16, "test_lengths": (32, 64)} if quick else {"steps": 500}
    rows, curves = [], {}
    for spec in SPECS:
        recipe = recipes.recipe("text", spec, **changes)
        run = train.train(train.start(recipe))
        scores = evaluate.by_length(run)
        print(f"{spec}: {run.step} steps, {run.cpu_s:.1f} CPU s", flush=True)
        curves[spec] = [(point["length"], point["perplexity_ratio"]) for point in scores]
        for point in scores:
            numbers = [point[name] for name in ("bits_per_byte", "perplexity_ratio", "sliding_bits_per_byte")]
            rows.append([spec, str(point["length"]), f"{point['factor']:g}x", *(f"{number:.3f}" for number in numbers)])
    headers = ["encoding", "window", "of trained", "bits per byte", "perplexity ratio", "bits per byte, sliding"]
    terminal.table(headers, rows, "\nBeyond the trained length (one seed)")

    print("Picture:", figures.save(draw(curves), out / "extrapolation.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
