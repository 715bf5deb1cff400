"""`posenc inspect`, `doctor`, `extend` and `convert`: models that others have trained."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import File, Files, Name, Names, Positional, Source, Taking, Whole, Wholes


@dataclass
class Inspect:
    """Say which position encoding a checkpoint has.

    Example: posenc inspect path/to/model --out pictures

    It says too what was not understood, and what contradicts itself. It reads Hugging Face folders and configs, Meta's
    params.json, and GGUF files. Nothing is unpickled or run. The exit code is 1 where nothing of positions was found,
    and where a key names an encoding that no layer has.
    """

    path: Positional[Source]
    """A folder, a config file, a GGUF file, or a model of the hub: owner/name, owner/name@revision."""
    out: File = None
    """A folder for pictures: spectrum, similarity of learned tables, curves of biases."""
    json: bool = False
    """Print what was read as JSON."""

    def run(self) -> int:
        from posenc.checkpoints.files.hub import commit_of
        from posenc.checkpoints.formats import load
        from posenc.checkpoints.inspection import portrait
        from posenc.checkpoints.inspection.inspect import in_json, inspect
        from posenc.checkpoints.vocabulary.reading import UNHEARD
        from posenc.cli import terminal

        where = load.find(self.path, weights=False)
        reading = inspect(where)
        if self.json:
            commit = commit_of(where)
            print(json.dumps(in_json(reading) | ({"commit": commit} if commit else {})))
        else:
            terminal.say(portrait.words(reading))
            terminal.say()
            terminal.table(*portrait.understood(reading))
        if self.out:
            for picture in portrait.save(reading, self.path, Path(self.out)):
                terminal.note(f"Picture: {picture}")
        return 0 if reading.parts and UNHEARD not in str(reading.contradictions) else 1


@dataclass
class Doctor:
    """Say which known defects hit a model, and what mends.

    Example: posenc doctor path/to/model

    Each is measured on a small random model of its kind with the installed transformers, and again with what mends it.
    docs/guides/known-defects.md says where each was reported. The exit code is 0 where what was tried is clear, else 1.
    """

    path: Positional[Source]
    """A folder with a config.json of transformers, such a file, or a model of the hub as owner/name."""
    json: bool = False
    """Print the findings as JSON."""

    def run(self) -> int:
        from posenc.checkpoints.doctor import examine
        from posenc.cli import terminal

        with terminal.doing("measuring ..."):
            found = list(examine.examine(self.path))
        if self.json:
            print(json.dumps(examine.in_json(self.path, found)))
        else:
            for line in (*examine.in_words(found), examine.total(found)):
                terminal.say(line)
        return 0 if {one.word for one in found} - {"no concern"} == {"clear"} else 1


@dataclass
class Extend:
    """Stretch the context of a checkpoint, by measuring.

    Example: posenc extend HuggingFaceTB/SmolLM2-135M --factor 2 --out runs/extend

    Each method is measured on your text, and the winner is written as a checkpoint. A long run shows the time left;
    Ctrl-C loses no finished pass, and the same command goes on where it stopped.
    """

    first = "path factor method text measures lengths device plan out json".split()

    path: Positional[Source]
    """A folder in Hugging Face's form, a GGUF file, or a model of the hub: owner/name@revision."""
    factor: float = 2.0
    """Target length / the length that the model serves now (unitless, above 1)."""
    method: Names = ("all",)
    """none, linear, ntk, dynamic, yarn, llama3, longrope, temperature, log-temperature, step-temperature, self-extend,
    rerope, dual-chunk, any other schedule that `posenc list` has, or all. Options in parentheses: "yarn(beta_fast=64)".
    For a learned table: clamp, repeat, nearest, linear, cubic, or all.
    To use the model as it is: windows."""
    measures: Names = ()
    """perplexity, one-key, several-keys, masked; the first decides. Default: all that fit, but several-keys."""
    replace: bool = False
    """Put another schedule in place of the one that a scaled model has, from the length before any scaling."""
    text: Files = ()
    """Text files to measure on. Default: the Python language reference."""
    samples: Whole = None
    """How many windows of the target length, documents or trials are measured. Default: by the measure."""
    lengths: Wholes = ()
    """More lengths to measure at (tokens), besides the trained one, the target and some in between."""
    start: Whole = None
    """The token of the text that is read first. Default: 2000, less in a short text."""
    chunk: int = 1024
    """How many tokens go through the model at once: fewer take less memory."""
    dtype: Annotated[str, Taking("NAME")] = "float32"
    """float32 or bfloat16: half the memory, and on processors that multiply it less time, on others far more."""
    device: Annotated[str, Taking("NAME")] = "cpu"
    """cpu, cuda, cuda:1, mps; or auto: spread by accelerate over GPUs, CPU and disk."""
    cache: Annotated[str, Taking("NAME")] = "device"
    """Where keys and values are kept: device, or cpu, from where they go to a CUDA device layer by layer."""
    longrope_factors: File = None
    """A JSON file with the searched short_factor and long_factor of longrope."""
    plan: bool = False
    """What memory the run would take, by the config alone, and run nothing."""
    out: Path = Path("runs/extend")
    """The folder for measurements, report and checkpoint."""
    json: bool = False
    """Print the record as JSON instead of words and tables."""

    def run(self) -> None:
        from posenc.checkpoints.extension import report
        from posenc.checkpoints.extension.extend import extend
        from posenc.checkpoints.extension.settings import Settings
        from posenc.checkpoints.formats import load
        from posenc.cli import terminal
        from posenc.lab.views.page import finite
        from posenc.specs import syntax

        load.without_bars()
        said: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(Settings) if hasattr(self, f.name)}
        for name, given in (("methods", self.method), ("measures", self.measures)):
            said[name] = tuple(one for several in given for one in syntax.split(several))
        said["factors"] = self.longrope_factors
        settings = Settings(**said)
        if self.plan:
            return self.planned(settings)
        record = extend(settings, self.out, say=terminal.progress)
        if self.json:
            print(json.dumps(finite(record)))
            return
        for caption, table in report.in_short(record):
            terminal.say(caption)
            terminal.table(*table)
            terminal.say()
        for words in report.sentences(record):
            terminal.say(f"{words}\n")
        if record["written"]["path"]:
            terminal.say(f"Checkpoint: {record['written']['path']}")
        terminal.say(f"Report: {self.out / 'report.html'}")

    def planned(self, settings: Any) -> None:
        from posenc.checkpoints.extension.extend import foreseen
        from posenc.checkpoints.measures import memory
        from posenc.cli import terminal

        plan = foreseen(settings)
        if self.json:
            print(json.dumps(plan))
        else:
            terminal.table(*memory.table(plan))
            terminal.say()
            for words in memory.sentences(plan):
                terminal.say(words)


