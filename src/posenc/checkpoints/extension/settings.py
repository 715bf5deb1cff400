"""The settings of `posenc extend`."""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

OPTION_NAMES = {"factors": "longrope-factors", "methods": "method"}
"""Settings whose command-line option has another name."""

COMMON_SETTINGS = ("path", "factor", "methods", "measures", "lengths", "dtype", "device")
"""The settings of every run; each measure and each kind of stretch reads others of its own."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run. The same settings, except `alterable` ones, continue the run of a folder.

    path      a folder, a GGUF file, or a model of the hub as owner/name
    factor    target length / the length that the model serves now (unitless, above 1)
    methods   methods to stretch the model or to use the original one; or "all"
    measures  the first one decides; none: the default measures that fit the model
    text      files; without any, the Python language reference
    lengths   more lengths to measure at, besides the trained one, some in between, and the target (tokens)
    start     the first token of the first window; None: 2000 where the text is long enough
    samples   the number of windows, documents or trials; None: the measure's own number
    chunk     how many tokens go through a decoder at once
    dtype     of the weights: bfloat16 takes half the memory, and on processors that multiply it, less time
    device    cpu, cuda, cuda:1, mps, or auto: spread over GPUs, CPU and disk
    cache     where keys are kept: device, or cpu, from where they go to a CUDA device layer by layer
    factors   a JSON file with the searched factors of longrope
    replace   whether another schedule replaces the model's own
    """

    alterable: ClassVar = frozenset({"methods", "measures", "lengths"})
    """The settings that may change in the folder of a run, because no pass depends on them."""

    path: str
    factor: float
    methods: tuple[str, ...] = ("all",)
    measures: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()
    start: int | None = None
    samples: int | None = None
    chunk: int = 1024
    dtype: str = "float32"
    factors: str | None = None
    replace: bool = False
    device: str = "cpu"
    cache: str = "device"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise ValueError(
                f"the factor is target length / the length served now and must be above 1, got {self.factor:g}"
            )
        for name, low in {"samples": 1, "chunk": 1}.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} must be {low} or more, got {value}")
        if self.start is not None and self.start < 0:
            raise ValueError(f"start counts tokens of the text from 0, got {self.start}")

    def changed_fields(self) -> Iterator[str]:
        """Yield the names of the settings without their default value."""
        for setting in fields(self)[1:]:
            if getattr(self, setting.name) != setting.default:
                yield setting.name

    def command(self, out: Path) -> str:
        """Return the command line with these settings."""
        words = ["posenc", "extend", self.path]
        for name in self.changed_fields():
            value = getattr(self, name)
            values = [] if value is True else value if isinstance(value, tuple) else [value]
            if name in ("methods", "measures"):
                values = [",".join(values)]
            option = OPTION_NAMES.get(name, name).replace("_", "-")
            words += [f"--{option}", *(f"{item:g}" if isinstance(item, float) else str(item) for item in values)]
        return shlex.join([*words, "--out", str(out)])
