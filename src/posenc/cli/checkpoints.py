"""`posenc inspect`, `doctor`, `extend` and `convert`: pretrained models."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import File, Files, Name, Names, Positional, Source, Usage, Whole, Wholes


@dataclass
class Inspect:
    """Say which position encoding a checkpoint has.

    Example: posenc inspect path/to/model --out pictures

    It also lists unknown keys and contradictions. It reads Hugging Face folders and configs, Meta's params.json, and
    GGUF files. It unpickles and runs nothing. The exit code is 1 if it finds no position encoding, or if a key names an
    encoding that no layer has.
    """

    path: Positional[Source]
    """A folder, a config file, a GGUF file, or a model of the hub: owner/name, owner/name@revision."""
    out: File = None
    """A folder for pictures: spectrum, similarity of learned tables, curves of biases."""
    json: bool = False
    """Print the result as JSON."""

    def run(self) -> int:
        from posenc.checkpoints.files.hub import commit_of
        from posenc.checkpoints.formats import load
        from posenc.checkpoints.inspection import portrait
        from posenc.checkpoints.inspection.inspect import inspect, reading_as_json
        from posenc.checkpoints.vocabulary.reading import UNHEARD
        from posenc.cli import terminal

        where = load.find_checkpoint(self.path, weights=False)
        reading = inspect(where)
        if self.json:
            commit = commit_of(where)
            print(json.dumps(reading_as_json(reading) | ({"commit": commit} if commit else {})))
        else:
            terminal.say(portrait.describe_reading(reading))
            terminal.say()
            terminal.table(*portrait.understood_keys(reading))
        if self.out:
            for picture in portrait.save_pictures(reading, self.path, Path(self.out)):
                terminal.note(f"Picture: {picture}")
        return 0 if reading.parts and UNHEARD not in str(reading.contradictions) else 1


@dataclass
class Doctor:
    """Say which known defects affect a model, and the remedy.

    Example: posenc doctor path/to/model

    Each is measured on a small random model of its kind with the installed transformers, and again with the remedy.
    docs/guides/known-defects.md says where each was reported. The exit code is 0 if no defect was found, else 1.
    """

    path: Positional[Source]
    """A folder with a config.json of transformers, such a file, or a model of the hub as owner/name."""
    json: bool = False
    """Print the findings as JSON."""

    def run(self) -> int:
        from posenc.checkpoints.doctor import examine
        from posenc.cli import terminal

        with terminal.show_status("measuring ..."):
            findings = list(examine.examine(self.path))
        if self.json:
            print(json.dumps(examine.report_json(self.path, findings)))
        else:
            for line in (*examine.report_lines(findings), examine.summary_line(findings)):
                terminal.say(line)
        return 0 if {finding.verdict for finding in findings} - {"no concern"} == {"clear"} else 1


@dataclass
class Extend:
    """Extend the context of a checkpoint, by measuring.

    Example: posenc extend HuggingFaceTB/SmolLM2-135M --factor 2 --out runs/extend

    Each method is measured on your text, and the best one is written as a checkpoint. A long run shows the time left;
    Ctrl-C loses no finished pass, and the same command continues where it stopped.
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
    """Replace the schedule of an already scaled model, from its length before scaling."""
    text: Files = ()
    """Text files to measure on. Default: the Python language reference."""
    samples: Whole = None
    """The number of windows of the target length, documents or trials. Default: by the measure."""
    lengths: Wholes = ()
    """More lengths to measure at (tokens), besides the trained one, the target and some in between."""
    start: Whole = None
    """The first token of the text to read. Default: 2000, less in a short text."""
    chunk: int = 1024
    """Tokens per forward pass: fewer take less memory."""
    dtype: Annotated[str, Usage("NAME")] = "float32"
    """float32 or bfloat16: half the memory; faster on processors that support it, far slower on others."""
    device: Annotated[str, Usage("NAME")] = "cpu"
    """cpu, cuda, cuda:1, mps; or auto: spread by accelerate over GPUs, CPU and disk."""
    cache: Annotated[str, Usage("NAME")] = "device"
    """Where keys and values are stored: device, or cpu, from where they go to a CUDA device layer by layer."""
    longrope_factors: File = None
    """A JSON file with the searched short_factor and long_factor of longrope."""
    plan: bool = False
    """Estimate the memory of the run from the config alone, and run nothing."""
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
        from posenc.lab.views.page import json_value
        from posenc.specs import syntax

        load.without_bars()
        options: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(Settings) if hasattr(self, f.name)}
        for name, texts in (("methods", self.method), ("measures", self.measures)):
            options[name] = tuple(name_or_spec for text in texts for name_or_spec in syntax.split(text))
        options["factors"] = self.longrope_factors
        settings = Settings(**options)
        if self.plan:
            return self.print_plan(settings)
        record = extend(settings, self.out, say=terminal.progress)
        if self.json:
            print(json.dumps(json_value(record)))
            return
        for caption, table in report.short_tables(record):
            terminal.say(caption)
            terminal.table(*table)
            terminal.say()
        for words in report.summary_sentences(record):
            terminal.say(f"{words}\n")
        if record["written"]["path"]:
            terminal.say(f"Checkpoint: {record['written']['path']}")
        terminal.say(f"Report: {self.out / 'report.html'}")

    def print_plan(self, settings: Any) -> None:
        from posenc.checkpoints.extension.extend import memory_plan
        from posenc.checkpoints.measures import memory
        from posenc.cli import terminal

        plan = memory_plan(settings)
        if self.json:
            print(json.dumps(plan))
        else:
            terminal.table(*memory.memory_table(plan))
            terminal.say()
            for words in memory.plan_sentences(plan):
                terminal.say(words)


