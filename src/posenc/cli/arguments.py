"""From what was typed to a verb with its options: each mistake is told in one line, before anything is imported."""

import shlex
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from posenc.cli.comparison import Compare
from posenc.cli.encodings import Check
from posenc.cli.options import POSITIONAL, Taking
from posenc.cli.published import LAB, Lab
from posenc.cli.training import Train
from posenc.cli.verbs import VERBS
from posenc.foreign import near, quoted
from posenc.specs import spelling
from posenc.specs.syntax import split
from posenc.specs.words import meant

HELP = ("-h", "--help")
NUMBERS: dict[Any, str] = {int: "a whole number, such as 8", float: "a number, such as 0.5"}


def parse(arguments: list[str]) -> Any:
    """The verb that the arguments ask for, with its options. Raises ValueError for whatever is wrong with them."""
    name, cls, rest = verb_of(arguments)
    words = words_of(name, cls, rest)
    if cls is Train and words.get("config"):
        from posenc.lab.runs.config import with_file

        words = with_file(words, Train)
    verb = verb_from(name, cls, words)
    return Lab(verb) if cls in LAB.values() else verb


def verb_of(arguments: list[str]) -> tuple[str, type, list[str]]:
    """What a verb is called, its class, and the arguments behind it."""
    name, *rest = arguments
    if name not in VERBS:
        raise ValueError(f"no verb {quoted(name)}{near(name, VERBS.keys(), 'posenc help')}")
    if VERBS[name] is Lab and not any(argument in HELP for argument in rest[:1]):
        if not rest or rest[0] not in LAB:
            problem = f"{quoted(rest[0])} is none of them{near(rest[0], LAB.keys())}" if rest else "one has to follow"
            raise ValueError(f"lab has {', '.join(LAB)}; {problem}")
        return f"lab {rest[0]}", LAB[rest[0]], rest[1:]
    return name, VERBS[name], rest


def words_of(verb: str, cls: type, arguments: list[str]) -> dict[str, list[str]]:
    """The words behind each option, by its name, the values of a list in one place; under no name all the others.

    Raises ValueError for an option that the verb does not have, for one of yes or no that has a value, and for any but
    a list that stands twice, because one of the two would be ignored.
    """
    types, name = options_of(cls), ""
    words: dict[str, list[str]] = {name: []}
    for argument in arguments:
        if not argument.startswith("--"):
            full = words[name] and get_origin(types.get(name)) is not tuple
            words["" if full else name].append(argument)
            continue
        option, equals, value = argument.partition("=")
        name = option[2:].replace("-", "_")
        negated = name not in types and types.get(name.removeprefix("no_")) is bool
        name = name.removeprefix("no_") if negated else name
        if name not in types:
            hint = near(flag(meant(name, types) or name), list(map(flag, types)), f"posenc help {verb}")
            raise ValueError(f"{verb} has no option {quoted(option)}{hint}")
        if name in words and get_origin(types[name]) is not tuple:
            raise ValueError(f"{option} is given more than once; give it once, with the value that you mean")
        values = words.setdefault(name, [])
        if types[name] is bool:
            if equals:
                raise ValueError(f"{option} takes no value, got {quoted(value)}")
            values.append("false" if negated else "true")
        elif equals:
            values.append(value)
        # What is whole takes no more words.
        name = "" if values and (equals or types[name] is bool) else name
    return words


def verb_from(verb: str, cls: Any, words: dict[str, list[str]]) -> Any:
    """The verb with its options, made of their words.

    Raises ValueError for a value that is not of its kind, and for what is missing or too much.
    """
    options, rest = all_options(cls), words.pop("")
    kinds = {option.name: option.kind for option in options}
    argument = next((option.name for option in options if option.positional), "")
    values: dict[str, Any] = {}
    for name, behind in words.items():
        values[name], more = value_of(flag(name), behind, kinds[name])
        rest += more
    missing = [option.name for option in options if option.required and option.name not in values]
    lists = [name for name, value in values.items() if isinstance(value, tuple) and value]
    if argument in missing and not rest and lists:
        # It stands behind a list, which takes all that comes but this.
        *values[lists[-1]], last = values[lists[-1]]
        values[lists[-1]], rest = tuple(values[lists[-1]]), [str(last)]
    if argument and rest:
        values[argument], rest = value_of(argument, rest, kinds[argument])
        missing = [name for name in missing if name != argument]
    if not missing and not rest:
        return cls(**{option.field: values[option.name] for option in options if option.name in values})
    flags = [flag(name) for name in missing if name != argument]
    problem = f"it needs {' and '.join(flags)} too" if flags else "something is missing"
    if not missing:
        problem = f"{quoted(rest[0])} is too much"
    raise ValueError(f"{problem}; it is written {usage(verb, cls)}; posenc help {verb} says more")


