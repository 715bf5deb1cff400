"""Checkpoints of a run, in safetensors and JSON.

There is one format, whatever the number of processes. Shards are gathered tensor by tensor, and rank 0 writes each
before the next: another number of processes, or `posenc generate`, reads what many have trained.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc import checks, foreign
from posenc.foreign import CannotRead
from posenc.lab import safetensors_file, store
from posenc.lab.experiments.execution import PLAIN, Execution
from posenc.lab.experiments.experiment import EXPERIMENT, Experiment
from posenc.lab.experiments.models import model_of
from posenc.lab.runs.ranks import SOLO, Ranks
from posenc.lab.runs.train import Run, start
from posenc.lab.safetensors_file import TensorEntry
from posenc.lab.texts.scratch_file import BLOCK
from posenc.model.parts import rename_old

MODEL, OPTIMIZER, META = "model.safetensors", "optimizer.safetensors", "run.json"
"""The files of a step's folder."""

GENERATOR = "generator"
"""The name of the data generator's state among the tensors of the optimisers."""

SCHEMA = 2
FORM = {
    "schema": int,
    "experiment": EXPERIMENT,
    "step": int,
    "cpu_s": float,
    "curve": [{"step": int, "loss": float, "score": float, "cpu_s": float}],
    "versions": {"*": Any},
    "text?": (str, None),
    "tokens?": int,
    "files": {MODEL: str, OPTIMIZER: str},
}
"""The schema of run.json."""


def save(run: Run, folder: Path) -> None:
    """Write a checkpoint: a folder such as step-000100, which becomes the latest when it is complete.

    It holds model.safetensors, optimizer.safetensors, and run.json with the checksums of both and of itself. The run's
    execution says how many earlier steps stay; the previous one stays at least until the new one is complete.

    All ranks save together; rank 0 writes. Raises CannotWrite; the previous checkpoint is then still the latest.
    """
    state = {
        f"{first + i}.{name}": tensor
        for first, optimizer in optimizer_offsets(run.optimizers)
        for i, values in optimizer.state_dict()["state"].items()
        for name, tensor in values.items()
    }
    state[GENERATOR] = run.generator.get_state()
    files = {MODEL: run.model.state_dict(), OPTIMIZER: state}
    if not run.ranks.first:
        for tensors in files.values():
            for _, tensor in safetensors_file.sort_by_width(tensors):
                run.ranks.gather(tensor)
        return
    digests = {name: hashlib.sha256() for name in files}
    pieces: dict[str, Iterable[bytes | bytearray]] = {
        name: hash_pieces(safetensors_file.file_pieces(tensors, run.ranks.gather), digests[name])
        for name, tensors in files.items()
    }
    # Written last, when the checksums of the other files are known.
    pieces[META] = (store.dump_json(metadata_of(run, digests), indent=1) for _ in range(1))
    store.add_generation(folder, run.step, pieces, run.execution.keep)


def hash_pieces(pieces: Iterable[bytes | bytearray], digest: Any) -> Iterator[bytes | bytearray]:
    """Yield the pieces and update the digest with each."""
    for piece in pieces:
        digest.update(piece)
        yield piece


def metadata_of(run: Run, digests: dict[str, Any]) -> dict[str, Any]:
    """The content of run.json."""
    return {
        "schema": SCHEMA,
        "experiment": run.experiment.to_dict(),
        "versions": store.versions(),
        "text": run.task.text.sha256 if run.task.in_bits else None,
        "step": run.step,
        "tokens": run.tokens,
        "cpu_s": run.cpu_s,
        "curve": run.curve,
        "files": {name: digest.hexdigest() for name, digest in digests.items()},
    }


def optimizer_offsets(optimizers: tuple[torch.optim.Optimizer, ...]) -> list[tuple[int, torch.optim.Optimizer]]:
    """Each optimiser with the index of its first parameter, counted over all optimisers."""
    counts = [sum(len(group["params"]) for group in optimizer.param_groups) for optimizer in optimizers]
    return [(sum(counts[:place]), optimizer) for place, optimizer in enumerate(optimizers)]


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint."""
    return bool(store.generations(folder)) or (folder / META).exists()


Step: TypeAlias = tuple[Path, dict[str, Any], dict[str, dict[str, TensorEntry]]]
"""A step's folder, the content of its run.json, and the tensor entries of each of its files."""


