"""Values from elsewhere: JSON, TOML and expressions, bounded in size, depth and digits, and held to a form."""

import ast
import importlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from posenc.foreign.files import MOST_BYTES, read, text_of
from posenc.foreign.text import CONTROLS, CannotRead, quoted, visible

DEPTH = 100
"""How deep lists and dictionaries may stand within each other."""

MOST_ITEMS = 2_000_000
"""The items of all lists and dictionaries of a JSON text, counted by its commas and brackets, in strings too: an empty
list takes two letters of the text and 64 bytes of memory. Indices of the largest models' tensors have some 200,000."""

DIGITS = 40
"""The digits of a whole number; the longest that released files hold, a tokenizer's 10^30, has 31."""

MOST_AXES = 16
MOST_NUMBERS = 1 << 48
"""The axes of a tensor, and the numbers that it may claim to hold: no file has as many."""

LETTERS = 20_000
"""The length of a Python-like expression."""

MOST_SETTINGS = 1 << 20
"""The size of a TOML file of settings (bytes)."""


def read_json(path: str | Path, *, within: str | Path | None = None, most: int = MOST_BYTES) -> dict[str, Any]:
    """The dictionary in a JSON file. Raises CannotRead as `regular`, `read` and `parse_json` do."""
    return parse_json(read(path, within=within, most=most), path)


