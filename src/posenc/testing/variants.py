"""Encodings with other options: specs of the catalogue, and subjects that differ in one option."""

import functools
import inspect
from dataclasses import replace
from typing import Any

from posenc.catalogue import build, find
from posenc.encoding.base import WIDTHS, Compose, Encoding, Shape, constructor_arguments
from posenc.encoding.chosen_heads import OnHeads
from posenc.schedules import SCHEDULES, Schedule, schedule_of
from posenc.testing.subjects import SHAPE, TOKENS, Factory, Subject, arange, make, singles


def variants(name: str) -> list[str]:
    """Return specs of an encoding: plain, with other numbers, and with each other choice.

    Whole numbers are small, so that test lengths exceed the reach. Words come from the constants of the encoding's
    module (LAYOUTS, OVERRUN), booleans are negated, and each schedule is tried. Specs that do not build are left out.
    """
    cls = find(name)
    numbers, choices = option_changes(cls)

    def spec(options: dict[str, Any], inner: str = (*cls.wraps, "")[0]) -> str:
        words = [*filter(None, [inner]), *(f"{option}={value}" for option, value in options.items())]
        return f"{name}({', '.join(words)})" if words else name

    specs = [spec({}), spec(numbers), *(spec({}, inner_encoding) for inner_encoding in cls.wraps[1:])]
    for option, value in choices:
        with_numbers, alone = spec(numbers | {option: value}), spec({option: value})
        specs.append(with_numbers if builds(with_numbers) else alone)
    return [candidate for candidate in dict.fromkeys(specs) if builds(candidate)]


def option_changes(cls: type[Encoding]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Return other values for the options of an encoding: one for each number, and each other choice.

    Words come from the constants of the class's module.
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


def siblings(subject: Subject) -> list[Subject]:
    """Return subjects that differ from this one in one option of one encoding, each option once."""
    subjects: dict[tuple[int, int, str], Subject] = {}
    parts = subject.encoding if isinstance(subject.encoding, tuple) else (subject.encoding,)
    for place, encoding in enumerate(subject.build()[1]):
        for member, single in enumerate(singles(encoding)):
            numbers, choices = option_changes(type(single))
            for option, value in [*numbers.items(), *choices]:
                if getattr(single, option) != value and (place, member, option) not in subjects:
                    factory = functools.partial(with_option, parts[place], member, option, value)
                    name = f"{subject} with {option}={value}"
                    sibling = replace(subject, encoding=(*parts[:place], factory, *parts[place + 1 :]), name=name)
                    if sibling.serves(arange(TOKENS)):
                        subjects[place, member, option] = sibling
    return list(subjects.values())


def with_option(
    source: "str | type[Encoding] | Factory", member: int, option: str, value: Any, shape: Shape
) -> Encoding:
    """Build an encoding from a source, with one option of one of its single encodings changed."""
    encoding = build(source, shape) if isinstance(source, str) else make(source, shape)
    if isinstance(value, Schedule):
        value = value.with_trained_length(shape.max_len)
    return with_option_changed(encoding, singles(encoding)[member], option, value)


def with_option_changed(encoding: Encoding, single: Encoding, option: str, value: Any) -> Encoding:
    """Return a copy of an encoding with one option of one single encoding inside changed."""
    if not any(member is single for member in singles(encoding)):
        return encoding
    if isinstance(encoding, Compose):
        return Compose(*(with_option_changed(part, single, option, value) for part in encoding.parts))
    if isinstance(encoding, OnHeads):
        return OnHeads(with_option_changed(encoding.encoding, single, option, value), encoding.heads, encoding.of)
    arguments = constructor_arguments(encoding)
    if "encoding" in arguments:
        arguments["encoding"] = with_option_changed(arguments["encoding"], single, option, value)
    return type(encoding)(**arguments | ({option: value} if encoding is single else {}))


def builds(spec: str) -> bool:
    try:
        build(spec, SHAPE)
    except ValueError:
        return False
    return True
