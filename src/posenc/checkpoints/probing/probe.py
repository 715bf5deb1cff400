"""Measure a model as it is: what it can do at each length, up to which one, and what in it carries or fails."""

import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch

import posenc
from posenc.checkpoints.extension import runs
from posenc.checkpoints.extension.by_table import is_by_table
from posenc.checkpoints.extension.clock import Clock, Say
from posenc.checkpoints.extension.methods import causal_part, served
from posenc.checkpoints.extension.runs import Kept, check_folder, claimed, hash_of
from posenc.checkpoints.formats.devices import bytes_of, device_in_words
from posenc.checkpoints.measures import plan as plans
from posenc.checkpoints.measures.asked import ENOUGH, TRIALS, LongTask, task_of
from posenc.checkpoints.measures.long_tasks import TASKS
from posenc.checkpoints.measures.measure import Given, Measure, TooShort, Value, tokenizer_of
from posenc.checkpoints.measures.perplexity import LAST
from posenc.checkpoints.measures.plan import Way, planned, within_memory
from posenc.checkpoints.measures.same_tokens import SameTokens, difference, useful_length
from posenc.checkpoints.probing import bands, heads
from posenc.checkpoints.vocabulary.reading import Part
from posenc.lab import store
from posenc.lab.results.report import finite

SCHEMA = 1

TEXTS = 2
"""How many texts of the longest length the perplexity of the same tokens is taken of."""


@dataclass(frozen=True)
class Settings:
    """What a probe is asked for; the same, but for what is `alterable`, goes on from the passes of a folder.

    path     a folder, a GGUF file, or a model of the hub as owner/name
    tasks    names of tasks, or "all", or "none"
    lengths  tokens; none: a quarter and half of the trained length, that, and twice that, unless positions end there
    trials   of each task at each length
    text     files for perplexity, and for the sentences of tasks; without any, the Python language reference, and
             repeated sentences
    bands    how many bands of frequencies; 0 leaves them and the heads out
    chunk    how many tokens go through the model at once
    dtype    of the weights
    device   cpu, cuda, cuda:1, mps, or auto: spread over GPUs, CPU and disk
    memory   what the plan is held to, such as 24GB; None: what the device has free
    batch    how many texts of one length go through the model side by side
    cache    where it keeps keys: device, or cpu, from where they go to a CUDA device layer by layer
    """

    path: str
    tasks: tuple[str, ...] = ("all",)
    lengths: tuple[int, ...] = ()
    trials: int = TRIALS
    text: tuple[str, ...] = ()
    bands: int = 8
    chunk: int = 1024
    dtype: str = "float32"
    device: str = "cpu"
    memory: str | None = None
    batch: int = 1
    cache: str = "device"
    alterable: ClassVar = frozenset({"tasks", "lengths", "bands"})

    def __post_init__(self) -> None:
        for name, low in {"trials": 1, "bands": 0, "chunk": 1, "batch": 1}.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be {low} or more, got {getattr(self, name)}")
        if self.memory is not None:
            bytes_of(self.memory)
        for name in self.tasks:
            if name not in ("all", "none"):
                task_of(name)

    @property
    def asked(self) -> tuple[str, ...]:
        """The names of the tasks."""
        said = [TASKS if name == "all" else () if name == "none" else (name,) for name in self.tasks]
        return tuple(dict.fromkeys(name for names in said for name in names))

    def command(self, out: Path) -> str:
        """The command that asks for this."""
        said = ["posenc", "probe", self.path]
        for of in fields(self)[1:]:
            value = getattr(self, of.name)
            if value != of.default:
                values = value if isinstance(value, tuple) else (value,)
                said += [f"--{of.name}", *([",".join(values)] if of.name == "tasks" else map(str, values))]
        return shlex.join([*said, "--out", str(out)])


def probe(settings: Settings, out: Path, *, say: Say | None = None) -> dict[str, Any]:
    """Measure a model as it is, and return the record.

    In `out` lie measurements.jsonl (one line for each finished pass), record.json, report.html, report.md and figures.

    The tasks are asked at the shortest length first, and at the next one while ENOUGH of a task is right: what a model
    cannot do in a short text says nothing of positions in a long one.

    Raises ValueError for impossible settings, lengths beyond a learned table, a text that is too short, and a folder
    that holds anything else than the same probe; CannotRead for a checkpoint that cannot be read, or has no causal
    stack or no trained length.
    """
    from posenc.checkpoints.probing import report

    check_folder(settings, out)
    say = say or (lambda words: None)
    run = Probe.prepare(settings, say)
    with claimed(settings, out, say) as kept:
        record = run.record(kept)
        record["made"] = run.made(out)
        store.write(out / "record.json", (json.dumps(finite(record), indent=1, allow_nan=False) + "\n").encode())
        report.write(record, out)
    return record