def parse_json(text: str | bytes, file: str | Path | None = None) -> dict[str, Any]:
    """The dictionary in a JSON text, its strings without control characters; in time linear in the text.

    Raises CannotRead, naming the file, for what is no JSON or no dictionary, a name that stands twice in one
    dictionary, whole numbers of more than 40 digits, more than 2,000,000 items, and what is nested more than 100 deep.
    NaN and Infinity are read, as Python writes them.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if not clean and CONTROLS.search("".join(found)):
            found = {visible(key): value for key, value in pairs}
        if len(found) < len(pairs):
            twice = Counter(visible(key) for key, _ in pairs).most_common(1)[0][0]
            raise CannotRead(f"it names {quoted(twice)} twice", file=file)
        return found

    def whole(digits: str) -> int:
        if len(digits) > DIGITS + 1:
            raise CannotRead(f"it holds a number of {len(digits)} digits; at most {DIGITS} are read", file=file)
        return int(digits)

    text = text_of(text, file) if isinstance(text, bytes) else text
    opened = sum(map(text.count, "[{"))
    if opened + text.count(",") > MOST_ITEMS:
        raise CannotRead(f"it holds more than {MOST_ITEMS:,} items, which is more than posenc takes", file=file)
    # A board has thousands of short texts, with nothing to clean: JSON has other control characters as escapes alone.
    clean = opened <= DEPTH and text.isascii() and "\\" not in text and "\x7f" not in text
    try:
        found = json.loads(text, object_pairs_hook=once, parse_int=whole)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise CannotRead(f"it is no whole JSON ({error.msg}, {where})", file=file) from None
    except RecursionError:
        raise CannotRead(f"it is nested more than {DEPTH} deep", file=file) from None
    if not isinstance(found, dict):
        raise CannotRead(f"expected a dictionary, got {quoted(found, 80)}", file=file)
    return found if clean else cleaned(found, file)


NO_TEXT = {int, float, bool, NoneType}
"""The types of JSON in which there is nothing to clean."""


def cleaned(value: Any, file: str | Path | None = None, depth: int = 0) -> Any:
    """The value with every string made visible, changed in place. Raises CannotRead where it is nested too deep."""
    if depth > DEPTH:
        raise CannotRead(f"it is nested more than {DEPTH} deep", file=file)
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, (dict, list)):
        if depth == DEPTH or not set(map(type, value.values() if isinstance(value, dict) else value)) <= NO_TEXT:
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                value[key] = cleaned(one, file, depth + 1)
    return value


def read_toml(path: str | Path) -> dict[str, Any]:
    """The dictionary in a TOML file.

    Raises CannotRead, naming the file, for what is no TOML, and for more than a MiB of it; ModuleNotFoundError on
    Python 3.10 without tomli, which the extra `lab` brings there.
    """
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = text_of(read(path, most=MOST_SETTINGS), path)
    try:
        return cleaned(toml.loads(text), path)
    except toml.TOMLDecodeError as error:
        raise CannotRead(f"it is no TOML ({error})", file=path) from None
    except RecursionError:
        raise CannotRead("it is nested too deep", file=path) from None


def written_toml(facts: Mapping[str, Any]) -> str:
    """Words, numbers, truth values and lists of them, by name, as TOML.

    >>> print(written_toml({"task": "copy", "rate": 1e-05, "compile": False, "window": [4, 0]}), end="")
    task = "copy"
    rate = 1e-05
    compile = false
    window = [4, 0]
    """
    # JSON writes each of these as TOML does, but for one control character.
    said = {name: json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") for name, value in facts.items()}
    return "".join(f"{name} = {value}\n" for name, value in said.items())


def written(tree: ast.expr) -> str:
    """A part of an expression as a message quotes it."""
    return quoted(ast.unparse(tree))


def expression(text: str, what: str = "expression", remedy: str = "") -> ast.expr:
    """The syntax tree of one Python-like expression, which is parsed and never evaluated; in time linear in it.

    what, remedy  what it is called in errors, and what they say is to be done

    Raises CannotRead for more than 20,000 letters, numbers of more than 40 digits, what is nested more than 100 deep,
    and what is no expression.
    """

    def wrong(words: str) -> CannotRead:
        return CannotRead(f"{quoted(text)} {words}", remedy=remedy)

    if len(text) > LETTERS:
        raise wrong(f"is longer than {LETTERS:,} letters, the most that a {what} may have")
    for run in re.findall(rf"[0-9a-fA-FxX_]{{{DIGITS + 1},}}", text):
        digits = run.replace("_", "")
        if len(digits) > DIGITS and digits[0].isdigit():
            raise wrong(f"holds a number of {len(digits)} digits; at most {DIGITS} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise wrong(f"is no {what} ({error.msg})") from None
    except (MemoryError, RecursionError):
        raise wrong(f"is nested too deep to be a {what}") from None
    except ValueError as error:
        raise wrong(f"is no {what} ({error})") from None
    level: list[ast.AST] = [tree]
    depth = 0
    while level:
        level, depth = [child for node in level for child in ast.iter_child_nodes(node)], depth + 1
        if depth > DEPTH:
            raise wrong(f"is nested too deep to be a {what}")
    return tree


def matches(value: Any, form: Any, *, file: str | Path | None = None, field: str = "") -> None:
    """Hold a value to a form; raises CannotRead, naming the field, where it has another.

    A form is a type; a tuple of forms, any of which will do; a list with one form, for a list of such, and with a
    number behind it, for a list of at most so many; a dictionary from names to forms, all of which must be there, and
    no other name unless a name ends in "?" (may be missing) or is "*" (any name). `float` takes whole numbers too,
    `int` no truth values, None is itself, and Any anything.
    A text has at most 20,000 letters.

    >>> matches({"step": 3, "curve": [0.5]}, {"step": int, "curve": [float]})
    >>> matches({"step": "x"}, {"step": int}, file="run.json")
    Traceback (most recent call last):
    posenc.foreign.text.CannotRead: run.json: step: expected int, got 'x'
    """
    if found := misfit(value, form):
        wrong, inside = found
        raise CannotRead(wrong, file=file, field=field + inside if field else inside.removeprefix("."))


def misfit(value: Any, form: Any) -> tuple[str, str] | None:
    """What is wrong with a value and where in it, as ".curve[3].loss"; None where it has the form.

    Records are thousands of numbers: a list of such is looked at in one go, and only a wrong one is put into words.
    """
    if isinstance(value, str) and len(value) > LETTERS:
        return f"it has {len(value):,} letters, and at most {LETTERS:,} are read", ""
    if not fits(value, form):
        return f"expected {in_words(form)}, got {quoted(value, 80)}", ""
    if isinstance(form, tuple):
        return misfit(value, next(one for one in form if fits(value, one)))
    if isinstance(form, list):
        if form[1:] and len(value) > form[1]:
            return f"expected at most {form[1]:,} entries, got {len(value):,}", ""
        kinds = dict(zip(map(type, value), value, strict=True))
        if not all(kind in NO_TEXT and fits(one, form[0]) for kind, one in kinds.items()):
            for place, one in enumerate(value):
                if found := misfit(one, form[0]):
                    return found[0], f"[{place}]{found[1]}"
    return misfit_of_fields(value, form) if isinstance(form, dict) else None


def misfit_of_fields(value: dict[str, Any], form: dict[str, Any]) -> tuple[str, str] | None:
    known, needed = names_of(tuple(form))
    if "*" not in form and (others := [name for name in value if name not in known]):
        return f"there is no such field as {quoted(others[0])}", ""
    if missing := [name for name in needed if name not in value]:
        return f"the field {missing[0]} is missing", ""
    for name, one in value.items():
        inside = form[known.get(name, "*")] if name != "*" else Any
        if not (type(one) in NO_TEXT and fits(one, inside)) and (found := misfit(one, inside)):
            return found[0], f".{name}{found[1]}"
    return None


@lru_cache
def names_of(spelled: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """The names in a form: what each is spelled there, and those that must be there."""
    known = {name.removesuffix("?"): name for name in spelled}
    return known, [name for name, said in known.items() if name != "*" and not said.endswith("?")]


def fits(value: Any, form: Any) -> bool:
    """Whether a value is of a form's kind, its insides not looked at."""
    if type(value) is form or form is Any:
        return True
    if isinstance(form, tuple):
        return type(value) in form or any(fits(value, one) for one in form)
    if isinstance(form, (list, dict)):
        return isinstance(value, type(form))
    if form is float or form is int:
        return isinstance(value, (int, form)) and not isinstance(value, bool)
    return isinstance(value, NoneType if form is None else form)


