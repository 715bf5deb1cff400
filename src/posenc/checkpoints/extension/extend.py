"""Stretch the context of a checkpoint: measure it before and after, name the method that wins, and write that one."""

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
from posenc.checkpoints.extension.by_encoding import VERIFIED, ByEncoding
from posenc.checkpoints.extension.by_table import ByTable, is_by_table
from posenc.checkpoints.extension.clock import Clock, Meter, Say
from posenc.checkpoints.extension.methods import FirstLosses, Method, Stretch, lengths_of
from posenc.checkpoints.extension.runs import Kept, check_folder, claimed, hash_of
from posenc.checkpoints.extension.settings import NAMES, OF_ALL, Settings
from posenc.checkpoints.files.hub import commit_of
from posenc.checkpoints.formats import huggingface, load
from posenc.checkpoints.formats.devices import AUTO, accelerators_of, check_device, device_in_words
from posenc.checkpoints.measures import all_measures, memory
from posenc.checkpoints.measures.measure import WHOLE, Given, Measure, TooShort
from posenc.checkpoints.measures.perplexity import Perplexity, check_cache, curve, windows_of
from posenc.lab import store
from posenc.lab.views.page import finite

SCHEMA = 4

CHECKPOINT, RECORD = "checkpoint", "record.json"
"""What a run writes into its folder: the extended checkpoint, and what it tells of itself and of that."""


def extend(settings: Settings, out: Path, *, say: Say | None = None) -> dict[str, Any]:
    """Measure a model and its extensions, name the winner, write it to out/checkpoint, and return the record.

    say  is told how the work stands, a line every few seconds

    In `out` lie measurements.jsonl (one line for each finished pass), record.json, report.html, report.md, the figures,
    and the checkpoint. A pass that was cut is done again; finished ones are not.

    Raises ValueError for impossible settings, a text that is too short, and a folder that holds anything else than the
    same run; CannotRead for a checkpoint that cannot be read; RuntimeError where the written checkpoint does not do
    what was measured, and is not kept.
    """
    from posenc.checkpoints.extension import report

    check_folder(settings, out)
    say = say or (lambda words: None)
    run = Run.prepare(settings, out, say)
    with claimed(settings, out, say) as run.kept:
        record = run.measured()
        chosen, words = choice.choose(settings.methods, record)
        record |= {"winner": chosen["name"], "in_words": words}
        record["further"] = [run.further(measure, record) for measure in run.measures[1:] if measure.needs is not None]
        record["price"] = "" if chosen["name"] == "none" else choice.price(chosen, record)
        record["written"] = write_winner(run.stretch, record, out / CHECKPOINT, run.first_losses)
        run.write(record)
        report.write(record, out)
    return record


