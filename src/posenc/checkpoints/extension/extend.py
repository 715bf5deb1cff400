"""Extend a checkpoint's context: measure it before and after, and write it with the best method."""

import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc.checkpoints.extension import choice
from posenc.checkpoints.extension.by_encoding import VERIFIED_TOKENS, ByEncoding
from posenc.checkpoints.extension.by_table import ByTable, is_by_table
from posenc.checkpoints.extension.clock import Clock, Meter, Say
from posenc.checkpoints.extension.methods import FirstLosses, Method, Stretch, measurement_lengths
from posenc.checkpoints.extension.runs import PassResults, check_folder, claim_folder, hash_checkpoint
from posenc.checkpoints.extension.settings import COMMON_SETTINGS, OPTION_NAMES, Settings
from posenc.checkpoints.files.hub import commit_of
from posenc.checkpoints.formats import huggingface, load
from posenc.checkpoints.formats.devices import AUTO, accelerators, check_device, device_label
from posenc.checkpoints.measures import all_measures, memory
from posenc.checkpoints.measures.measure import WHOLE, Inputs, Measure, TooShort
from posenc.checkpoints.measures.perplexity import Perplexity, check_cache, curve, window_losses
from posenc.lab import store
from posenc.lab.views.page import json_value

SCHEMA = 4

CHECKPOINT, RECORD = "checkpoint", "record.json"
"""The files of a run in its folder: the extended checkpoint, and the record of the run."""


def extend(settings: Settings, out: Path, *, say: Say | None = None) -> dict[str, Any]:
    """Measure a model and its extensions, name the winner, write it to out/checkpoint, and return the record.

    say  takes a line about the progress every few seconds

    The folder `out` gets measurements.jsonl (one line for each finished pass), record.json, report.html, report.md, the
    figures, and the checkpoint. An interrupted pass runs again; finished ones do not.

    Raises ValueError for impossible settings, a text that is too short, and a folder with anything but the same run;
    CannotRead for an unreadable checkpoint; RuntimeError where the written checkpoint differs from the measured model,
    and is then deleted.
    """
    from posenc.checkpoints.extension import report

    check_folder(settings, out)
    say = say or (lambda words: None)
    run = Run.prepare(settings, out, say)
    with claim_folder(settings, out, say) as run.results:
        record = run.measure_methods()
        winner, words = choice.choose(settings.methods, record)
        record |= {"winner": winner["name"], "in_words": words}
        tasks = [measure for measure in run.measures[1:] if measure.needs is not None]
        record["further"] = [run.measure_if_able(task, record) for task in tasks]
        record["price"] = "" if winner["name"] == "none" else choice.describe_price(winner, record)
        record["written"] = write_winner(run.stretch, record, out / CHECKPOINT, run.first_losses)
        run.write(record)
        report.write(record, out)
    return record


