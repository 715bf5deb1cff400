"""One run of the benchmark: what was asked for, measured case by case, with the machine and the versions beside it."""

import datetime
import gc
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import posenc
from posenc import kernels
from posenc.foreign import quote
from posenc_bench import peers, report
from posenc_bench.cases import adding, attention, decoding, gpu, memory, models, rotation, startup, weights
from posenc_bench.measure import Group, Row, measure

SHAPES = ("quick", "full")

IN_TURNS: dict[str, Callable[[str, bool], Iterator[Group]]] = {
    "rotation": rotation.groups,
    "attention": attention.groups,
    "adding": adding.groups,
    "decoding": decoding.groups,
    "models": models.groups,
    "gpu": gpu.groups,
}
"""What is timed in this process: candidates that take turns."""

APART: dict[str, Callable[[str, bool], Iterator[Row]]] = {
    "decoding": decoding.rows,
    "startup": startup.rows,
    "memory": memory.rows,
    "weights": weights.rows,
    "gpu": gpu.rows,
}
"""What is measured in processes of its own."""

CASE_NAMES = tuple(dict.fromkeys([*IN_TURNS, *APART]))

SECONDS = {"quick": 2.0, "full": 10.0}
"""After so long a group begins no further round."""


def bench(
    names: Sequence[str] = (),
    *,
    shapes: str = "quick",
    threads: Sequence[int] = (1,),
    with_peers: bool = True,
    show: Callable[[list[Any]], None] | None = None,
    doing: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure, and give everything that was found as plain values.

    names       "rotation", "attention", ...: see CASE_NAMES; empty for all
    shapes      "quick" (the decisive shapes, minutes) or "full" (all of them)
    threads     the numbers of threads to time with; what is measured apart is measured with one
    with_peers  whether other libraries, where they are installed, are measured too
    show        called with the tables of a case as soon as they are there
    doing       called with what is measured next

    Raises ValueError for something that is not measured here, and RuntimeError when one of our results is wrong.
    """
    for word, choices in [*((w, CASE_NAMES) for w in names), (shapes, SHAPES)]:
        if word not in choices:
            raise ValueError(f"{quote(word)} is not measured; choose from {', '.join(choices)}")
    if not threads or min(threads) < 1:
        raise ValueError(f"threads are whole numbers from 1, got {list(threads)}")
    chosen_names = tuple(names) or CASE_NAMES
    if doing is not None:
        doing("measuring; what else runs on this machine makes the spread wider")
    facts: dict[str, Any] = {
        "began": now(),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
        "kernels": kernels.status(),
    }
    busy = [load()]
    rows: list[Row] = []

    def add_rows(new: list[Row]) -> None:
        rows.extend(new)
        if show is not None:
            show(report.tables([row.to_dict() for row in new]))

    def say(words: str) -> None:
        if doing is not None:
            doing(words)

    for count in threads:
        for word in [word for word in chosen_names if word in IN_TURNS]:
            for group in IN_TURNS[word](shapes, with_peers):
                say(f"{group.case}, {count} thread{'s' * (count > 1)}")
                add_rows(measure(group, threads=count, seconds=SECONDS[shapes]))
                # A group may hold a gigabyte, which the next one needs.
                del group
                gc.collect()
    for word in [word for word in chosen_names if word in APART]:
        say(word)
        add_rows(list(APART[word](shapes, with_peers)))
    settings = {"what": chosen_names, "shapes": shapes, "threads": tuple(threads), "peers": with_peers}
    busy.append(load())
    facts |= {"ended": now(), "load": busy}
    return {"schema": report.SCHEMA, "settings": settings, **facts, "rows": [row.to_dict() for row in rows]}


def commit() -> str:
    """The commit that was measured, with "changed" where files of posenc differ from it; "" where git cannot say."""
    home = Path(posenc.__file__).resolve().parent

    def git(*words: str) -> str:
        try:
            result = subprocess.run(["git", *words], cwd=home, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return result.stdout.strip() if result.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD")
    return f"{head}, changed" if head and git("status", "--porcelain", "--", ".") else head


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def load() -> float | None:
    """How many processes wanted a core during the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def hardware() -> dict[str, Any]:
    """The machine, as far as it says what it is.

    It is read here and not asked of posenc's store, because the posenc that is measured may be an older one.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    pages = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    cpu_facts = hasattr(os, "sysconf") and all(name in os.sysconf_names for name in pages)
    return {
        "processor": facts.get("model name") or platform.processor() or platform.machine(),
        "family and model": " ".join(filter(None, (facts.get("cpu family"), facts.get("model")))),
        "cores": os.cpu_count(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "memory, GiB": round(os.sysconf(pages[0]) * os.sysconf(pages[1]) / 2**30, 1) if cpu_facts else None,
        "system": f"{platform.system()}-{platform.machine()}",
    }


def versions() -> dict[str, str]:
    posenc_version = {"posenc": posenc.__version__, "python": platform.python_version(), "torch": torch.__version__}
    return posenc_version | peers.versions()
