"""Mutation tests: break the code on purpose, one small break at a time, and report the breaks that no test catches.

    python3 run.py mutate [FILES] [--each N] [--most N] [--since REVISION] [--seed N] [--wide] [--explained]

Without FILES it takes the functions that differ from --since (the main branch; on it, the last commit). Each break is
made in a temporary copy of the project, in a process forked from one that has imported torch and pytest already.
First run the nearest tests (test_NAME.py, or else the files that import the module), then the contract with the
encodings concerned, then with --wide every other test file; of each, the tests that enter the broken function. Verdicts
are kept in build/mutation, so that the next run resumes: a caught break stays caught, and a survivor is tried again
when its tests have changed. Survivors that are no mistakes are listed in explained.txt, with the reason. The exit code
is 1 if there are others.
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

from mutation.breaks import Mutant, digest, find_mutants, sample

ROOT = Path(__file__).resolve().parents[2]
EXPLANATIONS = Path(__file__).with_name("explained.txt")
MAX_IMPORTERS = 3
"""Most test files that are nearest to a module without its own: those that import the fewest other modules."""
CONTRACT = "tests/testing/test_contract.py"
DISTANT_FOLDERS = ("peers", "explorer", "fuzz")
"""Folders with tests that are nearest to no module: other libraries, the page in a browser, hostile files."""
SUITE = "suite"
EXCLUDED_FILES = ("test_contract.py", "test_mutation.py", "test_run.py", "test_nothing_process_wide.py")
"""Test files that no wide run takes: the contract is a tier of its own, the others run whole commands."""
SUBJECTS = (
    "sinusoidal rotary alibi t5_bias shaw forgetting path dape rerope(rotary) rotary+alibi on(rotary,heads=(0,2))"
).split()
"""Encodings that the contract tests, with every schedule, for a break outside of an encoding's file."""
PRELOADED_MODULES = ("hypothesis", "mpmath", "numpy", "pytest", "torch")
"""Modules that most tests import: imported once, before processes are forked."""
IGNORED_FILES = ("*.pyc", ".*", "runs", "build", "dist")
MAX_BYTES = 6 << 30
"""Memory limit of a test process with a break."""
MAX_SECONDS = 900
"""Time limit of all tests of a tier without a break."""


class Tests(NamedTuple):
    """One tier of tests: pytest's arguments, and the filter of the tests that it collects."""

    tier: str
    subject: str  # which tests, or of which encodings
    arguments: tuple[str, ...]
    selects: Callable[[Any], bool]
    text: str  # the tests' source: when it changes, survivors are tried again


class Trace(NamedTuple):
    """A run without a break: seconds of each test that passed, and the tests that enter the function at FILE:LINE."""

    seconds: dict[str, float]
    entering: dict[str, list[str] | None]  # None: also outside of a test's own call, so any test may depend on it

    def tests_for(self, mutant: Mutant) -> list[str]:
        """Return the tests that can catch a break, the quickest first; all tests if none enters its function."""
        place = f"{mutant.file}:{mutant.first_line}"
        tests = None if mutant.is_cached or not mutant.function else self.entering.get(place)
        return sorted(tests or self.seconds, key=lambda test: self.seconds[test])

    def enters(self, mutant: Mutant) -> bool:
        return f"{mutant.file}:{mutant.first_line}" in self.entering


