"""The length that a model serves now, and the length before its config scaled it.

`max_position_embeddings` is the length before scaling in some configs (Qwen2.5's recipe of YaRN) and the length now in
most (Llama 3.1, gpt-oss, Phi-3), so both lengths are read from the schedule, and never from that key alone.
"""

from dataclasses import dataclass
from typing import Any

from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.schedules import Schedule
from posenc.schedules.linear import Linear
from posenc.schedules.llama3 import Llama3
from posenc.schedules.longrope import LongRoPE


@dataclass(frozen=True)
class ServedLengths:
    """The lengths of a model before it is stretched.

    current   the length that its config's scaling reaches; without scaling, its trained length (tokens)
    original  its length before any scaling (tokens)
    words     both lengths in a sentence
    """

    current: int
    original: int
    words: str


def served_lengths(schedule: Schedule | None, longest: int) -> ServedLengths:
    """Return the lengths that a model with this schedule serves.

    longest  tokens: `max_position_embeddings`, or its name in the architecture

    A factor is target length / trained length, so a schedule that names the length before it reaches factor times that.
    Llama 3's and LongRoPE's factors are different (Llama 3.2 goes from 8,192 tokens to 131,072 by a factor of 32):
    there `longest` counts, unless it is the length before. Linear scaling names no length: it reaches `longest`, as in
    released models (Gemma 3, DeepSeek Coder).

    Raises CannotRead where the length before scaling is beyond `longest`.

    >>> from posenc.schedules import YaRN
    >>> served_lengths(YaRN(4, trained_length=32768), 32768).current
    131072
    >>> served_lengths(YaRN(4, trained_length=32768), 131072).current
    131072
    """
    inner: Any = schedule
    while hasattr(inner, "inner"):
        inner = inner.inner
    if inner is None:
        return ServedLengths(longest, longest, f"The model serves the {longest:,} tokens that it was trained on.")
    name = inner.spec_name
    factor, original = (getattr(inner, option, None) for option in ("factor", "trained_length"))
    if original is not None and original > longest:
        raise CannotRead(
            f"its {name} starts from {original:,} tokens (original_max_position_embeddings), and it is said to serve "
            f"{longest:,} (max_position_embeddings), which is less; correct the one that is wrong"
        )
    if isinstance(inner, Linear):
        original = max(1, round(longest / inner.factor))
        how = f"{name} by {inner.factor:g} names no length, so {original:,} before it are that divided by the factor"
        return ServedLengths(longest, original, f"The model serves {longest:,} tokens now, as its config says; {how}.")
    words = f"The model serves {longest:,} tokens now, as its config says, by {inner}."
    if factor is None or original is None:
        return ServedLengths(longest, longest, words)
    current = longest if isinstance(inner, (Llama3, LongRoPE)) and longest > original else round(original * factor)
    how = f"it had {original:,} before its {name} by {factor:g}"
    conflict = f", and max_position_embeddings says {longest:,}" if longest not in (original, current) else ""
    return ServedLengths(current, original, f"The model serves {current:,} tokens now: {how}{conflict}.")