@dataclass
class Probe:
    """A probe under way."""

    settings: Settings
    model: Any
    part: Part
    trained: int
    lengths: tuple[int, ...]
    tokens: SameTokens
    tasks: list[LongTask]
    model_hash: str
    clock: Clock
    plan: dict[str, Any]

    @classmethod
    def prepare(cls, settings: Settings, say: Say) -> "Probe":
        """Load and check everything, before any folder is made."""
        from posenc.checkpoints.formats import huggingface

        Way.of(settings).check()
        loaded = runs.loaded(settings, say)
        tokenizer_of(loaded)
        reading = huggingface.read(loaded.config)
        part = causal_part(reading, loaded.said())
        trained = served(part).served
        ends = is_by_table(reading)
        usual = (trained // 4, trained // 2, trained, *(() if ends else (2 * trained,)))
        lengths = tuple(sorted(set(settings.lengths or usual)))
        if ends and lengths[-1] > trained:
            raise ValueError(
                f"the positions of {settings.path} are a learned table of {trained:,} rows; give --lengths up to that, "
                f"got {lengths[-1]:,}"
            )
        how_read: dict[str, Any] = {"chunk": settings.chunk, "batch": settings.batch, "cache": settings.cache}
        given = Given(loaded, trained, lengths[-1], settings.text, samples=settings.trials, **how_read)
        last = min(LAST, lengths[0] // 2)
        if last < 2:
            raise ValueError(f"a length is 4 tokens or more, got {lengths[0]}")
        room = (len(given.tokens.ids) + len(given.tokens.opening)) // lengths[-1]
        tokens = SameTokens(given.tokens, lengths[-1], texts=max(1, min(TEXTS, room)), last=last, **how_read)
        # All of the text is there, or nothing is begun.
        tokens.window(tokens.texts - 1, lengths[-1])
        tasks = [LongTask.of(TASKS[name], given) for name in settings.asked]
        plan = planned(loaded, lengths, Way.of(settings), settings.memory)
        say(plans.sentences(plan)[0])
        hashed = hash_of(loaded.path)
        return cls(settings, loaded.model, part, trained, lengths, tokens, tasks, hashed, Clock(say), plan)

    def record(self, kept: Kept) -> dict[str, Any]:
        """All that is measured."""
        work = [self.tokens.work(self.model, length) for length in self.lengths]
        work += [task.work(self.model, self.lengths[0]) for task in self.tasks]
        self.clock.expect(sum(work))
        facts = self.facts(what="plan", way=self.plan["way"], lengths=list(self.lengths))
        ids = self.tokens.window(0, self.lengths[-1])
        self.plan = kept.once(facts, lambda: {"plan": plans.timed(self.plan, self.model, ids)})["plan"]
        for words in plans.sentences(self.plan)[1:]:
            self.clock.say(words)
        values = {n: self.value(kept, self.tokens, n) for n in self.lengths}
        useful, harms = useful_length(values)
        return {
            "schema": SCHEMA,
            "model": self.settings.path,
            "architecture": type(self.model).__name__,
            "trained": self.trained,
            "plan": self.plan,
            "lengths": list(self.lengths),
            "enough": ENOUGH,
            "same_tokens": {
                "last": self.tokens.last,
                "texts": self.tokens.texts,
                "on": self.tokens.on,
                "values": [said(length, value) for length, value in values.items()],
                "useful": useful,
                "harms": harms,
            },
            "tasks": [self.asked(kept, task) for task in self.tasks],
            **self.inside(kept, values),
        }

    def facts(self, **more: Any) -> dict[str, Any]:
        """What the result of a pass depends on."""
        device = {"device": self.settings.device} if self.settings.device != "cpu" else {}
        return {"model": self.model_hash, "dtype": self.settings.dtype, **device, **more}

    def raw(
        self, kept: Kept, measure: Measure, length: int, words: str = "", inside: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The result of a pass, kept or made; `inside` tells what was changed in the model."""
        facts = self.facts(what=measure.name, length=length, facts=dict(measure.facts), **(inside or {}))

        def make() -> dict[str, Any]:
            name = f"{words or measure.name}, {length:,} tokens"
            with self.clock.during(name, measure.work(self.model, length)) as tell, within_memory(name, self.plan):
                return {"raw": measure.run(self.model, length, tell=tell)}

        return kept.once(facts, make)["raw"]

    def value(self, kept: Kept, measure: Measure, length: int, **more: Any) -> Value:
        """The first number of a measure at a length."""
        return measure.values({length: self.raw(kept, measure, length, **more)}, length)[measure.numbers[0].name]

    def asked(self, kept: Kept, task: LongTask) -> dict[str, Any]:
        """A task at one length after the other, while it can be done."""
        out: dict[str, Any] = {"name": task.name, "words": task.task.words, "chance": None, "effective": None}
        out |= {"values": [], "depths": [], "why_not": ""}
        try:
            out["chance"] = task.numbers[0].chance
        except ValueError as error:
            # The tokenizer cannot have it.
            return out | {"why_not": str(error)}
        for length in self.lengths:
            if length > self.lengths[0]:
                self.clock.expect(task.work(self.model, length))
            try:
                raw = self.raw(kept, task, length)
            except TooShort as error:
                out["why_not"] = "" if out["values"] else f"{error}; give longer --lengths"
                continue
            found = task.values({length: raw}, length)["right"]
            shares = [sum(items) / len(items) for items in raw["right"]]
            out["values"].append(said(length, found))
            out["depths"].append({"length": length, "at": raw["depths"], "right": shares})
            out["why_not"] = ""
            if found.value < ENOUGH:
                break
            out["effective"] = length
        return out

    def inside(self, kept: Kept, values: Mapping[int, Value]) -> dict[str, Any]:
        """Bands of frequencies and heads."""
        out: dict[str, Any] = {"bands": [], "heads": [], "bands_left_out": "", "heads_left_out": ""}
        if not self.settings.bands:
            return out
        try:
            of = bands.bands_of(bands.rotaries_of(self.part), self.settings.bands)
        except ValueError as error:
            why = str(error)
            return out | {"bands_left_out": why, "heads_left_out": why}
        longest = self.lengths[-1]
        at = sorted({max((n for n in self.lengths if n <= self.trained), default=longest), longest})
        self.clock.expect(len(of) * sum(self.tokens.work(self.model, length) for length in at))
        for band in of:
            changes = []
            for length in at:
                changed = self.without(kept, band, length)
                change, error = difference(values[length], changed)
                changes.append({"length": length, "change": change, "error": error})
            out["bands"].append(asdict(band) | {"pairs": band.pairs, "words": band.words, "changes": changes})
        try:
            out |= self.heads(kept, of)
        except ValueError as error:
            out["heads_left_out"] = str(error)
        return out

    def without(self, kept: Kept, band: bands.Band, length: int) -> Value:
        """The same tokens with a band standing still."""
        words = f"without {band.pairs}"
        still = {"still": [band.first, band.end, *filter(None, [band.of])]}
        with bands.without(self.model, self.part, band, length):
            return self.value(kept, self.tokens, length, words=words, inside=still)

    def heads(self, kept: Kept, of: Sequence[bands.Band]) -> dict[str, Any]:
        """The heads of layers that see beyond the trained length, by the bands of their rotary encoding.

        Raises ValueError where they have several, and as `heads_of` does.
        """
        layers = bands.far_sighted(self.part, self.trained)
        if not layers:
            raise ValueError(f"no layer with rotary sees beyond the trained {self.trained:,} tokens")
        rotary, *others = bands.rotaries_of(self.part, layers)
        if others:
            raise ValueError(
                f"heads are compared by bands of one rotary encoding, and the layers that see beyond the trained "
                f"{self.trained:,} tokens have {1 + len(others)}"
            )
        of = [one for one in of if one.of in ("", repr(rotary))]
        ids = self.tokens.window(0, self.lengths[-1])
        listed = [[one.first, one.end] for one in of]
        more = {"length": len(ids), "bands": listed, "queries": heads.QUERIES}
        facts = self.facts(what="heads", facts=dict(self.tokens.facts), **more)

        def make() -> dict[str, Any]:
            with self.clock.during(f"heads, {len(ids):,} tokens", 0.0) as tell:
                chunk = self.settings.chunk
                found = heads.heads_of(self.model, ids, rotary, of, self.trained, layers, chunk=chunk, tell=tell)
            return {"heads": [one.to_dict() for one in found]}

        return {"heads": kept.once(facts, make)["heads"], "heads_of": repr(rotary)}

    def made(self, out: Path) -> dict[str, str]:
        """How it was made."""
        import transformers

        return {
            "command": self.settings.command(out),
            "model, SHA-256 of its files": self.model_hash,
            "text": f"{self.tokens.text.name}, SHA-256 {self.tokens.text.sha256}",
            "tasks": f"{self.settings.trials} trials each, seed 0",
            "dtype": self.settings.dtype,
            "device": device_in_words(self.settings.device),
            "versions": f"posenc {posenc.__version__}, torch {torch.__version__}, transformers "
            f"{transformers.__version__}, Python {platform.python_version()}",
            "threads": str(torch.get_num_threads()),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        }


def said(length: int, value: Value) -> dict[str, Any]:
    return {"length": length, "value": value.value, "error": value.error}
