"""posenc: positional encodings for PyTorch, exact and behind one interface, and a laboratory that measures them.

Every public name is imported when it is first asked for, so that `import posenc` costs nothing and needs nothing.
Type checkers and editors read `__init__.pyi`.
"""

import importlib
from typing import Any

__version__ = "0.2.0"

HOMES = {
    "Attention": "attention",
    "Block": "model",
    "Cache": "cache",
    "Chosen": "kernels.chosen_weights",
    "ChunkStore": "chunk_store",
    "Compose": "encoding",
    "Decoder": "model",
    "Encoder": "model",
    "EncoderDecoder": "model",
    "Encoding": "encoding",
    "Keys": "keys",
    "Mask": "masks",
    "OnHeads": "chosen_heads",
    "Positions": "positions",
    "Shape": "encoding",
    "Sizes": "sizes",
    "TokenPositionEmbedding": "embedding",
    "build": "catalogue",
    "hand_out": "hand_outs",
    "names": "catalogue",
    "preset": "presets",
    "register": "checkpoints.live.register",
    "scaled_dot_product_attention": "kernels.reference",
}
MODULES = ("coordinate_maps", "hand_outs", "masks", "parallel", "presets", "schedules", "testing")


def __getattr__(name: str) -> Any:
    """A public name, or an encoding by its class name (posenc.Rotary), imported now."""
    if name in MODULES:
        return importlib.import_module(f"posenc.{name}")
    if name in HOMES:
        return getattr(importlib.import_module(f"posenc.{HOMES[name]}"), name)
    if name == "__all__":
        return __dir__()
    # `from posenc import terminal` asks here for a module first, which must not cost an import of torch.
    if name[:1].isupper():
        from posenc.catalogue import class_names, find

        if name in (known := class_names()):
            return find(known[name])
    raise AttributeError(f"module 'posenc' has no attribute '{name}'")


def __dir__() -> list[str]:
    from posenc.catalogue import class_names

    return sorted([*HOMES, *MODULES, *class_names()])
