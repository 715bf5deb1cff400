"""From what was typed to a verb with its options: each mistake is told in one line, before anything is imported.

Verbs are read here; tyro, where it is installed, writes their help.
"""

import contextlib
import inspect
import io
import os
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from posenc import spelling
from posenc.cli.comparison import Compare
from posenc.cli.encodings import Check
from posenc.cli.options import Positional
from posenc.cli.published import LAB, Lab
from posenc.cli.training import Train
from posenc.cli.verbs import VERBS
from posenc.foreign import near, one_line, quoted

HELP = ("-h", "--help")
NUMBERS: dict[Any, str] = {int: "a whole number", float: "a number"}


def parse(arguments: list[str]) -> Any:
    """The verb that the arguments ask for, with its options. Raises ValueError for whatever is wrong with them."""
    verb, cls, typed = verb_of(arguments)
    given = words_of(verb, cls, typed)
    if cls is Train and given.get("config"):
        from posenc.lab.runs.config import with_file

        given = with_file(given, Train)
    found = understood(verb, cls, given)
    return Lab(found) if cls in LAB.values() else found


def verb_of(arguments: list[str]) -> tuple[str, type, list[str]]:
    """What a verb is called, its class, and what is given to it."""
    name, *given = arguments
    if name not in VERBS:
        raise ValueError(f"no verb {quoted(name)}{near(name, VERBS.keys(), 'posenc help')}")
    if VERBS[name] is Lab and not any(argument in HELP for argument in given[:1]):
        if not given or given[0] not in LAB:
            wrong = f"{quoted(given[0])} is none of them{near(given[0], LAB.keys())}" if given else "one has to follow"
            raise ValueError(f"lab has {', '.join(LAB)}; {wrong}")
        return f"lab {given[0]}", LAB[given[0]], given[1:]
    return name, VERBS[name], given


def show_help(arguments: list[str]) -> None:
    """Print what the verb of the arguments takes, whatever else they say. Raises ValueError where there is no verb."""
    verb, cls, _ = verb_of(arguments)
    if os.environ.get("NO_COLOR"):
        # The parser asks the terminal alone, and what is kept here is none.
        print(help_of(verb, cls), end="")
    else:
        print_help(verb, cls)


def print_help(verb: str, cls: type) -> None:
    try:
        import tyro
    except ModuleNotFoundError:
        options = " ".join(map(flag, options_of(cls)))
        print(f"usage: posenc {verb} [OPTIONS] {argument_of(cls).upper()}\n\n{inspect.getdoc(cls)}\n\n{options}")
        return
    # It leaves when it has printed.
    with contextlib.suppress(SystemExit):
        tyro.cli(cls, prog=f"posenc {verb}", args=["--help"], config=(tyro.conf.OmitArgPrefixes,))


