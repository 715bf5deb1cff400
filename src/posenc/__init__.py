"""posenc: positional encodings for PyTorch, exact and behind one interface, and a laboratory that measures them.

Every public name is imported at its first use, so that `import posenc` costs nothing and needs nothing.
Type checkers and editors read `__init__.pyi`.
"""

import importlib
import importlib.util
import pkgutil
import sys
from typing import Any

__version__ = "0.2.0"

HOMES = {
    "Attention": "model.attention", "Block": "model.block", "Cache": "cache", "Compose": "encoding.base",
    "Decoder": "model.decoder", "Encoder": "model.encoder", "EncoderDecoder": "model.encoder_decoder",
    "Encoding": "encoding.base", "Keys": "encoding.keys", "Mask": "tokens.masks", "OnHeads": "encoding.chosen_heads",
    "Positions": "tokens.positions", "Shape": "encoding.base", "Config": "model.config",
    "TokenPositionEmbedding": "model.embedding", "build": "catalogue", "chosen_weights": "model.chosen_weights",
    "eject": "standalone", "hand_out": "hand_outs", "names": "catalogue", "preset": "specs.presets",
    "register": "checkpoints.live.register", "scaled_dot_product_attention": "kernels.reference",
}  # fmt: skip
"""Public names, and the modules that they come from."""
MODULES = {"masks": "tokens.masks", "presets": "specs.presets"}
"""Modules that are public under a short name, and where they are."""
STAR_IMPORTS = ("coordinate_maps", "hand_outs", "masks", "parallel", "presets", "schedules", "testing")
"""The modules that `from posenc import *` imports: they need PyTorch alone."""


def __getattr__(name: str) -> Any:
    """Import a public name, an encoding by its class name (posenc.Rotary), or a module (posenc.kernels)."""
    if name in HOMES:
        return getattr(importlib.import_module(f"posenc.{HOMES[name]}"), name)
    if name in MODULES:
        return importlib.import_module(f"posenc.{MODULES[name]}")
    if name == "__all__":
        return sorted({*__dir__()} - {*modules()} | {*STAR_IMPORTS})
    # `from posenc import cli` comes here too, and must not import torch.
    if name[:1].isupper():
        from posenc.catalogue import ENCODINGS

        if name in (names := ENCODINGS.class_names):
            return ENCODINGS[names[name]]
    if not name.startswith("_") and importlib.util.find_spec(f"posenc.{name}"):
        return importlib.import_module(f"posenc.{name}")
    from posenc.specs.words import class_hint

    hint = class_hint(name, [*HOMES])
    # `from posenc import PositionalEncoding` comes here too, and Python hides the words of an AttributeError.
    if hint and sys._getframe(1).f_code.co_name == "_handle_fromlist":
        raise ImportError(f"cannot import name '{name}' from 'posenc'{hint}")
    raise AttributeError(f"module 'posenc' has no attribute '{name}'{hint}")


def modules() -> list[str]:
    """Return the names of the modules and packages directly below posenc."""
    return [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]


def __dir__() -> list[str]:
    from posenc.catalogue import ENCODINGS

    return sorted([*HOMES, *MODULES, *modules(), *ENCODINGS.class_names])
