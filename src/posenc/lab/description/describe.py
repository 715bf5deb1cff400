"""The description of an encoding for `posenc show` (lesson, numbers, pictures), and the overview of all names."""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posenc import coordinate_maps, kernels, schedules
from posenc.catalogue import ENCODINGS, build, names, options_of, parameters_of
from posenc.encoding.base import BIASES, MODEL_OPTIONS, WIDTHS, Encoding, Shape, parts_of
from posenc.encoding.chosen_heads import OnHeads
from posenc.encodings.added.sinusoidal import Sinusoidal
from posenc.foreign import code
from posenc.lab.board import rows, run, scope, tables
from posenc.lab.description.listing import CELLS, DIM, HEADS, MEASURED_BY, TRAINED_LENGTH
from posenc.lab.description.shift import shift_matrix
from posenc.lab.description.worked_example import ids_of, worked_example
from posenc.lab.evaluation.cache_cost import cache_cost
from posenc.lab.published import CLAIMS
from posenc.lab.results.summary import ratio, results, times
from posenc.lab.tasks import TASKS
from posenc.model.seeding import local_seed
from posenc.specs.presets import PRESETS, Preset
from posenc.tokens.positions import Positions

if TYPE_CHECKING:
    from posenc.lab.description.pictures import Gallery

STANDARD = Shape.of(DIM, HEADS, TRAINED_LENGTH)
"""The model whose parameters are counted; encodings of several axes have CELLS cells on each instead of max_len."""

GROUPS: dict[str, Callable[[Encoding], Any]] = {
    "Wrap another encoding": lambda encoding: encoding.wraps,
    "Added to embeddings": lambda encoding: "embed" in encoding.doors,
    "Turn queries and keys": lambda encoding: "turn" in encoding.doors and encoding.turns != "queries",
    "Remember facts of every token": lambda encoding: "remember" in encoding.doors,
    "Bias the logits": lambda encoding: encoding.doors & BIASES,
    "Temperatures of the query": lambda encoding: "turn" in encoding.doors,
    "Other attention rules": lambda encoding: encoding.doors,
    "No position": lambda encoding: True,
}
"""The groups of encodings, by their doors: an encoding belongs to the first group that fits."""


def build_overview() -> dict[str, Any]:
    """Build the overview: the cards of all encodings, schedules, maps, tasks, kernels, presets and claims."""
    wrappers, *plain = GROUPS
    return {
        "encodings": [encoding_card_or_problem(name) for name in names()],
        # Wrappers are tested first, and listed last.
        "groups": [*plain, wrappers],
        "counted_for": f"dim {STANDARD.dim}, {STANDARD.heads} heads of {STANDARD.head_dim}, trained length "
        f"{STANDARD.max_len}; with several axes {CELLS} cells on each",
        "measured_by": MEASURED_BY,
        **build_other_kinds(),
    }


def build_other_kinds() -> dict[str, list[dict[str, Any]]]:
    """The cards of schedules, maps, tasks, kernels, presets and claims, by kind."""
    kinds: dict[str, Mapping[str, Any]] = {
        "schedules": schedules.SCHEDULES,
        "coordinate_maps": coordinate_maps.COORDINATE_MAPS,
        "tasks": TASKS,
        "kernels": {name: inspect.getmodule(kernel.attend) for name, kernel in kernels.KERNELS.items()},
    }
    listing = {kind: [thing_card(name, thing) for name, thing in things.items()] for kind, things in kinds.items()}
    listing["presets"] = [preset_card(name, preset) for name, preset in PRESETS.items()]
    # Claims have no options in specs.
    listing["claims"] = [thing_card(name, claim) | {"options": {}} for name, claim in CLAIMS.items()]
    return listing


def thing_card(name: str, thing: Any) -> dict[str, Any]:
    """The card of a class or module: its name, idea, options and lesson."""
    options = inspect.signature(thing).parameters.values() if isinstance(thing, type) else ()
    return {
        "name": name,
        "idea": idea(thing),
        "also_called": list(getattr(thing, "also_called", ())),
        "options": {p.name: "needed" if p.default is p.empty else str(p.default) for p in options},
        "lesson": without_doctest(inspect.getdoc(thing) or "").partition("\n")[2].strip(),
    }


def preset_card(name: str, preset: Preset) -> dict[str, Any]:
    """The card of a preset: the encodings and blocks of a model family."""
    layers = [preset.encoding] if isinstance(preset.encoding, str) else preset.encoding
    runs = [(len(list(group)), spec) for spec, group in itertools.groupby(layers)]
    idea = ", ".join(spec if count == 1 else f"{count} x {spec}" for count, spec in runs)
    options = {option: str(value) for option, value in preset.items() if value or option in preset.block}
    extra = f"\n\nBesides: {preset.besides}." if preset.besides else ""
    lesson = f"For {preset.model}s; several encodings are cycled over the layers.{extra}\n\nSource: {preset.source}."
    return {"name": name, "idea": idea, "also_called": [], "options": options, "lesson": lesson}


