"""Stretch the context of a checkpoint: measure it before and after, name the method that wins, and write that one."""

import json
import os
import platform
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

import posenc
from posenc.checkpoints.extension import methods, passkey, perplexity
from posenc.checkpoints.extension.checkpoint import CHECKPOINT, write, written
from posenc.checkpoints.extension.choice import choose
from posenc.checkpoints.extension.clock import Clock, Say
from posenc.checkpoints.extension.methods import Method, Plan, attached, lengths_of
from posenc.checkpoints.extension.perplexity import Meter, Tokens, Work
from posenc.checkpoints.extension.runs import Kept, check_folder, claimed, hash_of
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import code, read_json
from posenc.lab import store
from posenc.lab.results.report import finite
from posenc.specs import files_in

SCHEMA = 1


@dataclass(frozen=True)
class Settings:
    """What a run is asked for; the same settings in the same folder go on where a run was interrupted.

    path      a folder, a GGUF file, or the name of a fetched model
    factor    target length / the length that the model serves now (unitless, above 1)
    methods   names from changes.WORDS, schedules as specs, or "all"
    text      files; without any, the Python language reference
    lengths   more lengths to measure at, besides the trained one, some in between, and the target (tokens)
    start     the token of the text that the first window begins with; None: 2000, or, when tuning, as late as the
              windows allow, because what stands before is for tuning
    windows   how many windows of the target length are measured, behind one another
    chunk     how many tokens go through the model at once
    dtype     of the weights: bfloat16 takes half the memory, and on processors that multiply it, less time
    passkey   trials at each depth; 0 leaves it out
    factors   a JSON file with the searched factors of longrope
    replace   whether another schedule is put in place of the one that the model has
    tune      steps of fine-tuning of the method that wins; 0 leaves it out
    tune_map  where the tokens stand while tuning: plain, pose, randomised, or a coordinate map as a spec
    tune_length, tune_rate  tokens of a window, and the highest rate
    """

    path: str
    factor: float
    methods: tuple[str, ...] = ("all",)
    text: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    start: int | None = None
    windows: int = 1
    chunk: int = 1024
    dtype: str = "float32"
    passkey: int = 1
    factors: str | None = None
    replace: bool = False
    tune: int = 0
    tune_map: str = "pose"
    tune_length: int = 1024
    tune_rate: float = 2e-5

    def __post_init__(self) -> None:
        least = {"windows": 1, "chunk": 1, "passkey": 0, "tune": 0, "tune_length": 2}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be {low} or more, got {getattr(self, name)}")
        if self.start is not None and self.start < 0:
            raise ValueError(f"start counts tokens of the text from 0, got {self.start}")
        if any(length < 2 for length in self.lengths):
            raise ValueError(f"a length is 2 tokens or more, got {min(self.lengths)}")

    def command(self, out: Path) -> str:
        """The command that asks for this."""
        said = ["posenc", "extend", self.path]
        for field_ in fields(self)[1:]:
            value = getattr(self, field_.name)
            if value == field_.default:
                continue
            name = {"factors": "longrope-factors", "methods": "method"}.get(field_.name, field_.name.replace("_", "-"))
            values = [",".join(value)] if name == "method" else value if isinstance(value, tuple) else [value]
            if value is True:
                values = []
            said += [f"--{name}", *(f"{one:g}" if isinstance(one, float) else str(one) for one in values)]
        return shlex.join([*said, "--out", str(out)])


def extend(settings: Settings, out: Path, *, say: Say | None = None) -> dict[str, Any]:
    """Measure a model and its extensions, name the winner, write it to out/checkpoint, and return the record.

    say  is told how the work stands, a line every few seconds

    In `out` lie measurements.jsonl (one line for each finished pass), record.json, report.html, report.md, the figures,
    and the checkpoint. A pass that was cut is done again; finished ones are not.

    Raises ValueError for impossible settings, a text that is too short, and a folder that holds anything else than the
    same run; CannotRead for a checkpoint that cannot be read; RuntimeError where the written checkpoint does not do
    what was measured, and is therefore taken away again.
    """
    from posenc.checkpoints.extension import extension_report

    check_folder(settings, out)
    say = say or (lambda words: None)
    run = Run.prepare(settings, out, say)
    with claimed(settings, out, say) as run.kept:
        record = run.measured()
        chosen, said = choose(settings.methods, record)
        record |= {"winner": chosen["name"], "in_words": said}
        record["passkey"] = run.find_keys(record["methods"], chosen["name"])
        if settings.tune:
            record["tuned"] = run.tuned(chosen["name"])
        record["written"] = written(run, record, chosen["name"])
        record["made"] = made(settings, out, run)
        store.write(out / "record.json", (json.dumps(finite(record), indent=1, allow_nan=False) + "\n").encode())
        extension_report.write(record, out)
    return record


