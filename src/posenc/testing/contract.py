"""What a promise is: its name is a sentence, and it is kept, broken, without meaning, or a declared gap."""

import functools
import unittest
from collections.abc import Callable
from typing import Any

from posenc.foreign import quoted
from posenc.testing.subjects import Source, Subject


class NoMeaning(unittest.SkipTest):
    """A promise says nothing about this subject; the message says why."""


class KnownGap(unittest.SkipTest):
    """A promise is broken, as the encoding itself declares in `gaps`."""


class StaleGap(AssertionError):
    """A promise is kept although the encoding declares a gap."""


SENTENCES: dict[str, Callable[..., None]] = {}
"""Every promise by its name."""


def name_of(function: Any) -> str:
    """The name of a promise."""
    return function.__name__


def promise(hold: Callable[[Subject], None]) -> Callable[..., None]:
    """Make a promise of a function: it takes whatever makes a subject, and knows about declared gaps."""

    @functools.wraps(hold)
    def kept(subject: "Subject | Source") -> None:
        subject = Subject.of(subject)
        reason = gaps_of(subject).get(name_of(hold))
        if reason is None:
            return hold(subject)
        try:
            hold(subject)
        except NoMeaning:
            raise
        except Exception as error:
            raise KnownGap(f"known gap: {reason} ({first_line(error)})") from error
        if all(name_of(hold) not in encoding.gaps for encoding in subject.build()[0]):
            # What is around an encoding, as on(...) is, may close a gap that it has alone.
            return None
        raise StaleGap(f"{subject} declares a gap in {name_of(hold)} ({reason}), but keeps it; delete it from `gaps`")

    SENTENCES[name_of(hold)] = kept
    return kept


def sentence(promise: str | Callable[..., None]) -> Callable[..., None]:
    """The promise of a name.

    Raises ValueError for a name that is none.
    """
    name = promise if isinstance(promise, str) else name_of(promise)
    if name not in SENTENCES:
        raise ValueError(f"no promise named {quoted(name)}; there are: {', '.join(SENTENCES)}")
    return SENTENCES[name]


def gaps_of(subject: Subject) -> dict[str, str]:
    """The gaps that its encodings declare: promise -> reason.

    Raises ValueError for a gap in what is no promise.
    """
    gaps: dict[str, str] = {}
    for encoding in subject.encodings():
        for name, reason in encoding.gaps.items():
            if name not in SENTENCES:
                raise ValueError(
                    f"{encoding} declares a gap in '{name}', which is no promise; there are: {', '.join(SENTENCES)}"
                )
            gaps[name] = reason
    return gaps


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return (
        (text.splitlines()[0] if text else type(error).__name__)
        if isinstance(error, AssertionError)
        else f"{type(error).__name__}: {text[:300]}"
    )