@dataclass
class Run:
    """A run in progress: the model, its stretch, and its measures."""

    settings: Settings
    out: Path
    stretch: Stretch
    measures: tuple[Measure, ...]
    text: Perplexity | None
    """The perplexity of a text, with which the written checkpoint is compared."""
    baselines: tuple[Method, ...]
    lengths: tuple[int, ...]
    model_hash: str
    clock: Clock
    results: PassResults = field(init=False)
    """The results of finished passes; set by `claim_folder`."""
    commit: str | None = None
    """The commit of a model of the hub."""
    plan: dict[str, Any] | None = None
    """The memory plan of the passes of a decoder."""

    @classmethod
    def prepare(cls, settings: Settings, out: Path, say: Say) -> "Run":
        """Load and check everything before a folder is created."""
        check_device(settings.device)
        check_cache(settings.cache, settings.device)
        where = load.find_checkpoint(settings.path)
        say(f"loading {settings.path}")
        checkpoint = load.load(where, dtype=settings.dtype, device=settings.device)
        for words in checkpoint.notes:
            say(words)
        stretch = stretch_for(checkpoint, settings)
        reads = {name: getattr(settings, name) for name in ("text", "samples", "start", "chunk", "cache")}
        source = Inputs(checkpoint, stretch.trained_length, stretch.target, **reads)
        names = settings.measures or [name for name in stretch.fitting if name in all_measures.DEFAULT_MEASURES]
        changed_names = [name for name in settings.changed_fields() if name not in COMMON_SETTINGS]
        flags = {name: OPTION_NAMES.get(name, name) for name in changed_names}
        measures = all_measures.build_measures(names, stretch.fitting, source, flags, stretch.options)
        text = next((measure for measure in measures if isinstance(measure, Perplexity)), None)
        if text is None and isinstance(stretch, ByEncoding):
            text = Perplexity(replace(source, longest=min(source.trained_length, VERIFIED_TOKENS), samples=1))
        lengths = checked_lengths(stretch, settings)
        # A learned table ends, so the original model has no value at the target.
        ways = ALL_BASELINES if isinstance(stretch, ByTable) else set(settings.methods)
        baselines = tuple(
            Method(name, words, stretch.methods[0].specs, by_length=True, why_not="it is the model as it is")
            for name, words in {name: words for item in measures for name, words in item.baselines.items()}.items()
            if name in ways
        )
        if unavailable := ALL_BASELINES.intersection(settings.methods) - {baseline.name for baseline in baselines}:
            listing = ", ".join(names)
            raise ValueError(f"{min(unavailable)} is a way to use the model as it is that none of {listing} has")
        sha256, commit = hash_checkpoint(checkpoint.path), commit_of(checkpoint.path)
        run = cls(settings, out, stretch, measures, text, baselines, lengths, sha256, Clock(say), commit)
        if text is not None:
            run.plan = memory.plan_memory(checkpoint.model, lengths, **pass_options(settings))
            say(memory.plan_sentences(run.plan)[0])
        return run

    def measure_methods(self) -> dict[str, Any]:
        """Measure all methods, and return the record."""
        measures = [measure for measure in self.measures if measure.needs is None or measure is self.measures[0]]
        original, *methods = self.stretch.methods
        if measures[0].needs is not None:
            able, words = self.is_able(measures[0], original)
            if not able:
                raise ValueError(f"{words} So {measures[0].name} cannot decide; name another of --measures first")
        methods = [original, *self.baselines, *methods]
        for method in methods:
            for measure, length in self.passes(method, measures):
                if self.facts(measure, method, length) not in self.results:
                    self.clock.expect(measure.work(length))
        entries = [self.entry(method, measures) for method in methods]
        return {
            "schema": SCHEMA,
            "model": self.settings.path,
            "architecture": type(self.stretch.checkpoint.model).__name__,
            "plan": self.plan,
            "trained": self.stretch.trained_length,
            "target": self.stretch.target,
            "stretch": self.stretch.words,
            "factor": self.settings.factor,
            "lengths": list(self.lengths),
            "measures": [
                {
                    "name": measure.name,
                    "numbers": [asdict(number) for number in measure.numbers],
                    "price": measure.price,
                    "on": measure.source,
                    "facts": dict(measure.facts),
                }
                for measure in self.measures
            ],
            "left_out": dict(self.stretch.left_out),
            "methods": entries,
        }

    def write(self, record: dict[str, Any]) -> None:
        """Write the record with its provenance."""
        record["made"] = provenance(self)
        store.write(self.out / RECORD, (json.dumps(json_value(record), indent=1, allow_nan=False) + "\n").encode())

    def reach(self, method: Method) -> tuple[int, ...]:
        """Return the lengths at which a method is measured; baselines only matter beyond the trained length."""
        shortest = self.stretch.trained_length + 1 if method in self.baselines else 0
        return tuple(length for length in self.stretch.reach(method, self.lengths) if length >= shortest)

    def passes(self, method: Method, measures: Sequence[Measure]) -> list[tuple[Measure, int]]:
        """Return the measure and the length of each pass of a method."""
        if method in self.baselines:
            measures = [measure for measure in measures if method.name in measure.baselines]
        lengths = self.reach(method)
        return [(measure, length) for measure in measures for length in measure.passes(lengths, method.by_length)]

    def entry(self, method: Method, measures: Sequence[Measure]) -> dict[str, Any]:
        """Return the entry of a method in the record: its values at every length, and its cost."""
        raw: dict[Measure, dict[int, dict[str, Any]]] = {}
        for measure, length in self.passes(method, measures):
            raw.setdefault(measure, {})[length] = self.run_pass(measure, method, length)
        longest: dict[str, Any] = next(at[max(at)] for at in raw.values())
        text = next((at for measure, at in raw.items() if isinstance(measure, Perplexity)), None)
        return {
            "name": method.name,
            "words": method.words,
            "baseline": method in self.baselines,
            "spec": method.spec,
            "by_length": method.by_length,
            "config": None if method.config is None else changed_keys(self.stretch.config, method.config),
            "why_not": method.why_not,
            "values": [row for measure, at in raw.items() for row in value_rows(measure, at, self.reach(method))],
            "curve": text and curve(window_losses(text, max(text))),
            "passes": sum(map(len, raw.values())),
            **{cost: longest[cost] for cost in ("seconds", "cpu_seconds", "peak_mib")},
            "per_second": longest["read"] / longest["seconds"],
        }

    def facts(self, measure: Measure, method: Method, length: int) -> dict[str, Any]:
        """Return all that the result of a pass depends on."""
        return {
            "measure": measure.name,
            "of": dict(measure.facts),
            "model": self.model_hash,
            **self.stretch.facts(*self.live_method(method, length)),
            "how": method.name if method in self.baselines else WHOLE,
            "length": length,
            "dtype": self.settings.dtype,
            **({"device": self.settings.device} if self.settings.device != "cpu" else {}),
        }

    def live_method(self, method: Method, length: int) -> tuple[Method, int]:
        """Return the method that is attached and its length; baselines use the original model."""
        return (self.stretch.methods[0], self.stretch.trained_length) if method in self.baselines else (method, length)

    def run_pass(self, measure: Measure, method: Method, length: int) -> dict[str, Any]:
        """Return the raw result of a measure at a length, with its cost. A finished pass does not run again."""
        facts = self.facts(measure, method, length)
        words = f"{method.name}, {measure.name} at {length:,} tokens"

        def make() -> dict[str, Any]:
            with (
                self.stretch.model_with(*self.live_method(method, length)) as model,
                memory.explain_out_of_memory(words),
            ):
                with Meter(accelerators(model)) as meter, self.clock.track(words, measure.work(length)) as tell:
                    result = measure.run(model, length, facts["how"], tell)
            costs = {"seconds": meter.wall, "cpu_seconds": meter.cpu, "peak_mib": meter.peak_mib}
            return {"name": method.name, **result, **costs}

        return self.results.get_or_run(facts, make)

    def is_able(self, measure: Measure, original: Method) -> tuple[bool, str]:
        """Return whether the original model can do a task at its trained length, and a sentence about it."""
        trained_length = self.stretch.trained_length
        try:
            raw = {trained_length: self.run_pass(measure, original, trained_length)}
        except TooShort as error:
            return False, f"The measure {measure.name} was not tried: {error}."
        number = measure.numbers[0]
        value = measure.values(raw, trained_length)[number.name]
        words = f"At its trained length of {trained_length:,} tokens the model as it is has a {number.words} of "
        words += choice.format_value(value)
        needs = measure.needs or 0.0
        if value.value >= needs:
            return True, f"{words}."
        reason = f"less than {needs:g}, so longer inputs would say nothing of positions and were not tried"
        return False, f"{words}, {reason}."

    def measure_if_able(self, measure: Measure, record: dict[str, Any]) -> dict[str, Any]:
        """Measure a task at the target if the original model can do it at the trained length.

        Each length takes passes of its own, so only the original model and the winner run. Their values are added to
        the record.
        """
        able, words = self.is_able(measure, self.stretch.methods[0])
        if not able:
            return {"measure": measure.name, "able": False, "words": words}
        trained_length, target = self.stretch.trained_length, self.stretch.target
        for method in self.stretch.methods:
            if method.name not in ("none", record["winner"]):
                continue
            lengths = [*self.stretch.reach(method, (trained_length, target) if method.name == "none" else (target,))]
            raw = {length: self.run_pass(measure, method, length) for length in lengths}
            entry = next(entry for entry in record["methods"] if entry["name"] == method.name)
            entry["values"] += value_rows(measure, raw, lengths)
        return {"measure": measure.name, "able": True, "words": f"{words} It was asked at {target:,} too."}

    def first_losses(self, method: Method, count: int) -> tuple[Tensor, Tensor]:
        """Return the first ids of the measured text, at most `count`, and their losses with a method."""
        assert self.text is not None
        lengths = self.lengths if self.text in self.measures else (self.text.stride,)
        length = self.text.passes(self.stretch.reach(method, lengths), method.by_length)[0]
        losses = torch.tensor(self.run_pass(self.text, method, length)["losses"][0])
        ids = self.text.window(0, min(count, self.stretch.trained_length, len(losses) + 1))
        return ids, losses[: len(ids) - 1]


