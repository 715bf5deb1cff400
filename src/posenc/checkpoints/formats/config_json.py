"""transformers' config.json: what it contradicts itself in, and the positions of a part written into one."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from posenc.catalogue import build
from posenc.checkpoints.kinds.rotary.keys import WRITTEN, rope_parameters
from posenc.checkpoints.kinds.rotary.old_keys import BEFORE, LONGEST, OLD, kind_of, with_old_keys
from posenc.checkpoints.vocabulary.bounds import HEADS, LENGTHS, WIDTHS
from posenc.checkpoints.vocabulary.ledger import in_words
from posenc.checkpoints.vocabulary.reading import UNHEARD, CannotRead, Part, Reading
from posenc.checkpoints.vocabulary.specs import CannotExpress, encodings_of, possible, shape_of, short
from posenc.checks import is_number
from posenc.foreign import count, one_line, shortened

SIGNS = {
    *("model_type", "architectures", "transformers_version", "max_position_embeddings", "rope_parameters"),
    *("rope_scaling", "rope_theta", "num_hidden_layers", "n_positions"),
}
"""Keys of which a config.json has at least one."""

ROTARY = {"rope_parameters", BEFORE, *OLD}
"""Keys of rotary that some files have twice: in the config of a stack and around it."""

REPLACED = {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("max_position_embeddings", "attention_factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"),
    *("truncate", "mscale", "mscale_all_dim", "short_factor", "long_factor", "short_mscale", "long_mscale", "alpha"),
}
"""Keys in a dictionary of rotary for which a new one stands; others stay."""

BASE = re.compile(r"(rope|rotary)\w*(theta|base)(_freq)?$")
"""Names of the base of rotary, in this or in another's code."""

NAMES = {"alibi": "alibi", "rot": "rotary", "rope": "rotary", "relative": r"\w"}
"""What keys call encodings, and how the specs that do so are called."""

STRETCHES_NOTHING = (None, "", "default", "axial", "mrope", "proportional")

MARK = "posenc_encoding"
"""The key that a conversion writes where transformers has none: a spec, or a list with one for each layer."""


MOST_NUMBERS = 1 << 28
"""The numbers that an encoding of one layer may have: a table for a million tokens of 256 channels."""


def is_it(given: Mapping[str, Any]) -> bool:
    return bool(SIGNS & set(given))


def read(given: Mapping[str, Any]) -> Reading:
    """What a config.json says of positions: `huggingface.read`, and besides what its keys contradict each other in.

    Raises CannotRead as that does.
    """
    from posenc.checkpoints.formats import huggingface

    reading = huggingface.read({key: value for key, value in given.items() if key != MARK})
    with huggingface.quietly():
        theirs, left = huggingface.filled(given), reading.not_covered
    deaf = dict(unheard(given, reading.parts, theirs)) if reading.parts and theirs is not None else {}
    told = dict.fromkeys((*deaf.values(), *reading.contradictions, *contradictory(given)))
    if own := given.get("auto_map"):
        named = shortened(one_line(", ".join(map(str, own.values() if isinstance(own, Mapping) else [own]))), 80)
        left = (f"auto_map: code of its own ({named}) is not read; this is what transformers has of that name", *left)
    unknown = {key: value for key, value in reading.unknown.items() if key not in deaf}
    reading = replace(reading, contradictions=tuple(told), not_covered=left, unknown=unknown)
    return reading if given.get(MARK) is None else marked(reading, given[MARK])


def marked(reading: Reading, said: Any) -> Reading:
    """A reading with what a conversion has written into the config, which transformers has no keys for.

    Raises CannotRead unless that is a spec, or one for each layer, for the one part that attends.
    """
    of_layers = [part for part in reading.parts if any(layer.spec != "none" for layer in part.layers)]
    if len(of_layers) != 1:
        raise CannotRead(
            f"{MARK} speaks of a model with one stack of layers that have positions, and there are {len(of_layers)}"
        )
    part = of_layers[0]
    specs = [said] * len(part.layers) if isinstance(said, str) else said
    if not isinstance(specs, list) or len(specs) != len(part.layers) or not all(isinstance(s, str) for s in specs):
        raise CannotRead(f"{MARK} must be a spec, or one for each of {len(part.layers)} layers, got {said!r:.120}")
    layers = tuple(replace(layer, spec=spec) for layer, spec in zip(part.layers, specs, strict=True))
    for layer in dict.fromkeys(layers):
        # Shapes alone are made of it: a spec may ask for a table of any size.
        with possible(MARK), torch.device("meta"):
            numbers = sum(one.numel() for one in build(layer.spec, shape_of(part, layer)).parameters())
        count(numbers, f"{MARK}: numbers of {short(layer.spec)}", least=0, most=MOST_NUMBERS)
    parts = tuple(replace(part, layers=layers) if one is part else one for one in reading.parts)
    understood = {**reading.understood, MARK: "what a conversion has made of it, which transformers does not know"}
    return replace(reading, parts=parts, understood=understood)


