"""What has to be measured in a process of its own: memory, and what an import costs."""

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
    """What a few lines of Python print as JSON, run by a fresh interpreter that finds this package and the benchmark.

    Raises RuntimeError, with what it said, when it fails.
    """
    result = process("-c", code, *arguments, threads=threads)
    if result.returncode:
        raise RuntimeError(f"a process of its own failed: {' '.join(result.stderr.split()[-40:])}")
    return json.loads(result.stdout.splitlines()[-1])


def seconds(folder: str, *words: str, code: str = "", fails: bool = False) -> float:
    """CPU seconds of a command of posenc, or of a few lines of Python, in an empty folder, the start included.

    Raises RuntimeError, with what it said, unless it ends as it is to: well, or where it `fails` with an error.
    """
    # Not on Windows.
    import resource

    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = process(*(("-c", code) if code else ("-m", "posenc", *words)), folder=folder)
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if bool(result.returncode) != fails:
        raise RuntimeError(f"posenc {' '.join(words)} ended with {result.returncode}: {result.stderr[-300:].strip()}")
    return usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime


def process(*arguments: str, threads: int = 1, folder: str | None = None) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds what this one has."""
    homes = [str(Path(module.__file__ or "").parent.parent) for module in (posenc, posenc_bench)]
    path = os.pathsep.join([*homes, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    # Python takes modules from the folder that it is started in, whatever lies there.
    started_in = folder or homes[0]
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=started_in, capture_output=True, text=True, check=False)


def peak_of(call: Callable[[], Any]) -> float:
    """MiB of memory that a call takes at its peak, its result included, beyond what the process held before."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        # What an earlier call has freed would be used again, unseen.
        trim(0)
    # Writing 5 sets the peak back to what is held now.
    Path("/proc/self/clear_refs").write_text("5")
    resident = status_kib("VmRSS")
    result = call()
    peak = status_kib("VmHWM")
    del result
    return (peak - resident) / 1024


def status_kib(field: str) -> int:
    """A line of the process's status, in KiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))
