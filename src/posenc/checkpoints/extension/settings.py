"""What `posenc extend` is asked for."""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

NAMES = {"factors": "longrope-factors", "methods": "method"}
"""Settings whose option has another name."""

OF_ALL = ("path", "factor", "methods", "measures", "lengths", "dtype", "device")
"""What every run reads; of the others, each measure and each way to stretch reads its own."""


@dataclass(frozen=True)
class Settings:
    """What a run is asked for; the same, but for what is `alterable`, goes on from the passes of a folder.

    path      a folder, a GGUF file, or a model of the hub as owner/name
    factor    target length / the length that the model serves now (unitless, above 1)
    methods   ways to stretch, or to use the model as it is; or "all"
    measures  what is measured, the first of which decides; none: what fits the model
    text      files; without any, the Python language reference
    lengths   more lengths to measure at, besides the trained one, some in between, and the target (tokens)
    start     the token of the text that the first window begins with; None: 2000 where the text is long enough
    samples   how many windows, documents or trials are measured; None: as many as the measure takes by itself
    chunk     how many tokens go through a decoder at once
    dtype     of the weights: bfloat16 takes half the memory, and on processors that multiply it, less time
    device    cpu, cuda, cuda:1, mps, or auto: spread over GPUs, CPU and disk
    cache     where it keeps keys: device, or cpu, from where they go to a CUDA device layer by layer
    factors   a JSON file with the searched factors of longrope
    replace   whether another schedule is put in place of the one that the model has
    """

    alterable: ClassVar = frozenset({"methods", "measures", "lengths"})
    """What a finished run can be asked anew in its folder, because no pass depends on it."""

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

    def given(self) -> Iterator[str]:
        """The settings that are not as they are by themselves."""
        for of in fields(self)[1:]:
            if getattr(self, of.name) != of.default:
                yield of.name

    def command(self, out: Path) -> str:
        """The command that asks for this."""
        said = ["posenc", "extend", self.path]
        for name in self.given():
            value = getattr(self, name)
            values = [] if value is True else value if isinstance(value, tuple) else [value]
            if name in ("methods", "measures"):
                values = [",".join(values)]
            option = NAMES.get(name, name).replace("_", "-")
            said += [f"--{option}", *(f"{one:g}" if isinstance(one, float) else str(one) for one in values)]
        return shlex.join([*said, "--out", str(out)])
