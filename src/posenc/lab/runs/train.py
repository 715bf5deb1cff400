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
from posenc.lab.experiments.places import Place, eval_places, natural, train_places, with_places
from posenc.lab.experiments.recipes import ORIGINAL_BETAS, ORIGINAL_EPS, original_rate
from posenc.lab.runs.ranks import SOLO, Ranks
from posenc.lab.tasks import Batch

LEARNED_SCORE = 0.99
"""The exact match at the trained length from which a run counts as learned and longer lengths are reported."""

LEARNED_BITS = 0.1
"""The same gate for text: the gain over the last byte alone (bits per byte)."""


@dataclass
class Run:
    """A model in training, with all that a checkpoint keeps."""

    experiment: Experiment
    task: Any
    model: torch.nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    generator: Generator
    step: int = 0
    tokens: int = 0
    """The number of tokens read in training."""
    cpu_s: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)
    versions: dict[str, Any] | None = None
    """The versions that wrote the checkpoint it resumes, where known."""
    text: str | None = None
    """The SHA-256 of the text that it was trained on, where known."""
    execution: Execution = PLAIN
    ranks: Ranks = SOLO

    @cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The model's parameters, cached: walking through its modules takes a tenth of a step."""
        return list(self.model.parameters())

    @cached_property
    def training_module(self) -> Any:
        """The module that a training step calls: compiled and distributed. Evaluation calls the model itself."""
        module = self.ranks.training_module(self.model)
        return torch.compile(module) if self.experiment.compile else module

    @property
    def cool_down_start(self) -> int | None:
        """The step at which two points in a row were learned, if the recipe then cools down."""
        if not self.experiment.cool_down:
            return None
        pairs = zip(self.curve, self.curve[1:], strict=False)
        return next((int(b["step"]) for a, b in pairs if min(a["score"], b["score"]) >= LEARNED_SCORE), None)

    @property
    def progress(self) -> float:
        """The fraction of the training that is done, by the end (steps, tokens, seconds) that comes first."""
        experiment = self.experiment
        parts = [self.step / experiment.steps]
        parts += [self.tokens / experiment.tokens] if experiment.tokens else []
        parts += [self.cpu_s / experiment.seconds] if experiment.seconds else []
        return max(parts)

    @property
    def is_over(self) -> bool:
        """Whether the training has reached its end, or has cooled down."""
        cooling = self.cool_down_start
        return self.progress >= 1 or (cooling is not None and self.step >= cooling + self.experiment.cool_down)


def start(experiment: Experiment, *, to_train: bool = True, execution: Execution = PLAIN, ranks: Ranks = SOLO) -> Run:
    """Return a new run. One seed gives every encoding the same data and the same weights outside the encoding.

    to_train  whether to build the optimisers, which takes longer than the model; without them the run cannot train

    Raises ValueError for a batch with fewer rows than parts, and for activation checkpointing without blocks.
    """
    task = experiment.build_task()
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
    model = ranks.distribute(model, blocks, ranks.device(experiment.device))
    optimizers = optimizers_of(experiment, model) if to_train else ()
    generator = Generator().manual_seed(experiment.seed + 1)
    return Run(experiment, task, model, optimizers, generator, execution=execution, ranks=ranks)


def optimizers_of(experiment: Experiment, model: torch.nn.Module) -> tuple[torch.optim.Optimizer, ...]:
    """AdamW, or the original transformer's Adam; with a matrix_rate also Muon for the matrices of the blocks.

    Embeddings, norms, biases, the output and the encodings' parameters always stay with AdamW.
    """
    if experiment.matrix_rate and not hasattr(torch.optim, "Muon"):
        raise ValueError(f"matrix_rate is for Muon, which torch has from 2.9 on, got {torch.__version__}")
    blocks = [p for stack in stacks_of(model) for p in stack.blocks.parameters()] if experiment.matrix_rate else []
    matrices = [p for p in blocks if p.ndim == 2]
    if experiment.matrix_rate and not matrices:
        raise ValueError(f"matrix_rate is for the blocks of posenc's stacks, and {experiment.model} has none")
    matrix_ids = {id(matrix) for matrix in matrices}
    adamw_parameters = [p for p in model.parameters() if id(p) not in matrix_ids]
    # Each step sets the learning rate.
    if experiment.schedule == "original":
        first = torch.optim.Adam(adamw_parameters, betas=ORIGINAL_BETAS, eps=ORIGINAL_EPS)
    else:
        first = torch.optim.AdamW(adamw_parameters, betas=(0.9, 0.98), weight_decay=experiment.weight_decay, fused=True)
    return (first, torch.optim.Muon(matrices, weight_decay=0.0)) if matrices else (first,)


def train(run: Run, progress: Callable[[Run], None] | None = None, stop_step: int | None = None) -> Run:
    """Train to the end of the recipe, or to `stop_step`; call `progress` at every point of the curve.

    CPU seconds count the training steps of all ranks, not the evaluations.
    """
    experiment = run.experiment
    losses: list[Tensor] = []
    run.model.train()
    stop = experiment.steps if stop_step is None else stop_step
    start_time, cpu_s_before = time.process_time(), run.cpu_s
    while not run.is_over and run.step < stop:
        losses.append(training_step(run))
        run.step += 1
        if experiment.seconds:
            run.cpu_s = cpu_s_before + run.ranks.total(time.process_time() - start_time)
        if run.step % experiment.evaluate_every and not run.is_over and run.step != stop:
            continue
        run.cpu_s = cpu_s_before + run.ranks.total(time.process_time() - start_time)
        loss = run.ranks.total(float(torch.stack(losses).mean()))
        if not math.isfinite(loss):
            raise RuntimeError(
                f"the loss of {experiment.spec} on {experiment.task} is {loss} at step {run.step}; lower the rate"
            )
        run.curve.append({"step": run.step, "loss": loss, "score": run.ranks.broadcast(score(run)), "cpu_s": run.cpu_s})
        losses.clear()
        if progress is not None:
            progress(run)
        run.model.train()
        start_time, cpu_s_before = time.process_time(), run.cpu_s
    return run