@dataclass
class Run:
    """A run under way: the model and what is to be measured of it."""

    settings: Settings
    out: Path
    loaded: Any
    config: Mapping[str, Any]
    """The config.json that is extended."""
    as_it_lies: bool
    """Whether the weights are copied from the folder of the model."""
    plan: Plan
    text: Tokens
    start: int
    lengths: tuple[int, ...]
    model_hash: str
    clock: Clock
    kept: Kept = field(init=False)
    """What finished passes have left; from `claimed`."""
    weights: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def prepare(cls, settings: Settings, out: Path, say: Say) -> "Run":
        """Load and check everything, before any folder is made."""
        from posenc.checkpoints.formats import huggingface, load

        names = methods.names_of(settings.methods)
        factors = None if settings.factors is None else methods.read_factors(Path(settings.factors))
        if factors is not None and "longrope" not in names:
            raise ValueError("--longrope-factors are for the method longrope; name it with --method")
        if settings.tune:
            from posenc.checkpoints.extension import tune

            tune.check(settings)
        say(f"loading {settings.path}")
        loaded = load.load(settings.path, dtype=settings.dtype)
        for words in loaded.notes:
            say(words)
        if loaded.tokenizer is None:
            raise CannotRead(f"{loaded.path} has no tokenizer, and without one no text can be read")
        reading = huggingface.read(loaded.config)
        # The weights of a folder go along as they lie, and so does what else its config says.
        source = loaded.path / "config.json"
        as_it_lies = source.is_file() and not settings.tune
        config = read_json(source, within=loaded.path) if as_it_lies else loaded.said()
        plan = methods.plan(
            reading, config, settings.factor, settings.methods, longrope=factors, replace=settings.replace
        )
        too_long = [length for length in settings.lengths if length > plan.target]
        if too_long:
            raise ValueError(f"lengths go up to the target of {plan.target:,} tokens, got {too_long[0]:,}")
        text = perplexity.tokens(settings.text, loaded.tokenizer)
        start = settings.start
        if start is None:
            start = max(0, len(text.ids) - settings.windows * plan.target) if settings.tune else 2000
        # All of the windows are there, or nothing is begun.
        text.window(start + (settings.windows - 1) * plan.target, plan.target)
        if settings.tune:
            tune.check_text(settings, text, start)
        lengths = lengths_of(plan, settings.lengths)
        of = hash_of(loaded.path)
        return cls(settings, out, loaded, config, as_it_lies, plan, text, start, lengths, of, Clock(say))

    def measured(self) -> dict[str, Any]:
        """The record of all methods."""
        work, windows = Work.of(self.loaded.model), self.settings.windows
        for method in self.plan.methods:
            for length in self.passes(method):
                if self.facts(method, length) not in self.kept:
                    self.clock.expect(windows * work.total(length))
        found = [self.measure(method) for method in self.plan.methods]
        return {
            "schema": SCHEMA,
            "model": self.settings.path,
            "architecture": type(self.loaded.model).__name__,
            "trained": self.plan.trained,
            "target": self.plan.target,
            "stretch": self.plan.words,
            "factor": self.settings.factor,
            "lengths": list(self.lengths),
            "last": perplexity.LAST,
            "methods": found,
            "left_out": dict(self.plan.left_out),
            "text": {
                "name": self.text.name,
                "sha256": self.text.sha256,
                "tokens": len(self.text.ids),
                "start": self.start,
                "windows": windows,
            },
        }

    def passes(self, method: Method) -> tuple[int, ...]:
        """The lengths that take a pass: all, or the longest, which says the same of every shorter one."""
        return self.lengths if method.by_length else self.lengths[-1:]

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        """All that the losses of a pass depend on."""
        return {
            "what": "losses",
            "model": self.model_hash,
            "text": self.text.sha256,
            "start": self.start,
            "windows": self.settings.windows,
            "stride": self.plan.target,
            "specs": list(method.specs) if method.name != "none" else ["as it is"],
            "horizon": length if method.by_length else None,
            "length": length,
            "chunk": self.settings.chunk,
            "dtype": self.settings.dtype,
            **({"weights": dict(self.weights)} if self.weights else {}),
            **({"own_files": {path: code.sha256(path) for path in own}} if (own := files_in(*method.specs)) else {}),
        }

    def measure(self, method: Method, name: str = "") -> dict[str, Any]:
        """What a method is worth at every length, its curve, and what it costs."""
        name = name or method.name
        entries = {length: self.one_pass(method, length, name) for length in self.passes(method)}
        longest = self.lengths[-1]
        losses = {length: [torch.tensor(window) for window in entry["losses"]] for length, entry in entries.items()}
        at = [perplexity.measures(losses.get(length, losses[longest]), length) for length in self.lengths]
        where, curve = perplexity.curve(losses[longest])
        of = entries[longest]
        return {
            "name": name,
            "words": method.words,
            "spec": method.spec,
            "by_length": method.by_length,
            "config": None if method.config is None else differing(self.config, method.config),
            "why_not": method.why_not,
            "lengths": [one.to_dict() for one in at],
            "bands": [list(band) for band in perplexity.bands(losses[longest], self.lengths)],
            "curve": {"tokens": where, "perplexity": curve},
            "passes": len(entries),
            "seconds": of["seconds"],
            "cpu_seconds": of["cpu_seconds"],
            "tokens_per_second": self.settings.windows * longest / of["seconds"],
            "peak_mib": of["peak_mib"],
        }

    def one_pass(self, method: Method, length: int, name: str) -> dict[str, Any]:
        """The losses of all windows at a length, kept or made."""
        facts, windows = self.facts(method, length), self.settings.windows

        def make() -> dict[str, Any]:
            found, work = [], Work.of(self.loaded.model).total(length)
            with attached(self.loaded.model, method, length), Meter() as meter:
                for window in range(windows):
                    words = f"{name}, {length:,} tokens" + (
                        f", window {window + 1} of {windows}" if windows > 1 else ""
                    )
                    ids = self.text.window(self.start + window * self.plan.target, length)
                    with self.clock.during(words, work) as tell:
                        found.append(perplexity.losses(self.loaded.model, ids, chunk=self.settings.chunk, tell=tell))
            return {"name": name, "losses": [[round(x, 5) for x in one.tolist()] for one in found], **costs(meter)}

        return self.kept.once(facts, make)

    def find_keys(self, found: list[dict[str, Any]], chosen: str) -> dict[str, Any] | None:
        """Pass keys: at the trained length first, and at the target only where the model can do that; adds to `found`.

        At the target each one takes a pass, so only the model as it is and the chosen method are asked.
        """
        if not self.settings.passkey:
            return None
        by_name = {method.name: method for method in self.plan.methods}
        try:
            at_trained = self.keys_at(by_name["none"], self.plan.trained)
        except ValueError as error:
            return {"able": False, "words": f"Pass keys were not tried: {error}.", "at_trained": []}
        right, trials = (sum(getattr(one, of) for one in at_trained) for of in ("right", "trials"))
        words = f"At its trained length of {self.plan.trained:,} tokens the model says {right} of {trials} pass keys"
        out = {"able": passkey.able(at_trained), "at_trained": [one.to_dict() for one in at_trained]}
        if not out["able"]:
            less = f"{passkey.ABLE:.0%}"
            return out | {"words": f"{words}, less than {less}, so longer texts would say nothing and were not tried."}
        for entry in found:
            if entry["name"] not in ("none", chosen):
                continue
            keys = self.keys_at(by_name[entry["name"]], self.plan.target)
            entry["passkey"] = [one.to_dict() for one in keys]
        return out | {"words": f"{words}, and was asked for them at {self.plan.target:,} tokens too."}

    def keys_at(self, method: Method, length: int) -> list[passkey.Retrieval]:
        facts = self.facts(method, length) | {
            "what": "pass keys",
            "horizon": length if method.by_length else None,
            "trials": self.settings.passkey,
            "depths": list(passkey.DEPTHS),
        }

        def make() -> dict[str, Any]:
            work = Work.of(self.loaded.model).total(length) * self.settings.passkey * len(passkey.DEPTHS)
            self.clock.expect(work)
            with (
                attached(self.loaded.model, method, length),
                Meter() as meter,
                self.clock.during(f"{method.name}, pass keys in {length:,} tokens", work) as tell,
            ):
                model, tokenizer = self.loaded.model, self.loaded.tokenizer
                trials, chunk = self.settings.passkey, self.settings.chunk
                keys = passkey.retrieve(
                    model, tokenizer, length, trials, opening=self.text.opening, chunk=chunk, tell=tell
                )
            return {"name": method.name, "keys": [key.to_dict() for key in keys], **costs(meter)}

        return [passkey.Retrieval(**key) for key in self.kept.once(facts, make)["keys"]]

    def tuned(self, name: str) -> dict[str, Any]:
        """Fine-tune a method on the text before the windows, write the checkpoint, and measure it again."""
        from posenc.checkpoints.extension import tune
        from posenc.checkpoints.formats import load

        method = next(method for method in self.plan.methods if method.name == name)
        if method.config is None:
            why = method.why_not or "it is the model as it is"
            raise ValueError(f"{name} cannot be tuned and written: {why}; name another with --method")
        where = self.out / CHECKPOINT
        facts: dict[str, Any] = {"what": "tuning", "model": self.model_hash, "text": self.text.sha256}
        facts |= {"specs": list(method.specs)}
        facts |= {key: value for key, value in asdict(self.settings).items() if key.startswith("tune")}
        if own := files_in(self.settings.tune_map):
            facts["own_files"] = {path: code.sha256(path) for path in own}

        def make() -> dict[str, Any]:
            with attached(self.loaded.model, method, self.plan.target), Meter() as meter:
                before = self.text.ids[: self.start]
                losses = tune.tune(self.loaded.model, before, self.plan.target, self.settings, self.clock)
            write(self, method)
            return {"name": name, "losses": losses, **costs(meter)}

        if facts in self.kept and not where.exists():
            raise ValueError(f"'{where}' held the tuned weights of this run and is gone; begin again in another --out")
        if facts in self.kept:
            self.loaded = load.load(where, dtype=self.settings.dtype)
        elif where.exists():
            # Written by a run that was cut before it could say so.
            shutil.rmtree(where)
        entry = self.kept.once(facts, make)
        self.weights = facts
        return self.measure(method, f"{name}, tuned") | {"loss": entry["losses"], "tuning_seconds": entry["seconds"]}


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config that say something else than before, nested ones too."""
    new = {key: value for key, value in after.items() if key not in before or before[key] != value}
    within = {key for key in new if key.endswith("_config") and isinstance(before.get(key), Mapping)}
    return {key: differing(before[key], value) if key in within else value for key, value in new.items()}


def costs(meter: Meter) -> dict[str, Any]:
    return {"seconds": meter.wall, "cpu_seconds": meter.cpu, "peak_mib": meter.peak_mib}


def made(settings: Settings, out: Path, run: Run) -> dict[str, str]:
    """How a run was made."""
    import transformers

    return {
        "command": settings.command(out),
        "model, SHA-256 of its files": run.model_hash,
        "text": f"{run.text.name}, {len(run.text.ids):,} tokens, SHA-256 {run.text.sha256}",
        "windows": f"{settings.windows} of {run.plan.target:,} tokens, from token {run.start:,}",
        "chunk": f"{settings.chunk:,} tokens",
        "dtype": settings.dtype,
        "versions": f"posenc {posenc.__version__}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"Python {platform.python_version()}",
        **({"passes kept from": run.kept.others} if run.kept.others else {}),
        "threads": str(torch.get_num_threads()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
    }
