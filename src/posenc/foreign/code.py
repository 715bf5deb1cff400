"""Import classes from users' files, named as path/to/file.py:Class: the only place where posenc runs such code.

A class path in a user's program or on the command line is trusted. One that was read from a file (a run, a record, a
config) is trusted only if the user also names that file: the caller passes these files as `trusted_files`, by default
none.
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
from posenc.foreign.text import CannotRead, error_text, quote, shorten

T = TypeVar("T")

CLASS_PATH = re.compile(r"\.py:[^\W\d]")
MODULES = "posenc_user_"
OUR_PACKAGES = ("posenc", "posenc_bench")
"""The packages of this repository."""


def is_class_path(name: str) -> bool:
    """Whether a name is path/to/file.py:Class."""
    path, _, class_name = name.rpartition(":")
    return path.endswith(".py") and class_name.isidentifier()


def file_of(name: str) -> str:
    """The file of path/to/file.py:Class, as it is written; of a path alone, the path."""
    return name.rpartition(":")[0] if is_class_path(name) else name


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file. Raises CannotRead."""
    return hashlib.sha256(read(path)).hexdigest()


def is_trusted(path: str | Path, trusted_files: Collection[str | Path]) -> bool:
    """Whether a file is a trusted file itself, not only one of the same name."""
    # Unlike `Path.resolve`, this takes links that lead in a circle.
    return os.path.realpath(path) in {os.path.realpath(file_of(str(file))) for file in trusted_files}


def check_trusted(name: str, trusted_files: Collection[str | Path]) -> None:
    """Raise CannotRead for a class path, read from a file, whose own file is not trusted."""
    if not is_trusted(file_of(name), trusted_files):
        raise CannotRead(
            f"it names code to run, {quote(name)}, and code that a file names is run only where you name it too"
        )


def load(name: str, kind: type[T], word: str, public: str) -> type[T]:
    """Import the class of path/to/file.py:Class, a subclass of `kind`, from the present content of the file.

    word, public  names of such a class and of its base in errors: "encoding", "posenc.Encoding"

    Raises ValueError for a file that is missing, cannot be imported, or has no such class.
    """
    path, _, class_name = name.rpartition(":")
    if not os.path.isfile(path):  # which answers for any name, too long ones too
        raise ValueError(
            f"no file {quote(path)} to take {quote(class_name)} from; a spec of your own module is "
            f"path/to/file.py:Class, with quotes around it where a part of the path is one of + ( ) ,"
        )
    module = import_file(path)
    attribute = getattr(module, class_name, None)
    if inspect.isclass(attribute) and issubclass(attribute, kind):
        return attribute
    choices = [n for n, c in vars(module).items() if inspect.isclass(c) and issubclass(c, kind) and c is not kind]
    raise ValueError(
        f"{quote(path)} has no {word} named {quote(class_name)}; "
        f"it has: {shorten(', '.join(choices)) or f'no subclass of {public}'}"
    )


def import_file(path: str, source: bytes | None = None) -> ModuleType:
    """Return the module of a file, imported once for each content of the file.

    source  the Python code to run, if the file itself has none; default: its content

    Raises ValueError for code that cannot be run, CannotRead for a path that is no file.
    """
    source, file = read(path) if source is None else source, Path(os.path.realpath(path))
    # Two files of one name, and two spellings of one, must not take each other's place.
    digest = hashlib.sha256(b"\n".join((str(file).encode(), path.encode(), source))).hexdigest()[:16]
    name = f"{MODULES}{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    # Passed explicitly, because Python has a loader for names in .py only.
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
        raise ValueError(f"{quote(path)} could not be imported: {error_text(error)}") from error
    return module


def origin(error: BaseException) -> str:
    """Return the name of the module that raised an error; empty for one that was never raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__")) if frames else ""


def is_from_posenc(error: BaseException) -> bool:
    """Whether a package of this repository raised an error."""
    return origin(error).partition(".")[0] in OUR_PACKAGES


def is_for_user(error: BaseException) -> bool:
    """Whether an error is written for the user: posenc or the user's own file raised it.

    An error of another library is a fault of the code that called it, and its message speaks of our internals.
    """
    return is_from_posenc(error) or origin(error).startswith(MODULES)


@contextmanager
def user_code_errors(names: Sequence[str]) -> Generator[None]:
    """Turn any error of a user's code into a ValueError of one line that says where it happened.

    names  what the user typed; errors stay as they are if none of it is a class path
    """
    try:
        yield
    except (OSError, KeyboardInterrupt):
        raise
    except BaseException as error:
        class_paths = [name for name in names if CLASS_PATH.search(name)]
        if not class_paths or (isinstance(error, ValueError) and is_from_posenc(error)):
            raise
        raise ValueError(f"{quote(', '.join(class_paths))} {failure_text(error, MODULES)}") from error


def failure_text(error: BaseException, module: str) -> str:
    """Return the message for an error of a user's code. Its line is the last one in a module of this prefix."""
    where = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).startswith(module):
            where = f", in line {line} of {quote(frame.f_code.co_filename)}"
    return f"fails{where}: {error_text(error)}"


def instance(cls: type[T], options: Mapping[str, Any]) -> T:
    """Return an instance of a class; any error of a constructor outside posenc becomes a ValueError."""
    try:
        return cls(**options)
    except Exception as error:
        if cls.__module__.partition(".")[0] in OUR_PACKAGES or isinstance(error, ValueError) or is_from_posenc(error):
            raise
        raise ValueError(f"{cls.__name__} {failure_text(error, cls.__module__)}") from error
