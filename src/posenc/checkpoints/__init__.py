"""Real checkpoints: read which position encoding a model has, run it through our modules, convert it, extend it.

Names are imported when they are first asked for; transformers, gguf and safetensors only where they are needed.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

HOMES = {
    "Layer": "reading",
    "Part": "reading",
    "Reading": "reading",
    "attach": "attach",
    "detach": "attach",
    "inspect": "inspect",
}

__all__ = sorted(HOMES)


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'posenc.checkpoints' has no attribute '{name}'")
    return getattr(importlib.import_module(f"posenc.checkpoints.{HOMES[name]}"), name)


class Package(ModuleType):
    """This package: a file that is named after the function in it does not take the function's name."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing posenc.checkpoints.attach binds the file as `attach` here, where people call the function.
        if isinstance(value, ModuleType) and HOMES.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = Package
