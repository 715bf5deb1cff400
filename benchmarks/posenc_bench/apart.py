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


def run(code: str, *given: str, threads: int = 1) -> Any:
    """What a few lines of Python print as JSON, run by a fresh interpreter that finds this package and the benchmark.

    Raises RuntimeError, with what it said, when it fails.
    """
    done = process("-c", code, *given, threads=threads)
    if done.returncode:
        raise RuntimeError(f"a process of its own failed: {' '.join(done.stderr.split()[-40:])}")
    return json.loads(done.stdout.splitlines()[-1])


def seconds(folder: str, *words: str, code: str = "", fails: bool = False) -> float:
    """CPU seconds of a command of posenc, or of a few lines of Python, in an empty folder, the start included.

    Raises RuntimeError, with what it said, unless it ends as it is to: well, or where it `fails` with an error.
    """
    # Not on Windows.
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = process(*(("-c", code) if code else ("-m", "posenc", *words)), folder=folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if bool(done.returncode) != fails:
        raise RuntimeError(f"posenc {' '.join(words)} ended with {done.returncode}: {done.stderr[-300:].strip()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
    before = held("VmRSS")
    kept = call()
    peak = held("VmHWM")
    del kept
    return (peak - before) / 1024


def held(what: str) -> int:
    """A line of the process's status, in KiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what))
