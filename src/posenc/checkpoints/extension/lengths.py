"""How long a model's texts may be now, and how long they were before its config scaled them: one meaning for both.

`max_position_embeddings` is the one in some configs (Qwen2.5's recipe of YaRN) and the other in most (Llama 3.1,
gpt-oss, Phi-3), so the two lengths are read from the schedule, and never from that key alone.
"""

from dataclasses import dataclass
from typing import Any

from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.schedules import Schedule
from posenc.schedules.linear import Linear
from posenc.schedules.llama3 import Llama3
from posenc.schedules.longrope import LongRoPE


@dataclass(frozen=True)
class Served:
    """What a model serves before it is stretched.

    served    the length that its config's scaling reaches; without scaling, its trained length (tokens)
    original  its length before any scaling (tokens)
    words     how the two were found, in a sentence
    """

    served: int
    original: int
    words: str


def served_by(schedule: Schedule | None, longest: int) -> Served:
    """What a model serves whose rotary has this schedule.

    longest  tokens: `max_position_embeddings`, or what the architecture calls it

    A factor is target length / trained length, so a schedule that names the length before it reaches factor times that.
    Of Llama 3's and LongRoPE's it is not (Llama 3.2 goes from 8,192 tokens to 131,072 by a factor of 32): there
    `longest` counts, unless it is the length before. Linear scaling names no length: `longest` is what it reaches, as
    in released models (Gemma 3, DeepSeek Coder).

    Raises CannotRead where the length before scaling is beyond `longest`.

    >>> from posenc.schedules import YaRN
    >>> served_by(YaRN(4, trained_length=32768), 32768).served
    131072
    >>> served_by(YaRN(4, trained_length=32768), 131072).served
    131072
    """
    inside: Any = schedule
    while hasattr(inside, "inner"):
        inside = inside.inner
    if inside is None:
        return Served(longest, longest, f"The model serves the {longest:,} tokens that it was trained on.")
    name = inside.spec_name
    factor, before = (getattr(inside, option, None) for option in ("factor", "trained_length"))
    if before is not None and before > longest:
        raise CannotRead(
            f"its {name} starts from {before:,} tokens (original_max_position_embeddings), and it is said to serve "
            f"{longest:,} (max_position_embeddings), which is less; correct the one that is wrong"
        )
    if isinstance(inside, Linear):
        original = max(1, round(longest / inside.factor))
        how = f"{name} by {inside.factor:g} names no length, so {original:,} before it are that divided by the factor"
        return Served(longest, original, f"The model serves {longest:,} tokens now, as its config says; {how}.")
    if factor is None or before is None:
        return Served(longest, longest, f"The model serves {longest:,} tokens now, as its config says, by {inside}.")
    reached = longest if isinstance(inside, (Llama3, LongRoPE)) and longest > before else round(before * factor)
    how = f"it had {before:,} before its {name} by {factor:g}"
    said = f", and max_position_embeddings says {longest:,}" if longest not in (before, reached) else ""
    return Served(reached, before, f"The model serves {reached:,} tokens now: {how}{said}.")
