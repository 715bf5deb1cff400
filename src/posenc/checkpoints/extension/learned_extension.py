"""Learned tables made longer, and what that does to the model: `extend` for models without rotary."""

import copy
import functools
import json
import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.conversion.tables import resample, resampling
from posenc.checkpoints.extension.checkpoint import CHECKPOINT
from posenc.checkpoints.extension.choice import KEEPS
from posenc.checkpoints.extension.clock import Say
from posenc.checkpoints.extension.learned_measures import WHOLE, Causal, Images, Masked, Measure, Sentences
from posenc.checkpoints.extension.runs import Kept, check_folder, claimed, hash_of
from posenc.checkpoints.formats import huggingface, load
from posenc.checkpoints.formats.learned_tables import Table, asking_for, cells_of, tables_of
from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import quoted
from posenc.lab import store
from posenc.lab.results.report import finite

SAMPLES = 24
"""How many documents or passages are measured where nobody says how many."""

WORDS = {
    "clamp": "every position past the table has its last row",
    "repeat": "past the table it begins again with its first row",
    "nearest": "the table stretched over the target, each position with the nearest row",
    "linear": "the table stretched over the target, mixed linearly between rows",
    "cubic": "the table stretched over the target by cubic convolution",
}
"""The methods: how a table of the trained length becomes one of the target's."""