def load(
    folder: Path,
    trusted_files: Collection[str | Path] = (),
    *,
    to_train: bool = True,
    execution: Execution = PLAIN,
    ranks: Ranks = SOLO,
    say: Callable[[str], None] = lambda words: None,
) -> Run:
    """Restore a run from the latest step of a folder, or from one step's folder.

    trusted_files  the user's files whose code the checkpoint may run
    to_train  whether training continues; if not, the optimisers' file is not read, and the run has the model alone
    execution, ranks   how training continues, and in which processes; rank 0 reads
    say       receives a message where the model moves to the CPU because its device is missing

    Raises CannotRead, which names the file, when one is missing, damaged, belongs to another step, needs code that is
    not trusted, or continues training on a device that is missing.
    """
    if ranks.first and not has_checkpoint(folder):
        raise ValueError(f"no checkpoint in '{folder}': {META} is missing; train one with posenc train --out {folder}")
    *earlier, last = (store.generations(folder) if ranks.first else []) or [""]
    try:
        step = ranks.broadcast(open_step(folder / last, trusted_files, to_train) if ranks.first else None)
        assert step is not None
        return fill_run(step, trusted_files, to_train, execution, ranks, say)
    except CannotRead as error:
        if ranks.first and store.generations(folder)[-1:] not in ([], [last]) and ranks.size == 1:
            # Meanwhile another process that trains there has replaced this step with a later one.
            return load(folder, trusted_files, to_train=to_train, execution=execution, say=say)
        if error.remedy:
            raise
        if not earlier:
            raise CannotRead(f"{error}; train again into another folder") from None
        raise CannotRead(f"{error}; the step before is kept: go on from it with --out {folder / earlier[-1]}") from None


def open_step(folder: Path, trusted_files: Collection[str | Path], to_train: bool) -> Step:
    """Open one step's folder and verify its checksums. Raises CannotRead."""
    metadata = store.read_checked_json(folder / META)
    foreign.matches(metadata, FORM, file=folder / META)
    if metadata["schema"] != SCHEMA:
        raise CannotRead(f"it has schema {metadata['schema']}, this version reads {SCHEMA}", file=folder / META)
    foreign.bounded_count(metadata["step"], "step", file=folder / META, least=0, limit=10**12)
    experiment = experiment_of(metadata, trusted_files, folder)
    entries: dict[str, dict[str, TensorEntry]] = {}
    for name in (MODEL, OPTIMIZER) if to_train else (MODEL,):
        file = foreign.regular_file(folder / name, folder=folder)
        with foreign.open_regular(file) as data:
            store.expect_checksum(iter(partial(data.read, BLOCK), b""), metadata["files"][name], file)
        try:
            entries[name], _ = safetensors_file.read_header(file, folder=folder)
        except CannotRead as error:
            raise CannotRead(f"it is damaged ({error.wrong})", file=file) from None
    if len(entries[MODEL]) < experiment.layers:
        wrong = f"it holds {len(entries[MODEL])} tensors, and run.json claims {experiment.layers:,} layers"
        raise CannotRead(f"it does not fit its run.json: {wrong}", file=folder / MODEL)
    return folder, metadata, entries


def experiment_of(metadata: dict[str, Any], trusted_files: Collection[str | Path], folder: Path) -> Experiment:
    """The experiment of a run.json. Raises CannotRead."""
    try:
        return Experiment.from_dict(metadata["experiment"], trusted_files, folder / META)
    except CannotRead:
        raise
    except ValueError as error:
        raise CannotRead(str(error), file=folder / META, field="experiment") from None


