"""Runs of Weights & Biases."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.lab.loggers._logger import Logger, require_library, sample_name, scores_of


@dataclass(kw_only=True, eq=False)
class WeightsAndBiases(Logger):
    """Write an offline run of Weights & Biases to wandb/ in the folder of the run.

    Nothing goes to a server until you sync it, or set the environment variable WANDB_MODE=online.

    project  the project of the runs

    Raises ValueError where wandb is not installed. Source: docs.wandb.ai.
    """

    project: str = "posenc"

    def __post_init__(self) -> None:
        self.library = require_library(self, "wandb")

    def begin(self, experiment: Mapping[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.run = self.library.init(
            project=self.project,
            name=folder.name,
            dir=str(folder),
            config=dict(experiment),
            mode=os.environ.get("WANDB_MODE", "offline"),
            # One process trains several runs, and a run that was stopped has not called finish.
            reinit="create_new",
        )

    def point(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def sample(self, step: int, prompt: str, text: str) -> None:
        table = self.library.Table(columns=["prompt", "text"], data=[[prompt, text]])
        self.run.log({f"sample/{sample_name(prompt)}": table}, step=step)

    def end(self, record: Mapping[str, Any]) -> None:
        self.run.summary.update({f"{name}/length_{length}": value for name, length, value in scores_of(record)})
        self.run.finish()
