"""`posenc bench`: what encodings cost."""

import importlib
import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

import posenc
from posenc.cli.options import Names, Paths, Positional, Wholes, taking
from posenc.foreign import quoted


@dataclass
class Bench:
    """Measure what encodings cost, beside other libraries.

    Example: posenc bench rotation attention --shapes quick --out runs/bench

    Costs stand beside the limit of this machine, other libraries, and the goals of the project. The benchmark belongs
    to the repository: this runs from a checkout (pip install -e .). Results are checked against
    float64 before they are timed; the exit code is 1 where one of ours is wrong. --compare measures nothing.
    """

    what: Positional[Names] = ()
    """rotation, attention, adding, decoding, models, gpu, startup, memory, weights. Default: all."""
    shapes: Annotated[str, taking("NAME")] = "quick"
    """quick: the decisive shapes, in minutes. full: all of them."""
    threads: Wholes = (1,)
    """Numbers of threads to time with: 1 is timed by the CPU, more by the wall."""
    peers: bool = True
    """Whether other libraries are measured too, where they are installed."""
    compare: Paths = ()
    """Two results (bench.json), before and after: written side by side, as a page and a picture."""
    out: Path = Path("runs/bench")
    """The folder for results (JSON), tables (Markdown) and the plot of cost against length."""
    json: bool = False
    """Print the results as JSON instead of words and tables."""

    def run(self) -> int:
        from posenc import terminal

        report = benchmark("report")
        if self.compare:
            if len(self.compare) != 2 or self.what:
                raise ValueError(
                    f"--compare takes two results, before and after, and measures nothing; got {len(self.compare)}"
                    + (f" and {quoted(self.what[0])} to measure" if self.what else "")
                )
            paths = benchmark("compared").save(*map(report.read, self.compare), self.out)
        else:
            given = {"shapes": self.shapes, "threads": self.threads, "with_peers": self.peers}
            bench = benchmark("run").bench
            result = bench(self.what, **given, show=None if self.json else terminal.tables, doing=terminal.progress)
            paths = report.save(result, self.out)
            if self.json:
                print(json.dumps(result))
                return 0
            terminal.table(*report.goals(result["rows"]), "Goals")
            terminal.say()
            terminal.say("\n".join(["What we lose at:", *report.losses(result["rows"])]))
        for path in paths:
            terminal.say(f"Written: {path}")
        return 0


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
