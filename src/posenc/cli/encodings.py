"""`posenc list`, `show`, `order` and `check`: what there is, seen from near, and held to its promises."""

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from posenc.cli.options import Comparison, Names, Numbers, Positional, Specs, Taking, Texts, Whole, Wholes
from posenc.foreign import quoted
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.description import listing


@dataclass
class List:
    """List the encodings, and all that goes with them.

    Example: posenc list --door bias --used-by t5

    posenc list NAME says all that is known of a name: an encoding, as a spec too, a schedule, a coordinate map, a task,
    a kernel, a preset, a claim. posenc list schedules has a line for each schedule, and so for the others.
    """

    name: Positional[Annotated[str, Taking("NAME")]] = ""
    """What to tell of: a name, a spec, or a kind such as schedules."""
    axes: Whole = None
    """Only encodings that read positions of so many axes: 1 for sequences, 2 for images."""
    door: Annotated[str, Taking("NAME")] = ""
    """Only encodings that open this door: embed, turn, bias, attend, remember."""
    used_by: Annotated[str, Taking("TEXT")] = ""
    """Only encodings that models of this name use."""
    pager: bool = True
    """Whether what is longer than the screen goes through PAGER, or less."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:

        asked = {"axes": self.axes, "door": self.door, "used_by": self.used_by}
        given = [f"--{name.replace('_', '-')}" for name, value in asked.items() if value not in (None, "")]
        if self.name and given:
            raise ValueError(f"{given[0]} chooses among all encodings, and {quoted(self.name)} is named; leave one out")
        if self.name in listing.KINDS:
            return self.show_kind(self.name)
        return self.show_card() if self.name else self.show_all(asked, everything=not given)

    def show_card(self) -> None:
        """Print what is known of one name."""
        from posenc.cli import terminal

        card = listing.card(self.name)
        if self.json:
            print(json.dumps(card))
            return
        for number, one in enumerate([card, *card["also"]]):
            if number:
                terminal.say()
            terminal.table([one["kind"], one["name"]], listing.card_in_words(one))
            if one.get("lesson"):
                terminal.say(f"\n{one['lesson']}")

    def show_kind(self, kind: str) -> None:
        """Print a line for each of a kind."""
        from posenc.cli import terminal

        entries = listing.overview()[kind]
        if self.json:
            print(json.dumps(entries))
            return
        terminal.pages(terminal.index(kind.replace("_", " "), list(map(listing.lined, entries))), pager=self.pager)

    def show_all(self, asked: dict[str, Any], *, everything: bool) -> None:
        """Print a line for each encoding that is asked for; with everything the names of what goes with them too."""
        from posenc.cli import terminal

        found = listing.overview()
        found["encodings"] = listing.chosen(found["encodings"], **asked)
        if everything:
            found["plugins"] = listing.installed()
        if self.json:
            print(json.dumps(found))
            return
        lines = list[str]()
        for title, entries in listing.groups_of(found, found["encodings"]):
            lines += [*terminal.index(title, entries), ""]
        if everything:
            for kind in [kind for kind in listing.KINDS if kind != "encodings"]:
                names = ", ".join(one["name"] for one in found[kind])
                lines += [*terminal.in_lines(kind.replace("_", " ").upper(), names), ""]
            for one in found["plugins"]:
                one["idea"] = "; ".join(filter(None, [f"{one['kind']} of {one['package']}", one.pop("problem")]))
            if found["plugins"]:
                lines += [*terminal.index("plug-ins", list(map(listing.lined, found["plugins"]))), ""]
        lines.append("posenc list NAME says all that is known of a name.")
        terminal.pages(lines, pager=self.pager)


@dataclass
class Show:
    """Show one encoding: formula, pictures, worked example.

    Example: posenc show "rotary(base=500)" --tokens 128 --out pictures
    """

    spec: Positional[Annotated[str, Taking("SPEC")]]
    """The encoding, as a spec."""
    tokens: int = 64
    """How many positions to draw."""
    dim: int = 64
    """Width of the model (channels)."""
    heads: int = 4
    """Number of heads."""
    words: Texts = ("the", "dog", "bit", "the", "man")
    """The words of the worked example, for encodings that add to embeddings."""
    ids: Wholes = ()
    """The id of each of these words. Default: counted as they come."""
    vectors: Numbers = ()
    """Their token vectors, one behind another for each id from 0 on. Default: random."""
    shift: int = 1
    """The k of the shift matrix M_k with PE(p + k) = M_k PE(p), for sinusoidal."""
    comparison: Comparison = None
    """A folder that compare has filled: what its runs of this encoding have learned is drawn too."""
    out: Path = Path("runs/show")
    """The folder for the pictures."""
    open: bool = False
    """Open the pictures with what this desktop opens pictures with."""
    json: bool = False
    """Print the numbers behind the pictures as JSON."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab.description import describe

        if self.open and self.json:
            raise ValueError("--open shows pictures, and --json draws none; leave one of them out")
        given = {name: getattr(self, name) for name in ("tokens", "dim", "heads", "words", "shift", "ids", "vectors")}
        try:
            shown = describe.show(self.spec, trained=self.comparison, **given)
        except ModuleNotFoundError as missing:
            if self.json:
                raise
            terminal.say(describe.in_words(describe.at_standard_shape(self.spec)[0]))
            terminal.note(f"pictures and numbers need {missing.name}: pip install 'posenc[lab]'")
            return
        if self.json:
            print(json.dumps(shown.facts))
            return
        terminal.say(shown.text)
        for title, headers, rows in shown.tables:
            terminal.say()
            terminal.table(headers, rows, title)
        paths = shown.save(self.out)
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
        from posenc.lab.description.describe import reading_of_order
        from posenc.lab.evaluation.order import order_tests

        found = {spec: order_tests(spec) for spec in self.specs}
        if self.json:
            print(json.dumps(found))
            return
        terminal.table(*reading_of_order(found))


@dataclass
class Check:
    """Hold an encoding or a task to all that posenc promises.

    Example: posenc check path/to/mine.py:Mine

    The exit code is 1 where a promise is broken, or a gap that is declared has closed.
    """

    spec: Positional[Annotated[str, Taking("SPEC")]]
    """The encoding or the task, as a spec or path/to/file.py:Class."""
    promise: Names = ()
    """Only these promises, by their names. Default: all."""
    json: bool = False
    """Print the verdicts as JSON."""

    def run(self) -> int:
        from posenc import testing
        from posenc.cli import terminal
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
                again = f"posenc check {shlex.quote(verdict.subject)} --promise {verdict.promise}"
                terminal.verdict(verdict, again)
        if self.json:
            print(json.dumps([asdict(verdict) for verdict in found]))
        else:
            terminal.say(testing.total(found))
        return 0 if all(verdict.good for verdict in found) else 1
