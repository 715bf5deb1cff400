"""Generation with a KV cache: token by token, several samples, and endless text in bounded memory."""

from posenc.model.generation.choice import Choice
from posenc.model.generation.one_by_one import SLOTS, append_stream, eval_mode, stream
from posenc.model.generation.prompts import pad_prompts, unpad_texts
from posenc.model.generation.sinks import SinkWindow, evict_between

__all__ = [
    "SLOTS", "Choice", "SinkWindow", "append_stream", "eval_mode", "evict_between", "pad_prompts", "stream",
    "unpad_texts",
]  # fmt: skip
