"""Rotary in a config.json as transformers 4 spells it, beside `rope_parameters`, which is how transformers 5 does.

A program that knows no `rope_parameters` takes a base of 10,000 and no schedule where the older keys are missing; and
transformers 5 puts an older `rope_scaling` before the new key. So what is written holds both, and both say the same.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

BASES = ("rope_theta", "rotary_emb_base", "rotary_embedding_base", "global_rope_theta")
"""What older programs call the base of all layers, or of those that see everything."""

LOCAL_BASES = ("rope_local_base_freq", "local_rope_theta")
"""What they call that of layers with a window."""

SHARES = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent")
"""What they call the share of a head that turns."""

OLD = (*BASES, *LOCAL_BASES, *SHARES, "rope_scaling")

OWN_NAMES = {name: ("rotary_emb_base", "rotary_pct") for name in ("gpt_neox", "gpt_neox_japanese")}
"""Architectures that ask for their base and share by names of their own. Of transformers 4, which changes no more."""

TWO_KINDS = {
    "gemma3_text": ("rope_theta", "rope_local_base_freq", False),
    "gemma3n_text": ("rope_theta", "rope_local_base_freq", False),
    "olmo3": ("rope_theta", "rope_theta", False),
    "modernbert": ("global_rope_theta", "local_rope_theta", True),
    # It has a key for its layers with a window, and the code of transformers 4 never reads it.
    "modernbert-decoder": ("global_rope_theta", "global_rope_theta", True),
}
"""Architectures with one rotary for layers that see everything and one for those with a window: the names of the two
bases, and whether `rope_scaling` stretches the latter too."""

BEFORE, LONGEST = "original_max_position_embeddings", "max_position_embeddings"

SCHEDULES = ("linear", "dynamic", "yarn", "longrope", "llama3")
"""The schedules that transformers 4 has."""

PLAIN = ("default", "axial")

NEVER_STRETCHED = ("nemotron", "recurrent_gemma")
"""Architectures whose code in transformers 4 never looks at `rope_scaling`."""

TYPE_AND_FACTOR = ("olmo", "olmo2", "chameleon", "fuyu")
LISTS_ALONE = ("phi3", "phi4_multimodal")
LLAMA3_ALONE = ("llama4_text",)
"""Architectures that there refuse a `rope_scaling` unless it is `type` and `factor`, or `type` and the two lists, or
that of Llama 3."""


def in_both_spellings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as transformers 5 writes it, and those within it, with older keys that say what `rope_parameters` says.

    >>> in_both_spellings({"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}})
    ... # doctest: +NORMALIZE_WHITESPACE
    {'rope_parameters': {'rope_type': 'linear', 'rope_theta': 500000.0, 'factor': 2.0}, 'rope_theta': 500000.0,
     'rope_scaling': {'rope_type': 'linear', 'factor': 2.0}}
    """
    within = {key: in_both_spellings(value) for key, value in config.items() if is_config(key, value)}
    return with_old_keys({**config, **within})


def with_old_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose older keys say what its `rope_parameters` says; without a base in that it stays as it is.

    Those that are there already, under whatever name, get the new value. What they have no words for they do not say:
    they are taken out then, and `unsaid` tells.
    """
    if not has_rotary(config):
        return dict(config)
    old, _ = old_keys(config)
    return {key: value for key, value in config.items() if key not in OLD or key in old} | old


def unsaid(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """For each config, among those within one, whose rotary transformers 4 does not follow, a sentence that says so."""
    if has_rotary(config):
        old, followed = old_keys(config)
        if not followed:
            left = f"its code refuses or passes over this {path}rope_scaling" if old else "they were left out"
            yield (
                f"Only programs that know {path}rope_parameters read this rightly: the older keys (rope_theta, "
                f"rope_scaling), all that transformers 4 knows, have no words for it there; {left}."
            )
    for key, value in config.items():
        if is_config(key, value):
            yield from unsaid(value, f"{path}{key}.")


def missing(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The older keys that a config lacks, and those within it, and without which older programs turn by another base
    than `rope_parameters` says, or stretch nothing."""
    for key, value in old_keys(config)[0].items() if has_rotary(config) else ():
        if config.get(key) is None and value not in (None, 10_000, 1, config.get(LONGEST)):
            yield f"{path}{key}"
    for key, value in config.items():
        if is_config(key, value):
            yield from missing(value, f"{path}{key}.")


def is_config(key: str, value: Any) -> bool:
    return isinstance(value, Mapping) and not key.startswith("rope_")


