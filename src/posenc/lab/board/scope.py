"""What stands on the board: which encodings, on which tasks, at which lengths, and for how long each is trained."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from posenc import catalogue
from posenc.lab.experiments import recipes
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.models import logits_of, model_of
from posenc.lab.experiments.recipes import A_SECOND, FIRST_SEED, recipe
from posenc.lab.sweeps.compare import SEARCH_SEEDS
from posenc.lab.tasks import TASKS, Task, task_of
from posenc.specs import syntax

COMPOSED = (
    "rotary(partial=0.25)", "rotary,none", "none,rotary", "on(rotary, heads=(0, 1))",
    "on(rotary, heads=(0, 1)) + on(alibi, heads=(2, 3))", "rotary + alibi", "rotary + forgetting",
    "rotary + scalable_softmax", "rotary + log_temperature", "learned + alibi", "sinusoidal + t5_bias",
)  # fmt: skip
"""What people put together, beside every encoding by itself, where rerope and its kin stand around rotary. Layers
alternate one by one, as the small model has two of them."""

USUAL = (
    "none", "sinusoidal", "learned", "rotary", "alibi", "t5_bias", "shaw", "kerple", "fire", "forgetting", "sandwich",
    "rotary + alibi",
)  # fmt: skip
"""The encodings that most people compare: those with a name in the picture, and the rows that the page shows first."""

CUT = ("flip_flop", "masked_text")
"""Tasks that are not on the board, so that two cores fill it in a night: they would take more than a fifth of its CPU
hours. The last written bit is asked, in other words, by recall and counting; masked text, the dearest, by masked
symbols."""

FACTORS = (1.2, 1.5, 2, 4, 8, 16)
"""The tested lengths, as multiples of the trained one, as far as a task goes."""

MOST_TOKENS = 512
"""Tokens of the longest tested sequences: beyond, measuring would take longer than training."""

SEEDS = tuple(range(FIRST_SEED, FIRST_SEED + 5))

BATCH, TRAINING_SECONDS = 16, 20.0
"""Small batches, which teach a small model most in a CPU second, and at most as many steps as the plain model does in
so many of them, by `cost`; training ends soon after a task is learned. All encodings have the same steps. Text is
trained as its recipe says, as far as the time goes."""

FIRST_SEEDS, NEAR = 3, 0.5
"""Where none of the first seeds answers so many sequences of the trained length, the others are not run."""

SEARCH_SEED = SEARCH_SEEDS[0]
SEARCH_TASKS = ("copy", "induction")
RATE_FACTORS = (1.0, 0.4)
"""What an encoding's learning rate is searched on: multiples of each recipe's own rate, one seed, two tasks. A rate for
each task, a finer grid and more seeds are left out: they would cost more than the measurement itself."""


def encodings() -> list[str]:
    """Every encoding that ships, and what people put together."""
    return [*catalogue.names(), *COMPOSED]


def tasks() -> list[str]:
    """Every task that ships, but for those that are cut."""
    return [task for task in TASKS if task not in CUT]


def meaning(task: str) -> str:
    """What a task is, in a sentence; of one that does not ship, nothing."""
    name = task.partition("(")[0]
    return (TASKS[name].__doc__ or "").strip().splitlines()[0] if name in TASKS else ""


def label(spec: str) -> str:
    """A spec as summaries name it."""
    return " / ".join(syntax.split(spec))


@lru_cache
def lengths(task: str) -> tuple[int, ...]:
    """The lengths that are tested: those that the task can make, up to the most tokens."""
    instance = task_of(task)
    trained = recipes.trained_length(instance)
    asked = sorted({max(round(trained * factor), trained + 1) for factor in FACTORS})
    return tuple(length for length in asked if instance.tokens(length) <= MOST_TOKENS and can_make(instance, length))


def can_make(task: Task, length: int) -> bool:
    """Whether a task has sequences of a length; of few symbols there are no long ones, say, without any twice."""
    try:
        task.batch(length, 1, torch.Generator().manual_seed(0))
    except ValueError:
        return False
    return True


def experiment(task: str, spec: str, seed: int, rate_factor: float = 1.0) -> Experiment:
    """One run of the board: the task's recipe at the board's lengths, and within its time."""
    whole = recipe(task, recipes.layers_of(spec), seed, test_lengths=lengths(task))
    in_bits = task_of(task).in_bits
    whole = whole if in_bits else replace(whole, batch=min(BATCH, whole.batch))
    steps = int(whole.steps * TRAINING_SECONDS * A_SECOND / recipes.cost(whole))
    return replace(whole, steps=min(steps, whole.steps) if in_bits else steps, rate=whole.rate * rate_factor)


def why_not(task: str, spec: str) -> str:
    """Why an encoding has no meaning on a task; empty where it has one.

    What decides is who sees whom and how many axes there are, so that tasks which agree in these are tried once.
    """
    made = task_of(task)
    kind = made.reads, made.axes, spec
    if kind not in TRIED:
        TRIED[kind] = tried(task, spec)
    return TRIED[kind]


TRIED: dict[tuple[str, int, str], str] = {}


def tried(task: str, spec: str) -> str:
    """What an encoding says when it is built and asked: about a batch of the trained length, and one of the longest."""
    run = experiment(task, spec, SEARCH_SEED)
    made = run.made_task()
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            model = model_of(run, made).eval()
            for length, rows in ((run.train_length, 2), *((n, 1) for n in run.test_lengths[-1:])):
                logits_of(model, made.batch(length, rows, torch.Generator().manual_seed(0)))
    except ValueError as error:
        return str(error)
    return ""


def with_meaning(task_names: Sequence[str], chosen: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs (task, encoding) that have one; of no encodings chosen, those of every encoding.

    Raises ValueError for a misspelt name, and for a chosen encoding without meaning on any task, with the reason.
    """
    found = []
    for spec in chosen or encodings():
        on = [task for task in task_names if not why_not(task, spec)]
        if chosen and not on:
            raise ValueError(f"{spec} has no meaning on {', '.join(task_names)}: {why_not(task_names[0], spec)}")
        found += [(task, spec) for task in on]
    return found