@dataclass
class Run:
    """A run under way: the model, how it is stretched, and what is measured of it."""

    settings: Settings
    out: Path
    stretch: Stretch
    measures: tuple[Measure, ...]
    text: Perplexity | None
    """What the first tokens of a text cost, which the checkpoint is held to."""
    baselines: tuple[Method, ...]
    lengths: tuple[int, ...]
    model_hash: str
    clock: Clock
    kept: Kept = field(init=False)
    """What finished passes have left; from `claimed`."""
    commit: str | None = None
    """Of a model of the hub."""
    plan: dict[str, Any] | None = None
    """Of decoders: what a pass takes of memory and time."""

    @classmethod
    def prepare(cls, settings: Settings, out: Path, say: Say) -> "Run":
        """Load and check everything, before any folder is made."""
        check_device(settings.device)
        check_cache(settings.cache, settings.device)
        where = load.find(settings.path)
        say(f"loading {settings.path}")
        loaded = load.load(where, dtype=settings.dtype, device=settings.device)
        for words in loaded.notes:
            say(words)
        stretch = stretch_of(loaded, settings)
        reads = {name: getattr(settings, name) for name in ("text", "samples", "start", "chunk", "cache")}
        source = Given(loaded, stretch.trained, stretch.target, **reads)
        names = settings.measures or [name for name in stretch.fitting if name in all_measures.UNASKED]
        options = {name: NAMES.get(name, name) for name in settings.given() if name not in OF_ALL}
        measures = all_measures.made(names, stretch.fitting, source, options, stretch.options)
        text = next((measure for measure in measures if isinstance(measure, Perplexity)), None)
        if text is None and isinstance(stretch, ByEncoding):
            text = Perplexity(replace(source, longest=min(source.trained, VERIFIED), samples=1))
        lengths = asked_lengths(stretch, settings)
        # A table ends, so that there is no model as it is to compare with.
        ways = EVERY if isinstance(stretch, ByTable) else set(settings.methods)
        baselines = tuple(
            Method(name, words, stretch.methods[0].specs, by_length=True, why_not="it is the model as it is")
            for name, words in {name: words for each in measures for name, words in each.baselines.items()}.items()
            if name in ways
        )
        if lost := EVERY.intersection(settings.methods) - {baseline.name for baseline in baselines}:
            raise ValueError(f"{min(lost)} is a way to use the model as it is that none of {', '.join(names)} has")
        sha256, commit = hash_of(loaded.path), commit_of(loaded.path)
        run = cls(settings, out, stretch, measures, text, baselines, lengths, sha256, Clock(say), commit)
        if text is not None:
            run.plan = memory.plan(loaded.model, lengths, **way(settings))
            say(memory.sentences(run.plan)[0])
        return run

    def measured(self) -> dict[str, Any]:
        """The record of all methods, by the measures that are asked of each."""
        asked = [measure for measure in self.measures if measure.needs is None or measure is self.measures[0]]
        none, *methods = self.stretch.methods
        if asked[0].needs is not None:
            able, words = self.able(asked[0], none)
            if not able:
                raise ValueError(f"{words} So {asked[0].name} cannot decide; name another of --measures first")
        methods = [none, *self.baselines, *methods]
        for method in methods:
            for measure, length in self.passes(method, asked):
                if self.facts(measure, method, length) not in self.kept:
                    self.clock.expect(measure.work(length))
        entries = [self.entry(method, asked) for method in methods]
        return {
            "schema": SCHEMA,
            "model": self.settings.path,
            "architecture": type(self.stretch.loaded.model).__name__,
            "plan": self.plan,
            "trained": self.stretch.trained,
            "target": self.stretch.target,
            "stretch": self.stretch.words,
            "factor": self.settings.factor,
            "lengths": list(self.lengths),
            "measures": [
                {
                    "name": measure.name,
                    "numbers": [asdict(number) for number in measure.numbers],
                    "price": measure.price,
                    "on": measure.on,
                    "facts": dict(measure.facts),
                }
                for measure in self.measures
            ],
            "left_out": dict(self.stretch.left_out),
            "methods": entries,
        }

    def write(self, record: dict[str, Any]) -> None:
        """Write the record, with how it was made."""
        record["made"] = made(self)
        store.write(self.out / RECORD, (json.dumps(finite(record), indent=1, allow_nan=False) + "\n").encode())

    def reach(self, method: Method) -> tuple[int, ...]:
        """The lengths at which a method is measured: baselines say nothing new up to the trained one."""
        least = self.stretch.trained + 1 if method in self.baselines else 0
        return tuple(length for length in self.stretch.reach(method, self.lengths) if length >= least)

    def passes(self, method: Method, measures: Sequence[Measure]) -> list[tuple[Measure, int]]:
        """The measures and lengths that take a pass of a method."""
        if method in self.baselines:
            measures = [measure for measure in measures if method.name in measure.baselines]
        lengths = self.reach(method)
        return [(measure, length) for measure in measures for length in measure.passes(lengths, method.by_length)]

    def entry(self, method: Method, measures: Sequence[Measure]) -> dict[str, Any]:
        """What a method is worth at every length, and what it costs."""
        raw: dict[Measure, dict[int, dict[str, Any]]] = {}
        for measure, length in self.passes(method, measures):
            raw.setdefault(measure, {})[length] = self.one_pass(measure, method, length)
        longest: dict[str, Any] = next(at[max(at)] for at in raw.values())
        text = next((at for measure, at in raw.items() if isinstance(measure, Perplexity)), None)
        return {
            "name": method.name,
            "words": method.words,
            "baseline": method in self.baselines,
            "spec": method.spec,
            "by_length": method.by_length,
            "config": None if method.config is None else differing(self.stretch.config, method.config),
            "why_not": method.why_not,
            "values": [row for measure, at in raw.items() for row in rows(measure, at, self.reach(method))],
            "curve": text and curve(windows_of(text, max(text))),
            "passes": sum(map(len, raw.values())),
            **{cost: longest[cost] for cost in ("seconds", "cpu_seconds", "peak_mib")},
            "per_second": longest["read"] / longest["seconds"],
        }

    def facts(self, measure: Measure, method: Method, length: int) -> dict[str, Any]:
        """All that the result of a pass depends on."""
        return {
            "measure": measure.name,
            "of": dict(measure.facts),
            "model": self.model_hash,
            **self.stretch.facts(*self.as_it_runs(method, length)),
            "how": method.name if method in self.baselines else WHOLE,
            "length": length,
            "dtype": self.settings.dtype,
            **({"device": self.settings.device} if self.settings.device != "cpu" else {}),
        }

    def as_it_runs(self, method: Method, length: int) -> tuple[Method, int]:
        """The method that is in the model, and the length that it is made for: baselines use the model as it is."""
        return (self.stretch.methods[0], self.stretch.trained) if method in self.baselines else (method, length)

    def one_pass(self, measure: Measure, method: Method, length: int) -> dict[str, Any]:
        """The raw result of a measure at a length, kept or made, with what it cost."""
        facts = self.facts(measure, method, length)
        words = f"{method.name}, {measure.name} at {length:,} tokens"

        def make() -> dict[str, Any]:
            with self.stretch.used(*self.as_it_runs(method, length)) as model, Meter(accelerators_of(model)) as meter:
                with self.clock.during(words, measure.work(length)) as tell, memory.enough(words):
                    found = measure.run(model, length, facts["how"], tell)
            costs = {"seconds": meter.wall, "cpu_seconds": meter.cpu, "peak_mib": meter.peak_mib}
            return {"name": method.name, **found, **costs}

        return self.kept.once(facts, make)

    def able(self, measure: Measure, none: Method) -> tuple[bool, str]:
        """Whether the model as it is can do a task at its trained length, and in words how well."""
        trained = self.stretch.trained
        try:
            raw = {trained: self.one_pass(measure, none, trained)}
        except TooShort as error:
            return False, f"The measure {measure.name} was not tried: {error}."
        number = measure.numbers[0]
        found = measure.values(raw, trained)[number.name]
        words = f"At its trained length of {trained:,} tokens the model as it is has a {number.words} of "
        words += choice.shown(found)
        needs = measure.needs or 0.0
        if found.value >= needs:
            return True, f"{words}."
        least = f"less than {needs:g}, so longer inputs would say nothing of positions and were not tried"
        return False, f"{words}, {least}."

    def further(self, measure: Measure, record: dict[str, Any]) -> dict[str, Any]:
        """A task that the model must be able to do: asked at the trained length first, and at the target only then.

        At the target it takes passes of its own, so only the model as it is and the chosen method are asked. Adds to
        the methods of the record.
        """
        able, words = self.able(measure, self.stretch.methods[0])
        if not able:
            return {"measure": measure.name, "able": False, "words": words}
        trained, target = self.stretch.trained, self.stretch.target
        for method in self.stretch.methods:
            if method.name not in ("none", record["winner"]):
                continue
            lengths = [n for n in self.stretch.reach(method, (trained, target)) if method.name == "none" or n > trained]
            raw = {length: self.one_pass(measure, method, length) for length in lengths}
            entry = next(one for one in record["methods"] if one["name"] == method.name)
            entry["values"] += rows(measure, raw, lengths)
        return {"measure": measure.name, "able": True, "words": f"{words} It was asked at {target:,} too."}

    def first_losses(self, method: Method, most: int) -> tuple[Tensor, Tensor]:
        """The first ids of the measured text, at most so many, and their losses with a method in the model."""
        assert self.text is not None
        lengths = self.lengths if self.text in self.measures else (self.text.stride,)
        length = self.text.passes(self.stretch.reach(method, lengths), method.by_length)[0]
        losses = torch.tensor(self.one_pass(self.text, method, length)["losses"][0])
        ids = self.text.window(0, min(most, self.stretch.trained, len(losses) + 1))
        return ids, losses[: len(ids) - 1]


