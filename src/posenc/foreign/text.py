"""Text from elsewhere, made fit to be shown; and the one error of everything that comes from elsewhere."""

import difflib
import re
import unicodedata
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

QUOTED = 200
"""The letters of a foreign text that a message quotes at most."""

REFUSAL = 500
"""The letters of what a library says that a message quotes at most: such a refusal is read whole."""

SENTENCE = 800
"""The letters that are kept of what a message says is wrong, whatever it quotes."""

# What moves a cursor, changes colours or the direction of writing, or is no character at all. Tabs and newlines stay.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


class CannotRead(ValueError):
    """Something from elsewhere that cannot be taken; the message says what was found and what to do.

    wrong   what was expected and what came
    file    the file that it stands in, or None
    field   the key, tensor or option that is wrong, or ""
    remedy  what to do about it, or ""

    The message is made of all four; what it quotes is cut short and holds no control characters.
    """

    def __init__(self, wrong: str, *, file: str | Path | None = None, field: str = "", remedy: str = "") -> None:
        self.wrong, self.file, self.field, self.remedy = wrong, file, field, remedy
        where = ": ".join(shortened(str(part)) for part in (file, field) if part)
        wrong = shortened(wrong, SENTENCE)
        super().__init__(visible((f"{where}: {wrong}" if where else wrong) + (f"; {remedy}" if remedy else "")))


@contextmanager
def naming(file: str | Path, remedy: str = "") -> Generator[None]:
    """Whatever cannot be read within names the file and the remedy, where it names none."""
    try:
        yield
    except CannotRead as error:
        file, remedy = error.file or file, error.remedy or remedy
        if (error.file, error.remedy) == (file, remedy):
            raise
        raise CannotRead(error.wrong, file=file, field=error.field, remedy=remedy) from error


@contextmanager
def reading_with(library: str, *, file: str | Path | None = None, field: str = "", remedy: str = "") -> Generator[None]:
    """Whatever a library raises over what others wrote becomes one sentence, which names the file, field and remedy.

    Only calls of the library belong within: an error of ours stays what it is.
    """
    try:
        yield
    except CannotRead:
        raise
    # Broken files make a library raise whatever comes first; one that is written in Rust panics, which is no Exception.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CannotRead(f"{library} cannot read it ({told(error)})", file=file, field=field, remedy=remedy) from error


def told(error: BaseException) -> str:
    """The kind of an error and what it says, in one line of some 500 letters at most."""
    words = ""
    # The words of an error may themselves be an error.
    with suppress(Exception):
        words = shortened(one_line(str(error)), REFUSAL)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def visible(text: str) -> str:
    """The text without what a terminal would obey: each control character, and each lone surrogate, becomes one mark.

    >>> visible("llama\\x1b[31m")
    'llama\N{REPLACEMENT CHARACTER}[31m'
    """
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """The visible text on one line, each run of blanks as one."""
    return " ".join(visible(text).split())


def quoted(value: Any, most: int = QUOTED) -> str:
    """A value as a message quotes it: its repr, visible, of some 200 letters at most, whatever its size.

    >>> quoted("a" * 1000, most=20)
    "'aaaaaaaaa... (1000 letters)"
    """
    if isinstance(value, (str, bytes)) and len(value) > most:
        return f"{one_line(repr(value[:most]))[: most // 2]}... ({len(value)} letters)"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**most:
        return f"a number of more than {most} digits"
    if isinstance(value, (list, tuple, dict, set)) and len(value) > most:
        return f"a {type(value).__name__} of {len(value)} items"
    return shortened(one_line(repr(value)), most)


def near(word: object, known: Collection[str] | Mapping[str, str], listed: str = "") -> str:
    """A hint at the known word that is nearest, or nothing; a mapping says what to give for each word.

    listed  what lists all that is known, where it is too much for a message

    >>> near("Rotery", ["alibi", "rotary"])
    "; did you mean 'rotary'?"
    """
    said = known if isinstance(known, Mapping) else {name: name for name in known}
    lowered = {name.lower(): meant for name, meant in said.items()}
    close = difflib.get_close_matches(str(word).lower(), lowered, 1)
    hint = f"; did you mean '{lowered[close[0]]}'?" if close else ""
    return f"{hint or ';'} {listed} has all" if listed else hint


def shortened(text: str, most: int = QUOTED) -> str:
    """The text, or its beginning where it is longer than a message should quote."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def markdown(text: str) -> str:
    """The text as Markdown shows it letter by letter, in a sentence or in the cell of a table."""
    plain = re.sub(r"([\\`*_{}\[\]<>|~&$]|^[-+=#])", r"\\\1", one_line(unicodedata.normalize("NFC", text)))
    # At the beginning of a line this would number a list.
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", plain)


def markdown_code(text: str) -> str:
    """The text as Markdown shows code, within a line."""
    plain = one_line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    return f"{fence} {plain} {fence}" if len(fence) > 1 else f"`{plain}`"
