"""What is asked of a trained model besides its record: other encodings around its weights, and some more training."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, nn

from posenc.lab.evaluation.evaluate import SEED, at_length
from posenc.lab.experiments.models import around
from posenc.lab.experiments.places import at_evaluation
from posenc.lab.runs.train import Run, answer_loss, optimizers_of, train

HELD_OUT = 512
"""The sequences that a loss is the mean of."""


def at_lengths(run: Run, model: nn.Module | None = None) -> list[dict[str, Any]]:
    """The scores at the trained length and at every tested one, of the trained model or of another made from it."""
    return [at_length(run, length, model) for length in (run.experiment.train_length, *run.experiment.test_lengths)]


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


def tuned_to(run: Run, spec: str, steps: int, factor: int = 1) -> list[dict[str, Any]]:
    """The scores of a trained model that has gone on training around another encoding, at every length.

    factor  up to which multiple of the trained length; steps have as many tokens as before
    """
    was = run.experiment
    changes: dict[str, Any] = {
        "train_length": factor * was.train_length,
        "test_lengths": (),
        "batch": max(was.batch // factor, 1),
    }
    changes |= {"steps": steps, "evaluate_every": steps, "cool_down": 0, "curriculum": 0.0}
    experiment = replace(was, spec=spec, **changes)
    model = around(run.model, was, run.task, spec)
    made = {"experiment": experiment, "model": model, "optimizers": optimizers_of(experiment, model)}
    other = train(replace(run, **made, step=0, tokens=0, cpu_s=0.0, curve=[])).model
    return at_lengths(run, other)


@torch.inference_mode()
def loss_at(run: Run) -> list[dict[str, Any]]:
    """The loss (nats) of what is asked for in held-out sequences of the trained length."""
    length, device = run.experiment.train_length, run.experiment.device
    batch = run.task.batch(length, HELD_OUT, Generator().manual_seed(SEED + length)).to(device)
    loss = answer_loss(run.model.eval(), batch, at_evaluation(run.experiment))
    return [{"length": length, "loss": float(loss)}]
