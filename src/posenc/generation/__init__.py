"""Generation through a KV cache: one token after another, beams, several samples, drafts, and texts without an end."""

from posenc.generation.choice import Choice
from posenc.generation.one_by_one import SLOTS, evaluating, stream, with_more
from posenc.generation.sinks import Sight, forget_between, sight_for
from posenc.generation.speculative import acceptance
from posenc.generation.ways import generate

__all__ = [
    "SLOTS", "Choice", "Sight", "acceptance", "evaluating", "forget_between", "generate", "sight_for", "stream",
    "with_more",
]  # fmt: skip
