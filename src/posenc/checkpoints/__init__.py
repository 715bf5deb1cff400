"""Real checkpoints: read which position encoding a model has, run it through our modules, convert it, extend it.

Names are imported at first access; transformers, gguf and safetensors where they are needed.
"""

import importlib

HOMES = {
    "Layer": "vocabulary.reading",
    "Part": "vocabulary.reading",
    "Reading": "vocabulary.reading",
    "attach": "live.attach",
    "detach": "live.attach",
    "inspect": "inspection.inspect",
    "movable": "live.moving_keys",
    "rebuild": "conversion.rebuild",
    "stream": "live.streaming",
    "streamed_losses": "measures.perplexity",
}

__all__ = sorted(HOMES)


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module 'posenc.checkpoints' has no attribute '{name}'")
    return getattr(importlib.import_module(f"posenc.checkpoints.{HOMES[name]}"), name)
