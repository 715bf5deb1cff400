"""The command line in processes forked from this one: to be killed or interrupted, without an import of torch for each.

How to use it: `Forked("compare", "--out", folder)` starts a command, `until` waits for something that it does, `kill`
reaches it and its workers, which are forked too, and `ended` waits for all of them.
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

# Which torch imports at the first step of an optimiser, and each child would by itself.
import torch._dynamo  # noqa: F401

from posenc import cli

FORKS = multiprocessing.get_context("fork") if hasattr(os, "fork") else None


class Forked:
    """A command in a process of its own, the first of a group; `environment` is added to this one's."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        pipes = [os.pipe(), os.pipe()]
        with warnings.catch_warnings():
            # The suite's own threads wait for their pipes, and the child never runs them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process = os.fork()
        if self.process == 0:
            os.environ.update(environment or {})
            live(arguments, pipes)
        self.streams = [read for read, _ in pipes]
        for _, write in pipes:
            os.close(write)
        self.code: int | None = None

    def poll(self) -> int | None:
        """How it ended, as in subprocess; None while it has not."""
        if self.code is None:
            process, status = os.waitpid(self.process, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if process else None
        return self.code

    def until(self, true: Callable[[], object]) -> None:
        while not true():
            assert self.poll() is None, f"it ended too early: {self.ended()}"
            time.sleep(0.02)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to it and to all its workers, as a terminal does."""
        if self.poll() is None:
            os.killpg(self.process, number)

    def hang_up(self) -> None:
        """Read no more of stdout."""
        os.close(self.streams[0])
        self.streams[0] = os.open(os.devnull, os.O_RDONLY)

    def ended(self) -> tuple[int, str, str]:
        """(exit code, stdout, stderr), when the last process that could write there is gone."""
        said = []
        for stream in self.streams:
            with open(stream, encoding="utf-8") as pipe:
                said.append(pipe.read())
        while self.poll() is None:
            time.sleep(0.02)
        assert self.code is not None
        return self.code, said[0], said[1]


def live(arguments: tuple[str, ...], pipes: list[tuple[int, int]]) -> NoReturn:
    """The child's life: that of `posenc`, whatever this process had done to signals and streams."""
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
