"""Break the code on purpose, one small break at a time, and say which breaks no test sees.

    python3 run.py mutate [FILES] [--each N] [--most N] [--since REVISION] [--seed N] [--wide] [--explained]

Without FILES it takes the functions that differ from --since (the main branch; on it, the last commit). Each break is
made in a temporary copy of the project, in a process forked from one that has imported torch and pytest already.
First run the nearest tests (test_NAME.py, or else the files that import the module), then the contract with the
encodings concerned, then with --wide every other test file; of all, the tests that enter the broken function. Verdicts
are kept in build/mutation, so a run that was stopped goes on: a break that was caught stays caught, one that survived
is tried again when its tests have changed. Survivors that are no mistakes stand in explained.txt, with the reason. The
exit code is 1 where one does not.
"""

import argparse
import ast
import functools
import gc
import importlib
import json
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutation.breaks import Mutant, digest, mutants, sample

ROOT = Path(__file__).resolve().parents[2]
EXPLAINED = Path(__file__).with_name("explained.txt")
IMPORTERS = 3
"""How many test files are near to a module without one of its own: those that import the fewest modules besides."""
CONTRACT = "tests/testing/test_contract.py"
OUTSIDE = ("peers", "explorer", "fuzz")
"""Folders of tests that are near to no module: other libraries, the page in a browser, hostile files."""
SUITE = "suite"
APART = ("test_contract.py", "test_mutation.py", "test_run.py", "test_nothing_process_wide.py")
"""Test files that no wide run takes: the contract is a tier of its own, the others run whole commands."""
SUBJECTS = (
    "sinusoidal rotary alibi t5_bias shaw forgetting path dape rerope(rotary) rotary+alibi on(rotary,heads=(0,2))"
).split()
"""What stands for all encodings, beside every schedule, where a break is not in an encoding's own file."""
WARM = ("hypothesis", "mpmath", "numpy", "pytest", "torch")
"""What most tests import: imported once, before processes are forked."""
LEFT_OUT = ("*.pyc", ".*", "runs", "build", "dist")
MEMORY = 6 << 30
"""Bytes that a broken test may take."""
WALL = 900
"""Seconds that all tests may take where nothing is broken."""


class Tests(NamedTuple):
    """One tier: what pytest is given, and which of it belongs here."""

    tier: str
    of: str  # which tests, or of which encodings
    arguments: tuple[str, ...]
    wanted: Callable[[Any], bool]
    text: str  # the tests' own text: where it changes, survivors are tried again


