"""Schedules as transformers' `rope_type`: functions for its table `ROPE_INIT_FUNCTIONS`.

Each takes a config and returns the frequencies (radians per position) and the temperature.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from posenc.checkpoints.kinds.rotary.keys import OWN_PREFIX, option_names, schedule_named
from posenc.encodings.rotations.rotary import Rotary
from posenc.foreign import quote, suggestion
from posenc.schedules import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedConfig as Config

Device: TypeAlias = torch.device | str | None

SHARED_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
"""The keys that every rope type has beside its options."""

NO_ROTATION = f"{OWN_PREFIX}none"
"""The rope type without rotation."""


def from_schedule(
    name: str, config: "Config", device: Device = None, seq_len: int | None = None, layer_type: str | None = None
) -> tuple[Tensor, float]:
    """Return the frequencies and the temperature of a schedule, whose options are keys beside `rope_type`."""
    parameters = layer_parameters(config, layer_type)
    schedule, base = schedule_from(name, parameters, config), float(parameters["rope_theta"])
    rotary = Rotary(rotated_width(config, parameters), base=base, schedule=schedule)
    horizon = parameters.get("horizon")
    frequencies, temperature = rotary.spectrum(None if horizon is None else torch.tensor([horizon], device="cpu"))
    return stored_frequencies(frequencies.flatten(), device), float(temperature)


def without_turns(
    config: "Config", device: Device = None, seq_len: int | None = None, layer_type: str | None = None
) -> tuple[Tensor, float]:
    """Return frequencies of 0 and a temperature of 1."""
    parameters = layer_parameters(config, layer_type)
    check_keys(NO_ROTATION, parameters, (), config)
    frequencies = torch.zeros(rotated_width(config, parameters) // 2, device="cpu")
    return stored_frequencies(frequencies, device), 1.0


def layer_parameters(config: "Config", layer_type: str | None) -> Mapping[str, Any]:
    """Return a config's rotary parameters, for a layer type if they differ by type; {} without any."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return (parameters[layer_type] or {}) if layer_type in parameters else parameters


def stored_frequencies(frequencies: Tensor, device: Device) -> Tensor:
    """Return frequencies as transformers stores them: float32, by default on the device of new tensors."""
    return frequencies.to(device=torch.get_default_device() if device is None else device, dtype=torch.float32)


def rotated_width(config: "Config", parameters: Mapping[str, Any]) -> int:
    """Return the number of rotated channels of a head, as transformers counts them."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(head_dim * (parameters.get("partial_rotary_factor") or 1.0))


def schedule_from(name: str, parameters: Mapping[str, Any], config: "Config") -> Schedule:
    """Build a schedule from the options among the rotary parameters of a config.

    Raises ValueError for an unknown key, an option that the schedule refuses, a horizon that is missing or unused, and
    a schedule that changes the scale of attention; CannotRead for a schedule that is code in a file.
    """
    rope_type, options = f"{OWN_PREFIX}{name}", option_names(name)
    check_keys(rope_type, parameters, (*options, "horizon"), config)
    length = getattr(config, "max_position_embeddings", None)
    schedule = schedule_named(name, {option: parameters.get(option) for option in options}, length)
    horizon = parameters.get("horizon")
    if schedule.by_horizon and not (type(horizon) is int and horizon >= 1):
        raise ValueError(
            f"{rope_type} depends on how long each sequence will be, and a rotary module turns each key once: declare "
            f'the length of all sequences as "horizon": 32768 (tokens) in rope_parameters, got {quote(str(horizon))}, '
            f"or let keys be cached unturned: attach(model, 'rotary(schedule={schedule})')"
        )
    if not schedule.by_horizon and horizon is not None:
        raise ValueError(f"{rope_type} does not depend on a horizon; leave it out of rope_parameters")
    if schedule.scale_factor != 1:
        raise ValueError(
            f"{schedule} multiplies the scale of attention by {schedule.scale_factor:.4g}, which no rope_type can say; "
            f"give it attention_factor instead, or set the model's own scale"
        )
    return schedule


def check_keys(rope_type: str, parameters: Mapping[str, Any], options: tuple[str, ...], config: "Config") -> None:
    """Raise ValueError for keys that neither this rope type nor the model reads."""
    model_keys = {*SHARED_KEYS, *(getattr(config, "ignore_keys_at_rope_validation", None) or ())}
    for key in parameters:
        if key not in model_keys and key not in options:
            raise ValueError(
                f"rope_parameters of {rope_type} have a key {quote(key)} that nothing reads; beside rope_theta and "
                f"partial_rotary_factor it takes: {', '.join(options) or 'nothing'}{suggestion(key, options)}"
            )
