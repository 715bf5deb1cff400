"""The positions of a batch's tokens in training and at evaluation, with or without a coordinate map."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from torch import Generator, Tensor

from posenc.coordinate_maps import CoordinateMap, map_of
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.tasks import Batch
from posenc.tokens.positions import Positions

Place: TypeAlias = Callable[[Tensor, Positions | None], Positions]
"""A function from ids [B, T] and the task's positions to the positions that the model reads."""


def natural(ids: Tensor, at: Positions | None = None) -> Positions:
    """The task's own positions, or 0, 1, 2, ..."""
    return Positions.count(ids.shape[1], device=ids.device) if at is None else at


def train_places(experiment: Experiment, step: int) -> Place:
    """The positions of one training step. Random maps draw for each row and step, from the seed and the step alone.

    So a resumed run draws the same, and the data are the same with every map.
    """
    if experiment.map is None:
        return natural
    return map_places(map_of(experiment.map), Generator().manual_seed(experiment.seed * 1_000_000 + step))


def eval_places(experiment: Experiment) -> Place:
    """The positions of held-out sequences: by the test map, or by the evaluation map of the trained one.

    Random maps draw the same at every call.
    """
    if experiment.test_map is not None:
        return map_places(map_of(experiment.test_map))
    if experiment.map is None:
        return natural
    evaluation_map = map_of(experiment.map).for_evaluation()
    return natural if evaluation_map is None else map_places(evaluation_map)


def with_places(batch: Batch, place: Place) -> Batch:
    """The batch with its positions fixed, so that a part of its rows keeps them."""
    at = place(batch.ids, batch.positions)
    source_at = None if batch.source is None else place(batch.source, batch.source_positions)
    return replace(batch, positions=at, source_positions=source_at)


def map_places(coordinate_map: CoordinateMap, generator: Generator | None = None) -> Place:
    return lambda ids, at=None: coordinate_map(natural(ids, at), ids, generator=generator)
