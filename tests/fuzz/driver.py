"""Hold a reader to its word over many hostile inputs: each ends as a reading or as one short sentence, within limits.

How to use it: write a function of one case that builds the input and reads it, and give it with the cases to `hold`.
A case is anything with a short repr, most often a seed, from which the function makes its input with
`random.Random(seed)`; `mutated` breaks a sound input, `short_and_long` runs the same test with few seeds in the suite
and with many by --all. Cases run in forked processes with limits on memory and on the processor's time of each case
(never on the clock), so that a reader may loop, allocate, crash or exit without harm; what it did to files does
happen. `hold` fails with the cases that went wrong and how, and otherwise counts how many were read and how many
refused: assert on both, so that the inputs are known to reach the reader.

    @short_and_long(200)
    def test_whatever_a_header_says_it_is_read_or_refused(seeds, tmp_path):
        def read(seed):
            file = tmp_path / "model.safetensors"
            file.write_bytes(mutated(Random(seed), SOUND))
            open_tensors(file)

        found = hold(read, seeds)
        assert found["read"] and found["refused"]
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

from posenc.foreign import CannotRead, quoted, visible

resource = pytest.importorskip("resource", reason="cases run in forks with limits, which this system does not have")

LONGEST_MESSAGE = 1_000
"""The letters that a sentence about an input may have."""

LARGEST = (0x7F, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
"""Numbers that counts and sizes are replaced by: the ends of what fits, and far too many."""


def hold(
    read: Callable[[Any], object],
    cases: Sequence[Any],
    *,
    refused: type[Exception] | tuple[type[Exception], ...] = CannotRead,
    cpu: float = 5.0,
    memory: int = 300 << 20,
) -> Counter[str]:
    """How many cases were "read" and how many "refused"; fails with those that ended in any other way.

    refused  the errors in which a case may end; their message has to be short and without control characters
    cpu      the seconds of processor time that a case may take
    memory   the bytes that may be allocated beyond what this process has already
    """
    found: Counter[str] = Counter()
    wrong: list[str] = []
    left = list(cases)
    while left:
        ended, how = run(read, left, refused, cpu, memory)
        found.update(kind for kind, _ in ended)
        wrong += [f"{quoted(case)}: {words}" for case, (kind, words) in zip(left, ended, strict=False) if words]
        left = left[len(ended) :]
        if left:
            wrong.append(f"{quoted(left.pop(0))}: {how}")
            found["wrong"] += 1
    assert not wrong, f"{len(wrong)} of {len(cases)} cases went wrong:\n" + "\n".join(wrong[:10])
    return found


def run(read: Callable[[Any], object], cases: list[Any], refused: Any, cpu: float, memory: int) -> tuple[list, str]:
    """How the cases of one process ended, those before its end; and how it ended itself."""
    mine, its = os.pipe()
    with warnings.catch_warnings():
        # The suite's own threads wait for their pipes, and the child never runs them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(mine)
        live(read, cases, refused, cpu, memory, its)
    os.close(its)
    with open(mine, encoding="utf-8") as pipe:
        ended = [json.loads(line) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGPROF:
        return ended, f"it took more than {cpu} seconds of the processor"
    return ended, f"the process died by {signal.Signals(-code).name}" if code < 0 else f"it left with exit code {code}"


def live(read: Callable, cases: list[Any], refused: Any, cpu: float, memory: int, pipe: int) -> NoReturn:
    """The child's life: one line for each case that ended, and none for the one that ends it."""
    try:
        # What is here already is not looked at again with each collection.
        gc.freeze()
        # How a process died is told by its parent.
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform == "linux":
            held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held + memory, held + memory))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        for case in cases:
            signal.setitimer(signal.ITIMER_PROF, cpu)
            ended = how_it_ends(read, case, refused)
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(pipe, (json.dumps(ended) + "\n").encode())
        os._exit(0)
    finally:
        os._exit(70)


def how_it_ends(read: Callable[[Any], object], case: Any, refused: Any) -> tuple[str, str]:
    try:
        read(case)
    except refused as error:
        words = str(error)
        if len(words) > LONGEST_MESSAGE:
            return "wrong", f"its message has {len(words)} letters"
        return ("refused", "") if visible(words) == words else ("wrong", f"control characters in {words!r}")
    except BaseException as error:
        # The end of a traceback tells the place; a message may be as long as the input.
        place = "".join(traceback.format_tb(error.__traceback__)[-2:])
        return "wrong", f"{type(error).__name__}: {quoted(str(error))}\n{place}"
    return "read", ""


def mutated(random: Random, data: bytes, *, upto: int | None = None) -> bytes:
    """The bytes with one to three faults: bits flipped, bytes replaced, cut, doubled, or a number made far too large.

    upto  faults stand before this byte: in the header
    """
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        end = min(upto or len(found), len(found))
        place = random.randrange(max(end, 1))
        fault = random.choice((0, 0, 0, 0, 1, 1, 2, 3, 4))
        if fault == 0 and found:
            found[place % len(found)] ^= 1 << random.randrange(8)
        elif fault == 1:
            found[place : place + 1] = bytes([random.randrange(256)])
        elif fault == 2:
            del found[place : place + random.choice((1, 4, 8, 1 << 30))]
        elif fault == 3:
            found[place:place] = found[max(0, place - random.randrange(64)) : place]
        else:
            width = random.choice((1, 4, 8))
            number = random.choice(LARGEST) & ((1 << 8 * width) - 1)
            found[place : place + width] = number.to_bytes(width, random.choice(("little", "big")))
    return bytes(found)


def short_and_long(short: int, long: int = 5_000) -> Any:
    """Give a test `seeds`: a few in the suite, and many more by --all.

    long  no more than an idle processor gets through in a few minutes: a busy one has to end within the hour
    """
    parts = [range(short), pytest.param(range(short, long), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
    return pytest.mark.parametrize("seeds", parts, ids=["short", "long"])
