#!/usr/bin/env python3
"""Set up the project's own environment once, then do one job in it.

    python3 run.py demo             compare encodings and write a report (posenc compare)
    python3 run.py test [args]      run the test suite; --all adds the slow tests, the rest goes to pytest
    python3 run.py check            lint, format, types, import rules, names and sentences
    python3 run.py docs [args]      build the site of the documentation, and say where it lies; the rest goes to Sphinx
    python3 run.py tree [FOLDER]    print the files of src/posenc, or of FOLDER, with what each says that it is
    python3 run.py paper [FILE]     write the technical report from the committed records, as a PDF
    python3 run.py release          --dry-run builds what is published, and tries it in an environment of its own
    python3 run.py sanitize         run the tests of the C code with its memory and its arithmetic watched (needs gcc)
    python3 run.py bench [WHAT]     measure what encodings cost on this machine; --help says what there is
    python3 run.py mutate [FILES]   break what changed (or FILES) on purpose; say which breaks no test sees
    python3 run.py VERB [args]      any verb of the posenc command line; VERB --help explains it

The first call makes the environment, later calls start at once. It needs Python 3.10 or newer and a
package index; these variables change what it does:

    POSENC_TORCH     the torch to install, such as torch==2.13.0 (default: the one in constraints.txt)
    POSENC_EXTRAS    the extras to install (default: those that the verb needs; what is there already stays)
    POSENC_VENV      where the environment lies (default: .venv); one that is broken is erased and made again
    POSENC_NO_UV     set to 1 to install with pip alone (slower)
"""

# Only the standard library may be imported here, and the syntax stays readable to Python 3.7, so that an
# interpreter that is too old reaches the sentence that says so.

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, NoReturn, Sequence  # noqa: UP035 (collections.abc: not on Python 3.7)

ROOT = Path(__file__).resolve().parent
OLDEST_PYTHON = (3, 10)
# timm asks for a torchvision, which the index has for one kind of torch only, and which transformers would then import.
# The few files of timm that the peers' tests compare with need none.
ALONE_FOR = {"peers": "timm==1.0.31"}
# What each verb needs: the last one in any case, the others for some of what it does. Every other verb is the command
# line's, which needs the lab.
EXTRAS_FOR = {
    "test": "lab,hf,dev,peers,docs,test",
    "check": "lab,hf,peers,test,dev",
    "sanitize": "lab,hf,test",
    "mutate": "lab,hf,peers,test",
    "docs": "lab,hf,peers,test,docs",
    "paper": "lab,hf,docs",
    "release": "lab,hf,test,dev",
    "bench": "peers,lab",
    "export": "onnx,lab",
    **dict.fromkeys(("inspect", "doctor", "extend", "convert"), "hf,lab"),
}
SCRIPTS = {
    "bench": "benchmarks/bench.py", "mutate": "tests/mutation/mutate.py", "paper": "docs/paper/paper.py",
    "release": "release.py",
}  # fmt: skip
MOST_WORKERS = 4
# Installing compiles the C code, so a change of it is a reason to install again.
MADE_FROM = ("pyproject.toml", "constraints.txt", "hatch_build.py", "src/posenc/kernels/rotation/rotate_pairs.c")
A_TORCH = re.compile(r"torch\s*((==|!=|<=|>=|~=|<|>)\s*[\w.+*!]+(\s*,\s*(==|!=|<=|>=|~=|<|>)\s*[\w.+*!]+)*|@\s*\S+)?")
STAMP = "posenc-stamp"
UNFINISHED = "unfinished\n"
EXTRAS = "extras: "  # begins the stamp's line of them


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print((__doc__ or "").strip())
        return 0 if arguments else 2
    complaint = python_complaint(tuple(sys.version_info[:2]))
    if complaint:
        fail(complaint)

    verb, rest = arguments[0], arguments[1:]
    if verb == "tree":
        return tree(rest)
    choices = read_choices(os.environ, verb)
    require_extra(verb, choices.extras)
    set_up(choices)
    if verb == "check":
        return check(rest, choices.python)
    if verb == "docs":
        return docs(rest, choices.python)
    if verb == "test":
        return run_tests(rest, choices.python)
    if verb == "sanitize":
        return sanitize(rest, choices.python)
    if verb in SCRIPTS:
        return run_to_the_end([str(choices.python), str(ROOT / SCRIPTS[verb]), *rest])
    return run_to_the_end([str(choices.python), "-m", "posenc", *posenc_arguments(verb, rest)])


