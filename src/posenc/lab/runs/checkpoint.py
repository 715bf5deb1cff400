"""Checkpoints of a run: everything to go on from, in safetensors and JSON, whichever number of processes wrote it.

There is one form. Shards are gathered tensor by tensor, and the first rank writes each before the next one comes: what
many processes have trained is read by one, or by another number of them, and by `posenc generate`.
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
from posenc.lab.runs.ranks import ALONE, Ranks
from posenc.lab.runs.train import Run, start
from posenc.lab.safetensors_file import Stored
from posenc.lab.texts.nameless import BLOCK
from posenc.model.parts import rename_old

MODEL, OPTIMIZER, FACTS = "model.safetensors", "optimizer.safetensors", "run.json"
"""The files of a step's folder."""

GENERATOR = "generator"
"""The name, among the tensors of the optimisers, of the state of what draws the data."""

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
"""What run.json holds."""


def save(run: Run, folder: Path) -> None:
    """Write a checkpoint, safetensors and JSON only: a folder such as step-000100, made the latest when it is whole.

    In it lie model.safetensors, optimizer.safetensors, and run.json with the checksums of both and of itself. As many
    earlier steps stay as the run's execution says, and at least the one before until the new one is whole.

    All ranks save together; the first one writes. Raises CannotWrite; the checkpoint before is then still the latest.
    """
    state = {
        f"{first + i}.{name}": tensor
        for first, optimizer in numbered(run.optimizers)
        for i, kept in optimizer.state_dict()["state"].items()
        for name, tensor in kept.items()
    }
    state[GENERATOR] = run.generator.get_state()
    files = {MODEL: run.model.state_dict(), OPTIMIZER: state}
    if not run.ranks.first:
        for tensors in files.values():
            for _, tensor in safetensors_file.in_order(tensors):
                run.ranks.whole(tensor)
        return
    digests = {name: hashlib.sha256() for name in files}
    pieces: dict[str, Iterable[bytes | bytearray]] = {
        name: hashed(safetensors_file.pieces(tensors, run.ranks.whole), digests[name])
        for name, tensors in files.items()
    }
    # Written last, when the checksums of the others are known.
    pieces[FACTS] = (store.sealed(facts_of(run, digests), indent=1) for _ in range(1))
    store.add_generation(folder, run.step, pieces, run.execution.keep)


def hashed(pieces: Iterable[bytes | bytearray], digest: Any) -> Iterator[bytes | bytearray]:
    """The pieces, each known to the digest when it is handed on."""
    for piece in pieces:
        digest.update(piece)
        yield piece


def facts_of(run: Run, digests: dict[str, Any]) -> dict[str, Any]:
    """What run.json says."""
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


def numbered(optimizers: tuple[torch.optim.Optimizer, ...]) -> list[tuple[int, torch.optim.Optimizer]]:
    """The optimisers, each with the number of its first parameter when they are counted through all of them."""
    counts = [sum(len(group["params"]) for group in optimizer.param_groups) for optimizer in optimizers]
    return [(sum(counts[:place]), optimizer) for place, optimizer in enumerate(optimizers)]


def is_there(folder: Path) -> bool:
    """Whether a folder holds a checkpoint."""
    return bool(store.generations(folder)) or (folder / FACTS).exists()


Step: TypeAlias = tuple[Path, dict[str, Any], dict[str, dict[str, Stored]]]
"""A step's folder, opened: what its run.json says, and which tensors lie where in its files."""


def load(
    folder: Path,
    own: Collection[str | Path] = (),
    *,
    to_train: bool = True,
    execution: Execution = PLAIN,
    ranks: Ranks = ALONE,
    say: Callable[[str], None] = lambda words: None,
) -> Run:
    """The run of a checkpoint, as it was: the latest step of a folder, or one step's own folder.

    own       the files of one's own that a person has named besides, and whose code the checkpoint may ask for
    to_train  whether to go on training; else the optimisers' file is not read, and the run has the model alone
    execution, ranks   how it is carried out from now on, and by which processes; the first of them reads
    say       is told where the model is asked on the CPU, because its device is not here

    Raises CannotRead, naming the file, when one is missing, damaged, belongs to another step, asks for code that
    nobody has named, or goes on training on a device that is not here.
    """
    if ranks.first and not is_there(folder):
        raise ValueError(f"no checkpoint in '{folder}': {FACTS} is missing; train one with posenc train --out {folder}")
    *earlier, last = (store.generations(folder) if ranks.first else []) or [""]
    try:
        step = ranks.agreed(opened(folder / last, own, to_train) if ranks.first else None)
        assert step is not None
        return filled(step, own, to_train, execution, ranks, say)
    except CannotRead as error:
        if ranks.first and store.generations(folder)[-1:] not in ([], [last]) and ranks.size == 1:
            # A training that goes on there has put a later step in its place meanwhile.
            return load(folder, own, to_train=to_train, execution=execution, say=say)
        if error.remedy:
            raise
        if not earlier:
            raise CannotRead(f"{error}; train again into another folder") from None
        raise CannotRead(f"{error}; the step before is kept: go on from it with --out {folder / earlier[-1]}") from None