def contradictory(given: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Which keys cannot both be right, in the config and in those within it."""
    rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
    place = f"{path}{'rope_parameters' if given.get('rope_parameters') else 'rope_scaling'}"
    if isinstance(rope, Mapping):
        for key in ("rope_theta", "original_max_position_embeddings", "partial_rotary_factor"):
            yield from unequal(f"{path}{key}", given.get(key), f"{place}.{key}", rope.get(key))
        yield from stretched(given, rope, path, place)
        yield from unlike(given.get("rope_scaling"), given.get("rope_parameters"), path)
    for one, other in (("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")):
        yield from unequal(f"{path}{one}", given.get(one), f"{path}{other}", given.get(other))
    within = given.get("attn_config")
    alibi = given.get("alibi") or (within.get("alibi") if isinstance(within, Mapping) else None)
    if alibi is True and (rope or given.get("rope_theta") is not None):
        yield f"{path}alibi is true and there are keys of rotary; an architecture has one of them"
    for key, value in given.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            yield from contradictory(value, f"{path}{key}.")


def unheard(given: Mapping[str, Any], parts: Sequence[Part], theirs: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The keys that name an encoding which no layer has, as transformers builds them, each with a sentence."""
    encodings: list[Any] = [one for part in parts for layer in encodings_of(part) for one in layer.values()]
    turning = [one for one in encodings if hasattr(one, "base")]
    places = [inner(theirs, name) for name in (path, *(part.name for part in parts))]
    asks = [str(place.rope_parameters) for place in places if hasattr(type(place), "rope_parameters")]
    known, specs = all(part.known for part in parts), " ".join(map(str, encodings))
    for key, value in ((str(key), value) for key, value in given.items()):
        if isinstance(value, Mapping):
            own = [part for part in parts if f"{part.name}.".startswith(f"{path}{key}.")]
            if own or not any(name in value for name in (*WIDTHS, *HEADS, "depth")):
                yield from unheard(value, own or parts, theirs, f"{path}{key}.")
            continue
        heard = True
        if BASE.search(key) and is_number(value) and value > 0:
            # What transformers has among its own keys the modules have been held to.
            still = not turning and (value == 10_000 or any(hasattr(type(place), key) for place in places))
            heard = still or any(math.isclose(value, one.base) for one in turning)
            heard = heard or any(not turning or re.search(rf": {value}[,}}]", said) for said in asks)
        elif key in ("type", "rope_type") and path.endswith(("rope_scaling.", "rope_parameters.")):
            heard = value in STRETCHES_NOTHING or any(one.schedule for one in turning) or (bool(asks) and not turning)
        elif "alibi" in key and value is True:
            heard = not known or "alibi" in specs
        elif re.search(r"pos\w*_(emb|enc)\w*", key) and isinstance(value, str):
            words = [spec for word, spec in NAMES.items() if word in value]
            heard = not known or not words or any(re.search(word, specs) for word in words)
        if not heard:
            yield f"{path}{key}", f"{path}{key} is {in_words(value)}, and {UNHEARD}; followed: the modules"


def unequal(one: str, value: Any, other: str, second: Any) -> Iterator[str]:
    if is_number(value) and is_number(second) and value != second:
        yield f"{one} is {in_words(value)} and {other} is {in_words(second)}; followed: what transformers follows"


def unlike(old: Any, new: Any, path: str) -> Iterator[str]:
    """What the older of two dictionaries of rotary says otherwise than the newer one."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return
    old, new = (one.get("full_attention", one) for one in (old, new))
    for key, value in old.items():
        other = kind_of(new) if key in ("type", "rope_type") else new.get(key)
        if value != other:
            yield (
                f"{path}rope_scaling.{key} is {in_words(value)} and {path}rope_parameters says {in_words(other)}; "
                f"followed: what transformers follows"
            )


def stretched(given: Mapping[str, Any], rope: Mapping[str, Any], path: str, place: str) -> Iterator[str]:
    """A factor that does not lead from the length before stretching to the longest one."""
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    start, longest = rope.get("original_max_position_embeddings"), given.get("max_position_embeddings")
    if kind in (None, "default") and is_number(factor) and factor != 1:
        yield f"{place}.factor is {in_words(factor)} and its type is {kind or 'missing'}, which stretches nothing"
    # Llama 3.1 itself has a factor of 8 from 8192 to 131072 tokens.
    if kind in ("yarn", "longrope", "su") and is_number(factor) and is_number(start) and is_number(longest):
        if factor * start != longest:
            yield (
                f"{place}.factor times original_max_position_embeddings is {in_words(factor * start)} and "
                f"{path}max_position_embeddings is {in_words(longest)}; followed: factor"
            )


def inner(config: Any, path: str) -> Any:
    """The config at a path within one of transformers, as far as there are any: older files are flat."""
    for step in path.split("."):
        within = getattr(config, step, None)
        config = within if hasattr(within, "to_dict") else config
    return config


def changed(
    config: Mapping[str, Any], path: str, change: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """A config with the one at a path within it changed, or the whole where there is none, as in older, flat files.

    Where some files say its rotary once more around it, that goes; lengths around it follow.
    """
    step, _, rest = path.partition(".")
    old = config.get(step)
    if not isinstance(old, Mapping):
        return change(config)
    new = changed(old, rest, change)
    around = {key: value for key, value in config.items() if key not in ROTARY}
    lengths = {key: new[key] for key in LENGTHS if key in around and around[key] == old.get(key)}
    return around | lengths | {step: new}


def with_positions(config: Mapping[str, Any], part: Part) -> dict[str, Any]:
    """A config whose keys say the rotary and the trained length of a part, in both spellings; all else stays.

    No older key goes on saying what it said before, whatever its name. What they have no words for they do not say;
    `old_keys.unsaid` tells it.

    Raises CannotExpress for a rotary that transformers, or this architecture, has no keys for.
    """
    from posenc.checkpoints.formats import huggingface

    theirs = inner(huggingface.filled(config), part.name)
    return changed(config, part.name, lambda place: with_old_keys({**place, **positions(place, part, theirs)}))


def positions(place: Mapping[str, Any], part: Part, theirs: Any) -> dict[str, Any]:
    """The keys of a part's rotary and trained length, for a config and what transformers makes of it now, or None."""
    out: dict[str, Any] = {}
    if part.trained_length:
        said = [key for key in LENGTHS if is_number(place.get(key))]
        usual = getattr(theirs, "attribute_map", {}).get(LONGEST, LONGEST)
        out |= dict.fromkeys([key for key in said if place[key] == place[said[0]]] or [usual], part.trained_length)
    rotaries: dict[int, Any] = {
        index: one for index, layer in enumerate(encodings_of(part)) for name, one in layer.items() if name in WRITTEN
    }
    has_keys = hasattr(theirs, "rope_parameters") if theirs is not None else bool(rotaries)
    if rotaries and "rotary_dim" in place:
        out["rotary_dim"] = next(iter(rotaries.values())).width
    if rotaries and has_keys:
        out["rope_parameters"] = by_kind(place, part, theirs, rotaries)
        unsaid = place.get("head_dim") is None and any(one.schedule for one in rotaries.values())
        if unsaid and vars(theirs or object).get("head_dim", 0) in (None, part.shape.head_dim):
            # Where it is missing, some of transformers' configs have a None, which some of its schedules multiply.
            out["head_dim"] = part.shape.head_dim
    elif any(one.base != 10_000 or one.schedule for one in rotaries.values()):
        raise CannotExpress(f"transformers' {place.get('model_type')} has no keys for the base or a schedule of rotary")
    if has_keys and isinstance(getattr(theirs, "layer_rope_theta", None), list):
        out["layer_rope_theta"] = [float(rotaries[i].base) if i in rotaries else 0.0 for i in range(len(part.layers))]
    turning = [int(index in rotaries) for index in range(len(part.layers))]
    if has_keys and getattr(theirs, "no_rope_layers", [1] * len(turning) if theirs is None else turning) != turning:
        out["no_rope_layers"] = turning
    return out


def by_kind(place: Mapping[str, Any], part: Part, theirs: Any, rotaries: Mapping[int, Any]) -> dict[str, Any]:
    """`rope_parameters` of all layers, or one for each kind of layers where the architecture has one for each."""
    old = (place.get("rope_parameters") if theirs is None else theirs.rope_parameters) or {}
    types = (place if theirs is None else vars(theirs)).get("layer_types")
    if not isinstance(types, list) or len(types) != len(part.layers):
        types = ["sliding_attention" if layer.window else "full_attention" for layer in part.layers]
    said = {index: rope_parameters(rotary) for index, rotary in rotaries.items()}
    if hasattr(theirs, "layer_rope_theta"):
        # Their bases stand in a list of their own.
        said = {index: one | {"rope_theta": float(next(iter(rotaries.values())).base)} for index, one in said.items()}
    kinds = {kind: rope for kind, rope in old.items() if isinstance(rope, Mapping) or kind in types}
    if theirs is None and any(one != said[min(said)] for one in said.values()):
        kinds = {types[index]: {} for index in said}
    out: dict[str, Any] = {}
    for index, new in said.items():
        kind = types[index] if kinds else ""
        before = (kinds.get(kind) if kinds else old) or {}
        # Where the architecture turns a share by itself, the whole has to be said, too; in latent attention the share
        # is that of the channels that turn.
        latent = part.layers[index].head_dim != part.shape.head_dim
        share = {key: value if latent else 1.0 for key, value in before.items() if key == "partial_rotary_factor"}
        new = {key: value for key, value in before.items() if key not in REPLACED} | share | new
        if out.setdefault(kind, new) != new or (kinds and kind not in kinds):
            raise CannotExpress(
                f"its layers differ, and {place.get('model_type')} has no place of its own for layer {index}, "
                f"{short(part.layers[index].spec)}"
            )
    return kinds | out if kinds else out[""]