@dataclass
class Convert:
    """Write a changed copy of a checkpoint, or of GGUF.

    Example: posenc convert path/to/model --out path/to/new --layout interleaved

    It changes the layout of RoPE (rotary), and the length of learned tables. The source is never changed, and the new
    folder appears only when it is complete. A GGUF file becomes a folder in Hugging Face's format.
    """

    path: Positional[Source]
    """A folder in Hugging Face's form (a model or a LoRA adapter), a GGUF file, or a model of the hub as owner/name."""
    out: Path
    """The new folder; it must not exist yet."""
    layout: Name = None
    """half or interleaved: which channels of queries and keys form a pair."""
    stored: Name = None
    """The layout of the weights, if the config is wrong about it."""
    max_length: Whole = None
    """The new number of positions of a learned table."""
    grid: Wholes = ()
    """The new number of rows and columns of an image model's learned table."""
    interpolate: Name = None
    """linear, cubic or nearest. Default: linear for positions, cubic for a grid."""
    base: File = None
    """The folder or config.json of the model that an adapter belongs to."""
    shard_gigabytes: float = 2.0
    """The largest size of a file of tensors, which is also the memory it needs."""
    json: bool = False
    """Print the changes as JSON."""

    def run(self) -> None:
        from posenc.checkpoints.conversion.convert import ConversionRequest, convert
        from posenc.cli import terminal

        fields_of_request = {f.name: getattr(self, f.name) for f in fields(ConversionRequest) if f.name != "grid"}
        request = ConversionRequest(**fields_of_request, grid=self.grid or None)
        size = int(self.shard_gigabytes * 1e9)
        with terminal.show_status(f"converting {self.path} ..."):
            conversion = convert(self.path, self.out, request, base=self.base, shard_bytes=size)
        if self.json:
            summary = {"folder": str(conversion.folder), "done": conversion.changes, "notes": conversion.notes}
            print(json.dumps(summary | ({"commit": conversion.commit} if conversion.commit else {})))
            return
        for words in (*conversion.changes, *conversion.notes, f"Checkpoint: {conversion.folder}"):
            terminal.say(words)
