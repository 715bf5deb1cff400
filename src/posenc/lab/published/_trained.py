"""What is asked of a trained model besides its record: other encodings around its weights, and its held-out loss."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator

from posenc.lab.evaluation.evaluate import SEED, at_length
from posenc.lab.experiments.models import around
from posenc.lab.experiments.places import at_evaluation
from posenc.lab.runs.train import Run, answer_loss

HELD_OUT = 512
"""The sequences that a loss is the mean of."""


def with_each(run: Run, specs: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """The scores of a trained model, untuned, around other encodings: by name, at the trained and every tested length.

    specs  the encodings by name; {factor} in one stands for the length as a multiple of the trained one, {twice} for
           twice that
    """
    trained = run.experiment.train_length
    found = {}
    for name, spec in specs.items():
        rows = []
        for length in (trained, *run.experiment.test_lengths):
            factor = length / trained
            named = spec.format(factor=factor, twice=2 * factor)
            other = around(run.model, run.experiment, run.task, named)
            rows.append(at_length(run, length, other))
        found[name] = rows
    return found


@torch.inference_mode()
def loss_at(run: Run) -> list[dict[str, Any]]:
    """The loss (nats) of what is asked for in held-out sequences of the trained length."""
    length, device = run.experiment.train_length, run.experiment.device
    batch = run.task.batch(length, HELD_OUT, Generator().manual_seed(SEED + length)).to(device)
    loss = answer_loss(run.model.eval(), batch, at_evaluation(run.experiment))
    return [{"length": length, "loss": float(loss)}]
