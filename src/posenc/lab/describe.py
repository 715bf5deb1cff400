"""One encoding shown to a person: its lesson, its numbers and its pictures; and all of them in one overview."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from posenc import kernels, schedules
from posenc.catalogue import build, every, options_of, parameters_of
from posenc.encoding import Encoding, Shape, parts_of
from posenc.lab import plots, record, tasks
from posenc.lab.worked import worked_example


def overview() -> dict[str, list[dict[str, str]]]:
    """Every encoding, schedule, task and kernel, each with its name and its idea in one line."""
    encodings = [
        {
            "name": name,
            "class": cls.__name__,
            "doors": ", ".join(sorted(cls.doors)) or "nothing",
            "options": ", ".join(option for option in options_of(name) if option not in ("dim", "heads", "head_dim"))
            or "-",
            "idea": idea(cls),
            "source": cls.source,
        }
        for name, cls in every()
    ]
    return {
        "encodings": encodings,
        "schedules": [{"name": name, "idea": idea(cls)} for name, cls in schedules.SCHEDULES.items()],
        "tasks": [{"name": name, "idea": idea(tasks.find(name))} for name in tasks.names()],
        "kernels": [
            {"name": name, "idea": idea(inspect.getmodule(kernel))} for name, kernel in kernels.KERNELS.items()
        ],
    }


def idea(thing: Any) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


@dataclass
class Shown:
    """What `posenc show` says: words, tables (title, headers, rows), figures by name, and the numbers behind them."""

    text: str
    facts: dict[str, Any]
    tables: list[tuple[str, list[str], list[list[str]]]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> list[Path]:
        """Write the figures as PNG files."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, figure in self.figures.items():
            paths.append(folder / f"{name}.png")
            plots.save(figure, paths[-1])
        return paths


def show(spec: str, *, tokens: int, dim: int, heads: int, words: Sequence[str], shift: int) -> Shown:
    """The lesson of an encoding at a given size.

    Raises ValueError for a bad spec or size.
    """
    if tokens < 2:
        raise ValueError(f"pictures need at least 2 positions, got {tokens}")
    torch.manual_seed(0)
    shape = Shape.of(dim, heads, max_len=tokens)
    encoding = build(spec, shape)
    speak(encoding)
    numbers = record.describe(encoding, dim, tokens)
    lesson = "\n\n".join(
        dict.fromkeys(inspect.getdoc(type(part)) or type(part).__name__ for part in parts_of(encoding))
    )
    doors = ", ".join(sorted(encoding.doors)) or "no door"
    size = f"{parameters_of(encoding):,} parameters at dim {dim}, {heads} heads, {tokens} positions"
    head = f"{encoding}\nopens {doors}; {size}\n\n"
    shown = Shown(
        head + without_doctest(lesson), {"encoding": str(encoding), "doors": sorted(encoding.doors), **numbers}
    )
    draw(shown, encoding, numbers, tokens)
    if "embed" in encoding.doors:
        example = worked_example(words, 4, spec)
        headers, rows = example.table()
        shown.tables.append((f"Worked example: {example.encoding} at 4 channels", headers, rows))
    for part in parts_of(encoding):
        if hasattr(part, "shift") and dim % 2 == 0:
            add_shift(shown, part, shift, tokens)
    return shown


@torch.no_grad()
def speak(encoding: Encoding) -> None:
    """Draw from N(0, 1) the tables that start at zero: untrained, they would be pictures of nothing."""
    for parameter in encoding.parameters():
        if not parameter.any():
            parameter.normal_()


def draw(shown: Shown, encoding: Encoding, numbers: dict[str, Any], tokens: int) -> None:
    """The pictures that an encoding has."""
    name = str(encoding)
    if numbers["added"] is not None:
        table = torch.tensor(numbers["added"])
        shown.figures["heatmap"] = plots.heatmap(table.numpy(), f"{name}: what is added at each position")
        shown.figures["similarity"] = plots.similarity_matrix(table.numpy(), f"{name}: similarity of positions")
        chosen = sorted({0, 1, 2, tokens // 4, tokens // 2, tokens - 1})
        shown.figures["fingerprint"] = plots.fingerprint(table.numpy(), chosen, f"{name}: how positions differ")
    if numbers["wavelengths"] is not None:
        waves = torch.tensor(numbers["wavelengths"], dtype=torch.float64)
        shown.figures["wavelengths"] = plots.wavelength_curve(waves.numpy(), tokens, f"{name}: wavelength of each pair")
        shown.figures["clock"] = plots.clock(
            (2 * torch.pi / waves).numpy(), tokens // 4, f"{name}: the pairs of position {tokens // 4} as hands"
        )
        rows = [[str(i), f"{w:.2f}", f"{tokens / w:.3f}"] for i, w in enumerate(waves.tolist())]
        shown.tables.append(
            (
                "Wavelengths",
                ["pair", "wavelength (positions)", f"turns in {tokens} positions"],
                rows[:8] + rows[8:][-2:],
            )
        )
    if numbers["bias"] is not None:
        heads = torch.tensor(numbers["bias"]["heads"])
        shown.figures["bias"] = plots.bias_curves(
            numbers["bias"]["distance"], heads.numpy(), f"{name}: bias by distance, each head"
        )
    if numbers["rotation"] is not None:
        rotation = torch.tensor([numbers["rotation"]])
        shown.figures["rotation"] = plots.bias_curves(
            list(range(rotation.shape[1])), rotation.numpy(), f"{name}: mean cosine of the pairs by distance"
        )


def add_shift(shown: Shown, encoding: Any, k: int, tokens: int) -> None:
    """The linear-shift property: the matrix, and how exactly it moves every position."""
    matrix = encoding.shift(k)
    error = encoding.shift_error(k, torch.arange(tokens))
    shown.figures["shift"] = plots.shift_matrix(matrix.numpy(), f"{encoding}: M_{k} with PE(p + {k}) = M_{k} PE(p)")
    shown.facts["shift"] = {"k": k, "largest_error": error}
    rows = [[f"{number:+.3f}" for number in row[:4]] for row in matrix[:4].tolist()]
    worst = f"largest |PE(p + {k}) - M_{k} PE(p)| over {tokens} positions is {error:.1e}"
    title = f"Shift by {k}: the first block of M_{k}; {worst}"
    shown.tables.append((title, ["", "", "", ""], rows))


def without_doctest(lesson: str) -> str:
    """A docstring without its examples."""
    return "\n".join(lesson.split("\n>>> ")[0].rstrip().splitlines())


def reading_of_order(found: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[list[str]], str]:
    """The order test as a table: headers, rows, title."""
    headers = ["encoding", "attention", "layers", "equivariance error", "change at the last token", "reading"]
    rows = []
    for spec, tests in found.items():
        for test in tests:
            if not test["position"] and spec != next(iter(found)):
                continue
            blind = test["difference"] < 1e-9
            reading = "order-blind" if blind else "tells the order apart"
            if test["equivariance"] < 1e-9:
                reading += " (reordered tokens give reordered outputs)"
            name = spec if test["position"] else "(no position)"
            rows.append(
                [
                    name,
                    test["attention"],
                    str(test["layers"]),
                    f"{test['equivariance']:.1e}",
                    f"{test['difference']:.1e}",
                    reading,
                ]
            )
    rows.sort(key=lambda row: row[0] != "(no position)")
    return headers, rows, "The same tokens in another order"
