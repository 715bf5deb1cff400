"""`posenc compare`, `posenc merge` and `posenc report`: which encoding, and the page that answers."""

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import Labels, Name, Names, Number, Numbers, Paths, Positional, RunOptions, Specs, Taking, Whole
from posenc.foreign import quoted
from posenc.lab.default_encodings import ENCODINGS
from posenc.specs.syntax import split


@dataclass(kw_only=True)
class Compare(RunOptions):
    """Train one small decoder with each encoding; report.

    Example: posenc compare --encodings none rotary "rotary + alibi" mine.py:Mine --tasks repeat copy --seeds 3

    The answer is one table and one report. Ctrl-C loses no finished run: the same command goes on where it stopped.
    """

    first = "encodings tasks text label seeds steps train_length test_lengths layers out".split()

    encodings: Specs = ENCODINGS
    """Specs to compare; "all" stands for every encoding that reads a sequence, path/to/mine.py:Mine for your own."""
    tasks: Names = ()
    """Tasks, such as copy "recall(symbols=16)" path/to/mine.py:Mine; posenc list has all. Default: the preset's."""
    preset: Annotated[str, Taking("NAME")] = "default"
    """default: repeat with three seeds, and text with one. full: six tasks, three seeds."""
    label: Labels = ()
    """What tables and figures call an encoding; a class of your own may say it itself: label = "Ripple"."""
    log: Names = ()
    """Loggers to tell of each run: jsonl, tensorboard, wandb, or path/to/mine.py:Mine."""
    seeds: Whole = None
    """How many seeds; more of them later keep the runs that are there. Default: what the preset says."""
    seed_from: Whole = None
    """The first seed. Default: 100; recipes were searched on those below."""
    rates: Numbers = ()
    """Learning rates to choose from, for each encoding on each task, by its loss on seeds of its own."""
    maps: Specs = ()
    """Coordinate maps of the positions in training, such as none "randomised(longest=64)"; every encoding with each."""
    stretch: Specs = ()
    """Frequency schedules beyond the trained length, such as none "yarn(factor=2)"; rotary with each."""
    shard: Annotated[str | None, Taking("NUMBER/COUNT")] = None
    """NUMBER/COUNT, from 0/COUNT on: run this part only, into a folder of its own; then posenc merge."""
    out: Path = Path("runs/compare")
    """The folder for records, figures and report."""
    json: bool = False
    """Print the records as JSON instead of words and tables."""

    def run(self) -> int:
        from posenc.cli import terminal
        from posenc.lab.results import summary
        from posenc.lab.runs.settings import Settings, not_for
        from posenc.lab.sweeps.compare import compare
        from posenc.lab.sweeps.shards import Shard, run_shard

        shard = None if self.shard is None else Shard.of(self.shard)
        if shard and self.json:
            raise ValueError("--json prints the records of all runs, and a shard has its own; leave one of them out")

        if "all" in self.encodings and (grids := not_for(1)):
            why = "left out of all where the tokens are a sequence, because they need a grid"
            terminal.note(f"{why}: {', '.join(grids)}")
        given = {"task_names": self.tasks, "maps": self.maps, "stretches": self.stretch, "rates": self.rates}
        asked: dict[str, Any] = {name: value or None for name, value in given.items()} | {"seeds": self.seeds}
        labels, changes = labels_asked(self.label), self.changes()
        settings = Settings(
            self.encodings, preset=self.preset, seed_from=self.seed_from, labels=labels, changes=changes, **asked
        )
        with terminal.live() as show:
            if shard:
                sweep, folder = run_shard(settings, shard, self.out, log=self.log, show=show)
                terminal.say(f"{sweep.done} runs of shard {self.shard}: {folder}")
            else:
                records, page, sweep = compare(settings, self.out, log=self.log, show=show)
                failures = [sweep.runs[key].failure(reason) for key, reason in sweep.failures.items()]
                answer(records, page, summary.shown(records), failures, as_json=self.json)
        if sweep.failures:
            terminal.note(f"{len(sweep.failures)} of {len(sweep.runs)} runs failed; the same command tries them again")
        return 1 if sweep.failures else 0


