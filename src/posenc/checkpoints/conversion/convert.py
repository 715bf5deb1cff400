"""Convert a checkpoint: rotary (RoPE) to another layout, tables to another size, GGUF to a folder."""

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
from posenc.checkpoints.conversion.source import ConversionPlan, Source, open_source
from posenc.checkpoints.conversion.table_changes import plan_grid, plan_positions
from posenc.checkpoints.files.folder_writer import check_target, write_folder
from posenc.checkpoints.files.hub import commit_of
from posenc.checkpoints.formats.config_json import MARK, with_positions
from posenc.checkpoints.formats.load import find_checkpoint
from posenc.checkpoints.inspection.served_layers import check_written, served_differences
from posenc.checkpoints.kinds.rotary.old_keys import old_key_notes
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading
from posenc.checkpoints.vocabulary.specs import CannotExpress


@dataclass(frozen=True)
class ConversionRequest:
    """The changes that the caller wants.

    layout       the layout that queries and keys get: "half", "interleaved" or "swapped"
    stored       their layout in the file, where the config does not name it or is wrong
    max_length   the number of positions that a learned table gets
    grid         the number of cells on each axis that a learned table of an image gets
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
class Conversion:
    """The result of a conversion. `changes` (of tensors) and `notes` are sentences; `commit` is that of a hub model."""

    folder: Path
    changes: tuple[str, ...]
    notes: tuple[str, ...]
    commit: str | None = None


def convert(
    path: str | Path,
    out: str | Path,
    request: ConversionRequest,
    *,
    base: str | Path | None = None,
    shard_bytes: int = 2_000_000_000,
) -> Conversion:
    """Write a changed copy of a checkpoint to a new folder, tensor by tensor. The source is opened for reading only.

    path     a folder of a Hugging Face model or LoRA adapter, a GGUF file, or a model of the hub
    out      the new folder, as Hugging Face stores models
    base     for an adapter, the folder or config.json of the model that it was trained on

    An empty request writes the rotary keys of transformers 4 and 5 into the config. Raises ValueError if the target
    exists or lies in the source, if nothing changes, and if the request does not fit; CannotRead for an unreadable
    source; RuntimeError if the new folder, read again, differs from the plan. An error leaves no files behind.
    """
    out = Path(out)
    check_target(out)
    path = find_checkpoint(path)
    if Path(os.path.realpath(out)).is_relative_to(os.path.realpath(path)):
        raise ValueError(f"{out} lies inside {path}, which is never written to; choose another folder")
    with tempfile.TemporaryDirectory() as scratch:
        source = open_source(path, base, Path(scratch))
        plan = plan_conversion(source, request)
        both_spellings = request == ConversionRequest() and not source.gguf
        if both_spellings and plan.config == source.config:
            raise ValueError("nothing to convert; say what to change with layout, max_length or grid")
        write_folder(
            out,
            plan.config,
            plan.apply(source.tensors.items()),
            shard_bytes=shard_bytes,
            copy=[file for file in source.files if file.name not in plan.edited_files],
            edited_files=plan.edited_files,
            check=None if source.adapter else lambda folder: check_written(folder, plan.reading),
            adapter=source.adapter,
        )
    changes = [*change_sentences(source, plan), *["rotary has the keys of transformers 4 and 5"] * both_spellings]
    return Conversion(out, tuple(changes), tuple(plan.notes), commit_of(path))


def change_sentences(source: Source, plan: ConversionPlan) -> Iterator[str]:
    """Yield a sentence for each kind of change, with its tensors counted by name."""
    by_words: dict[str, Counter[str]] = {}
    for name, changes in plan.changes.items():
        for words, _ in changes:
            by_words.setdefault(words, Counter())[re.sub(r"(?<=\.)\d+(?=\.)", "*", name)] += 1
    for words, counts in by_words.items():
        kinds = ", ".join(f"{count} {name}" for name, count in counts.items())
        yield f"{words}: {kinds}"
    total = len(source.meta_tensors)
    copied_words = f"copied as they are: {total - len(plan.changes)} of {total} tensors"
    yield f"dequantised and renamed from GGUF: {total} tensors" if source.gguf else copied_words


def gap_note(reading: Reading) -> str:
    """Return the gaps of a reading as the end of an error message."""
    return "".join(f"; {sentence}" for sentence in reading.not_covered[:2])


def plan_conversion(source: Source, request: ConversionRequest) -> ConversionPlan:
    """Plan every change; all checks run here, before any file is written."""
    plan = ConversionPlan(copy.deepcopy(source.config), source.reading, notes=list(source.notes))
    if not source.adapter and MARK not in source.config:
        write_both_spellings(plan)
    if source.adapter and request != ConversionRequest(layout=request.layout, stored=request.stored):
        raise ValueError("of an adapter only the layout can be converted; change the model that it belongs to")
    if request.layout is not None:
        plan_layout(plan, source, request.layout, request.stored)
    if request.max_length is not None:
        plan_positions(plan, source, request.max_length, request.interpolate or "linear")
    if request.grid is not None:
        plan_grid(plan, source, request.grid, request.interpolate or "cubic")
    plan.notes += old_key_notes(plan.config)
    return plan


def plan_layout(plan: ConversionPlan, source: Source, target: str, stored_layout: str | None) -> None:
    config_layout = layouts.layout_of(plan.reading)
    if config_layout is None:
        raise ValueError(f"no layer of this checkpoint is known to turn queries and keys{gap_note(plan.reading)}")
    rotated = layouts.rotated_tensors(plan.reading, source.meta_tensors, adapter=source.adapter)
    if stored_layout is None and not source.adapter and not source.gguf:
        evidence = measure_layout.layout_evidence(plan.reading, source.tensors)
        # Weights cannot tell "half" from "swapped", which differ in the direction of rotation.
        if evidence.layout not in (None, "half" if config_layout == "swapped" else config_layout):
            raise ValueError(
                f"the config says that queries and keys are {config_layout}, but {evidence}; say which it is with "
                f"stored='{evidence.layout}' or stored='{config_layout}'"
            )
    now = stored_layout or config_layout
    if now == target:
        raise ValueError(
            f"queries and keys are {target} already, by the config; if the weights are not, say so with "
            f"stored='{next(layout for layout in layouts.LAYOUTS if layout != target)}'"
            if stored_layout is None
            else f"stored and layout are both '{target}', which leaves nothing to convert"
        )
    rearrange = partial(layouts.rearrange, old=now, new=target)
    for name, channels in rotated.items():
        plan.change(name, f"rearranged from {now} to {target}", partial(rearrange, channels=channels))
    plan.reading = layouts.with_layout(plan.reading, target)
    write_layout_to_config(plan, source)


def write_both_spellings(plan: ConversionPlan) -> None:
    """Write the rotary keys of transformers 4 and of 5 into the config."""
    for part in filter(layouts.rotates, plan.reading.parts):
        # Some architectures fix their rotary in code, and have no keys for it.
        with contextlib.suppress(CannotExpress):
            candidate = with_positions(plan.config, part)
            if candidate != plan.config and (mismatches := served_differences(candidate, plan.reading)):
                plan.notes.append(
                    f"The config says its rotary as it did, in one spelling: in both, transformers would serve "
                    f"something else ({'; '.join(mismatches)})."
                )
            else:
                plan.config = candidate


def write_layout_to_config(plan: ConversionPlan, source: Source) -> None:
    """Write the new layout into the config, under transformers' key if there is one, else ours."""
    rotary_parts = [part for part in source.reading.parts if layouts.rotates(part)]
    if len(rotary_parts) != 1:
        names = ", ".join(part.name or "the whole" for part in rotary_parts) or "none"
        words = f"expected one part of the model to turn queries and keys, found: {names}"
        raise CannotRead(words + gap_note(source.reading))
    target_part = plan.reading.parts[source.reading.parts.index(rotary_parts[0])]
    specs = [layer.spec for layer in target_part.layers]
    encoding = specs[0] if len(set(specs)) == 1 else specs
    if source.adapter:
        plan.notes.append(f"The adapter now goes with a model whose encoding is {encoding}.")
        return
    config = {key: value for key, value in plan.config.items() if key != MARK}
    for candidate in candidate_configs(config, target_part):
        if not served_differences(candidate, plan.reading):
            plan.config = candidate
            return
    plan.config = config | {MARK: encoding}
    name = (plan.config.get("architectures") or [plan.config.get("model_type", "this architecture")])[0]
    plan.notes.append(
        f"No key of transformers says this of {name}: loaded there as it is, the model computes something else. The "
        f"config says it under '{MARK}'; run it with posenc.checkpoints.attach(model), or in a program that "
        f"expects it."
    )


def candidate_configs(config: dict[str, Any], part: Part) -> Iterator[dict[str, Any]]:
    """Yield configs that may express a part; the caller reads each back before use."""
    places = (config, dict), (config.get("rope_parameters") or {}, lambda inner: {"rope_parameters": inner})
    for place, wrap in places:
        for key in (None, *(key for key, value in place.items() if "interleave" in key and isinstance(value, bool))):
            candidate = config if key is None else config | wrap({**place, key: not place[key]})
            with contextlib.suppress(CannotExpress):
                yield with_positions(candidate, part)
            yield candidate
