"""transformers' config.json: find contradictions among its keys, and write the positions of a part."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from posenc.catalogue import build
from posenc.checkpoints.kinds.rotary.keys import WITH_KEYS, rope_parameters
from posenc.checkpoints.kinds.rotary.old_keys import LONGEST, OLD, ORIGINAL_LENGTH, rope_type_of, with_old_keys
from posenc.checkpoints.vocabulary.bounds import HEADS, LENGTHS, WIDTHS
from posenc.checkpoints.vocabulary.ledger import show_value
from posenc.checkpoints.vocabulary.reading import UNHEARD, CannotRead, Part, Reading, with_part
from posenc.checkpoints.vocabulary.specs import CannotExpress, encodings_by_layer, possible, shape_of, shorten_spec
from posenc.checks import is_number
from posenc.foreign import bounded_count, one_line, shorten

SIGNS = {
    *("model_type", "architectures", "transformers_version", "max_position_embeddings", "rope_parameters"),
    *("rope_scaling", "rope_theta", "num_hidden_layers", "n_positions"),
}
"""Keys of which a config.json has at least one."""

ROTARY = {"rope_parameters", ORIGINAL_LENGTH, *OLD}
"""Rotary keys that some files have twice: in the config of a stack and around it."""

REPLACED_KEYS = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("max_position_embeddings", "attention_factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"),
    *("truncate", "mscale", "mscale_all_dim", "short_factor", "long_factor", "short_mscale", "long_mscale", "alpha"),
}
"""Keys in a dictionary of rotary that a new one replaces; others stay."""

BASE = re.compile(r"(rope|rotary)\w*(theta|base)(_freq)?$")
"""Names of the base of rotary in any code."""

NAMES = {"alibi": "alibi", "rot": "rotary", "rope": "rotary", "relative": r"\w"}
"""Words for encodings in keys -> patterns of their specs."""

STRETCHES_NOTHING = (None, "", "default", "axial", "mrope", "proportional")

MARK = "posenc_encoding"
"""The key that a conversion writes if transformers has none: a spec, or a list with one for each layer."""

MOST_NUMBERS = 1 << 28
"""The most parameters of one layer's encoding: a table for a million tokens of 256 channels."""


def recognises(config: Mapping[str, Any]) -> bool:
    return bool(SIGNS & set(config))


def read(config: Mapping[str, Any]) -> Reading:
    """Read the positions of a config.json by `huggingface.read`, and add contradictions among its keys.

    Raises CannotRead as `huggingface.read` does.
    """
    from posenc.checkpoints.formats import huggingface

    reading = huggingface.read({key: value for key, value in config.items() if key != MARK})
    with huggingface.quietly():
        hf, left = huggingface.build_config(config), reading.not_covered
    sentences = dict(unused_keys(config, reading.parts, hf, "")) if reading.parts and hf is not None else {}
    contradictions = dict.fromkeys((*sentences.values(), *reading.contradictions, *contradictions_of(config)))
    if auto_map := config.get("auto_map"):
        classes = auto_map.values() if isinstance(auto_map, Mapping) else [auto_map]
        names = shorten(one_line(", ".join(map(str, classes))), 80)
        left = (f"auto_map: code of its own ({names}) is not read; this is what transformers has of that name", *left)
    unknown = {key: value for key, value in reading.unknown.items() if key not in sentences}
    reading = replace(reading, contradictions=tuple(contradictions), not_covered=left, unknown=unknown)
    return reading if config.get(MARK) is None else with_marked_specs(reading, config[MARK])