def help_of(verb: str, cls: type) -> str:
    """What is printed of a verb."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        print_help(verb, cls)
    return said.getvalue()


def words_of(verb: str, cls: type, arguments: list[str]) -> dict[str, list[str]]:
    """The words behind each option, by its name, the values of a list in one place; under no name all the others.

    Raises ValueError for an option that the verb does not have, for one of yes or no that is given a value, and for any
    but a list that is given twice, because one of the two would be ignored.
    """
    types, name = options_of(cls), ""
    given: dict[str, list[str]] = {name: []}
    for argument in arguments:
        if not argument.startswith("--"):
            full = given[name] and get_origin(types.get(name)) is not tuple
            given["" if full else name].append(argument)
            continue
        option, equals, value = argument.partition("=")
        name = option[2:].replace("-", "_")
        negated = name not in types and types.get(name.removeprefix("no_")) is bool
        name = name.removeprefix("no_") if negated else name
        if name not in types:
            hint = near(option, [flag(one) for one in types], f"posenc help {verb}")
            raise ValueError(f"{verb} has no option {quoted(option)}{hint}")
        if name in given and get_origin(types[name]) is not tuple:
            raise ValueError(f"{option} is given more than once; give it once, with the value that you mean")
        words = given.setdefault(name, [])
        if types[name] is bool:
            if equals:
                raise ValueError(f"{option} takes no value, got {quoted(value)}")
            words.append("false" if negated else "true")
        elif equals:
            words.append(value)
        # What is whole takes no more words.
        name = "" if words and (equals or types[name] is bool) else name
    return given


def understood(verb: str, cls: Any, given: dict[str, list[str]]) -> Any:
    """The verb with its options, made of their words.

    Raises ValueError for a value that is not of its kind, and for what is missing or too much.
    """
    types, argument, loose = options_of(cls), argument_of(cls), given.pop("")
    values: dict[str, Any] = {}
    for name, words in given.items():
        values[name], more = value_of(flag(name), words, types[name])
        loose += more
    marked = get_type_hints(cls, include_extras=True)
    names = {field.name: called(field.name, marked[field.name]) for field in fields(cls)}
    needed = [names[field.name] for field in fields(cls) if field.default is MISSING]
    needed = [name for name in needed if name not in values]
    lists = [name for name, value in values.items() if isinstance(value, tuple) and value]
    if argument in needed and not loose and lists:
        # It stands behind a list, which takes all that comes but this.
        *values[lists[-1]], last = values[lists[-1]]
        values[lists[-1]], loose = tuple(values[lists[-1]]), [str(last)]
    if argument and loose:
        kind = get_type_hints(cls)[argument]
        values[argument], loose = value_of(argument, loose, kind)
        needed = [name for name in needed if name != argument]
    if not needed and not loose:
        return cls(**{field: values[name] for field, name in names.items() if name in values})
    options = [flag(name) for name in needed if name != argument]
    wrong = f"it needs {' and '.join(options)} too" if options else "something is missing"
    if not needed:
        wrong = f"{quoted(loose[0])} is too much"
    usage = one_line(help_of(verb, cls).partition("\n\n")[0]).removeprefix("usage: ").replace(" [-h]", "")
    raise ValueError(f"{wrong}; it is written {usage}; posenc help {verb} says more")


def value_of(option: str, words: list[str], kind: Any) -> tuple[Any, list[str]]:
    """What the words behind an option say, as its type has it, and those of them that belong to no option.

    Between the numbers of a list there may stand commas: 256,512 is 256 512. Raises ValueError for a value that is
    missing, and for one that is no number where one has to be.
    """
    if kind is bool:
        return words == ["true"], []
    several = get_origin(kind) is tuple
    if not words and not several:
        raise ValueError(f"{option} takes a value, and none follows")
    make = next(make for make in (*NUMBERS, Path, str) if make in (kind, *get_args(kind)))
    values: list[Any] = []
    for place, word in enumerate(words if several else words[:1]):
        try:
            values += [make(part) for part in (word.split(",") if several and make in NUMBERS else [word])]
        except ValueError:
            # Behind the numbers of a list there may stand what belongs to no option.
            if place:
                return tuple(values), words[place:]
            raise ValueError(f"{option} takes {NUMBERS[make]}, got {quoted(word)}") from None
    return (tuple(values), []) if several else (values[0], words[1:])


def options_of(cls: type) -> dict[str, Any]:
    """The options of a verb, without what stands for itself: name -> type."""
    marked = get_type_hints(cls, include_extras=True)
    kinds = get_type_hints(cls).items()
    return {called(name, marked[name]): kind for name, kind in kinds if Positional not in get_args(marked[name])}


def argument_of(cls: type) -> str:
    """The field of a verb that stands for itself, without an option; nothing where there is none."""
    marked = get_type_hints(cls, include_extras=True).items()
    return next((name for name, kind in marked if Positional in get_args(kind)), "")


def called(name: str, marked: Any) -> str:
    """The name of an option: that of its field, where its type is not marked with another."""
    return next((mark.name for mark in get_args(marked)[1:] if getattr(mark, "name", None)), name)


def flag(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def check_names(verb: Any) -> None:
    """Raises ValueError for an encoding that there is not, before anything is imported to find out."""
    given = [getattr(verb, "spec", ""), *getattr(verb, "specs", ()), *getattr(verb, "encodings", ())]
    given.append(getattr(verb, "encoding", None) or "")
    for spec in given:
        if spec == "all" and isinstance(verb, Compare):
            continue
        if isinstance(verb, Check) and spelling.knows(spec.partition("(")[0], spelling.TASKS):
            continue
        if spec:
            spelling.check(spec)