def value_of(option: str, words: list[str], kind: Any) -> tuple[Any, list[str]]:
    """What the words behind an option say, as its type has it, and those of them that belong to no option.

    Between the numbers of a list there may stand commas: 256,512 is 256 512. Raises ValueError for a value that is
    missing, and for one that is no number where one has to be.
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
            # Behind the numbers of a list there may stand what belongs to no option.
            if place:
                return tuple(values), words[place:]
            raise ValueError(f"{option} takes {NUMBERS[make]}, got {quoted(word)}") from None
    return (tuple(values), []) if is_list else (values[0], words[1:])


class Option(NamedTuple):
    """A field of a verb, as it is typed: a positional one stands for itself, without an option."""

    field: str
    name: str
    kind: Any
    metavar: str
    value: Any
    positional: bool

    @property
    def required(self) -> bool:
        return self.value is MISSING

    @property
    def written(self) -> str:
        """The option with the word for what it takes."""
        if self.kind is bool:
            return f"{flag(self.name)}, --no-{flag(self.name)[2:]}" if self.value is True else flag(self.name)
        return self.metavar if self.positional else f"{flag(self.name)} {self.metavar}"

    @property
    def default(self) -> str:
        """What help says of it; nothing of one that is empty, because then the words beside it say what happens."""
        if self.required:
            return " (required)"
        words = " ".join(map(str, self.value)) if isinstance(self.value, tuple) else str(self.value)
        return "" if self.kind is bool or self.value is None or not words else f" (default: {words})"


WORDS: dict[Any, str] = {int: "INT", float: "FLOAT", Path: "PATH", bool: "", str: "TEXT"}


def all_options(cls: Any) -> list[Option]:
    """The fields of a verb."""
    kinds, hints = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    options = []
    for field in fields(cls):
        kind, marks = kinds[field.name], get_args(hints[field.name])[1:]
        taking = next((mark for mark in marks if isinstance(mark, Taking)), Taking(WORDS.get(kind, "TEXT")))
        name, positional = taking.name or field.name, POSITIONAL in marks
        options.append(Option(field.name, name, kind, taking.metavar, field.default, positional))
    return options


def options_of(cls: type) -> dict[str, Any]:
    """The options of a verb, without what stands for itself: name -> type."""
    return {option.name: option.kind for option in all_options(cls) if not option.positional}


def flag(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def usage(name: str, cls: Any) -> str:
    """How a verb is written: its options in short, and what it needs."""
    options = all_options(cls)
    required = [option.written for option in options if option.required and not option.positional]
    more = ["[OPTIONS]"] if any(not option.required for option in options) else []
    return " ".join(["posenc", name, *more, *(option.metavar for option in options if option.positional), *required])


SPACED = ("tasks", "maps", "stretch", "log", "figures", "promise", "what", "specs")
"""The lists of names in which a comma has no meaning."""


def check_names(verb: Any) -> None:
    """Raises ValueError for an encoding that there is not, before anything is imported, and for commas for spaces."""
    for name in SPACED:
        several = getattr(verb, name, None)
        for word in several if isinstance(several, tuple) else ():
            if len(parts := split(word)) > 1:
                raise ValueError(f"{quoted(word)} is several names; put spaces between: {shlex.join(parts)}")
    specs = [getattr(verb, "spec", ""), *getattr(verb, "specs", ()), *getattr(verb, "encodings", ())]
    for spec in [*specs, getattr(verb, "encoding", None) or ""]:
        if spec == "all" and isinstance(verb, Compare):
            continue
        if isinstance(verb, Check) and spelling.knows(spec.partition("(")[0], spelling.TASKS):
            continue
        if spec:
            spelling.check(spec)
