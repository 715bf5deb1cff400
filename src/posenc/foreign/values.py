"""Parse untrusted JSON, TOML and expressions, bounded in size, depth and digits, and check their form."""

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
from posenc.foreign.text import CONTROLS, CannotRead, quote, visible

DEPTH = 100
"""The deepest nesting of lists and dictionaries."""

MOST_ITEMS = 2_000_000
"""The items of all lists and dictionaries of a JSON text, counted by its commas and brackets, in strings too: an empty
list takes two letters of the text and 64 bytes of memory. Indices of the largest models' tensors have some 200,000."""

DIGITS = 40
"""The most digits of a whole number; the longest of released files, a tokenizer's 10^30, has 31."""

MOST_AXES = 16
MOST_NUMBERS = 1 << 48
"""The axes of a tensor, and the numbers that it may claim to hold: no file has as many."""

LETTERS = 20_000
"""The most letters of a Python-like expression."""

MOST_SETTINGS = 1 << 20
"""The size limit of a TOML file of settings (bytes)."""


def read_json(path: str | Path, *, folder: str | Path | None = None, limit: int = MOST_BYTES) -> dict[str, Any]:
    """Return the dictionary in a JSON file. Raises CannotRead as `regular_file`, `read` and `parse_json` do."""
    return parse_json(read(path, folder=folder, limit=limit), path)


def parse_json(text: str | bytes, file: str | Path | None = None) -> dict[str, Any]:
    """Return the dictionary in a JSON text, its strings without control characters; in time linear in the text.

    Raises CannotRead, naming the file, for invalid JSON, for no dictionary, a name twice in one dictionary, whole
    numbers of more than 40 digits, more than 2,000,000 items, and more than 100 levels of nesting.
    NaN and Infinity are read, as Python writes them.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if not clean and CONTROLS.search("".join(entries)):
            entries = {visible(key): value for key, value in pairs}
        if len(entries) < len(pairs):
            twice = Counter(visible(key) for key, _ in pairs).most_common(1)[0][0]
            raise CannotRead(f"it names {quote(twice)} twice", file=file)
        return entries

    def whole(digits: str) -> int:
        if len(digits) > DIGITS + 1:
            raise CannotRead(f"it holds a number of {len(digits)} digits; at most {DIGITS} are read", file=file)
        return int(digits)

    text = text_of(text, file) if isinstance(text, bytes) else text
    bracket_count = sum(map(text.count, "[{"))
    if bracket_count + text.count(",") > MOST_ITEMS:
        raise CannotRead(f"it holds more than {MOST_ITEMS:,} items, which is more than posenc takes", file=file)
    # A board has thousands of short texts, with nothing to clean: JSON writes other control characters as escapes.
    clean = bracket_count <= DEPTH and text.isascii() and "\\" not in text and "\x7f" not in text
    try:
        document = json.loads(text, object_pairs_hook=once, parse_int=whole)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise CannotRead(f"it is no whole JSON ({error.msg}, {where})", file=file) from None
    except RecursionError:
        raise CannotRead(f"it is nested more than {DEPTH} deep", file=file) from None
    if not isinstance(document, dict):
        raise CannotRead(f"expected a dictionary, got {quote(document, 80)}", file=file)
    return document if clean else visible_strings(document, file)


NO_TEXT = {int, float, bool, NoneType}
"""The types of JSON that hold no text."""


def visible_strings(value: Any, file: str | Path | None = None, depth: int = 0) -> Any:
    """Make every string of a value visible, in place. Raises CannotRead for a value that is nested too deep."""
    if depth > DEPTH:
        raise CannotRead(f"it is nested more than {DEPTH} deep", file=file)
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, (dict, list)):
        if depth == DEPTH or not set(map(type, value.values() if isinstance(value, dict) else value)) <= NO_TEXT:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                value[key] = visible_strings(item, file, depth + 1)
    return value


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the dictionary in a TOML file.

    Raises CannotRead, naming the file, for invalid TOML and for more than a MiB; ModuleNotFoundError on Python 3.10
    without tomli, which the extra `lab` installs there.
    """
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = text_of(read(path, limit=MOST_SETTINGS), path)
    try:
        return visible_strings(toml.loads(text), path)
    except toml.TOMLDecodeError as error:
        raise CannotRead(f"it is no TOML ({error})", file=path) from None
    except RecursionError:
        raise CannotRead("it is nested too deep", file=path) from None


