"""Promises and their verdicts: checks of an encoding, a task or another subject.

A promise is a function whose name is a sentence, and which raises AssertionError if the sentence is false.
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

from posenc.foreign import quote, suggestion

WORDS = ("kept", "broken", "known gap", "stale gap", "no meaning")
"""The possible verdicts on a promise."""


class NoMeaning(unittest.SkipTest):
    """A promise does not apply to this subject; the message says why."""


class KnownGap(unittest.SkipTest):
    """A promise is broken, as the encoding itself declares in `gaps`."""


class StaleGap(AssertionError):
    """A promise is kept although the encoding declares a gap."""


class AdvisedFailure(AssertionError):
    """A promise is broken in a way that has its own advice."""

    def __init__(self, wrong: str, advice: str) -> None:
        super().__init__(wrong)
        self.advice = advice


WITHOUT_DATA = 'make constants with device="cpu", and move them where they are used: .to(x.device)'
"""The advice for code that reads a constant, or mixes it with others, that it made on the meta device."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one promise of one subject.

    kept     whether the promise is kept; None if it does not apply to the subject
    gap      the reason of the gap that the encoding declares for it, or None
    message  the first failure, or why the promise does not apply; empty if it is kept
    advice   what to do about a failure
    """

    subject: str
    promise: str
    kept: bool | None
    gap: str | None = None
    message: str = ""
    advice: str = ""

    @property
    def good(self) -> bool:
        """Whether the verdict needs no action: kept without a gap, broken with one, or no meaning."""
        return self.kept is None or self.kept == (self.gap is None)

    @property
    def word(self) -> str:
        if self.kept is None:
            return "no meaning"
        if self.kept:
            return "kept" if self.gap is None else "stale gap"
        return "broken" if self.gap is None else "known gap"


def expect(holds: bool, words: str) -> None:
    """Raise AssertionError, with these words, unless a condition holds."""
    if not holds:
        raise AssertionError(words)


def promise_name(function: Any) -> str:
    """Return the name of a promise."""
    return function.__name__


def sentence_of(promise: str | Callable[..., None], promises: Mapping[str, Callable[..., None]]) -> Callable[..., None]:
    """Return the promise of a name.

    Raises ValueError for an unknown name.
    """
    name = promise if isinstance(promise, str) else promise_name(promise)
    if name not in promises:
        raise ValueError(f"no promise named {quote(name)}{suggestion(name, promises.keys(), 'posenc check SPEC')}")
    return promises[name]


@dataclass(frozen=True)
class Checker:
    """Checks the promises of a subject.

    subject  the argument of the promises
    name     its name in verdicts
    modules  the names of the modules of its own code
    advice   promise -> what to do if it is broken
    gaps     the gaps that it declares, promise -> reason; None for a subject that cannot declare any
    """

    subject: Any
    name: str
    modules: Collection[str]
    advice: Mapping[str, str]
    gaps: Mapping[str, str] | None = None

    def verdict(self, promise: Callable[..., None]) -> Verdict:
        """Return the verdict on one promise."""
        name = promise_name(promise)
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
            return Verdict(self.name, name, False, None, first_line(error), self.advice_for(name, error))
        return Verdict(self.name, name, True)

    def verdicts(
        self,
        first: Callable[..., None],
        promises: Iterable[Callable[..., None]],
        context_of: Callable[[str], AbstractContextManager[Any]],
    ) -> Iterator[Verdict]:
        """Yield the verdicts on promises, each as soon as it is known. If the first is broken, no other follows.

        context_of  the name of a promise -> a context in which it is tried
        """

        def verdict(promise: Callable[..., None]) -> Verdict:
            with context_of(promise_name(promise)):
                return self.verdict(promise)

        begin = verdict(first)
        if begin.word == "broken":
            yield begin
            return
        for promise in promises:
            yield begin if promise is first else verdict(promise)

    def advice_for(self, promise: str, error: Exception) -> str:
        """Return the advice for a broken promise. An error in the subject's own code comes first, with its line."""
        if isinstance(error, AssertionError):
            return error.advice if isinstance(error, AdvisedFailure) else self.advice[promise]
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
            gap_hint = "" if self.gaps is None else f"; or say why not in `gaps`, under {promise}"
            return f"serve what {place}, refuses{gap_hint}"
        return f"look at {place}; {on_meta or self.advice[promise]}"


def first_line(error: BaseException) -> str:
    text, kind = str(error).strip(), type(error).__name__
    return (text or kind).splitlines()[0] if isinstance(error, AssertionError) else f"{kind}: {text[:300]}"


def describe(verdicts: Sequence[Verdict]) -> str:
    """Return verdicts as a table: one line for each promise, and a count at the end.

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
    return "\n".join([*lines, verdict_counts(verdicts)])


def verdict_counts(verdicts: Sequence[Verdict]) -> str:
    """Return the number of promises with each verdict.

    >>> from posenc.testing import check
    >>> verdict_counts(check("none", ["has_a_source"]))
    '1 promise: 1 kept'
    """
    counts = Counter(verdict.word for verdict in verdicts)
    return f"{len(verdicts)} promise{'s' * (len(verdicts) != 1)}: " + ", ".join(
        f"{counts[word]} {word}" for word in WORDS if counts[word]
    )
