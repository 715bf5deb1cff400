"""Where the tokens of a batch stand, in training and at evaluation: as they are counted, or where a map puts them."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from torch import Generator, Tensor

from posenc.coordinate_maps import CoordinateMap, map_of
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.tasks import Batch
from posenc.tokens.positions import Positions

Places: TypeAlias = Callable[[Tensor, Positions | None], Positions]
"""From the ids [B, T] that a model reads, and where their task puts them, to where they stand."""


def counted(ids: Tensor, at: Positions | None = None) -> Positions:
    """Where their task puts them, or 0, 1, 2, ..."""
    return Positions.count(ids.shape[1], device=ids.device) if at is None else at


def in_training(experiment: Experiment, step: int) -> Places:
    """The places of one step. What is random is another draw for each row and step, from the seed and the step alone.

    So a resumed run goes on as if nothing had happened, and the data are the same with every map.
    """
    if experiment.map is None:
        return counted
    return mapped(map_of(experiment.map), Generator().manual_seed(experiment.seed * 1_000_000 + step))


def at_evaluation(experiment: Experiment) -> Places:
    """The places of held-out sequences: those of a map for them, or what the trained map takes there.

    What is random is the same at every call.
    """
    if experiment.test_map is not None:
        return mapped(map_of(experiment.test_map))
    if experiment.map is None:
        return counted
    evaluated = map_of(experiment.map).evaluated()
    return counted if evaluated is None else mapped(evaluated)


def placed(batch: Batch, place: Places) -> Batch:
    """The batch with its tokens where they stand, so that some of its rows stand where they did among all."""
    at = place(batch.ids, batch.positions)
    source_at = None if batch.source is None else place(batch.source, batch.source_positions)
    return replace(batch, positions=at, source_positions=source_at)


def mapped(by: CoordinateMap, generator: Generator | None = None) -> Places:
    return lambda ids, at=None: by(counted(ids, at), ids, generator=generator)