def toml_text(facts: Mapping[str, Any]) -> str:
    """Return texts, numbers, booleans and lists of them, by name, as TOML.

    >>> print(toml_text({"task": "copy", "rate": 1e-05, "compile": False, "window": [4, 0]}), end="")
    task = "copy"
    rate = 1e-05
    compile = false
    window = [4, 0]
    """
    # JSON writes each of these as TOML does, but for one control character.
    values = {name: json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") for name, value in facts.items()}
    return "".join(f"{name} = {value}\n" for name, value in values.items())


def unparse(tree: ast.expr) -> str:
    """Return the source of a part of an expression, for a message."""
    return quote(ast.unparse(tree))


def expression(text: str, noun: str = "expression", remedy: str = "") -> ast.expr:
    """Return the syntax tree of a Python-like expression, without evaluating it; in time linear in its length.

    noun, remedy  its name and the remedy in errors

    Raises CannotRead for invalid syntax, more than 20,000 letters, numbers of more than 40 digits, and more than 100
    levels of nesting.
    """

    def wrong(words: str) -> CannotRead:
        return CannotRead(f"{quote(text)} {words}", remedy=remedy)

    if len(text) > LETTERS:
        raise wrong(f"is longer than {LETTERS:,} letters, the most that a {noun} may have")
    for run in re.findall(rf"[0-9a-fA-FxX_]{{{DIGITS + 1},}}", text):
        digits = run.replace("_", "")
        if len(digits) > DIGITS and digits[0].isdigit():
            raise wrong(f"holds a number of {len(digits)} digits; at most {DIGITS} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise wrong(f"is no {noun} ({error.msg})") from None
    except (MemoryError, RecursionError):
        raise wrong(f"is nested too deep to be a {noun}") from None
    except ValueError as error:
        raise wrong(f"is no {noun} ({error})") from None
    level: list[ast.AST] = [tree]
    depth = 0
    while level:
        level, depth = [child for node in level for child in ast.iter_child_nodes(node)], depth + 1
        if depth > DEPTH:
            raise wrong(f"is nested too deep to be a {noun}")
    return tree


def matches(value: Any, form: Any, *, file: str | Path | None = None, field: str = "") -> None:
    """Check the form of a value; raises CannotRead, naming the field, for another form.

    A form is a type; a tuple of alternative forms; a list [form] for a list of such, or [form, n] for at most n of
    them; or a dictionary from names to forms. All of its names are required and no others allowed, but for names that
    end in "?" (optional) and "*" (any name). `float` takes whole numbers too, `int` no booleans; None matches itself,
    and Any everything. A text has at most 20,000 letters.

    >>> matches({"step": 3, "curve": [0.5]}, {"step": int, "curve": [float]})
    >>> matches({"step": "x"}, {"step": int}, file="run.json")
    Traceback (most recent call last):
    posenc.foreign.text.CannotRead: run.json: step: expected int, got 'x'
    """
    if problem := misfit(value, form):
        wrong, place = problem
        raise CannotRead(wrong, file=file, field=field + place if field else place.removeprefix("."))


def misfit(value: Any, form: Any) -> tuple[str, str] | None:
    """Return the fault of a value and its place, as ".curve[3].loss"; None without a fault.

    Records hold thousands of numbers: a list of them is checked by its types, and item by item only if one is wrong.
    """
    if isinstance(value, str) and len(value) > LETTERS:
        return f"it has {len(value):,} letters, and at most {LETTERS:,} are read", ""
    if not fits(value, form):
        return f"expected {describe_form(form)}, got {quote(value, 80)}", ""
    if isinstance(form, tuple):
        return misfit(value, next(option for option in form if fits(value, option)))
    if isinstance(form, list):
        if form[1:] and len(value) > form[1]:
            return f"expected at most {form[1]:,} entries, got {len(value):,}", ""
        kinds = dict(zip(map(type, value), value, strict=True))
        if not all(kind in NO_TEXT and fits(option, form[0]) for kind, option in kinds.items()):
            for place, option in enumerate(value):
                if problem := misfit(option, form[0]):
                    return problem[0], f"[{place}]{problem[1]}"
    return misfit_of_fields(value, form) if isinstance(form, dict) else None


def misfit_of_fields(value: dict[str, Any], form: dict[str, Any]) -> tuple[str, str] | None:
    spellings, obligatory = field_names(tuple(form))
    if "*" not in form and (unknown := [name for name in value if name not in spellings]):
        return f"there is no such field as {quote(unknown[0])}", ""
    if absent := [name for name in obligatory if name not in value]:
        return f"the field {absent[0]} is missing", ""
    for name, entry in value.items():
        field_form = form[spellings.get(name, "*")] if name != "*" else Any
        if not (type(entry) in NO_TEXT and fits(entry, field_form)) and (problem := misfit(entry, field_form)):
            return problem[0], f".{name}{problem[1]}"
    return None


@lru_cache
def field_names(spellings: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Return the names in a form with their spellings there, and the required names."""
    names = {name.removesuffix("?"): name for name in spellings}
    return names, [name for name, spelling in names.items() if name != "*" and not spelling.endswith("?")]


def fits(value: Any, form: Any) -> bool:
    """Whether a value is of a form's type, without a look at its items."""
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
    """Return the form of a dataclass in JSON, for `matches`; fields with a default are optional.

    Fields are str, int, float, bool, None, tuples of one type, and unions of these.
    """
    hints = get_type_hints(cls)
    is_required = {field.name: field.default is MISSING and field.default_factory is MISSING for field in fields(cls)}
    return {f"{name}{'' if is_required[name] else '?'}": form_of_hint(hints[name]) for name in is_required}


def form_of_hint(hint: Any) -> Any:
    arguments = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return tuple(map(form_of_hint, arguments))
    if get_origin(hint) is tuple:
        return [form_of_hint(arguments[0])]
    return None if hint is NoneType else hint


def describe_form(form: Any) -> str:
    if isinstance(form, tuple):
        return " or ".join(describe_form(option) for option in form)
    if isinstance(form, list):
        return f"a list of {describe_form(form[0])}"
    if isinstance(form, dict):
        return "a dictionary"
    return "nothing" if form is None else getattr(form, "__name__", str(form))


def bounded_count(value: Any, field: str, *, file: str | Path | None = None, least: int = 1, limit: int) -> int:
    """Return an untrusted whole number, for loops and allocations, if it lies between `least` and `limit`.

    Raises CannotRead, naming the field.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= limit:
        raise CannotRead(
            f"expected a whole number from {least:,} to {limit:,}, got {quote(value, 60)}", file=file, field=field
        )
    return value


def shape(value: Any, field: str, *, file: str | Path | None = None) -> tuple[int, ...]:
    """Return an untrusted shape of a tensor, bounded so that no product of its sizes overflows.

    Raises CannotRead, naming the tensor `field`, unless it is a list of at most 16 whole numbers of 0 or more, with a
    product of at most 2^48, in which an axis of size 0 counts as 1.
    """
    whole = isinstance(value, list) and len(value) <= MOST_AXES and all(type(n) is int and n >= 0 for n in value)
    if not whole or math.prod(max(n, 1) for n in value) > MOST_NUMBERS:
        limits = f"at most {MOST_AXES} axes and {MOST_NUMBERS:,} numbers"
        raise CannotRead(f"expected a shape of {limits}, got {quote(value, 80)}", file=file, field=field)
    return tuple(value)
