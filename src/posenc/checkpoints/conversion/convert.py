"""A checkpoint to a checkpoint: rotary in another layout, tables of another size, GGUF to a folder."""

import contextlib
import copy
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posenc.checkpoints.conversion import layouts, measure_layout, tables
from posenc.checkpoints.conversion.source import Plan, Source, open_source
from posenc.checkpoints.conversion.table_changes import plan_grid, plan_positions
from posenc.checkpoints.files.folder_writer import check_target, write_folder
from posenc.checkpoints.files.hub import commit_of
from posenc.checkpoints.formats.config_json import MARK, with_positions
from posenc.checkpoints.formats.load import find
from posenc.checkpoints.inspection.served import check_written, unlike_planned
from posenc.checkpoints.kinds.rotary.old_keys import unsaid
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading
from posenc.checkpoints.vocabulary.specs import CannotExpress


@dataclass(frozen=True)
class Request:
    """What to change.

    layout       the layout that queries and keys should have: "half", "interleaved" or "swapped"
    stored       the one they have, where the config does not say so or is wrong
    max_length   the positions that a learned table should have
    grid         the cells on each axis that a learned table of an image should have
    interpolate  how tables are resized: "linear", "cubic" or "nearest"; None is linear for positions, cubic for grids
    """

    layout: str | None = None
    stored: str | None = None
    max_length: int | None = None
    grid: tuple[int, ...] | None = None
    interpolate: str | None = None

    def __post_init__(self) -> None:
        for layout in filter(None, (self.layout, self.stored)):
            layouts.check_layout(layout)
        if self.stored and not self.layout:
            raise ValueError("stored says which layout the weights have, and needs the layout that they should get")
        if self.interpolate and self.interpolate not in tables.INTERPOLATIONS:
            raise ValueError(f"interpolate must be one of {', '.join(tables.INTERPOLATIONS)}, got '{self.interpolate}'")
        if self.interpolate and self.max_length is None and self.grid is None:
            raise ValueError("interpolate says how a table is resized, and needs max_length or grid")


@dataclass(frozen=True)
class Converted:
    """What was written: where, what was done to how many tensors, what the user has to know, and from which commit.

    The commit is that of a model of the hub, else None.
    """

    folder: Path
    done: tuple[str, ...]
    notes: tuple[str, ...]
    commit: str | None = None


def convert(
    path: str | Path,
    out: str | Path,
    request: Request,
    *,
    base: str | Path | None = None,
    shard_bytes: int = 2_000_000_000,
) -> Converted:
    """Write a changed copy of a checkpoint to a new folder, tensor by tensor; the source is opened for reading only.

    path     a folder in Hugging Face's form, of a model or of a LoRA adapter, a GGUF file, or a model of the hub
    out      the new folder, in Hugging Face's form
    base     for an adapter, the folder or config.json of the model that it was trained on

    Without a request the config says its rotary in both spellings. Raises ValueError if the target exists or lies in
    the source, where nothing is to be done, and where a request does not fit the checkpoint; CannotRead for what cannot
    be read; RuntimeError where the folder, read again, says other positions than planned. Nothing is left behind then.
    """
    out = Path(out)
    check_target(out)
    path = find(path)
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(path)):
        raise ValueError(f"{out} lies inside {path}, which is never written to; choose another folder")
    with tempfile.TemporaryDirectory() as made:
        source = open_source(path, base, Path(made))
        plan = plan_for(source, request)
        spelled = request == Request() and not source.gguf
        if spelled and plan.config == source.config:
            raise ValueError("nothing to convert; say what to change with layout, max_length or grid")
        write_folder(
            out,
            plan.config,
            plan.apply(source.tensors.items()),
            shard_bytes=shard_bytes,
            copy=[file for file in source.files if file.name not in plan.edited],
            edited=plan.edited,
            check=None if source.adapter else lambda folder: check_written(folder, plan.reading),
            adapter=source.adapter,
        )
    done = [*told(source, plan), *["rotary is said in both spellings, of transformers 4 and 5"] * spelled]
    return Converted(out, tuple(done), tuple(plan.notes), commit_of(path))


def told(source: Source, plan: Plan) -> Iterator[str]:
    """What was done, in sentences: each kind of change with the tensors that it was done to, counted by their names."""
    by_words: dict[str, Counter[str]] = {}
    for name, changes in plan.changes.items():
        for words, _ in changes:
            by_words.setdefault(words, Counter())[re.sub(r"(?<=\.)\d+(?=\.)", "*", name)] += 1
    for words, counted in by_words.items():
        kinds = ", ".join(f"{count} {name}" for name, count in counted.items())
        yield f"{words}: {kinds}"
    if source.gguf:
        yield f"dequantised and renamed from GGUF: {len(source.described)} tensors"
    else:
        yield f"copied as they are: {len(source.described) - len(plan.changes)} of {len(source.described)} tensors"


