"""Stretch the context of a checkpoint: measure it before and after, name the method that wins, and write that one."""

import json
import os
import platform
import shlex
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posenc
from posenc.checkpoints.extension import methods, passkey, perplexity
from posenc.checkpoints.extension.methods import Method, Plan
from posenc.checkpoints.extension.perplexity import Meter, Tokens, Work
from posenc.checkpoints.extension.runs import Kept, check_folder, claimed, hash_of
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import code, files_of, read_json
from posenc.lab import store
from posenc.lab.report import finite
from posenc.lab.summary import duration
from posenc.specs import files_in

SCHEMA = 1

CHECKPOINT = "checkpoint"
"""The folder, in the folder of a run, that holds the extended checkpoint."""

KEEPS = 1.05
"""A method may win if its mean perplexity at the trained length is at most this many times that of the model as it
is: who pays with the short texts for the long ones has not extended anything."""

TIE = 1.01
"""Perplexities of the last tokens within this ratio are no difference on one text."""

VERIFIED = 1024
"""On how many tokens the written checkpoint is compared with what was measured."""

NEAR = {"float32": 1e-3, "float64": 1e-6}
"""How far (nats) the mean loss of the written checkpoint may lie from the measured one; in half precision 0.02."""


@dataclass(frozen=True)
class Settings:
    """What a run is asked for; the same settings in the same folder go on where a run was interrupted.

    path      a folder, a GGUF file, or the name of a fetched model
    factor    target length / trained length (unitless, above 1)
    methods   names from methods.WORDS, or "all"
    text      files; without any, the Python language reference
    lengths   more lengths to measure at, besides the trained one, some in between, and the target (tokens)
    start     the token of the text that the first window begins with; None: 2000, or, when tuning, as late as the
              windows allow, because what stands before is for tuning
    windows   how many windows of the target length are measured, behind one another
    chunk     how many tokens go through the model at once
    dtype     of the weights: bfloat16 takes half the memory, and on processors that multiply it, less time
    passkey   trials at each depth; 0 leaves it out
    factors   a JSON file with the searched factors of longrope
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
            said += [f"--{name}", *(f"{one:g}" if isinstance(one, float) else str(one) for one in values)]
        return shlex.join([*said, "--out", str(out)])


Say = Callable[[str], None]


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
        chosen, said = choose(settings, record)
        record |= {"winner": chosen["name"], "in_words": said}
        record["passkey"] = run.find_keys(record["methods"], chosen["name"])
        if settings.tune:
            record["tuned"] = run.tuned(chosen["name"])
        record["written"] = run.written(record, chosen["name"])
        record["made"] = made(settings, out, run)
        store.write(out / "record.json", (json.dumps(finite(record), indent=1, allow_nan=False) + "\n").encode())
        extension_report.write(record, out)
    return record


class Clock:
    """Says how far the work is and how long the rest will take, at most every few seconds."""

    def __init__(self, say: Say, every: float = 10.0) -> None:
        self.say, self.every = say, every
        self.began = self.last = time.monotonic()
        self.total = self.done = 0.0

    def expect(self, work: float) -> None:
        self.total += work

    @contextmanager
    def during(self, words: str, work: float) -> Generator[Callable[[float], None]]:
        """What a pass of so much work tells the share of it that is done."""

        def tell(share: float) -> None:
            now = time.monotonic()
            if now - self.last < self.every:
                return
            self.last, done = now, self.done + share * work
            left = (now - self.began) * max(self.total - done, 0.0) / done if done else 0.0
            self.say(f"{words}: {share:.0%}; about {duration(left)} left in all")

        yield tell
        self.done += work


@dataclass
class Run:
    """A run under way: the model and what is to be measured of it."""

    settings: Settings
    out: Path
    loaded: Any
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
        plan = methods.plan(reading, loaded.config.to_dict(), settings.factor, settings.methods, longrope=factors)
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
        return cls(settings, out, loaded, plan, text, start, lengths, hash_of(loaded.path), Clock(say))

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
            "words": methods.WORDS[method.name],
            "spec": method.spec,
            "by_length": method.by_length,
            "config": None if method.config is None else dict(method.config),
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
            self.write(method)
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

    def written(self, record: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Write the checkpoint of a method and compare it, loaded by transformers alone, with what was measured."""
        method = next(method for method in self.plan.methods if method.name == name)
        if name == "none":
            return {"path": None, "words": "Nothing was written: no method is better than the model as it is."}
        if method.config is None:
            other = [
                m["name"]
                for m in ranked(record["methods"], record["trained"], record["target"])
                if m["config"] is not None and m["name"] != "none"
            ]
            hint = (
                f" Of those that can be written, {other[0]} comes first: --method {other[0]} writes it."
                if other
                else ""
            )
            return {"path": None, "words": f"Nothing was written for {name}: {method.why_not}.{hint}"}
        where = self.out / CHECKPOINT
        if not where.exists():
            self.write(method)
        kept = self.one_pass(method, self.passes(method)[0], name)["losses"][0]
        ids = self.text.window(self.start, min(VERIFIED, self.plan.trained, len(kept) + 1))
        # Two copies of a large model do not fit.
        self.loaded = None
        expected = torch.tensor(kept)[: len(ids) - 1]
        try:
            difference = verify(where, ids, expected, self.settings.dtype)
        except Exception:
            shutil.rmtree(where)
            raise
        words = (
            f"transformers loads it, and its mean loss over the first {len(ids):,} tokens is that of the table to "
            f"{difference:.1g} nats."
        )
        return {"path": str(where), "method": name, "tokens": len(ids), "difference": difference, "words": words}

    def write(self, method: Method) -> None:
        """The extended checkpoint: the config changed; the weights as they lie, unless they were tuned or quantised."""
        from posenc.checkpoints.files.folder_writer import write_folder
        from posenc.checkpoints.files.tensors import open_tensors

        assert method.config is not None
        where, source = self.out / CHECKPOINT, self.loaded.path
        if source.is_dir() and (source / "config.json").is_file() and not self.settings.tune:
            tensors = open_tensors(source)
            config = merged(read_json(source / "config.json", within=source), method.config)
            others = [file for file in files_of(source) if is_beside(file)]
            write_folder(where, config, tensors.items(), copy=others)
            return
        change_config(self.loaded.config, method.config)
        self.loaded.save_huggingface(where)