def encoding_card_or_problem(spec: str) -> dict[str, Any]:
    """The card of an encoding at the standard shape; `problem` says why it cannot be built."""
    try:
        return encoding_card(spec)
    except Exception as error:
        # One broken file must not hide the others.
        problem = str(error) if isinstance(error, ValueError) else f"{spec} fails: {code.error_text(error)}"
        return {"name": spec, "group": "Cannot be built", "problem": problem}


def encoding_card(spec: str) -> dict[str, Any]:
    """The card of an encoding. Raises ValueError for a bad spec, and where the standard shape does not fit."""
    encoding, shape = at_standard_shape(spec)
    unwrapped_parts = [part.encoding if isinstance(part, OnHeads) else part for part in parts_of(encoding)]

    def join_texts(attribute: str) -> str:
        return " | ".join(dict.fromkeys(text for part in unwrapped_parts if (text := getattr(part, attribute))))

    return {
        "name": spec,
        "kind": "encoding",
        "group": next(group for group, fits in GROUPS.items() if fits(encoding)),
        "problem": None,
        "class": " + ".join(type(part).__name__ for part in unwrapped_parts),
        "also_called": [name for part in unwrapped_parts for name in part.also_called],
        "idea": " | ".join(dict.fromkeys(idea(type(part)) for part in unwrapped_parts)),
        "doors": sorted(encoding.doors),
        "options": options(spec),
        "parameters": parameters_of(encoding),
        "per": "layer" if encoding.per_layer else "model",
        "cache": cache_cost(encoding, shape),
        "kernels": [name for name in kernels.KERNELS if kernels.why_not(name, encoding) is None],
        "axes": encoding.axes or "any",
        "extrapolates": join_texts("extrapolates"),
        "measured": board_words().get(scope.label(spec), ""),
        "used_by": join_texts("used_by"),
        "source": join_texts("source"),
    }


def at_standard_shape(spec: str) -> tuple[Encoding, Shape]:
    """Build an encoding; return it with its shape."""
    # A grid with the trained length on each side would not fit into memory, so the small shape comes first.
    shape = replace(STANDARD, max_len=CELLS)
    encoding = build(spec, shape)
    return (encoding, shape) if encoding.axes > 1 else (build(spec, STANDARD), STANDARD)


def options(spec: str) -> dict[str, str]:
    """The options of a named encoding with their defaults, without widths and heads, which the model decides."""
    if not ENCODINGS.knows(spec):
        return {}
    return {
        option: "as the model" if option in MODEL_OPTIONS else str(parameter.default)
        for option, parameter in options_of(spec).items()
        if option not in WIDTHS
    }


@cache
def board_words() -> Mapping[str, str]:
    """Label -> a sentence on how the encoding learns and extrapolates, from the rows of the board."""
    board_rows = rows.read(run.COMMITTED)
    texts = {result.label: result for result in results(tables.evidence(board_rows), "text")}
    words_by_label = {}
    for standing in tables.standings(board_rows):
        words = f"learns {standing.learned} of {standing.tasks} tasks"
        if math.isfinite(standing.speed):
            words += f", in {times(standing.speed)} the steps of the median encoding"
        if not math.isnan(standing.reach):
            words += f"; carries to {times(standing.reach)} the trained length, a geometric mean"
        if text := texts.get(standing.label):
            ratios = [(factor, text.at(length, "perplexity_ratio")) for length, factor in text.lengths()]
            growth = [f"{ratio(score.median)} at {times(k)}" for k, score in ratios if k in (2, 4, 8) and score]
            words += f"; text: perplexity times {', '.join(growth)}"
        words_by_label[standing.label] = words
    return words_by_label


def idea(thing: Any) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def show(
    spec: str,
    *,
    tokens: int,
    dim: int,
    heads: int,
    words: Sequence[str],
    shift: int,
    ids: Sequence[int] = (),
    vectors: Sequence[float] = (),
    runs_folder: Path | None = None,
) -> "Gallery":
    """The lesson of an encoding at a given size.

    words    of the worked example
    ids      of the words
    vectors  the numbers of the token vectors, one vector after another for each id from 0 on
    runs_folder  a folder of `posenc compare`, whose trained runs of this encoding are shown too

    Raises ValueError for a bad spec or size, ids and vectors that do not fit, and a folder without a run of this
    encoding.
    """
    # Imported here, so that the overview does not import matplotlib.
    from posenc.lab.description import after_training, pictures

    if tokens < 2:
        raise ValueError(f"pictures need at least 2 positions, got {tokens}")
    shape = Shape.of(dim, heads, max_len=tokens)
    grid_shape = replace(shape, max_len=min(tokens, pictures.MOST_CELLS))
    if build(spec, grid_shape).axes > 1:
        shape = grid_shape
    with local_seed(0):
        encoding = build(spec, shape)
        gallery = pictures.draw(encoding, shape, tokens)
    if runs_folder is not None:
        after_training.add_trained_pictures(gallery, spec, str(encoding), runs_folder)
    cells = f", {shape.max_len} cells on each axis" if encoding.axes > 1 else f", {tokens} positions"
    size = f"{parameters_of(encoding):,} parameters at dim {dim}, {heads} heads{cells}"
    text = "\n\n".join(filter(None, [lesson_text(encoding, size), "\n".join(gallery.notes)]))
    facts = {"encoding": str(encoding), "doors": sorted(encoding.doors), **gallery.facts, "notes": gallery.notes}
    full_gallery = replace(gallery, text=text, facts=facts)
    if "embed" in encoding.doors and encoding.axes <= 1:
        add_worked_example(full_gallery, words, spec, ids, vectors)
    elif ids or vectors:
        raise ValueError(f"{encoding} has no worked example: it adds nothing to embeddings; leave out ids and vectors")
    for part in parts_of(encoding):
        if isinstance(part, Sinusoidal) and part.axes == 1 and dim % 2 == 0:
            add_shift(full_gallery, part, shift, tokens)
    return full_gallery


