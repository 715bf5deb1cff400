"""Startup costs: imports beyond that of torch, and whole commands."""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping

from posenc_bench import peers, subprocesses
from posenc_bench.measure import MIN_ROUNDS, Row

POSENC_IMPORTS = {"import posenc": "import posenc", "import posenc, make a Rotary": "import posenc; posenc.Rotary(64)"}
PEER_IMPORTS = {
    "rotary-embedding-torch": "import rotary_embedding_torch",
    "positional-encodings": "import positional_encodings.torch_encodings",
    "x-transformers": "import x_transformers",
    "transformers": "import transformers.models.llama.modeling_llama",
}
TORCH = "torch itself"

MISSPELT = "a name that is misspelt"
COMMANDS = {
    "posenc --help": ("--help",),
    "posenc compare --help": ("compare", "--help"),
    "posenc list": ("list",),
    "posenc list --json": ("list", "--json"),
    MISSPELT: ("show", "rotari"),
}
"""The commands that need no torch."""
WITH_TORCH = {
    "posenc show rotary": ("show", "rotary"),
    "posenc generate, one token": ("generate", "run", "--max-new-tokens", "1"),
}
BUILD_CODE = ("train", "rotary", "--task", "copy", "--steps", "2", "--out", "run")
"""The command that trains the run used for generation."""


def rows(shapes: str, with_peers: bool, threads: int = 1) -> Iterator[Row]:
    """Yield a row for each import and command. Only the shortest rounds count, since disturbances only add time."""
    yield from imports(shapes, with_peers, threads)
    with tempfile.TemporaryDirectory() as folder:
        subprocesses.seconds(folder, *BUILD_CODE)
        yield from commands("commands that need no torch", COMMANDS, folder, threads, baseline=False)
        yield from commands("commands, beyond import torch", WITH_TORCH, folder, threads, baseline=True)


def imports(shapes: str, with_peers: bool, threads: int) -> Iterator[Row]:
    modules, absent = dict(POSENC_IMPORTS), {}
    if with_peers:
        available = peers.versions()
        absent = {name: f"{name} is not installed" for name in PEER_IMPORTS if name not in available}
        modules |= {name: code for name, code in PEER_IMPORTS.items() if name in available and shapes == "full"}
    torch: list[float] = []

    def once(code: str) -> float:
        of_torch, baseline = subprocesses.run(CODE.format(code))
        torch.append(of_torch)
        return baseline

    times = in_turns({name: lambda code=code: once(code) for name, code in modules.items()})
    # The first round is dropped for torch as well.
    for name, posenc_times in {TORCH: torch[len(modules) :], **times}.items():
        kind = "limit" if name == TORCH else "posenc" if name in POSENC_IMPORTS else "peer"
        yield row("import", name, kind, posenc_times, threads)
    for name, reason in absent.items():
        yield Row("startup", "import", name, "peer", "", threads, note=reason)


def commands(
    case: str, command_lines: Mapping[str, tuple[str, ...]], folder: str, threads: int, *, baseline: bool
) -> Iterator[Row]:
    """Measure CPU seconds of processes, or those `beyond` the same round's import of torch."""
    torch = "import torch"
    calls = {
        name: lambda name=name, words=words: subprocesses.seconds(folder, *words, fails=name == MISSPELT)
        for name, words in command_lines.items()
    }
    times = in_turns({torch: lambda: subprocesses.seconds(folder, code="import torch"), **calls})
    for name, posenc_times in times.items():
        seconds = (
            [a - b for a, b in zip(posenc_times, times[torch], strict=True)]
            if baseline and name != torch
            else posenc_times
        )
        yield row(case, name, "limit" if name == torch else "posenc", seconds, threads)


def in_turns(calls: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Return each call's result per round. The first round fills the disk cache and writes .pyc files."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(1 + MIN_ROUNDS):
        for name, call in calls.items():
            value = call()
            if turn:
                times[name].append(value)
    return times


def row(case: str, name: str, kind: str, times: list[float], threads: int) -> Row:
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    columns = ("startup", case, name, kind, "s of CPU", threads)
    return Row(*columns, min(times), low, high, statistics.median(times), len(times))


CODE = """
import time
start = time.process_time()
import torch
before = time.process_time()
{}
print([before - start, time.process_time() - before])
"""
"""Code that prints the CPU seconds of importing torch, and those beyond it."""
