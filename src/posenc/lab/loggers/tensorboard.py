"""Event files for TensorBoard."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.lab.loggers._logger import Logger, require_library, sample_name, scores_of


@dataclass(kw_only=True, eq=False)
class TensorBoard(Logger):
    """Write TensorBoard event files to tensorboard/ in the folder of the run.

    The points are curves over the steps; the scores of the finished run, by_length/..., are curves over the lengths.
    It needs tensorboardX, a hundredth of the size of tensorboard itself.

    Raises ValueError where tensorboardX is not installed. Source: tensorboardX.readthedocs.io.
    """

    def __post_init__(self) -> None:
        self.library = require_library(self, "tensorboardX")

    def begin(self, experiment: Mapping[str, Any], folder: Path) -> None:
        self.writer = self.library.SummaryWriter(logdir=str(folder / "tensorboard"))
        self.writer.add_text("experiment", f"    {json.dumps(experiment)}")
        self.writer.flush()

    def point(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        # Points in memory would be lost with the process.
        self.writer.flush()

    def sample(self, step: int, prompt: str, text: str) -> None:
        # Indented Markdown is a code block.
        code_block = "".join(f"    {line}\n" for line in text.splitlines())
        self.writer.add_text(f"sample/{sample_name(prompt)}", code_block, step)
        self.writer.flush()

    def end(self, record: Mapping[str, Any]) -> None:
        for name, length, value in scores_of(record):
            self.writer.add_scalar(f"by_length/{name}", value, length)
        self.writer.close()
