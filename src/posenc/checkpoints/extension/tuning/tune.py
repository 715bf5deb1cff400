"""A short fine-tune of a model whose positions were stretched, on the text before the one that is measured."""

import math
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import coordinate_maps
from posenc.checkpoints.extension.tuning import state
from posenc.checkpoints.extension.tuning.adapters import trained
from posenc.checkpoints.measures.work import Work
from posenc.coordinate_maps import CoordinateMap
from posenc.coordinate_maps.randomised import Randomised
from posenc.coordinate_maps.skipped_chunks import SkippedChunks
from posenc.foreign import quoted
from posenc.positions import Positions
from posenc.seeding import seeded

if TYPE_CHECKING:
    from posenc.checkpoints.extension.clock import Clock
    from posenc.checkpoints.extension.settings import Settings
    from posenc.checkpoints.measures.perplexity import Tokens

MAPS = ("plain", "pose", "randomised")

WARM_UP = 0.1
"""The share of the steps in which the rate rises."""

RATES = {"lora": 2e-4, "all": 2e-5}
"""The highest rate for each choice of trained weights: adapters begin at zero and take larger steps."""

FORWARD = 4.0
"""What a step costs in passes forward: one, another to go backward from, and backward, which is two."""

KEPT_EVERY = 120.0
"""How many seconds of tuning an interruption may lose."""


@dataclass(frozen=True)
class Tuned:
    """What a fine-tune did.

    losses      of each step (nats)
    seconds     that the steps took, also those before an interruption
    trained     how many numbers were trained, of `parameters` that the model has
    """

    losses: list[float]
    seconds: float
    trained: int
    parameters: int


def check(settings: "Settings") -> None:
    """Raises ValueError for settings that cannot be tuned with."""
    if settings.tune_map not in MAPS:
        if "(" not in settings.tune_map:
            raise ValueError(
                f"--tune-map must be one of {', '.join(MAPS)}, got {quoted(settings.tune_map)}; or give a coordinate "
                f"map with its options, such as 'skipped_chunks(longest=4096, chunks=3)'"
            )
        places = coordinate_maps.map_of(settings.tune_map)
        # What it makes of a window is known before the hours of measuring, unless it depends on the text.
        if not places.reads_ids:
            places(Positions.count(settings.tune_length))
    if settings.dtype == "float16":
        raise ValueError("tuning takes --dtype bfloat16 or float32: most gradients are too small for float16")
    if settings.tune_weights not in RATES:
        raise ValueError(f"--tune-weights must be {' or '.join(RATES)}, got {quoted(settings.tune_weights)}")
    if settings.tune_rate is not None and not settings.tune_rate > 0:
        raise ValueError(f"--tune-rate must be above 0, got {settings.tune_rate}")


def check_text(settings: "Settings", text: "Tokens", start: int) -> None:
    """Raises ValueError unless the text before the measured windows holds one to tune on."""
    if start <= settings.tune_length:
        raise ValueError(
            f"tuning takes the text before the measured windows, which begin at token {start:,} of {len(text.ids):,}: "
            f"too few for a window of {settings.tune_length:,} tokens; give a longer --text, a later --start, or a "
            f"smaller --tune-length"
        )


def map_of(spec: str, target: int) -> CoordinateMap | None:
    """Where the tokens of a short window stand, so that all distances up to the target are met.

    plain       in a row from 0: no distance beyond the window is met
    pose        two chunks with a random gap between them, within the target
    randomised  a random subset of the target's positions, in order

    Anything else is a coordinate map of `posenc.coordinate_maps`, or of one's own, as a spec. Raises ValueError.
    """
    named = {"plain": None, "pose": SkippedChunks(longest=target), "randomised": Randomised(longest=target)}
    return named[spec] if spec in named else coordinate_maps.map_of(spec)