# What the caller wants


class Choices(NamedTuple):
    """What the environment variables ask for."""

    folder: Path  # of the virtual environment
    torch: str  # a requirement, such as torch==2.13.0
    extras: str  # joined by commas
    use_uv: bool

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def read_choices(environ: Mapping[str, str], verb: str, root: Path = ROOT) -> Choices:
    extras = "".join(environ.get("POSENC_EXTRAS", "").split()) or EXTRAS_FOR.get(verb, "lab")
    torch = environ.get("POSENC_TORCH") or pinned_torch(constraint_lines(root))
    if not A_TORCH.fullmatch(torch):
        fail(f"POSENC_TORCH must be a requirement such as torch==2.13.0, got {torch!r}")
    return Choices(
        folder=Path(os.path.abspath(environ.get("POSENC_VENV") or root / ".venv")),
        torch=torch,
        extras=extras,
        use_uv=environ.get("POSENC_NO_UV", "") in ("", "0"),
    )


def constraint_lines(root: Path) -> list[str]:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def pinned_torch(lines: Sequence[str]) -> str:
    for line in lines:
        if line.startswith("torch=="):
            return line
    fail("constraints.txt names no torch; it needs a line such as torch==2.13.0")


def python_complaint(version: tuple[int, ...]) -> str:
    """What is wrong with this Python, or nothing."""
    if version >= OLDEST_PYTHON:
        return ""
    needed, got = (".".join(map(str, v)) for v in (OLDEST_PYTHON, version))
    return f"posenc needs Python {needed} or newer, this is {got}; call run.py with a newer one"


def require_extra(verb: str, extras: str) -> None:
    needed = EXTRAS_FOR.get(verb, "lab").split(",")[-1]
    if needed not in extras.split(",") and "all" not in extras.split(","):
        fail(f"`run.py {verb}` needs the extra '{needed}', but POSENC_EXTRAS is '{extras}'")


# The jobs


def posenc_arguments(verb: str, rest: Sequence[str]) -> list[str]:
    return ["compare" if verb == "demo" else verb, *rest]


def run_tests(rest: Sequence[str], python: Path) -> int:
    workers = None if names_workers(rest) else min(cores(), MOST_WORKERS)
    environment = dict(os.environ)
    if workers is not None:
        # torch takes every core in every worker unless told; they would wait for each other
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores() // workers)))
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Hundreds of tests start a Python of their own, and each would compile torch anew: half of its start. What the
        # caller does not want beside the sources lies in the environment.
        environment.setdefault("PYTHONPYCACHEPREFIX", str(python.parents[1] / "bytecode"))
    return run_to_the_end([str(python), "-m", *pytest_arguments(rest, workers)], folder=ROOT, environment=environment)


def pytest_arguments(rest: Sequence[str], workers: int | None) -> list[str]:
    arguments = ["pytest"]
    if workers is not None:
        arguments += ["-n", str(workers), "--dist", "worksteal"]  # a file's tests, and its fixtures, in one worker
    if "--all" in rest:
        arguments += ["-m", ""]  # pyproject.toml leaves the slow tests out; an empty expression selects everything
    return arguments + [argument for argument in rest if argument != "--all"]


def names_workers(rest: Sequence[str]) -> bool:
    return any(argument.startswith(("-n", "--numprocesses")) for argument in rest)


