"""The decorator that makes a promise of a test, with declared gaps and hints at lost precision."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posenc.testing.comparisons import RoundingError
from posenc.testing.subjects import TOKENS, Source, Subject, arange, embeddings, on_axes
from posenc.verdicts import AdvisedFailure, KnownGap, NoMeaning, StaleGap, first_line, promise_name, sentence_of

SENTENCES: dict[str, Callable[..., None]] = {}
"""Every promise by its name."""

IN_DOUBLE = "where float64 or whole numbers come in, compute in float64: new tensors too need dtype=torch.float64"
"""Advice for a method that loses precision."""


def promise(test: Callable[[Subject], None]) -> Callable[..., None]:
    """Let a test of a Subject accept any source of a subject and respect declared gaps."""

    @functools.wraps(test)
    def test_subject(subject: "Subject | Source") -> None:
        subject = Subject.from_source(subject)
        reason = declared_gaps(subject).get(promise_name(test))
        if reason is None:
            try:
                return test(subject)
            except RoundingError as error:
                if where := doors_in_single_precision(subject):
                    raise AdvisedFailure(f"{error}; float32 inside {where}", IN_DOUBLE) from error
                raise
        try:
            test(subject)
        except NoMeaning:
            raise
        except Exception as error:
            raise KnownGap(f"known gap: {reason} ({first_line(error)})") from error
        if all(promise_name(test) not in encoding.gaps for encoding in subject.build()[0]):
            # A wrapper, such as on(...), may close a gap that the encoding has alone.
            return None
        raise StaleGap(
            f"{subject} declares a gap in {promise_name(test)} ({reason}), but keeps it; delete it from `gaps`"
        )

    SENTENCES[promise_name(test)] = test_subject
    return test_subject


class SinglePrecisionWatch(TorchDispatchMode):
    """Record whether any operation creates a float32 tensor."""

    has_single = False

    def __torch_dispatch__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.has_single |= isinstance(result, Tensor) and result.dtype == torch.float32
        return result


def doors_in_single_precision(subject: Subject) -> str:
    """Return the names of the methods that compute float64 input in float32; empty if none."""
    net, x, names = subject.net(), embeddings(subject, TOKENS), list[str]()
    at = on_axes(arange(TOKENS), net.axes)
    delta, heads = at.coords[0].double(), x.new_zeros(1, subject.shape.heads, TOKENS, subject.shape.head_dim)
    for encoding in net.layer_encodings:
        inputs = {
            "embed": (x, at),
            "turn": (heads, at, "query"),
            "by_distance": (delta[:, 0] if net.axes == 1 else delta,),
        }
        for door in [door for door in inputs if door in encoding.doors]:
            with SinglePrecisionWatch() as singles, suppress(Exception):
                getattr(encoding, door)(*inputs[door])
            names += [door] * singles.has_single
    return " and ".join(dict.fromkeys(names))


def find_promise(promise: str | Callable[..., None]) -> Callable[..., None]:
    """Return the promise with this name.

    Raises ValueError for an unknown name.
    """
    return sentence_of(promise, SENTENCES)


def declared_gaps(subject: Subject) -> dict[str, str]:
    """Return the gaps that the subject's encodings declare: promise -> reason.

    Raises ValueError for a gap in an unknown promise.
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