def tune(model: Any, ids: Tensor, target: int, settings: "Settings", clock: "Clock", folder: Path) -> Tuned:
    """Train weights of a model with AdamW on windows of a text, drawn at random.

    model    a transformers model, its positions stretched already; it comes back in evaluation mode, adapters merged
    ids      [N] the text to train on
    target   the length (tokens) that the positions are to cover
    folder   how far it has come is kept there every two minutes; what lies there already is gone on with

    The rate rises over the first tenth of the steps and falls to zero along a cosine; gradients are clipped to norm 1.
    What is trained is in float32, also where the model is in half precision. Every step draws from a seed of its own,
    so that the same call gives the same weights, interrupted or not.

    Raises RuntimeError for a loss that is no number, and where nothing reaches a weight that is to be trained;
    ValueError as `projections_of` does; CannotRead and CannotWrite as `state.load` and `state.save` do.

    Source: arXiv:2309.12307, section 3.3.
    """
    length, steps = settings.tune_length, settings.tune
    places = map_of(settings.tune_map, target)
    highest = RATES[settings.tune_weights] if settings.tune_rate is None else settings.tune_rate
    parameters = sum(one.numel() for one in model.parameters())
    with (
        training(model),
        trained(model, settings.tune_weights, settings.tune_rank, torch.Generator().manual_seed(0)) as (narrow, whole),
    ):
        weights = [*narrow, *whole]
        # Half precision cannot tell a step's change from none.
        full = [w if w.dtype.itemsize >= 4 else w.detach().float().requires_grad_() for w in weights]
        optimiser = torch.optim.AdamW(full, lr=highest, weight_decay=0.0, betas=(0.9, 0.95))
        losses, seconds = state.load(folder, full, optimiser)
        rounded(full, weights)
        kept = time.monotonic()
        begun = kept - seconds
        work = FORWARD * Work.of(model).total(length)
        clock.expect((steps - len(losses)) * work)
        for step in range(len(losses), steps):
            draw = torch.Generator().manual_seed(step)
            first = int(torch.randint(len(ids) - length, (), generator=draw))
            window = ids[None, first : first + length].to(model.device)
            at = Positions.count(length)
            at = at if places is None else places(at, ids[first : first + length], generator=draw)
            with clock.during(f"tuning, step {step + 1} of {steps}", work) as tell, seeded(step):
                loss = loss_of(model, window, at.coords[..., 0].to(model.device))
                loss.backward()
                losses.append(round(float(loss.detach()), 5))
                if not math.isfinite(losses[-1]):
                    raise RuntimeError(
                        f"tuning went wrong at step {step + 1}: the loss is {losses[-1]}; lower --tune-rate"
                    )
                if any(weight.grad is None for weight in narrow):
                    raise RuntimeError(
                        f"no gradient reaches an adapter of this {type(model).__name__}, which multiplies by a weight "
                        f"of its attention in a way of its own; tune the weights themselves with --tune-weights all"
                    )
                for one, weight in zip(full, weights, strict=True):
                    one.grad = None if weight.grad is None else weight.grad.to(one.dtype)
                    weight.grad = one.grad if one is weight else None
                torch.nn.utils.clip_grad_norm_(full, 1.0)
                optimiser.param_groups[0]["lr"] = highest * rate(step, steps)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
                rounded(full, weights)
                tell(1.0)
            if time.monotonic() - kept >= KEPT_EVERY and step + 1 < steps:
                state.save(folder, full, optimiser, losses, time.monotonic() - begun)
                kept = time.monotonic()
        count = sum(one.numel() for one in full)
    return Tuned(losses, time.monotonic() - begun, count, parameters)


@torch.no_grad()
def rounded(full: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
    """Give the weights of a model what their copies in float32 have come to."""
    for one, weight in zip(full, weights, strict=True):
        if one is not weight:
            weight.copy_(one)


@contextmanager
def training(model: Any) -> Generator[None]:
    """The model in training mode, and then in evaluation mode.

    Where it can, it keeps what comes into each layer alone, and computes the inside again to go backward: a tenth to a
    fifth more time, and a third less memory, at windows of 1,024 and 4,096 tokens.
    """
    # What older releases of transformers call gradient checkpointing.
    word = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    model.train()
    if model.supports_gradient_checkpointing:
        getattr(model, f"{word}_checkpointing_enable")({"use_reentrant": False})
    try:
        yield
    finally:
        getattr(model, f"{word}_checkpointing_disable")()
        model.eval()


def loss_of(model: Any, window: Tensor, position_ids: Tensor) -> Tensor:
    """The mean loss of a window [1, T] whose tokens stand at position_ids [1, T]."""
    # Without a mask, transformers takes a gap between positions for the border of two documents.
    mask = torch.ones_like(window)
    logits = model(input_ids=window, position_ids=position_ids, attention_mask=mask, use_cache=False).logits
    return F.cross_entropy(logits[0, :-1].float(), window[0, 1:])


def rate(step: int, steps: int) -> float:
    """The share of the highest rate at a step: a rise, then half a cosine down to zero.

    >>> [round(rate(step, 10), 2) for step in (0, 1, 5, 10)]
    [1.0, 1.0, 0.59, 0.0]
    """
    rising = max(1, round(WARM_UP * steps))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
