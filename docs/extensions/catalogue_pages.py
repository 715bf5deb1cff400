"""Pages that are made from the catalogue while the site is built: one for each encoding, and one for each other kind.

They lie in docs/encodings and docs/lessons, and are not kept.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from docstrings import plain, warning
from matplotlib.figure import Figure
from sphinx.application import Sphinx

import posenc
from posenc import coordinate_maps, kernels, schedules, standalone
from posenc.encoding.formulas import equation_lines
from posenc.encodings.rotations import plain_frequencies
from posenc.lab.board import costs, rows, scope, tables
from posenc.lab.description import describe, listing
from posenc.lab.results import figures, summary
from posenc.lab.tasks import TASKS
from posenc.lessons import lessons

ROW = "| {} | {} |"
TOKENS, DIM, HEADS, CELLS = 32, 64, 4, 8
MOST_MODELS = 12
FILE_LENGTH = 4096  # the trained length of files that compare with it
PIXELS_AN_INCH = 96

SETUP = """import torch
from posenc import {names}

encoding = {made}
"""
BUILD_CALL = 'build("{name}", Shape.of(dim={dim}, heads={heads}, max_len={length}))'
# Its coordinates run from -1 to 1; counted in patches, each step would be a full turn.
NORMALISED_GRIDS = {"image_rotary": ("posenc.encodings.rotations.image_rotary", "normalised_grid")}
EXAMPLES = {
    "embed": "x = encoding(torch.randn(1, {tokens}, {dim}){places})",
    "turn": "q, k = torch.randn(2, 1, {heads}, {tokens}, {width})\nq, k = encoding(q, k{places})",
    "bias": "mask = encoding.bias({at}, causal=True)  # ready for SDPA's attn_mask",
    "attend": 'attention = Attention({dim}, {heads}, max_len={length}, encoding="{name}")\n'
    'out = attention(torch.randn(1, {tokens}, {dim}), mask="causal"{places})',
}
"""The shortest use of an encoding, by its door."""


def write(path: Path, text: str) -> None:
    """Write a page unless it is unchanged, so that Sphinx does not build it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def section(title: str, *lines: str) -> list[str]:
    """Return a section, or nothing if it would be empty."""
    return [f"## {title}", "", *lines, ""] if any(lines) else []


def formulas(equation: str) -> list[str]:
    return [f"$$\n{formula}\n$$\n" for formula in equation_lines(equation)]


def autodoc(name: str, *options: str) -> list[str]:
    """Return the autodoc directive of a name."""
    kind = "automodule" if name.startswith("posenc.kernels.") else "autoclass"
    return ["```{eval-rst}", f".. {kind}:: {name}", *(f"   {option}" for option in options), "```", ""]


def plain_pytorch(name: str) -> list[str]:
    """Return an encoding as one file that needs PyTorch alone, with a button that copies it; nothing without a form."""
    if name not in standalone.readable():
        return []
    text = standalone.eject(name, trained_length=FILE_LENGTH)
    command = f"posenc eject {name} --out {name}.py"
    words = f"`{command}` writes it; [the guide](../guides/take-it-with-you.md) has its options."
    return [
        f"One file of {len(text.splitlines())} lines that needs PyTorch alone, to paste into your model. {words}", "",
        "````{dropdown} The file", ":animate: fade-in", "", "```python", text, "```", "````",
    ]  # fmt: skip


def warning_block(thing: Any) -> list[str]:
    """Return the warning of a docstring."""
    lines = warning(inspect.getdoc(thing) or "")
    return ["```{eval-rst}", *map(plain, lines), "```"] if lines else []


