"""Training: one loop, in plain PyTorch, for every task and encoding."""

import json
import math
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode

from posenc import foreign
from posenc.foreign import CannotRead
from posenc.foreign.text import shortened
from posenc.lab import store
from posenc.lab.evaluation.evaluate import exact_match, held_out_bits
from posenc.lab.experiments.experiment import EXPERIMENT, Experiment
from posenc.lab.experiments.models import logits_of, model_of, stacks_of
from posenc.lab.experiments.places import Places, at_evaluation, counted, in_training
from posenc.lab.experiments.recipes import ORIGINAL_BETAS, ORIGINAL_EPS, original_rate
from posenc.lab.tasks import Batch

LEARNED = 0.99
"""The gate: a length beyond the trained one is spoken of only when the trained one is answered this well."""

LEARNED_BITS = 0.1
"""The gate for text (bits per byte): by how much the context must make a model better than the last byte alone."""

MODEL, OPTIMIZER, FACTS = "model.safetensors", "optimizer.safetensors", "run.json"
"""The files of a step's folder."""

SCHEMA = 2
OLDER_FORM = {
    "schema": int,
    "experiment": EXPERIMENT,
    "step": int,
    "cpu_s": float,
    "curve": [{"step": int, "loss": float, "score": float, "cpu_s": float}],
}
FORM = OLDER_FORM | {
    "versions": {"*": Any},
    "text?": (str, None),
    "tokens?": int,
    "files": {MODEL: str, OPTIMIZER: str},
}
"""What run.json holds, here and before schema 2."""