def besides(reading: Reading) -> str:
    """What a reading leaves out, to go with an error that may come of it."""
    return "".join(f"; {sentence}" for sentence in reading.not_covered[:2])


def plan_for(source: Source, request: Request) -> Plan:
    """Everything that has to be done; all that can be refused is refused here, before anything is written."""
    plan = Plan(copy.deepcopy(source.config), source.reading, notes=list(source.notes))
    if not source.adapter and MARK not in source.config:
        say_in_both_spellings(plan)
    if source.adapter and request != Request(layout=request.layout, stored=request.stored):
        raise ValueError("of an adapter only the layout can be converted; change the model that it belongs to")
    if request.layout is not None:
        plan_layout(plan, source, request.layout, request.stored)
    if request.max_length is not None:
        plan_positions(plan, source, request.max_length, request.interpolate or "linear")
    if request.grid is not None:
        plan_grid(plan, source, request.grid, request.interpolate or "cubic")
    plan.notes += unsaid(plan.config)
    return plan


def plan_layout(plan: Plan, source: Source, to: str, stored: str | None) -> None:
    said = layouts.layout_of(plan.reading)
    if said is None:
        raise ValueError(f"no layer of this checkpoint is known to turn queries and keys{besides(plan.reading)}")
    turned = layouts.turned_tensors(plan.reading, source.described, adapter=source.adapter)
    if stored is None and not source.adapter and not source.gguf:
        evidence = measure_layout.of_weights(plan.reading, source.tensors)
        # Weights do not say which way round a pair turns.
        if evidence.layout not in (None, "half" if said == "swapped" else said):
            raise ValueError(
                f"the config says that queries and keys are {said}, but {evidence}; say which it is with "
                f"stored='{evidence.layout}' or stored='{said}'"
            )
    now = stored or said
    if now == to:
        raise ValueError(
            f"queries and keys are {to} already, by the config; if the weights are not, say so with "
            f"stored='{next(layout for layout in layouts.LAYOUTS if layout != to)}'"
            if stored is None
            else f"stored and layout are both '{to}', which leaves nothing to convert"
        )
    for name, where in turned.items():
        plan.change(name, f"rearranged from {now} to {to}", partial(layouts.rearranged, turned=where, now=now, to=to))
    plan.reading = layouts.in_layout(plan.reading, to)
    say_in_config(plan, source)


def say_in_both_spellings(plan: Plan) -> None:
    """Say what is followed of rotary in the spelling of transformers 4 and of 5, whichever the config has."""
    for part in filter(layouts.rotates, plan.reading.parts):
        # Where no keys say it, the modules of the architecture do, whatever the config says.
        with contextlib.suppress(CannotExpress):
            candidate = with_positions(plan.config, part)
            if candidate != plan.config and (unlike := unlike_planned(candidate, plan.reading)):
                plan.notes.append(
                    f"The config says its rotary as it did, in one spelling: in both, transformers would serve "
                    f"something else ({'; '.join(unlike)})."
                )
            else:
                plan.config = candidate


def say_in_config(plan: Plan, source: Source) -> None:
    """Put what the weights now are into the config: by transformers' own keys if they can say it, else by our own."""
    turning = [part for part in source.reading.parts if layouts.rotates(part)]
    if len(turning) != 1:
        names = ", ".join(part.name or "the whole" for part in turning) or "none"
        words = f"expected one part of the model to turn queries and keys, found: {names}"
        raise CannotRead(words + besides(source.reading))
    changed = plan.reading.parts[source.reading.parts.index(turning[0])]
    specs = [layer.spec for layer in changed.layers]
    named = specs[0] if len(set(specs)) == 1 else specs
    if source.adapter:
        plan.notes.append(f"The adapter now goes with a model whose encoding is {named}.")
        return
    config = {key: value for key, value in plan.config.items() if key != MARK}
    for candidate in ways_to_say(config, changed):
        if not unlike_planned(candidate, plan.reading):
            plan.config = candidate
            return
    plan.config = config | {MARK: named}
    name = (plan.config.get("architectures") or [plan.config.get("model_type", "this architecture")])[0]
    plan.notes.append(
        f"No key of transformers says this of {name}: loaded there as it is, the model computes something else. The "
        f"config says it under '{MARK}'; run it with posenc.checkpoints.attach(model), or in a program that "
        f"expects it."
    )


def ways_to_say(config: dict[str, Any], part: Part) -> Iterator[dict[str, Any]]:
    """Configs that may say it; whoever takes one has read it back."""
    places = (config, dict), (config.get("rope_parameters") or {}, lambda inner: {"rope_parameters": inner})
    for place, wrap in places:
        for key in (None, *(key for key, value in place.items() if "interleave" in key and isinstance(value, bool))):
            candidate = config if key is None else config | wrap({**place, key: not place[key]})
            with contextlib.suppress(CannotExpress):
                yield with_positions(candidate, part)
            yield candidate
