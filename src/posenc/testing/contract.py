"""What a promise is: its name is a sentence, and it is kept, broken, without meaning, or a declared gap."""

import functools
from collections.abc import Callable

from posenc.testing.subjects import Source, Subject
from posenc.verdicts import KnownGap, NoMeaning, StaleGap, first_line, name_of, sentence_of

SENTENCES: dict[str, Callable[..., None]] = {}
"""Every promise by its name."""


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


sentence = functools.partial(sentence_of, known=SENTENCES)
"""The promise of a name. Raises ValueError for a name that is none."""


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