class Watcher:
    """A pytest plugin that chooses tests, and records their outcomes."""

    def __init__(self, selects: Callable[[Any], bool], selection: Sequence[str] | None, sources: str) -> None:
        self.selects, self.selection, self.sources = selects, selection, sources
        self.failures: list[str] = []
        self.seconds: dict[str, float] = {}
        self.entering: dict[tuple[str, int], set[str] | None] = {}
        self.test: str | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen_items = [item for item in items if self.selects(item)]
        if self.selection is not None:
            rank = {test: i for i, test in enumerate(self.selection)}
            chosen_items = [item for item in chosen_items if item.nodeid in rank]
            chosen_items.sort(key=lambda item: rank[item.nodeid])
        items[:] = chosen_items

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failures.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.seconds[report.nodeid] = report.duration

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failures.append(f"{report.nodeid} (cannot be collected)")

    def pytest_runtest_setup(self, item: Any) -> None:
        self.test = None

    def pytest_runtest_call(self, item: Any) -> None:
        self.test = item.nodeid

    def pytest_runtest_teardown(self, item: Any) -> None:
        self.test = None

    def enter(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(self.sources):
            function = frame.f_code.co_filename, frame.f_code.co_firstlineno
            tests = self.entering.setdefault(function, set())
            if self.test is None:
                self.entering[function] = None
            elif tests is not None:
                tests.add(self.test)


class Workbench:
    """A copy of the project in which one file at a time is broken."""

    def __init__(self, copy: Path, store: Path, patience: float, seconds: float) -> None:
        self.copy, self.store, self.patience, self.seconds = copy, store, patience, seconds
        self.sources = "".join(file.read_text(encoding="utf-8") for file in sorted((copy / "src").rglob("*.py")))
        self.output_file = copy.with_name("what the tests print")
        self.traces: dict[tuple[str, str], Trace] = {}

    def trace(self, tests: Tests) -> Trace:
        if (tests.tier, tests.subject) not in self.traces:
            store_file = self.store / f"trace-{digest(self.sources + tests.text + tests.tier + tests.subject)}.json"
            outcome = json.loads(store_file.read_text()) if store_file.exists() else self.run(tests, None, limit=None)
            if outcome is None and tests.tier == SUITE:
                print(f"left out, it does not end: {tests.subject}", file=sys.stderr)
                outcome = {"failed": [], "seconds": {}, "entered": {}}
            elif outcome is None:
                output = self.output_file.read_text(errors="replace")[-2000:]
                sys.exit(f"the {tests.tier} tests of {tests.subject} do not end without any break:\n{output}")
            store_file.write_text(json.dumps(outcome))
            for test in outcome["failed"]:
                print(f"fails without any break, and is left out: {test}", file=sys.stderr)
            seconds = {test: time for test, time in outcome["seconds"].items() if test not in outcome["failed"]}
            entering = {
                function: None if names is None else [test for test in names if test in seconds]
                for function, names in outcome["entered"].items()
            }
            self.traces[tests.tier, tests.subject] = Trace(seconds, entering)
        return self.traces[tests.tier, tests.subject]

    def killer(self, mutant: Mutant, tests: Tests) -> str | None:
        """Return the first test that fails because of a break, or None."""
        trace = self.trace(tests)
        if tests.tier == SUITE and not trace.enters(mutant):
            return None
        quickest = trace.tests_for(mutant)
        total_seconds = accumulate(trace.seconds[test] for test in quickest)
        selection = [test for test, total in zip(quickest, total_seconds, strict=True) if total <= self.seconds]
        if not selection:
            return None
        limit = self.patience + 5 * sum(trace.seconds[test] for test in selection)
        with self.break_file(mutant):
            outcome = self.run(tests, selection, int(limit))
        if outcome is None:
            return f"{tests.tier} tests (they crash, or do not end)"
        return outcome["failed"][0] if outcome["failed"] else None

    @contextmanager
    def break_file(self, mutant: Mutant) -> Iterator[None]:
        path = self.copy / mutant.file
        source, times = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(mutant.apply_to(source), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(source, encoding="utf-8")
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the .pyc file is valid again

    def run(self, tests: Tests, selection: Sequence[str] | None, limit: int | None) -> dict | None:
        """Run the candidates tests, or all of a tier with a trace, in a forked process.

        Returns the outcome that its watcher recorded, or None if the process did not end.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                os.close(reading)
                outcome = self.run_in_child(tests, selection, limit)
                with os.fdopen(writing, "w") as pipe:
                    pipe.write(json.dumps(outcome) + "\n")
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)
        # The child's limit counts processor time; on a busy machine the clock may run three times as long.
        text, deadline = b"", time.monotonic() + (MAX_SECONDS if limit is None else 60 + 3 * limit)
        try:
            with os.fdopen(reading, "rb", buffering=0) as pipe:
                while not text.endswith(b"\n"):
                    if not select.select([pipe], [], [], max(0, deadline - time.monotonic()))[0]:
                        break
                    piece = pipe.read(1 << 16)
                    if not piece:
                        break
                    text += piece
        finally:
            try:
                os.killpg(child, signal.SIGKILL)  # with the processes that its tests have started
            except ProcessLookupError:
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return json.loads(text) if text.endswith(b"\n") else None

    def run_in_child(self, tests: Tests, selection: Sequence[str] | None, limit: int | None) -> dict:
        import resource

        import pytest

        is_traced, sources = selection is None, str(self.copy / "src")
        os.setsid()
        for stop in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(stop, signal.SIG_DFL)
        os.chdir(self.copy)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(self.output_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
        sys.dont_write_bytecode = not is_traced
        os.environ["PYTHONDONTWRITEBYTECODE"] = "" if is_traced else "1"
        os.environ["PYTHONPATH"] = sources
        sys.path.insert(0, sources)
        watcher = Watcher(tests.selects, selection, sources)
        # pytest does not rewrite the assertions of modules that are imported already, and need not
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider", "--assert=plain"]
        if is_traced:
            sys.setprofile(watcher.enter)
        pytest.main([*quiet, *([] if is_traced else ["-x"]), *tests.arguments], plugins=[watcher])
        sys.setprofile(None)
        entering = {
            f"{os.path.relpath(file, self.copy)}:{line}": names if names is None else sorted(names)
            for (file, line), names in watcher.entering.items()
        }
        return {"failed": watcher.failures, "seconds": watcher.seconds, "entered": entering}


# Selecting tests


@functools.cache
def tiers(root: Path, file: str, wide: bool = False) -> list[Tests]:
    """Return the tiers of tests of a file, the nearest first; `wide` adds a tier for each other test file."""
    files = nearest(root, file)
    doctests = [file] if ">>>" in (root / file).read_text(encoding="utf-8") else []
    found_tiers = []
    if files or doctests:
        texts = [(root / path).read_text(encoding="utf-8") for path in files]
        paths = (*files, *doctests)
        found_tiers.append(Tests("nearest", " ".join(paths), paths, lambda item: True, "".join(texts)))
    if (root / CONTRACT).exists() and is_under_contract(file):
        promises = sorted((root / "src/posenc/testing").rglob("*.py"))
        text = "".join(path.read_text(encoding="utf-8") for path in (root / CONTRACT, *promises))
        encoding = Path(file).stem if "/encodings/" in file else ""
        found_tiers.append(Tests("contract", encoding or "all", (CONTRACT,), contract_filter(encoding), text))
    for test in sorted((root / "tests").rglob("test_*.py")) if wide else ():
        name = str(test.relative_to(root))
        if name not in files and test.name not in EXCLUDED_FILES:
            found_tiers.append(Tests(SUITE, name, (name,), lambda item: True, test.read_text(encoding="utf-8")))
    return found_tiers


def is_under_contract(file: str) -> bool:
    """Whether the contract tests a file: not the lab, the commands, or the readers of checkpoints."""
    return not re.search(r"posenc/(lab|checkpoints|web|cli|terminal|testing)", file)


def contract_filter(encoding: str) -> Callable[[Any], bool]:
    """Return a filter of the contract's tests: those of an encoding, or of SUBJECTS, and those without cases."""

    def selects(item: Any) -> bool:
        if not hasattr(item, "callspec"):
            return True
        subject = str(item.callspec.params["subject"]).replace(" ", "")
        if "compiles_to_one_graph" in item.nodeid:
            return False
        if encoding:
            return encoding in re.findall(r"\w+", subject)
        return subject in SUBJECTS or subject.startswith("rotary(schedule=")

    return selects


def nearest(root: Path, file: str) -> list[str]:
    """Return test_NAME.py or its folder's test file; or else the few files that import it and little else."""
    return nearest_to_module(root, ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__"))


def nearest_to_module(root: Path, module: str) -> list[str]:
    room = module.rpartition(".")[0]
    name, folder = module.rpartition(".")[2], room.rpartition(".")[2]
    stems = (name, f"{folder}_{name}", folder)
    matches = [test for stem in stems for test in find_test_files(root, f"test_{stem}.py")]
    if matches:
        matches.sort(key=lambda test: test.parent.name != folder)  # a test file in a folder of the same name first
        return [str(matches[0].relative_to(root))]
    importing = {}
    for test in find_test_files(root, "test_*.py"):
        modules = {name for name in imported_modules(test) if name.startswith(module.partition(".")[0])}
        name = str(test.relative_to(root))
        if module in modules and name != CONTRACT:
            importing[name] = len(modules)
    importers = sorted(importing, key=lambda name: (importing[name], name))[:MAX_IMPORTERS]
    return importers or (nearest_to_module(root, room) if "." in room else [])


def find_test_files(root: Path, pattern: str) -> list[Path]:
    """Return the test files that match a pattern, except those in DISTANT_FOLDERS."""
    return sorted(test for test in (root / "tests").rglob(pattern) if test.parent.name not in DISTANT_FOLDERS)


@functools.cache
def imported_modules(test: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(test.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


# Selecting breaks


def changed_lines(root: Path, revision: str) -> dict[str, list[range]]:
    """Return the lines of each file of the package that differ from a revision, in its present numbering."""

    def git(*arguments: str) -> str:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"git {' '.join(arguments)}: {result.stderr.strip()}; name the files to break")
        return result.stdout

    base = git("merge-base", revision, "HEAD").strip()
    files: dict[str, list[range]] = {}
    for base_revision in (base, "HEAD~1"):
        for line in git("diff", "-U0", "--no-color", base_revision, "--", "src").splitlines():
            if line.startswith("+++ "):
                file = line[4:].removeprefix("b/")
            hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
            if hunk and file.endswith(".py"):
                start = int(hunk[1])
                files.setdefault(file, []).append(range(start, start + max(1, int(hunk[2] or 1))))
        if files:
            break
    return files


def select_mutants(root: Path, files: Sequence[str], revision: str, per_function: int, seed: int) -> list[Mutant]:
    lines = {} if files else changed_lines(root, revision)
    candidates = []
    for file in files or sorted(lines):
        if not (root / file).is_file() or not file.endswith(".py"):
            sys.exit(f"there is no Python file {file} in {root}; name files such as src/posenc/tokens/masks.py")
        file_mutants = find_mutants(file, (root / file).read_text(encoding="utf-8"))
        if lines:
            file_mutants = [
                m
                for m in file_mutants
                for ranges in [[r for r in lines[file] if m.function or m.line in r]]
                if any(r.start <= m.last_line and m.first_line < r.stop for r in ranges)
            ]
        candidates += file_mutants
    return sample(candidates, per_function, seed)


# Verdicts


def read_explanations(path: Path = EXPLANATIONS) -> dict[str, str]:
    """Return the reason of each break that is no mistake; the file has a line for a break, then indented reasons."""
    reasons: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            name = [*reasons][-1]
            reasons[name] = f"{reasons[name]} {line.strip()}".strip()
        elif line.strip() and not line.startswith("#"):
            reasons[line.strip()] = ""
    return reasons


def mutant_key(mutant: Mutant, source: str) -> str:
    """Return a key of a break and its function's text, independent of its line."""
    body = source.splitlines()[max(0, mutant.first_line - 1) : mutant.last_line] if mutant.function else []
    return digest("\n".join([mutant.name, *body]))


def judge(
    root: Path, todo: Sequence[Mutant], store: Path, patience: float, seconds: float, wide: bool
) -> list[dict[str, Any]]:
    """Return the verdict on every break, from the store or by running the tests."""
    store.parent.mkdir(parents=True, exist_ok=True)
    records = map(json.loads, store.read_text().splitlines() if store.exists() else ())
    old_verdicts = {verdict["key"]: verdict for verdict in records}
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve() / root.name
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(*IGNORED_FILES))
        bench = Workbench(copy, store.parent, patience, seconds)
        for i, mutant in enumerate(todo):
            key = mutant_key(mutant, (copy / mutant.file).read_text(encoding="utf-8"))
            tests = tiers(copy, mutant.file, wide)
            tests_digest = digest(f"{seconds}" + "".join(tier_tests.text for tier_tests in tests))
            verdict = old_verdicts.get(key)
            if verdict is None or (verdict["killer"] is None and verdict["tests"] != tests_digest):
                killer, tier = None, ""
                for tier_tests in tests:
                    killer, tier = bench.killer(mutant, tier_tests), tier_tests.tier
                    if killer:
                        break
                verdict = {"key": key, "name": mutant.name, "killer": killer, "tier": tier if killer else ""}
                verdict["tests"] = tests_digest
                with store.open("a") as file:
                    file.write(json.dumps(verdict) + "\n")
                outcome = "caught" if killer else "SURVIVED"
                print(f"{i + 1}/{len(todo)} {outcome} {mutant.name}", file=sys.stderr, flush=True)
            verdicts.append(verdict | {"line": mutant.line})
    return verdicts


def table(verdicts: Sequence[dict[str, Any]], reasons: dict[str, str], *, show_explained: bool) -> str:
    lines = []
    survivors = [verdict for verdict in verdicts if verdict["killer"] is None]
    for verdict in survivors:
        file, _, description = verdict["name"].partition(" ")
        if verdict["name"] not in reasons:
            lines.append(f"survived   {file}:{verdict['line']} {description}")
        elif show_explained:
            lines.append(f"explained  {file}:{verdict['line']} {description}\n           {reasons[verdict['name']]}")
    plural = "" if len(verdicts) == 1 else "s"
    kills = {tier: sum(verdict["tier"] == tier for verdict in verdicts) for tier in ("nearest", "contract", SUITE)}
    explained_count = sum(verdict["name"] in reasons for verdict in survivors)
    lines.append(
        f"{len(verdicts)} break{plural}: {kills['nearest']} caught by the nearest tests, "
        f"{kills['contract']} by the contract, {kills[SUITE]} by others, "
        f"{len(survivors)} survived, {explained_count} of them explained"
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
    options = parser.parse_args(arguments)
    if not hasattr(os, "fork"):
        parser.error("this needs a system that can fork a process, such as Linux or macOS")
    root = options.root.resolve()
    files = [os.path.relpath(Path(file).resolve(), root) for file in options.files]
    todo = select_mutants(root, files, options.since, options.each, options.seed)[: options.most]
    # a signal ends the run's tests too and removes its copy
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, lambda number, frame: sys.exit(128 + number))
    for name in PRELOADED_MODULES if root == ROOT else ():
        importlib.import_module(name)
    gc.freeze()  # the children's garbage collections skip the objects that exist now
    todo.sort(key=lambda mutant: (mutant.file, mutant.line))
    store = root / "build" / "mutation" / "verdicts.jsonl"
    verdicts = judge(root, todo, store, options.patience, options.seconds, options.wide)
    reasons = read_explanations()
    print(table(verdicts, reasons, show_explained=options.explained))
    return int(any(verdict["killer"] is None and verdict["name"] not in reasons for verdict in verdicts))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
