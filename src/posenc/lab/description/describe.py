"""One encoding shown to a person: its lesson, its numbers and its pictures; and all of them in one overview."""

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
from posenc.encoding.base import BIASES, DECIDED, WIDTHS, Encoding, Shape, parts_of
from posenc.encoding.chosen_heads import OnHeads
from posenc.encodings.added.sinusoidal import Sinusoidal
from posenc.foreign import code
from posenc.lab.board import rows, run, scope, tables
from posenc.lab.description.listing import CELLS, DIM, HEADS, MEASURED_BY, TRAINED_LENGTH
from posenc.lab.description.shift import shift_matrix
from posenc.lab.description.worked import ids_of, worked_example
from posenc.lab.evaluation.cache_cost import cache_cost
from posenc.lab.published import CLAIMS
from posenc.lab.results.summary import ratio, results, times
from posenc.lab.tasks import TASKS
from posenc.model.seeding import seeded
from posenc.specs.presets import PRESETS, Preset
from posenc.tokens.positions import Positions

if TYPE_CHECKING:
    from posenc.lab.description.pictures import Drawn

STANDARD = Shape.of(DIM, HEADS, TRAINED_LENGTH)
"""The model that encodings are counted for; those of several axes have CELLS cells on each instead of max_len."""

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
"""What an encoding does, by its doors: it belongs to the first group that fits."""


def overview() -> dict[str, Any]:
    """Every encoding, and all that goes with them: what it is, and of encodings what they cost."""
    wrappers, *plain = GROUPS
    return {
        "encodings": [entry(name) for name in names()],
        # What wraps others is the first question of all, and the last thing that a reader asks for.
        "groups": [*plain, wrappers],
        "counted_for": f"dim {STANDARD.dim}, {STANDARD.heads} heads of {STANDARD.head_dim}, trained length "
        f"{STANDARD.max_len}; with several axes {CELLS} cells on each",
        "measured_by": MEASURED_BY,
        **others(),
    }


def others() -> dict[str, list[dict[str, Any]]]:
    """What is no encoding: kind -> of each its name, its idea, its options and what else is written of it."""
    kinds: dict[str, Mapping[str, Any]] = {
        "schedules": schedules.SCHEDULES,
        "coordinate_maps": coordinate_maps.COORDINATE_MAPS,
        "tasks": TASKS,
        "kernels": {name: inspect.getmodule(kernel.attend) for name, kernel in kernels.KERNELS.items()},
    }
    found = {kind: [told_of(name, thing) for name, thing in things.items()] for kind, things in kinds.items()}
    found["presets"] = [told_of_preset(name, one) for name, one in PRESETS.items()]
    # Claims have no options: all of one is in its file.
    found["claims"] = [told_of(name, claim) | {"options": {}} for name, claim in CLAIMS.items()]
    return found


def told_of(name: str, thing: Any) -> dict[str, Any]:
    """What a class, or a module, says of itself."""
    options = inspect.signature(thing).parameters.values() if isinstance(thing, type) else ()
    return {
        "name": name,
        "idea": idea(thing),
        "also_called": list(getattr(thing, "also_called", ())),
        "options": {one.name: "needed" if one.default is one.empty else str(one.default) for one in options},
        "lesson": without_doctest(inspect.getdoc(thing) or "").partition("\n")[2].strip(),
    }


def told_of_preset(name: str, preset: Preset) -> dict[str, Any]:
    """What is known of what the models of a family are made of."""
    layers = [preset.encoding] if isinstance(preset.encoding, str) else preset.encoding
    runs = [(len(list(same)), spec) for spec, same in itertools.groupby(layers)]
    idea = ", ".join(spec if many == 1 else f"{many} x {spec}" for many, spec in runs)
    options = {option: str(value) for option, value in preset.items() if value or option in preset.block}
    besides = f"\n\nBesides: {preset.besides}." if preset.besides else ""
    lesson = f"For {preset.model}s; several encodings are cycled over the layers.{besides}\n\nSource: {preset.source}."
    return {"name": name, "idea": idea, "also_called": [], "options": options, "lesson": lesson}


