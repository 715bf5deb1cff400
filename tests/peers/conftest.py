"""Other libraries that ship the same encodings: they judge ours, and where they are wrong ours is asserted."""

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def timm_layer() -> Iterator[Callable[[str], types.ModuleType]]:
    """A module of timm.layers, loaded without the package around it, which needs a torchvision that fits torch."""
    found = importlib.util.find_spec("timm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("timm is not installed; run.py installs it beside the peers extra")
    root = found.submodule_search_locations[0]
    before = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "timm"}
    for name, folder in (("timm", root), ("timm.layers", f"{root}/layers")):
        package = types.ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package
    yield lambda name: importlib.import_module(f"timm.layers.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
        del sys.modules[name]
    sys.modules.update(before)
