"""What the self-test of a file expects: numbers that posenc computes in float64."""

import torch
from torch import Tensor

from posenc.encoding.base import Encoding
from posenc.encoding.biases import BIASES, total
from posenc.encoding.keys import Keys
from posenc.kernels import bind
from posenc.tokens.masks import bidirectional
from posenc.tokens.positions import Positions, as_positions

POSITIONS = (2, 7, 40)
"""Where the tokens stand."""
HORIZON = 1_000_000
"""The length of text that is declared to schedules (tokens)."""


@torch.no_grad()
def expected_numbers(encoding: Encoding) -> tuple[float, ...]:
    """Return what the self-test of an encoding expects, computed by posenc in float64."""
    encoding = encoding.double()
    for parameter in encoding.parameters():
        if parameter.dim():
            parameter.copy_(0.1 * torch.arange(parameter.numel()).double().cos().view_as(parameter))
    at, x, embeddings = (
        self_test_positions(encoding),
        samples(1, 2, 3, getattr(encoding, "head_dim", 8)),
        samples(1, 3, getattr(encoding, "dim", 16)),
    )
    facts = encoding.remember(embeddings, at)
    keys = Keys(x, x, at, facts, facts)
    if "embed" in encoding.doors:
        numbers = encoding(embeddings, positions=at)[0, 2]
    elif "attend" in encoding.doors and "turn" not in encoding.doors:
        kernel = bind("reference", encoding, scale=x.shape[-1] ** -0.5)
        numbers = encoding.attend(x, keys.at, keys, bidirectional(), kernel)[0][0, :, 2]
    elif encoding.doors & BIASES:
        bias = total(encoding.biases(x, keys.at, keys), torch.float64)
        assert bias is not None
        numbers = bias[0, :, 2]
    else:
        numbers = (encoding.key if encoding.turns == "alike" else encoding.query)(x, positions=at)[0, 1, 2]
    return tuple(round(number, 9) for number in numbers.flatten().tolist())


def self_test_positions(encoding: Encoding) -> Positions:
    """Return the positions of the self-test: POSITIONS, halved on the second axis and so on, within a table."""
    axes = len(getattr(encoding, "sections_in_use", ())) or vars(encoding).get("axes", 0)
    if axes and "turn" in encoding.doors:
        return as_positions(samples(1, 3, axes))  # coordinates from -1 to 1, which image encodings read
    ids = torch.tensor(POSITIONS)
    if (encoding.axes or 1) > 1:
        ids = positions_on_axes(ids, encoding.axes)[None]  # [1, T, axes]
    if sizes := getattr(encoding, "cells", getattr(encoding, "limits", ())):
        ids = torch.minimum(ids, torch.tensor(sizes) - 1)
    if interval := getattr(encoding, "interval", None):  # nearer tokens have the temperature 1
        ids = ids * interval - 1
    by_horizon = getattr(getattr(encoding, "schedule", None), "by_horizon", False)
    return as_positions(ids).with_horizon(HORIZON if by_horizon else None)


def positions_on_axes(ids: Tensor, axes: int) -> Tensor:
    """Return positions [T], or [T, axes] with another number on each axis."""
    return ids if axes == 1 else torch.stack([ids // (axis + 1) for axis in range(axes)], -1)


def samples(*shape: int) -> Tensor:
    """Return the sine of each element's index (float64): numbers that any library makes."""
    size = torch.Size(shape).numel()
    return torch.arange(size, dtype=torch.float64).sin().view(shape)