def cores() -> int:
    """The cores this process may use, which in a container can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check(rest: Sequence[str], python: Path) -> int:
    """Run every tool, even after one has failed, and name those that failed."""
    if rest:
        fail(f"`run.py check` takes no arguments, got {' '.join(rest)}")
    failed = []
    for name, command in check_commands(python).items():
        say(name)
        if run_to_the_end(command, folder=ROOT):
            failed.append(name)
    say(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def check_commands(python: Path) -> dict[str, list[str]]:
    module = [str(python), "-m"]
    return {
        "ruff check": [*module, "ruff", "check"],
        "ruff format --check": [*module, "ruff", "format", "--check"],
        "ty check": [*module, "ty", "check", "--no-progress", "--python", str(python), "src"],
        "lint-imports": [str(python.with_name("lint-imports.exe" if os.name == "nt" else "lint-imports")), "--no-logo"],
        "plain words": [str(python), "tests/house/words.py"],
    }


def docs(rest: Sequence[str], python: Path) -> int:
    """Build the site; a page that Sphinx complains of fails it, after all complaints."""
    site = ROOT / "docs" / "_build" / "html"
    # Pages are read side by side, and each runs its code in a process of its own: more threads would only wait.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    code = run_to_the_end(docs_command(python, site, rest), folder=ROOT, environment=environment)
    say("the site has faults, which Sphinx names above" if code else f"the site: {site / 'index.html'}")
    return code


def docs_command(python: Path, site: Path, rest: Sequence[str] = ()) -> list[str]:
    options = ["-b", "html", "-j", "auto", "-q", "-W", "--keep-going", *rest]
    return [str(python), "-m", "sphinx", *options, "docs", str(site)]


def tree(rest: Sequence[str]) -> int:
    """Print folders, and of each Python file the first line of its docstring."""
    if len(rest) > 1 or not (ROOT / (rest or ["src/posenc"])[0]).is_dir():
        fail(f"`run.py tree` takes one folder of the project, got {' '.join(rest)}")
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ... | head ends it quietly
    top = ROOT / (rest or ["src/posenc"])[0]
    for folder in sorted({top, *(path.parent for path in top.rglob("*.py"))}):
        print(f"{os.path.relpath(folder, ROOT)}/")
        for path in sorted(folder.glob("*.py")):
            words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            print(f"  {path.name:<28}{words.partition(chr(10))[0]}".rstrip())
    return 0


def sanitize(rest: Sequence[str], python: Path) -> int:
    """Compile the C code with gcc's sanitizers into a copy of the package, and run its tests on that copy."""
    import hatch_build  # beside this file

    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src")
        complaint = hatch_build.compile_library(Path(folder), flags)
        if complaint:
            fail(f"the C code was not compiled with sanitizers: {complaint}; install gcc with its libasan")
        gcc = hatch_build.compilers()[0]
        runtimes = [[*gcc, f"-print-file-name={name}"] for name in ("libasan.so", "libstdc++.so.6")]
        watched = {
            "PYTHONPATH": str(Path(folder) / "src"),
            # Python itself is not built with the sanitizers: their runtime has to come first, and it looks for the
            # exceptions of C++, which torch throws, when it starts.
            "LD_PRELOAD": " ".join(subprocess.check_output(command, text=True).strip() for command in runtimes),
            "ASAN_OPTIONS": "detect_leaks=0",  # what Python and torch never give back is not ours
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        # What a sanitizer says goes to stderr as the process ends: pytest must not hold it back.
        options = ["-p", "no:cacheprovider", "--capture=sys"]
        command = [str(python), "-m", "pytest", *options, "-m", "", "tests/kernels/test_rotate_pairs.py", *rest]
        return run_to_the_end(command, folder=ROOT, environment={**os.environ, **watched})


def run_to_the_end(
    command: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> int:
    """Run a command and give its exit code, 130 when it ended by Ctrl-C; a request to end is handed on to it."""
    process = subprocess.Popen(command, cwd=folder, env=environment)
    asked = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in asked}
    for number in asked:
        if before[number] == signal.SIG_DFL:  # what ignores them, as nohup does, goes on ignoring them
            signal.signal(number, lambda number, frame: process.send_signal(number))
    try:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:
                continue  # the terminal told the command too; how to end is its own affair
            return 128 - code if code < 0 else code
    finally:
        for number in asked:
            signal.signal(number, before[number])


# The environment


def set_up(choices: Choices) -> None:
    """Make the environment fit the project; return at once when it already does."""
    if is_ready(choices):
        return
    with locked(choices.folder.with_name(choices.folder.name + ".lock")):
        if is_ready(choices):  # another call made it while this one waited
            return
        began = time.monotonic()
        if is_worth_keeping(choices):
            # What another verb has brought stays, so that it starts at once the next time.
            there = stamp_parts(choices.folder).extras
            choices = choices._replace(extras=",".join(sorted(there.union(choices.extras.split(",")))))
            say(f"bringing {choices.folder} up to date")
        else:
            say(f"setting up {choices.folder} (this once; a minute or two)")
            erase(choices.folder)
            create(choices.folder)
        install(choices)
        say(f"set up in {time.monotonic() - began:.0f} s")


def is_ready(choices: Choices) -> bool:
    stamp, wanted = stamp_parts(choices.folder), set(choices.extras.split(","))
    enough = wanted <= stamp.extras or "all" in stamp.extras
    return (
        stamp.made_from == stamp_text(choices)
        and enough
        and bool(stamp.installed)
        and stamp.installed <= present(choices)
    )


def is_worth_keeping(choices: Choices) -> bool:
    """Whether an update in place is enough: finished, made here, by this Python, nothing gone, and still running."""
    made_from, _, installed = stamp_parts(choices.folder)
    if made_from and made_from.splitlines()[0] != made_where(choices):
        return False
    # Installers believe what they wrote down of a package, also when its folder is gone.
    lost = sorted(installed - present(choices))
    if lost:
        say(f"{choices.folder} is damaged: {', '.join(lost[:3])} {'is' if len(lost) == 1 else 'are'} gone")
        return False
    same_python = f"import sys; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})"
    return succeeds([str(choices.python), "-c", same_python], quiet=True)


def stamp_text(choices: Choices, root: Path = ROOT) -> str:
    """What the environment was made from besides extras, as two lines; a change of the first takes a new one."""
    files = [(root / name).read_bytes() for name in MADE_FROM]
    texts = [text.encode() for text in (str(root), choices.torch)]
    return f"{made_where(choices)}\n{hashlib.sha256(repr(files + texts).encode()).hexdigest()}\n"


class Stamp(NamedTuple):
    """What is written down of an environment when it is finished."""

    made_from: str  # the text of stamp_text
    extras: set[str]
    installed: set[str]  # names that lay in it


def stamp_parts(folder: Path) -> Stamp:
    lines = read_stamp(folder).splitlines(keepends=True)
    extras, names = set(), {line.rstrip("\n") for line in lines[2:]}
    for line in [line for line in names if line.startswith(EXTRAS)]:
        extras.update(line[len(EXTRAS) :].split(","))
        names.discard(line)
    return Stamp("".join(lines[:2]), extras, names)


def finished_stamp(choices: Choices) -> str:
    names = "".join(f"{name}\n" for name in sorted(present(choices)))
    return f"{stamp_text(choices)}{EXTRAS}{choices.extras}\n{names}"


def present(choices: Choices) -> set[str]:
    """What lies in an environment, by name alone, which takes no time: interpreter, settings and packages."""
    found = {name for name in ("pyvenv.cfg",) if (choices.folder / name).exists()}
    if choices.python.exists():
        found.add(choices.python.name)
    for packages in (*choices.folder.glob("lib/python*/site-packages"), choices.folder / "Lib" / "site-packages"):
        with contextlib.suppress(OSError):
            # Without versions, so that a package may be updated by hand.
            found.update(re.sub(r"-[^-]*(?=\.dist-info$)", "", name) for name in os.listdir(packages))
    return found - {"__pycache__"}


def made_where(choices: Choices) -> str:
    return f"Python {sys.version_info[0]}.{sys.version_info[1]} in {choices.folder}"


def read_stamp(folder: Path) -> str:
    try:
        return (folder / STAMP).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def write_stamp(folder: Path, text: str) -> None:
    (folder / STAMP).write_text(text, encoding="utf-8")


def erase(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    if not may_erase(folder):
        fail(f"{folder} is in the way and is no virtual environment; delete it, or name another place in POSENC_VENV")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        fail(f"the broken environment could not be erased ({error}); delete {folder} and call again")


def may_erase(folder: Path) -> bool:
    """A mistyped POSENC_VENV must not cost anybody a folder."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    ours = folder == ROOT / ".venv" or (folder / STAMP).exists() or (folder / "pyvenv.cfg").exists()
    return ours or not any(folder.iterdir())


def create(folder: Path) -> None:
    """Make an empty virtual environment, marked as unfinished until all is installed."""
    folder.mkdir(parents=True)
    write_stamp(folder, UNFINISHED)
    venv.create(folder, symlinks=os.name != "nt", prompt="posenc")


def install(choices: Choices) -> None:
    """Install torch, then the project with its extras, and write the stamp.

    torch comes first and by itself: a file that this machine offers wins, then the build that suits its processor or
    GPU (uv knows how to choose), then whatever the index gives. With torch there, nothing later pulls in another.
    """
    before = read_stamp(choices.folder)
    write_stamp(choices.folder, UNFINISHED)
    installer = Installer(choices)
    at_hand = ["--no-index", "--no-deps", choices.torch]
    got_torch = (
        installer.uv(*at_hand, quiet=True)
        or installer.pip(*at_hand, quiet=True)
        or installer.uv("--torch-backend=auto", choices.torch)
        or installer.pip(choices.torch)
    )
    constraints = choices.folder / "posenc-constraints.txt"
    constraints.write_text("\n".join(constraints_with(choices.torch, constraint_lines(ROOT))), encoding="utf-8")
    project = ["-c", str(constraints), "-e", f"{ROOT}[{choices.extras}]"]
    chosen = choices.extras.split(",")
    alone = [package for extra, package in ALONE_FOR.items() if extra in chosen or "all" in chosen]
    complete = got_torch and (installer.uv(*project) or installer.pip(*project))
    if complete and alone:
        complete = installer.uv("--no-deps", *alone) or installer.pip("--no-deps", *alone)
    if complete:
        write_stamp(choices.folder, finished_stamp(choices))
        return
    # a refused update leaves the environment that worked before, and the next call tries again
    write_stamp(choices.folder, before)
    what = "the project" if got_torch else choices.torch
    fail(f"{what} could not be installed; the messages above say why (POSENC_TORCH chooses another torch)")


def constraints_with(torch: str, lines: Sequence[str]) -> list[str]:
    return [torch, *(line for line in lines if not line.startswith("torch=="))]


class Installer:
    """Installs packages with uv where it can be had, else with pip; each answers whether it succeeded."""

    def __init__(self, choices: Choices) -> None:
        self.python = str(choices.python)
        self.uv_command = self.find_uv() if choices.use_uv else None

    def uv(self, *arguments: str, quiet: bool = False) -> bool:
        if self.uv_command is None:
            return False
        command = [*self.uv_command, "pip", "install", "-q", "--python", self.python, *arguments]
        return succeeds(command, quiet, uv_environment(os.environ))

    def pip(self, *arguments: str, quiet: bool = False) -> bool:
        command = [*self.pip_command(), "-qq", "--no-input", "--disable-pip-version-check"]
        # As uv does: what is imported is compiled then, and most of what lies there never is.
        return succeeds([*command, "install", "--no-compile", *arguments], quiet)

    def find_uv(self) -> list[str] | None:
        found = shutil.which("uv")
        if found:
            return [found]
        return [self.python, "-m", "uv"] if self.pip("uv") else None

    def pip_command(self) -> list[str]:
        own = [self.python, "-m", "pip"]
        if succeeds([*own, "--version"], quiet=True) or succeeds([self.python, "-m", "ensurepip"], quiet=True):
            return own
        # some systems leave ensurepip out; their own pip can install into the environment from outside
        callers = [sys.executable, "-m", "pip", "--python", self.python]
        if succeeds([*callers, "--version"], quiet=True):
            return callers
        fail("there is no pip to install with; install uv or pip (Debian and Ubuntu: the package python3-venv)")


def uv_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """uv does not read pip's settings: hand on where pip was told to look, unless uv was told something itself."""
    environment = dict(environ)
    if environ.get("PIP_FIND_LINKS"):
        environment.setdefault("UV_FIND_LINKS", ",".join(environ["PIP_FIND_LINKS"].split()))
    if environ.get("PIP_INDEX_URL"):
        environment.setdefault("UV_DEFAULT_INDEX", environ["PIP_INDEX_URL"])
    return environment


def succeeds(command: Sequence[str], quiet: bool = False, environment: Mapping[str, str] | None = None) -> bool:
    output = subprocess.DEVNULL if quiet else None
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
    except OSError:  # no such program, or one that cannot be started
        return False
    return done.returncode == 0


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system itself lets go of when this process ends, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "w")
    except OSError as error:
        fail(f"nothing can be written into {path.parent} ({error.strerror}); name another place in POSENC_VENV")
    with file:
        if not try_lock(file.fileno()):
            say("another run.py is setting up; waiting for it")
            while not try_lock(file.fileno()):
                time.sleep(0.2)
        yield


def try_lock(descriptor: int) -> bool:
    # As posenc.lab.store.lock does it: before anything is installed, nothing of the package can be imported.
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


# Talking: all of it on stderr, so that what a verb prints can be piped


def say(text: str) -> None:
    print(f"run.py: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    sys.exit(f"run.py: {text}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