def with_marked_specs(reading: Reading, mark: object) -> Reading:
    """Return a reading with the specs that a conversion wrote under `posenc_encoding`.

    Raises CannotRead unless that is a spec, or one for each layer, of the one part with positions.
    """
    of_layers = [part for part in reading.parts if any(layer.spec != "none" for layer in part.layers)]
    if len(of_layers) != 1:
        raise CannotRead(
            f"{MARK} speaks of a model with one stack of layers that have positions, and there are {len(of_layers)}"
        )
    part = of_layers[0]
    specs = [mark] * len(part.layers) if isinstance(mark, str) else mark
    if not isinstance(specs, list) or len(specs) != len(part.layers) or not all(isinstance(s, str) for s in specs):
        raise CannotRead(f"{MARK} must be a spec, or one for each of {len(part.layers)} layers, got {mark!r:.120}")
    layers = tuple(replace(layer, spec=spec) for layer, spec in zip(part.layers, specs, strict=True))
    for layer in dict.fromkeys(layers):
        # On the meta device: a spec may ask for a table of any size.
        with possible(MARK), torch.device("meta"):
            numbers = sum(weight.numel() for weight in build(layer.spec, shape_of(part, layer)).parameters())
        bounded_count(numbers, f"{MARK}: numbers of {shorten_spec(layer.spec)}", least=0, limit=MOST_NUMBERS)
    notes = {**reading.understood, MARK: "what a conversion has made of it, which transformers does not know"}
    return replace(with_part(reading, part, replace(part, layers=layers)), understood=notes)


