"""What an encoding costs, beside the same model without position: parameters, cache, a layer's forward, a step."""

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
from posenc.lab.experiments.models import learned_by_encodings, logits_of, model_of
from posenc.lab.experiments.recipes import hints
from posenc.lab.runs.train import one_step, start
from posenc.lab.tasks import task_of
from posenc.specs import syntax

FILE = "costs.json"

PLAIN = "none"
"""The unit: the same layer, and the same model, without position."""

DIM, HEADS = 512, 8
"""The layer whose forward is timed, on the longest sequence that the board tests."""

BYTES = 2
"""Of a number in the cache: bfloat16."""

ROUNDS = 7


@dataclass(frozen=True)
class Cost:
    """What one encoding costs.

    spec          the encoding, as summaries name it
    parameters    of its own, in the board's small model
    cache_bytes   what a layer of width 512 remembers of a token, keys and values included, in bfloat16
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
"""Label -> what the encoding costs."""

FORM = {"versions": {"*": Any}, "speed?": float, "costs": [form_of(Cost)]}


def measure(spec: str, task: str) -> Cost:
    """The costs of an encoding; its steps are those on a task that it has a meaning for."""
    with torch.random.fork_rng(devices=[]):
        model = model_of(scope.experiment(task, spec, scope.SEARCH_SEED), task_of(task))
        parts = syntax.split(spec)
        forward, plain_forward = fastest(*(forward_of(each, task, len(parts)) for each in (spec, PLAIN)))
        step, plain_step = fastest(steps_of(spec, task), steps_of(PLAIN, task))
        shape = Shape.of(DIM, HEADS, scope.MOST_TOKENS, task_of(task).reads != "encoder")
        shape_hints = hints(shape.max_len, shape.max_len, task_of(task).axes)
        built = [catalogue.build(part, shape, hints=shape_hints) for part in parts]
        # Where the layers differ, their mean.
        beside = statistics.fmean(cache_cost(encoding, shape)["numbers"] for encoding in built)
    return Cost(
        spec=scope.label(spec),
        parameters=learned_by_encodings(model),
        cache_bytes=round(BYTES * (2 * DIM + beside)),
        forward=round(forward / plain_forward, 2),
        step=round(step / plain_step, 2),
    )


def forward_of(spec: str, task: str, layers: int) -> Callable[[], object]:
    """A forward through layers of width 512."""
    made, run = task_of(task), scope.experiment(task, spec, scope.SEARCH_SEED)
    model = model_of(replace(run, dim=DIM, heads=HEADS, layers=layers), made).eval()
    batch = made.batch(max(run.test_lengths), 1, torch.Generator().manual_seed(0))

    @torch.inference_mode()
    def forward() -> object:
        return logits_of(model, batch)

    return forward


def steps_of(spec: str, task: str) -> Callable[[], object]:
    """Some training steps of the board's model."""
    run = start(replace(scope.experiment(task, spec, scope.SEARCH_SEED), curriculum=0.0))

    def some() -> None:
        # As many as there are lengths: each of them once.
        for _ in run.task.lengths(run.experiment.train_length):
            one_step(run)
            run.step += 1

    return some


def fastest(*works: Callable[[], object]) -> list[float]:
    """CPU seconds of some works, each the fastest of several rounds of all in turn; the first round warms up."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for own, work in zip(seconds, works, strict=True):
            begun = time.process_time()
            work()
            own.append(time.process_time() - begun)
    return [min(own[1:]) for own in seconds]


def read(folder: Path) -> Costs:
    """The costs that are kept. Raises CannotRead where the file is damaged."""
    path = folder / FILE
    if not path.exists():
        return {}
    with naming(path, "delete it, and posenc board measures it again"):
        facts = store.read_json(path)
        matches(facts, FORM, file=path)
    return {one["spec"]: Cost(**one) for one in facts["costs"]}


def add(folder: Path, pairs: Sequence[tuple[str, str]], known: Costs) -> None:
    """Measure what has no costs yet, of pairs (task, encoding), and keep it. Raises CannotWrite."""
    todo = {spec: task for task, spec in reversed(pairs) if scope.label(spec) not in known}
    if not todo:
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {scope.label(spec): measure(spec, task) for spec, task in todo.items()}
    finally:
        torch.set_num_threads(threads)
    kept = {**read(folder), **found}
    costs = [asdict(kept[label]) for label in sorted(kept)]
    store.write(folder / FILE, store.sealed({"versions": store.versions(), "costs": costs}, indent=1))
