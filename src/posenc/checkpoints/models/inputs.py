"""Small inputs for a dry run of any model: a few tokens, an image, or audio."""

import inspect
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from posenc.checkpoints.models.position_items import position_items
from posenc.checkpoints.vocabulary.bounds import HEADS, LENGTHS

MAX_SIZE = 4096
"""The largest number of audio frames, bands of a frame, and pixels of a side, that is tried."""

FRAMES = 40
"""The default number of audio frames, and of steps of a time series."""

MAX_NUMBERS = 1 << 26
"""The largest size of an input that is tried (numbers)."""

MAX_TOKENS = 1 << 10
"""The largest number of tokens that is tried."""

ROWS, COLUMNS = 4, 8
"""The grid of an image that is given as patches."""


def usual_inputs(model: nn.Module) -> dict[str, Any]:
    """Return the likeliest arguments of a model's `forward`. They are a few tokens or an image of its size, batch 1."""
    config: Any = model.config
    parameters = inspect.signature(model.forward).parameters
    names = (main_input(model), "pixel_values", "image", "input_ids")
    name = next((candidate for candidate in names if candidate in parameters), names[0])
    if "grid_thw" in parameters:
        patch = getattr(config, "patch_size", 14)
        width = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
        width *= getattr(config, "temporal_patch_size", 1) * patch**2
        first = next(iter(parameters))
        return {first: torch.zeros(ROWS * COLUMNS, width), "grid_thw": torch.tensor([[1, ROWS, COLUMNS]])}
    inputs: dict[str, Any] = {}
    if name in ("pixel_values", "image"):
        # Rotary towers take an image of any size, and a small one shows as much.
        patch = getattr(config, "patch_size", None)
        small = isinstance(patch, int) and any(item.kind == "frequencies" for item in position_items(model))
        # The numbers of patches and of heads must differ, to be told apart.
        heads = [getattr(config, key, None) for key in HEADS]
        side = next(n for n in (4, 6, 8) if n * n not in heads)
        size = side * patch if small and patch else getattr(config, "image_size", 224) or 224
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        inputs[name] = torch.zeros(1, getattr(config, "num_channels", 3), height, width)
    elif name == "input_features" and isinstance(getattr(config, "num_mel_bins", None), int):
        frames = 2 * (getattr(config, "max_source_positions", None) or 50)
        inputs[name] = torch.zeros(1, config.num_mel_bins, frames)
        if "input_features_mask" in parameters:
            inputs["input_features_mask"] = torch.ones(1, frames)
    else:
        inputs["input_ids"] = token_ids(config.to_dict())
    if "decoder_input_ids" in parameters:
        inputs["decoder_input_ids"] = token_ids(config.to_dict())
    if "use_cache" in parameters:
        inputs["use_cache"] = False
    if "bbox" in parameters and "input_ids" in inputs:
        # Left, top, right and bottom of each token's box all count up, and so do widths and heights.
        place = torch.arange(inputs["input_ids"].shape[1])
        inputs["bbox"] = torch.stack((place, place, 2 * place, 2 * place), -1)[None]
    return inputs


def token_ids(config: Mapping[str, Any]) -> torch.Tensor:
    """Return a few ids. Their number differs from every size in the config, such as the number of heads.

    There are at least eight, so that a model that pools four tokens keeps two, unless a dynamic schedule would stretch.
    """
    numbers = list(whole_numbers(config))
    config_numbers = {number for _, number in numbers}
    lengths = (*LENGTHS, "original_max_position_embeddings")
    trained_length = min((number for key, number in numbers if key in lengths), default=MAX_TOKENS)
    counts = (*range(8, min(trained_length, MAX_TOKENS) + 1), *range(4, len(config_numbers) + 9))
    return torch.full((1, next(n for n in counts if n not in config_numbers)), 7)


