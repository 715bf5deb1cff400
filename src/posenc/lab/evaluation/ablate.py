"""Ablation at test time: the loss of a trained model when its positions are removed or changed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from posenc.foreign import CannotRead
from posenc.lab.evaluation.evaluate import TEXT_BYTES, exact_match, held_out_bits
from posenc.lab.experiments.models import without_position
from posenc.lab.experiments.places import eval_places
from posenc.tokens.positions import Positions


def shuffle_positions(at: Positions) -> Positions:
    """Shuffle the coordinates, with one fixed permutation for each length; causality stays."""
    order = torch.randperm(at.tokens, generator=Generator().manual_seed(at.tokens))
    return at.with_coords(at.coords[:, order])


def swap_neighbours(at: Positions) -> Positions:
    """Swap neighbouring coordinates: 1, 0, 3, 2, ..."""
    order = torch.arange(at.tokens)
    pairs = at.tokens // 2 * 2
    order[:pairs] = order[:pairs].view(-1, 2).flip(1).flatten()
    return at.with_coords(at.coords[:, order])


def shift_positions(offset: int) -> Callable[[Positions], Positions]:
    """A function that shifts every coordinate by `offset`: nothing changes for a relative encoding."""
    return lambda at: at.with_coords(at.coords + offset)


def ablate(run: Any) -> dict[str, float | None]:
    """The score at the trained length with positions intact, removed, shuffled, shifted and swapped.

    Exact match, for text bits per byte. None where an encoding refuses (a shift past the end of a learned table).
    """
    experiment, task = run.experiment, run.task
    length, evaluation_place = experiment.train_length, eval_places(experiment)

    def score(change: Callable[[Positions], Positions] = lambda at: at, model: nn.Module = run.model) -> float | None:
        def place(ids: Tensor, at: Positions | None = None) -> Positions:
            return change(evaluation_place(ids, at))

        try:
            if task.in_bits:
                return held_out_bits(model, task, length, total=TEXT_BYTES // 4, place=place)
            return exact_match(model, task, length, rows=256, shortest=length, place=place).exact_match
        except CannotRead:
            # An unreadable text, not an encoding that refuses.
            raise
        except ValueError:
            return None

    return {
        "intact": score(),
        "removed": score(model=without_position(run.model, experiment, task)),
        "shuffled": score(shuffle_positions),
        "shifted": score(shift_positions(max(task.tokens(length) // 2, 1))),
        "swapped": score(swap_neighbours),
    }
