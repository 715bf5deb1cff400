"""Generation through a KV cache: one token after another, several samples, and texts without an end."""

from posenc.model.generation.choice import Choice
from posenc.model.generation.one_by_one import SLOTS, evaluating, stream, with_more
from posenc.model.generation.prompts import apart, together
from posenc.model.generation.sinks import Sight, forget_between

__all__ = [
    "SLOTS", "Choice", "Sight", "apart", "evaluating", "forget_between", "stream", "together", "with_more",
]  # fmt: skip
