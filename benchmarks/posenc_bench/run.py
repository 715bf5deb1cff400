"""Run the benchmark case by case, and record the machine and versions."""

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
"""The cases timed in this process, with candidates in turn."""

APART: dict[str, Callable[[str, bool], Iterator[Row]]] = {
    "decoding": decoding.rows,
    "startup": startup.rows,
    "memory": memory.rows,
    "weights": weights.rows,
    "gpu": gpu.rows,
}
"""The cases measured in separate processes."""

CASE_NAMES = tuple(dict.fromkeys([*IN_TURNS, *APART]))

SECONDS = {"quick": 2.0, "full": 10.0}
"""The seconds after which a group begins no further round."""


def bench(
    names: Sequence[str] = (),
    *,
    shapes: str = "quick",
    threads: Sequence[int] = (1,),
    with_peers: bool = True,
    show: Callable[[list[Any]], None] | None = None,
    doing: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run the requested measurements and return the results as plain values.

    names       "rotation", "attention", ...: see CASE_NAMES; empty for all
    shapes      "quick" (the most important shapes, minutes) or "full" (all of them)
    threads     the thread counts to time with; measurements in separate processes use one
    with_peers  whether other installed libraries are measured too
    show        called with the tables of a case as soon as they are ready
    doing       called with the name of the next measurement

    Raises ValueError for an unknown name, and RuntimeError if one of our results is wrong.
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
                # A group may hold a gigabyte that the next one needs.
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
    """Return the measured commit, with "changed" if posenc's files differ; "" if git fails."""
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
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def hardware() -> dict[str, Any]:
    """Return the available facts about the machine.

    They are read here and not by posenc's store, because the measured posenc may be an older version.
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
