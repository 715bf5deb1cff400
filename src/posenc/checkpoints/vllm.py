"""vLLM's configs: one of transformers with overrides and arguments of the engine, and types of rope of its own."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posenc.checkpoints import config_json
from posenc.checkpoints.configs import (
    CannotWrite,
    Ledger,
    encodings_of,
    only_part,
    possible,
    rotary_of,
    rotary_spec,
    short,
    whole,
)
from posenc.checkpoints.reading import CannotRead, Layer, Part, Reading
from posenc.schedules import NTK, NTKFixed, NTKMixed, Schedule, YaRN

SIGNS = ("hf_overrides", "max_model_len", "hf_config", "hf_text_config")
"""Arguments of the engine that say of positions, or that hold the model's own config."""

OWN_TYPES = ("ntk", "deepseek_yarn", "deepseek_llama_scaling", "xdrope", "openpangu")
"""Types of rope that vLLM has and transformers has not."""

YARN_KEYS = ("extrapolation_factor", "attn_factor", "apply_yarn_scaling")
"""Keys that vLLM's YaRN reads and transformers' does not."""


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with underscores for dashes, as they stand on the command line and in YAML."""
    return {str(key).lstrip("-").replace("-", "_"): value for key, value in given.items()}


def is_it(given: Mapping[str, Any]) -> bool:
    keys = plain(given)
    return any(key in keys for key in SIGNS) or type_of(rope_of(keys)) in OWN_TYPES


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The dictionary of rope's parameters, under its new name or its old one."""
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(config.get(key), Mapping):
            return config[key]
    return {}