def contradictions_of(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield sentences on contradictory keys, in the config and in nested ones."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    place = f"{path}{'rope_parameters' if config.get('rope_parameters') else 'rope_scaling'}"
    if isinstance(rope, Mapping):
        for key in ("rope_theta", "original_max_position_embeddings", "partial_rotary_factor"):
            yield from unequal_values(f"{path}{key}", config.get(key), f"{place}.{key}", rope.get(key))
        yield from wrong_stretch(config, rope, path, place)
        yield from unequal_ropes(config.get("rope_scaling"), config.get("rope_parameters"), path)
    for old, new in (("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")):
        yield from unequal_values(f"{path}{old}", config.get(old), f"{path}{new}", config.get(new))
    attn_config = config.get("attn_config")
    alibi = config.get("alibi") or (attn_config.get("alibi") if isinstance(attn_config, Mapping) else None)
    if alibi is True and (rope or config.get("rope_theta") is not None):
        yield f"{path}alibi is true and there are keys of rotary; an architecture has one of them"
    for key, value in config.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            yield from contradictions_of(value, f"{path}{key}.")


def unused_keys(config: Mapping[str, Any], parts: Sequence[Part], hf: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the keys that name an encoding which no layer of transformers has, each with a sentence."""
    encodings: list[Any] = [e for part in parts for layer in encodings_by_layer(part) for e in layer.values()]
    rotaries = [encoding for encoding in encodings if hasattr(encoding, "base")]
    places = [config_at(hf, name) for name in (path, *(part.name for part in parts))]
    key = "rope_parameters"
    asks = [str(getattr(place, key)) for place in places if hasattr(type(place), key)]
    is_complete, specs = all(part.is_complete for part in parts), " ".join(map(str, encodings))
    for key, value in ((str(key), value) for key, value in config.items()):
        if isinstance(value, Mapping):
            own_parts = [part for part in parts if f"{part.name}.".startswith(f"{path}{key}.")]
            if own_parts or not any(name in value for name in (*WIDTHS, *HEADS, "depth")):
                yield from unused_keys(value, own_parts or parts, hf, f"{path}{key}.")
            continue
        is_used = True
        if BASE.search(key) and is_number(value) and value > 0:
            # The modules were compared with the keys that transformers has.
            still = not rotaries and (value == 10_000 or any(hasattr(type(place), key) for place in places))
            is_used = still or any(math.isclose(value, rotary.base) for rotary in rotaries)
            is_used = is_used or any(not rotaries or re.search(rf": {value}[,}}]", rope) for rope in asks)
        elif key in ("type", "rope_type") and path.endswith(("rope_scaling.", "rope_parameters.")):
            is_used = value in STRETCHES_NOTHING or any(rotary.schedule for rotary in rotaries)
            is_used = is_used or (bool(asks) and not rotaries)
        elif "alibi" in key and value is True:
            is_used = not is_complete or "alibi" in specs
        elif re.search(r"pos\w*_(emb|enc)\w*", key) and isinstance(value, str):
            words = [spec for word, spec in NAMES.items() if word in value]
            is_used = not is_complete or not words or any(re.search(word, specs) for word in words)
        if not is_used:
            yield f"{path}{key}", f"{path}{key} is {show_value(value)}, and {UNHEARD}; followed: the modules"


def unequal_values(name: str, value: object, second: str, second_value: object) -> Iterator[str]:
    if is_number(value) and is_number(second_value) and value != second_value:
        words = f"{name} is {show_value(value)} and {second} is {show_value(second_value)}"
        yield f"{words}; followed: what transformers follows"


def unequal_ropes(old: object, new: object, path: str) -> Iterator[str]:
    """Yield sentences on differences of an older and a newer dictionary of rotary."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return
    old, new = (rope.get("full_attention", rope) for rope in (old, new))
    for key, value in old.items():
        newer = rope_type_of(new) if key in ("type", "rope_type") else new.get(key)
        if value != newer:
            words = f"{path}rope_scaling.{key} is {show_value(value)} and {path}rope_parameters says"
            yield f"{words} {show_value(newer)}; followed: what transformers follows"


def wrong_stretch(config: Mapping[str, Any], rope: Mapping[str, Any], path: str, place: str) -> Iterator[str]:
    """Yield a sentence if the factor does not lead from the original length to the longest one."""
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    start, longest = rope.get("original_max_position_embeddings"), config.get("max_position_embeddings")
    if kind in (None, "default") and is_number(factor) and factor != 1:
        yield f"{place}.factor is {show_value(factor)} and its type is {kind or 'missing'}, which stretches nothing"
    # Llama 3.1 itself has a factor of 8 from 8192 to 131072 tokens.
    if kind in ("yarn", "longrope", "su") and is_number(factor) and is_number(start) and is_number(longest):
        if factor * start != longest:
            yield (
                f"{place}.factor times original_max_position_embeddings is {show_value(factor * start)} and "
                f"{path}max_position_embeddings is {show_value(longest)}; followed: factor"
            )


def config_at(config: object, path: str) -> object:
    """Return the nested config of transformers at a path, or the last one on the way. Older files are flat."""
    for step in path.split("."):
        inner = getattr(config, step, None)
        config = inner if hasattr(inner, "to_dict") else config
    return config


def with_changed_part(
    config: Mapping[str, Any], path: str, change: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return a config with the nested one at a path changed, or the whole for older, flat files.

    A second copy of its rotary around it is removed; lengths around it follow.
    """
    step, _, rest = path.partition(".")
    old = config.get(step)
    if not isinstance(old, Mapping):
        return change(config)
    new = with_changed_part(old, rest, change)
    outer = {key: value for key, value in config.items() if key not in ROTARY}
    lengths = {key: new[key] for key in LENGTHS if key in outer and outer[key] == old.get(key)}
    return outer | lengths | {step: new}


def with_positions(config: Mapping[str, Any], part: Part) -> dict[str, Any]:
    """Return a config with a part's rotary and trained length, in both spellings. All else stays.

    Older keys get the new values, or are removed if they cannot express them; `old_keys.old_key_notes` reports that.

    Raises CannotExpress for a rotary that transformers, or this architecture, has no keys for.
    """
    from posenc.checkpoints.formats import huggingface

    hf = config_at(huggingface.build_config(config), part.name)
    return with_changed_part(config, part.name, lambda old: with_old_keys({**old, **positions(old, part, hf)}))


def positions(place: Mapping[str, Any], part: Part, hf: object) -> dict[str, Any]:
    """Return the keys of a part's rotary and trained length. `hf` is transformers' config of the old keys, or None."""
    out: dict[str, Any] = {}
    if part.trained_length:
        names = [key for key in LENGTHS if is_number(place.get(key))]
        usual = getattr(hf, "attribute_map", {}).get(LONGEST, LONGEST)
        out |= dict.fromkeys([key for key in names if place[key] == place[names[0]]] or [usual], part.trained_length)
    layers = enumerate(encodings_by_layer(part))
    rotaries: dict[int, Any] = {i: rotary for i, layer in layers for name, rotary in layer.items() if name in WITH_KEYS}
    has_keys = hasattr(hf, "rope_parameters") if hf is not None else bool(rotaries)
    if rotaries and "rotary_dim" in place:
        out["rotary_dim"] = next(iter(rotaries.values())).width
    if rotaries and has_keys:
        out["rope_parameters"] = parameters_by_kind(place, part, hf, rotaries)
        unsaid = place.get("head_dim") is None and any(rotary.schedule for rotary in rotaries.values())
        if unsaid and vars(hf or object).get("head_dim", 0) in (None, part.shape.head_dim):
            # Without it some of transformers' configs have a None, which some of its schedules multiply.
            out["head_dim"] = part.shape.head_dim
    elif any(rotary.base != 10_000 or rotary.schedule for rotary in rotaries.values()):
        raise CannotExpress(f"transformers' {place.get('model_type')} has no keys for the base or a schedule of rotary")
    if has_keys and isinstance(getattr(hf, "layer_rope_theta", None), list):
        out["layer_rope_theta"] = [float(rotaries[i].base) if i in rotaries else 0.0 for i in range(len(part.layers))]
    turning = [int(index in rotaries) for index in range(len(part.layers))]
    usual_layers = [1] * len(turning) if hf is None else turning
    if has_keys and getattr(hf, "no_rope_layers", usual_layers) != turning:
        out["no_rope_layers"] = turning
    return out


def parameters_by_kind(place: Mapping[str, Any], part: Part, hf: object, rotaries: Mapping[int, Any]) -> dict[str, Any]:
    """Return `rope_parameters` of all layers, or one for each layer type if the architecture has several."""
    old = getattr(hf, "rope_parameters", place.get("rope_parameters")) or {}
    types = (place if hf is None else vars(hf)).get("layer_types")
    if not isinstance(types, list) or len(types) != len(part.layers):
        types = ["sliding_attention" if layer.window else "full_attention" for layer in part.layers]
    parameters = {index: rope_parameters(rotary) for index, rotary in rotaries.items()}
    if hasattr(hf, "layer_rope_theta"):
        # Their bases are in a separate list.
        base = float(next(iter(rotaries.values())).base)
        parameters = {index: options | {"rope_theta": base} for index, options in parameters.items()}
    kinds = {kind: rope for kind, rope in old.items() if isinstance(rope, Mapping) or kind in types}
    if hf is None and any(options != parameters[min(parameters)] for options in parameters.values()):
        kinds = {types[index]: {} for index in parameters}
    out: dict[str, Any] = {}
    for index, new in parameters.items():
        kind = types[index] if kinds else ""
        old_options = (kinds.get(kind) if kinds else old) or {}
        # An architecture with a default share needs the whole as a key, too; in latent attention the share is that of
        # the channels that rotate.
        latent = part.layers[index].head_dim != part.shape.head_dim
        share = {key: value if latent else 1.0 for key, value in old_options.items() if key == "partial_rotary_factor"}
        new = {key: value for key, value in old_options.items() if key not in REPLACED_KEYS} | share | new
        if out.setdefault(kind, new) != new or (kinds and kind not in kinds):
            raise CannotExpress(
                f"its layers differ, and {place.get('model_type')} has no place of its own for layer {index}, "
                f"{shorten_spec(part.layers[index].spec)}"
            )
    return kinds | out if kinds else out[""]
