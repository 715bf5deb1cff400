"""Stretch the context of a checkpoint: measure it before and after, name the method that wins, and write that one."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import posenc
from posenc.checkpoints.extension import by_table, choice
from posenc.checkpoints.extension.by_encoding import VERIFIED, ByEncoding
from posenc.checkpoints.extension.by_table import ByTable, is_by_table
from posenc.checkpoints.extension.checkpoint import CHECKPOINT, RECORD, written
from posenc.checkpoints.extension.clock import Clock, Say
from posenc.checkpoints.extension.methods import Method, lengths_of
from posenc.checkpoints.extension.runs import Kept, check_folder, claimed, hash_of
from posenc.checkpoints.extension.settings import NAMES, OF_ALL, OF_UNMEASURED, Settings
from posenc.checkpoints.extension.stretch import Stretch
from posenc.checkpoints.files.hub import commit_of
from posenc.checkpoints.formats.devices import AUTO, accelerators_of, device_in_words
from posenc.checkpoints.measures import all_measures
from posenc.checkpoints.measures import plan as plans
from posenc.checkpoints.measures.measure import WHOLE, Given, Measure, TooShort
from posenc.checkpoints.measures.perplexity import Perplexity
from posenc.checkpoints.measures.plan import Way, planned, within_memory
from posenc.checkpoints.measures.work import Meter
from posenc.foreign.text import told
from posenc.lab import store
from posenc.lab.results.report import finite

if TYPE_CHECKING:
    from posenc.checkpoints.formats.load import Loaded

SCHEMA = 3


def extend(settings: Settings, out: Path, *, say: Say | None = None) -> dict[str, Any]:
    """Measure a model and its extensions, name the winner, write it to out/checkpoint, and return the record.

    say  is told how the work stands, a line every few seconds

    In `out` lie measurements.jsonl (one line for each finished pass), record.json, report.html, report.md, the figures,
    and the checkpoint. A pass that was cut is done again; finished ones are not.

    Raises ValueError for impossible settings, a text that is too short, and a folder that holds anything else than the
    same run; CannotRead for a checkpoint that cannot be read; RuntimeError where the written checkpoint does not do
    what was measured, and is therefore taken away again.
    """
    from posenc.checkpoints.extension import report

    check_folder(settings, out)
    say = say or (lambda words: None)
    run = Run.prepare(settings, out, say)
    with claimed(settings, out, say) as run.kept:
        if not run.measures:
            return run.unmeasured()
        record = run.measured()
        chosen, words = choice.choose(settings.methods, record)
        record |= {"winner": chosen["name"], "in_words": words}
        record["further"] = [run.further(measure, record) for measure in run.measures[1:] if measure.needs is not None]
        record["price"] = "" if chosen["name"] == "none" else choice.price(chosen, record)
        record["written"] = written(run.stretch, record, out / CHECKPOINT, run.first_losses)
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
        from posenc.checkpoints.formats import load

        Way.of(settings).check()
        where = load.find(settings.path)
        say(f"loading {settings.path}")
        loaded = load.load(where, dtype=settings.dtype, device=settings.device)
        for words in loaded.notes:
            say(words)
        stretch = stretch_of(loaded, settings)
        kind = type(stretch)
        given = Given(
            loaded,
            stretch.trained,
            stretch.target,
            settings.text,
            settings.samples,
            settings.start,
            settings.chunk,
            settings.batch,
            settings.cache,
        )
        if not stretch.fitting:
            check_unmeasured(stretch, settings)
        names = settings.measures or [name for name in stretch.fitting if name in all_measures.UNASKED]
        read = OF_ALL if stretch.fitting else OF_UNMEASURED
        options = {name: NAMES.get(name, name) for name in settings.given() if name not in read}
        measures = all_measures.made(names, stretch.fitting, given, options, stretch.options)
        text = next((one for one in measures if isinstance(one, Perplexity)), None)
        if text is None and kind is ByEncoding:
            text = Perplexity(replace(given, longest=min(given.trained, VERIFIED), samples=1))
        lengths = asked_lengths(stretch, settings)
        # A table ends, so that there is no model as it is to compare with.
        asked = EVERY if kind is ByTable else set(settings.methods)
        baselines = tuple(
            Method(name, words, stretch.methods[0].specs, by_length=True, why_not="it is the model as it is")
            for name, words in {name: words for one in measures for name, words in one.baselines.items()}.items()
            if name in asked
        )
        if lost := [name for name in settings.methods if name in EVERY and name not in [one.name for one in baselines]]:
            raise ValueError(f"{lost[0]} is a way to use the model as it is that none of {', '.join(names)} has")
        hashed = hash_of(loaded.path)
        commit = commit_of(loaded.path)
        run = cls(settings, out, stretch, measures, text, baselines, lengths, hashed, Clock(say), commit)
        if text is not None:
            run.plan = planned(loaded, lengths, Way.of(settings), settings.memory)
            for words in plans.sentences(run.plan)[:1]:
                say(words)
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
                    self.clock.expect(measure.work(self.stretch.loaded.model, length))
        return {
            **self.header(),
            "methods": [self.entry(method, asked) for method in methods],
        }

    def header(self) -> dict[str, Any]:
        """What was asked, of which model."""
        return {
            "schema": SCHEMA,
            "model": self.settings.path,
            "architecture": type(self.stretch.loaded.model).__name__,
            "unit": self.stretch.unit,
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
        }

    def unmeasured(self) -> dict[str, Any]:
        """The record of a model that no measure fits, with the checkpoint of the one method that was asked for."""
        (method,) = self.stretch.methods[1:]
        entry = {"name": method.name, "words": method.words, "spec": method.spec, "values": []}
        config = differing(self.stretch.config, method.config or {})
        record = self.header() | {"methods": [{**entry, "config": config, "details": []}], "winner": method.name}
        record |= {"further": [], "price": ""}
        elsewhere = all_measures.elsewhere(self.stretch.loaded.model)
        record["in_words"] = (
            f"Nothing was measured, because posenc has no measure for a {record['architecture']}: {method.name} is "
            f"written because it was asked for. What it is worth says {elsewhere}."
        )
        record["written"] = written(self.stretch, record, self.out / CHECKPOINT, self.first_losses)
        self.write(record)
        return record

    def write(self, record: dict[str, Any]) -> None:
        """Write the record, with how it was made."""
        record["made"] = made(self)
        store.write(self.out / RECORD, (json.dumps(finite(record), indent=1, allow_nan=False) + "\n").encode())

    def passes(self, method: Method, measures: Sequence[Measure]) -> list[tuple[Measure, int]]:
        """The measures and lengths that take a pass of a method."""
        lengths = self.stretch.reach(method, self.lengths)
        if method in self.baselines:
            lengths = tuple(length for length in lengths if length > self.stretch.trained)
            measures = [measure for measure in measures if method.name in measure.baselines]
        return [(measure, length) for measure in measures for length in measure.passes(lengths, method.by_length)]

    def entry(self, method: Method, measures: Sequence[Measure]) -> dict[str, Any]:
        """What a method is worth at every length, and what it costs."""
        raw: dict[Measure, dict[int, dict[str, Any]]] = {}
        for measure, length in self.passes(method, measures):
            raw.setdefault(measure, {})[length] = self.one_pass(measure, method, length)
        longest: dict[str, Any] = next(of[max(of)] for of in raw.values())
        baseline = method in self.baselines
        reached = [n for n in self.stretch.reach(method, self.lengths) if not baseline or n > self.stretch.trained]
        return {
            "name": method.name,
            "words": method.words,
            "baseline": baseline,
            "spec": method.spec,
            "by_length": method.by_length,
            "config": None if method.config is None else differing(self.stretch.config, method.config),
            "why_not": method.why_not,
            "values": [one for measure, of in raw.items() for one in rows(measure, of, reached)],
            "details": [asdict(one) for measure, of in raw.items() for one in measure.details(of, self.lengths)],
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
                with self.clock.during(words, measure.work(model, length)) as tell, within_memory(words, self.plan):
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
            entry["details"] += [asdict(one) for one in measure.details(raw, lengths)]
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


def check_unmeasured(stretch: Stretch, settings: Settings) -> None:
    """Raises ValueError unless one method is named for a model of which nothing says which one is best."""
    named = [method.name for method in stretch.methods[1:]]
    if len(named) != 1 or list(settings.methods) != named:
        raise ValueError(
            f"posenc has no measure for a {type(stretch.loaded.model).__name__}, so that nothing says which method is "
            f"best; name exactly one of them: --method {', '.join(by_table.WORDS)}"
        )


def stretch_of(loaded: "Loaded", settings: Settings) -> Stretch:
    """How a model is stretched, by where it keeps its positions.

    Raises as the two ways do, and ValueError for what cannot be spread over devices.
    """
    from posenc.checkpoints.formats import huggingface

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


OF_PLANS = ("factor", "lengths", "dtype", "device", "memory", "chunk", "batch", "cache")
"""The settings that a plan alone depends on."""


def foreseen(settings: Settings) -> dict[str, Any]:
    """The plan of a run, from the config alone: nothing is loaded, run or written.

    Where the memory is given, the device need not be there. Of a model that `extend` refuses, which has no trained
    length to go from, it is the plan of passes at the lengths asked for; without any it raises as `extend` does.
    Raises ValueError for a setting that no plan depends on.
    """
    from posenc.checkpoints.formats import load

    if others := [NAMES.get(name, name).replace("_", "-") for name in settings.given() if name not in OF_PLANS]:
        raise ValueError(f"--{others[0]} would change nothing in a plan; leave it out")
    way = Way.of(settings)
    if settings.memory is None:
        way.check()
    loaded = load.without_weights(settings.path, dtype=settings.dtype)
    try:
        stretch = stretch_of(loaded, replace(settings, methods=("none",)))
    except ValueError as error:
        if not settings.lengths:
            raise
        plan = planned(loaded, sorted(settings.lengths), way, settings.memory)
        return plan | {"refused": f"It is no plan of a run, which is refused: {told(error)}."}
    return planned(loaded, asked_lengths(stretch, settings), way, settings.memory)


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
