"""What a promise is: its name is a sentence, and it is kept, broken, without meaning, or a declared gap."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.testing.comparisons import Rounded
from posenc.testing.subjects import TOKENS, Source, Subject, count, on_axes, tokens
from posenc.verdicts import Advised, KnownGap, NoMeaning, StaleGap, first_line, name_of, sentence_of

SENTENCES: dict[str, Callable[..., None]] = {}
"""Every promise by its name."""

IN_DOUBLE = "where float64 or whole numbers come in, compute in float64: new tensors too need dtype=torch.float64"
"""What to do about a door that loses digits."""


def promise(hold: Callable[[Subject], None]) -> Callable[..., None]:
    """Make a promise of a function: it takes whatever makes a subject, and knows about declared gaps."""

    @functools.wraps(hold)
    def kept(subject: "Subject | Source") -> None:
        subject = Subject.of(subject)
        reason = gaps_of(subject).get(name_of(hold))
        if reason is None:
            try:
                return hold(subject)
            except Rounded as error:
                if where := single_in(subject):
                    raise Advised(f"{error}; float32 inside {where}", IN_DOUBLE) from error
                raise
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


class Singles(TorchDispatchMode):
    """Notes whether an operation makes a tensor of single precision."""

    found = False

    def __torch_dispatch__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.found |= isinstance(out, Tensor) and out.dtype == torch.float32
        return out


def single_in(subject: Subject) -> str:
    """The doors that compute in float32 although they are given float64; or nothing."""
    net, x, inside = subject.net(), tokens(subject, TOKENS), list[str]()
    at = on_axes(count(TOKENS), net.axes)
    delta, heads = at.coords[0].double(), x.new_zeros(1, subject.shape.heads, TOKENS, subject.shape.head_dim)
    for encoding in net.used:
        given = {
            "embed": (x, at),
            "turn": (heads, at, "query"),
            "by_distance": (delta[:, 0] if net.axes == 1 else delta,),
        }
        for door in [door for door in given if door in encoding.doors]:
            with Singles() as singles, suppress(Exception):
                getattr(encoding, door)(*given[door])
            inside += [door] * singles.found
    return " and ".join(dict.fromkeys(inside))


def sentence(promise: str | Callable[..., None]) -> Callable[..., None]:
    """The promise of a name.

    Raises ValueError for a name that is none.
    """
    return sentence_of(promise, SENTENCES)


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
