"""Training: one loop, in plain PyTorch, for every task and encoding."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from posenc.lab.evaluation.evaluate import exact_match, held_out_bits
from posenc.lab.experiments.execution import PLAIN, Execution
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.models import logits_of, model_of, stacks_of
from posenc.lab.experiments.places import Places, at_evaluation, counted, in_training, placed
from posenc.lab.experiments.recipes import ORIGINAL_BETAS, ORIGINAL_EPS, original_rate
from posenc.lab.runs.ranks import ALONE, Ranks
from posenc.lab.tasks import Batch

LEARNED = 0.99
"""The gate: a length beyond the trained one is spoken of only when the trained one is answered this well."""

LEARNED_BITS = 0.1
"""The gate for text (bits per byte): by how much the context must make a model better than the last byte alone."""


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
    execution: Execution = PLAIN
    ranks: Ranks = ALONE

    @cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Those of the model: walking through its modules at every step takes a tenth of it."""
        return list(self.model.parameters())

    @cached_property
    def called(self) -> Any:
        """What a training step calls, whose gradients are those of all ranks. Evaluation takes the model itself."""
        called = self.ranks.called(self.model)
        return torch.compile(called) if self.experiment.compile else called

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


def start(experiment: Experiment, *, to_train: bool = True, execution: Execution = PLAIN, ranks: Ranks = ALONE) -> Run:
    """A fresh run: the same seed gives every encoding the same data and the same weights outside the encoding.

    to_train  whether to make the optimisers, which take longer than the model; without them the run cannot train

    Raises ValueError for a batch with less than a row for each part, and for activation checkpointing without blocks.
    """
    task = experiment.made_task()
    model = model_of(experiment, task)
    if experiment.batch < ranks.size * execution.accumulation:
        wrong = f"the batch must have a row for each of {ranks.size} processes x accumulation {execution.accumulation}"
        raise ValueError(f"{wrong}, got {experiment.batch}; enlarge it, or accumulate less")
    stacks = stacks_of(model)
    if execution.activation_checkpointing and not stacks:
        wrong = "activation checkpointing is for the blocks of posenc's stacks"
        raise ValueError(f"{wrong}, and {experiment.model} has none; leave it out")
    for stack in stacks:
        stack.activation_checkpointing = execution.activation_checkpointing
    blocks = [block for stack in stacks for block in stack.blocks]
    model = ranks.distributed(model, blocks, ranks.device(experiment.device))
    optimizers = optimizers_of(experiment, model) if to_train else ()
    generator = Generator().manual_seed(experiment.seed + 1)
    return Run(experiment, task, model, optimizers, generator, execution=execution, ranks=ranks)


def optimizers_of(experiment: Experiment, model: torch.nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """AdamW, or what the original transformer had; and where matrices have a rate of their own, Muon for those.

    Embeddings, norms, biases, the output and what the encodings learn stay with AdamW in any case.
    """
    if experiment.matrix_rate and not hasattr(torch.optim, "Muon"):
        raise ValueError(f"matrix_rate is for Muon, which torch has from 2.9 on, got {torch.__version__}")
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

    CPU seconds count the training steps only, not the evaluations; those of all ranks together.
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
            run.cpu_s = before + run.ranks.total(time.process_time() - begun)
        if run.step % experiment.evaluate_every and not run.over and run.step != stop:
            continue
        run.cpu_s = before + run.ranks.total(time.process_time() - begun)
        loss = run.ranks.total(float(torch.stack(losses).mean()))
        if not math.isfinite(loss):
            raise RuntimeError(
                f"the loss of {experiment.spec} on {experiment.task} is {loss} at step {run.step}; lower the rate"
            )
        run.curve.append({"step": run.step, "loss": loss, "score": run.ranks.agreed(score(run)), "cpu_s": run.cpu_s})
        losses.clear()
        if progress is not None:
            progress(run)
        run.model.train()
        begun, before = time.process_time(), run.cpu_s
    return run


def one_step(run: Run) -> Tensor:
    """One batch of one length, one step of the optimiser; what this rank adds to the loss (nats per answer token).

    Every rank makes the whole batch, which seed and step decide alone, and takes its rows of it, in parts. The loss is
    the mean over the answers of the whole batch, wherever they are, so no result depends on how it is divided.
    """
    experiment, ranks = run.experiment, run.ranks
    share = rate_at(run)
    for optimizer, highest in zip(run.optimizers, (experiment.rate, experiment.matrix_rate), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = highest * share
    length = draw_length(run)
    batch = run.task.batch(length, experiment.batch, run.generator)
    answers = batch.asked
    run.tokens += batch.ids.numel()
    batch = placed(batch.to(ranks.device(experiment.device)), in_training(experiment, run.step))
    for optimizer in run.optimizers:
        optimizer.zero_grad(set_to_none=True)
    losses: list[Tensor] = []
    parts = ranks.parts(len(batch.ids), run.execution.accumulation)
    for number, rows in enumerate(parts, 1):
        seed_dropout(run, number)
        with ranks.without_exchange(run.called) if number < len(parts) else nullcontext():
            with computing(experiment):
                loss = answer_loss(run.called, batch.rows(rows), answers=answers)
            # Exchanged gradients are means over the ranks.
            (loss * ranks.size).backward()
        losses.append(loss.detach())
    if experiment.clip:
        torch.nn.utils.clip_grad_norm_(run.parameters, experiment.clip)
    for optimizer in run.optimizers:
        optimizer.step()
    return torch.stack(losses).sum()


def seed_dropout(run: Run, part: int) -> None:
    """What is dropped is another draw for each step, rank and part of a batch, and the same when a run is resumed."""
    place = (run.experiment.seed * 1_000_000 + run.step) * 1_000_003 + run.ranks.rank * 1_009 + part
    # torch.manual_seed looks for every accelerator there is, which takes as long as a small step.
    seed = torch.default_generator.manual_seed if run.experiment.device == "cpu" else torch.manual_seed
    seed(place % 2**63)


def computing(experiment: Experiment) -> AbstractContextManager:
    """What matrix products are computed in within the block."""
    if experiment.dtype == "float32":
        return nullcontext()
    return torch.autocast(torch.device(experiment.device).type, getattr(torch, experiment.dtype))


def answer_loss(model: Any, batch: Batch, place: Places = counted, *, answers: int | None = None) -> Tensor:
    """Mean cross-entropy (nats) of the predictions that count.

    answers  how many there are in all the batch of which this is a part; default: these are all
    """
    first = batch.first
    logits, targets = logits_of(model, batch, place, first=first), batch.targets[:, first:]
    counts = batch.answer[..., first:]
    if not bool(counts.all()):
        counts = counts.expand(targets.shape)
        logits, targets = logits[counts][None], targets[counts][None]
    summed = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
    return summed / (targets.numel() if answers is None else answers)


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
