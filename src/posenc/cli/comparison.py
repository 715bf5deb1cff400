"""`posenc compare`, `posenc merge` and `posenc report`: train with each encoding, and report."""

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import Labels, Name, Names, Number, Numbers, Paths, Positional, RunOptions, Specs, Usage, Whole
from posenc.foreign import quote
from posenc.lab.default_encodings import ENCODINGS
from posenc.specs.syntax import split


@dataclass(kw_only=True)
class Compare(RunOptions):
    """Train one small decoder with each encoding; report.

    Example: posenc compare --encodings none rotary "rotary + alibi" mine.py:Mine --tasks repeat copy --seeds 3

    The result is one table and one report. Ctrl-C loses no finished run: the same command continues where it stopped.
    """

    first = "encodings tasks text label seeds steps train_length test_lengths layers out".split()

    encodings: Specs = ENCODINGS
    """Specs to compare; "all" stands for every encoding that reads a sequence, path/to/mine.py:Mine for your own."""
    tasks: Names = ()
    """Tasks, such as copy "recall(symbols=16)" path/to/mine.py:Mine; posenc list has all. Default: the preset's."""
    preset: Annotated[str, Usage("NAME")] = "default"
    """default: repeat with three seeds, and text with one. full: six tasks, three seeds."""
    label: Labels = ()
    """The name of an encoding in tables and figures; your own class may set it: label = "Ripple"."""
    log: Names = ()
    """Loggers of each run: jsonl, tensorboard, wandb, or path/to/mine.py:Mine."""
    seeds: Whole = None
    """The number of seeds; a later command with more seeds keeps the finished runs. Default: the preset's."""
    seed_from: Whole = None
    """The first seed. Default: 100; recipes were searched on those below."""
    rates: Numbers = ()
    """Learning rates to choose from, per encoding and task, by the loss on separate seeds."""
    maps: Specs = ()
    """Coordinate maps of the positions in training, such as none "randomised(longest=64)"; every encoding with each."""
    stretch: Specs = ()
    """Frequency schedules beyond the trained length, such as none "yarn(factor=2)"; rotary with each."""
    shard: Annotated[str | None, Usage("NUMBER/COUNT")] = None
    """NUMBER/COUNT, from 0/COUNT on: run only this part, into its own folder; then posenc merge."""
    out: Path = Path("runs/compare")
    """The folder for records, figures and report."""
    json: bool = False
    """Print the records as JSON instead of words and tables."""

    def run(self) -> int:
        from posenc.cli import terminal
        from posenc.lab.results import summary
        from posenc.lab.runs.settings import Settings, encodings_of_other_axes
        from posenc.lab.sweeps.compare import compare
        from posenc.lab.sweeps.shards import Shard, run_shard

        shard = None if self.shard is None else Shard.parse(self.shard)
        if shard and self.json:
            raise ValueError("--json prints the records of all runs, and a shard has its own; leave one of them out")

        if "all" in self.encodings and (grids := encodings_of_other_axes(1)):
            why = "left out of all where the tokens are a sequence, because they need a grid"
            terminal.note(f"{why}: {', '.join(grids)}")
        lists = {"task_names": self.tasks, "maps": self.maps, "stretches": self.stretch, "rates": self.rates}
        overrides: dict[str, Any] = {name: value or None for name, value in lists.items()} | {"seeds": self.seeds}
        labels, changes = parse_labels(self.label), self.changes()
        settings = Settings(
            self.encodings, preset=self.preset, seed_from=self.seed_from, labels=labels, changes=changes, **overrides
        )
        with terminal.live() as show:
            if shard:
                sweep, folder = run_shard(settings, shard, self.out, log=self.log, show=show)
                terminal.say(f"{sweep.done_count} runs of shard {self.shard}: {folder}")
            else:
                records, page, sweep = compare(settings, self.out, log=self.log, show=show)
                failures = [sweep.runs[key].failure(reason) for key, reason in sweep.failures.items()]
                print_answer(records, page, summary.records_for_display(records), failures, as_json=self.json)
        if sweep.failures:
            terminal.note(f"{len(sweep.failures)} of {len(sweep.runs)} runs failed; the same command tries them again")
        return 1 if sweep.failures else 0


def parse_labels(words: tuple[str, ...]) -> dict[str, str]:
    """Return spec -> label. Raises ValueError for a text that is not SPEC=NAME."""
    labels = {}
    for word in words:
        spec, equals, label = word.rpartition("=")
        if not equals:
            raise ValueError(f'--label takes SPEC=NAME, as in --label "mine.py:Mine=Ripple"; got {quote(word)}')
        labels[" / ".join(split(spec))] = label
    return labels


