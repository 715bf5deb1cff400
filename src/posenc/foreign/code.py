"""Code from a file of somebody's own, named as path/to/file.py:Class: the only door by which posenc runs any.

A person's word opens it: a name in their own program or on their command line. A name that was read from a file (a run,
a record, a config) opens it only where the person has named the same file too, so whoever reads such names says which
files those are, and the default is none.
"""

import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from posenc.foreign.files import read
from posenc.foreign.text import CannotRead, quoted, shortened, told

T = TypeVar("T")

OWN = re.compile(r"\.py:[^\W\d]")
MODULES = "posenc_user_"
OURS = ("posenc", "posenc_bench")
"""The packages of this repository."""


def is_own(name: str) -> bool:
    """Whether a name is path/to/file.py:Class."""
    path, _, class_name = name.rpartition(":")
    return path.endswith(".py") and class_name.isidentifier()


def file_of(name: str) -> str:
    """The file of path/to/file.py:Class, as it is written; of a path alone, the path."""
    return name.rpartition(":")[0] if is_own(name) else name


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file of one's own. Raises CannotRead."""
    return hashlib.sha256(read(path)).hexdigest()


def is_named(path: str | Path, own: Collection[str | Path]) -> bool:
    """Whether a file is one of those that a person named: the same file, and not only one that is called the same."""
    # Unlike `Path.resolve`, this takes links that lead in a circle.
    return os.path.realpath(path) in {os.path.realpath(file_of(str(file))) for file in own}


def check_named(name: str, own: Collection[str | Path]) -> None:
    """Raises CannotRead for path/to/file.py:Class, read from elsewhere, where no person has named the file too."""
    if not is_named(file_of(name), own):
        raise CannotRead(
            f"it names code to run, {quoted(name)}, and code that a file names is run only where you name it too"
        )


def load(name: str, kind: type[T], word: str, public: str) -> type[T]:
    """The class that path/to/file.py:Class names, a subclass of `kind`; what the file holds now is what is run.

    word, public  what one of that kind is called in errors, and how a file calls their base: "posenc.Encoding"

    Raises ValueError for a file that is missing, cannot be imported, or has no such class.
    """
    path, _, class_name = name.rpartition(":")
    if not os.path.isfile(path):  # which answers for any name, too long ones too
        raise ValueError(
            f"no file {quoted(path)} to take {quoted(class_name)} from; a spec of your own module is "
            f"path/to/file.py:Class, with quotes around it where a part of the path is one of + ( ) ,"
        )
    module = imported(path)
    found = getattr(module, class_name, None)
    if inspect.isclass(found) and issubclass(found, kind):
        return found
    others = [n for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, kind) and c is not kind]
    raise ValueError(
        f"{quoted(path)} has no {word} named {quoted(class_name)}; "
        f"it has: {shortened(', '.join(others)) or f'no subclass of {public}'}"
    )


def imported(path: str, source: bytes | None = None) -> ModuleType:
    """The module of a file, run once for each content that it has had.

    source  the Python to run, where the file is none itself; default: what is in it

    Raises ValueError for what cannot be run, CannotRead for what is no file.
    """
    source, file = read(path) if source is None else source, Path(os.path.realpath(path))
    # Two files of one name, and two spellings of one, must not take each other's place.
    digest = hashlib.sha256(b"\n".join((str(file).encode(), path.encode(), source))).hexdigest()[:16]
    name = f"{MODULES}{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    # Named, because Python has a loader for names in .py only.
    loader = importlib.machinery.SourceFileLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # torch.compile and pickling find a class through the name of its module.
    sys.modules[name] = module
    try:
        exec(compile(source, str(file), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ValueError(f"{quoted(path)} could not be imported: {told(error)}") from error
    return module


def origin(error: BaseException) -> str:
    """The name of the module in which an error began; nothing for one that was never raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")) if frames else ""


def is_ours(error: BaseException) -> bool:
    """Whether an error began in a package of this repository."""
    return origin(error).partition(".")[0] in OURS


def is_meant(error: BaseException) -> bool:
    """Whether a person was meant to read an error: it began in posenc, or in a file of their own.

    What another library raises is a fault of the code that called it, and its message speaks of our insides.
    """
    return is_ours(error) or origin(error).startswith(MODULES)


@contextmanager
def own_errors(names: Sequence[str]) -> Generator[None]:
    """What code of one's own does wrong, in whatever way, becomes a ValueError of one line that says where.

    names  what a person typed; where no file of their own is among it, errors stay as they are
    """
    try:
        yield
    except (OSError, KeyboardInterrupt):
        raise
    except BaseException as error:
        own = [name for name in names if OWN.search(name)]
        if not own or (isinstance(error, ValueError) and is_ours(error)):
            raise
        raise ValueError(f"{quoted(', '.join(own))} {failure(error, MODULES)}") from error


def failure(error: BaseException, module: str) -> str:
    """What is said of an error of another's code: the last line in modules whose names begin so, and the error."""
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).startswith(module):
            where = f", in line {line} of {quoted(frame.f_code.co_filename)}"
    return f"fails{where}: {told(error)}"


def instance(cls: type[T], options: Mapping[str, Any]) -> T:
    """An instance of a class; whatever the constructor of one that does not ship raises becomes a ValueError."""
    try:
        return cls(**options)
    except Exception as error:
        if cls.__module__.partition(".")[0] in OURS or isinstance(error, ValueError) or is_ours(error):
            raise
        raise ValueError(f"{cls.__name__} {failure(error, cls.__module__)}") from error