class Trace(NamedTuple):
    """What an unbroken run told: seconds of each test that passed, and which tests enter the function at FILE:LINE."""

    seconds: dict[str, float]
    entered: dict[str, list[str] | None]  # None: also outside of a test's own call, so any test may depend on it

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that can see a break, the quickest first; all of them where nothing was seen to enter it."""
        found = None if mutant.keeps or not mutant.function else self.entered.get(f"{mutant.file}:{mutant.starts}")
        return sorted(self.seconds if not found else found, key=lambda test: self.seconds[test])

    def enters(self, mutant: Mutant) -> bool:
        return f"{mutant.file}:{mutant.starts}" in self.entered


class Watcher:
    """A pytest plugin that chooses tests, and writes down what became of them."""

    def __init__(self, wanted: Callable[[Any], bool], chosen: Sequence[str] | None, sources: str) -> None:
        self.wanted, self.chosen, self.sources = wanted, chosen, sources
        self.failed: list[str] = []
        self.seconds: dict[str, float] = {}
        self.entered: dict[tuple[str, int], set[str] | None] = {}
        self.test: str | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        kept = [item for item in items if self.wanted(item)]
        if self.chosen is not None:
            rank = {test: i for i, test in enumerate(self.chosen)}
            kept = sorted((item for item in kept if item.nodeid in rank), key=lambda item: rank[item.nodeid])
        items[:] = kept

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (cannot be collected)")

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = None

    def pytest_runtest_call(self, item: Any) -> None:
        self.test = item.nodeid

    def pytest_runtest_teardown(self, item: Any) -> None:
        self.test = None

    def enter(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self.sources):
            function = frame.f_code.co_filename, frame.f_code.co_firstlineno
            tests = self.entered.setdefault(function, set())
            if self.test is None:
                self.entered[function] = None
            elif tests is not None:
                tests.add(self.test)


class Bench:
    """A copy of the project in which one file at a time is broken."""

    def __init__(self, copy: Path, store: Path, patience: float, seconds: float) -> None:
        self.copy, self.store, self.patience, self.seconds = copy, store, patience, seconds
        self.sources = "".join(file.read_text(encoding="utf-8") for file in sorted((copy / "src").rglob("*.py")))
        self.said = copy.with_name("what the tests print")
        self.traces: dict[tuple[str, str], Trace] = {}

    def trace(self, tests: Tests) -> Trace:
        if (tests.tier, tests.of) not in self.traces:
            kept = self.store / f"trace-{digest(self.sources + tests.text + tests.tier + tests.of)}.json"
            told = json.loads(kept.read_text()) if kept.exists() else self.run(tests, None, limit=None)
            if told is None and tests.tier == SUITE:
                print(f"left out, it comes to no end: {tests.of}", file=sys.stderr)
                told = {"failed": [], "seconds": {}, "entered": {}}
            elif told is None:
                said = self.said.read_text(errors="replace")[-2000:]
                sys.exit(f"the {tests.tier} tests of {tests.of} come to no end without any break:\n{said}")
            kept.write_text(json.dumps(told))
            for test in told["failed"]:
                print(f"fails without any break, and is left out: {test}", file=sys.stderr)
            seconds = {test: time for test, time in told["seconds"].items() if test not in told["failed"]}
            entered = {
                function: None if by is None else [test for test in by if test in seconds]
                for function, by in told["entered"].items()
            }
            self.traces[tests.tier, tests.of] = Trace(seconds, entered)
        return self.traces[tests.tier, tests.of]

    def killer(self, mutant: Mutant, tests: Tests) -> str | None:
        """The test that fails because of a break, or nothing."""
        trace = self.trace(tests)
        if tests.tier == SUITE and not trace.enters(mutant):
            return None
        every = trace.of(mutant)
        spent = accumulate(trace.seconds[test] for test in every)
        chosen = [test for test, until in zip(every, spent, strict=True) if until <= self.seconds]
        if not chosen:
            return None
        limit = self.patience + 5 * sum(trace.seconds[test] for test in chosen)
        with self.broken(mutant):
            told = self.run(tests, chosen, int(limit))
        if told is None:
            return f"{tests.tier} tests (they crash, or do not end)"
        return told["failed"][0] if told["failed"] else None

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        path = self.copy / mutant.file
        whole, when = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.broken(whole), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(whole, encoding="utf-8")
            os.utime(path, ns=(when.st_atime_ns, when.st_mtime_ns))  # its compiled form is good again

    def run(self, tests: Tests, chosen: Sequence[str] | None, limit: int | None) -> dict | None:
        """Run chosen tests, or all of a tier with a trace, in a forked process.

        Returns what its watcher saw, or None where it saw no end.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                os.close(reading)
                told = self.in_the_child(tests, chosen, limit)
                with os.fdopen(writing, "w") as pipe:
                    pipe.write(json.dumps(told) + "\n")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)
        # What waits takes no processor time; busy neighbours may take three times as long.
        text, until = b"", time.monotonic() + (WALL if limit is None else 60 + 3 * limit)
        try:
            with os.fdopen(reading, "rb", buffering=0) as pipe:
                while not text.endswith(b"\n") and select.select([pipe], [], [], max(0, until - time.monotonic()))[0]:
                    piece = pipe.read(1 << 16)
                    if not piece:
                        break
                    text += piece
        finally:
            try:
                os.killpg(child, signal.SIGKILL)  # and whatever its tests have started
            except ProcessLookupError:
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return json.loads(text) if text.endswith(b"\n") else None

    def in_the_child(self, tests: Tests, chosen: Sequence[str] | None, limit: int | None) -> dict:
        import resource

        import pytest

        traced, sources = chosen is None, str(self.copy / "src")
        os.setsid()
        for stop in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(stop, signal.SIG_DFL)
        os.chdir(self.copy)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        said = os.open(self.said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        sys.dont_write_bytecode = not traced
        os.environ["PYTHONDONTWRITEBYTECODE"] = "" if traced else "1"
        os.environ["PYTHONPATH"] = sources
        sys.path.insert(0, sources)
        watcher = Watcher(tests.wanted, chosen, sources)
        # what the first process imported is not rewritten by pytest, and need not be
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "--assert=plain"]
        if traced:
            sys.setprofile(watcher.enter)
        pytest.main([*quiet, *([] if traced else ["-x"]), *tests.arguments], plugins=[watcher])
        sys.setprofile(None)
        entered = {
            f"{os.path.relpath(file, self.copy)}:{line}": by if by is None else sorted(by)
            for (file, line), by in watcher.entered.items()
        }
        return {"failed": watcher.failed, "seconds": watcher.seconds, "entered": entered}


# Which tests


