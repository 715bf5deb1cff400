"""`posenc lab`: runs published claims again."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import Positional, Usage


@dataclass
class LabList:
    """List the published claims that can be run again.

    Example: posenc lab list
    """

    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.reproduction.verdict_tables import list_table

        headers, rows = list_table()
        if self.json:
            print(json.dumps([dict(zip(headers, row, strict=True)) for row in rows]))
        else:
            terminal.table(headers, rows)


@dataclass
class LabRun:
    """Run a published claim again, small, with three seeds, and say whether it was reproduced.

    Example: posenc lab run alibi --seed-from 200

    Ctrl-C loses no finished run: the same command continues where it stopped. The exit code is 0 for any verdict.
    """

    name: Positional[Annotated[str, Usage("NAME")]]
    """The claim; posenc lab list names all, path/to/mine.py:Mine is your own."""
    tier: Annotated[str, Usage("NAME")] = "cpu"
    """cpu: minutes on two cores. gpu: larger models, minutes on an accelerator."""
    seed_from: int = 100
    """The first seed; recipes were searched on those below 100."""
    out: Path = Path("runs/published")
    """The folder for records, report and verdict; claims in one folder share equal runs."""
    json: bool = False
    """Print the verdict as JSON instead of tables."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.reproduction.reproduce import reproduce, verdict_file
        from posenc.lab.reproduction.verdict_tables import criteria_table, numbers_table, seeds_text

        with terminal.live() as show:
            verdict = reproduce(self.name, self.out, tier=self.tier, seed_from=self.seed_from, show=show)
        if self.json:
            print(json.dumps(verdict))
            return
        terminal.say(f"{verdict['says']} ({verdict['source']}); {seeds_text(verdict)}\n")
        terminal.table(*numbers_table(verdict))
        terminal.say()
        terminal.table(*criteria_table(verdict))
        terminal.say(f"\n{verdict['verdict'].capitalize()}: {verdict['why']}.")
        terminal.say(f"\nVerdict: {self.out / verdict_file(verdict)}\nReport: {self.out / 'report.html'}")


@dataclass
class LabPage:
    """Write the page of a folder of verdicts.

    Example: posenc lab page docs/published
    """

    folder: Positional[Path]
    """A folder with the JSON files of posenc lab run, plain or compressed (.json.gz)."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab import store
        from posenc.lab.reproduction.verdict_tables import PAGE, verdict_page

        terminal.say(f"Page: {store.write(self.folder / PAGE, verdict_page(self.folder).encode())}")


LAB = {"list": LabList, "run": LabRun, "page": LabPage}


@dataclass
class Lab:
    """Run published results again: reproduced or refuted.

    `list` lists the published claims, `run` runs one again, `page` writes the page of a folder of verdicts.

    Example: posenc lab run repeat
    """

    verb: Positional[Annotated[Any, Usage("list | run | page")]]
    """The action; posenc help lab run explains the options of run."""

    def run(self) -> int:
        return self.verb.run()
