"""Ablation at test time: what a trained model loses when its positions are taken away or changed."""

from collections.abc import Callable
from collections.abc import Generator as Yields
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Generator, Tensor

from posenc.encoding import Encoding
from posenc.foreign import CannotRead
from posenc.lab.evaluate import TEXT_BYTES, exact_match, held_out_bits
from posenc.lab.places import at_evaluation
from posenc.model import Stack
from posenc.positions import Positions


def shuffled(at: Positions) -> Positions:
    """The same coordinates dealt out in a random order (always the same one for a length); causality stays."""
    order = torch.randperm(at.tokens, generator=Generator().manual_seed(at.tokens))
    return at.with_coords(at.coords[:, order])


def swapped(at: Positions) -> Positions:
    """Neighbours change places: 1, 0, 3, 2, ..."""
    order = torch.arange(at.tokens)
    pairs = at.tokens // 2 * 2
    order[:pairs] = order[:pairs].view(-1, 2).flip(1).flatten()
    return at.with_coords(at.coords[:, order])


def shifted(by: int) -> Callable[[Positions], Positions]:
    """Every coordinate moved by `by` positions: nothing changes for a relative encoding."""
    return lambda at: at.with_coords(at.coords + by)


@contextmanager
def without_position(stack: Stack) -> Yields[None]:
    """Within the block the stack has no position at all: nothing is added, turned or biased."""
    owned, used = cast(list[Encoding], list(stack.encodings)), stack.encoding_of
    stack.hold([], [Encoding()] * len(stack.blocks))
    try:
        yield
    finally:
        stack.hold(owned, used)


def ablate(run: Any) -> dict[str, float | None]:
    """The score at the trained length with positions intact, removed, shuffled, shifted and swapped.

    Exact match, for text bits per byte. None where an encoding refuses (a shift past the end of a learned table).
    """
    length = run.experiment.train_length
    tokens, standing = run.task.tokens(length), at_evaluation(run.experiment)

    def score(change: Callable[[Positions], Positions] = lambda at: at) -> float | None:
        def place(ids: Tensor) -> Positions:
            return change(standing(ids))

        try:
            if run.experiment.task == "text":
                return held_out_bits(run.model, run.task, length, total=TEXT_BYTES // 4, place=place)
            return exact_match(run.model, run.task, length, rows=256, shortest=length, place=place).exact_match
        except CannotRead:
            # The text, which is no refusal of the encoding's.
            raise
        except ValueError:
            return None

    intact = score()
    with without_position(run.model.stack):
        removed = score()
    return {
        "intact": intact,
        "removed": removed,
        "shuffled": score(shuffled),
        "shifted": score(shifted(max(tokens // 2, 1))),
        "swapped": score(swapped),
    }
