"""Classes that specs name: found by the names of their files, and made with the options that a spec gives them.

The folder is the list: whoever adds a file adds a name, and so does an installed package that says so (`plugins`). A
class in a file of one's own is named path/to/file.py:Class.
"""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, TypeVar

from posenc.foreign import code, quoted, written
from posenc.specs import spelling, syntax, words
from posenc.specs.plugins import plugins_for

T = TypeVar("T")


class Named:
    """Base of what a spec names with options, such as a schedule: a frozen dataclass, printed as it is written."""

    spec_name: ClassVar[str] = ""
    """The name in specs: that of its file."""

    also_called: ClassVar[tuple[str, ...]] = ()
    """Other names, so that a search finds it."""

    equation: ClassVar[str] = ""
    """What it computes, typeset, as `equation` of posenc.encoding.formulas.Published."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        package, _, file = cls.__module__.rpartition(".")
        # A class that is in no folder of posenc goes by its own name, until a spec names it by its path.
        cls.spec_name = file if package.startswith("posenc.") else cls.__name__
        if "__repr__" not in vars(cls):
            # Of the class itself, because a dataclass replaces what is inherited.
            cls.__repr__ = Named.__repr__

    def __repr__(self) -> str:
        options = {one.name: one.default for one in fields(self)}  # ty: ignore[invalid-argument-type]
        given = [f"{name}={value!r}" for name in options if (value := getattr(self, name)) != options[name]]
        return f"{self.spec_name}({', '.join(given)})"

    def hold(self, check: Callable[[str, Any, Any], Any], **options: Any) -> None:
        """Hold options to what they have to be: a function of `checks`, and what it asks of each."""
        for name, asked in options.items():
            check(f"{self.spec_name}: {name}", getattr(self, name), asked)


class Registry(Mapping[str, type[T]]):
    """The classes of a folder by the names of their files, each imported when it is first asked for.

    package  the dotted name of the folder; a file whose name begins with _ is what the others share
    kind     what each file holds one subclass of, with its source in the docstring
    public   how one's own file calls that base: "posenc.Encoding"
    example  a spec, for errors
    """

    def __init__(self, package: str, kind: type[T], public: str, example: str) -> None:
        self.package, self.kind, self.public, self.example = package, kind, public, example
        self.word = re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
        self.remedy = f"write for example {example}, or path/to/mine.py:Mine for your own"

    @property
    def home(self) -> str:
        return importlib.import_module(self.package).__path__[0]

    def __iter__(self) -> Iterator[str]:
        return iter(spelling.files_in(self.home))

    def __len__(self) -> int:
        return len(spelling.files_in(self.home))

    def __contains__(self, name: object) -> bool:
        return name in spelling.files_in(self.home)

    def __getitem__(self, name: str) -> type[T]:
        return self.only(importlib.import_module(f"{self.package}.{self.module_of(name)}"))

    def module_of(self, name: str) -> str:
        """The dotted name of a file, from the folder on."""
        return ".".join(spelling.files_in(self.home)[name].relative_to(self.home).with_suffix("").parts)

    def only(self, module: ModuleType) -> type[T]:
        """The class that a file holds. Raises ValueError where it holds none, or more."""
        classes = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        own = [one for one in classes if issubclass(one, self.kind)]
        if len(own) != 1:
            _, folder, file = module.__name__.rsplit(".", 2)
            raise ValueError(
                f"{folder}/{file}.py must hold exactly one {self.word}, a subclass of {self.public}; "
                f"found {[one.__name__ for one in own]}"
            )
        return own[0]

    def find(self, name: str) -> type[T]:
        """The class of a name, of a plug-in by its name, or of `path/to/file.py:Class`; the code of both is run.

        Raises ValueError, naming what is near, for a name that does not exist, for a file without such a class, and for
        a plug-in that cannot be used.
        """
        if code.is_own(name):
            cls: Any = code.load(name, self.kind, self.word, self.public)
            cls.spec_name = syntax.written(name)
            return cls
        if name in self:
            return self[name]
        plugin = plugins_for(self.home).get(name)
        if plugin is None:
            raise ValueError(spelling.unknown(name, self.word, self.home))
        return plugin.load(self.kind, self.word, self.public)

    def knows(self, name: str) -> bool:
        """Whether a name is that of one that ships, or of a plug-in."""
        return spelling.knows(name, self.home)

    @property
    def class_names(self) -> Mapping[str, str]:
        """The class name of every class that ships -> its name in specs, read without importing anything."""
        return classes_in(self.home, self.kind.__name__)

    def by_class_name(self, name: str) -> type[T]:
        """For the `__getattr__` of a package: the class of that name. Raises AttributeError."""
        # `from posenc.schedules import yarn` asks for a module first, which is none of these.
        if name[:1].isupper() and name in (known := self.class_names):
            return self[known[name]]
        raise AttributeError(f"module '{self.package}' has no attribute '{name}'")

    def read(self, spec: str, own: Collection[str | Path] | None = None) -> Any:
        """What a text says: one of these by its name, with options or without, or another value as `value` reads it.

        Raises as `tree_of` and `value` do.
        """
        tree = syntax.tree_of(spec, self.word, self.remedy, own)
        if name := syntax.name_of(tree):
            return self.made(name, ast.Call(tree, [], []), spec)
        return self.value(tree, spec)

    def given(self, one: T | str, own: Collection[str | Path] | None = None) -> T:
        """What a caller gave: one of these, or as it is written in a spec, whose files `own` says as in `read`.

        Raises ValueError for what is neither, and as `read` does.
        """
        found = self.read(one, own) if isinstance(one, str) else one
        if not isinstance(found, self.kind):
            raise ValueError(f"a {self.word} must be one of {self.package}, such as {self.example}, got {quoted(one)}")
        return found

    def value(self, tree: ast.expr, spec: str) -> Any:
        """The value of an option, as a spec writes it: a plain value, a word, or one of these with its options.

        Raises ValueError for what is none of them, and for options that are wrong.
        """
        if isinstance(tree, ast.Call) and (name := syntax.name_of(tree.func)):
            return self.made(name, tree, spec)
        if isinstance(tree, ast.Name):
            # A bare word is a string, so that shells need no quotes: rotary(layout=interleaved).
            return tree.id
        try:
            value = ast.literal_eval(tree)
            value = tuple(value) if isinstance(value, list) else value
            # Equal specs share one encoding, so a value has to be hashable.
            hash(value)
        except (ValueError, TypeError):
            raise ValueError(
                f"{written(tree)} in {quoted(spec)} is not a plain value: use numbers, words or tuples"
            ) from None
        return value

    def made(self, name: str, tree: ast.Call, spec: str) -> T:
        """One of these, with the options of a call in a spec."""
        cls = self.find(name)
        given = [(word.arg or "**", self.value(word.value, spec)) for word in tree.keywords]
        options, parameters = dict(given), inspect.signature(cls).parameters
        words.check_named(name, [word for word, _ in given], parameters.keys(), written(tree))
        missing = [word for word, one in parameters.items() if one.default is one.empty and word not in options]
        if tree.args or missing:
            wanted = f"needs {' and '.join(missing)}" if missing else "takes its options"
            raise ValueError(f"{name} {wanted} by name, as in {self.example}; got {written(tree)}")
        return code.instance(cls, options)


@functools.cache
def classes_in(home: str, base: str) -> Mapping[str, str]:
    """Class name -> file, of the classes that the files of a folder are there for."""
    found = {}
    for name, file in spelling.files_in(home).items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            # The class of a file says so, or, where it is made from another one, names its source.
            if isinstance(node, ast.ClassDef) and (
                any(ast.unparse(one) == base for one in node.bases) or "Source:" in (ast.get_docstring(node) or "")
            ):
                found[node.name] = name
    return MappingProxyType(found)