def lesson_text(encoding: Encoding, size: str = "") -> str:
    """The text of an encoding: its docstrings (idea, equation, options, limits) and its doors."""
    lessons = dict.fromkeys(inspect.getdoc(type(part)) or type(part).__name__ for part in parts_of(encoding))
    doors = ", ".join(sorted(encoding.doors)) or "no door"
    opens = "; ".join(filter(None, [f"opens {doors}", size]))
    return "\n\n".join([f"{encoding}\n{opens}", *map(without_doctest, lessons)])


def add_worked_example(
    gallery: "Gallery", words: Sequence[str], spec: str, ids: Sequence[int], vectors: Sequence[float]
) -> None:
    """Add the worked example, token vectors plus position vectors, where four channels are enough."""
    try:
        rows = split_vectors(vectors, max(ids_of(words, ids)) + 1) if vectors else []
        example = worked_example(words, encoding=spec, ids=ids, vectors=rows)
    except ValueError as error:
        if ids or vectors:
            raise
        gallery.text += f"\n\nNo worked example at 4 channels: {error}."
        return
    headers, lines = example.table()
    width = len(example.combined[0])
    gallery.tables.append((f"Worked example: {example.encoding} at {width} channels", headers, lines))


def split_vectors(numbers: Sequence[float], count: int) -> list[list[float]]:
    """Split numbers into `count` vectors of one width."""
    if len(numbers) % count:
        raise ValueError(
            f"vectors must be {count} of one width, one for each id up to {count - 1}; {len(numbers)} numbers are not"
        )
    return torch.tensor(numbers, dtype=torch.float64).view(count, -1).tolist()


def add_shift(gallery: "Gallery", encoding: Sinusoidal, k: int, tokens: int) -> None:
    """Add the matrix of the linear-shift property, and its largest error over all positions."""
    from posenc.lab.results import figures

    matrix, places = shift_matrix(encoding, k), torch.arange(tokens, dtype=torch.float64)
    codes, shifted_codes = (encoding.encode(Positions.of(at))[0] for at in (places, places + k))
    error = float((shifted_codes - codes @ matrix.T).abs().max())
    gallery.figures["shift"] = figures.shift_matrix(matrix.numpy(), f"{encoding}: M_{k} with PE(p + {k}) = M_{k} PE(p)")
    gallery.facts["shift"] = {"k": k, "largest_error": error}
    rows = [[f"{number:+.3f}" for number in row[:4]] for row in matrix[:4].tolist()]
    worst = f"largest |PE(p + {k}) - M_{k} PE(p)| over {tokens} positions is {error:.1e}"
    title = f"Shift by {k}: the first block of M_{k}; {worst}"
    gallery.tables.append((title, ["", "", "", ""], rows))


def without_doctest(lesson: str) -> str:
    """A docstring without its doctests."""
    return "\n".join(lesson.split("\n>>> ")[0].rstrip().splitlines())


def order_table(tests_by_spec: dict[str, list[dict[str, Any]]]) -> tuple[list[str], list[list[str]], str]:
    """The results of the order test as a table: headers, rows, title."""
    headers = ["encoding", "attention", "layers", "equivariance error", "change at the last token", "reading"]
    first, *_ = tests_by_spec.values()
    rows = [order_row("(no position)", test) for test in first if not test["position"]]
    rows += [order_row(spec, test) for spec, tests in tests_by_spec.items() for test in tests if test["position"]]
    return headers, rows, "The same tokens in another order"


def order_row(name: str, test: dict[str, Any]) -> list[str]:
    reading = "order-blind" if test["difference"] < 1e-9 else "tells the order apart"
    if test["equivariance"] < 1e-9:
        reading += " (reordered tokens give reordered outputs)"
    errors = [f"{test[error]:.1e}" for error in ("equivariance", "difference")]
    return [name, test["attention"], str(test["layers"]), *errors, reading]