ALL_BASELINES = frozenset(name for measure in all_measures.MEASURES.values() for name in measure.baselines)
"""The names of all baselines: ways to use the original model."""


def stretch_for(checkpoint: load.LoadedModel, settings: Settings) -> Stretch:
    """Return the stretch of a model: by its encoding, or by a learned table.

    Raises as the two kinds do, and ValueError for a table that would be spread over devices.
    """
    reading = huggingface.read(checkpoint.config)
    kind = ByTable if is_by_table(reading) else ByEncoding
    if settings.device == AUTO and kind is ByTable:
        raise ValueError("--device auto: a longer table is made of weights that are all in one place; name one device")
    names = [name for name in settings.methods if name not in ALL_BASELINES]
    return kind.plan(checkpoint, reading, settings, names or ["none"])


def checked_lengths(stretch: Stretch, settings: Settings) -> tuple[int, ...]:
    """Return the lengths to measure at; raises ValueError for one that is beyond the target."""
    if wrong := [length for length in settings.lengths if not 2 <= length <= stretch.target]:
        raise ValueError(f"lengths go from 2 to the target of {stretch.target:,}, got {wrong[0]:,}")
    return measurement_lengths(stretch.trained_length, stretch.target, settings.lengths)


def pass_options(settings: Settings) -> dict[str, Any]:
    """Return the settings that a memory plan depends on, beside lengths."""
    return {name: getattr(settings, name) for name in ("dtype", "device", "chunk", "cache")}