def type_of(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type"))


def read(given: Mapping[str, Any]) -> Reading:
    """What vLLM makes of a config of transformers with its overrides (hf_overrides, rope_scaling, rope_theta).

    The model's own config stands beside the arguments, or under hf_config. What is vLLM's own, the types of rope `ntk`,
    `deepseek_yarn`, `dynamic` with alpha, and YaRN's `attn_factor`, is read here, the rest as transformers' config.
    Raises CannotRead where there is no config, and for types of rope that no spec says.
    """
    keys = plain(given)
    config = keys.pop("hf_text_config", None) or keys.pop("hf_config", None)
    if not isinstance(config, Mapping):
        config = {key: value for key, value in keys.items() if key not in SIGNS}
    if not {"hidden_size", "d_model", "n_embd", "text_config", "num_hidden_layers"} & set(config):
        model = f" of {keys['model']}" if "model" in keys else ""
        raise CannotRead(
            f"these are vLLM's arguments without the config{model} that they change; put the keys of its config.json "
            "beside them, or the whole of it under hf_config"
        )
    ledger = Ledger(keys)
    config = overridden(dict(config), keys, ledger)
    longest = ledger.take("max_model_len", "served up to {} tokens")
    rope, changed = rope_of(config), config
    schedule = None
    if own(rope):
        inside = Ledger(rope, "rope_parameters", everything=True, inside=ledger)
        with possible("rope_parameters"):
            schedule = own_schedule(inside)
        for key in ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"):
            inside.taken.add(key)
        default = {key: value for key, value in rope.items() if key in inside.taken and not of_schedule(key)}
        changed = {key: value for key, value in config.items() if key not in ("rope_scaling", "rope_parameters")}
        changed["rope_parameters"] = {"rope_type": "default", **default}
        if "rope_theta" in config:
            changed["rope_parameters"].setdefault("rope_theta", config["rope_theta"])
        unknown = inside.unknown()
    else:
        unknown = {}
    reading = config_json.read(changed)
    parts = tuple(served(part, schedule, longest) for part in reading.parts)
    if type_of(rope) == "dynamic" and "alpha" not in rope:
        ledger.leave("dynamic NTK as vLLM has it: one table for all lengths, not one that follows each sequence")
    if type_of(rope) in ("longrope", "su"):
        ledger.leave("LongRoPE as vLLM has it: one list for all sequences, chosen by max_model_len")
    return Reading(
        "vllm",
        reading.architecture,
        parts,
        {**reading.understood, **ledger.understood},
        {**reading.unknown, **unknown},
        (*reading.contradictions, *ledger.contradictions),
        (*reading.not_covered, *ledger.not_covered),
    )


def overridden(config: dict[str, Any], keys: Mapping[str, Any], ledger: Ledger) -> dict[str, Any]:
    """The config with the overrides in place; rope_theta is kept where they leave it out."""
    overrides = keys.get("hf_overrides") or {}
    if isinstance(overrides, str):
        try:
            overrides = json.loads(overrides)
        except ValueError as error:
            raise CannotRead(f"hf_overrides must be a dictionary, or one as JSON: {error}") from None
    if not isinstance(overrides, Mapping):
        raise CannotRead(f"hf_overrides must be a dictionary, got {overrides!r}")
    for key, value in overrides.items():
        ledger.understood[f"hf_overrides.{key}"] = f"in place of {config.get(key, 'nothing')}"
        if key in ("rope_parameters", "rope_scaling") and isinstance(value, Mapping):
            theta = rope_of(config).get("rope_theta", config.get("rope_theta"))
            config.pop("rope_scaling", None), config.pop("rope_parameters", None)
            value = {**({"rope_theta": theta} if theta is not None else {}), **value}
            key = "rope_parameters"
        config[key] = {**config[key], **value} if key.endswith("_config") and key in config else value
    return config


def own(rope: Mapping[str, Any]) -> bool:
    """Whether vLLM reads these parameters in a way of its own."""
    kind = type_of(rope)
    return kind in OWN_TYPES or (kind == "dynamic" and "alpha" in rope) or any(key in rope for key in YARN_KEYS)


def of_schedule(key: str) -> bool:
    return key not in ("rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")


def own_schedule(rope: Ledger) -> Schedule:
    """The schedule of a type that is vLLM's own."""
    kind = rope.first(("rope_type", "type"), "schedule {}", kind="word")
    if kind == "dynamic":
        rope.say("factor", "nothing: alpha is given")
        return NTK(whole(rope.number("alpha", "base times {} to the power of r/(r-2), for all lengths")))
    if kind == "ntk":
        factor, power = whole(number(rope, "factor")), rope.number("mixed_b", "stretched by steps of the power {}")
        return NTKFixed(factor) if power is None else NTKMixed(factor, whole(power))
    if kind not in ("yarn", "deepseek_yarn", "deepseek_llama_scaling"):
        raise CannotRead(f"vLLM's rope type {kind!r} has no spec here")
    factor, length = whole(number(rope, "factor")), number(rope, "original_max_position_embeddings")
    if rope.number("extrapolation_factor", "how much of the ramp is used: {}", 1) != 1:
        raise CannotRead("extrapolation_factor must be 1; no spec mixes less of the ramp")
    betas = {"beta_fast": rope.number("beta_fast", "pairs that turn {} times are kept", 32)}
    betas["beta_slow"] = rope.number("beta_slow", "pairs that turn {} times are stretched", 1)
    betas = {key: whole(value) for key, value in betas.items()}
    warmth = rope.number("attn_factor", "cosines and sines are multiplied by {}", 1)
    if kind == "yarn":
        truncate = rope.flag("truncate", "the ramp's ends are whole pairs: {}", True)
        plain_yarn = YaRN(factor, int(length), **betas, truncate=truncate)
        if rope.flag("apply_yarn_scaling", "the temperature of YaRN's formula: {}", True):
            warmth = plain_yarn.temperature * warmth if warmth != 1 else None
        return plain_yarn if warmth is None else replace(plain_yarn, attention_factor=warmth)
    mscale = rope.number("mscale", "DeepSeek's mscale {}", 1)
    all_dim = rope.number("mscale_all_dim", "DeepSeek's mscale_all_dim {}", 0)
    found = YaRN(factor, int(length), **betas, mscale=mscale, mscale_all_dim=all_dim, mscale_rule="apart")
    return found if warmth == 1 else replace(found, attention_factor=found.temperature * warmth)


def number(rope: Ledger, key: str) -> Any:
    value = rope.number(key, f"{key.replace('_', ' ')} {{}}")
    if value is None:
        raise CannotRead(f"{rope.path(key)} is missing")
    return value


def served(part: Part, schedule: Schedule | None, longest: Any) -> Part:
    """A part with vLLM's own schedule in its rotary layers."""
    besides = part.besides
    if longest is not None and tokens(longest) > (part.trained_length or tokens(longest)):
        besides = (*besides, f"served up to {longest} tokens, past its trained length of {part.trained_length}")
    if schedule is None:
        return replace(part, besides=besides)
    layers = tuple(
        replace(layer, spec=stretched(part.encoding(index), layer, schedule)) if is_rotary(layer) else layer
        for index, layer in enumerate(part.layers)
    )
    found = replace(part, layers=layers, besides=besides)
    with possible("rope_parameters"):
        for index in range(len(found.layers)):
            found.encoding(index)
    return found


def is_rotary(layer: Layer) -> bool:
    return layer.spec.partition("(")[0] == "rotary"


def stretched(rotary: Any, layer: Layer, schedule: Schedule) -> str:
    width = rotary.width
    return rotary_spec(head_dim=layer.head_dim, width=width, base=rotary.base, layout=rotary.layout, schedule=schedule)


def tokens(given: Any) -> int:
    """A number of tokens, which vLLM's arguments may write as 128k (thousands) or 128K (times 1024)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", str(given).strip())
    if match is None:
        raise CannotRead(f"max_model_len must be a number of tokens, such as 32768 or 32k, got {given!r}")
    return int(float(match[1]) * {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20}[match[2]])


def write(reading: Reading, onto: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config of transformers, with vLLM's own types of rope where transformers has none for the schedule."""
    if onto is not None:
        onto = {key: value for key, value in plain(onto).items() if key not in ("hf_overrides", "hf_config")}
    schedules: dict[str, Any] = {
        repr(one.schedule): one.schedule
        for part in reading.parts
        for layer in encodings_of(part)
        for one in layer.values()
        if isinstance(getattr(one, "schedule", None), (NTK, NTKFixed, NTKMixed, YaRN))
    }
    mine = [one for one in schedules.values() if not isinstance(one, YaRN) or one.mscale_rule == "apart"]
    if not mine:
        return {"max_model_len": reading.parts[0].trained_length} | config_json.write(reading, onto)
    part = only_part(reading, "vLLM")
    rotary_of(part, "vLLM")
    bare = tuple(replace(one, spec=unstretched(part, index)) for index, one in enumerate(part.layers))
    out = config_json.write(replace(reading, parts=(replace(part, layers=bare),)), onto)
    rope = own_parameters(mine[0])
    out["rope_parameters"] = {**out["rope_parameters"], **rope}
    return {"max_model_len": part.trained_length} | out


def unstretched(part: Part, index: int) -> str:
    layer, told = part.layers[index], encodings_of(part)[index]
    if "rotary" not in told:
        return layer.spec
    one: Any = told["rotary"]
    return rotary_spec(head_dim=layer.head_dim, width=one.width, base=one.base, layout=one.layout)


def own_parameters(schedule: Schedule) -> dict[str, Any]:
    if isinstance(schedule, NTK):
        return {"rope_type": "dynamic", "alpha": schedule.factor}
    if isinstance(schedule, NTKFixed):
        return {"rope_type": "ntk", "factor": schedule.factor}
    if isinstance(schedule, NTKMixed):
        return {"rope_type": "ntk", "factor": schedule.factor, "mixed_b": schedule.power}
    if not isinstance(schedule, YaRN) or schedule.attention_factor is not None or not schedule.truncate:
        raise CannotWrite(f"vLLM has no parameters for the schedule {short(schedule)}")
    out: dict[str, Any] = {"rope_type": "deepseek_yarn", "factor": schedule.factor}
    out |= {"original_max_position_embeddings": schedule.trained_length}
    out |= {"beta_fast": schedule.beta_fast, "beta_slow": schedule.beta_slow}
    mscale = 1 if schedule.mscale is None else schedule.mscale
    return out | {"mscale": mscale, "mscale_all_dim": schedule.mscale_all_dim or 0}
