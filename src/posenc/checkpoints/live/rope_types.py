"""Schedules as transformers' `rope_type`: what builds a rotary module asks here, and so a config decides.

A function of `ROPE_INIT_FUNCTIONS` is given the config and returns the frequencies (radians per position) and the
temperature, which is just what a schedule gives.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.kinds.rotary.keys import OURS, options_of, schedule_named
from posenc.encodings.rotations.rotary import Rotary
from posenc.foreign import near, quoted
from posenc.schedules import Schedule

OWN = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
"""The keys that stand beside the options of every rope type."""

NONE = f"{OURS}none"
"""The rope type that turns nothing."""


def from_schedule(
    name: str, config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None
) -> tuple[Tensor, float]:
    """What `ROPE_INIT_FUNCTIONS` holds for the schedule of a name: its options are keys beside `rope_type`."""
    parameters = parameters_of(config, layer_type)
    rotary = Rotary(
        width(config, parameters),
        base=float(parameters["rope_theta"]),
        schedule=schedule_said(name, parameters, config),
    )
    horizon = parameters.get("horizon")
    frequencies, temperature = rotary.spectrum(None if horizon is None else torch.tensor([horizon], device="cpu"))
    return placed(frequencies.flatten(), device), float(temperature)


def without_turns(
    config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None
) -> tuple[Tensor, float]:
    """What `ROPE_INIT_FUNCTIONS` holds for models that turn nothing: frequencies of 0."""
    parameters = parameters_of(config, layer_type)
    check_keys(NONE, parameters, (), config)
    return placed(torch.zeros(width(config, parameters) // 2, dtype=torch.float64, device="cpu"), device), 1.0


def parameters_of(config: Any, layer_type: str | None) -> Mapping[str, Any]:
    """The rotary parameters of a config, for layers of a type where it tells types apart; empty where it has none."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return (parameters[layer_type] or {}) if layer_type in parameters else parameters


def placed(frequencies: Tensor, device: Any) -> Tensor:
    """Frequencies as transformers keeps them: float32, where a model is built if nobody says where."""
    return frequencies.to(device=torch.get_default_device() if device is None else device, dtype=torch.float32)


def width(config: Any, said: Mapping[str, Any]) -> int:
    """How many channels of a head turn, as transformers counts them."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(head_dim * (said.get("partial_rotary_factor") or 1.0))


def schedule_said(name: str, said: Mapping[str, Any], config: Any) -> Schedule:
    """A schedule with the options that stand in a dictionary of rotary parameters.

    Raises ValueError for keys that nothing reads, options that the schedule refuses, a horizon that is missing or that
    nothing depends on, and a schedule that changes the scale of attention; CannotRead for code of a file.
    """
    rope_type, options = f"{OURS}{name}", options_of(name)
    check_keys(rope_type, said, (*options, "horizon"), config)
    length = getattr(config, "max_position_embeddings", None)
    schedule = schedule_named(name, {option: said.get(option) for option in options}, length)
    horizon = said.get("horizon")
    if schedule.by_horizon and not (type(horizon) is int and horizon >= 1):
        raise ValueError(
            f"{rope_type} depends on how long each sequence will be, and a rotary module turns each key once: declare "
            f'the length of all sequences as "horizon": 32768 (tokens) in rope_parameters, got {quoted(str(horizon))}, '
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


def check_keys(rope_type: str, said: Mapping[str, Any], known: tuple[str, ...], config: Any) -> None:
    """Raises ValueError for keys that neither this rope type nor the model itself reads."""
    own = {*OWN, *(getattr(config, "ignore_keys_at_rope_validation", None) or ())}
    for key in said:
        if key not in own and key not in known:
            raise ValueError(
                f"rope_parameters of {rope_type} have a key {quoted(key)} that nothing reads; beside rope_theta and "
                f"partial_rotary_factor it takes: {', '.join(known) or 'nothing'}{near(key, known)}"
            )
