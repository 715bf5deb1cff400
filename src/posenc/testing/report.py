"""What came out: verdicts, their words, and the rows of a test report."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.testing.contract import KnownGap, NoMeaning, StaleGap, first_line, gaps_of, name_of, sentence
from posenc.testing.promises import PROMISES
from posenc.testing.subjects import Source, Subject


@dataclass(frozen=True)
class Verdict:
    """What came out of one promise for one subject.

    kept     whether the promise is kept; None where it has no meaning for the subject
    gap      the reason of the gap that the encoding declares for it, or None
    message  the first failure, or why there is no meaning; empty when all is well
    """

    subject: str
    promise: str
    kept: bool | None
    gap: str | None = None
    message: str = ""

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


def check(subject: "Subject | Source", promises: Iterable[str | Callable[..., None]] | None = None) -> list[Verdict]:
    """Hold a subject to promises (default: all) and say what came out; nothing is raised for a broken one.

    promises  promises or their names
    Raises ValueError for an unknown promise, and for a spec, class or factory that builds nothing.

    >>> [verdict.word for verdict in check("alibi", ["has_a_source", "every_parameter_learns"])]
    ['kept', 'no meaning']
    """
    subject = Subject.of(subject)
    gaps = gaps_of(subject)
    verdicts = []
    for hold in PROMISES if promises is None else map(sentence, promises):
        name = name_of(hold)
        gap = gaps.get(name)
        try:
            hold(subject)
            verdicts.append(Verdict(subject.name, name, True))
        except NoMeaning as reason:
            verdicts.append(Verdict(subject.name, name, None, gap, str(reason)))
        except KnownGap as reason:
            verdicts.append(Verdict(subject.name, name, False, gap, str(reason)))
        except StaleGap as error:
            verdicts.append(Verdict(subject.name, name, True, gap, str(error)))
        except Exception as error:
            verdicts.append(Verdict(subject.name, name, False, None, first_line(error)))
    return verdicts


def cases(
    subjects: Iterable["Subject | Source"], promises: Iterable[str | Callable[..., None]] | None = None
) -> list[Any]:
    """Every promise for every subject as parameters for pytest.mark.parametrize("promise, subject", ...).

    They are made without building anything, so that a broken encoding fails its tests and not their collection.
    """
    import pytest

    chosen = PROMISES if promises is None else [sentence(one) for one in promises]
    return [
        pytest.param(hold, subject, id=f"{name_of(hold)}-{subject}")
        for subject in map(Subject.of, subjects)
        for hold in chosen
    ]


def describe(verdicts: Sequence[Verdict]) -> str:
    """Verdicts as a table for people: one line for each promise, and a count at the end.

    >>> print(describe(check("none", ["has_a_source"])))
    none
      kept        has a source
    1 promise: 1 kept
    """
    lines: list[str] = []
    last = None
    for verdict in verdicts:
        if verdict.subject != last:
            lines.append(verdict.subject)
            last = verdict.subject
        lines.append(f"  {verdict.word:<10}  {verdict.promise.replace('_', ' ')}")
        lines.extend(textwrap.wrap(verdict.message, 100, initial_indent=" " * 14, subsequent_indent=" " * 14))
    counts = {
        word: sum(v.word == word for v in verdicts)
        for word in ("kept", "broken", "known gap", "stale gap", "no meaning")
    }
    total = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    lines.append(f"{len(verdicts)} promise{'' if len(verdicts) == 1 else 's'}: {total}")
    return "\n".join(lines)