@functools.cache
def tiers(root: Path, file: str, wide: bool = False) -> list[Tests]:
    """The tests of a file, the nearest first; `wide` with all others at the end, a tier for each test file."""
    near = nearest(root, file)
    doctests = [file] if ">>>" in (root / file).read_text(encoding="utf-8") else []
    found = []
    if near or doctests:
        texts = [(root / one).read_text(encoding="utf-8") for one in near]
        found.append(
            Tests("nearest", " ".join((*near, *doctests)), (*near, *doctests), lambda item: True, "".join(texts))
        )
    if (root / CONTRACT).exists() and under_contract(file):
        promises = sorted((root / "src/posenc/testing").rglob("*.py"))
        text = "".join(one.read_text(encoding="utf-8") for one in (root / CONTRACT, *promises))
        encoding = Path(file).stem if "/encodings/" in file else ""
        found.append(Tests("contract", encoding or "all", (CONTRACT,), concerned(encoding), text))
    for test in sorted((root / "tests").rglob("test_*.py")) if wide else ():
        name = str(test.relative_to(root))
        if name not in near and test.name not in APART:
            found.append(Tests(SUITE, name, (name,), lambda item: True, test.read_text(encoding="utf-8")))
    return found


def under_contract(file: str) -> bool:
    """The contract holds encodings and what carries them; the laboratory and the readers of checkpoints are apart."""
    return not re.search(r"posenc/(lab|checkpoints|web|cli|terminal|testing)", file)


def concerned(encoding: str) -> Callable[[Any], bool]:
    """Which tests of the contract are about an encoding, or stand for all of them, as those without cases do."""

    def wanted(item: Any) -> bool:
        if not hasattr(item, "callspec"):
            return True
        subject = str(item.callspec.params["subject"]).replace(" ", "")
        if "compiles_to_one_graph" in item.nodeid:
            return False
        if encoding:
            return encoding in re.findall(r"\w+", subject)
        return subject in SUBJECTS or subject.startswith("rotary(schedule=")

    return wanted


