"""RoPE (rotary) keys of transformers 4 in a config.json, beside `rope_parameters` of transformers 5.

A program without `rope_parameters` takes a base of 10,000 and no schedule if the older keys are missing; and
transformers 5 prefers an older `rope_scaling` to the new key. So both are written, with the same meaning.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

BASES = ("rope_theta", "rotary_emb_base", "rotary_embedding_base", "global_rope_theta")
"""Older names of the base of all layers, or of layers without a window."""

LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta")
"""Older names of the base of layers with a window."""

SHARES = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent")
"""Older names of the share of a head that rotates."""

OLD = (*BASES, *LOCAL_BASES, *SHARES, "rope_scaling")

OWN_NAMES = {name: ("rotary_emb_base", "rotary_pct") for name in ("gpt_neox", "gpt_neox_japanese")}
"""Architectures with other names for base and share in transformers 4, which changes no more."""

TWO_KINDS = {
    "gemma3_text": ("rope_theta", "rope_local_base_freq", False),
    "gemma3n_text": ("rope_theta", "rope_local_base_freq", False),
    "olmo3": ("rope_theta", "rope_theta", False),
    "modernbert": ("global_rope_theta", "local_rope_theta", True),
    # transformers 4 never reads its key for layers with a window.
    "modernbert-decoder": ("global_rope_theta", "global_rope_theta", True),
}
"""Architectures with another rotary in layers with a window: the names of both bases, whether both are stretched."""

ORIGINAL_LENGTH, LONGEST = "original_max_position_embeddings", "max_position_embeddings"

SCHEDULES = ("linear", "dynamic", "yarn", "longrope", "llama3")
"""The schedules that transformers 4 has."""

PLAIN = ("default", "axial")

NEVER_STRETCHED = ("nemotron", "recurrent_gemma")
"""Architectures that ignore `rope_scaling` in transformers 4."""

TYPE_AND_FACTOR = ("olmo", "olmo2", "chameleon", "fuyu")
LISTS_ALONE = ("phi3", "phi4_multimodal")
LLAMA3_ALONE = ("llama4_text",)
"""Architectures that accept only such a `rope_scaling` there: type and factor, type and both lists, or Llama 3's."""