def labels_asked(words: tuple[str, ...]) -> dict[str, str]:
    """Spec -> label. Raises ValueError for what is not written SPEC=NAME."""
    labels = {}
    for word in words:
        spec, equals, label = word.rpartition("=")
        if not equals:
            raise ValueError(f'--label takes SPEC=NAME, as in --label "mine.py:Mine=Ripple"; got {quoted(word)}')
        labels[" / ".join(split(spec))] = label
    return labels


@dataclass
class Merge:
    """Put the records of shards into one folder.

    Example: posenc merge runs/compare/shard-* --out runs/compare

    The shards stay as they are, and the same command again adds what is new. Then posenc report has them all.
    """

    folders: Positional[Paths]
    """The folders of shards, what holds them, or others that posenc compare has filled with the same settings."""
    out: Path
    """The folder for the records of all."""

    def run(self) -> int:
        from posenc.cli import terminal
        from posenc.lab.sweeps.shards import merge

        done = merge(self.folders, self.out)
        terminal.say(f"{done.new} records are new in {self.out}, {done.there} were there.")
        for words in done.damaged:
            terminal.note(f"left out: {words}")
        return 1 if done.damaged else 0


@dataclass
class Report:
    """Write a report again, or its figures for a paper.

    Example: posenc report runs/compare --figures pdf --style paper.mplstyle --width 3.25 --table results.csv copy.tex

    The figures of the page are drawn again from the records, which stay as they are.
    """

    folder: Positional[Path]
    """A folder that posenc compare has filled."""
    table: Paths = ()
    """Files to write: .csv, .parquet, .jsonl (a row for each run and length); .tex, .md (tables of each task)."""
    columns: Names = ()
    """The columns of .tex and .md, by what stands above them, such as sliding R seeds. Default: all."""
    label: Labels = ()
    """What tables and figures call an encoding, in place of what the comparison said."""
    figures: Names = ("png",)
    """What the files of the figures are: pdf, svg, png."""
    style: Name = None
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

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab import store
        from posenc.lab.results import report, summary, tables
        from posenc.lab.results.drawer import Files
        from posenc.lab.runs import record
        from posenc.lab.runs.settings import check_labels, in_reading_order, read_settings, with_labels

        forms = [tables.form_of(path, self.columns) for path in self.table]
        if self.columns and not forms:
            raise ValueError("--columns chooses those of --table, and no table is asked for; add --table results.tex")
        files = Files(self.figures, self.style, self.width, self.height, self.titles, self.svg_text)
        settings = read_settings(self.folder)
        records = in_reading_order(record.for_summaries(self.folder), settings)
        check_labels(labels := labels_asked(self.label), [summary.spec_of(run) for run in records])
        records = with_labels(records, labels)
        failures = list(record.failures(self.folder).values())
        shown = summary.shown(records)
        with ExitStack() as stack:
            # While a comparison is at work there, what it has finished is reported.
            with suppress(store.InUse):
                stack.enter_context(store.held(self.folder))
            page = report.write(records, self.folder, settings, failures, files, shown)
        answer(records, page, shown, failures, as_json=self.json)
        for path in self.table:
            terminal.note(f"table: {tables.write(records, path, self.columns, failures)}")
        for words, *_ in summary.legible(failures, summary.MOST_OF_A_SENTENCE):
            terminal.note(f"failed: {words}")


def answer(
    records: list[dict[str, Any]], page: Path, shown: list[dict[str, Any]], failures: Sequence[Any], *, as_json: bool
) -> None:
    """Print what records say and where their pages are, or the records themselves; and what tells them apart.

    shown     the same records as people are shown them
    failures  of the runs that have none
    """
    from posenc.cli import terminal
    from posenc.explorer.page import explore
    from posenc.lab import store
    from posenc.lab.results import summary
    from posenc.lab.runs import record

    for words in record.told_apart(shown):
        terminal.note(words)
    if as_json:
        print(json.dumps(records))
        return
    terminal.say(summary.answer(shown))
    terminal.say()
    terminal.tables(summary.tables(shown, failures))
    terminal.say(f"Report: {page}")
    touched = store.write(page.with_name("explorer.html"), explore(run=page.parent, records=shown).encode())
    terminal.say(f"Explorer: {touched}")