def nearest(root: Path, file: str) -> list[str]:
    """test_NAME.py or that of its room; or the few files that import it and little else, or its room."""
    return nearest_of(root, ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__"))


def nearest_of(root: Path, module: str) -> list[str]:
    room = module.rpartition(".")[0]
    name, around = module.rpartition(".")[2], room.rpartition(".")[2]
    own = [test for tested in (name, f"{around}_{name}", around) for test in tests_in(root, f"test_{tested}.py")]
    if own:
        own.sort(key=lambda test: test.parent.name != around)  # that of its room before others of the same name
        return [str(own[0].relative_to(root))]
    importing = {}
    for test in tests_in(root, "test_*.py"):
        imported = {name for name in imports(test) if name.startswith(module.partition(".")[0])}
        name = str(test.relative_to(root))
        if module in imported and name != CONTRACT:
            importing[name] = len(imported)
    near = sorted(importing, key=lambda name: (importing[name], name))[:IMPORTERS]
    return near or (nearest_of(root, room) if "." in room else [])


def tests_in(root: Path, pattern: str) -> list[Path]:
    """The test files of the rooms by a pattern of names, without those that look at a room from outside."""
    return sorted(test for test in (root / "tests").rglob(pattern) if test.parent.name not in OUTSIDE)


@functools.cache
def imports(test: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


# Which breaks


def changed(root: Path, since: str) -> dict[str, list[range]]:
    """Lines of the package that differ from a revision, as they are now."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}; name the files to break")
        return done.stdout

    base = git("merge-base", since, "HEAD").strip()
    files: dict[str, list[range]] = {}
    for revision in (base, "HEAD~1"):
        for line in git("diff", "-U0", "--no-color", revision, "--", "src").splitlines():
            if line.startswith("+++ "):
                file = line[4:].removeprefix("b/")
            found = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
            if found and file.endswith(".py"):
                start = int(found[1])
                files.setdefault(file, []).append(range(start, start + max(1, int(found[2] or 1))))
        if files:
            break
    return files


def wanted_mutants(root: Path, files: Sequence[str], since: str, each: int, seed: int) -> list[Mutant]:
    lines = {} if files else changed(root, since)
    found = []
    for file in files or sorted(lines):
        if not (root / file).is_file() or not file.endswith(".py"):
            sys.exit(f"there is no Python file {file} in {root}; name files such as src/posenc/tokens/masks.py")
        every = mutants(file, (root / file).read_text(encoding="utf-8"))
        if lines:
            every = [
                m
                for m in every
                if any(r.start <= m.ends and m.starts < r.stop for r in lines[file] if m.function or m.line in r)
            ]
        found += every
    return sample(found, each, seed)


# Verdicts


def explanations(path: Path = EXPLAINED) -> dict[str, str]:
    """Breaks that are no mistakes, and why: a line for the break, and an indented one for the reason."""
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            name = [*found][-1]
            found[name] = f"{found[name]} {line.strip()}".strip()
        elif line.strip() and not line.startswith("#"):
            found[line.strip()] = ""
    return found


def key_of(mutant: Mutant, source: str) -> str:
    """A break and the function around it, wherever it stands in the file."""
    body = source.splitlines()[max(0, mutant.starts - 1) : mutant.ends] if mutant.function else []
    return digest("\n".join([mutant.name, *body]))


def judge(
    root: Path, todo: Sequence[Mutant], store: Path, patience: float, seconds: float, wide: bool
) -> list[dict[str, Any]]:
    """The verdict on every break, from the store or by trying it."""
    store.parent.mkdir(parents=True, exist_ok=True)
    known = {one["key"]: one for one in map(json.loads, store.read_text().splitlines())} if store.exists() else {}
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve() / root.name
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        bench = Bench(copy, store.parent, patience, seconds)
        for i, mutant in enumerate(todo):
            key = key_of(mutant, (copy / mutant.file).read_text(encoding="utf-8"))
            tests = tiers(copy, mutant.file, wide)
            seen = digest(f"{seconds}" + "".join(one.text for one in tests))
            verdict = known.get(key)
            if verdict is None or (verdict["killer"] is None and verdict["tests"] != seen):
                killer, tier = None, ""
                for one in tests:
                    killer, tier = bench.killer(mutant, one), one.tier
                    if killer:
                        break
                verdict = {
                    "key": key,
                    "name": mutant.name,
                    "killer": killer,
                    "tier": tier if killer else "",
                    "tests": seen,
                }
                with store.open("a") as file:
                    file.write(json.dumps(verdict) + "\n")
                print(
                    f"{i + 1}/{len(todo)} {'caught' if killer else 'SURVIVED'} {mutant.name}",
                    file=sys.stderr,
                    flush=True,
                )
            verdicts.append(verdict | {"line": mutant.line})
    return verdicts


def table(verdicts: Sequence[dict[str, Any]], explained: dict[str, str], *, show_explained: bool) -> str:
    lines = []
    survivors = [one for one in verdicts if one["killer"] is None]
    for one in survivors:
        file, _, what = one["name"].partition(" ")
        if one["name"] not in explained:
            lines.append(f"survived   {file}:{one['line']} {what}")
        elif show_explained:
            lines.append(f"explained  {file}:{one['line']} {what}\n           {explained[one['name']]}")
    plural = "" if len(verdicts) == 1 else "s"
    caught = {tier: sum(one["tier"] == tier for one in verdicts) for tier in ("nearest", "contract", SUITE)}
    known = sum(one["name"] in explained for one in survivors)
    lines.append(
        f"{len(verdicts)} break{plural}: {caught['nearest']} caught by the nearest tests, "
        f"{caught['contract']} by the contract, {caught[SUITE]} by others, "
        f"{len(survivors)} survived, {known} of them explained"
    )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("run.py mutate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", help="files of the package; default: what changed")
    parser.add_argument("--each", type=int, default=3, help="breaks of one function at most (default 3)")
    parser.add_argument(
        "--most", type=int, help="breaks at most; every function has its first one before any its second"
    )
    parser.add_argument(
        "--since", default="main", help="revision to compare with where no files are named (default main)"
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed takes other breaks")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="of tests for each break and tier, the quickest first (default all)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=20,
        help="processor seconds beyond five times what the tests take (default 20)",
    )
    parser.add_argument("--wide", action="store_true", help="try what survives with every other test file too")
    parser.add_argument("--explained", action="store_true", help="also show the survivors that are explained")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project (default: this one)")
    chosen = parser.parse_args(arguments)
    if not hasattr(os, "fork"):
        parser.error("this needs a system that can fork a process, such as Linux or macOS")
    root = chosen.root.resolve()
    files = [os.path.relpath(Path(file).resolve(), root) for file in chosen.files]
    todo = wanted_mutants(root, files, chosen.since, chosen.each, chosen.seed)[: chosen.most]
    # a run that is stopped takes its tests and its copy with it
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, lambda number, frame: sys.exit(128 + number))
    for name in WARM if root == ROOT else ():
        importlib.import_module(name)
    gc.freeze()  # what is collected in every child is not looked through again
    todo.sort(key=lambda mutant: (mutant.file, mutant.line))
    store = root / "build" / "mutation" / "verdicts.jsonl"
    verdicts = judge(root, todo, store, chosen.patience, chosen.seconds, chosen.wide)
    explained = explanations()
    print(table(verdicts, explained, show_explained=chosen.explained))
    return int(any(one["killer"] is None and one["name"] not in explained for one in verdicts))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
