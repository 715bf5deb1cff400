"""Fuzz a reader: on every hostile input it has to return or to raise one short message, within limits.

How to use it: write a function of one case that builds the input and reads it, and give it with the cases to
`run_cases`. A case is any value with a short repr, most often a seed, from which the function makes its input with
`random.Random(seed)`; `mutate` breaks a sound input, `short_and_long` runs the same test with few seeds in the suite
and with many by --all. Cases run in forked processes with limits on memory and on the processor time of each case
(never on the clock), so that a reader may loop, allocate, crash or exit without harm; its changes to files remain.
`run_cases` fails with a list of the faulty cases, or else counts how many were read and how many refused: assert on
both, so that the inputs are known to reach the reader.

    @short_and_long(200)
    def test_whatever_a_header_says_it_is_read_or_refused(seeds, tmp_path):
        def read(seed):
            file = tmp_path / "model.safetensors"
            file.write_bytes(mutate(Random(seed), SOUND))
            open_tensors(file)

        counts = run_cases(read, seeds)
        assert counts["read"] and counts["refused"]
"""

import faulthandler
import gc
import json
import os
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from posenc.foreign import CannotRead, quote, visible

resource = pytest.importorskip("resource", reason="cases run in forks with limits, which this system does not have")

MAX_MESSAGE_LETTERS = 1_000
"""Longest message about an input."""

LARGE_NUMBERS = (0x7F, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
"""Numbers that replace counts and sizes: the limits of integer types, and far too large ones."""


def run_cases(
    read: Callable[[Any], object],
    cases: Sequence[Any],
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = CannotRead,
    cpu: float = 5.0,
    memory: int = 300 << 20,
) -> Counter[str]:
    """Return the numbers of "read" and "refused" cases; fail if a case ended otherwise.

    errors  the errors that a case may raise; their message has to be short and without control characters
    cpu     seconds of processor time that a case may take
    memory  bytes that a case may allocate beyond the memory of this process
    """
    counts: Counter[str] = Counter()
    faults: list[str] = []
    pending = list(cases)
    while pending:
        outcomes, ending = run_in_child(read, pending, errors, cpu, memory)
        counts.update(kind for kind, _ in outcomes)
        faults += [f"{quote(case)}: {words}" for case, (kind, words) in zip(pending, outcomes, strict=False) if words]
        pending = pending[len(outcomes) :]
        if pending:
            faults.append(f"{quote(pending.pop(0))}: {ending}")
            counts["wrong"] += 1
    assert not faults, f"{len(faults)} of {len(cases)} cases went wrong:\n" + "\n".join(faults[:10])
    return counts


def run_in_child(read: Callable, cases: list[Any], errors: Any, cpu: float, memory: int) -> tuple[list, str]:
    """Run cases in one child process; return the outcomes until its end, and how it ended."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python warns of threads; those of the suite only wait for pipes, and the child never runs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reader)
        run_as_child(read, cases, errors, cpu, memory, writer)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        outcomes = [json.loads(line) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
        return outcomes, f"it took more than {cpu} seconds of the processor"
    ending = f"the process died by {signal.Signals(-code).name}" if code < 0 else f"it left with exit code {code}"
    return outcomes, ending


def run_as_child(read: Callable, cases: list[Any], errors: Any, cpu: float, memory: int, pipe: int) -> NoReturn:
    """Run the cases in the child: write a line for each case that ended, and none for the one that ends the process."""
    try:
        # Garbage collections skip the objects that exist now.
        gc.freeze()
        # The parent reports how the process died.
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":
            memory_in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (memory_in_use + memory, memory_in_use + memory))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        for case in cases:
            signal.setitimer(signal.ITIMER_PROF, cpu)
            outcome = outcome_of(read, case, errors)
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(pipe, (json.dumps(outcome) + "\n").encode())
        os._exit(0)
    finally:
        os._exit(70)


def outcome_of(read: Callable[[Any], object], case: Any, errors: Any) -> tuple[str, str]:
    try:
        read(case)
    except errors as error:
        message = str(error)
        if len(message) > MAX_MESSAGE_LETTERS:
            return "wrong", f"its message has {len(message)} letters"
        return ("refused", "") if visible(message) == message else ("wrong", f"control characters in {message!r}")
    except BaseException as error:
        # The end of a traceback names the place; a message may be as long as the input.
        place = "".join(traceback.format_tb(error.__traceback__)[-2:])
        return "wrong", f"{type(error).__name__}: {quote(str(error))}\n{place}"
    return "read", ""


def mutate(random: Random, data: bytes, *, end: int | None = None) -> bytes:
    """Return the bytes with one to three faults: bits flipped, bytes replaced, cut, doubled, or a number far too large.

    end  faults are before this byte, for example in the header
    """
    mutant = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        place = random.randrange(max(min(end or len(mutant), len(mutant)), 1))
        fault = random.choice((0, 0, 0, 0, 1, 1, 2, 3, 4))
        if fault == 0 and mutant:
            mutant[place % len(mutant)] ^= 1 << random.randrange(8)
        elif fault == 1:
            mutant[place : place + 1] = bytes([random.randrange(256)])
        elif fault == 2:
            del mutant[place : place + random.choice((1, 4, 8, 1 << 30))]
        elif fault == 3:
            mutant[place:place] = mutant[max(0, place - random.randrange(64)) : place]
        else:
            width = random.choice((1, 4, 8))
            number = random.choice(LARGE_NUMBERS) & ((1 << 8 * width) - 1)
            mutant[place : place + width] = number.to_bytes(width, random.choice(("little", "big")))
    return bytes(mutant)


def short_and_long(short: int, long: int = 5_000) -> Any:
    """Parametrise a test with `seeds`: a few in the suite, and many more by --all.

    long  as many as an idle processor runs in a few minutes, so that a busy one ends within the hour
    """
    parts = [range(short), pytest.param(range(short, long), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
    return pytest.mark.parametrize("seeds", parts, ids=["short", "long"])
