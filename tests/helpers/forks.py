"""Run commands in forked processes, which tests kill or interrupt. A fork does not import torch again.

How to use it: `ForkedCli("compare", "--out", folder)` starts a command, `wait_for` waits for a condition, `kill` sends
a signal to it and its workers, which are forked too, and `outcome` waits for all of them.
"""

import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

# torch imports it at the first step of an optimiser; without this line each child would.
import torch._dynamo  # noqa: F401

from posenc import cli

FORKS = multiprocessing.get_context("fork") if hasattr(os, "fork") else None


class ForkedCli:
    """A command in a new process group, with `environment` added to this process's environment."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        pipes = [os.pipe(), os.pipe()]
        with warnings.catch_warnings():
            # Python warns of threads; those of the suite only wait for pipes, and the child never runs them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = os.fork()
        if self.process == 0:
            os.environ.update(environment or {})
            run_as_child(arguments, pipes)
        self.streams = [read for read, _ in pipes]
        for _, write in pipes:
            os.close(write)
        self.code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code as in subprocess, or None while the command runs."""
        if self.code is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if process else None
        return self.code

    def wait_for(self, true: Callable[[], object]) -> None:
        while not true():
            assert self.poll() is None, f"it ended too early: {self.outcome()}"
            time.sleep(0.02)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the command and all its workers, as a terminal does."""
        if self.poll() is None:
            os.killpg(self.process, number)

    def hang_up(self) -> None:
        """Close the reading end of stdout."""
        os.close(self.streams[0])
        self.streams[0] = os.open(os.devnull, os.O_RDONLY)

    def outcome(self) -> tuple[int, str, str]:
        """Wait for the command and its workers, and return (exit code, stdout, stderr)."""
        outputs = []
        for stream in self.streams:
            with open(stream, encoding="utf-8") as pipe:
                outputs.append(pipe.read())
        while self.poll() is None:
            time.sleep(0.02)
        assert self.code is not None
        return self.code, outputs[0], outputs[1]


def run_as_child(arguments: tuple[str, ...], pipes: list[tuple[int, int]]) -> NoReturn:
    """Run `posenc` in the child, with default signal handlers and new streams."""
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for (read, write), place in zip(pipes, (1, 2), strict=True):
            os.dup2(write, place)
            os.close(write)
            os.close(read)
        sys.stdout, sys.stderr = (open(place, "w", buffering=1, closefd=False) for place in (1, 2))
        multiprocessing.get_context = lambda kind: FORKS  # type: ignore[assignment]
        code = cli.main(list(arguments))
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
