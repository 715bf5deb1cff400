"""Measurements that need a separate process: memory and the cost of imports."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import posenc
import posenc_bench

WHY_NOT = "the peak of a process's memory is only read on Linux (/proc/self/status)"


def can_see_peaks() -> bool:
    return Path("/proc/self/clear_refs").exists()


def run(code: str, *arguments: str, threads: int = 1) -> Any:
    """Run Python code in a fresh interpreter and return the JSON it prints.

    The interpreter can import posenc and the benchmark. Raises RuntimeError with its output when it fails.
    """
    result = process("-c", code, *arguments, threads=threads)
    if result.returncode:
        raise RuntimeError(f"a process of its own failed: {' '.join(result.stderr.split()[-40:])}")
    return json.loads(result.stdout.splitlines()[-1])


def seconds(folder: str, *words: str, code: str = "", fails: bool = False) -> float:
    """Return the CPU seconds, start included, of a posenc command or Python code.

    It runs in an empty folder. Raises RuntimeError with its output unless it succeeds, or fails if `fails` is set.
    """
    # This module does not exist on Windows.
    import resource

    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = process(*(("-c", code) if code else ("-m", "posenc", *words)), folder=folder)
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if bool(result.returncode) != fails:
        raise RuntimeError(f"posenc {' '.join(words)} ended with {result.returncode}: {result.stderr[-300:].strip()}")
    return usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime


def process(*arguments: str, threads: int = 1, folder: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a fresh interpreter with this one's module path."""
    homes = [str(Path(module.__file__ or "").parent.parent) for module in (posenc, posenc_bench)]
    path = os.pathsep.join([*homes, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    # Python would import modules from the folder it is started in, whatever files are there.
    started_in = folder or homes[0]
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=started_in, capture_output=True, text=True, check=False)


def peak_of(call: Callable[[], Any]) -> float:
    """Return the peak MiB of a call, including its result, above the memory held before."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        # Memory that an earlier call has freed would be reused without being counted.
        trim(0)
    # Writing 5 resets the peak to the current memory.
    Path("/proc/self/clear_refs").write_text("5")
    resident = status_kib("VmRSS")
    result = call()
    peak = status_kib("VmHWM")
    del result
    return (peak - resident) / 1024


def status_kib(field: str) -> int:
    """Return a field of /proc/self/status in KiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))
