"""Ablation at test time: what a trained model loses when its positions are taken away or changed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from posenc.foreign import CannotRead
from posenc.lab.evaluation.evaluate import TEXT_BYTES, exact_match, held_out_bits
from posenc.lab.experiments.models import without_position
from posenc.lab.experiments.places import at_evaluation
from posenc.tokens.positions import Positions


def shuffled(at: Positions) -> Positions:
    """The same coordinates dealt out in a random order (always the same one for a length); causality stays."""
    order = torch.randperm(at.tokens, generator=Generator().manual_seed(at.tokens))
    return at.with_coords(at.coords[:, order])


def swapped(at: Positions) -> Positions:
    """Neighbours change places: 1, 0, 3, 2, ..."""
    order = torch.arange(at.tokens)
    pairs = at.tokens // 2 * 2
    order[:pairs] = order[:pairs].view(-1, 2).flip(1).flatten()
    return at.with_coords(at.coords[:, order])


def shifted(by: int) -> Callable[[Positions], Positions]:
    """Every coordinate moved by `by` positions: nothing changes for a relative encoding."""
    return lambda at: at.with_coords(at.coords + by)


def ablate(run: Any) -> dict[str, float | None]:
    """The score at the trained length with positions intact, removed, shuffled, shifted and swapped.

    Exact match, for text bits per byte. None where an encoding refuses (a shift past the end of a learned table).
    """
    experiment, task = run.experiment, run.task
    length, standing = experiment.train_length, at_evaluation(experiment)

    def score(change: Callable[[Positions], Positions] = lambda at: at, model: nn.Module = run.model) -> float | None:
        def place(ids: Tensor, at: Positions | None = None) -> Positions:
            return change(standing(ids, at))

        try:
            if task.in_bits:
                return held_out_bits(model, task, length, total=TEXT_BYTES // 4, place=place)
            return exact_match(model, task, length, rows=256, shortest=length, place=place).exact_match
        except CannotRead:
            # The text, which is no refusal of the encoding's.
            raise
        except ValueError:
            return None

    return {
        "intact": score(),
        "removed": score(model=without_position(run.model, experiment, task)),
        "shuffled": score(shuffled),
        "shifted": score(shifted(max(task.tokens(length) // 2, 1))),
        "swapped": score(swapped),
    }
