"""`posenc list`, `show`, `order` and `check`: what there is, seen from near, and held to its promises."""

import json
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from posenc.lab import ENCODINGS


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
    trained: Path | None = None
    """A folder that compare has filled: what its runs of this encoding have learned is drawn too."""
    out: Path = Path("runs/show")
    """The folder for the pictures."""
    json: bool = False
    """Print the numbers behind the pictures as JSON."""

    def run(self) -> int:
        from posenc import terminal
        from posenc.lab.description.describe import show

        shown = show(
            self.spec,
            tokens=self.tokens,
            dim=self.dim,
            heads=self.heads,
            words=self.words,
            shift=self.shift,
            trained=self.trained,
        )
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