def is_beside(file: Path) -> bool:
    """Whether a file belongs to a tokenizer or to generation, and so goes along with a checkpoint."""
    kinds = (".json", ".txt", ".model", ".jinja")
    own = file.name in ("config.json", "fetched.json") or file.name.endswith(".safetensors.index.json")
    return file.suffix in kinds and not own


def merged(config: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """A config with keys changed, nested ones too; None takes a key away."""
    out = dict(config)
    for key, value in changed.items():
        if value is None:
            out.pop(key, None)
        elif key != "rope_parameters" and isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out


def change_config(config: Any, changed: Mapping[str, Any]) -> None:
    """The same for a config of transformers."""
    for key, value in changed.items():
        inner = getattr(config, key, None)
        if key != "rope_parameters" and isinstance(value, Mapping) and hasattr(inner, "to_dict"):
            change_config(inner, value)
        elif value is not None:
            setattr(config, key, dict(value) if isinstance(value, Mapping) else value)


@contextmanager
def attached(model: Any, method: Method, length: int) -> Generator[None]:
    """The model with a method in it; as it is, it runs by its own code, unless that goes wrong behind a cache."""
    if method.name == "none" and not method.by_length:
        yield
        return
    from posenc.checkpoints.live.attach import attach, detach

    attach(model, method.specs, horizon=length if method.by_length else None)
    try:
        yield
    finally:
        detach(model)


def costs(meter: Meter) -> dict[str, Any]:
    return {"seconds": meter.wall, "cpu_seconds": meter.cpu, "peak_mib": meter.peak_mib}


def lengths_of(plan: Plan, more: Sequence[int] = ()) -> tuple[int, ...]:
    """The lengths to measure at: the trained one, 1.5, 2, 3, 4, 6, ... times it, and the target."""
    found, step = {plan.trained, plan.target, *more}, 1
    while plan.trained * step < plan.target:
        found |= {length for length in (plan.trained * step, plan.trained * step * 3 // 2) if length < plan.target}
        step *= 2
    return tuple(sorted(found))


def at(entry: Mapping[str, Any], length: int) -> Mapping[str, Any]:
    """The measures of a method at a length."""
    return next(one for one in entry["lengths"] if one["length"] == length)


def choose(settings: Settings, record: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The method that is written, the one asked for or the one that wins, and in words why.

    The lowest perplexity of the last tokens at the target wins, among methods whose mean perplexity at the trained
    length is at most 1.05 times that of the model as it is; methods within 1 % of the lowest are equal on one text.
    """
    found = record["methods"]
    trained, target = record["trained"], record["target"]
    before = found[0]
    order = ranked(found, trained, target)
    best = order[0]
    low = at(best, target)["last"]
    equal = [one["name"] for one in order[1:] if keeps(one, before, trained) and at(one, target)["last"] <= TIE * low]
    last = f"the last {min(perplexity.LAST, target - 1)} tokens at {target:,}"
    words = (
        f"{best['name']} wins on this text: the perplexity of {last} is {low:.3g}, where the model as it is has "
        f"{at(before, target)['last']:.4g}"
    )
    if equal:
        words += f"; {', '.join(equal)} {'is' if len(equal) == 1 else 'are'} within 1 % of it, which is no difference"
    price = at(best, trained)["mean"] / at(before, trained)["mean"] - 1
    words += f". At the trained length of {trained:,} its mean perplexity is {at(best, trained)['mean']:.3g}"
    words += f", {abs(price):.1%} {'above' if price >= 0 else 'below'} the {at(before, trained)['mean']:.3g} of before."
    if best is before:
        words = f"No method is better than the model as it is: the perplexity of {last} is {low:.3g}."
    elif not keeps(best, before, trained):
        words += " No method keeps the trained length within 5 %: this is the lowest, at that price."
    single = [name for name in methods.names_of(settings.methods) if name != "none"]
    if len(single) == 1 and "all" not in settings.methods:
        asked = next(one for one in found if one["name"] == single[0])
        if asked is not best:
            words += f" {asked['name']} is written because it was asked for."
        return asked, words
    return best, words


def keeps(entry: Mapping[str, Any], before: Mapping[str, Any], trained: int) -> bool:
    """Whether a method keeps what the model could do at its trained length."""
    return at(entry, trained)["mean"] <= KEEPS * at(before, trained)["mean"]


def ranked(found: Sequence[Mapping[str, Any]], trained: int, target: int) -> list[Mapping[str, Any]]:
    """Methods by the perplexity of their last tokens at the target, those first that keep the trained length."""
    return sorted(found, key=lambda one: (not keeps(one, found[0], trained), at(one, target)["last"]))


def verify(folder: Path, ids: Tensor, expected: Tensor, dtype: str) -> float:
    """How far (nats) the mean loss of a written checkpoint, run by transformers alone, lies from the expected one.

    Raises RuntimeError where it is not near.
    """
    from transformers import AutoModelForCausalLM

    from posenc.checkpoints.formats.load import dtype_of, quietly

    with quietly():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype_of(dtype), local_files_only=True).eval()
    # In one piece: behind a cache, transformers' own dynamic scaling goes wrong.
    found = perplexity.losses(model, ids, chunk=len(ids))
    difference = abs(float(found.double().mean() - expected.double().mean()))
    limit = NEAR.get(dtype, 0.02)
    if not difference <= limit:
        raise RuntimeError(
            f"the written checkpoint has a mean loss of {float(found.mean()):.4f} over {len(ids)} tokens, and the "
            f"table says {float(expected.mean()):.4f}; they may differ by {limit:g} nats, so it is not kept"
        )
    return difference


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
