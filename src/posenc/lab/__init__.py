"""The laboratory: experiments on encodings, and their results.

Results leave it as tables (`load`), figures (`figures`) and files; see docs/guides/results.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.lab.results import figures as figures
    from posenc.lab.results.frames import load as load


def __getattr__(name: str) -> Any:
    """Import `load` and `figures` on first use: the lab itself needs no torch."""
    if name == "load":
        return importlib.import_module("posenc.lab.results.frames").load
    if name == "figures":
        return importlib.import_module("posenc.lab.results.figures")
    raise AttributeError(f"module 'posenc.lab' has no attribute '{name}'")