EVERY = frozenset(name for made in all_measures.MEASURES.values() for name in made.baselines)
"""The names of all ways to use a model as it is."""


def stretch_of(loaded: load.Loaded, settings: Settings) -> Stretch:
    """How a model is stretched, by where it keeps its positions.

    Raises as the two ways do, and ValueError for what cannot be spread over devices.
    """
    reading = huggingface.read(loaded.config)
    kind = ByTable if is_by_table(reading) else ByEncoding
    if settings.device == AUTO and kind is ByTable:
        raise ValueError("--device auto: a longer table is made of weights that are all in one place; name one device")
    return kind.of(loaded, reading, settings, [name for name in settings.methods if name not in EVERY] or ["none"])


def asked_lengths(stretch: Stretch, settings: Settings) -> tuple[int, ...]:
    """The lengths to measure at; raises ValueError for one that is beyond the target."""
    if wrong := [length for length in settings.lengths if not 2 <= length <= stretch.target]:
        raise ValueError(f"lengths go from 2 to the target of {stretch.target:,}, got {wrong[0]:,}")
    return lengths_of(stretch.trained, stretch.target, settings.lengths)


def way(settings: Settings) -> dict[str, Any]:
    """How texts go through the model: what a plan depends on beside lengths."""
    return {name: getattr(settings, name) for name in ("dtype", "device", "chunk", "cache")}


