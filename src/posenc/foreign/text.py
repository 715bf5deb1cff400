"""Make untrusted text safe to print; and CannotRead, the error for all untrusted input."""

import difflib
import re
import unicodedata
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

QUOTE_LENGTH = 200
"""The most letters of an untrusted text in a message."""

ERROR_LENGTH = 500
"""The most letters of a library's error in a message: enough to show it whole."""

SENTENCE_LENGTH = 800
"""The most letters of a fault's description in a message."""

# What moves a cursor, changes colours or the direction of writing, or is no character at all. Tabs and newlines stay.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


class CannotRead(ValueError):
    """Untrusted input that cannot be used; the message says what was found and what to do.

    wrong   what was expected and what was found
    file    the file that holds it, or None
    field   the key, tensor or option that is wrong, or ""
    remedy  what to do about it, or ""

    The message is made of all four; what it quotes is cut short and holds no control characters.
    """

    def __init__(self, wrong: str, *, file: str | Path | None = None, field: str = "", remedy: str = "") -> None:
        self.wrong, self.file, self.field, self.remedy = wrong, file, field, remedy
        where = ": ".join(shorten(str(part)) for part in (file, field) if part)
        wrong = shorten(wrong, SENTENCE_LENGTH)
        super().__init__(visible((f"{where}: {wrong}" if where else wrong) + (f"; {remedy}" if remedy else "")))


@contextmanager
def naming(file: str | Path, remedy: str = "") -> Generator[None]:
    """Add the file and the remedy to every CannotRead of the block that lacks them."""
    try:
        yield
    except CannotRead as error:
        file, remedy = error.file or file, error.remedy or remedy
        if (error.file, error.remedy) == (file, remedy):
            raise
        raise CannotRead(error.wrong, file=file, field=error.field, remedy=remedy) from error


@contextmanager
def reading_with(library: str, *, file: str | Path | None = None, field: str = "", remedy: str = "") -> Generator[None]:
    """Turn any error of a library on untrusted input into a CannotRead with the file, field and remedy.

    Put only calls of the library into the block: an error of our own code would be turned as well.
    """
    try:
        yield
    except CannotRead:
        raise
    # A broken file can make a library raise anything; one that is written in Rust panics, which is no Exception.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        wrong = f"{library} cannot read it ({error_text(error)})"
        raise CannotRead(wrong, file=file, field=field, remedy=remedy) from error


def error_text(error: BaseException) -> str:
    """Return the type and message of an error in one line of at most some 500 letters."""
    words = ""
    # The words of an error may themselves be an error.
    with suppress(Exception):
        words = shorten(one_line(str(error)), ERROR_LENGTH)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def visible(text: str) -> str:
    """Return the text with each control character and lone surrogate replaced by one mark, safe for a terminal.

    >>> visible("llama\\x1b[31m")
    'llama\N{REPLACEMENT CHARACTER}[31m'
    """
    return CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """Return the visible text on one line, each run of whitespace as one space."""
    return " ".join(visible(text).split())


def quote(value: Any, length: int = QUOTE_LENGTH) -> str:
    """Return the repr of a value for a message. It has no invisible letters, and at most some 200 whatever its size.

    >>> quote("a" * 1000, length=20)
    "'aaaaaaaaa... (1000 letters)"
    """
    if isinstance(value, (str, bytes)) and len(value) > length:
        return f"{one_line(repr(value[:length]))[: length // 2]}... ({len(value)} letters)"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**length:
        return f"a number of more than {length} digits"
    if isinstance(value, (list, tuple, dict, set)) and len(value) > length:
        return f"a {type(value).__name__} of {len(value)} items"
    return shorten(one_line(repr(value)), length)


def suggestion(word: object, words: Collection[str] | Mapping[str, str], list_command: str = "") -> str:
    """Return a hint at the nearest of the words, or an empty text. A mapping gives the answer for each word.

    list_command  the command that lists all words, if they are too many for a message

    >>> suggestion("Rotery", ["alibi", "rotary"])
    "; did you mean 'rotary'?"
    """
    answers = words if isinstance(words, Mapping) else {name: name for name in words}
    by_lower_case = {name.lower(): answer for name, answer in answers.items()}
    close = difflib.get_close_matches(str(word).lower(), by_lower_case, 1)
    hint = f"; did you mean '{by_lower_case[close[0]]}'?" if close else ""
    return f"{hint or ';'} {list_command} has all" if list_command else hint


def shorten(text: str, length: int = QUOTE_LENGTH) -> str:
    """Return the text, cut if it is too long for a message."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def escape_markdown(text: str) -> str:
    """Return the text escaped for Markdown, for a sentence or the cell of a table."""
    plain = re.sub(r"([\\`*_{}\[\]<>|~&$]|^[-+=#])", r"\\\1", one_line(unicodedata.normalize("NFC", text)))
    # At the beginning of a line this would number a list.
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", plain)


def markdown_code(text: str) -> str:
    """Return the text as inline code of Markdown."""
    plain = one_line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", plain)), default=0))
    return f"{fence} {plain} {fence}" if len(fence) > 1 else f"`{plain}`"
