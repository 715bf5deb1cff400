"""Measure the costs of an encoding: parameters, cache, the forward of a layer, and a training step."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from posenc import catalogue
from posenc.encoding.base import Shape
from posenc.foreign import form_of, matches, naming
from posenc.lab import store
from posenc.lab.board import scope
from posenc.lab.evaluation.cache_cost import cache_cost
from posenc.lab.experiments.models import encoding_parameters, logits_of, model_of
from posenc.lab.experiments.recipes import hints
from posenc.lab.runs.train import start, training_step
from posenc.lab.tasks import task_of
from posenc.specs import syntax

FILE = "costs.json"

BASELINE = "none"
"""The unit of times: the same layer, or the same model, without position."""

DIM, HEADS = 512, 8
"""The size of the layer whose forward is timed, on the longest sequence of the board."""

BYTES = 2
"""Bytes of a number in the cache, in bfloat16."""

ROUNDS = 7


@dataclass(frozen=True)
class Cost:
    """The costs of one encoding.

    spec          the encoding, as summaries name it
    parameters    of the encoding, in the board's small model
    cache_bytes   of a token in a layer of width 512, keys and values included, in bfloat16
    forward       CPU time of that layer's forward on the longest tested sequence, its feed-forward part included, in
                  units of `none`
    step          CPU time of a training step of the board's model, in units of `none`
    """

    spec: str
    parameters: int
    cache_bytes: int
    forward: float
    step: float


Costs: TypeAlias = Mapping[str, Cost]
"""Label -> the costs of the encoding."""

FORM = {"versions": {"*": Any}, "speed?": float, "costs": [form_of(Cost)]}


def measure(spec: str, task: str) -> Cost:
    """Measure the costs of an encoding, its training step on a task that it supports."""
    with torch.random.fork_rng(devices=[]):
        model = model_of(scope.experiment(task, spec, scope.SEARCH_SEED), task_of(task))
        parts = syntax.split(spec)
        forward, plain_forward = fastest_times(*(forward_call(name, task, len(parts)) for name in (spec, BASELINE)))
        step, plain_step = fastest_times(training_call(spec, task), training_call(BASELINE, task))
        shape = Shape.of(DIM, HEADS, scope.MAX_TOKENS, task_of(task).reads != "encoder")
        shape_hints = hints(shape.max_len, shape.max_len, task_of(task).axes)
        encodings = [catalogue.build(part, shape, hints=shape_hints) for part in parts]
        # The mean over layers, which may differ.
        extra_numbers = statistics.fmean(cache_cost(encoding, shape)["numbers"] for encoding in encodings)
    return Cost(
        spec=scope.label(spec),
        parameters=encoding_parameters(model),
        cache_bytes=round(BYTES * (2 * DIM + extra_numbers)),
        forward=round(forward / plain_forward, 2),
        step=round(step / plain_step, 2),
    )


def forward_call(spec: str, task: str, layers: int) -> Callable[[], object]:
    """Return a call of the forward of layers of width 512."""
    task_object, experiment = task_of(task), scope.experiment(task, spec, scope.SEARCH_SEED)
    model = model_of(replace(experiment, dim=DIM, heads=HEADS, layers=layers), task_object).eval()
    batch = task_object.batch(max(experiment.test_lengths), 1, torch.Generator().manual_seed(0))

    @torch.inference_mode()
    def forward() -> object:
        return logits_of(model, batch)

    return forward


def training_call(spec: str, task: str) -> Callable[[], object]:
    """Return a call of some training steps of the board's model."""
    run = start(replace(scope.experiment(task, spec, scope.SEARCH_SEED), curriculum=0.0))

    def train_once() -> None:
        # One step for each length.
        for _ in run.task.lengths(run.experiment.train_length):
            training_step(run)
            run.step += 1

    return train_once


def fastest_times(*works: Callable[[], object]) -> list[float]:
    """Return the CPU seconds of each call: the fastest of several rounds, after one to warm up."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for times, work in zip(seconds, works, strict=True):
            start_time = time.process_time()
            work()
            times.append(time.process_time() - start_time)
    return [min(times[1:]) for times in seconds]


def read(folder: Path) -> Costs:
    """Read the costs of a board. Raises CannotRead if the file is damaged."""
    path = folder / FILE
    if not path.exists():
        return {}
    with naming(path, "delete it, and posenc board measures it again"):
        content = store.read_checked_json(path)
        matches(content, FORM, file=path)
    return {cost["spec"]: Cost(**cost) for cost in content["costs"]}


def add(folder: Path, pairs: Sequence[tuple[str, str]], known_costs: Costs) -> None:
    """Measure and write the costs of those (task, encoding) that have none. Raises CannotWrite."""
    todo = {spec: task for task, spec in reversed(pairs) if scope.label(spec) not in known_costs}
    if not todo:
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        new_costs = {scope.label(spec): measure(spec, task) for spec, task in todo.items()}
    finally:
        torch.set_num_threads(threads)
    all_costs = {**read(folder), **new_costs}
    costs = [asdict(all_costs[label]) for label in sorted(all_costs)]
    store.write(folder / FILE, store.dump_json({"versions": store.versions(), "costs": costs}, indent=1))
