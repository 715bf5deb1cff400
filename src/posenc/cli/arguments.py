"""Parse the command line into a verb with its options. Each mistake is one line, before any slow import."""

import shlex
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from posenc.cli.comparison import Compare
from posenc.cli.encodings import Check
from posenc.cli.options import POSITIONAL, Usage
from posenc.cli.published import LAB, Lab
from posenc.cli.training import Train
from posenc.cli.verbs import VERBS
from posenc.foreign import quote, suggestion
from posenc.specs import spelling
from posenc.specs.syntax import split
from posenc.specs.words import option_for

HELP = ("-h", "--help")
NUMBERS: dict[Any, str] = {int: "a whole number, such as 8", float: "a number, such as 0.5"}


def parse_command(arguments: list[str]) -> Any:
    """Return the verb of the arguments with its options. Raises ValueError if they are wrong."""
    name, cls, rest = find_verb(arguments)
    words = split_words(name, cls, rest)
    if cls is Train and words.get("config"):
        from posenc.lab.runs.config import add_file_options

        words = add_file_options(words, Train)
    verb = build_verb(name, cls, words)
    return Lab(verb) if cls in LAB.values() else verb


def find_verb(arguments: list[str]) -> tuple[str, type, list[str]]:
    """Return the verb's name, its class, and the remaining arguments."""
    name, *rest = arguments
    if name not in VERBS:
        raise ValueError(f"no verb {quote(name)}{suggestion(name, VERBS.keys(), 'posenc help')}")
    if VERBS[name] is Lab and not any(argument in HELP for argument in rest[:1]):
        if not rest or rest[0] not in LAB:
            problem = f"{quote(rest[0])} is none of them{suggestion(rest[0], LAB.keys())}" if rest else "name one"
            raise ValueError(f"lab has {', '.join(LAB)}; {problem}")
        return f"lab {rest[0]}", LAB[rest[0]], rest[1:]
    return name, VERBS[name], rest


def split_words(verb: str, cls: type, arguments: list[str]) -> dict[str, list[str]]:
    """Return the words after each option by its name, and all other words under the empty name.

    Raises ValueError for an unknown option, for a value after a yes-or-no option, and for an option that is given twice
    and is no list, because one of the two would be ignored.
    """
    types, name = option_types(cls), ""
    words: dict[str, list[str]] = {name: []}
    for argument in arguments:
        if not argument.startswith("--"):
            full = words[name] and get_origin(types.get(name)) is not tuple
            words["" if full else name].append(argument)
            continue
        option, equals, value = argument.partition("=")
        name = option[2:].replace("-", "_")
        is_negated = name not in types and types.get(name.removeprefix("no_")) is bool
        name = name.removeprefix("no_") if is_negated else name
        if name not in types:
            hint = suggestion(flag(option_for(name, types) or name), list(map(flag, types)), f"posenc help {verb}")
            raise ValueError(f"{verb} has no option {quote(option)}{hint}")
        if name in words and get_origin(types[name]) is not tuple:
            raise ValueError(f"{option} is given more than once; give it once, with the value that you mean")
        values = words.setdefault(name, [])
        if types[name] is bool:
            if equals:
                raise ValueError(f"{option} takes no value, got {quote(value)}")
            values.append("false" if is_negated else "true")
        elif equals:
            values.append(value)
        # A complete option takes no more words.
        name = "" if values and (equals or types[name] is bool) else name
    return words


def build_verb(verb: str, cls: Any, words: dict[str, list[str]]) -> Any:
    """Build the verb from the words of its options.

    Raises ValueError for a value of the wrong type, a missing option, and superfluous words.
    """
    options, rest = all_options(cls), words.pop("")
    kinds = {option.name: option.kind for option in options}
    argument = next((option.name for option in options if option.positional), "")
    values: dict[str, Any] = {}
    for name, option_words in words.items():
        values[name], rest_words = parse_value(flag(name), option_words, kinds[name])
        rest += rest_words
    required_names = [option.name for option in options if option.is_required and option.name not in values]
    lists = [name for name, value in values.items() if isinstance(value, tuple) and value]
    if argument in required_names and not rest and lists:
        # The list option in front of it has taken it as its last word.
        *values[lists[-1]], last = values[lists[-1]]
        values[lists[-1]], rest = tuple(values[lists[-1]]), [str(last)]
    if argument and rest:
        values[argument], rest = parse_value(argument, rest, kinds[argument])
        required_names = [name for name in required_names if name != argument]
    if not required_names and not rest:
        return cls(**{option.field: values[option.name] for option in options if option.name in values})
    flags = [flag(name) for name in required_names if name != argument]
    problem = f"it needs {' and '.join(flags)} too" if flags else "something is missing"
    if not required_names:
        problem = f"{quote(rest[0])} is one argument too many"
    raise ValueError(f"{problem}; it is written {usage(verb, cls)}; posenc help {verb} says more")


