"""What a model is given in a dry run: a few tokens, an image, or sound, as little as tells all."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from posenc.checkpoints.models.found import found
from posenc.checkpoints.vocabulary.bounds import HEADS

LOUDEST = 4096
"""The most frames of a sound, bands of a frame, and pixels of a side, that are tried."""


def usual_inputs(model: nn.Module) -> dict[str, Any]:
    """Something to give to a model's `forward`: a few tokens, or an image of its own size; batch 1."""
    config: Any = model.config
    # As many tokens as nothing else in the model, or its heads could be taken for them.
    taken = {number for _, number in whole_numbers(config.to_dict())}
    tokens = next(n for n in range(4, len(taken) + 5) if n not in taken)
    accepted = inspect.signature(model.forward).parameters
    named = (main_input(model), "pixel_values", "image", "input_ids")
    name = next((one for one in named if one in accepted), named[0])
    if "grid_thw" in accepted:
        rows, columns = 4, 8
        patch = getattr(config, "patch_size", 14)
        width = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
        width *= getattr(config, "temporal_patch_size", 1) * patch**2
        first = next(iter(accepted))
        return {first: torch.zeros(rows * columns, width), "grid_thw": torch.tensor([[1, rows, columns]])}
    inputs: dict[str, Any] = {}
    if name in ("pixel_values", "image"):
        # Rotary towers take any image, and a small one tells as much.
        patch = getattr(config, "patch_size", None)
        small = isinstance(patch, int) and any(item.kind == "frequencies" for item in found(model))
        # As many patches as there are no heads, or one could be taken for the other.
        heads = [getattr(config, key, None) for key in HEADS]
        side = next(n for n in (4, 6, 8) if n * n not in heads)
        size = side * patch if small and patch else getattr(config, "image_size", 224) or 224
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        inputs[name] = torch.zeros(1, getattr(config, "num_channels", 3), height, width)
    elif name == "input_features" and isinstance(getattr(config, "num_mel_bins", None), int):
        frames = 2 * (getattr(config, "max_source_positions", None) or 50)
        inputs[name] = torch.zeros(1, config.num_mel_bins, frames)
        if "input_features_mask" in accepted:
            inputs["input_features_mask"] = torch.ones(1, frames)
    else:
        inputs["input_ids"] = torch.full((1, tokens), 7)
    if "decoder_input_ids" in accepted:
        inputs["decoder_input_ids"] = torch.full((1, tokens), 7)
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    if "bbox" in accepted and "input_ids" in inputs:
        # Left, top, right and bottom of each token's box all count up, and so do their widths and heights.
        one = torch.arange(inputs["input_ids"].shape[1])
        inputs["bbox"] = torch.stack((one, one, 2 * one, 2 * one), -1)[None]
    return inputs


def other_inputs(model: Any) -> Iterator[dict[str, Any]]:
    """What a model may want else: an image beside a text; samples of sound, or frames of bands, either axis first."""
    name, accepted = main_input(model), inspect.signature(model.forward).parameters
    known = {key: n for key, n in whole_numbers(model.config.to_dict()) if 0 < n <= LOUDEST}
    if name == "input_ids" and "pixel_values" in accepted:
        side = known.get("image_size", 224)
        yield usual_inputs(model) | {"pixel_values": torch.zeros(1, known.get("num_channels", 3), side, side)}
    if name == "pixel_values" and isinstance(side := getattr(model.config, "image_size", None), int):
        # Some hold the places of a whole image.
        yield {name: torch.zeros(1, known.get("num_channels", 3), side, side)}
    if name not in ("input_features", "input_values") or name not in accepted:
        return
    text = {"decoder_input_ids": torch.full((1, 5), 7)} if "decoder_input_ids" in accepted else {}
    frames = known.get("max_length", 40)
    for key in ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim"):
        if key in known:
            masks = {key: torch.ones(1, frames) for key in ("input_features_mask",) if key in accepted}
            yield {name: torch.zeros(1, frames, known[key])} | text | masks
            yield {name: torch.zeros(1, known[key], frames)} | text | masks
    yield {name: torch.zeros(1, 8000)} | text


def main_input(model: Any) -> str:
    """What a model reads first; some name several."""
    name = getattr(model, "main_input_name", "input_ids")
    return name if isinstance(name, str) else name[0]


def whole_numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Every whole number in a configuration, and in those within it, with its key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from whole_numbers(value)
        elif isinstance(value, int):
            yield key, value
