"""Costs that can be believed: candidates take turns, and each is divided by a limit measured in the same round.

One thread is timed by its own CPU time, which a busy machine hardly stretches; several threads by the wall, of which
the shortest rounds count. The first rounds only warm up. A result that is wrong is not timed.
"""

import ctypes
import functools
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

WARM_UP = 2
"""Rounds that are dropped: the first fills caches, the second says how often a call fits into a turn."""

MIN_ROUNDS = 5
"""A ratio out of fewer rounds is not given."""

TURN_SECONDS = 0.02
"""How long one candidate's turn lasts at least (seconds): shorter calls are repeated within it."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""What glibc's mallopt calls its settings."""


@dataclass(frozen=True)
class Candidate:
    """One way of doing what a group of candidates does.

    name       what it is, for people; a peer's begins with the name of its library
    kind       "limit" (what cannot be beaten), "posenc", "peer" (a library) or "naive" (what people write by hand)
    call       does it once
    error      the largest absolute difference from float64; None where there is nothing to compare
    tolerance  the largest error that is still a result
    subject    what it computes, where candidates of a group differ in that
    """

    name: str
    kind: str
    call: Callable[[], Any]
    error: Callable[[], float] | None = None
    tolerance: float = math.inf
    subject: str = ""


@dataclass
class Group:
    """Candidates that do the same, measured together.

    what        the verb's word: "rotation", "attention", ...
    case        which shape, dtype and pass
    limit       the candidate by which all are divided
    facts       the case in numbers, for those who draw: {"tokens": 4096, ...}
    absent      candidates that could not be tried -> why
    grad        whether gradients are recorded
    device      where tensors lie: "cuda" is timed by the wall, from when it has nothing left to do until it has again
    heap        how much freed memory the heap keeps for the next call (bytes): a gigabyte, so that tensors below
                32 MiB come out of memory that is there, as in a loop that runs for long; 64 MiB where tensors are
                larger, which are always new
    """

    what: str
    case: str
    limit: str
    candidates: list[Candidate] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    grad: bool = False
    heap: int = 1 << 30
    device: str = "cpu"

    def add(
        self,
        name: str,
        kind: str,
        call: Callable[[], Any],
        *,
        error: Callable[[], float] | None = None,
        tolerance: float = math.inf,
        subject: str = "",
    ) -> None:
        self.candidates.append(Candidate(name, kind, call, error, tolerance, subject))


@dataclass(frozen=True)
class Row:
    """One line of the answer.

    value    the median measure; None where there is none, and then `note` says why
    low      its lower quartile
    high     its upper quartile
    unit     "x copy_ of q and k", "MiB", "s", "graphs"
    seconds  what one call took (median, seconds), on this machine and nowhere else
    rounds   how many rounds the value comes from
    error    the largest absolute difference from float64
    """

    what: str
    case: str
    candidate: str
    kind: str
    unit: str
    threads: int = 1
    value: float | None = None
    low: float | None = None
    high: float | None = None
    seconds: float | None = None
    rounds: int = 0
    error: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(group: Group, *, threads: int = 1, seconds: float = 10.0, max_rounds: int = 15) -> list[Row]:
    """A row for each candidate of a group.

    threads  how many threads torch computes with
    seconds  after so long no further round is begun, once there are enough
    most     the largest number of rounds

    Raises RuntimeError when a result of ours, or the limit, is wrong.
    """
    rows, right, errors = [], {}, {}
    give_memory_back()
    with torch.set_grad_enabled(group.grad), set_threads(threads):
        for candidate in group.candidates:
            error = errors[candidate.name] = None if candidate.error is None else candidate.error()
            # NaN is wrong too.
            if error is None or error <= candidate.tolerance:
                right[candidate.name] = candidate
            elif candidate.kind in ("posenc", "limit"):
                raise RuntimeError(
                    f"{candidate.name} is wrong in '{group.case}': its error is {error:.1e}, and "
                    f"{candidate.tolerance:.1e} is the most that is right; no time is given"
                )
        calls = {name: candidate.call for name, candidate in right.items()}
        as_in_a_fresh_process(group.heap)
        wall = threads > 1 or group.device == "cuda"
        times = take_turns(calls, clock=clock_of(group.device, threads), seconds=seconds, max_rounds=max_rounds)
    for candidate in group.candidates:
        columns = (group.what, group.case, candidate.name, candidate.kind, f"x {group.limit}", threads)
        error = errors[candidate.name]
        if candidate.name not in times:
            note = "wrong, so not timed"
            rows.append(Row(*columns, error=error, facts=group.facts, subject=candidate.subject, note=note))
            continue
        own_times = times[candidate.name]
        value, low, high = ratio(own_times, times[group.limit], wall=wall)
        numbers = (value, low, high, statistics.median(own_times), len(own_times), error)
        rows.append(Row(*columns, *numbers, group.facts, candidate.subject))
    for name, reason in group.absent.items():
        rows.append(Row(group.what, group.case, name, "peer", "", threads, facts=group.facts, note=reason))
    return rows


