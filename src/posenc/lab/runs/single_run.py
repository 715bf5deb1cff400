"""One encoding on one task: trained into a checkpoint, and asked to go on with a prompt."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc import checks
from posenc.foreign import code, quoted, regular
from posenc.lab import store
from posenc.lab.experiments import recipes
from posenc.lab.experiments.execution import PLAIN, Execution
from posenc.lab.experiments.experiment import Experiment, check_seed
from posenc.lab.loggers import Together, loggers_of
from posenc.lab.runs import config
from posenc.lab.tasks import END, Symbols

if TYPE_CHECKING:
    from posenc.lab.runs.ranks import Ranks

MOST_THREADS = 1_024
"""The threads to compute with: far more than processors have cores, and few enough that the system can start them."""

TEMPERATURE = 0.8
"""Of the samples that are shown while a model is trained: likely tokens a little more often than the model says."""


def train_one(
    spec: str,
    task: str,
    seed: int,
    folder: Path,
    threads: int | None,
    say: Callable[[str], None],
    *,
    log: Sequence[str] = (),
    execution: Execution = PLAIN,
    **changes: Any,
) -> Any:
    """Train one encoding on one task into a checkpoint folder, or go on with what is there.

    log        loggers, as specs, that are told of the run
    execution  how it is carried out; torchrun may have started several processes, each of which calls this

    Raises ValueError when the folder holds a checkpoint of other settings.
    """
    import torch

    from posenc.lab.runs import checkpoint, record
    from posenc.lab.runs.ranks import joined

    began = time.monotonic()
    experiment = recipes.recipe(task, recipes.layers_of(spec), seed, **changes)
    checks.device(experiment.device)
    if threads is not None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"threads must lie between 1 and {MOST_THREADS:,}, got {quoted(threads, 40)}")
        torch.set_num_threads(threads)
    own = [path for path, _ in experiment.own_files or ()]
    with ExitStack() as stack:
        with joined(execution.parallel, experiment.device) as ranks:
            loggers = Together(loggers_of(log) if ranks.first else ())
            if ranks.first:
                stack.enter_context(store.held(folder))
            tell = say if ranks.first else lambda words: None
            run = train_in(folder, experiment, own, tell, loggers, execution, ranks)
        if loggers.loggers:
            # What is held in shards is measured as it was written.
            loggers.tell(
                "end", record.of(run if ranks.size == 1 else checkpoint.load(folder, own, to_train=False), began)
            )
    return run


def train_in(
    folder: Path,
    experiment: Experiment,
    own: Collection[str],
    say: Callable[[str], None],
    loggers: Together,
    execution: Execution,
    ranks: "Ranks",
) -> Any:
    """Train in a folder that is held, or go on with what is there; `own` are the files of one's own that were named."""
    from posenc.lab.runs import checkpoint, train

    # Also the moment from which the first rank holds the folder.
    ranks.same("experiment", experiment.to_dict())
    if ranks.agreed(ranks.first and checkpoint.is_there(folder)):
        run = checkpoint.load(folder, own, execution=execution, ranks=ranks)
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
        run = train.start(experiment, execution=execution, ranks=ranks)
    if run.task.in_bits:
        ranks.same("text", run.task.text.sha256)
    check_samples(run)
    if ranks.first:
        config.write(folder, experiment, execution)

    def progress(run: Any) -> None:
        checkpoint.save(run, folder)
        point = run.curve[-1]
        loggers.tell("point", run.step, point)
        what = "bits per byte" if run.task.in_bits else "exact match"
        left = run.cpu_s / run.progress * (1 - min(run.progress, 1))
        far = f"{run.step}/{experiment.steps}" if experiment.steps < recipes.UNBOUNDED else f"{run.step}"
        say(f"step {far}  loss {point['loss']:.3f}  {what} {point['score']:.3f}  about {left:.0f} CPU s left")
        for prompt in execution.samples:
            text = sample(run, prompt)
            loggers.tell("sample", run.step, prompt, text)
            say(f"{prompt!r} ->\n{text}")

    loggers.tell("begin", experiment.to_dict(), folder)
    train.train(run, progress)
    # DDP must be gone before its processes part: later its threads and Python wait for each other.
    vars(run).pop("called", None)
    return run


def check_samples(run: Any) -> None:
    """Raises ValueError for prompts that this run's model cannot go on with, or not so far, before it is trained."""
    from posenc.lab.experiments.places import at_evaluation, counted
    from posenc.model.decoder import Decoder

    for prompt in run.execution.samples:
        if not isinstance(run.model, Decoder):
            raise ValueError(f"samples are for a decoder, and {run.task} is answered at once; leave them out")
        if at_evaluation(run.experiment) is not counted:
            mapped = run.experiment.map
            raise ValueError(f"samples count their tokens 0, 1, 2, ..., and {mapped} does not; leave them out")
        sample(run, prompt)


def sample(run: Any, prompt: str) -> str:
    """The prompt and what the model of a run makes of it now; the same draw at every point."""
    import torch

    device = run.ranks.device(run.experiment.device)
    ids = torch.tensor([run.task.encode(prompt)], device=device)
    # Without a stop: shards are gathered for every token, and all ranks have to ask for as many.
    out = run.model.generate(ids, run.execution.sample_tokens, temperature=TEMPERATURE)[0, 1:].tolist()
    if isinstance(run.task, Symbols) and END in out:
        out = out[: out.index(END)]
    return run.task.decode(out)


def continue_prompt(
    folder: Path,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    own: Sequence[str] = (),
    say: Callable[[str], None] = lambda words: None,
) -> str:
    """The prompt and what the model of a checkpoint makes of it.

    own  the files of one's own whose code the checkpoint may ask for
    say  is told where one of these has changed, and where the device of the run is missing
    """
    import torch

    from posenc.lab.experiments.places import at_evaluation, counted
    from posenc.lab.runs import checkpoint
    from posenc.model.decoder import Decoder

    check_seed(seed)
    for file in own:
        regular(code.file_of(file))
    run = checkpoint.load(folder, own, to_train=False, say=say)
    for changed in run.experiment.changed_files():
        say(changed)
    if at_evaluation(run.experiment) is not counted:
        raise ValueError(
            f"generation counts its tokens 0, 1, 2, ..., and the model of '{folder}' was trained on the places that "
            f"{run.experiment.map} gives to whole sequences; ask it yourself: "
            f"posenc.lab.runs.checkpoint.load(folder).model(ids, positions=...)"
        )
    if not isinstance(run.model, Decoder):
        raise ValueError(f"'{folder}' holds no decoder: {run.task} is answered at once, and nothing is generated")
    ids = torch.tensor([run.task.encode(prompt)], device=run.experiment.device)
    end = END if isinstance(run.task, Symbols) else None
    out = run.model.generate(ids, max_new_tokens, temperature=temperature, top_k=top_k, eos_token_id=end, seed=seed)
    return run.task.decode(out[0, 1:].tolist())
