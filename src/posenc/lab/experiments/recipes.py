"""The runs of a comparison, the recipe of each task, and the encodings' options that suit it."""

from collections.abc import Sequence
from typing import Any

from posenc import catalogue, checks
from posenc.catalogue import options_of
from posenc.foreign import quote
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.tasks import Task, task_of
from posenc.specs import syntax

MOST_SEEDS = 10_000

RECIPE_SEEDS = range(100)
"""The seeds of the search for recipes: a result on one of them would be biased."""

FIRST_SEED = RECIPE_SEEDS.stop
"""The first seed of results."""

COST_PER_SECOND = 200_000
"""A CPU second in the unit of `cost`, roughly."""

UNBOUNDED_STEPS = 1_000_000
"""The steps of a run that ends by tokens or seconds."""


def recipe(task: str, spec: str | tuple[str, ...], seed: int = FIRST_SEED, **changes: Any) -> Experiment:
    """The settings that learn a task fastest on a small CPU, with changes.

    With `tokens` or `seconds` among the changes, steps do not end the training.
    """
    built_task = task_of(task)
    settings: dict[str, Any] = {"task": task, "spec": spec, "seed": seed, **built_task.recipe}
    if {"tokens", "seconds"} & changes.keys():
        settings["steps"] = UNBOUNDED_STEPS
    settings |= changes
    if "test_lengths" not in settings:
        settings["test_lengths"] = default_test_lengths(
            built_task, settings.get("train_length", Experiment.train_length)
        )
    return Experiment(**settings)


def recipe_length(task: Task) -> int:
    """The trained length of a task's recipe."""
    return task.recipe.get("train_length", Experiment.train_length)


def layers_of(spec: str) -> str | tuple[str, ...]:
    """Return a spec as an experiment stores it: one for all layers, or a tuple to cycle."""
    parts = tuple(syntax.split(spec))
    return parts[0] if len(parts) == 1 else parts


def cost(run: Experiment) -> float:
    """The rough cost of a run relative to others, for the order of runs and the time left.

    A step costs as much as some 700 tokens, plus its own tokens.
    """
    tokens = run.batch * run.build_task().tokens(run.train_length)
    steps = min(run.steps, run.tokens / tokens if run.tokens else run.steps)
    whole = steps * (700 + tokens) * run.layers
    return min(whole, run.seconds * COST_PER_SECOND) if run.seconds else whole


def default_test_lengths(task: Task, train_length: int) -> tuple[int, ...]:
    """The default test lengths: the task's multiples of the trained length, each longer than it."""
    return tuple(sorted({max(round(train_length * factor), train_length + 1) for factor in task.beyond}))


def comparison(
    encodings: Sequence[str | tuple[str, ...]] = ENCODINGS,
    task_names: Sequence[str] = ("repeat", "text"),
    seeds: int = 1,
    maps: Sequence[str | None] = (None,),
    first_seed: int = FIRST_SEED,
    **changes: Any,
) -> list[Experiment]:
    """The runs of every encoding on every task, under every map, with every seed."""
    if not encodings or not task_names:
        raise ValueError("a comparison needs at least one encoding and one task")
    checks.sizes(seeds=seeds)
    if seeds > MOST_SEEDS:
        raise ValueError(f"seeds must be at most {MOST_SEEDS:,}, got {quote(seeds, 40)}")
    runs = [
        recipe(task, spec, seed, map=map_spec, **changes)
        for seed in range(first_seed, first_seed + seeds)
        for task in task_names
        for spec in encodings
        for map_spec in maps
    ]
    return list(dict.fromkeys(runs))


def hints(tokens: int, longest: int, axes: int = 1, schedule: Any = None) -> dict[str, dict[str, Any]]:
    """Encoding options for a small model that is trained up to `tokens` tokens and tested up to `longest`.

    axes      how many coordinates a token has
    schedule  the frequency schedule of encodings that have one

    An option in a spec wins over these.
    """
    hints_by_name: dict[str, dict[str, Any]] = {
        # Rows past the trained length exist, untrained, so that the table can be tested there.
        "learned": {"max_len": longest},
        "tupe": {"max_len": longest},
        "learned_factorised": {"max_len": longest},
        # Buckets past the trained length would stay untrained, and T5 would look like a bad extrapolator.
        "t5_bias": {"max_distance": min(max(tokens - 2, 17), 128), "std": 0.02},
        # If no training sequence filled the window or chunk, nothing would be mapped.
        "rerope": {"window": max(tokens // 2, 1)},
        "self_extend": {"window": max(tokens // 2, 1), "group": 4},
        "dual_chunk": {"chunk": max(3 * tokens // 4, 1), "longest": max(tokens, 2)},
    }
    hints_by_name |= axes_hints(axes)
    for name, cls in catalogue.ENCODINGS.items():
        options = options_of(name)
        # A head of 16 channels has 8 pairs; with the usual base half of them would not complete a turn here.
        if (
            tokens <= 128
            and "turn" in cls.doors
            and cls.turns != "queries"
            and "base" in options
            and options["base"].default == 10_000.0
        ):
            hints_by_name.setdefault(name, {})["base"] = 1000.0
        if schedule is not None and "schedule" in options:
            hints_by_name.setdefault(name, {})["schedule"] = schedule
    return hints_by_name


def axes_hints(axes: int = 1) -> dict[str, dict[str, Any]]:
    """The option `axes` for the encodings that read any number of axes."""
    return {name: {"axes": axes} for name in catalogue.names() if "axes" in options_of(name)}


ORIGINAL_BETAS, ORIGINAL_EPS = (0.9, 0.98), 1e-9
"""The settings of Adam in the original transformer."""


def original_rate(completed_steps: int, dim: int, warmup: int) -> float:
    """The original transformer's learning rate after `completed_steps` steps.

    rate(step) = dim^-1/2 min(step^-1/2, step warmup^-3/2), for step = completed_steps + 1

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 5.3.
    """
    return dim**-0.5 * min((completed_steps + 1) ** -0.5, (completed_steps + 1) * warmup**-1.5)
