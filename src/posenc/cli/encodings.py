"""`posenc list`, `show`, `order` and `check`: the catalogue, one encoding in detail, and its tests."""

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import Comparison, Names, Numbers, Positional, Specs, Texts, Usage, Whole, Wholes
from posenc.foreign import quote
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.description import listing


@dataclass
class List:
    """List the encodings, schedules, tasks and other parts.

    Example: posenc list --door bias --used-by t5

    posenc list NAME describes an encoding (or a spec), a schedule, a coordinate map, a task, a kernel, a preset or a
    claim. posenc list schedules has a line for each schedule; the other kinds work alike.
    """

    name: Positional[Annotated[str, Usage("NAME")]] = ""
    """A name, a spec, or a kind such as schedules."""
    axes: Whole = None
    """Only encodings whose positions have this number of axes: 1 for sequences, 2 for images."""
    door: Annotated[str, Usage("NAME")] = ""
    """Only encodings that open this door: embed, turn, bias, attend, remember."""
    used_by: Annotated[str, Usage("TEXT")] = ""
    """Only encodings that models with this name use."""
    pager: bool = True
    """Show text longer than the screen in PAGER, or in less."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        filters = {"axes": self.axes, "door": self.door, "used_by": self.used_by}
        flags = [f"--{name.replace('_', '-')}" for name, value in filters.items() if value not in (None, "")]
        if self.name and flags:
            raise ValueError(f"{flags[0]} chooses among all encodings, and {quote(self.name)} is named; leave one out")
        if self.name in listing.KINDS:
            return self.show_kind(self.name)
        return self.show_card() if self.name else self.show_all(filters, with_parts=not flags)

    def show_card(self) -> None:
        """Print the description of one name."""
        from posenc.cli import terminal

        card = listing.card(self.name)
        if self.json:
            print(json.dumps(card))
            return
        for number, entry in enumerate([card, *card["also"]]):
            if number:
                terminal.say()
            terminal.table([entry["kind"], entry["name"]], listing.card_rows(entry))
            if entry.get("lesson"):
                terminal.say(f"\n{entry['lesson']}")

    def show_kind(self, kind: str) -> None:
        """Print a line for each part of a kind."""
        from posenc.cli import terminal

        items = listing.load_overview()[kind]
        if self.json:
            print(json.dumps(items))
            return
        terminal.pages(terminal.index(kind.replace("_", " "), list(map(listing.listing_line, items))), pager=self.pager)

    def show_all(self, filters: dict[str, Any], *, with_parts: bool) -> None:
        """Print a line for each encoding that passes the filters; `with_parts` adds the names of all other parts."""
        from posenc.cli import terminal

        catalogue = listing.load_overview()
        catalogue["encodings"] = listing.select(catalogue["encodings"], **filters)
        if with_parts:
            catalogue["plugins"] = listing.installed_plugins()
        if self.json:
            print(json.dumps(catalogue))
            return
        lines = list[str]()
        for title, entries in listing.by_group(catalogue, catalogue["encodings"]):
            lines += [*terminal.index(title, entries), ""]
        if with_parts:
            for kind in [kind for kind in listing.KINDS if kind != "encodings"]:
                names = ", ".join(item["name"] for item in catalogue[kind])
                lines += [*terminal.wrap(kind.replace("_", " ").upper(), names), ""]
            for item in catalogue["plugins"]:
                item["idea"] = "; ".join(filter(None, [f"{item['kind']} of {item['package']}", item.pop("problem")]))
            if catalogue["plugins"]:
                lines += [*terminal.index("plug-ins", list(map(listing.listing_line, catalogue["plugins"]))), ""]
        lines.append("posenc list NAME describes one of them.")
        terminal.pages(lines, pager=self.pager)


@dataclass
class Show:
    """Show one encoding: formula, pictures, worked example.

    Example: posenc show "rotary(base=500)" --tokens 128 --out pictures
    """

    spec: Positional[Annotated[str, Usage("SPEC")]]
    """The encoding, as a spec."""
    tokens: int = 64
    """The number of positions to draw."""
    dim: int = 64
    """Width of the model (channels)."""
    heads: int = 4
    """Number of heads."""
    words: Texts = ("the", "dog", "bit", "the", "man")
    """The words of the worked example, for encodings that add to embeddings."""
    ids: Wholes = ()
    """The id of each of these words. Default: in the order of first appearance."""
    vectors: Numbers = ()
    """Their token vectors, one after another for ids 0, 1, ... Default: random."""
    shift: int = 1
    """The k of the shift matrix M_k with PE(p + k) = M_k PE(p), for sinusoidal."""
    comparison: Comparison = None
    """A folder of posenc compare: also draw what its runs of this encoding learned."""
    out: Path = Path("runs/show")
    """The folder for the pictures."""
    open: bool = False
    """Open the pictures in the desktop's viewer."""
    json: bool = False
    """Print the numbers behind the pictures as JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.description import describe

        if self.open and self.json:
            raise ValueError("--open shows pictures, and --json draws none; leave one of them out")
        values = {name: getattr(self, name) for name in ("tokens", "dim", "heads", "words", "shift", "ids", "vectors")}
        try:
            picture_set = describe.show(self.spec, runs_folder=self.comparison, **values)
        except ModuleNotFoundError as error:
            if self.json:
                raise
            terminal.say(describe.lesson_text(describe.at_standard_shape(self.spec)[0]))
            terminal.note(f"pictures and numbers need {error.name}: pip install 'posenc[lab]'")
            return
        if self.json:
            print(json.dumps(picture_set.facts))
            return
        terminal.say(picture_set.text)
        for title, headers, rows in picture_set.tables:
            terminal.say()
            terminal.table(headers, rows, title)
        paths = picture_set.save(self.out)
        terminal.say()
        for path in paths:
            terminal.say(f"Picture: {path}")
        for path in paths if self.open else ():
            terminal.open_page(path)


@dataclass
class Order:
    """Measure what changes when tokens are reordered.

    Example: posenc order sinusoidal alibi
    """

    specs: Positional[Specs] = ENCODINGS
    """The encodings to test."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.description.describe import order_table
        from posenc.lab.evaluation.order import order_tests

        results = {spec: order_tests(spec) for spec in self.specs}
        if self.json:
            print(json.dumps(results))
            return
        terminal.table(*order_table(results))


@dataclass
class Check:
    """Test an encoding or a task against posenc's promises.

    Example: posenc check path/to/mine.py:Mine

    The exit code is 1 if a promise is broken, or if a declared gap has closed.
    """

    spec: Positional[Annotated[str, Usage("SPEC")]]
    """The encoding or the task, as a spec or path/to/file.py:Class."""
    promise: Names = ()
    """Only these promises, by their names. Default: all."""
    json: bool = False
    """Print the verdicts as JSON."""

    def run(self) -> int:
        from posenc import testing
        from posenc.cli import terminal
        from posenc.lab import checking

        verdicts = []
        checker = checking if checking.names_a_task(self.spec) else testing
        stream = checker.verdicts(
            self.spec, self.promise or None, lambda promise: terminal.show_status(f"{promise.replace('_', ' ')} ...")
        )
        if not self.json:
            terminal.say(self.spec)
        for verdict in stream:
            verdicts.append(verdict)
            if not self.json:
                command = f"posenc check {shlex.quote(verdict.subject)} --promise {verdict.promise}"
                terminal.verdict(verdict, command)
        if self.json:
            print(json.dumps([asdict(verdict) for verdict in verdicts]))
        else:
            terminal.say(testing.verdict_counts(verdicts))
        return 0 if all(verdict.good for verdict in verdicts) else 1