def take_turns(
    calls: Mapping[str, Callable[[], Any]],
    *,
    clock: Callable[[], float] | None = None,
    seconds: float = 10.0,
    max_rounds: int = 15,
) -> dict[str, list[float]]:
    """Seconds of one call of each, round by round; the order moves on by one each round."""
    clock = time.thread_time if clock is None else clock
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    repeats, once_took = dict.fromkeys(names, 1), dict.fromkeys(names, 0.0)
    began = time.monotonic()
    with no_collection():
        for turn in range(WARM_UP + max_rounds):
            if turn == WARM_UP:
                began = time.monotonic()
            elif turn >= WARM_UP + MIN_ROUNDS and time.monotonic() - began > seconds:
                break
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                call, often = calls[name], repeats[name]
                if 0 < turn < WARM_UP and once_took[name] > 10 * TURN_SECONDS:
                    continue
                start = clock()
                for _ in range(often):
                    call()
                once = (clock() - start) / often
                if turn < WARM_UP:
                    # A first call may compile; the second tells how many fit.
                    once_took[name] = once
                    repeats[name] = max(1, min(10_000, math.ceil(TURN_SECONDS / max(once, 1e-9)))) if turn else 1
                else:
                    times[name].append(once)
    return times


def clock_of(device: str, threads: int) -> Callable[[], float]:
    """What tells the seconds of a call: the thread's own where it works alone, else the wall."""
    if device != "cuda":
        return time.perf_counter if threads > 1 else time.thread_time

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def ratio(times: Sequence[float], limit_times: Sequence[float], *, wall: bool = False) -> tuple[float, float, float]:
    """One candidate's times over another's of the same rounds: the median, and the quartiles.

    By the wall the middle is that of the shortest rounds: what disturbs a round only ever makes it longer.
    Raises ValueError for fewer than five rounds.
    """
    if len(times) != len(limit_times) or len(times) < MIN_ROUNDS:
        raise ValueError(
            f"a ratio needs {MIN_ROUNDS} rounds of both, got {len(times)} and {len(limit_times)}; measure longer"
        )
    ratios = [a / b for a, b in zip(times, limit_times, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (min(times) / min(limit_times) if wall else middle), low, high


@contextmanager
def set_threads(threads: int):
    """Compute with so many threads inside, and as before outside."""
    old_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(old_threads)


@functools.cache
def glibc() -> ctypes.CDLL | None:
    """The C library, where it is one whose memory can be steered."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, TypeError):
        return None


def as_in_a_fresh_process(heap: int) -> None:
    """Let new memory cost what it costs a process whose heap has no holes.

    From 32 MiB on glibc fetches each block from the system, which clears its pages: new memory then costs several times
    a copy. A heap in which earlier work has left large holes serves such a block for nothing, so that the same call is
    several times faster after other work than before. `heap` is how much freed memory is kept (bytes).
    """
    if (library := glibc()) is not None:
        library.malloc_trim(0)
        library.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(M_TRIM_THRESHOLD, heap)


def give_memory_back() -> None:
    """Until the next timing, fetch every block from 64 KiB on from the system, and give it back: no holes are left."""
    if (library := glibc()) is not None:
        library.mallopt(M_MMAP_THRESHOLD, 64 << 10)


@contextmanager
def no_collection():
    """Python's garbage collector does not run inside."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def difference(actual: Any, right: Any) -> float:
    """The largest absolute difference between tensors, or between lists of them; NaN where there is one."""
    if isinstance(actual, torch.Tensor):
        assert actual.shape == right.shape, f"shapes {list(actual.shape)} and {list(right.shape)} cannot be compared"
        return (actual.double() - right.double()).abs().max().item()
    # max() of Python would lose a NaN that does not come first.
    return torch.tensor([difference(a, b) for a, b in zip(actual, right, strict=True)]).max().item()
