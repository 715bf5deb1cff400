"""The scope of the board: its encodings, tasks, lengths and training times."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from posenc import catalogue
from posenc.lab.experiments import recipes
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.models import logits_of, model_of
from posenc.lab.experiments.recipes import COST_PER_SECOND, FIRST_SEED, recipe
from posenc.lab.sweeps.compare import SEARCH_SEEDS
from posenc.lab.tasks import TASKS, Task, task_of
from posenc.specs import syntax

COMPOSITIONS = (
    "rotary(partial=0.25)", "rotary,none", "none,rotary", "on(rotary, heads=(0, 1))",
    "on(rotary, heads=(0, 1)) + on(alibi, heads=(2, 3))", "rotary + alibi", "rotary + forgetting",
    "rotary + scalable_softmax", "rotary + log_temperature", "learned + alibi", "sinusoidal + t5_bias",
)  # fmt: skip
"""Compositions on the board, beside each encoding alone; rerope and its kin wrap rotary. Layers alternate, as the
small model has two."""

USUAL = (
    "none", "sinusoidal", "learned", "rotary", "alibi", "t5_bias", "shaw", "kerple", "fire", "forgetting", "sandwich",
    "rotary + alibi",
)  # fmt: skip
"""The most compared encodings: they have a name in the picture, and the page shows their rows first."""

OMITTED_TASKS = ("flip_flop", "masked_text")
"""Tasks that are not on the board: they would take more than a fifth of its CPU hours, and two cores fill it in a
night. Recall and counting also test the last written bit; masked symbols stand in for masked text, the most expensive
task."""

FACTORS = (1.2, 1.5, 2, 4, 8, 16)
"""The tested lengths, as multiples of the trained one, as far as a task supports them."""

MAX_TOKENS = 512
"""The most tokens of a tested sequence; measuring longer ones would take longer than training."""

SEEDS = tuple(range(FIRST_SEED, FIRST_SEED + 5))

BATCH, TRAINING_SECONDS = 16, 20.0
"""Small batches, which train a small model fastest, and at most the steps that the model without position does in so
many CPU seconds, by `cost`; training ends soon after a task is learned. All encodings have the same steps. Text is
trained by its recipe, as far as the time allows."""

FIRST_SEEDS, MIN_SCORE = 3, 0.5
"""If no first seed has this exact match at the trained length, the other seeds are not run."""

SEARCH_SEED = SEARCH_SEEDS[0]
SEARCH_TASKS = ("copy", "induction")
RATE_FACTORS = (1.0, 0.4)
"""The search of an encoding's learning rate: multiples of each recipe's rate, one seed, two tasks. A rate for each
task, a finer grid or more seeds would cost more than the measurement itself."""


def board_encodings() -> list[str]:
    """Return every built-in encoding, and the compositions."""
    return [*catalogue.names(), *COMPOSITIONS]


def board_tasks() -> list[str]:
    """Return every built-in task without the omitted ones."""
    return [task for task in TASKS if task not in OMITTED_TASKS]


def task_summary(task: str) -> str:
    """Return the first sentence on a built-in task; empty for others."""
    name = task.partition("(")[0]
    return (TASKS[name].__doc__ or "").strip().splitlines()[0] if name in TASKS else ""


def label(spec: str) -> str:
    """Return a spec as summaries name it."""
    return " / ".join(syntax.split(spec))


@lru_cache
def tested_lengths(task: str) -> tuple[int, ...]:
    """Return the tested lengths: those that the task can make, up to MAX_TOKENS."""
    instance = task_of(task)
    trained_length = recipes.recipe_length(instance)
    lengths = sorted({max(round(trained_length * factor), trained_length + 1) for factor in FACTORS})
    return tuple(length for length in lengths if instance.tokens(length) <= MAX_TOKENS and can_make(instance, length))


def can_make(task: Task, length: int) -> bool:
    """Whether a task has sequences of a length; few symbols without repetition, say, give no long ones."""
    try:
        task.batch(length, 1, torch.Generator().manual_seed(0))
    except ValueError:
        return False
    return True


def experiment(task: str, spec: str, seed: int, rate_factor: float = 1.0) -> Experiment:
    """Return a run of the board: the task's recipe at the board's lengths, within its time."""
    base = recipe(task, recipes.layers_of(spec), seed, test_lengths=tested_lengths(task))
    in_bits = task_of(task).in_bits
    base = base if in_bits else replace(base, batch=min(BATCH, base.batch))
    steps = int(base.steps * TRAINING_SECONDS * COST_PER_SECOND / recipes.cost(base))
    return replace(base, steps=min(steps, base.steps) if in_bits else steps, rate=base.rate * rate_factor)


def refusal(task: str, spec: str) -> str:
    """Return why an encoding does not support a task; empty if it does.

    It depends on the direction of attention and the number of axes, so tasks that agree in these are tried once.
    """
    task_object = task_of(task)
    kind = task_object.reads, task_object.axes, spec
    if kind not in REFUSALS:
        REFUSALS[kind] = find_refusal(task, spec)
    return REFUSALS[kind]


REFUSALS: dict[tuple[str, int, str], str] = {}


def find_refusal(task: str, spec: str) -> str:
    """Return an encoding's error on a batch of the trained or the longest length; empty without one."""
    run = experiment(task, spec, SEARCH_SEED)
    task_object = run.build_task()
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            model = model_of(run, task_object).eval()
            for length, rows in ((run.train_length, 2), *((n, 1) for n in run.test_lengths[-1:])):
                logits_of(model, task_object.batch(length, rows, torch.Generator().manual_seed(0)))
    except ValueError as error:
        return str(error)
    return ""


def meaningful_pairs(task_names: Sequence[str], specs: Sequence[str]) -> list[tuple[str, str]]:
    """Return the supported pairs (task, encoding); without specs, of every encoding.

    Raises ValueError for an unknown name, and for a spec that supports none of the tasks, with the reason.
    """
    pairs = []
    for spec in specs or board_encodings():
        tasks = [task for task in task_names if not refusal(task, spec)]
        if specs and not tasks:
            raise ValueError(f"{spec} has no meaning on {', '.join(task_names)}: {refusal(task_names[0], spec)}")
        pairs += [(task, spec) for task in tasks]
    return pairs