def memory_plan(settings: Settings) -> dict[str, Any]:
    """Return the memory plan of a run from the config alone; the device need not exist. Raises as `extend` does."""
    checkpoint = load.without_weights(settings.path, dtype=settings.dtype)
    stretch = stretch_for(checkpoint, replace(settings, methods=("none",), replace=False))
    return memory.plan_memory(checkpoint.model, checked_lengths(stretch, settings), **pass_options(settings))


def write_winner(stretch: Stretch, record: Mapping[str, Any], where: Path, losses: FirstLosses) -> dict[str, Any]:
    """Write the checkpoint of the winner, and compare it with the measured model; {"path", "words", ...}.

    It replaces an older one when it is whole; a checkpoint that differs from the measured model is deleted, and raises.
    """
    name = record["winner"]
    method = next(method for method in stretch.methods if method.name == name)
    new, old = (where.with_name(f"{word}-{where.name}") for word in ("new", "old"))
    for folder in (new, old):  # left by a killed run
        shutil.rmtree(folder, ignore_errors=True)
    if name == "none":
        result: dict[str, Any] = {"path": None, "words": "Nothing was written: the model stays as it is."}
    elif method.config is None:
        words = f"Nothing was written for {name}: {method.why_not}."
        if writable := [entry["name"] for entry, _ in choice.ranking(record) if entry["config"] is not None]:
            words += f" Of those that can be written, {writable[0]} comes first: --method {writable[0]} writes it here."
        result = {"path": None, "words": words}
    else:
        try:
            stretch.write(method, new)
            result = {"path": str(where), "method": name, **stretch.verify(method, new, losses)}
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    if where.exists():
        # No record may name a checkpoint that does not exist.
        (where.parent / RECORD).unlink(missing_ok=True)
        where.rename(old)
    if new.exists():
        new.rename(where)
    shutil.rmtree(old, ignore_errors=True)
    return result


def value_rows(measure: Measure, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Return the numbers of a method at each length, as rows of the record."""
    return [
        {"measure": measure.name, "number": name, "length": length, **asdict(value)}
        for length in lengths
        for name, value in measure.values(raw, length).items()
    ]


def changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new and changed keys of a config, nested ones too."""
    changes = {key: value for key, value in new.items() if key not in old or old[key] != value}
    inner_configs = {key for key in changes if key.endswith("_config") and isinstance(old.get(key), Mapping)}
    return {key: changed_keys(old[key], value) if key in inner_configs else value for key, value in changes.items()}


def provenance(run: Run) -> dict[str, str]:
    """Return the provenance of a run: its command, model, versions and machine."""
    import transformers

    return {
        "command": run.settings.command(run.out),
        "model, SHA-256 of its files": run.model_hash,
        **({"model, commit of the hub": run.commit} if run.commit else {}),
        **{f"measured by {measure.name}": measure.source for measure in run.measures},
        "dtype": run.settings.dtype,
        "device": device_label(run.settings.device),
        "versions": f"posenc {posenc.__version__}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"Python {platform.python_version()}",
        **({"passes kept from": run.results.foreign_versions} if run.results.foreign_versions else {}),
        "threads": str(torch.get_num_threads()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
    }
