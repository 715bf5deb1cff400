"""Measure a trained model further: with other encodings around its weights, and its held-out loss."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator

from posenc.lab.evaluation.evaluate import SEED, scores_at_length
from posenc.lab.experiments.models import replace_encoding
from posenc.lab.experiments.places import eval_places
from posenc.lab.runs.train import Run, answer_loss

HELD_OUT_SEQUENCES = 512
"""The number of sequences of a held-out loss."""


def scores_around(run: Run, specs: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the scores of a trained model, untuned, with other encodings: by name, at all its lengths.

    specs  the encodings by name; {factor} stands for the length as a multiple of the trained one, {twice} for
           twice that
    """
    train_length = run.experiment.train_length
    rows_by_name = {}
    for name, spec in specs.items():
        rows = []
        for length in (train_length, *run.experiment.test_lengths):
            factor = length / train_length
            full_spec = spec.format(factor=factor, twice=2 * factor)
            model = replace_encoding(run.model, run.experiment, run.task, full_spec)
            rows.append(scores_at_length(run, length, model))
        rows_by_name[name] = rows
    return rows_by_name


@torch.inference_mode()
def held_out_loss(run: Run) -> list[dict[str, Any]]:
    """Return the loss (nats) of the answers in held-out sequences of the trained length."""
    length, device = run.experiment.train_length, run.experiment.device
    batch = run.task.batch(length, HELD_OUT_SEQUENCES, Generator().manual_seed(SEED + length)).to(device)
    loss = answer_loss(run.model.eval(), batch, eval_places(run.experiment))
    return [{"length": length, "loss": float(loss)}]
