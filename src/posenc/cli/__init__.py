"""The command line: verbs over the library and the laboratory. It parses, calls and prints; the work is done elsewhere.

A verb is a dataclass with `run`, which gives the exit code where it is not 0, in the file of what it is about; `verbs`
names them all, and here they are called, and their errors end. Help must come at once, so everything that imports torch
is imported inside `run`.

Data goes to stdout, progress to stderr. Exit codes: 0 done, 1 it failed, 2 bad usage (an option, a spec
or a file that cannot be taken, or nothing at all), 130 interrupted, 128 + n ended by signal n.
"""

import os
import platform
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import cast

from posenc import __version__
from posenc.cli.arguments import HELP, check_names, parse
from posenc.cli.help import show_help
from posenc.cli.published import LAB
from posenc.cli.verbs import VERBS, overview
from posenc.foreign import one_line, quoted
from posenc.foreign.code import is_meant, own_errors
from posenc.foreign.text import shortened

__all__ = ["LAB", "VERBS", "main", "parse"]

LONGEST = 1_000
"""The letters of an error's one line."""

AGAIN = 0.02
"""Seconds until an interrupt that Python dropped is raised again."""


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit code.

    A user's mistake, and what the system refuses, is answered in one line; a fault of posenc's stays a traceback.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            return answered(given)
        finally:
            # Whoever has stopped reading is heard of here, and not when Python ends.
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


def answered(given: list[str]) -> int:
    """What the arguments ask for, done; returns the exit code."""
    if not given:
        print(overview(), file=sys.stderr)
        return 2
    if given[0] == "help":
        given = [*given[1:], "--help"]
    if given[0] in HELP:
        print(overview())
        return 0
    if given[0] == "--version":
        print(version())
        return 0
    if any(argument in HELP for argument in given):
        show_help(given)
        return 0
    verb = parse(given)
    check_names(verb)
    with own_errors(given), ended_like_ctrl_c():
        return verb.run() or 0


def version() -> str:
    """What a report of a fault has to name."""
    from importlib import metadata

    torch = "no torch"
    with suppress(metadata.PackageNotFoundError):
        torch = f"torch {metadata.version('torch')}"
    return f"posenc {__version__}, {torch}, Python {platform.python_version()}"


@contextmanager
def ended_like_ctrl_c() -> Generator[None]:
    """A request to end, or a terminal that closes, is KeyboardInterrupt too, with the signal's number.

    What ignores them, as nohup does, goes on ignoring them. Where one arrives while Python cleans up behind an object,
    Python reports it and goes on; it is then asked for again, a moment later. Where C code drops one without a word,
    the command ends as interrupted when it is through.
    """
    came: list[int] = []
    again: list[threading.Timer] = []

    def end(number: int, frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt(number)

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        if not isinstance(what.exc_value, KeyboardInterrupt):
            report(what)
            return
        number = what.exc_value.args[0] if what.exc_value.args else signal.SIGINT
        # From another thread: here, it would be raised in this very function and be dropped with it.
        again.append(threading.Timer(AGAIN, interrupt, (number,)))
        again[-1].start()

    asked = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        asked = []
    before = {number: signal.getsignal(number) for number in asked}
    ours = [number for number in asked if before[number] in (signal.SIG_DFL, signal.default_int_handler)]
    for number in ours:
        signal.signal(number, end)
    report, sys.unraisablehook = sys.unraisablehook, dropped
    try:
        yield
        if came:
            raise KeyboardInterrupt(came[-1])
    finally:
        # One is enough; another would meet whoever runs behind the command.
        for timer in again:
            timer.cancel()
        sys.unraisablehook = report
        for number in ours:
            signal.signal(number, before[number])


def interrupt(number: int) -> None:
    """Send a signal to the main thread, which wakes it where it sleeps."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(cast(int, threading.main_thread().ident), number)
    else:
        signal.raise_signal(number)


def reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        # Without a name it was what we print.
        return f"{error.strerror}: {quoted(error.filename) if error.filename else 'the output'}"
    # Some of torch's messages run over many lines.
    return shortened(one_line(str(error)), LONGEST)