def parse_value(option: str, words: list[str], kind: Any) -> tuple[Any, list[str]]:
    """Return the option's value of its type, and the words that do not belong to it.

    Numbers of a list may be separated by commas: 256,512 is 256 512. Raises ValueError for a missing value, and for a
    word that is not a number if the type is one.
    """
    if kind is bool:
        return words == ["true"], []
    is_list = get_origin(kind) is tuple
    if not words:
        raise ValueError(f"{option} takes a value, and none follows; give one, or leave {option} out")
    make = next(make for make in (*NUMBERS, Path, str) if make in (kind, *get_args(kind)))
    values: list[Any] = []
    for place, word in enumerate(words if is_list else words[:1]):
        try:
            values += [make(part) for part in (word.split(",") if is_list and make in NUMBERS else [word])]
        except ValueError:
            # A positional argument may follow the numbers of a list.
            if place:
                return tuple(values), words[place:]
            raise ValueError(f"{option} takes {NUMBERS[make]}, got {quote(word)}") from None
    return (tuple(values), []) if is_list else (values[0], words[1:])


class Option(NamedTuple):
    """A field of a verb as a command line option, or as a positional argument."""

    field: str
    name: str
    kind: Any
    metavar: str
    value: Any
    positional: bool

    @property
    def is_required(self) -> bool:
        return self.value is MISSING

    @property
    def usage(self) -> str:
        """The option with the words of its value."""
        if self.kind is bool:
            return f"{flag(self.name)}, --no-{flag(self.name)[2:]}" if self.value is True else flag(self.name)
        return self.metavar if self.positional else f"{flag(self.name)} {self.metavar}"

    @property
    def default(self) -> str:
        """The default as help shows it; empty if the option's text explains the default."""
        if self.is_required:
            return " (required)"
        words = " ".join(map(str, self.value)) if isinstance(self.value, tuple) else str(self.value)
        return "" if self.kind is bool or self.value is None or not words else f" (default: {words})"


WORDS: dict[Any, str] = {int: "INT", float: "FLOAT", Path: "PATH", bool: "", str: "TEXT"}


def all_options(cls: Any) -> list[Option]:
    """Return the fields of a verb as options."""
    kinds, hints = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    options = []
    for field in fields(cls):
        kind, marks = kinds[field.name], get_args(hints[field.name])[1:]
        form = next((mark for mark in marks if isinstance(mark, Usage)), Usage(WORDS.get(kind, "TEXT")))
        name, positional = form.name or field.name, POSITIONAL in marks
        options.append(Option(field.name, name, kind, form.metavar, field.default, positional))
    return options


def option_types(cls: type) -> dict[str, Any]:
    """Return the options of a verb without positional arguments: name -> type."""
    return {option.name: option.kind for option in all_options(cls) if not option.positional}


def flag(name: str) -> str:
    """Return an option as a user types it."""
    return f"--{name.replace('_', '-')}"


def usage(name: str, cls: Any) -> str:
    """Return the usage line of a verb."""
    options = all_options(cls)
    needs = [option.usage for option in options if option.is_required and not option.positional]
    words = ["[OPTIONS]"] if any(not option.is_required for option in options) else []
    return " ".join(["posenc", name, *words, *(option.metavar for option in options if option.positional), *needs])


LIST_FIELDS = ("tasks", "maps", "stretch", "log", "figures", "promise", "what", "specs")
"""The fields that are lists of names, which spaces separate."""


def check_names(verb: Any) -> None:
    """Check names before any slow import. Raises ValueError for an unknown encoding, and for commas between names."""
    for name in LIST_FIELDS:
        names = getattr(verb, name, None)
        for word in names if isinstance(names, tuple) else ():
            if len(parts := split(word)) > 1:
                raise ValueError(f"{quote(word)} is several names; put spaces between: {shlex.join(parts)}")
    specs = [getattr(verb, "spec", ""), *getattr(verb, "specs", ()), *getattr(verb, "encodings", ())]
    for spec in [*specs, getattr(verb, "encoding", None) or ""]:
        if spec == "all" and isinstance(verb, Compare):
            continue
        if isinstance(verb, Check) and spelling.knows(spec.partition("(")[0], spelling.TASKS):
            continue
        if spec:
            spelling.check(spec)
