"""What a model is given in a dry run: a few tokens, an image, or sound, as little as tells all."""

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from posenc.checkpoints.models.found import found
from posenc.checkpoints.vocabulary.bounds import HEADS, LENGTHS

LOUDEST = 4096
"""The most frames of a sound, bands of a frame, and pixels of a side, that are tried."""

FRAMES = 40
"""Frames of a sound, and steps of a series, where the configuration says no number."""

MOST = 1 << 26
"""The most numbers that are tried."""

MOST_FEW = 1 << 10
"""How many tokens are few."""

ROWS, COLUMNS = 4, 8
"""Patches of an image that is given by them."""


def usual_inputs(model: nn.Module) -> dict[str, Any]:
    """Something to give to a model's `forward`: a few tokens, or an image of its own size; batch 1."""
    config: Any = model.config
    accepted = inspect.signature(model.forward).parameters
    named = (main_input(model), "pixel_values", "image", "input_ids")
    name = next((one for one in named if one in accepted), named[0])
    if "grid_thw" in accepted:
        patch = getattr(config, "patch_size", 14)
        width = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
        width *= getattr(config, "temporal_patch_size", 1) * patch**2
        first = next(iter(accepted))
        return {first: torch.zeros(ROWS * COLUMNS, width), "grid_thw": torch.tensor([[1, ROWS, COLUMNS]])}
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
        inputs["input_ids"] = few_tokens(config)
    if "decoder_input_ids" in accepted:
        inputs["decoder_input_ids"] = few_tokens(config)
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    if "bbox" in accepted and "input_ids" in inputs:
        # Left, top, right and bottom of each token's box all count up, and so do their widths and heights.
        one = torch.arange(inputs["input_ids"].shape[1])
        inputs["bbox"] = torch.stack((one, one, 2 * one, 2 * one), -1)[None]
    return inputs


def few_tokens(config: Any) -> torch.Tensor:
    """As many tokens as nothing else in the model, or its heads could be taken for them.

    Eight or more where no dynamic schedule would stretch for them: where four are pooled into one, two are left.
    """
    numbers = list(whole_numbers(config.to_dict()))
    taken = {number for _, number in numbers}
    lengths = (*LENGTHS, "original_max_position_embeddings")
    trained = min((number for key, number in numbers if key in lengths), default=MOST_FEW)
    counts = (*range(8, min(trained, MOST_FEW) + 1), *range(4, len(taken) + 9))
    return torch.full((1, next(n for n in counts if n not in taken)), 7)


def inputs_for(model: Any) -> Iterator[dict[str, Any]]:
    """What may be given to a model's `forward`, the likeliest first; batch 1.

    No model says of all that it reads in which form it comes, nor what it wants beside.
    """
    yield (usual := usual_inputs(model))
    accepted = inspect.signature(model.forward).parameters
    known = {key: n for key, n in whole_numbers(model.config.to_dict()) if 0 < n <= LOUDEST}
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [key for key, one in accepted.items() if one.default is one.empty and one.kind not in several]
    name = next(key for key in (main_input(model), *required, "") if key in accepted or not key)
    text = {key: few_tokens(model.config) for key in ("input_ids", "decoder_input_ids") if key in accepted}
    mains: Iterable[dict[str, Any]] = ({name: form} | text for form in forms(model, name, known))
    if name in text:
        # Sound that became tokens has one for each codebook; a text may stand beside them.
        books = {known[key] + more for key in ("num_codebooks", "num_channels") if key in known for more in (0, 1)}
        mains = [text, *({key: ids[..., None].expand(-1, -1, n) for key, ids in text.items()} for n in sorted(books))]
        if "inputs_embeds" in accepted:
            mains.append({"inputs_embeds": torch.zeros(1, FRAMES, known.get("hidden_size", 1))})
    for main in mains:
        beside = besides(accepted, next(iter(main.values())).shape[1], known)
        # Without a future the decoder of a series reads nothing.
        needed = {key: value for key, value in beside.items() if key in required or key.startswith("future_")}
        if {*main, *needed}.issuperset(required):
            yield from (more | main for more in (needed, beside))
    if name == "input_ids" and "pixel_values" in accepted:
        yield from (usual | {"pixel_values": image} for image in forms(model, "pixel_values", known))


def forms(model: Any, name: str, known: Mapping[str, int]) -> Iterator[torch.Tensor]:
    """The numbers that a model may be given under a name."""
    if name == "past_values":
        lags = getattr(model.config, "lags_sequence", None) or [0]
        shapes: Iterable[tuple[int, ...]] = [(known.get("context_length", FRAMES) + max(lags),)]
    else:
        shapes = image_shapes(known) if name.startswith("pixel") else sound_shapes(model, known)
    yield from (torch.zeros(1, *shape) for shape in shapes if math.prod(shape) <= MOST)


def image_shapes(known: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """An image, a video, patches in rows, and all of them in one."""
    channels, side, patch = known.get("num_channels", 3), known.get("image_size", 224), known.get("patch_size", 16)
    yield channels, side, side
    yield known.get("num_frames", 4), channels, side, side
    yield ROWS * COLUMNS, channels * patch**2
    yield ROWS * COLUMNS, channels, patch, patch
    yield channels, patch, ROWS * COLUMNS * patch


def sound_shapes(model: nn.Module, known: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Frames of as many bands as the configuration or a layer has, either axis first, and samples."""
    frames = known.get("max_length", FRAMES)
    weights = (getattr(module, "weight", None) for module in model.modules() if not isinstance(module, nn.Embedding))
    first = next((weight.shape for weight in weights if isinstance(weight, torch.Tensor)), (1,))
    bands = [known[key] for key in ("num_mel_bins", "input_feat_per_channel") if key in known]
    for wide in dict.fromkeys([*bands, first[1] if len(first) > 1 else first[0], known.get("hidden_size", 1)]):
        # A single band is samples.
        yield from ((frames, wide), (wide, frames), (1, frames, wide)) if wide > 1 else ()
    yield (8000,)
    yield 1, 8000


def besides(accepted: Collection[str], tokens: int, known: Mapping[str, int]) -> dict[str, Any]:
    """What a model accepts beside so many tokens, bands or patches."""
    future, features = known.get("prediction_length", 1), known.get("num_time_features", 1)
    hidden, grid = torch.zeros(1, tokens, known.get("hidden_size", 1)), torch.tensor([[1, ROWS, COLUMNS]])
    made: dict[str, Any] = {
        **{"hidden_states": hidden, "encoder_hidden_states": hidden, "num_patches": tokens},
        **{"past_time_features": torch.zeros(1, tokens, features), "future_values": torch.zeros(1, future)},
        **{"future_time_features": torch.zeros(1, future, features), "merge_sizes": torch.ones(1).long()},
        **{"spatial_shapes": grid[:, 1:], "target_sizes": grid[:, 1:], "grid_thw": grid, "image_grid_thw": grid},
        "pixel_position_ids": torch.cartesian_prod(*map(torch.arange, grid[0, 1:]))[None],
        **{"is_longer": torch.zeros(1, 1).bool(), "task_inputs": torch.zeros(1, known.get("task_seq_len", 77))},
    }
    # Of samples a mask would be one for each pair of them.
    masks = {key: torch.ones(1, tokens) for key in accepted if key.endswith("mask") and tokens <= LOUDEST}
    return {key: value for key, value in {**made, **masks}.items() if key in accepted}


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