def opened(folder: Path, own: Collection[str | Path], to_train: bool) -> Step:
    """One step's folder, whose files are what they were when they were written. Raises CannotRead."""
    facts = store.read_json(folder / FACTS)
    foreign.matches(facts, FORM, file=folder / FACTS)
    if facts["schema"] != SCHEMA:
        raise CannotRead(f"it has schema {facts['schema']}, this version reads {SCHEMA}", file=folder / FACTS)
    foreign.count(facts["step"], "step", file=folder / FACTS, least=0, most=10**12)
    experiment = experiment_of(facts, own, folder)
    stored: dict[str, dict[str, Stored]] = {}
    for name in (MODEL, OPTIMIZER) if to_train else (MODEL,):
        file = foreign.regular(folder / name, within=folder)
        with foreign.opened(file) as data:
            store.expect_checksum(iter(partial(data.read, BLOCK), b""), facts["files"][name], file)
        try:
            stored[name], _ = safetensors_file.read_header(file, within=folder)
        except CannotRead as error:
            raise CannotRead(f"it is damaged ({error.wrong})", file=file) from None
    if len(stored[MODEL]) < experiment.layers:
        wrong = f"it holds {len(stored[MODEL])} tensors, and run.json claims {experiment.layers:,} layers"
        raise CannotRead(f"it does not fit its run.json: {wrong}", file=folder / MODEL)
    return folder, facts, stored


def experiment_of(facts: dict[str, Any], own: Collection[str | Path], folder: Path) -> Experiment:
    """The experiment that a run.json tells of. Raises CannotRead."""
    try:
        return Experiment.from_dict(facts["experiment"], own, folder / FACTS)
    except CannotRead:
        raise
    except ValueError as error:
        raise CannotRead(str(error), file=folder / FACTS, field="experiment") from None


def filled(
    step: Step, own: Collection[str | Path], to_train: bool, execution: Execution, ranks: Ranks, say: Callable
) -> Run:
    """The run of an opened step: made anew, and filled with the tensors, which are read one after another."""
    folder, facts, stored = step
    experiment = experiment_of(facts, own, folder)
    if checks.no_device(experiment.device):
        wrong = f"it was trained on {foreign.quoted(experiment.device)}, which is not here"
        if to_train:
            todo = "go on where that is, or train into another folder with --out FOLDER --device cpu"
            raise CannotRead(wrong, file=folder / FACTS, remedy=todo)
        say(f"{folder / FACTS}: {wrong}; its model is asked on the CPU")
        experiment = replace(experiment, device="cpu")
    if not experiment.own_files:
        # What run.json claims takes memory only where the weights are as large.
        with torch.device("meta"), Undrawn():
            expect_fit(model_of(experiment, experiment.made_task()), stored[MODEL], folder / MODEL)
    run = start(experiment, to_train=to_train, execution=execution, ranks=ranks)
    weights = expect_fit(run.model, stored[MODEL], folder / MODEL)
    with torch.no_grad():
        held = run.model.state_dict()
        for name, tensor in tensors_of(weights, ranks):
            held[name].copy_(ranks.part(tensor, held[name]))
    try:
        if to_train:
            set_state(run, tensors_of(stored[OPTIMIZER], ranks))
    except (RuntimeError, ValueError, LookupError) as error:
        if isinstance(error, CannotRead):
            raise
        raise CannotRead(f"it does not fit its run.json: {error}", file=folder / OPTIMIZER) from None
    run.step, run.cpu_s, run.curve = facts["step"], facts["cpu_s"], facts["curve"]
    run.tokens = facts.get("tokens", 0)
    run.versions, run.text = facts.get("versions"), facts.get("text")
    return run


def tensors_of(stored: dict[str, Stored], ranks: Ranks) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a file, which the first rank reads; the others get room of their shapes."""
    for name, entry in stored.items():
        yield name, (safetensors_file.read_bytes(entry) if ranks.first else torch.empty(entry.shape, dtype=entry.dtype))


def expect_fit(model: nn.Module, stored: dict[str, Stored], file: Path) -> dict[str, Stored]:
    """The tensors of a file by the names of a model. Raises CannotRead for the first that is not the model's."""
    stored = dict(stored)
    rename_old(stored, model)
    held = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong = [f"there is no {name}" for name in held if name not in stored]
    wrong += [f"nothing in the model is called {name}" for name in stored if name not in held]
    wrong += [
        f"size mismatch for {name}: {list(stored[name].shape)} in the file, {list(size)} in the model"
        for name, size in held.items()
        if name in stored and stored[name].shape != size
    ]
    if wrong:
        raise CannotRead(f"it does not fit its run.json: {foreign.shortened(wrong[0])}", file=file)
    return stored


class Undrawn(TorchFunctionMode):
    """Leaves normal numbers undrawn: where there is no memory for them, PyTorch would import its compiler to draw."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def set_state(run: Run, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Put the state of the optimisers and of the generator back."""
    parameters = [p for optimizer in run.optimizers for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    drawn = None
    for key, tensor in tensors:
        if key == GENERATOR:
            drawn = run.ranks.part(tensor, tensor)
            continue
        index, _, name = key.partition(".")
        like = parameters[int(index)]
        held = run.ranks.part(tensor, like if like.shape == tensor.shape else tensor)
        state.setdefault(int(index), {})[name] = held
    if drawn is None:
        raise KeyError(f"there is no {GENERATOR}")
    run.generator.set_state(drawn)
    for first, optimizer in numbered(run.optimizers):
        groups = optimizer.state_dict()["param_groups"]
        places = [place for group in groups for place in group["params"] if first + place in state]
        optimizer.load_state_dict({"state": {i: state[first + i] for i in places}, "param_groups": groups})
