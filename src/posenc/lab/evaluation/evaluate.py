"""Evaluation: exact match in one pass, bits per byte in windows and under a sliding window."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from posenc.lab.experiments.models import logits_of, stretched_model
from posenc.lab.experiments.places import Place, eval_places, natural
from posenc.lab.tasks import Batch, Task, TextTask

SEED = 1_000_003
"""The seed of held-out sequences: apart from every training seed, and the same for all encodings."""

TEXT_BYTES = 16_384
"""How many held-out bytes, or tokens, are predicted at each window length."""

SLIDING_BYTES = 4_096
"""How many held-out bytes, or tokens, the sliding window predicts: the same at each window length."""

TOKENS_AT_ONCE = 4096
"""The most tokens of held-out text in one forward pass (at least one window)."""

MEASURES = "exact_match token_accuracy sequences bits_per_byte sliding_bits_per_byte perplexity_ratio".split()
"""The scores at each length: the first three for tasks with exact answers, the others for text."""

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The depths, as shares of the sequence, at which a task that hides a key is scored."""


@dataclass(frozen=True)
class Match:
    """The share of sequences without a mistake, the share of right answer tokens, and the number of sequences."""

    exact_match: float
    token_accuracy: float
    sequences: int


@torch.inference_mode()
def exact_match(
    model: nn.Module, task: Task, longest: int, *, rows: int = 256, shortest: int | None = None, place: Place = natural
) -> Match:
    """Held-out exact match at four lengths up to `longest`; with shortest=longest, at that length alone.

    One teacher-forced pass: a greedy answer is right exactly when every prediction is, by induction on the first
    mistake. `place` gives the positions.
    """
    model.eval()
    generator, device = Generator().manual_seed(SEED + longest), model_device(model)
    all_lengths = [longest] if shortest == longest else task.lengths(longest)
    # At a quarter, a half, three quarters and the end of the lengths.
    lengths = sorted({all_lengths[max(round(len(all_lengths) * i / 4), 1) - 1] for i in range(1, 5)})
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


def model_device(model: nn.Module) -> str:
    """The device of the model's weights."""
    return str(next((p.device for p in model.parameters()), torch.device("cpu")))