def example(card: dict[str, Any]) -> str:
    """Return a few lines that use an encoding, after running them."""
    doors, grid = set(card["doors"]), isinstance(card["axes"], int) and card["axes"] > 1
    if "embed" in doors:
        way = "embed"
    elif doors == {"turn"}:
        way = "turn"
    else:
        way = "bias" if doors == {"by_distance"} else "attend"
    names = ["Attention"] if way == "attend" else ["Shape", "build"]
    cells = ", ".join(["2"] * (card["axes"] - 2) + ["4", "8"]) if grid else ""
    home, places = NORMALISED_GRIDS.get(card["name"], ("posenc", "Positions.grid"))
    at = f"{places}({cells})" if grid else str(TOKENS)
    length = CELLS if grid else TOKENS
    tokens = torch.Size(map(int, cells.split(", "))).numel() if grid else TOKENS
    fields_of_code = {"name": card["name"], "dim": DIM, "heads": HEADS, "width": DIM // HEADS, "length": length}
    fields_of_code |= {"tokens": tokens, "at": at, "places": f", positions={at}" if grid else ""}
    sizes = {"dim": DIM, "heads": HEADS, "head_dim": DIM // HEADS, "max_len": length}
    parameters = inspect.signature(getattr(posenc, card["class"])).parameters.values()
    required_options = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty or (parameter.name == "max_len" and not parameter.default)
    ]
    fields_of_code["made"] = BUILD_CALL.format(**fields_of_code)
    # Use the class if it needs nothing but sizes.
    if way != "attend" and not grid and set(required_options) <= set(sizes):
        names = [card["class"]]
        fields_of_code["made"] = f"{card['class']}({', '.join(str(sizes[name]) for name in required_options)})"
    if grid and home == "posenc":
        names.append("Positions")
    imports = ", ".join(sorted(names))
    head = "import torch\nfrom posenc import Attention\n\n" if way == "attend" else SETUP
    head = head.replace("from posenc import Attention", f"from posenc import {imports}")
    if home != "posenc":
        head = head.replace("\n\n", f"\nfrom {home} import {places}\n\n", 1)
    code = head.format(names=imports, **fields_of_code) + EXAMPLES[way].format(**fields_of_code)
    if "torch." not in code:
        code = code.removeprefix("import torch\n")
    exec(compile(code, f"the example of {card['name']}", "exec"), {})
    return code


@cache
def costs_of(source: Path) -> Mapping[str, costs.Cost]:
    return costs.read(source / "board")


def cost_rows(name: str, source: Path) -> list[str]:
    """Return an encoding's costs on the board as a table row."""
    cost = costs_of(source).get(name)
    if cost is None:
        return []
    words = (
        f"{cost.forward:g} times the forward pass of a layer without position and {cost.step:g} times its training "
        f"step; {cost.cache_bytes:,} bytes per token and layer in the KV cache, keys and values included"
    )
    return [ROW.format("costs", words)]


@cache
def tables_of(page: Path) -> list[list[str]]:
    """Return the rows of all tables of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("| ")]


def models(name: str, source: Path) -> list[str]:
    """Return the architectures of transformers that use the encoding, by the census."""
    architectures = [
        row[0]
        for row in tables_of(source / "checkpoints" / "census.md")
        if row[0].startswith("`") and len(row) > 1 and re.search(rf"(?<![\w]){name}(?![\w=])", row[1])
    ]
    if not architectures or name == "none":
        return []
    text = ", ".join(architectures[:MOST_MODELS]) + (
        f" and {len(architectures) - MOST_MODELS} more" if architectures[MOST_MODELS:] else ""
    )
    return [f"Of the architectures in transformers ([census](../checkpoints/census.md)): {text}."]


def elsewhere(name: str, names: Iterable[str], source: Path) -> list[str]:
    """Return known defects of an encoding in other libraries, by the tests in the table of known defects."""
    own_test = re.compile(rf"`tests/(?:peers|encodings)/test_{name}\.py")
    mention = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b", re.IGNORECASE)
    defects = tables_of(source / "guides" / "known-defects.md")
    matches = [
        row for row in defects if own_test.match(row[-1]) or (own_test.search(row[-1]) and mention.search(row[-3]))
    ]
    if not matches:
        return []
    # Some rows begin with the library and its release.
    lines = [f"- {' '.join(row[:-3])}{': ' if row[:-3] else ''}{row[-3]}" for row in matches]
    return [*lines, "", "All of them, with their tests: [known defects](../guides/known-defects.md)."]


@cache
def results_of(source: Path) -> list[summary.Result]:
    return summary.results(tables.evidence(rows.read(source / "board")))


def picture_line(figure: Figure, file: Path, words: str) -> str:
    """Save a figure, and return the line that shows it at its drawn size."""
    figures.save(figure, file)
    return f"![{words}](pictures/{file.name}){{width={round(PIXELS_AN_INCH * figure.get_figwidth())}px}}\n"


def reach_table(name: str, source: Path) -> list[str]:
    """Return a table of an encoding's scores beyond the trained length, for tasks that enough seeds learned."""
    lines = []
    for result in results_of(source):
        if result.label != name or len(result.learned) < scope.FIRST_SEEDS:
            continue
        measure, form = ("perplexity_ratio", summary.ratio) if result.is_text else ("exact_match", summary.percent)
        scores = [f"{form(at.median)} at {summary.times(factor)}" for _, factor, at in result.extrapolation(measure)]
        learned_seeds = f"{len(result.learned)} of {len(result.runs)}"
        lines.append(
            f"| {result.task} | {learned_seeds} | {summary.count(result.trained_length or 0)} | {', '.join(scores)} |"
        )
    if not lines:
        return []
    head = ["| task | seeds that learned | trained length | beyond it |", "|---|---|---|---|"]
    words = "Medians over the seeds that learned: exact match in percent, of text the perplexity as a multiple of that"
    return [*head, *lines, "", f"{words} at the trained length. [The board](../board/README.md) has intervals."]


def encoding_page(name: str, source: Path) -> str:
    folder, card = source / "encodings", listing.card(name)
    cls = posenc.catalogue.find(name)
    names = (name, card["class"], *card["also_called"])
    description = describe.show(name, tokens=64, dim=64, heads=4, words=("the", "dog", "bit", "the", "man"), shift=1)
    pictures = []
    for picture, figure in description.figures.items():
        file = folder / "pictures" / f"{name}-{picture}.png"
        pictures.append(picture_line(figure, file, f"{name}: {picture.replace('_', ' ')}"))
    shown_above = ("idea", "source")
    facts = [ROW.format(label, words) for label, words in listing.card_rows(card) if label not in shown_above]
    return "\n".join(
        [
            f"# {name} (RoPE)" if any("rope" in word for word in names) else f"# {name}",
            "",
            card["idea"],
            "",
            *formulas(cls.equation),
            f"Source: {card['source']}.",
            "",
            *section("What it looks like", *pictures, "\n\n".join(description.facts["notes"])),
            *section("In code", "```python", example(card), "```"),
            *section("In plain PyTorch", *plain_pytorch(name)),
            *section("Where it goes wrong", *warning_block(cls)),
            *section("Facts", "| | |", "|---|---|", *facts, *cost_rows(name, source)),
            *section("How far it carries", *reach_table(name, source)),
            *section("Models with it", *models(name, source)),
            *section("In other libraries", *elsewhere(name, names, source)),
            "## Options",
            "",
            *autodoc(f"posenc.{card['class']}", ":members: forward"),
        ]
    )


def ratios(folder: Path) -> list[str]:
    """Draw the frequencies of a head under each schedule."""
    base, width, trained_length, factor = 10_000.0, 128, 4096, 4.0
    plain_ones = plain_frequencies(base, width)
    lines = {}
    for name, cls in schedules.SCHEDULES.items():
        parameters = inspect.signature(cls).parameters
        if name == "longrope":
            continue  # its divisors are searched for each model
        schedule = cls(**({"factor": factor} if "factor" in parameters else {})).with_trained_length(trained_length)
        horizon = torch.tensor([factor * trained_length]) if cls.by_horizon else None
        frequencies, _ = schedule(plain_ones, base=base, width=width, horizon=horizon)
        lines[name] = (frequencies.reshape(-1) / plain_ones).tolist()
    file = folder / "pictures" / "schedules.png"
    title = f"Every schedule at {factor:g} times a trained length of {trained_length:,}: new frequency / old frequency"
    figure = figures.curves(range(width // 2), lines, title, "channel pair, fastest first", "ratio")
    for line, style in zip(figure.axes[0].get_lines(), ("-", "--", ":", "-.") * len(lines), strict=False):
        line.set_linestyle(style)
    figure.axes[0].legend(fontsize="x-small", ncols=3)
    return [picture_line(figure, file, "ratio of new to old frequencies for every schedule")]


def map_pictures(folder: Path) -> list[str]:
    """Draw the positions of one document's tokens after each coordinate map."""
    examples = {"first_digit": 0, "equals": 11, "width": 4, "most": 8, "separator": 10, "by": 8.0, "shift": 6.0}
    examples |= {"jitter": 0.4, "factor": 2.0, "longest": 40, "digits": 10}
    ids = torch.tensor([5, 3, 10, 4, 2, 11, 5, 9, 10, 7, 8, 11])
    lines = {}
    for name, cls in coordinate_maps.COORDINATE_MAPS.items():
        options = {option: examples[option] for option in inspect.signature(cls).parameters if option in examples}
        positions = cls(**options)(posenc.Positions.count(len(ids)), ids)
        lines[name] = positions.coords[0, :, 0].tolist()
    file = folder / "pictures" / "coordinate-maps.png"
    title = "Where twelve tokens stand after each map: 5 3 + 4 2 = 5 9 + 7 8 ="
    figure = figures.curves(range(len(ids)), lines, title, "token", "position that encodings see")
    for line, marker in zip(figure.axes[0].get_lines(), "os^vDxP*<>", strict=True):
        line.set(linestyle="-", marker=marker, markersize=4)
    return [picture_line(figure, file, "positions after every coordinate map")]


def entries(kind: Mapping[str, Any]) -> Iterable[str]:
    """Yield a section for each member of a kind: its idea, formula, spec and options."""
    for name, cls in kind.items():
        yield from section(name, describe.idea(cls), "", *formulas(getattr(cls, "equation", "")))
        if spec := getattr(cls, "example", ""):
            yield from ["In a spec:", "", "```text", f"rotary(schedule={spec})", "```", ""]
        yield from [*warning_block(cls), ""]
        yield from autodoc(f"{cls.__module__}.{cls.__qualname__}", ":noindex:")


def kernel_entries() -> Iterable[str]:
    with torch.device("meta"):  # a learned grid of the standard model is a table of gigabytes
        encodings = {name: posenc.build(name, describe.STANDARD) for name in posenc.names()}
    for name, kernel in kernels.KERNELS.items():
        served_names = [spec for spec in encodings if kernels.why_not(name, encodings[spec]) is None]
        yield from section(name, *autodoc(inspect.getmodule(kernel.attend).__name__, ":noindex:"))
        refused_names = sorted(set(posenc.names()) - set(served_names))
        if served_names:  # one that asks for a GPU says itself what it takes there
            yield (
                f"It serves all encodings but {', '.join(refused_names)}."
                if refused_names
                else "It serves every encoding."
            )
        yield ""


def kind_pages(folder: Path) -> list[str]:
    """Write a page for each other kind than encodings, and return their names."""
    pages = {
        "schedules": [
            "# Schedules",
            "",
            "A schedule changes the frequencies of RoPE (`rotary`), so that a model serves longer sequences.",
            "It gives new frequencies and a temperature that multiplies cosines and sines.",
            "",
            *ratios(folder),
            *entries(schedules.SCHEDULES),
        ],
        "coordinate-maps": [
            "# Coordinate maps",
            "",
            "A coordinate map moves tokens before any encoding looks at them, so it works with every encoding.",
            "",
            *map_pictures(folder),
            *entries(coordinate_maps.COORDINATE_MAPS),
        ],
        "tasks": [
            "# Tasks",
            "",
            "Training tasks of the laboratory. Each has an exact answer and a chance level; [your own task]"
            "(../guides/own-task.md) are one file.",
            "",
            *entries(TASKS),
        ],
        "kernels": [
            "# Kernels",
            "",
            "How attention is computed. All kernels give the same result; `auto` takes the fastest one that serves.",
            "",
            *kernel_entries(),
        ],
    }
    for name, lines in pages.items():
        write(folder / f"{name}.md", "\n".join(lines))
    return list(pages)


def make(app: Sphinx) -> None:
    source = Path(app.srcdir)
    folder = source / "encodings"
    names = posenc.names()
    # Drawing is most of the work. Forking is safe, because no thread has started yet.
    costs_of(source), results_of(source)
    with ProcessPoolExecutor(app.parallel, mp_context=get_context("fork")) as pool:
        for name, page in zip(names, pool.map(partial(encoding_page, source=source), names), strict=True):
            write(folder / f"{name}.md", page)
    pages_of_kinds = kind_pages(folder)
    lines = [ROW.format(f"[{name}]({name}.md)", listing.card(name)["idea"]) for name in names]
    tree = ["```{toctree}", ":hidden:", "", *names, *pages_of_kinds, "```", ""]
    head = [
        "# Encodings",
        "",
        "One page for each, made from the code. What goes with them: [schedules](schedules.md) for context extension, "
        "[coordinate maps](coordinate-maps.md), [tasks](tasks.md) and [kernels](kernels.md).",
        "",
        *tree,
    ]
    write(folder / "index.md", "\n".join([*head, "| encoding | what it does |", "|---|---|", *lines, ""]))


def lesson_pages(app: Sphinx) -> None:
    """The lessons lie in the package, beside what checks their exercises."""
    folder = Path(app.srcdir) / "lessons"
    names = [f"{lesson.place:02d}-{lesson.name.replace('_', '-')}" for lesson in lessons()]
    for lesson, name in zip(lessons(), names, strict=True):
        write(folder / f"{name}.md", lesson.text)
    head = [
        "# Lessons",
        "",
        "From nothing to the choice of an encoding, in this order. You need Python and PyTorch's tensors. Each lesson "
        "explains the rest, runs in under a minute, and ends with two exercises.",
        "",
        "[Install](../start/install.md) posenc with the extra `lab`. Then `posenc lesson 1 --check mine.py` says what "
        "is wrong with your answers, and `posenc lesson 1 --notebook one.ipynb` writes the lesson as a notebook.",
        "",
    ]
    # Lessons call each other by their numbers.
    tree = ["```{toctree}", ":maxdepth: 1", ":numbered: 1", ""]
    write(folder / "index.md", "\n".join([*head, *tree, *names, "```", ""]))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", make)
    app.connect("builder-inited", lesson_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
