"""Generation through a KV cache: one token after another, several samples, and texts without an end."""

from posenc.model.generation.choice import Choice
from posenc.model.generation.one_by_one import SLOTS, evaluating, stream, with_more
from posenc.model.generation.prompts import generate
from posenc.model.generation.sinks import Sight, forget_between, sight_for

__all__ = [
    "SLOTS", "Choice", "Sight", "evaluating", "forget_between", "generate", "sight_for", "stream", "with_more",
]  # fmt: skip
