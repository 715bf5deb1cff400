"""Other options of the same encodings: specs of the catalogue, and subjects that differ in one option."""

import functools
import inspect
from dataclasses import replace
from typing import Any

from posenc.catalogue import build, find
from posenc.encoding.base import WIDTHS, Compose, Encoding, Shape, arguments_of
from posenc.encoding.chosen_heads import OnHeads
from posenc.schedules import SCHEDULES, Schedule, schedule_of
from posenc.testing.subjects import SHAPE, TOKENS, Factory, Subject, count, inside, make


def variants(name: str) -> list[str]:
    """Specs of an encoding of the catalogue: plain, with other numbers, and with every other choice besides.

    Numbers are made small where they are whole, so that test lengths exceed the reach. Words are tried from the
    constants of the encoding's module (LAYOUTS, OVERRUN), truth values are turned, and every schedule has its turn.
    What does not let itself be built is left out.
    """
    cls = find(name)
    numbers, choices = changes(cls)

    def spec(options: dict[str, Any], wrapped: str = (*cls.wraps, "")[0]) -> str:
        words = [*filter(None, [wrapped]), *(f"{option}={value}" for option, value in options.items())]
        return f"{name}({', '.join(words)})" if words else name

    wanted = [spec({}), spec(numbers), *(spec({}, other) for other in cls.wraps[1:])]
    for option, value in choices:
        both, alone = spec(numbers | {option: value}), spec({option: value})
        wanted.append(both if builds(both) else alone)
    return [one for one in dict.fromkeys(wanted) if builds(one)]


def changes(cls: type[Encoding]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Other values for the options of an encoding: one for each number, and each other choice besides.

    Words are tried from the constants of the class's module.
    """
    module = inspect.getmodule(cls)
    words = [w for v in vars(module).values() if isinstance(v, tuple) and all(isinstance(w, str) for w in v) for w in v]
    numbers: dict[str, Any] = {}
    choices: list[tuple[str, Any]] = []
    for option, parameter in inspect.signature(cls.__init__).parameters.items():
        default, kind = parameter.default, parameter.annotation
        if option in ("self", "encoding", *WIDTHS, "max_len", "trained_length", "device", "dtype"):
            continue
        if option == "axes":
            choices.extend((option, axes) for axes in (1, 2, 3) if axes != default)
        elif kind is bool:
            choices.append((option, not default))
        elif kind is str:
            choices.extend((option, word) for word in words if word != default)
        elif kind is int:
            numbers[option] = 8 + len(numbers)
        elif kind is float and isinstance(default, float):
            numbers[option] = 0.67 if default == 1 else 3 * default or 0.5
        elif "Schedule" in str(kind):
            choices.extend((option, schedule_of(schedule.example)) for schedule in SCHEDULES.values())
        elif default is None and str(kind).startswith(("int |", "float |")):
            choices.append((option, 5 if str(kind).startswith("int") else 2.5))
    return numbers, choices


def kin(subject: Subject) -> list[Subject]:
    """Subjects that differ from this one in one option of one encoding, each option once."""
    found: dict[tuple[int, int, str], Subject] = {}
    parts = subject.encoding if isinstance(subject.encoding, tuple) else (subject.encoding,)
    for place, encoding in enumerate(subject.build()[1]):
        for member, single in enumerate(inside(encoding)):
            numbers, choices = changes(type(single))
            for option, value in [*numbers.items(), *choices]:
                if getattr(single, option) != value and (place, member, option) not in found:
                    other = functools.partial(with_option, parts[place], member, option, value)
                    name = f"{subject} with {option}={value}"
                    one = replace(subject, encoding=(*parts[:place], other, *parts[place + 1 :]), name=name)
                    if one.serves(count(TOKENS)):
                        found[place, member, option] = one
    return list(found.values())


def with_option(
    source: "str | type[Encoding] | Factory", member: int, option: str, value: Any, shape: Shape
) -> Encoding:
    """A fresh encoding from a source, with one option of one of its single encodings changed."""
    encoding = build(source, shape) if isinstance(source, str) else make(source, shape)
    if isinstance(value, Schedule):
        value = value.with_trained_length(shape.max_len)
    return changed(encoding, inside(encoding)[member], option, value)


def changed(encoding: Encoding, single: Encoding, option: str, value: Any) -> Encoding:
    """An encoding made like this one, and from its parts, but for an option of one single encoding inside."""
    if not any(one is single for one in inside(encoding)):
        return encoding
    if isinstance(encoding, Compose):
        return Compose(*(changed(part, single, option, value) for part in encoding.parts))
    if isinstance(encoding, OnHeads):
        return OnHeads(changed(encoding.encoding, single, option, value), encoding.heads, encoding.of)
    given = arguments_of(encoding)
    if "encoding" in given:
        given["encoding"] = changed(given["encoding"], single, option, value)
    return type(encoding)(**given | ({option: value} if encoding is single else {}))


def builds(spec: str) -> bool:
    try:
        build(spec, SHAPE)
    except ValueError:
        return False
    return True