def in_both_spellings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config of transformers 5, and those within it, with the older keys for its `rope_parameters`.

    >>> in_both_spellings({"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'rope_parameters': {'rope_type': 'linear', 'rope_theta': 500000.0, 'factor': 2.0}, 'rope_theta': 500000.0,
     'rope_scaling': {'rope_type': 'linear', 'factor': 2.0}}
    """
    inner = {key: in_both_spellings(value) for key, value in config.items() if is_nested_config(key, value)}
    return with_old_keys({**config, **inner})


def with_old_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the older keys for its `rope_parameters`. Without a base in them it stays the same.

    Older keys that exist, under any name, get the new value. If none can, they are removed, and `old_key_notes`
    reports that.
    """
    if not has_rotary(config):
        return dict(config)
    old, _ = old_keys(config)
    return {key: value for key, value in config.items() if key not in OLD or key in old} | old


def old_key_notes(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield a sentence for each config, nested ones too, whose rotary transformers 4 does not follow."""
    if has_rotary(config):
        old, is_followed = old_keys(config)
        if not is_followed:
            reason = f"its code refuses or passes over this {path}rope_scaling" if old else "they were left out"
            yield (
                f"Only programs that know {path}rope_parameters read this rightly: the older keys (rope_theta, "
                f"rope_scaling), all that transformers 4 knows, have no words for it there; {reason}."
            )
    for key, value in config.items():
        if is_nested_config(key, value):
            yield from old_key_notes(value, f"{path}{key}.")


def missing_old_keys(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the older keys, nested ones too, that a config lacks and older programs need for its rotary."""
    for key, value in old_keys(config)[0].items() if has_rotary(config) else ():
        if config.get(key) is None and value not in (None, 10_000, 1, config.get(LONGEST)):
            yield f"{path}{key}"
    for key, value in config.items():
        if is_nested_config(key, value):
            yield from missing_old_keys(value, f"{path}{key}.")


def is_nested_config(key: str, value: object) -> bool:
    return isinstance(value, Mapping) and not key.startswith("rope_")


def has_rotary(config: Mapping[str, Any]) -> bool:
    """Whether `rope_parameters` has at least the base, of all layers or of each layer type."""
    rope = config.get("rope_parameters")
    return isinstance(rope, Mapping) and bool(rope) and all("rope_theta" in r for r in options_by_kind(rope) or [rope])


def options_by_kind(rope: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the dictionaries of single layer types, if rotary has one for each."""
    return [rope[kind] for kind in sorted(rope) if isinstance(rope[kind], Mapping)]


def old_keys(config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return `rope_parameters` of a config with its older keys, and whether transformers 4 follows them.

    If it does not, a dictionary for all layers is returned all the same: it is correct, and mostly refused.
    """
    rope, architecture = config["rope_parameters"], config.get("model_type")
    base, local_base, both_stretched = TWO_KINDS.get(architecture, ("rope_theta", "rope_theta", True))
    if kinds := options_by_kind(rope):
        full, *other_options = [options for options in (rope.get("full_attention"), *kinds) if options]
        other_options = [options for options in other_options if options != full]
        local = other_options[0] if other_options else full
        if other_options and (architecture not in TWO_KINDS or "longrope" in map(rope_type_of, kinds)):
            return {}, False
    else:
        rope = full = local = with_longrope_temperature(rope, config)
    scaling = scaling_of(full, config)
    if kinds and (
        {*map(rope_type_of, kinds)} - {*PLAIN, *SCHEDULES}
        or scaling_of(local, config) != (scaling if both_stretched else None)
        or (base == local_base and full["rope_theta"] != local["rope_theta"])
        or full.get("partial_rotary_factor") != local.get("partial_rotary_factor")
    ):
        return {}, False
    wanted_keys = {*config, *OWN_NAMES.get(architecture, ()), base, local_base, "partial_rotary_factor"}
    keys = {"rope_parameters": rope} | {name: full["rope_theta"] for name in BASES if name in wanted_keys}
    keys |= {name: local["rope_theta"] for name in LOCAL_BASES if name in wanted_keys}
    if "partial_rotary_factor" in full:
        keys |= {name: full["partial_rotary_factor"] for name in SHARES if name in wanted_keys}
    if scaling is not None or "rope_scaling" in config:
        keys["rope_scaling"] = scaling
    # For LongRoPE transformers 4 reads this length only there, and both versions prefer it to the one inside.
    if ORIGINAL_LENGTH in full and (ORIGINAL_LENGTH in config or rope_type_of(full) == "longrope"):
        keys[ORIGINAL_LENGTH] = full[ORIGINAL_LENGTH]
    return keys, is_followed_by_version_4(scaling, architecture)


def is_followed_by_version_4(scaling: Mapping[str, Any] | None, architecture: str | None) -> bool:
    """Whether transformers 4 accepts a `rope_scaling` and applies it."""
    if scaling is None:
        return True
    if architecture in TYPE_AND_FACTOR:
        return set(scaling) == {"type", "factor"}
    if architecture in LISTS_ALONE:
        return set(scaling) == {"type", "short_factor", "long_factor"}
    rope_types = ("llama3",) if architecture in LLAMA3_ALONE else (*PLAIN, *SCHEDULES)
    return scaling["rope_type"] in rope_types and architecture not in NEVER_STRETCHED


def rope_type_of(rope: Mapping[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def with_longrope_temperature(rope: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return LongRoPE with its temperature if that of transformers 4, by the two lengths, differs."""
    original, longest, factor = rope.get(ORIGINAL_LENGTH), config.get(LONGEST), rope.get("factor")
    if rope_type_of(rope) != "longrope" or "attention_factor" in rope or not (original and longest and factor):
        return rope
    if factor == longest / original:
        return rope
    return {**rope, "attention_factor": math.sqrt(1 + math.log(factor) / math.log(original))}


def scaling_of(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return `rope_scaling` for one dictionary of rotary; None without stretching."""
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor", "type")}
    kind, architecture = "default" if rope_type_of(rope) in PLAIN else rope_type_of(rope), config.get("model_type")
    scaling["rope_type"] = kind
    if architecture in TYPE_AND_FACTOR and set(scaling) == {"rope_type", "factor"} and kind in ("linear", "dynamic"):
        return {"type": kind, "factor": scaling["factor"]}
    if architecture in LISTS_ALONE and kind == "longrope" and "attention_factor" not in scaling:
        return {"type": kind, "short_factor": scaling["short_factor"], "long_factor": scaling["long_factor"]}
    if scaling == {"rope_type": "default"}:
        return None
    # Still older programs know this name alone.
    return {"type": kind} | scaling if "type" in (config.get("rope_scaling") or {}) else scaling