@dataclass
class Run:
    """A model in training: everything that a checkpoint keeps, and what has been seen so far."""

    experiment: Experiment
    task: Any
    model: torch.nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    generator: Generator
    step: int = 0
    tokens: int = 0
    """How many tokens the model has read in training."""
    cpu_s: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)
    versions: dict[str, Any] | None = None
    """What the checkpoint that it goes on from was made with, where it says so."""
    text: str | None = None
    """The SHA-256 of the text that it was trained on, likewise."""

    @cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Those of the model: walking through its modules at every step takes a tenth of it."""
        return list(self.model.parameters())

    @cached_property
    def called(self) -> Any:
        """What a training step calls: the model, or what the compiler made of it. Evaluation takes the model itself."""
        return torch.compile(self.model) if self.experiment.compile else self.model

    @property
    def cooling_from(self) -> int | None:
        """The step at which two points in a row were learned, where the recipe then cools down."""
        if not self.experiment.cool_down:
            return None
        pairs = zip(self.curve, self.curve[1:], strict=False)
        return next((int(b["step"]) for a, b in pairs if min(a["score"], b["score"]) >= LEARNED), None)

    @property
    def progress(self) -> float:
        """How much of the training is done: 1 at its end, by whichever of its ends comes first."""
        experiment = self.experiment
        parts = [self.step / experiment.steps]
        parts += [self.tokens / experiment.tokens] if experiment.tokens else []
        parts += [self.cpu_s / experiment.seconds] if experiment.seconds else []
        return max(parts)

    @property
    def over(self) -> bool:
        """Whether the training is over: at its end, or cooled down."""
        cooling = self.cooling_from
        return self.progress >= 1 or (cooling is not None and self.step >= cooling + self.experiment.cool_down)


def start(experiment: Experiment, *, to_train: bool = True) -> Run:
    """A fresh run: the same seed gives every encoding the same data and the same weights outside the encoding.

    to_train  whether to make the optimisers, which take longer than the model; without them the run cannot train
    """
    task = experiment.made_task()
    model = model_of(experiment, task).to(experiment.device)
    optimizers = optimizers_of(experiment, model) if to_train else ()
    return Run(experiment, task, model, optimizers, Generator().manual_seed(experiment.seed + 1))


def optimizers_of(experiment: Experiment, model: torch.nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """AdamW, or what the original transformer had; and where matrices have a rate of their own, Muon for those.

    Embeddings, norms, biases, the output and what the encodings learn stay with AdamW in any case. Raises ValueError
    where PyTorch has no Muon.
    """
    if experiment.matrix_rate and not hasattr(torch.optim, "Muon"):
        raise ValueError(f"matrix_rate needs torch 2.9 or newer, got {torch.__version__}; update torch")
    blocks = [p for stack in stacks_of(model) for p in stack.blocks.parameters()] if experiment.matrix_rate else []
    matrices = [p for p in blocks if p.ndim == 2]
    if experiment.matrix_rate and not matrices:
        raise ValueError(f"matrix_rate is for the blocks of posenc's stacks, and {experiment.model} has none")
    apart = {id(matrix) for matrix in matrices}
    others = [p for p in model.parameters() if id(p) not in apart]
    # The rate is that of each step.
    if experiment.schedule == "original":
        first = torch.optim.Adam(others, betas=ORIGINAL_BETAS, eps=ORIGINAL_EPS)
    else:
        first = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=experiment.weight_decay, fused=True)
    return (first, torch.optim.Muon(matrices, weight_decay=0.0)) if matrices else (first,)


def train(run: Run, progress: Callable[[Run], None] | None = None, until: int | None = None) -> Run:
    """Train to the end of the recipe, or to the step `until`; `progress` is called at every point of the curve.

    CPU seconds count the training steps only, not the evaluations.
    """
    experiment = run.experiment
    losses: list[Tensor] = []
    run.model.train()
    stop = experiment.steps if until is None else until
    begun, before = time.process_time(), run.cpu_s
    while not run.over and run.step < stop:
        losses.append(one_step(run))
        run.step += 1
        if experiment.seconds:
            run.cpu_s = before + time.process_time() - begun
        if run.step % experiment.evaluate_every and not run.over and run.step != stop:
            continue
        run.cpu_s = before + time.process_time() - begun
        loss = float(torch.stack(losses).mean())
        if not math.isfinite(loss):
            raise RuntimeError(
                f"the loss of {experiment.spec} on {experiment.task} is {loss} at step {run.step}; lower the rate"
            )
        run.curve.append({"step": run.step, "loss": loss, "score": score(run), "cpu_s": run.cpu_s})
        losses.clear()
        if progress is not None:
            progress(run)
        run.model.train()
        begun, before = time.process_time(), run.cpu_s
    return run


def one_step(run: Run) -> Tensor:
    """One batch of one length, one step of the optimiser; the loss (nats per answer token)."""
    experiment = run.experiment
    share = rate_at(run)
    for optimizer, highest in zip(run.optimizers, (experiment.rate, experiment.matrix_rate), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = highest * share
    length = draw_length(run)
    batch = run.task.batch(length, experiment.batch, run.generator).to(experiment.device)
    run.tokens += batch.ids.numel()
    place = in_training(experiment, run.step)
    for optimizer in run.optimizers:
        optimizer.zero_grad(set_to_none=True)
    with computing(experiment):
        loss = answer_loss(run.called, batch, place)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(run.parameters, 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
    return loss.detach()


def computing(experiment: Experiment) -> AbstractContextManager:
    """What matrix products are computed in within the block."""
    if experiment.dtype == "float32":
        return nullcontext()
    return torch.autocast(torch.device(experiment.device).type, getattr(torch, experiment.dtype))


def answer_loss(model: Any, batch: Batch, place: Places = counted) -> Tensor:
    """Mean cross-entropy (nats) of the predictions that count."""
    first = batch.first
    logits, targets = logits_of(model, batch, place, first=first), batch.targets[:, first:]
    counts = batch.answer[..., first:]
    if not bool(counts.all()):
        counts = counts.expand(targets.shape)
        logits, targets = logits[counts][None], targets[counts][None]
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def draw_length(run: Run) -> int:
    """The length of this step's sequences: in shuffled rounds, each up to the trained one, or less while lengths grow.

    A function of the seed and the step alone, so that a resumed run goes on as if nothing had happened.
    """
    experiment = run.experiment
    lengths = run.task.lengths(experiment.train_length)
    grown = run.progress / experiment.curriculum if experiment.curriculum else 1.0
    if grown < 1:
        most = max(2, math.ceil(experiment.train_length * grown))
        lengths = [length for length in lengths if length <= most] or lengths[:1]
    turn, place = divmod(run.step, len(lengths))
    order = torch.randperm(len(lengths), generator=Generator().manual_seed(experiment.seed * 1_000_000 + turn))
    return lengths[int(order[place])]


def rate_at(run: Run) -> float:
    """The learning rate of the next step as a share of the highest: a linear warm-up, a cosine, and a cool-down."""
    experiment, step = run.experiment, run.step
    if experiment.schedule == "original":
        share = original_rate(step, experiment.dim, experiment.warmup)
    elif step < experiment.warmup:
        share = (step + 1) / experiment.warmup
    else:
        # By steps a run is over after the last of them; by anything else, when that is used up.
        warm = experiment.warmup / experiment.steps
        done = (run.progress - warm) / max(1 - warm, 1e-9)
        share = experiment.final_rate + (1 - experiment.final_rate) * 0.5 * (1 + math.cos(math.pi * done))
    if run.cooling_from is not None:
        share *= max(experiment.final_rate, 1 - (step - run.cooling_from) / experiment.cool_down)
    return share


def score(run: Run) -> float:
    """How well the run does now: held-out exact match at the trained length; for text bits per byte."""
    length, place = run.experiment.train_length, at_evaluation(run.experiment)
    if run.task.in_bits:
        return held_out_bits(run.model, run.task, length, total=2048, place=place)
    return exact_match(run.model, run.task, length, rows=256, shortest=length, place=place).exact_match


def learned_at(run: Run) -> dict[str, float] | None:
    """The first point of the curve from which 99 % exact match held to the end; None if it never did."""
    if run.task.in_bits or not run.curve:
        return None
    reached = None
    for point in run.curve:
        reached = (reached or point) if point["score"] >= LEARNED else None
    return reached


def save(run: Run, folder: Path) -> None:
    """Write a checkpoint, safetensors and JSON only: a folder such as step-000100, made the latest when it is whole.

    In it lie model.safetensors, optimizer.safetensors, and run.json with the checksums of both and of itself. The step
    before stays, earlier ones are removed.

    Raises CannotWrite; the checkpoint before is then still the latest.
    """
    from safetensors.torch import save as as_bytes

    state = {
        f"{first + i}.{name}": tensor
        for first, optimizer in numbered(run.optimizers)
        for i, kept in optimizer.state_dict()["state"].items()
        for name, tensor in kept.items()
    }
    state["generator"] = run.generator.get_state()
    tensors = {MODEL: as_bytes(run.model.state_dict()), OPTIMIZER: as_bytes(state)}
    facts = {
        "schema": SCHEMA,
        "experiment": run.experiment.to_dict(),
        "versions": store.versions(),
        "text": run.task.text.sha256 if run.task.in_bits else None,
        "step": run.step,
        "tokens": run.tokens,
        "cpu_s": run.cpu_s,
        "curve": run.curve,
        "files": {name: store.checksum(data) for name, data in tensors.items()},
    }
    store.add_generation(folder, run.step, tensors | {FACTS: store.sealed(facts, indent=1)})


def numbered(optimizers: tuple[torch.optim.Optimizer, ...]) -> list[tuple[int, torch.optim.Optimizer]]:
    """The optimisers, each with the number of its first parameter when they are counted through all of them."""
    counts = [sum(len(group["params"]) for group in optimizer.param_groups) for optimizer in optimizers]
    return [(sum(counts[:place]), optimizer) for place, optimizer in enumerate(optimizers)]


def is_there(folder: Path) -> bool:
    """Whether a folder holds a checkpoint. Raises CannotRead for a damaged pointer."""
    return bool(store.generations(folder)) or (folder / FACTS).exists()


def load(folder: Path, own: Collection[str | Path] = (), *, to_train: bool = True) -> Run:
    """The run of a checkpoint, as it was: the latest step of a folder, or one step's own folder.

    own       the files of one's own that a person has named besides, and whose code the checkpoint may ask for
    to_train  whether to go on training; else the optimisers' file is not read, and the run has the model alone

    Checkpoints of older versions, with all files in the folder itself and without checksums, are read too.

    Raises CannotRead, naming the file, when one is missing, damaged, belongs to another step, or asks for code that
    nobody has named.
    """
    if not is_there(folder):
        raise ValueError(f"no checkpoint in '{folder}': {FACTS} is missing; train one with posenc train --out {folder}")
    *earlier, last = store.generations(folder) or [""]
    try:
        return load_step(folder / last, own, to_train)
    except CannotRead as error:
        if store.generations(folder)[-1:] not in ([], [last]):
            # A training that goes on there has put a later step in its place meanwhile.
            return load(folder, own, to_train=to_train)
        if error.remedy:
            raise
        if not earlier:
            raise CannotRead(f"{error}; train again into another folder") from None
        raise CannotRead(f"{error}; the step before is kept: go on from it with --out {folder / earlier[-1]}") from None


def load_step(folder: Path, own: Collection[str | Path], to_train: bool) -> Run:
    """The run of one step's folder. Raises CannotRead."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    facts, sealed = store.read_json(folder / FACTS)
    foreign.matches(facts, OLDER_FORM if facts.get("schema") == 1 else FORM, file=folder / FACTS)
    if facts["schema"] not in (1, SCHEMA):
        raise CannotRead(f"it has schema {facts['schema']}, this version reads {SCHEMA}", file=folder / FACTS)
    if sealed != (facts["schema"] == SCHEMA):
        raise CannotRead("it has no checksum" if facts["schema"] == SCHEMA else "it has one", file=folder / FACTS)
    foreign.count(facts["step"], "step", file=folder / FACTS, least=0, most=10**12)
    try:
        experiment = Experiment.from_dict(facts["experiment"], own, folder / FACTS)
    except CannotRead:
        raise
    except ValueError as error:
        raise CannotRead(str(error), file=folder / FACTS, field="experiment") from None
    tensors = {}
    for name in (MODEL, OPTIMIZER) if to_train else (MODEL,):
        file = foreign.regular(folder / name, within=folder)
        data = foreign.read(file, most=file.stat().st_size)
        if sealed:
            store.expect_checksum(data, facts["files"][name], file)
        try:
            tensors[name] = from_bytes(data)
        except SafetensorError as error:
            raise CannotRead(f"it is damaged ({error})", file=file) from None
        if not sealed and saved_at(data) != str(facts["step"]):
            raise CannotRead(f"it is of step {saved_at(data)}, run.json of step {facts['step']}", file=file)
    if len(tensors[MODEL]) < experiment.layers:
        wrong = f"it holds {len(tensors[MODEL])} tensors, and run.json claims {experiment.layers:,} layers"
        raise CannotRead(f"it does not fit its run.json: {wrong}", file=folder / MODEL)
    try:
        if not experiment.own_files:
            # What run.json claims takes memory only where the weights are as large.
            with torch.device("meta"), Undrawn():
                claimed = model_of(experiment, experiment.made_task())
            claimed.load_state_dict(tensors[MODEL], assign=True)
        run = start(experiment, to_train=to_train)
        run.model.load_state_dict(tensors[MODEL])
    except RuntimeError as error:
        # torch lists every tensor that does not fit; the first is enough.
        first = str(error).splitlines()[1].strip()
        raise CannotRead(f"it does not fit its run.json: {shortened(first)}", file=folder / MODEL) from None
    try:
        if to_train:
            set_state(run, tensors[OPTIMIZER])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CannotRead(f"it does not fit its run.json: {error}", file=folder / OPTIMIZER) from None
    run.step, run.cpu_s, run.curve = facts["step"], facts["cpu_s"], facts["curve"]
    run.tokens = facts.get("tokens", 0)
    run.versions, run.text = facts.get("versions"), facts.get("text")
    return run


class Undrawn(TorchFunctionMode):
    """Leaves normal numbers undrawn: where there is no memory for them, PyTorch would import its compiler to draw."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":
            return args[0] if args else given["tensor"]
        return func(*args, **given)


def saved_at(data: bytes) -> str | None:
    """The step that an older version wrote into a file of tensors which safetensors has taken."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {}).get("step")


def set_state(run: Run, tensors: dict[str, Tensor]) -> None:
    """Put the state of the optimisers and of the generator back."""
    run.generator.set_state(tensors.pop("generator"))
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    for first, optimizer in numbered(run.optimizers):
        groups = optimizer.state_dict()["param_groups"]
        places = [place for group in groups for place in group["params"] if first + place in state]
        optimizer.load_state_dict({"state": {i: state[first + i] for i in places}, "param_groups": groups})