@dataclass
class Convert:
    """Write a changed copy of a checkpoint, or of GGUF.

    Example: posenc convert path/to/model --out path/to/new --layout interleaved

    What may change: rotary's layout, and the length of learned tables. The source is never written to, and the new
    folder appears when it is whole. A GGUF file becomes a folder in Hugging Face's form.
    """

    path: Positional[Source]
    """A folder in Hugging Face's form (a model or a LoRA adapter), a GGUF file, or a model of the hub as owner/name."""
    out: Path
    """The new folder; it must not exist."""
    layout: Name = None
    """half or interleaved: which channels of queries and keys turn together."""
    stored: Name = None
    """The layout that the weights are in, where the config is wrong about it."""
    max_length: Whole = None
    """How many positions a learned table should have."""
    grid: Wholes = ()
    """How many cells, as rows and columns, a learned table of an image should have."""
    interpolate: Name = None
    """linear, cubic or nearest. Default: linear for positions, cubic for a grid."""
    base: File = None
    """The folder or config.json of the model that an adapter belongs to."""
    shard_gigabytes: float = 2.0
    """How large a file of tensors may grow; as much is held in memory."""
    json: bool = False
    """Print what was done as JSON."""

    def run(self) -> None:
        from posenc.checkpoints.conversion.convert import Request, convert
        from posenc.cli import terminal

        asked = {f.name: getattr(self, f.name) for f in fields(Request) if f.name != "grid"}
        request = Request(**asked, grid=self.grid or None)
        size = int(self.shard_gigabytes * 1e9)
        with terminal.doing(f"converting {self.path} ..."):
            done = convert(self.path, self.out, request, base=self.base, shard_bytes=size)
        if self.json:
            told = {"folder": str(done.folder), "done": done.done, "notes": done.notes}
            print(json.dumps(told | ({"commit": done.commit} if done.commit else {})))
            return
        for words in (*done.done, *done.notes, f"Checkpoint: {done.folder}"):
            terminal.say(words)
