"""One encoding on one task: trained into a checkpoint, and asked to go on with a prompt."""

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from posenc import specs
from posenc.foreign import code, quoted, regular
from posenc.lab import store
from posenc.lab.experiments import recipes
from posenc.lab.experiments.experiment import Experiment, check_seed
from posenc.lab.loggers import Together, loggers_of
from posenc.lab.tasks import END, Symbols

MOST_THREADS = 1_024
"""The threads to compute with: far more than processors have cores, and few enough that the system can start them."""


def train_one(
    spec: str,
    task: str,
    seed: int,
    folder: Path,
    threads: int | None,
    say: Callable[[str], None],
    *,
    log: Sequence[str] = (),
    **changes: Any,
) -> Any:
    """Train one encoding on one task into a checkpoint folder, or go on with what is there.

    log  loggers, as specs, that are told of the run

    Raises ValueError when the folder holds a checkpoint of other settings.
    """
    import torch

    parts = tuple(specs.split(spec))
    experiment = recipes.recipe(task, parts[0] if len(parts) == 1 else parts, seed, **changes)
    if threads is not None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"threads must lie between 1 and {MOST_THREADS:,}, got {quoted(threads, 40)}")
        torch.set_num_threads(threads)
    with store.held(folder):
        own = [path for path, _ in experiment.own_files or ()]
        return train_in(folder, experiment, own, say, Together(loggers_of(log)))


def train_in(
    folder: Path, experiment: Experiment, own: Collection[str], say: Callable[[str], None], loggers: Together
) -> Any:
    """Train in a folder that is held, or go on with what is there; `own` are the files of one's own that were named."""
    from posenc.lab.runs import record, train

    began = time.monotonic()

    if train.is_there(folder):
        run = train.load(folder, own)
        if kept := store.generations(folder):
            store.forget(folder, (train.MODEL, train.OPTIMIZER, train.FACTS), kept)
        if changed := run.experiment.changed_files():
            raise ValueError(f"{changed[0]}; put the old file back, or choose another folder with --out")
        if run.experiment != experiment:
            before, now = vars(run.experiment), vars(experiment)
            other = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in now if before[name] != now[name])
            raise ValueError(f"'{folder}' holds a run of other settings ({other}); choose another folder with --out")
        if run.text and run.text != run.task.text.sha256:
            raise ValueError(
                f"{run.task.text.name} is another text than the one that '{folder}' was trained on; put that one back, "
                f"or choose another folder with --out"
            )
        say(f"going on at step {run.step} of {experiment.steps}")
        if other := store.other_versions(run.versions):
            say(f"the checkpoint was made with {other}; the end may differ in its last digits")
    else:
        run = train.start(experiment)

    def progress(run: Any) -> None:
        train.save(run, folder)
        point = run.curve[-1]
        loggers.point(run.step, point)
        what = "bits per byte" if run.task.in_bits else "exact match"
        left = run.cpu_s / run.progress * (1 - min(run.progress, 1))
        far = f"{run.step}/{experiment.steps}" if experiment.steps < recipes.UNBOUNDED else f"{run.step}"
        say(f"step {far}  loss {point['loss']:.3f}  {what} {point['score']:.3f}  about {left:.0f} CPU s left")

    loggers.begin(experiment.to_dict(), folder)
    train.train(run, progress)
    if loggers.loggers:
        loggers.end(record.of(run, began))
    return run


def continue_prompt(
    folder: Path,
    prompt: str,
    tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    own: Sequence[str] = (),
    say: Callable[[str], None] = lambda words: None,
) -> str:
    """The prompt and what the model of a checkpoint makes of it.

    own  the files of one's own whose code the checkpoint may ask for; `say` is told where one has changed
    """
    import torch

    from posenc.lab.experiments.places import at_evaluation, counted
    from posenc.lab.runs import train
    from posenc.model import Decoder

    check_seed(seed)
    for file in own:
        regular(code.file_of(file))
    run = train.load(folder, own, to_train=False)
    for changed in run.experiment.changed_files():
        say(changed)
    if at_evaluation(run.experiment) is not counted:
        raise ValueError(
            f"generation counts its tokens 0, 1, 2, ..., and the model of '{folder}' was trained on the places that "
            f"{run.experiment.map} gives to whole sequences; ask it yourself: "
            f"posenc.lab.runs.train.load(folder).model(ids, positions=...)"
        )
    if not isinstance(run.model, Decoder):
        raise ValueError(f"'{folder}' holds no decoder: {run.task} is answered at once, and nothing is generated")
    ids = torch.tensor([run.task.encode(prompt)])
    stop = END if isinstance(run.task, Symbols) else None
    out = run.model.generate(ids, tokens, temperature=temperature, top_k=top_k, stop=stop, seed=seed)
    return run.task.decode(out[0, 1:].tolist())
