"""The command line: verbs over the library and the laboratory. It parses, calls and prints; the work is done elsewhere.

A verb is a dataclass with `run`, in the file of what it is about; here they are called, and here their errors end.
Help must come at once, so everything that imports torch is imported inside `run`.

Data goes to stdout, progress to stderr. Exit codes: 0 done, 1 it failed, 2 bad usage (an option, a spec
or a file that cannot be taken), 130 interrupted, 128 + n ended by signal n.
"""

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields
from typing import Annotated, Any, Union, get_origin

import tyro
from tyro.conf import subcommand

from posenc import spelling
from posenc.cli.bench import Bench
from posenc.cli.board import Advise, Board
from posenc.cli.checkpoints import Convert, Extend, Fetch, Inspect
from posenc.cli.comparison import Compare, Merge, Report
from posenc.cli.encodings import Check, List, Order, Show
from posenc.cli.export import Export
from posenc.cli.lesson import LessonVerb
from posenc.cli.published import LAB, Lab
from posenc.cli.training import Generate, Train
from posenc.foreign import near, one_line, quoted, visible
from posenc.foreign.code import is_meant, own_errors
from posenc.foreign.text import shortened

LONGEST = 1_000
"""The letters of an error's one line."""

VERBS = {
    cls.__name__.lower(): cls
    for cls in (
        Compare,
        Merge,
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
        Export,
        Lab,
    )
} | {"lesson": LessonVerb}
Verb: Any = Union[tuple(Annotated[cls, subcommand(name)] for name, cls in VERBS.items())]  # noqa: UP007


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
    if once[:1] == ["train"] and any(argument.partition("=")[0] == "--config" for argument in once):
        from posenc.lab.runs.config import with_file

        once = with_file(once, Train)
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
