"""Find classes by the names of their files, and build them with the options of a spec.

The folder is the list: a new file adds a name, and so does the entry point of an installed package (`plugins`). A class
in a user's file is named path/to/file.py:Class.
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

from posenc.foreign import code, quote, unparse
from posenc.specs import spelling, syntax, words
from posenc.specs.plugins import plugins_for

T = TypeVar("T")


class SpecObject:
    """Base of an object with options in a spec, such as a schedule. It is a frozen dataclass, printed as its spec."""

    spec_name: ClassVar[str] = ""
    """Its name in specs: the name of its file."""

    also_called: ClassVar[tuple[str, ...]] = ()
    """Other names of it, for search."""

    equation: ClassVar[str] = ""
    """Its equation in LaTeX, as `equation` of posenc.encoding.formulas.Published."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        package, _, file = cls.__module__.rpartition(".")
        # A class outside posenc has its class name, until a spec names it by its path.
        cls.spec_name = file if package.startswith("posenc.") else cls.__name__
        if "__repr__" not in vars(cls):
            # Set on the class itself, because a dataclass replaces an inherited __repr__.
            cls.__repr__ = SpecObject.__repr__

    def __repr__(self) -> str:
        options = {field.name: field.default for field in fields(self)}  # ty: ignore[invalid-argument-type]
        changed_options = [f"{name}={value!r}" for name in options if (value := getattr(self, name)) != options[name]]
        return f"{self.spec_name}({', '.join(changed_options)})"

    def hold(self, check: Callable[[str, Any, Any], Any], **options: Any) -> None:
        """Check options with a function of `checks`, which takes a bound or type for each."""
        for name, argument in options.items():
            check(f"{self.spec_name}: {name}", getattr(self, name), argument)


class Registry(Mapping[str, type[T]]):
    """The classes of a folder by the names of their files, each imported at its first use.

    package  the dotted name of the folder; a file whose name begins with _ holds shared code
    kind     the base class: each file holds one subclass of it, with its source in the docstring
    public   the public name of that base, for errors: "posenc.Encoding"
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
        return iter(spelling.files_by_name(self.home))

    def __len__(self) -> int:
        return len(spelling.files_by_name(self.home))

    def __contains__(self, name: object) -> bool:
        return name in spelling.files_by_name(self.home)

    def __getitem__(self, name: str) -> type[T]:
        return self.class_of_module(importlib.import_module(f"{self.package}.{self.module_of(name)}"))

    def module_of(self, name: str) -> str:
        """Return the dotted name of a file below the folder."""
        return ".".join(spelling.files_by_name(self.home)[name].relative_to(self.home).with_suffix("").parts)

    def class_of_module(self, module: ModuleType) -> type[T]:
        """Return the one class of a file. Raises ValueError for none, or for several."""
        classes = [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]
        candidates = [cls for cls in classes if issubclass(cls, self.kind)]
        if len(candidates) != 1:
            _, folder, file = module.__name__.rsplit(".", 2)
            raise ValueError(
                f"{folder}/{file}.py must hold exactly one {self.word}, a subclass of {self.public}; "
                f"found {[cls.__name__ for cls in candidates]}"
            )
        return candidates[0]

    def find(self, name: str) -> type[T]:
        """Return the class of a name, a plug-in or `path/to/file.py:Class`. The code of the last two is run.

        Raises ValueError for an unknown name, a file without such a class, and a plug-in that cannot be used.
        """
        if code.is_class_path(name):
            cls: Any = code.load(name, self.kind, self.word, self.public)
            cls.spec_name = syntax.path_literal(name)
            return cls
        if name in self:
            return self[name]
        plugin = plugins_for(self.home).get(name)
        if plugin is None:
            raise ValueError(spelling.unknown_message(name, self.word, self.home))
        return plugin.load(self.kind, self.word, self.public)

    def knows(self, name: str) -> bool:
        """Whether a name belongs to a class of the folder, or to a plug-in."""
        return spelling.knows(name, self.home)

    @property
    def class_names(self) -> Mapping[str, str]:
        """The class name of every class of the folder -> its name in specs, read without an import."""
        return classes_in(self.home, self.kind.__name__)

    def by_class_name(self, name: str) -> type[T]:
        """Return the class of a class name, for the `__getattr__` of a package. Raises AttributeError."""
        # `from posenc.schedules import yarn` first looks for an attribute, which is no class.
        if name[:1].isupper() and name in (names := self.class_names):
            return self[names[name]]
        raise AttributeError(f"module '{self.package}' has no attribute '{name}'")

    def read(self, spec: str, trusted_files: Collection[str | Path] | None = None) -> Any:
        """Return the object that a spec names, with options or without, or another value as `value` reads it.

        Raises as `tree_of` and `value` do.
        """
        tree = syntax.tree_of(spec, self.word, self.remedy, trusted_files)
        if name := syntax.name_of(tree):
            return self.instance(name, ast.Call(tree, [], []), spec)
        return self.value(tree, spec)

    def resolve(self, value: T | str, trusted_files: Collection[str | Path] | None = None) -> T:
        """Return an object of the base class, given as such or as a spec, as in `read`.

        Raises ValueError for any other value, and as `read` does.
        """
        instance = self.read(value, trusted_files) if isinstance(value, str) else value
        if not isinstance(instance, self.kind):
            raise ValueError(f"a {self.word} must be one of {self.package}, such as {self.example}, got {quote(value)}")
        return instance

    def value(self, tree: ast.expr, spec: str) -> Any:
        """Return an option's value in a spec: plain, a word, or an object of the base class.

        Raises ValueError for any other expression, and for wrong options.
        """
        if isinstance(tree, ast.Call) and (name := syntax.name_of(tree.func)):
            return self.instance(name, tree, spec)
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
                f"{unparse(tree)} in {quote(spec)} is not a plain value: use numbers, words or tuples"
            ) from None
        return value

    def instance(self, name: str, tree: ast.Call, spec: str) -> T:
        """Return an object of the base class, with the options of a call in a spec."""
        cls = self.find(name)
        keywords = [(word.arg or "**", self.value(word.value, spec)) for word in tree.keywords]
        options, parameters = dict(keywords), inspect.signature(cls).parameters
        words.check_option_names(name, [word for word, _ in keywords], parameters.keys(), unparse(tree))
        absent = [word for word, p in parameters.items() if p.default is p.empty and word not in options]
        if tree.args or absent:
            problem = f"needs {' and '.join(absent)}" if absent else "takes its options"
            raise ValueError(f"{name} {problem} by name, as in {self.example}; got {unparse(tree)}")
        return code.instance(cls, options)


@functools.cache
def classes_in(home: str, base: str) -> Mapping[str, str]:
    """Return class name -> file name, for the one class of each file in a folder."""
    names = {}
    for name, file in spelling.files_by_name(home).items():
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            # It subclasses the base, or, where it is derived from another class, names its source.
            if isinstance(node, ast.ClassDef) and (
                any(ast.unparse(cls) == base for cls in node.bases) or "Source:" in (ast.get_docstring(node) or "")
            ):
                names[node.name] = name
    return MappingProxyType(names)
