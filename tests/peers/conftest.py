"""Other libraries' encodings are the reference; a known defect of theirs is asserted as a difference."""

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def timm_layer() -> Iterator[Callable[[str], types.ModuleType]]:
    """Import a module of timm.layers without timm itself, which needs a torchvision that fits torch."""
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("timm is not installed; run.py installs it beside the peers extra")
    root = spec.submodule_search_locations[0]
    old_modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "timm"}
    for name, folder in (("timm", root), ("timm.layers", f"{root}/layers")):
        package = types.ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package
    yield lambda name: importlib.import_module(f"timm.layers.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
        del sys.modules[name]
    sys.modules.update(old_modules)
