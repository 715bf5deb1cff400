"""A short fine-tune of a model whose positions were stretched, on the text before the one that is measured."""

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import coordinate_maps
from posenc.coordinate_maps import CoordinateMap
from posenc.coordinate_maps.randomised import Randomised
from posenc.coordinate_maps.skipped_chunks import SkippedChunks
from posenc.foreign import quoted
from posenc.positions import Positions

if TYPE_CHECKING:
    from posenc.checkpoints.extension.clock import Clock
    from posenc.checkpoints.extension.settings import Settings
    from posenc.checkpoints.measures.perplexity import Tokens

MAPS = ("plain", "pose", "randomised")

WARM_UP = 0.1
"""The share of the steps in which the rate rises."""

SEED = 0


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
    if settings.dtype not in ("float32", "float64"):
        raise ValueError(
            f"tuning takes --dtype float32: a step is far smaller than what {settings.dtype} can tell apart"
        )
    if not settings.tune_rate > 0:
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


def tune(model: Any, ids: Tensor, target: int, settings: "Settings", clock: "Clock") -> list[float]:
    """Train all weights with AdamW on windows of a text, drawn at random, and return the loss (nats) of each step.

    model    a transformers model, its positions stretched already; it comes back in evaluation mode
    ids      [N] the text to train on
    target   the length (tokens) that the positions are to cover

    The rate rises over the first tenth of the steps and falls to zero along a cosine; gradients are clipped to norm 1.
    Draws come from a fixed seed, so that the same call gives the same weights.
    """
    length, steps = settings.tune_length, settings.tune
    places = map_of(settings.tune_map, target)
    draw = torch.Generator().manual_seed(SEED)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.tune_rate, weight_decay=0.0, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate(step, steps))
    losses = []
    clock.expect(float(steps))
    model.train()
    try:
        for step in range(steps):
            first = int(torch.randint(len(ids) - length, (), generator=draw))
            window = ids[None, first : first + length].to(model.device)
            at = Positions.count(length)
            at = at if places is None else places(at, ids[first : first + length], generator=draw)
            with clock.during(f"tuning, step {step + 1} of {steps}", 1.0) as tell:
                loss = loss_of(model, window, at.coords[..., 0].to(model.device))
                optimiser.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                schedule.step()
                losses.append(round(float(loss.detach()), 5))
                tell(1.0)
            if not math.isfinite(losses[-1]):
                raise RuntimeError(f"tuning went wrong at step {step + 1}: the loss is {losses[-1]}; lower --tune-rate")
    finally:
        model.eval()
    return losses


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