@torch.inference_mode()
def held_out_bits(
    model: nn.Module, task: TextTask, length: int, *, total: int, longest: int | None = None, place: Place = natural
) -> float:
    """Bits per byte over windows of `length` tokens that predict about `total` held-out tokens, each once.

    Blocks of `longest` tokens (default: `length`) are spread evenly over the held-out text and cut into windows: with
    the same `longest`, windows of every length predict the same tokens. Where a length does not divide `longest`, the
    last window of a block overlaps the previous one and counts only new tokens.
    """
    source = task.text.test
    longest = longest or length
    check_held_out(task, longest)
    read = round(min(total, len(source) - 1) / task.predicted_share)
    block = evenly_spaced(0, len(source) - longest - 1, max(min(read, len(source) - 1) // longest, 1))
    window_starts = torch.arange(0, longest, length)
    clamped_starts = window_starts.clamp(max=longest - length)
    new = torch.arange(length) >= (window_starts - clamped_starts)[:, None]
    return bits_of(model, task, (block[:, None] + clamped_starts).flatten(), new.repeat(len(block), 1), place)


@torch.inference_mode()
def sliding_bits(
    model: nn.Module, task: TextTask, length: int, *, stride: int, longest: int, place: Place = natural
) -> float:
    """Return bits per byte of the last `stride` tokens of windows of `length`. For an encoder they are the middle ones.

    The tokens are the same for every `length` up to `longest`. Each has at least length - stride tokens of context, an
    encoder half of them on each side. Longer non-overlapping windows have an advantage only because fewer of their
    tokens stand at an edge; this removes it.
    """
    source = task.text.test
    check_held_out(task, longest)

    def tokens_before(length: int) -> int:
        return (length - stride) // 2 if task.reads == "encoder" else length - stride

    read = round(SLIDING_BYTES / task.predicted_share)
    first, last = tokens_before(longest), len(source) - (longest - tokens_before(longest))
    places = evenly_spaced(first, last, max(min(read, len(source) - longest) // stride, 1))
    counts = torch.zeros(len(places), length, dtype=torch.bool)
    counts[:, tokens_before(length) : tokens_before(length) + stride] = True
    return bits_of(model, task, places - tokens_before(length), counts, place)


def bits_of(model: nn.Module, task: TextTask, start: Tensor, counts: Tensor, place: Place) -> float:
    """Bits per byte of the predictions that `counts` [B, length] marks, in held-out windows from `start` [B] on."""
    length = counts.shape[1]
    rows_at_once = max(1, TOKENS_AT_ONCE // length)
    # Leading columns that count nowhere need no logits. The tokens of a window are its last `length` columns.
    first_column = int(counts.any(0).int().argmax())
    nats = byte_count = 0.0
    for rows, counts_here in zip(start.split(rows_at_once), counts[:, first_column:].split(rows_at_once), strict=True):
        batch = task.windows(task.text.test, rows, length)
        first = batch.ids.shape[1] - length + first_column
        counts_here = counts_here & batch.answer[..., first:]
        nats += float((loss_of(model, batch, place, first).double() * counts_here).sum())
        byte_count += int((counts_here if batch.bytes is None else batch.bytes[:, first:] * counts_here).sum())
    return nats / (byte_count * math.log(2))


def context_gain(model: nn.Module, task: TextTask, length: int, place: Place = natural) -> float:
    """Return the bits per byte that `length` tokens of context save over the nearest alone. The bytes are the same.

    The nearest are the last token, or for an encoder one on each side. A model that uses only those has 0.
    """
    nearest = 3 if task.reads == "encoder" else 2
    alone, whole = (
        sliding_bits(model, task, n, stride=1, longest=length, place=place) for n in (min(nearest, length), length)
    )
    return alone - whole


def evenly_spaced(first: int, last: int, count: int) -> Tensor:
    """`count` integers [count], evenly spaced from `first` to `last`; a single one is `first`.

    In integer arithmetic: float32 cannot represent all integers beyond 2^24.
    """
    return first + torch.arange(count) * (last - first) // max(count - 1, 1)


def check_held_out(task: Any, longest: int) -> None:
    """Raise ValueError unless the held-out text has more than `longest` tokens."""
    held_out = len(task.text.test)
    if held_out <= longest:
        wrong = f"the held-out text has {held_out:,} {task.unit}, too few for a window of {longest}"
        raise ValueError(f"{wrong}; add text or test shorter lengths")


def loss_of(model: nn.Module, batch: Batch, place: Place, first: int = 0) -> Tensor:
    """The loss (nats) of each prediction from `first` on, [B, T - first]."""
    model.eval()
    batch = batch.to(model_device(model))
    logits = logits_of(model, batch, place, first=first).float()
    return F.cross_entropy(logits.transpose(1, 2), batch.targets[:, first:], reduction="none").cpu()


def by_length(run: Any) -> list[dict[str, Any]]:
    """The scores at the trained length, and at every test length with the run's stretch."""
    rows = [scores_at_length(run, length, model) for length, model in lengths_and_models(run)]
    if run.task.in_bits:
        for row in rows:
            row["perplexity_ratio"] = 2 ** (row["bits_per_byte"] - rows[0]["bits_per_byte"])
    return rows


def lengths_and_models(run: Any) -> Iterator[tuple[int, nn.Module]]:
    """Yield the trained length and every test length, each with its model."""
    experiment = run.experiment
    yield experiment.train_length, run.model
    longer_model = run.model if experiment.stretch is None else stretched_model(run.model, experiment, run.task)
    for length in experiment.test_lengths:
        yield length, longer_model


def by_depth(run: Any) -> list[dict[str, Any]]:
    """Exact match at each length and each depth of the hidden key; empty for tasks that hide none."""
    tasks_by_depth = {share: task for share in DEPTHS if (task := run.task.at_depth(share))}
    if not tasks_by_depth:
        return []
    place, rows = eval_places(run.experiment), []
    for length, model in lengths_and_models(run):
        for share, task in tasks_by_depth.items():
            match = exact_match(model, task, length, rows=128, shortest=length, place=place)
            rows.append({"length": length, "depth": share} | asdict(match))
    return rows


def scores_at_length(run: Any, length: int, model: nn.Module | None = None) -> dict[str, Any]:
    """The scores at one length, of the trained model or of a changed one."""
    experiment, model = run.experiment, model or run.model
    place = eval_places(experiment)
    row: dict[str, Any] = {"length": length, "factor": length / experiment.train_length} | dict.fromkeys(MEASURES)
    if not run.task.in_bits:
        return row | asdict(exact_match(model, run.task, length, rows=512, shortest=length, place=place))
    longest = max((experiment.train_length, *experiment.test_lengths))
    stride = max(experiment.train_length // 2, 1)
    options: dict[str, Any] = {"longest": longest, "place": place}
    row["bits_per_byte"] = held_out_bits(model, run.task, length, total=TEXT_BYTES, **options)
    row["sliding_bits_per_byte"] = sliding_bits(model, run.task, length, stride=stride, **options)
    return row