def entry(spec: str) -> dict[str, Any]:
    """What is known of one encoding, at the standard shape; `problem` says why where it cannot be built."""
    try:
        return card(spec)
    except Exception as error:
        # One broken file must not hide all the others.
        problem = str(error) if isinstance(error, ValueError) else f"{spec} fails: {code.told(error)}"
        return {"name": spec, "group": "Cannot be built", "problem": problem}


def card(spec: str) -> dict[str, Any]:
    """What is known of one encoding.

    Raises ValueError where the spec is none, and where it cannot be built at the standard shape.
    """
    encoding, shape = at_standard_shape(spec)
    own = [part.encoding if isinstance(part, OnHeads) else part for part in parts_of(encoding)]

    def said(attribute: str) -> str:
        return " | ".join(dict.fromkeys(words for part in own if (words := getattr(part, attribute))))

    return {
        "name": spec,
        "kind": "encoding",
        "group": next(group for group, fits in GROUPS.items() if fits(encoding)),
        "problem": None,
        "class": " + ".join(type(part).__name__ for part in own),
        "also_called": [name for part in own for name in part.also_called],
        "idea": " | ".join(dict.fromkeys(idea(type(part)) for part in own)),
        "doors": sorted(encoding.doors),
        "options": options(spec),
        "parameters": parameters_of(encoding),
        "per": "layer" if encoding.per_layer else "model",
        "cache": cache_cost(encoding, shape),
        "kernels": [name for name in kernels.KERNELS if kernels.why_not(name, encoding) is None],
        "axes": encoding.axes or "any",
        "extrapolates": said("extrapolates"),
        "measured": by_the_board().get(scope.label(spec), ""),
        "used_by": said("used_by"),
        "source": said("source"),
    }


def at_standard_shape(spec: str) -> tuple[Encoding, Shape]:
    """The encoding, and the shape that it was built for."""
    # A grid of the trained length on each side would not fit into memory, so the small one comes first.
    shape = replace(STANDARD, max_len=CELLS)
    encoding = build(spec, shape)
    return (encoding, shape) if encoding.axes > 1 else (build(spec, STANDARD), STANDARD)


def options(spec: str) -> dict[str, str]:
    """The options of a named encoding and their defaults, but for widths and heads, which the model decides."""
    if not ENCODINGS.knows(spec):
        return {}
    return {
        option: "as the model" if option in DECIDED else str(parameter.default)
        for option, parameter in options_of(spec).items()
        if option not in WIDTHS
    }


@cache
def by_the_board() -> Mapping[str, str]:
    """Label -> how the encoding learns and how far it carries, by the rows of the board, in words."""
    found = rows.read(run.COMMITTED)
    texts = {result.label: result for result in results(tables.evidence(found), "text")}
    said = {}
    for one in tables.standings(found):
        words = f"learns {one.learned} of {one.tasks} tasks"
        if math.isfinite(one.speed):
            words += f", in {times(one.speed)} the steps of the median encoding"
        if not math.isnan(one.reach):
            words += f"; carries to {times(one.reach)} the trained length, a geometric mean"
        if text := texts.get(one.label):
            beyond = [(factor, text.at(length, "perplexity_ratio")) for length, factor in text.lengths()]
            growth = [f"{ratio(spread.median)} at {times(k)}" for k, spread in beyond if k in (2, 4, 8) and spread]
            words += f"; text: perplexity times {', '.join(growth)}"
        said[one.label] = words
    return said


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
    trained: Path | None = None,
) -> "Drawn":
    """The lesson of an encoding at a given size.

    words    of the worked example
    ids      of the words
    vectors  the numbers of the token vectors, one vector behind another for each id from 0 on
    trained  a folder that `posenc compare` has filled: what its runs of this encoding have learned is shown too

    Raises ValueError for a bad spec or size, and for ids and vectors that do not fit, and for a folder without a
    run of this encoding.
    """
    # The overview does not wait for matplotlib.
    from posenc.lab.description import after_training, pictures

    if tokens < 2:
        raise ValueError(f"pictures need at least 2 positions, got {tokens}")
    shape = Shape.of(dim, heads, max_len=tokens)
    small = replace(shape, max_len=min(tokens, pictures.MOST_CELLS))
    if build(spec, small).axes > 1:
        shape = small
    with seeded(0):
        encoding = build(spec, shape)
        drawn = pictures.draw(encoding, shape, tokens)
    if trained is not None:
        after_training.add(drawn, spec, str(encoding), trained)
    cells = f", {shape.max_len} cells on each axis" if encoding.axes > 1 else f", {tokens} positions"
    size = f"{parameters_of(encoding):,} parameters at dim {dim}, {heads} heads{cells}"
    text = "\n\n".join(filter(None, [in_words(encoding, size), "\n".join(drawn.notes)]))
    facts = {"encoding": str(encoding), "doors": sorted(encoding.doors), **drawn.facts, "notes": drawn.notes}
    shown = replace(drawn, text=text, facts=facts)
    if "embed" in encoding.doors and encoding.axes <= 1:
        add_worked_example(shown, words, spec, ids, vectors)
    elif ids or vectors:
        raise ValueError(f"{encoding} has no worked example: it adds nothing to embeddings; leave out ids and vectors")
    for part in parts_of(encoding):
        if isinstance(part, Sinusoidal) and part.axes == 1 and dim % 2 == 0:
            add_shift(shown, part, shift, tokens)
    return shown


