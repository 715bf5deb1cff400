"""Train one encoding on one task into a checkpoint, and generate from it."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc import checks
from posenc.foreign import code, quote, regular_file
from posenc.lab import store
from posenc.lab.experiments import recipes
from posenc.lab.experiments.execution import PLAIN, Execution
from posenc.lab.experiments.experiment import Experiment, check_seed
from posenc.lab.loggers import LoggerGroup, loggers_of
from posenc.lab.runs import config
from posenc.lab.tasks import END, Symbols

if TYPE_CHECKING:
    from posenc.lab.runs.ranks import Ranks

MOST_THREADS = 1_024
"""The largest number of threads: more than processors have cores, few enough for the system to start."""

TEMPERATURE = 0.8
"""The sampling temperature of the samples that are printed during training."""


def train_run(
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
    """Train one encoding on one task into a checkpoint folder, or resume its checkpoint.

    log        specs of loggers
    execution  of the run; each process that torchrun has started calls this

    Raises ValueError when the folder holds a checkpoint of other settings.
    """
    import torch

    from posenc.lab.runs import checkpoint, record
    from posenc.lab.runs.ranks import join_ranks

    began = time.monotonic()
    experiment = recipes.recipe(task, recipes.layers_of(spec), seed, **changes)
    checks.device(experiment.device)
    if threads is not None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"threads must lie between 1 and {MOST_THREADS:,}, got {quote(threads, 40)}")
        torch.set_num_threads(threads)
    own_paths = [path for path, _ in experiment.own_files or ()]
    with ExitStack() as stack:
        with join_ranks(execution.parallel, experiment.device) as ranks:
            loggers = LoggerGroup(loggers_of(log) if ranks.first else ())
            if ranks.first:
                stack.enter_context(store.locked_folder(folder))
            tell = say if ranks.first else lambda words: None
            run = train_in_folder(folder, experiment, own_paths, tell, loggers, execution, ranks)
        if loggers.loggers:
            # A sharded model is measured from its checkpoint.
            full_run = run if ranks.size == 1 else checkpoint.load(folder, own_paths, to_train=False)
            loggers.tell("end", record.run_record(full_run, began))
    return run


def train_in_folder(
    folder: Path,
    experiment: Experiment,
    trusted_files: Collection[str],
    say: Callable[[str], None],
    loggers: LoggerGroup,
    execution: Execution,
    ranks: "Ranks",
) -> Any:
    """Train in a locked folder, or resume its checkpoint."""
    from posenc.lab.runs import checkpoint, train

    # This is also a barrier: afterwards rank 0 has locked the folder.
    ranks.check_same("experiment", experiment.to_dict())
    if ranks.broadcast(ranks.first and checkpoint.has_checkpoint(folder)):
        run = checkpoint.load(folder, trusted_files, execution=execution, ranks=ranks)
        if file_changes := run.experiment.changed_files():
            raise ValueError(f"{file_changes[0]}; put the old file back, or choose another folder with --out")
        if run.experiment != experiment:
            old, new = vars(run.experiment), vars(experiment)
            diff = ", ".join(f"{name} {old[name]} -> {new[name]}" for name in new if old[name] != new[name])
            raise ValueError(f"'{folder}' holds a run of other settings ({diff}); choose another folder with --out")
        if run.text and run.text != run.task.text.sha256:
            raise ValueError(
                f"{run.task.text.name} is another text than the one that '{folder}' was trained on; put that one back, "
                f"or choose another folder with --out"
            )
        say(f"going on at step {run.step} of {experiment.steps}")
        if diff := store.version_difference(run.versions):
            say(f"the checkpoint was made with {diff}; the end may differ in its last digits")
    else:
        run = train.start(experiment, execution=execution, ranks=ranks)
    if run.task.in_bits:
        ranks.check_same("text", run.task.text.sha256)
    check_samples(run)
    if ranks.first:
        config.write_config(folder, experiment, execution)

    def progress(run: Any) -> None:
        checkpoint.save(run, folder)
        point = run.curve[-1]
        loggers.tell("point", run.step, point)
        unit = "bits per byte" if run.task.in_bits else "exact match"
        rest = run.cpu_s / run.progress * (1 - min(run.progress, 1))
        step = f"{run.step}/{experiment.steps}" if experiment.steps < recipes.UNBOUNDED_STEPS else f"{run.step}"
        say(f"step {step}  loss {point['loss']:.3f}  {unit} {point['score']:.3f}  about {rest:.0f} CPU s left")
        for prompt in execution.samples:
            text = sample(run, prompt)
            loggers.tell("sample", run.step, prompt, text)
            say(f"{prompt!r} ->\n{text}")

    loggers.tell("begin", experiment.to_dict(), folder)
    train.train(run, progress)
    # DDP must be freed before its processes end: later its threads and Python would deadlock.
    vars(run).pop("called", None)
    return run


def check_samples(run: Any) -> None:
    """Raise ValueError, before training, for prompts that the run's model cannot continue."""
    from posenc.lab.experiments.places import eval_places, natural
    from posenc.model.decoder import Decoder

    for prompt in run.execution.samples:
        if not isinstance(run.model, Decoder):
            raise ValueError(f"samples are for a decoder, and {run.task} is answered at once; leave them out")
        if eval_places(run.experiment) is not natural:
            map_name = run.experiment.map
            raise ValueError(f"samples count their tokens 0, 1, 2, ..., and {map_name} does not; leave them out")
        sample(run, prompt)


def sample(run: Any, prompt: str) -> str:
    """The prompt and its continuation by the run's model, with the same seed at every point."""
    import torch

    device = run.ranks.device(run.experiment.device)
    ids = torch.tensor([run.task.encode(prompt)], device=device)
    # Without eos_token_id: FSDP gathers shards for every token, so all ranks must generate as many.
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
    trusted_files: Sequence[str] = (),
    say: Callable[[str], None] = lambda words: None,
) -> str:
    """The prompt and its continuation by the model of a checkpoint.

    trusted_files  the user's files whose code the checkpoint may run
    say  receives a message where one of these has changed, and where the device of the run is missing
    """
    import torch

    from posenc.lab.experiments.places import eval_places, natural
    from posenc.lab.runs import checkpoint
    from posenc.model.decoder import Decoder

    check_seed(seed)
    for file in trusted_files:
        regular_file(code.file_of(file))
    run = checkpoint.load(folder, trusted_files, to_train=False, say=say)
    for file_change in run.experiment.changed_files():
        say(file_change)
    if eval_places(run.experiment) is not natural:
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
