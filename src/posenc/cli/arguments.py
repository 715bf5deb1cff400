"""From what was typed to a verb with its options: each mistake is told in one line, before anything is imported."""

import contextlib
import io
import os
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import Positional

from posenc import spelling
from posenc.cli.comparison import Compare
from posenc.cli.encodings import Check
from posenc.cli.published import LAB, Lab
from posenc.cli.training import Train
from posenc.cli.verbs import OPTIONS, VERBS
from posenc.foreign import near, one_line, quoted

HELP = ("-h", "--help")
KINDS = {int: "a whole number", float: "a number"}


def parse(arguments: list[str]) -> Any:
    """The verb that the arguments ask for, with its options. Raises ValueError for whatever is wrong with them."""
    verb, cls, given = verb_of(arguments)
    given = each_once(verb, cls, given)
    if cls is Train and any(argument.partition("=")[0] == "--config" for argument in given):
        from posenc.lab.runs.config import with_file

        given = each_once(verb, cls, with_file(["train", *given], Train)[1:])
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
    # The parser leaves when it has printed.
    with contextlib.suppress(SystemExit):
        tyro.cli(cls, prog=f"posenc {verb}", args=["--help"], config=OPTIONS)


def help_of(verb: str, cls: type) -> str:
    """What the parser says of a verb."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        print_help(verb, cls)
    return said.getvalue()


def understood(verb: str, cls: Any, given: list[str]) -> Any:
    """The verb with its options, as the parser reads them."""
    try:
        # What the parser says runs over many lines, and quotes what a terminal might obey.
        with contextlib.redirect_stderr(io.StringIO()):
            found, more = tyro.cli(cls, prog=f"posenc {verb}", args=given, config=OPTIONS, return_unknown_args=True)
    except SystemExit:
        options = options_of(cls)
        needed = [flag(one.name) for one in fields(cls) if one.name in options and one.default is MISSING]
        needed = [option for option in needed if not any(one.partition("=")[0] == option for one in given)]
        wrong = f"it needs {' and '.join(needed)} too" if needed else "something is missing"
    else:
        if not more:
            return found
        wrong = f"{quoted(more[0])} is too much"
    usage = one_line(help_of(verb, cls).partition("\n\n")[0]).removeprefix("usage: ").replace(" [-h]", "")
    raise ValueError(f"{wrong}; it is written {usage}; posenc help {verb} says more")


def options_of(cls: type) -> dict[str, Any]:
    """The options of a verb, without what stands for itself: name -> type."""
    marked = get_type_hints(cls, include_extras=True)
    kinds = get_type_hints(cls).items()
    return {called(name, marked[name]): kind for name, kind in kinds if Positional not in get_args(marked[name])}


def called(name: str, marked: Any) -> str:
    """The name of an option: that of its field, where its type is not marked with another."""
    return next((mark.name for mark in get_args(marked)[1:] if getattr(mark, "name", None)), name)


def flag(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def each_once(verb: str, cls: type, arguments: list[str]) -> list[str]:
    """The arguments with every option in one place: the values of a list add up, where the parser keeps the last ones.

    Raises ValueError for an option that the verb does not have, for a value that is not of its kind, and for any other
    option that is given twice, because one of the two would be ignored.
    """
    types = options_of(cls)
    name = ""
    # Under no name stands what comes before the first option.
    given: dict[str, list[str]] = {name: []}
    for argument in arguments:
        if not argument.startswith("--"):
            given[name].append(argument)
            continue
        option, equals, value = argument.partition("=")
        name = option[2:].replace("-", "_")
        name = name if types.get(name.removeprefix("no_")) is not bool else name.removeprefix("no_")
        if name not in types:
            hint = near(option, [flag(one) for one in types], f"posenc help {verb}")
            raise ValueError(f"{verb} has no option {quoted(option)}{hint}")
        if name not in given:
            given[name] = [argument]
        elif get_origin(types[name]) is tuple:
            # Behind the values so far, and last of all: a required argument may stand behind a list.
            given[name] = [*given.pop(name), *([value] if equals else [])]
        else:
            raise ValueError(f"{option} is given more than once; give it once, with the value that you mean")
    for name, (option, *values) in [(name, parts) for name, parts in given.items() if name]:
        given[name] = [option, *values] = one_by_one(option, values, types[name])
        check_value(option, values, types[name])
    return [part for parts in given.values() for part in parts]


def one_by_one(option: str, values: list[str], kind: Any) -> list[str]:
    """An option with its values, those of a list of numbers apart where commas stand between: 256,512 is 256 512."""
    number = next((number for number in KINDS if get_origin(kind) is tuple and number in get_args(kind)), None)
    if number is None:
        return [option, *values]
    option, equals, value = option.partition("=")
    found = []
    for one in [value, *values] if equals else values:
        parts = one.split(",")
        try:
            list(map(number, parts))
        except ValueError:
            # Behind a list there may stand what belongs to no option, such as several specs.
            parts = [one]
        found += parts
    return [option, *found]


def check_value(option: str, values: list[str], kind: Any) -> None:
    """Raises ValueError for an option without its value, and for a value that is no number where one has to be."""
    option, equals, value = option.partition("=")
    values = [value, *values] if equals else values
    if kind is bool:
        if equals:
            raise ValueError(f"{option} takes no value, got {quoted(value)}")
        return
    if not values and get_origin(kind) is not tuple:
        raise ValueError(f"{option} takes a value, and none follows")
    for number in set(KINDS) & {kind, *get_args(kind)}:
        # Behind the first value of a list there may stand what belongs to no option.
        for value in values[:1]:
            try:
                number(value)
            except ValueError:
                raise ValueError(f"{option} takes {KINDS[number]}, got {quoted(value)}") from None


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