def training_step(run: Run) -> Tensor:
    """Take one optimiser step on one batch; return this rank's share of the loss (nats per answer token).

    Every rank draws the whole batch from seed and step, and computes its own rows, in parts. The loss is the mean over
    the answers of the whole batch, so no result depends on how it is divided.
    """
    experiment, ranks = run.experiment, run.ranks
    share = rate_at(run)
    for optimizer, highest in zip(run.optimizers, (experiment.rate, experiment.matrix_rate), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = highest * share
    length = draw_length(run)
    batch = run.task.batch(length, experiment.batch, run.generator)
    answers = batch.answer_count
    run.tokens += batch.ids.numel()
    batch = with_places(batch.to(ranks.device(experiment.device)), train_places(experiment, run.step))
    for optimizer in run.optimizers:
        optimizer.zero_grad(set_to_none=True)
    losses: list[Tensor] = []
    parts = ranks.parts(len(batch.ids), run.execution.accumulation)
    for number, rows in enumerate(parts, 1):
        seed_dropout(run, number)
        with ranks.no_sync(run.training_module) if number < len(parts) else nullcontext():
            with autocast(experiment):
                loss = answer_loss(run.training_module, batch.rows(rows), answers=answers)
            # DDP and FSDP average gradients over the ranks.
            (loss * ranks.size).backward()
        losses.append(loss.detach())
    if experiment.clip:
        torch.nn.utils.clip_grad_norm_(run.parameters, experiment.clip)
    for optimizer in run.optimizers:
        optimizer.step()
    return torch.stack(losses).sum()


def seed_dropout(run: Run, part: int) -> None:
    """Seed dropout by step, rank and part of the batch, so that a resumed run draws the same."""
    place = (run.experiment.seed * 1_000_000 + run.step) * 1_000_003 + run.ranks.rank * 1_009 + part
    # torch.manual_seed looks for every accelerator, which takes as long as a small step.
    seed = torch.default_generator.manual_seed if run.experiment.device == "cpu" else torch.manual_seed
    seed(place % 2**63)


def autocast(experiment: Experiment) -> AbstractContextManager:
    """A context that computes matrix products in the experiment's dtype."""
    if experiment.dtype == "float32":
        return nullcontext()
    return torch.autocast(torch.device(experiment.device).type, getattr(torch, experiment.dtype))


def answer_loss(model: Any, batch: Batch, place: Place = natural, *, answers: int | None = None) -> Tensor:
    """Mean cross-entropy (nats) of the predictions that count.

    answers  their number in the whole batch of which this is a part; default: this is the whole batch
    """
    first = batch.first
    logits, targets = logits_of(model, batch, place, first=first), batch.targets[:, first:]
    counts = batch.answer[..., first:]
    if not bool(counts.all()):
        counts = counts.expand(targets.shape)
        logits, targets = logits[counts][None], targets[counts][None]
    total_loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
    return total_loss / (targets.numel() if answers is None else answers)


def draw_length(run: Run) -> int:
    """The length of this step's sequences, from shuffled rounds over all trained lengths (fewer in a curriculum).

    It depends on the seed and the step alone, so a resumed run draws the same.
    """
    experiment = run.experiment
    lengths = run.task.lengths(experiment.train_length)
    growth = run.progress / experiment.curriculum if experiment.curriculum else 1.0
    if growth < 1:
        longest = max(2, math.ceil(experiment.train_length * growth))
        lengths = [length for length in lengths if length <= longest] or lengths[:1]
    turn, place = divmod(run.step, len(lengths))
    order = torch.randperm(len(lengths), generator=Generator().manual_seed(experiment.seed * 1_000_000 + turn))
    return lengths[int(order[place])]


def rate_at(run: Run) -> float:
    """The next step's learning rate as a share of the highest: linear warm-up, cosine, cool-down."""
    experiment, step = run.experiment, run.step
    if experiment.schedule == "original":
        share = original_rate(step, experiment.dim, experiment.warmup)
    elif step < experiment.warmup:
        share = (step + 1) / experiment.warmup
    else:
        # The cosine runs from the end of the warm-up to the end of the training.
        warm = experiment.warmup / experiment.steps
        fraction = (run.progress - warm) / max(1 - warm, 1e-9)
        share = experiment.final_rate + (1 - experiment.final_rate) * 0.5 * (1 + math.cos(math.pi * fraction))
    if run.cool_down_start is not None:
        share *= max(experiment.final_rate, 1 - (step - run.cool_down_start) / experiment.cool_down)
    return share


def score(run: Run) -> float:
    """The held-out exact match at the trained length; for text the bits per byte."""
    length, place = run.experiment.train_length, eval_places(run.experiment)
    if run.task.in_bits:
        return held_out_bits(run.model, run.task, length, total=2048, place=place)
    return exact_match(run.model, run.task, length, rows=256, shortest=length, place=place).exact_match


def learned_at(run: Run) -> dict[str, float] | None:
    """Return the curve's first point from which exact match stays at 99 % or more; else None."""
    if run.task.in_bits or not run.curve:
        return None
    first_learned = None
    for point in run.curve:
        first_learned = (first_learned or point) if point["score"] >= LEARNED_SCORE else None
    return first_learned
