"""From what was typed to a verb with its options: each mistake is told in one line, before anything is imported.

Verbs are read here; tyro, where it is installed, writes their help.
"""

import contextlib
import inspect
import io
import os
import shlex
from dataclasses import MISSING, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from posenc import spelling
from posenc.cli.comparison import Compare
from posenc.cli.encodings import Check
from posenc.cli.options import Positional
from posenc.cli.published import LAB, Lab
from posenc.cli.training import Train
from posenc.cli.verbs import VERBS
from posenc.foreign import near, one_line, quoted
from posenc.specs import split
from posenc.words import meant

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


def show_help(arguments: list[str]) -> None:
    """Print what the verb of the arguments takes, whatever else they say. Raises ValueError where there is no verb."""
    name, cls, _ = verb_of([word for word in arguments if word != "all"])
    every = "all" in arguments
    # The parser asks the terminal alone whether it has colours, and what is kept is no terminal.
    if os.environ.get("NO_COLOR"):
        print(help_of(name, cls, every), end="")
    else:
        print_help(name, cls, every)


def print_help(name: str, cls: Any, every: bool = False) -> None:
    """Print what a verb takes: of one with very many options its first ones, unless every one is asked for."""
    try:
        import tyro
    except ModuleNotFoundError:
        flags = " ".join(map(flag, options_of(cls)))
        argument = "".join(option.name.upper() for option in all_options(cls) if option.positional)
        print(f"usage: posenc {name} [OPTIONS] {argument}\n\n{inspect.getdoc(cls)}\n\n{flags}")
        return
    head, options = getattr(cls, "first", ()), {field.name: field for field in fields(cls)}
    rest = [option for option in options if option not in head] if head else []
    if rest:
        hints: Any = get_type_hints(cls, include_extras=True)
        suppressed: Any = [(name, Annotated[hints[name], tyro.conf.Suppress], options[name]) for name in rest]
        settings: dict[str, Any] = {"bases": (cls,), "namespace": {"__doc__": cls.__doc__}, "kw_only": True}
        reordered: Any = make_dataclass(cls.__name__, [] if every else suppressed, **settings)
        # In the order in which people ask, not in that of the classes.
        reordered.__dataclass_fields__ = {option: reordered.__dataclass_fields__[option] for option in (*head, *rest)}
        cls = reordered
    # It leaves when it has printed.
    with contextlib.suppress(SystemExit):
        tyro.cli(cls, prog=f"posenc {name}", args=["--help"], config=(tyro.conf.OmitArgPrefixes,))
    if rest and not every:
        print(f"{len(rest)} more options: posenc help {name} all")


def help_of(name: str, cls: type, every: bool = False) -> str:
    """What is printed of a verb."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_help(name, cls, every)
    return text.getvalue()


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
    usage = one_line(help_of(verb, cls).partition("\n\n")[0]).removeprefix("usage: ").replace(" [-h]", "")
    raise ValueError(f"{problem}; it is written {usage}; posenc help {verb} says more")


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
    positional: bool
    required: bool


def all_options(cls: Any) -> list[Option]:
    """The fields of a verb."""
    kinds, hints = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    options = []
    for field in fields(cls):
        marks = get_args(hints[field.name])[1:]
        name = next((mark.name for mark in marks if getattr(mark, "name", None)), field.name)
        options.append(Option(field.name, name, kinds[field.name], Positional in marks, field.default is MISSING))
    return options


def options_of(cls: type) -> dict[str, Any]:
    """The options of a verb, without what stands for itself: name -> type."""
    return {option.name: option.kind for option in all_options(cls) if not option.positional}


def flag(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


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