def form_of(cls: Any) -> dict[str, Any]:
    """The form of a dataclass as JSON has it, for `matches`; fields with a default may be missing.

    Fields are str, int, float, bool, None, tuples of one kind, and any of several of these.
    """
    hints = get_type_hints(cls)
    needed = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(cls)}
    return {f"{name}{'' if needed[name] else '?'}": form_of_hint(hints[name]) for name in needed}


def form_of_hint(hint: Any) -> Any:
    inside = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return tuple(map(form_of_hint, inside))
    if get_origin(hint) is tuple:
        return [form_of_hint(inside[0])]
    return None if hint is NoneType else hint


def in_words(form: Any) -> str:
    if isinstance(form, tuple):
        return " or ".join(in_words(one) for one in form)
    if isinstance(form, list):
        return f"a list of {in_words(form[0])}"
    if isinstance(form, dict):
        return "a dictionary"
    return "nothing" if form is None else getattr(form, "__name__", str(form))


def count(value: Any, what: str, *, file: str | Path | None = None, least: int = 1, most: int) -> int:
    """A whole number from elsewhere that something will be looped over or allocated by, between sane bounds.

    Raises CannotRead, naming the field `what`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise CannotRead(
            f"expected a whole number from {least:,} to {most:,}, got {quoted(value, 60)}", file=file, field=what
        )
    return value


def shape(value: Any, what: str, *, file: str | Path | None = None) -> tuple[int, ...]:
    """The shape of a tensor from elsewhere, bounded so that nothing overflows that is computed from it.

    Raises CannotRead, naming the tensor `what`, unless it is a list of at most 16 whole numbers of 0 or more, with a
    product of at most 2^48, in which an axis of nothing counts as one of 1.
    """
    whole = isinstance(value, list) and len(value) <= MOST_AXES and all(type(one) is int and one >= 0 for one in value)
    if not whole or math.prod(max(one, 1) for one in value) > MOST_NUMBERS:
        most = f"at most {MOST_AXES} axes and {MOST_NUMBERS:,} numbers"
        raise CannotRead(f"expected a shape of {most}, got {quoted(value, 80)}", file=file, field=what)
    return tuple(value)