@dataclass(frozen=True)
class Settings:
    """What a run is asked for.

    path     a folder, or the name of a fetched model
    factor   target length / trained length (unitless, above 1); of an image, along each side
    methods  names from WORDS, or "all"
    text     files; without any, the Python language reference
    images   files, for image encoders
    lengths  more lengths to measure at (tokens; patches a side)
    samples  how many windows, documents or passages are measured
    dtype    of the weights
    """

    path: str
    factor: float
    methods: tuple[str, ...] = ("all",)
    text: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    samples: int = SAMPLES
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise ValueError(f"the factor is target length / trained length and must be above 1, got {self.factor:g}")
        if self.samples < 1:
            raise ValueError(f"samples must be 1 or more, got {self.samples}")
        for name in self.methods:
            if name != "all" and name not in WORDS:
                raise ValueError(
                    f"{quoted(name)} is no method for a learned table; there are: {', '.join(WORDS)}, or all"
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(WORDS) if "all" in self.methods else tuple(dict.fromkeys(self.methods))

    def command(self, out: Path) -> str:
        """The command that asks for this."""
        said = ["posenc", "extend", self.path]
        for of in fields(self)[1:]:
            value = getattr(self, of.name)
            if value == of.default:
                continue
            name = "method" if of.name == "methods" else of.name
            values = [",".join(value)] if name == "method" else value if isinstance(value, tuple) else [value]
            said += [f"--{name}", *(f"{one:g}" if isinstance(one, float) else str(one) for one in values)]
        return shlex.join([*said, "--out", str(out)])


def has_learned_table(path: str | Path) -> bool:
    """Whether the checkpoint of a path or a name is a folder whose model keeps its positions in a learned table."""
    where = load.find(path)
    if not (where / "config.json").is_file():
        return False
    load.require_transformers()
    with load.quietly():
        config = load.config_of(where)
    parts = huggingface.read(config).parts
    return bool(parts) and all(cells_of(part) and not any(one.spec != "none" for one in part.layers) for part in parts)


def resized(rows: Tensor, cells: tuple[int, ...], target: tuple[int, ...], method: str) -> Tensor:
    """A table [cells, dim] for other numbers of cells along each axis, by one of WORDS.

    Rows of a sequence are stretched end to end, i -> i (n - 1)/(m - 1): the last position has the last row. Those of a
    grid are stretched as images are, by their edges, i -> (i + 1/2) n/m - 1/2, which is what image encoders are trained
    and served with.

    >>> resized(torch.tensor([[0.0], [1.0]]), (2,), (3,), "linear").flatten()
    tensor([0.0000, 0.5000, 1.0000])
    """
    grid = len(cells) > 1
    return resample(rows, [matrix(old, new, method, grid) for old, new in zip(cells, target, strict=True)])


def matrix(old: int, new: int, method: str, grid: bool) -> Tensor:
    """What each of the new positions takes of each of the old ones: [new, old]."""
    if method not in ("clamp", "repeat"):
        return resampling(old, new, method, aligned=not grid)
    count = torch.arange(new)
    return torch.eye(old, dtype=torch.float64)[count.clamp(max=old - 1) if method == "clamp" else count % old]


def stretched(loaded: Loaded, found: Sequence[Table], target: int, method: str) -> Any:
    """The model with tables for the target (tokens, or patches a side), in memory."""
    # Parameters alone: buffers that count positions are made anew, as long as they have to be.
    state = {name: parameter.detach() for name, parameter in loaded.model.named_parameters()}
    cells = (target,) * len(found[0].cells)
    for table in found:
        whole = state[table.name]
        rows = whole.reshape(-1, whole.shape[-1])
        new = torch.cat((rows[: table.first], resized(rows[table.first :], table.cells, cells, method)))
        state[table.name] = new.view(*whole.shape[:-2], *new.shape)
    with load.quietly():
        config = type(loaded.config).from_dict(asking_for(loaded.config.to_dict(), found, cells))
        kind = type(loaded.model)
        model = kind.from_pretrained(None, config=config, state_dict=state, dtype=loaded.model.dtype)
    return model.eval()


def tables(model: Any) -> list[Table]:
    """The learned tables of positions of a live model, as it is read."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return tables_of(huggingface.read(model.config), shapes)


def kind_of(loaded: Loaded, found: Sequence[Table]) -> Any:
    """How a model is measured, by what it does."""
    name = type(loaded.model).__name__
    if len(found[0].cells) > 1:
        return Images
    if loaded.tokenizer is None:
        raise CannotRead(f"{loaded.path} has no tokenizer, and without one no text can be read")
    if name.endswith("ForMaskedLM"):
        return Masked
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return Causal
    if name.endswith("Model") and not loaded.config.is_encoder_decoder and loaded.tokenizer.cls_token_id is not None:
        return Sentences
    raise CannotRead(
        f"{loaded.path} is a {name}, and posenc has no measure for it; it has them for language models, masked ones, "
        f"encoders of sentences and of images"
    )


def prepare(loaded: Loaded, settings: Settings) -> tuple[list[Table], tuple[int, ...], Any]:
    """The tables of a model, the lengths, and what is measured of it.

    Raises ValueError for a text that is too short and for lengths beyond the target, CannotRead for a model without a
    learned table or without a measure.
    """
    found = tables(loaded.model)
    if not found:
        raise CannotRead(
            f"{loaded.path} has no learned table of positions; posenc extends such models by their encoding"
        )
    trained = found[0].cells[0]
    lengths = lengths_of(settings, trained)
    target = lengths[-1]
    files = settings.images if len(found[0].cells) > 1 else settings.text
    measure = kind_of(loaded, found)(loaded, files, settings.samples, trained, target)
    return found, lengths, measure


def measure_learned(
    loaded: Loaded,
    settings: Settings,
    prepared: tuple[list[Table], tuple[int, ...], Any],
    kept: Kept,
    say: Say = lambda words: None,
) -> list[dict[str, Any]]:
    """What each method and each baseline is worth at each length.

    One record for each method, length and measure: {"method", "length", "measure", "value", "seconds"}, the seconds
    those of all measures of that length. "none" is the model as it is, as far as its table goes.
    """
    found, lengths, measure = prepared
    trained, target = found[0].cells[0], lengths[-1]
    facts = {"model": hash_of(loaded.path), "input": measure.sha256, "samples": settings.samples, "target": target}
    facts |= {"dtype": str(loaded.model.dtype)}
    grid = len(found[0].cells) > 1
    done: dict[tuple[str, int], dict[str, Any]] = {}
    records = []
    for method in ("none", *measure.baselines, *settings.names):
        for length in lengths:
            beyond = length > trained
            if (method == "none" and (beyond or (grid and length < trained))) or (
                method in measure.baselines and not beyond
            ):
                continue
            # Grids are as they were at their own size, and tables that are continued wherever they reached before.
            same = length == trained if grid else method in ("clamp", "repeat") and not beyond
            of = "none" if same else method
            if (of, length) not in done:
                make = functools.partial(one, loaded, found, measure, of, length, target, say)
                done[of, length] = kept.once({**facts, "method": of, "length": length}, make)
            for name, value in done[of, length]["values"].items():
                at = {"method": method, "length": length, "measure": name}
                records.append({**at, "value": value, "seconds": done[of, length]["seconds"]})
    return records


def one(
    loaded: Loaded, found: Sequence[Table], measure: Any, method: str, length: int, target: int, say: Say
) -> dict[str, Any]:
    """What one method is worth at one length, and how long that took."""
    say(f"{method} at {length:,} {measure.unit}")
    model = loaded.model
    if method in WORDS:
        # An image encoder needs a table of the image's very size, others one that is long enough.
        model = stretched(loaded, found, length if len(found[0].cells) > 1 else target, method)
    began = time.perf_counter()
    values = measure(model, length, method if method in measure.baselines else WHOLE)
    return {"values": values, "seconds": time.perf_counter() - began}


def lengths_of(settings: Settings, trained: int) -> tuple[int, ...]:
    """Half the trained length, itself, the middle to the target, the target, and what was asked for."""
    target = round(trained * settings.factor)
    if wrong := [length for length in settings.lengths if not 2 <= length <= target]:
        raise ValueError(f"lengths go from 2 to the target of {target:,}, got {wrong[0]:,}")
    return tuple(sorted({trained // 2, trained, (trained + target) // 2, target, *settings.lengths}))


def extend_learned(settings: Settings, out: Path, *, say: Say = lambda words: None) -> dict[str, Any]:
    """Measure a model with a learned table and its extensions, name the winner, write it, and return the record.

    In `out` lie measurements.jsonl, record.json, report.md, figures, and checkpoint: the winner's, or that of the one
    method that was asked for, with its table, its config and its tokenizer, which transformers loads.

    Raises ValueError for impossible settings, a text that is too short, and a folder that holds anything else than the
    same run; CannotRead for a checkpoint that cannot be read or extended; RuntimeError where the written checkpoint
    does not compute what was measured, and is therefore taken away again.
    """
    from posenc.checkpoints.extension import learned_report

    check_folder(settings, out)
    say(f"loading {settings.path}")
    loaded = load.load(settings.path, dtype=settings.dtype)
    for words in loaded.notes:
        say(words)
    found, lengths, _ = prepared = prepare(loaded, settings)
    trained, target = found[0].cells[0], lengths[-1]
    with claimed(settings, out, say) as kept:
        records = measure_learned(loaded, settings, prepared, kept, say)
        kind = kind_of(loaded, found)
        method, words = choose(settings, records, kind, trained, target)
        written = write(loaded, found, target, method, out / CHECKPOINT) if method else None
        record = {
            "model": settings.path,
            "architecture": type(loaded.model).__name__,
            "unit": kind.unit,
            "trained": trained,
            "target": target,
            "tables": [asdict(table) for table in found],
            "measures": [asdict(measure) for measure in kind.measures],
            "methods": {
                "none": "the model as it is",
                **kind.baselines,
                **{name: WORDS[name] for name in settings.names},
            },
            "records": records,
            "in_words": words,
            "written": written and {"method": method, "path": written.name},
            "made": {
                "command": settings.command(out),
                "model, SHA-256 of its files": hash_of(loaded.path),
                "input": ", ".join(Path(name).name for name in settings.images or settings.text)
                or "the Python language reference (pydoc_data.topics)",
                "versions": ", ".join(f"{name} {version}" for name, version in store.versions().items()),
                **({"passes kept from": kept.others} if kept.others else {}),
            },
        }
        store.write(out / "record.json", (json.dumps(finite(record), indent=1, allow_nan=False) + "\n").encode())
        learned_report.write(record, out)
    return record


def choose(
    settings: Settings, records: Sequence[Mapping[str, Any]], kind: Any, trained: int, target: int
) -> tuple[str | None, str]:
    """The method that is written, and why, in words.

    The first measure decides, at the target, among the methods that stay within 5 % of the model as it is at its
    trained length. A baseline that is better than all of them is named; it has no table to write.
    """
    first: Measure = kind.measures[0]
    at = {(r["method"], r["length"]): r["value"] for r in records if r["measure"] == first.name}
    before = at["none", trained]

    def keeps(name: str) -> bool:
        now = at[name, trained]
        return now >= before / KEEPS if first.more_is_better else now <= before * KEEPS

    def worth(name: str) -> float:
        return -at[name, target] if first.more_is_better else at[name, target]

    best = min(settings.names, key=lambda name: (not keeps(name), worth(name)))
    words = (
        f"{best} is the best table here: at {target:,} {kind.unit} the {first.words} is {at[best, target]:.3g}, and at "
        f"the trained {trained:,} it is {at[best, trained]:.3g} where the model as it is has {before:.3g}."
    )
    if not keeps(best):
        words += " No table keeps the trained length within 5 %: this one is written at that price."
    for name in kind.baselines:
        more = "better" if worth(name) < worth(best) else "not better"
        words += f" {name.capitalize()} ({kind.baselines[name]}) gives {at[name, target]:.3g}: {more}."
    return best, words


def write(loaded: Loaded, found: Sequence[Table], target: int, method: str, folder: Path) -> Path:
    """Write the extended checkpoint, load it again, and see that it computes what was measured."""
    if folder.exists():
        return folder
    model = stretched(loaded, found, target, method)
    tokenizer = copy.deepcopy(loaded.tokenizer)
    if tokenizer is not None:
        tokenizer.model_max_length = target
    extended = Loaded(model, tokenizer, model.config, loaded.path)
    extended.save_huggingface(folder)
    again = load.load(folder, dtype=loaded.model.dtype)
    old, new = model.state_dict(), again.model.state_dict()
    if different := [name for name in old if not torch.equal(old[name], new[name])]:
        raise RuntimeError(f"{folder} was written and read again with another {different[0]}; do not use it")
    return folder