def inputs_for(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield possible arguments of a model's `forward`, the likeliest first; batch 1.

    Models do not declare the shape of each argument, nor which others it needs.
    """
    yield (usual := usual_inputs(model))
    config: Any = model.config
    parameters = inspect.signature(model.forward).parameters
    sizes = {key: n for key, n in whole_numbers(config.to_dict()) if 0 < n <= MAX_SIZE}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    mandatory = [key for key, p in parameters.items() if p.default is p.empty and p.kind not in variadic]
    name = next(key for key in (main_input(model), *mandatory, "") if key in parameters or not key)
    text = {key: token_ids(config.to_dict()) for key in ("input_ids", "decoder_input_ids") if key in parameters}
    mains: Iterable[dict[str, Any]] = ({name: form} | text for form in input_forms(model, name, sizes))
    if name in text:
        # Audio tokens have one id for each codebook, and may have a text beside them.
        books = {sizes[key] + extra for key in ("num_codebooks", "num_channels") if key in sizes for extra in (0, 1)}
        mains = [text, *({key: ids[..., None].expand(-1, -1, n) for key, ids in text.items()} for n in sorted(books))]
        if "inputs_embeds" in parameters:
            mains.append({"inputs_embeds": torch.zeros(1, FRAMES, sizes.get("hidden_size", 1))})
    for main in mains:
        optional = optional_inputs(parameters, next(iter(main.values())).shape[1], sizes)
        # The decoder of a time series reads the future only.
        minimal = {key: value for key, value in optional.items() if key in mandatory or key.startswith("future_")}
        if {*main, *minimal}.issuperset(mandatory):
            yield from (extra | main for extra in (minimal, optional))
    if name == "input_ids" and "pixel_values" in parameters:
        yield from (usual | {"pixel_values": image} for image in input_forms(model, "pixel_values", sizes))


def input_forms(model: nn.Module, name: str, sizes: Mapping[str, int]) -> Iterator[torch.Tensor]:
    """Yield tensors of all shapes that an argument may have."""
    if name == "past_values":
        lags = getattr(model.config, "lags_sequence", None) or [0]
        shapes: Iterable[tuple[int, ...]] = [(sizes.get("context_length", FRAMES) + max(lags),)]
    else:
        shapes = image_shapes(sizes) if name.startswith("pixel") else audio_shapes(model, sizes)
    yield from (torch.zeros(1, *shape) for shape in shapes if math.prod(shape) <= MAX_NUMBERS)


def image_shapes(sizes: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Yield shapes of an image, of a video, of patches as rows, and of patches in one image."""
    channels, side, patch = sizes.get("num_channels", 3), sizes.get("image_size", 224), sizes.get("patch_size", 16)
    yield channels, side, side
    yield sizes.get("num_frames", 4), channels, side, side
    yield ROWS * COLUMNS, channels * patch**2
    yield ROWS * COLUMNS, channels, patch, patch
    yield channels, patch, ROWS * COLUMNS * patch


def audio_shapes(model: nn.Module, sizes: Mapping[str, int]) -> Iterator[tuple[int, ...]]:
    """Yield shapes of audio: frames with bands, either axis first, and samples. Bands are the config's or a layer's."""
    frames = sizes.get("max_length", FRAMES)
    weights = (getattr(module, "weight", None) for module in model.modules() if not isinstance(module, nn.Embedding))
    first = next((weight.shape for weight in weights if isinstance(weight, torch.Tensor)), (1,))
    bands = [sizes[key] for key in ("num_mel_bins", "input_feat_per_channel") if key in sizes]
    for width in dict.fromkeys([*bands, first[1] if len(first) > 1 else first[0], sizes.get("hidden_size", 1)]):
        # One band means samples.
        yield from ((frames, width), (width, frames), (1, frames, width)) if width > 1 else ()
    yield (8000,)
    yield 1, 8000


def optional_inputs(parameters: Collection[str], tokens: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the other arguments that a model accepts, for a number of tokens, bands or patches."""
    future, features = sizes.get("prediction_length", 1), sizes.get("num_time_features", 1)
    states, grid = torch.zeros(1, tokens, sizes.get("hidden_size", 1)), torch.tensor([[1, ROWS, COLUMNS]])
    values: dict[str, Any] = {
        **{"hidden_states": states, "encoder_hidden_states": states, "num_patches": tokens},
        **{"past_time_features": torch.zeros(1, tokens, features), "future_values": torch.zeros(1, future)},
        **{"future_time_features": torch.zeros(1, future, features), "merge_sizes": torch.ones(1).long()},
        **{"spatial_shapes": grid[:, 1:], "target_sizes": grid[:, 1:], "grid_thw": grid, "image_grid_thw": grid},
        "pixel_position_ids": torch.cartesian_prod(*map(torch.arange, grid[0, 1:]))[None],
        **{"is_longer": torch.zeros(1, 1).bool(), "task_inputs": torch.zeros(1, sizes.get("task_seq_len", 77))},
    }
    # A mask of samples would have a number for each pair of them.
    masks = {key: torch.ones(1, tokens) for key in parameters if key.endswith("mask") and tokens <= MAX_SIZE}
    return {key: value for key, value in {**values, **masks}.items() if key in parameters}


def main_input(model: nn.Module) -> str:
    """Return the name of a model's first input; some models name several."""
    name: Any = getattr(model, "main_input_name", "input_ids")
    return name if isinstance(name, str) else name[0]


def whole_numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield every integer in a configuration, and in nested ones, with its key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from whole_numbers(value)
        elif isinstance(value, int):
            yield key, value