def fill_run(
    step: Step, trusted_files: Collection[str | Path], to_train: bool, execution: Execution, ranks: Ranks, say: Callable
) -> Run:
    """Build the run of an opened step, then copy its tensors in one by one."""
    folder, metadata, entries = step
    experiment = experiment_of(metadata, trusted_files, folder)
    if checks.no_device(experiment.device):
        wrong = f"it was trained on {foreign.quote(experiment.device)}, which is not here"
        if to_train:
            todo = "go on where that is, or train into another folder with --out FOLDER --device cpu"
            raise CannotRead(wrong, file=folder / META, remedy=todo)
        say(f"{folder / META}: {wrong}; its model is asked on the CPU")
        experiment = replace(experiment, device="cpu")
    if not experiment.own_files:
        # On the meta device first: a false claim of run.json must not allocate memory.
        with torch.device("meta"), SkipNormalInit():
            expect_fit(model_of(experiment, experiment.build_task()), entries[MODEL], folder / MODEL)
    run = start(experiment, to_train=to_train, execution=execution, ranks=ranks)
    weights = expect_fit(run.model, entries[MODEL], folder / MODEL)
    with torch.no_grad():
        state = run.model.state_dict()
        for name, tensor in stored_tensors(weights, ranks):
            state[name].copy_(ranks.shard(tensor, state[name]))
    try:
        if to_train:
            set_state(run, stored_tensors(entries[OPTIMIZER], ranks))
    except (RuntimeError, ValueError, LookupError) as error:
        if isinstance(error, CannotRead):
            raise
        raise CannotRead(f"it does not fit its run.json: {error}", file=folder / OPTIMIZER) from None
    run.step, run.cpu_s, run.curve = metadata["step"], metadata["cpu_s"], metadata["curve"]
    run.tokens = metadata.get("tokens", 0)
    run.versions, run.text = metadata.get("versions"), metadata.get("text")
    return run


def stored_tensors(entries: dict[str, TensorEntry], ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a file. Rank 0 reads them, the other ranks get empty tensors of the same shapes."""
    for name, entry in entries.items():
        tensor = safetensors_file.read_tensor(entry) if ranks.first else torch.empty(entry.shape, dtype=entry.dtype)
        yield name, tensor


def expect_fit(model: nn.Module, entries: dict[str, TensorEntry], file: Path) -> dict[str, TensorEntry]:
    """Return the entries of a file by the model's names. Raises CannotRead for the first that does not fit."""
    entries = dict(entries)
    rename_old(entries, model)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong = [f"there is no {name}" for name in shapes if name not in entries]
    wrong += [f"nothing in the model is called {name}" for name in entries if name not in shapes]
    wrong += [
        f"size mismatch for {name}: {list(entries[name].shape)} in the file, {list(size)} in the model"
        for name, size in shapes.items()
        if name in entries and entries[name].shape != size
    ]
    if wrong:
        raise CannotRead(f"it does not fit its run.json: {foreign.shorten(wrong[0])}", file=file)
    return entries


class SkipNormalInit(TorchFunctionMode):
    """Skip normal_: on the meta device PyTorch would import its compiler for it."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        keywords = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":
            return args[0] if args else keywords["tensor"]
        return func(*args, **keywords)


def set_state(run: Run, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Restore the state of the optimisers and of the generator."""
    parameters = [p for optimizer in run.optimizers for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    generator_state = None
    for key, tensor in tensors:
        if key == GENERATOR:
            generator_state = run.ranks.shard(tensor, tensor)
            continue
        index, _, name = key.partition(".")
        parameter = parameters[int(index)]
        shard = run.ranks.shard(tensor, parameter if parameter.shape == tensor.shape else tensor)
        state.setdefault(int(index), {})[name] = shard
    if generator_state is None:
        raise KeyError(f"there is no {GENERATOR}")
    run.generator.set_state(generator_state)
    for first, optimizer in optimizer_offsets(run.optimizers):
        groups = optimizer.state_dict()["param_groups"]
        places = [place for group in groups for place in group["params"] if first + place in state]
        optimizer.load_state_dict({"state": {i: state[first + i] for i in places}, "param_groups": groups})
