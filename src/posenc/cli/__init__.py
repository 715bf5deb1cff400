"""The command line: verbs over the library and the laboratory. It parses, calls other rooms and prints.

A verb is a dataclass with a method `run`, which returns the exit code (None: 0). `verbs` lists them all; this module
calls them and reports their errors. Help must be fast, so everything that imports torch is imported inside `run`.

Data goes to stdout, progress to stderr. Exit codes: 0 success, 1 failure, 2 bad usage (a wrong option, spec or file, or
no arguments), 130 interrupted, 128 + n ended by signal n.
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
from posenc.cli.arguments import HELP, check_names, parse_command
from posenc.cli.help import show_help
from posenc.cli.published import LAB
from posenc.cli.verbs import VERBS, overview
from posenc.foreign import one_line, quote
from posenc.foreign.code import is_for_user, user_code_errors
from posenc.foreign.text import shorten

__all__ = ["LAB", "VERBS", "main", "parse_command"]

MAX_ERROR_LETTERS = 1_000
"""The longest error line (letters)."""

RESEND_SECONDS = 0.02
"""Seconds until an interrupt that Python dropped is sent again."""


def main(arguments: list[str] | None = None) -> int:
    """Run one verb, and return the exit code.

    A user's mistake or a system error is printed as one line; a fault of posenc stays a traceback.
    """
    command = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            return run_command(command)
        finally:
            # A closed pipe raises here, and not when Python exits.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe; without this, Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, RuntimeError, OSError) as error:
        # An error with an errno comes from the system.
        if not is_for_user(error) and not getattr(error, "errno", None):
            raise
        print(f"posenc: {error_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt as end:
        number = end.args[0] if end.args else signal.SIGINT
        how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        print(f"posenc: {how}; what was finished is kept, give the same command again", file=sys.stderr)
        return 128 + number


def run_command(arguments: list[str]) -> int:
    """Run the command of these arguments, and return the exit code."""
    if not arguments:
        print(overview(), file=sys.stderr)
        return 2
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    if arguments[0] in HELP:
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(version())
        return 0
    if any(argument in HELP for argument in arguments):
        show_help(arguments)
        return 0
    verb = parse_command(arguments)
    check_names(verb)
    with user_code_errors(arguments), signals_as_interrupts():
        return verb.run() or 0


def version() -> str:
    """Return the versions that a bug report has to name."""
    from importlib import metadata

    torch = "no torch"
    with suppress(metadata.PackageNotFoundError):
        torch = f"torch {metadata.version('torch')}"
    return f"posenc {__version__}, {torch}, Python {platform.python_version()}"


@contextmanager
def signals_as_interrupts() -> Generator[None]:
    """Raise KeyboardInterrupt with the signal's number for SIGINT, SIGTERM and SIGHUP.

    Signals that are ignored, as under nohup, stay ignored. Python drops an exception that is raised in a finaliser; the
    signal is then sent again a moment later. If C code drops it silently, the command ends as interrupted at its end.
    """
    numbers: list[int] = []
    timers: list[threading.Timer] = []

    def end(number: int, frame: object) -> None:
        numbers.append(number)
        raise KeyboardInterrupt(number)

    def resend(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            report(unraisable)
            return
        number = unraisable.exc_value.args[0] if unraisable.exc_value.args else signal.SIGINT
        # Sent from another thread: raised here, it would be dropped as well.
        timers.append(threading.Timer(RESEND_SECONDS, interrupt, (number,)))
        timers[-1].start()

    signals = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        signals = []
    handlers = {number: signal.getsignal(number) for number in signals}
    defaults = [number for number in signals if handlers[number] in (signal.SIG_DFL, signal.default_int_handler)]
    for number in defaults:
        signal.signal(number, end)
    report, sys.unraisablehook = sys.unraisablehook, resend
    try:
        yield
        if numbers:
            raise KeyboardInterrupt(numbers[-1])
    finally:
        # A second signal would reach the caller's next command.
        for timer in timers:
            timer.cancel()
        sys.unraisablehook = report
        for number in defaults:
            signal.signal(number, handlers[number])


def interrupt(number: int) -> None:
    """Send a signal to the main thread, which also wakes it from a sleep."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(cast(int, threading.main_thread().ident), number)
    else:
        signal.raise_signal(number)


def error_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        # An error without a file name came from stdout.
        return f"{error.strerror}: {quote(error.filename) if error.filename else 'the output'}"
    # Some of torch's messages run over many lines.
    return shorten(one_line(str(error)), MAX_ERROR_LETTERS)