def has_rotary(config: Mapping[str, Any]) -> bool:
    """Whether `rope_parameters` says at least the base, of all layers or of each kind of them."""
    rope = config.get("rope_parameters")
    return isinstance(rope, Mapping) and bool(rope) and all("rope_theta" in one for one in kinds_of(rope) or [rope])


def kinds_of(rope: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The dictionaries for single kinds of layers, where rotary has one for each."""
    return [rope[kind] for kind in sorted(rope) if isinstance(rope[kind], Mapping)]


def old_keys(config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The older keys for the `rope_parameters` of a config, and that itself; and whether transformers 4 follows them.

    Where it does not, one dictionary for all layers stands there all the same: it is true, and mostly refused.
    """
    rope, architecture = config["rope_parameters"], config.get("model_type")
    base, local_base, both_stretched = TWO_KINDS.get(architecture, ("rope_theta", "rope_theta", True))
    if kinds := kinds_of(rope):
        full, *others = [one for one in (rope.get("full_attention"), *kinds) if one]
        others = [one for one in others if one != full]
        local = others[0] if others else full
        if others and (architecture not in TWO_KINDS or "longrope" in map(kind_of, kinds)):
            return {}, False
    else:
        rope = full = local = with_temperature(rope, config)
    scaling = scaling_of(full, config)
    if kinds and (
        {*map(kind_of, kinds)} - {*PLAIN, *SCHEDULES}
        or scaling_of(local, config) != (scaling if both_stretched else None)
        or (base == local_base and full["rope_theta"] != local["rope_theta"])
        or full.get("partial_rotary_factor") != local.get("partial_rotary_factor")
    ):
        return {}, False
    asked = {*config, *OWN_NAMES.get(architecture, ()), base, local_base, "partial_rotary_factor"}
    out = {"rope_parameters": rope} | {name: full["rope_theta"] for name in BASES if name in asked}
    out |= {name: local["rope_theta"] for name in LOCAL_BASES if name in asked}
    if "partial_rotary_factor" in full:
        out |= {name: full["partial_rotary_factor"] for name in SHARES if name in asked}
    if scaling is not None or "rope_scaling" in config:
        out["rope_scaling"] = scaling
    # Of LongRoPE transformers 4 knows it from there alone, and both put it before the one inside.
    if BEFORE in full and (BEFORE in config or kind_of(full) == "longrope"):
        out[BEFORE] = full[BEFORE]
    return out, followed(scaling, architecture)


def followed(scaling: Mapping[str, Any] | None, architecture: str | None) -> bool:
    """Whether transformers 4 takes a `rope_scaling`, and does what it says."""
    if scaling is None:
        return True
    if architecture in TYPE_AND_FACTOR:
        return set(scaling) == {"type", "factor"}
    if architecture in LISTS_ALONE:
        return set(scaling) == {"type", "short_factor", "long_factor"}
    known = ("llama3",) if architecture in LLAMA3_ALONE else (*PLAIN, *SCHEDULES)
    return scaling["rope_type"] in known and architecture not in NEVER_STRETCHED


def kind_of(rope: Mapping[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def with_temperature(rope: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """LongRoPE with its temperature, where transformers 4, which takes the factor from the two lengths, has another."""
    before, longest, factor = rope.get(BEFORE), config.get(LONGEST), rope.get("factor")
    if kind_of(rope) != "longrope" or "attention_factor" in rope or not (before and longest and factor):
        return rope
    if factor == longest / before:
        return rope
    return {**rope, "attention_factor": math.sqrt(1 + math.log(factor) / math.log(before))}


def scaling_of(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`rope_scaling` for one dictionary of rotary; None where nothing is stretched."""
    said = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor", "type")}
    kind, architecture = "default" if kind_of(rope) in PLAIN else kind_of(rope), config.get("model_type")
    said["rope_type"] = kind
    if architecture in TYPE_AND_FACTOR and set(said) == {"rope_type", "factor"} and kind in ("linear", "dynamic"):
        return {"type": kind, "factor": said["factor"]}
    if architecture in LISTS_ALONE and kind == "longrope" and "attention_factor" not in said:
        return {"type": kind, "short_factor": said["short_factor"], "long_factor": said["long_factor"]}
    if said == {"rope_type": "default"}:
        return None
    # Many a program that is older still knows this name alone.
    return {"type": kind} | said if "type" in (config.get("rope_scaling") or {}) else said
