"""Evaluation: exact match by one pass, bits per byte in windows and under a sliding window."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from posenc.lab.experiments.models import logits_of, stretched
from posenc.lab.experiments.places import Places, at_evaluation, counted
from posenc.lab.tasks import Batch, OfText, Task

SEED = 1_000_003
"""Held-out sequences are drawn from here, apart from every training seed, and are the same for all encodings."""

TEXT_BYTES = 16_384
"""How many held-out bytes, or tokens, are predicted at each window length."""

SLIDING_BYTES = 4_096
"""How many held-out bytes, or tokens, the sliding window predicts, the same ones at each window length."""

TOKENS_AT_ONCE = 4096
"""Tokens of held-out text that go through a model at once, at most, or one window."""

MEASURES = "exact_match token_accuracy sequences bits_per_byte sliding_bits_per_byte perplexity_ratio".split()
"""What is measured at each length: the first three of tasks with exact answers, the others of text."""

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The places of what is asked for at which a task that hides something is scored, as shares of the sequence."""


@dataclass(frozen=True)
class Match:
    """Shares of sequences answered without a mistake and of answer tokens predicted right, and how many sequences."""

    exact_match: float
    token_accuracy: float
    sequences: int


@torch.inference_mode()
def exact_match(
    model: nn.Module, task: Task, longest: int, *, rows: int = 256, shortest: int | None = None, place: Places = counted
) -> Match:
    """Held-out exact match at lengths from `shortest` (default: spread from 1) to `longest`.

    One teacher-forced pass: a greedy answer is right exactly when every prediction is, by induction on the first
    mistake. `place` says where the tokens stand.
    """
    model.eval()
    generator, device = Generator().manual_seed(SEED + longest), device_of(model)
    every = [longest] if shortest == longest else task.lengths(longest)
    # A quarter, a half, three quarters and all of the way through the lengths.
    lengths = sorted({every[max(round(len(every) * i / 4), 1) - 1] for i in range(1, 5)})
    sequences = tokens = right_sequences = right_tokens = 0
    for length in lengths:
        batch = task.batch(length, rows // len(lengths), generator).to(device)
        first = batch.first
        counts = batch.answer[..., first:].expand(batch.targets[:, first:].shape)
        right = (logits_of(model, batch, place, first=first).argmax(-1) == batch.targets[:, first:]) | ~counts
        sequences, tokens = sequences + right.shape[0], tokens + int(counts.sum())
        right_sequences += int(right.all(1).sum())
        right_tokens += int((right & counts).sum())
    return Match(right_sequences / sequences, right_tokens / tokens, sequences)


def device_of(model: nn.Module) -> str:
    """Where the model's weights are."""
    return str(next((p.device for p in model.parameters()), torch.device("cpu")))


@torch.inference_mode()
def held_out_bits(
    model: nn.Module, task: OfText, length: int, *, total: int, longest: int | None = None, place: Places = counted
) -> float:
    """Bits per byte over windows of `length` tokens that together predict about `total` held-out tokens, each once.

    The tokens lie in blocks of `longest` (default: of `length`), spread evenly over the held-out text, and each block
    is cut into windows: with one `longest`, windows of every length predict the same ones. Where a length does not
    divide it, the last window of a block begins in the one before and counts only what is new.
    """
    source = task.text.test
    longest = longest or length
    check_held_out(task, longest)
    read = round(min(total, len(source) - 1) / task.asked)
    block = spread(0, len(source) - longest - 1, max(min(read, len(source) - 1) // longest, 1))
    asked = torch.arange(0, longest, length)
    begins = asked.clamp(max=longest - length)
    new = torch.arange(length) >= (asked - begins)[:, None]
    return bits_of(model, task, (block[:, None] + begins).flatten(), new.repeat(len(block), 1), place)


@torch.inference_mode()
def sliding_bits(
    model: nn.Module, task: OfText, length: int, *, stride: int, longest: int, place: Places = counted
) -> float:
    """Bits per byte of `stride` tokens of windows of `length`: of the last ones, or where a model sees both sides, of
    those in the middle.

    The tokens are the same for every `length` up to `longest`, and each sees at least length - stride others, half of
    them on each side where it sees both: this takes away the advantage that longer non-overlapping windows have only
    because fewer tokens stand at their edges.
    """
    source = task.text.test
    check_held_out(task, longest)

    def before(length: int) -> int:
        return (length - stride) // 2 if task.reads == "encoder" else length - stride

    read = round(SLIDING_BYTES / task.asked)
    first, last = before(longest), len(source) - (longest - before(longest))
    places = spread(first, last, max(min(read, len(source) - longest) // stride, 1))
    counts = torch.zeros(len(places), length, dtype=torch.bool)
    counts[:, before(length) : before(length) + stride] = True
    return bits_of(model, task, places - before(length), counts, place)


def bits_of(model: nn.Module, task: OfText, start: Tensor, counts: Tensor, place: Places) -> float:
    """Bits per byte of what is asked for and counts [B, length], in held-out windows from the places [B] on."""
    length = counts.shape[1]
    rows_at_once = max(1, TOKENS_AT_ONCE // length)
    # What counts nowhere needs no logits; whatever stands before a window, its tokens are the last columns.
    skipped = int(counts.any(0).int().argmax())
    nats = covered = 0.0
    for rows, which in zip(start.split(rows_at_once), counts[:, skipped:].split(rows_at_once), strict=True):
        batch = task.windows(task.text.test, rows, length)
        first = batch.ids.shape[1] - length + skipped
        which = which & batch.answer[..., first:]
        nats += float((loss_of(model, batch, place, first).double() * which).sum())
        covered += int((which if batch.bytes is None else batch.bytes[:, first:] * which).sum())
    return nats / (covered * math.log(2))


def context_gain(model: nn.Module, task: OfText, length: int, place: Places = counted) -> float:
    """How many bits per byte a window of `length` tokens saves beside the nearest ones alone, on the same bytes.

    The nearest are the last token, or one on each side. 0 for whatever looks at those only, or at nothing.
    """
    nearest = 3 if task.reads == "encoder" else 2
    alone, whole = (
        sliding_bits(model, task, n, stride=1, longest=length, place=place) for n in (min(nearest, length), length)
    )
    return alone - whole


def spread(first: int, last: int, count: int) -> Tensor:
    """`count` whole numbers [count], evenly spread from `first` to `last`; one number is the first.

    In whole numbers throughout: float32 has none of them all beyond 2^24.
    """
    return first + torch.arange(count) * (last - first) // max(count - 1, 1)


def check_held_out(task: Any, longest: int) -> None:
    """Raises ValueError unless the held-out text has a window of this many tokens."""
    held_out = len(task.text.test)
    if held_out <= longest:
        wrong = f"the held-out text has {held_out:,} {task.unit}, too few for a window of {longest}"
        raise ValueError(f"{wrong}; add text or test shorter lengths")


def loss_of(model: nn.Module, batch: Batch, place: Places, first: int = 0) -> Tensor:
    """The loss (nats) of each prediction from `first` on, [B, T - first]."""
    model.eval()
    batch = batch.to(device_of(model))
    logits = logits_of(model, batch, place, first=first).float()
    return F.cross_entropy(logits.transpose(1, 2), batch.targets[:, first:], reduction="none").cpu()


def by_length(run: Any) -> list[dict[str, Any]]:
    """The scores at the trained length and at every test length; beyond the trained one with the run's stretch."""
    rows = [at_length(run, length, model) for length, model in tested(run)]
    if run.task.in_bits:
        for row in rows:
            row["perplexity_ratio"] = 2 ** (row["bits_per_byte"] - rows[0]["bits_per_byte"])
    return rows


def tested(run: Any) -> Iterator[tuple[int, nn.Module]]:
    """The trained length and every test length, with the model that is asked there."""
    experiment = run.experiment
    yield experiment.train_length, run.model
    beyond = run.model if experiment.stretch is None else stretched(run.model, experiment, run.task)
    for length in experiment.test_lengths:
        yield length, beyond


def by_depth(run: Any) -> list[dict[str, Any]]:
    """Exact match at each tested length for each place of what is asked for; empty for tasks that hide nothing."""
    hiding = {share: task for share in DEPTHS if (task := run.task.at_depth(share))}
    if not hiding:
        return []
    place, found = at_evaluation(run.experiment), []
    for length, model in tested(run):
        for share, task in hiding.items():
            match = exact_match(model, task, length, rows=128, shortest=length, place=place)
            found.append({"length": length, "depth": share} | asdict(match))
    return found


def at_length(run: Any, length: int, model: nn.Module | None = None) -> dict[str, Any]:
    """The scores at one length, of the trained model or of another one that was made from it."""
    experiment, model = run.experiment, model or run.model
    place = at_evaluation(experiment)
    row: dict[str, Any] = {"length": length, "factor": length / experiment.train_length} | dict.fromkeys(MEASURES)
    if not run.task.in_bits:
        return row | asdict(exact_match(model, run.task, length, rows=512, shortest=length, place=place))
    longest = max((experiment.train_length, *experiment.test_lengths))
    stride = max(experiment.train_length // 2, 1)
    given: dict[str, Any] = {"longest": longest, "place": place}
    row["bits_per_byte"] = held_out_bits(model, run.task, length, total=TEXT_BYTES, **given)
    row["sliding_bits_per_byte"] = sliding_bits(model, run.task, length, stride=stride, **given)
    return row
