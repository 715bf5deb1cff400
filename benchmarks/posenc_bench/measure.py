"""Reliable timing: candidates run in turn, each relative to a limit from the same round.

One thread is timed by its own CPU time, which a busy machine hardly affects; several threads by wall time, of which
the shortest rounds count. The first rounds only warm up. A wrong result is not timed.
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
"""The number of dropped rounds: the first fills caches, the second shows how often a call fits into a turn."""

MIN_ROUNDS = 5
"""The smallest number of rounds for a ratio."""

TURN_SECONDS = 0.02
"""The shortest turn of a candidate in seconds; shorter calls are repeated within it."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""The parameter numbers of glibc's mallopt."""


@dataclass(frozen=True)
class Candidate:
    """One implementation of a group's computation.

    name       the name shown in reports; a peer's begins with the name of its library
    kind       "limit" (what cannot be beaten), "posenc", "peer" (a library) or "naive" (what people write by hand)
    call       runs the computation once
    error      the largest absolute difference from float64; None if there is nothing to compare
    tolerance  the largest acceptable error
    subject    what the candidate computes, if the candidates of a group compute different things
    """

    name: str
    kind: str
    call: Callable[[], Any]
    error: Callable[[], float] | None = None
    tolerance: float = math.inf
    subject: str = ""


@dataclass
class Group:
    """Candidates with the same task, measured together.

    what        the command's word: "rotation", "attention", ...
    case        the shape, dtype and pass
    limit       the candidate by whose time all others are divided
    facts       the case in numbers, for plots: {"tokens": 4096, ...}
    absent      candidates that could not run -> why
    grad        whether gradients are recorded
    device      the tensors' device: "cuda" is timed by wall time, from one synchronisation to the next
    heap        how much freed memory the heap keeps for the next call (bytes): a gigabyte, so that tensors below
                32 MiB reuse memory as in a long-running loop; 64 MiB for larger tensors, which are always newly
                allocated
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
    """One line of the result.

    value    the median measured value; None if there is none, and then `note` says why
    low      the lower quartile
    high     the upper quartile
    unit     "x copy_ of q and k", "MiB", "s", "graphs"
    seconds  the time of one call (median, seconds), valid only for this machine
    rounds   the number of rounds behind the value
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
    """Measure a group and return a row for each candidate.

    threads     torch's number of threads
    seconds     the time after which no further round begins, once there are enough rounds
    max_rounds  the largest number of rounds

    Raises RuntimeError when a result of ours, or the limit, is wrong.
    """
    rows, right, errors = [], {}, {}
    give_memory_back()
    with torch.set_grad_enabled(group.grad), set_threads(threads):
        for candidate in group.candidates:
            error = errors[candidate.name] = None if candidate.error is None else candidate.error()
            # This form also rejects NaN.
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
    """Time one call of each candidate per round, rotating the order by one each round."""
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
                    # The first call may compile; the second shows how many calls fit in the time.
                    once_took[name] = once
                    repeats[name] = max(1, min(10_000, math.ceil(TURN_SECONDS / max(once, 1e-9)))) if turn else 1
                else:
                    times[name].append(once)
    return times


def clock_of(device: str, threads: int) -> Callable[[], float]:
    """Return the clock: CPU time for a single thread, otherwise wall time."""
    if device != "cuda":
        return time.perf_counter if threads > 1 else time.thread_time

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


def ratio(times: Sequence[float], limit_times: Sequence[float], *, wall: bool = False) -> tuple[float, float, float]:
    """Return the median and quartiles of one candidate's times over another's, round by round.

    For wall time the median is that of the shortest rounds, because disturbances only add time.
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
    """Set torch's number of threads within a `with` block."""
    old_threads = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(old_threads)


@functools.cache
def glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, whose heap can be configured."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, TypeError):
        return None


def as_in_a_fresh_process(heap: int) -> None:
    """Make allocation cost as much as in a process whose heap has no holes.

    From 32 MiB on, glibc gets each block from the system, which clears its pages: new memory then costs several times
    a copy. A heap with large holes from earlier work serves such a block for free, so the same call would be several
    times faster after other work than before it. `heap` is how much freed memory is kept (bytes).
    """
    if (library := glibc()) is not None:
        library.malloc_trim(0)
        library.mallopt(M_MMAP_THRESHOLD, 32 << 20)
        library.mallopt(M_TRIM_THRESHOLD, heap)


def give_memory_back() -> None:
    """Leave no holes in the heap. Until the next timing, glibc maps blocks of 64 KiB or more directly."""
    if (library := glibc()) is not None:
        library.mallopt(M_MMAP_THRESHOLD, 64 << 10)


@contextmanager
def no_collection():
    """Disable Python's garbage collector within a `with` block."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def difference(actual: Any, right: Any) -> float:
    """Return the largest absolute difference between tensors or lists of tensors; any NaN gives NaN."""
    if isinstance(actual, torch.Tensor):
        assert actual.shape == right.shape, f"shapes {list(actual.shape)} and {list(right.shape)} cannot be compared"
        return (actual.double() - right.double()).abs().max().item()
    # Python's max() would drop a NaN that does not come first.
    return torch.tensor([difference(a, b) for a, b in zip(actual, right, strict=True)]).max().item()