def in_words(encoding: Encoding, size: str = "") -> str:
    """What an encoding says of itself: its idea, its equation, its options, where it goes wrong."""
    lessons = dict.fromkeys(inspect.getdoc(type(part)) or type(part).__name__ for part in parts_of(encoding))
    doors = ", ".join(sorted(encoding.doors)) or "no door"
    opens = "; ".join(filter(None, [f"opens {doors}", size]))
    return "\n\n".join([f"{encoding}\n{opens}", *map(without_doctest, lessons)])


def add_worked_example(
    shown: "Drawn", words: Sequence[str], spec: str, ids: Sequence[int], vectors: Sequence[float]
) -> None:
    """Token vectors plus position vectors, number by number, where four channels are enough for the encoding."""
    try:
        rows = in_rows(vectors, max(ids_of(words, ids)) + 1) if vectors else []
        example = worked_example(words, encoding=spec, ids=ids, vectors=rows)
    except ValueError as error:
        if ids or vectors:
            raise
        shown.text += f"\n\nNo worked example at 4 channels: {error}."
        return
    headers, lines = example.table()
    width = len(example.combined[0])
    shown.tables.append((f"Worked example: {example.encoding} at {width} channels", headers, lines))


def in_rows(numbers: Sequence[float], count: int) -> list[list[float]]:
    """Numbers cut into so many vectors of one width."""
    if len(numbers) % count:
        raise ValueError(
            f"vectors must be {count} of one width, one for each id up to {count - 1}; {len(numbers)} numbers are not"
        )
    return torch.tensor(numbers, dtype=torch.float64).view(count, -1).tolist()


def add_shift(shown: "Drawn", encoding: Sinusoidal, k: int, tokens: int) -> None:
    """The linear-shift property: the matrix, and how exactly it moves every position."""
    from posenc.lab.results import figures

    matrix, places = shift_matrix(encoding, k), torch.arange(tokens, dtype=torch.float64)
    before, after = (encoding.encode(Positions.of(at))[0] for at in (places, places + k))
    error = float((after - before @ matrix.T).abs().max())
    shown.figures["shift"] = figures.shift_matrix(matrix.numpy(), f"{encoding}: M_{k} with PE(p + {k}) = M_{k} PE(p)")
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
    first, *_ = found.values()
    rows = [order_row("(no position)", test) for test in first if not test["position"]]
    rows += [order_row(spec, test) for spec, tests in found.items() for test in tests if test["position"]]
    return headers, rows, "The same tokens in another order"


def order_row(name: str, test: dict[str, Any]) -> list[str]:
    reading = "order-blind" if test["difference"] < 1e-9 else "tells the order apart"
    if test["equivariance"] < 1e-9:
        reading += " (reordered tokens give reordered outputs)"
    errors = [f"{test[error]:.1e}" for error in ("equivariance", "difference")]
    return [name, test["attention"], str(test["layers"]), *errors, reading]