def foreseen(settings: Settings) -> dict[str, Any]:
    """The plan of a run, from the config alone: nothing is loaded, run or written; the device need not be there.

    Raises as `extend` does.
    """
    loaded = load.without_weights(settings.path, dtype=settings.dtype)
    stretch = stretch_of(loaded, replace(settings, methods=("none",), replace=False))
    return memory.plan(loaded.model, asked_lengths(stretch, settings), **way(settings))


def write_winner(stretch: Stretch, record: Mapping[str, Any], where: Path, losses: FirstLosses) -> dict[str, Any]:
    """Write the checkpoint of the method that was chosen and hold it to what was measured; {"path", "words", ...}.

    It takes the place of an older one when it is whole; what does not do what was measured is removed, and raises.
    """
    name = record["winner"]
    method = next(method for method in stretch.methods if method.name == name)
    new, old = (where.with_name(f"{word}-{where.name}") for word in ("new", "old"))
    for folder in (new, old):  # what a killed run left
        shutil.rmtree(folder, ignore_errors=True)
    if name == "none":
        result: dict[str, Any] = {"path": None, "words": "Nothing was written: the model stays as it is."}
    elif method.config is None:
        words = f"Nothing was written for {name}: {method.why_not}."
        if other := [entry["name"] for entry in choice.ranked(record) if entry["config"] is not None]:
            words += f" Of those that can be written, {other[0]} comes first: --method {other[0]} writes it here."
        result = {"path": None, "words": words}
    else:
        try:
            stretch.write(method, new)
            result = {"path": str(where), "method": name, **stretch.verify(method, new, losses)}
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    if where.exists():
        # No record may speak of a checkpoint that is not there.
        (where.parent / RECORD).unlink(missing_ok=True)
        where.rename(old)
    if new.exists():
        new.rename(where)
    shutil.rmtree(old, ignore_errors=True)
    return result


def rows(measure: Measure, raw: Mapping[int, Mapping[str, Any]], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """The numbers of a method at each length, as a record has them."""
    return [
        {"measure": measure.name, "number": name, "length": length, **asdict(value)}
        for length in lengths
        for name, value in measure.values(raw, length).items()
    ]


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config that say something else than before, nested ones too."""
    new = {key: value for key, value in after.items() if key not in before or before[key] != value}
    within = {key for key in new if key.endswith("_config") and isinstance(before.get(key), Mapping)}
    return {key: differing(before[key], value) if key in within else value for key, value in new.items()}


def made(run: Run) -> dict[str, str]:
    """How a run was made."""
    import transformers

    return {
        "command": run.settings.command(run.out),
        "model, SHA-256 of its files": run.model_hash,
        **({"model, commit of the hub": run.commit} if run.commit else {}),
        **{f"measured by {measure.name}": measure.on for measure in run.measures},
        "dtype": run.settings.dtype,
        "device": device_in_words(run.settings.device),
        "versions": f"posenc {posenc.__version__}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"Python {platform.python_version()}",
        **({"passes kept from": run.kept.others} if run.kept.others else {}),
        "threads": str(torch.get_num_threads()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
    }
