"""Promises and what comes out of them: for whatever is held to some, such as an encoding or a task.

A promise is a function whose name is the sentence, and which raises AssertionError where the sentence is not true.
"""

import textwrap
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from posenc.foreign import near, quoted

WORDS = ("kept", "broken", "known gap", "stale gap", "no meaning")
"""What a promise may come out as."""


class NoMeaning(unittest.SkipTest):
    """A promise says nothing about this subject; the message says why."""


class KnownGap(unittest.SkipTest):
    """A promise is broken, as the encoding itself declares in `gaps`."""


class StaleGap(AssertionError):
    """A promise is kept although the encoding declares a gap."""


class Advised(AssertionError):
    """A promise is broken in a way that has an advice of its own."""

    def __init__(self, wrong: str, advice: str) -> None:
        super().__init__(wrong)
        self.advice = advice


WITHOUT_DATA = 'make constants with device="cpu", and move them where they are used: .to(x.device)'
"""What to do where code reads, or mixes with others, a constant that it made while the default device was meta."""


@dataclass(frozen=True)
class Verdict:
    """What came out of one promise for one subject.

    kept     whether the promise is kept; None where it has no meaning for the subject
    gap      the reason of the gap that the encoding declares for it, or None
    message  the first failure, or why there is no meaning; empty when all is well
    advice   what to do about it, where something is to be done
    """

    subject: str
    promise: str
    kept: bool | None
    gap: str | None = None
    message: str = ""
    advice: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing is to be done: kept without a gap, broken with one, or no meaning."""
        return self.kept is None or self.kept == (self.gap is None)

    @property
    def word(self) -> str:
        if self.kept is None:
            return "no meaning"
        if self.kept:
            return "kept" if self.gap is None else "stale gap"
        return "broken" if self.gap is None else "known gap"


def expect(holds: bool, words: str) -> None:
    """Raises AssertionError, with these words, unless something holds."""
    if not holds:
        raise AssertionError(words)


def name_of(function: Any) -> str:
    """The name of a promise."""
    return function.__name__


def sentence_of(promise: str | Callable[..., None], known: Mapping[str, Callable[..., None]]) -> Callable[..., None]:
    """The promise of a name, among those that are known.

    Raises ValueError for a name that is none.
    """
    name = promise if isinstance(promise, str) else name_of(promise)
    if name not in known:
        raise ValueError(f"no promise named {quoted(name)}{near(name, known.keys(), listed='posenc check SPEC')}")
    return known[name]


@dataclass(frozen=True)
class Held:
    """A subject that is held to promises.

    subject  what the promises are given
    name     how verdicts call it
    modules  the names of the modules of its own code
    advice   what to do about each promise that is broken
    gaps     the gaps that it declares, promise -> reason; None for what cannot declare any
    """

    subject: Any
    name: str
    modules: Collection[str]
    advice: Mapping[str, str]
    gaps: Mapping[str, str] | None = None

    def to(self, promise: Callable[..., None]) -> Verdict:
        """What comes out of one promise."""
        name = name_of(promise)
        gap = None if self.gaps is None else self.gaps.get(name)
        try:
            promise(self.subject)
        except NoMeaning as reason:
            return Verdict(self.name, name, None, gap, str(reason))
        except KnownGap as reason:
            return Verdict(self.name, name, False, gap, str(reason))
        except StaleGap as error:
            return Verdict(self.name, name, True, gap, str(error), "delete it from `gaps`")
        except Exception as error:
            return Verdict(self.name, name, False, None, first_line(error), self.advised(name, error))
        return Verdict(self.name, name, True)

    def to_all(
        self,
        first: Callable[..., None],
        promises: Iterable[Callable[..., None]],
        during: Callable[[str], AbstractContextManager[Any]],
    ) -> Iterator[Verdict]:
        """The verdicts of promises, each as soon as it is known; where the first one is broken, that is all.

        during  gives for the name of a promise a context to be in while it is tried
        """

        def verdict(promise: Callable[..., None]) -> Verdict:
            with during(name_of(promise)):
                return self.to(promise)

        begin = verdict(first)
        if begin.word == "broken":
            yield begin
            return
        for promise in promises:
            yield begin if promise is first else verdict(promise)

    def advised(self, promise: str, error: Exception) -> str:
        """What to do about a broken promise: where the subject's own code raised something, that line comes first."""
        if isinstance(error, AssertionError):
            return error.advice if isinstance(error, Advised) else self.advice[promise]
        on_meta = WITHOUT_DATA if " meta " in str(error) else ""
        steps = [
            (frame.f_code, line)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__name__") in self.modules
        ]
        if not steps:
            return on_meta or self.advice[promise]
        code, line = steps[-1]
        place = f"{code.co_name}, line {line} of {Path(code.co_filename).name}"
        if isinstance(error, (ValueError, NotImplementedError)) and not on_meta:
            declared = "" if self.gaps is None else f"; or say why not in `gaps`, under {promise}"
            return f"serve what {place}, refuses{declared}"
        return f"look at {place}; {on_meta or self.advice[promise]}"


def first_line(error: BaseException) -> str:
    text, kind = str(error).strip(), type(error).__name__
    return (text or kind).splitlines()[0] if isinstance(error, AssertionError) else f"{kind}: {text[:300]}"


def describe(verdicts: Sequence[Verdict]) -> str:
    """Verdicts as a table for people: one line for each promise, and a count at the end.

    >>> from posenc.testing import check
    >>> print(describe(check("none", ["has_a_source"])))
    none
      kept        has a source
    1 promise: 1 kept
    """
    lines: list[str] = []
    for subject, of_subject in groupby(verdicts, lambda verdict: verdict.subject):
        lines.append(subject)
        for verdict in of_subject:
            lines.append(f"  {verdict.word:<10}  {verdict.promise.replace('_', ' ')}")
            lines.extend(textwrap.wrap(verdict.message, 100, initial_indent=" " * 14, subsequent_indent=" " * 14))
    return "\n".join([*lines, total(verdicts)])


def total(verdicts: Sequence[Verdict]) -> str:
    """How many promises came out in which way.

    >>> from posenc.testing import check
    >>> total(check("none", ["has_a_source"]))
    '1 promise: 1 kept'
    """
    counts = Counter(verdict.word for verdict in verdicts)
    return f"{len(verdicts)} promise{'s' * (len(verdicts) != 1)}: " + ", ".join(
        f"{counts[word]} {word}" for word in WORDS if counts[word]
    )