@dataclass
class Merge:
    """Put the records of shards into one folder.

    Example: posenc merge runs/compare/shard-* --out runs/compare

    The shards do not change, and the same command adds new records later. Then run posenc report.
    """

    folders: Positional[Paths]
    """Folders of shards, their parent folder, or other folders of posenc compare with the same settings."""
    out: Path
    """The folder for the records of all."""

    def run(self) -> int:
        from posenc.cli import terminal
        from posenc.lab.sweeps.shards import merge

        result = merge(self.folders, self.out)
        terminal.say(f"{result.new} records are new in {self.out}, {result.existing} were there.")
        for words in result.read_errors:
            terminal.note(f"left out: {words}")
        return 1 if result.read_errors else 0


@dataclass
class Report:
    """Write a report again, or its figures for a paper.

    Example: posenc report runs/compare --figures pdf --style paper.mplstyle --width 3.25 --table results.csv copy.tex

    The figures of the page are drawn again from the records, which do not change.
    """

    folder: Positional[Path]
    """A folder of posenc compare."""
    table: Paths = ()
    """Files to write: .csv, .parquet, .jsonl (a row for each run and length); .tex, .md (tables of each task)."""
    columns: Names = ()
    """The columns of .tex and .md, by their headings, such as sliding R seeds. Default: all."""
    label: Labels = ()
    """The name of an encoding in tables and figures, instead of the comparison's."""
    figures: Names = ("png",)
    """File formats of the figures: pdf, svg, png."""
    style: Name = None
    """A matplotlib style of the figures: a file or a name. Default: the page's."""
    width: Number = None
    """Width of the figures (inches); a column of a paper has about 3.25."""
    height: Number = None
    """Height of the figures (inches)."""
    titles: bool = True
    """Draw titles on the figures."""
    svg_text: bool = False
    """Keep the text of SVGs as text, which needs the same font on the reader's machine. Default: as shapes."""
    json: bool = False
    """Print the records as JSON instead of words and tables."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab import store
        from posenc.lab.results import report, summary, tables
        from posenc.lab.results.drawer import Files
        from posenc.lab.runs import record
        from posenc.lab.runs.settings import check_labels, read_settings, sort_by_settings, with_labels

        forms = [tables.serializer(path, self.columns) for path in self.table]
        if self.columns and not forms:
            raise ValueError("--columns chooses those of --table, and no table is asked for; add --table results.tex")
        files = Files(self.figures, self.style, self.width, self.height, self.titles, self.svg_text)
        settings = read_settings(self.folder)
        records = sort_by_settings(record.summary_records(self.folder), settings)
        check_labels(labels := parse_labels(self.label), [summary.spec_of(run) for run in records])
        records = with_labels(records, labels)
        failures = list(record.failures(self.folder).values())
        display_records = summary.records_for_display(records)
        with ExitStack() as stack:
            # While a comparison runs there, the report covers its finished runs.
            with suppress(store.InUse):
                stack.enter_context(store.locked_folder(self.folder))
            page = report.write(records, self.folder, settings, failures, files, display_records)
        print_answer(records, page, display_records, failures, as_json=self.json)
        for path in self.table:
            terminal.note(f"table: {tables.write(records, path, self.columns, failures)}")
        for words, *_ in summary.for_display(failures, summary.MAX_SENTENCE_LETTERS):
            terminal.note(f"failed: {words}")


def print_answer(
    records: list[dict[str, Any]],
    page: Path,
    display_records: list[dict[str, Any]],
    failures: Sequence[Any],
    *,
    as_json: bool,
) -> None:
    """Print the answer of the records and the paths of their pages, or the records themselves.

    display_records  the same records, rounded and labelled for display
    failures         of the runs without a record
    """
    from posenc.cli import terminal
    from posenc.explorer.page import explore
    from posenc.lab import store
    from posenc.lab.results import summary
    from posenc.lab.runs import record

    for words in record.version_differences(display_records):
        terminal.note(words)
    if as_json:
        print(json.dumps(records))
        return
    terminal.say(summary.answer(display_records))
    terminal.say()
    terminal.tables(summary.plain_tables(display_records, failures))
    terminal.say(f"Report: {page}")
    explorer = store.write(page.with_name("explorer.html"), explore(run=page.parent, records=display_records).encode())
    terminal.say(f"Explorer: {explorer}")
