"""What belongs to the repository and not to the wheel, where the package runs from a checkout: the benchmark."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import posenc


def benchmark(part: str) -> ModuleType:
    """A module of benchmarks/posenc_bench: "run", "report", "compared".

    Raises ValueError where there is no checkout around the package.
    """
    name = "posenc_bench"
    if name not in sys.modules:
        home = Path(posenc.__file__).resolve().parents[2] / "benchmarks" / name / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, home) if home.is_file() else None
        if spec is None or spec.loader is None:
            raise ValueError(
                "the benchmark belongs to the repository, and this posenc was installed without it; clone the "
                "repository and run python3 run.py bench there"
            )
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return importlib.import_module(f"{name}.{part}")
