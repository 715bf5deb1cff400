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

WHY_NOT = "the peak of a process's memory is only read on Linux (/proc/self/status)"


def can_see_peaks() -> bool:
    return Path("/proc/self/clear_refs").exists()


def run(code: str, *given: str, threads: int = 1) -> Any:
    """What a few lines of Python print as JSON, run by a fresh interpreter that finds this package.

    Raises RuntimeError, with what it said, when it fails.
    """
    home = str(Path(posenc.__file__).parent.parent)
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    # Python takes modules from the folder that it is started in, whatever lies there.
    done = subprocess.run(
        [sys.executable, "-c", code, *given], env=environment, cwd=home, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"a process of its own failed: {' '.join(done.stderr.split()[-40:])}")
    return json.loads(done.stdout.splitlines()[-1])


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
