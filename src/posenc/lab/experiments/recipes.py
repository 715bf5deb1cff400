"""What to try: the runs of a comparison, the recipe of each task, and which options of an encoding suit it."""

from collections.abc import Sequence
from typing import Any

from posenc import catalogue, checks
from posenc.catalogue import options_of
from posenc.foreign import quoted
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.tasks import Task, task_of
from posenc.specs import syntax

MOST_SEEDS = 10_000

SEARCHED = range(100)
"""The seeds that recipes are searched on: a result on one of them would judge its own choice."""

FIRST_SEED = SEARCHED.stop
"""Evidence begins here."""

A_SECOND = 200_000
"""What a CPU second is in the unit of `cost`, roughly."""

UNBOUNDED = 1_000_000
"""The steps of a run whose end is said in tokens or seconds."""


def recipe(task: str, spec: str | tuple[str, ...], seed: int = FIRST_SEED, **changes: Any) -> Experiment:
    """The settings that learn a task soonest on a small CPU, with changes.

    Where the end of the training is changed to tokens or seconds, it has no other one.
    """
    made = task_of(task)
    chosen: dict[str, Any] = {"task": task, "spec": spec, "seed": seed, **made.recipe}
    if {"tokens", "seconds"} & changes.keys():
        chosen["steps"] = UNBOUNDED
    chosen |= changes
    if "test_lengths" not in chosen:
        chosen["test_lengths"] = longer(made, chosen.get("train_length", Experiment.train_length))
    return Experiment(**chosen)


def trained_length(task: Task) -> int:
    """The length that the recipe of a task trains to."""
    return task.recipe.get("train_length", Experiment.train_length)


def layers_of(spec: str) -> str | tuple[str, ...]:
    """A spec as an experiment holds it: one for all layers, or several that are cycled over them."""
    parts = tuple(syntax.split(spec))
    return parts[0] if len(parts) == 1 else parts


def cost(run: Experiment) -> float:
    """What a run takes, relative to others, roughly: for the order of runs and the time left.

    A step costs as much as some 700 tokens, and its tokens beside that.
    """
    tokens = run.batch * run.made_task().tokens(run.train_length)
    steps = min(run.steps, run.tokens / tokens if run.tokens else run.steps)
    whole = steps * (700 + tokens) * run.layers
    return min(whole, run.seconds * A_SECOND) if run.seconds else whole


def longer(task: Task, train_length: int) -> tuple[int, ...]:
    """The lengths tested beyond a trained one: the multiples that the task says, each longer than what was trained."""
    return tuple(sorted({max(round(train_length * factor), train_length + 1) for factor in task.beyond}))


def comparison(
    encodings: Sequence[str | tuple[str, ...]] = ENCODINGS,
    task_names: Sequence[str] = ("repeat", "text"),
    seeds: int = 1,
    maps: Sequence[str | None] = (None,),
    first_seed: int = FIRST_SEED,
    **changes: Any,
) -> list[Experiment]:
    """Every encoding on every task, under every map, with every seed."""
    if not encodings or not task_names:
        raise ValueError("a comparison needs at least one encoding and one task")
    checks.sizes(seeds=seeds)
    if seeds > MOST_SEEDS:
        raise ValueError(f"seeds must be at most {MOST_SEEDS:,}, got {quoted(seeds, 40)}")
    runs = [
        recipe(task, spec, seed, map=one, **changes)
        for seed in range(first_seed, first_seed + seeds)
        for task in task_names
        for spec in encodings
        for one in maps
    ]
    return list(dict.fromkeys(runs))


def hints(tokens: int, longest: int, axes: int = 1, schedule: Any = None) -> dict[str, dict[str, Any]]:
    """Options that suit a small model trained on sequences of up to `tokens` tokens and asked about up to `longest`.

    axes      how many coordinates a token has
    schedule  the frequency schedule of encodings that have one

    They fill in what a spec leaves open; whatever a spec says stands.
    """
    given: dict[str, dict[str, Any]] = {
        # Rows past the trained length exist, untrained, so that the table can be asked about them.
        "learned": {"max_len": longest},
        "tupe": {"max_len": longest},
        "learned_factorised": {"max_len": longest},
        # Buckets past the trained length would never be trained, and T5 would look like a bad extrapolator.
        "t5_bias": {"max_distance": min(max(tokens - 2, 17), 128), "std": 0.02},
        # A window or chunk that no training sequence fills would leave nothing to map.
        "rerope": {"window": max(tokens // 2, 1)},
        "self_extend": {"window": max(tokens // 2, 1), "group": 4},
        "dual_chunk": {"chunk": max(3 * tokens // 4, 1), "longest": max(tokens, 2)},
    }
    given |= on_axes(axes)
    for name, cls in catalogue.ENCODINGS.items():
        options = options_of(name)
        # A head of 16 channels has 8 pairs; with the usual base half of them would not complete a turn in a short
        # window.
        if (
            tokens <= 128
            and "turn" in cls.doors
            and cls.turns != "queries"
            and "base" in options
            and options["base"].default == 10_000.0
        ):
            given.setdefault(name, {})["base"] = 1000.0
        if schedule is not None and "schedule" in options:
            given.setdefault(name, {})["schedule"] = schedule
    return given


def on_axes(axes: int = 1) -> dict[str, dict[str, Any]]:
    """What makes encodings of any number of axes read a sequence, or a grid of so many."""
    return {name: {"axes": axes} for name in catalogue.names() if "axes" in options_of(name)}


ORIGINAL_BETAS, ORIGINAL_EPS = (0.9, 0.98), 1e-9
"""Of Adam, in the original transformer."""


def original_rate(done: int, dim: int, warmup: int) -> float:
    """The original transformer's learning rate after `done` steps.

    rate(step) = dim^-1/2 min(step^-1/2, step warmup^-3/2), for step = done + 1

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 5.3.
    """
    return dim**-0.5 * min((done + 1) ** -0.5, (done + 1) * warmup**-1.5)
