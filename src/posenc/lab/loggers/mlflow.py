"""Runs of MLflow."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.lab.loggers._logger import Logger, library, sample_name, scores_of

MOST_LETTERS = 500
"""What MLflow keeps of the value of a parameter, in its oldest versions."""


@dataclass(kw_only=True, eq=False)
class MLflow(Logger):
    """Make a run of MLflow, in mlflow.db and mlartifacts/ in the folder of the run, or where MLFLOW_TRACKING_URI says.

    The points are metrics over the steps; the scores of the finished run, by_length.NAME, are metrics over the lengths.

    experiment  the experiment of MLflow that the runs belong to

    Raises ValueError where mlflow is not installed. Source: mlflow.org/docs.
    """

    experiment: str = "posenc"

    def __post_init__(self) -> None:
        self.library = library(self, "mlflow")

    def begin(self, experiment: Mapping[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        store, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not store:
            # A database: MLflow 3.13 and newer refuse to keep runs in plain files.
            store = f"sqlite:///{(folder.absolute() / 'mlflow.db').as_posix()}"
            # What is no number would lie in mlruns/ of the folder that the command was given in.
            artifacts = (folder.absolute() / "mlartifacts").as_uri()
        # A client of our own: the functions of mlflow itself keep one run for the whole process.
        self.client = self.library.MlflowClient(tracking_uri=store)
        there = self.client.get_experiment_by_name(self.experiment)
        home = there.experiment_id if there else self.client.create_experiment(self.experiment, artifacts)
        self.run = self.client.create_run(home, run_name=folder.name).info.run_id
        for name, value in experiment.items():
            self.client.log_param(self.run, name, str(value)[:MOST_LETTERS])

    def point(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def sample(self, step: int, prompt: str, text: str) -> None:
        self.client.log_text(self.run, text, f"samples/{step:06}-{sample_name(prompt)}.txt")

    def end(self, record: Mapping[str, Any]) -> None:
        for name, length, value in scores_of(record):
            self.client.log_metric(self.run, f"by_length.{name}", value, step=length)
        self.client.set_terminated(self.run)
