"""transformers' config.json: which dictionaries are one, and a reading written as one. huggingface.py reads it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from posenc.catalogue import build
from posenc.checkpoints.vocabulary.ledger import in_words
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.checkpoints.vocabulary.specs import CannotExpress, encodings_of, possible, shape_of, short, whole
from posenc.checks import is_number
from posenc.encodings.proportional_rotary import ProportionalRotary
from posenc.foreign import count

SIGNS = {
    *("model_type", "architectures", "transformers_version", "max_position_embeddings", "rope_parameters"),
    *("rope_scaling", "rope_theta", "num_hidden_layers", "n_positions"),
}
"""Keys of which a config.json has at least one."""

ROTARY = (
    *("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "rotary_emb_base", "rotary_pct"),
    *("rotary_dim", "partial_rotary_factor", "original_max_position_embeddings", "no_rope_layers"),
    *("no_rope_layer_interval", "global_rope_theta", "local_rope_theta", "rope_pct"),
)
"""Keys, old and new, for which `rope_parameters` stands when a reading is written."""

BARE = {
    "gpt2": ("n_embd", "n_layer", "n_head", "n_positions"),
    "bloom": ("hidden_size", "n_layer", "n_head", "seq_length"),
    "t5": ("d_model", "num_layers", "num_heads", "n_positions"),
}
"""What architectures call their width, layers, heads and trained length, where it is not the usual."""

USUAL = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")


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
    told = [sentence for sentence in contradictory(given) if sentence not in reading.contradictions]
    reading = replace(reading, contradictions=(*reading.contradictions, *told))
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
    for one, other in (("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta")):
        yield from unequal(f"{path}{one}", given.get(one), f"{path}{other}", given.get(other))
    share, head_dim = given.get("partial_rotary_factor", given.get("rotary_pct")), head_dim_of(given)
    if is_number(share) and is_number(given.get("rotary_dim")) and head_dim:
        yield from unequal(
            f"{path}rotary_dim", given["rotary_dim"], f"{path}partial_rotary_factor times head_dim", share * head_dim
        )
    within = given.get("attn_config")
    alibi = given.get("alibi") or (within.get("alibi") if isinstance(within, Mapping) else None)
    if alibi is True and (rope or given.get("rope_theta") is not None):
        yield f"{path}alibi is true and there are keys of rotary; an architecture has one of them"
    for key, value in given.items():
        if isinstance(value, Mapping) and key.endswith("_config"):
            yield from contradictory(value, f"{path}{key}.")


def unequal(one: str, value: Any, other: str, second: Any) -> Iterator[str]:
    if is_number(value) and is_number(second) and value != second:
        yield f"{one} is {in_words(value)} and {other} is {in_words(second)}; followed: what transformers follows"


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


def head_dim_of(given: Mapping[str, Any]) -> int | None:
    """The channels of a head, where the keys say."""
    if is_number(given.get("head_dim")):
        return int(given["head_dim"])
    dim, heads = given.get("hidden_size"), given.get("num_attention_heads")
    return int(dim) // int(heads) if is_number(dim) and is_number(heads) and heads else None


def write(reading: Reading, onto: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The config.json of a reading, with the new key `rope_parameters` in place of all older ones.

    onto    a config of the architecture that is wanted. Without it the architecture is one that computes the same:
            llama, qwen2, smollm3, gemma3_text, stablelm, deepseek_v3, gpt2, bert, bloom or t5

    Raises CannotExpress for a schedule that transformers does not have, and for several parts.
    """
    if [part.name for part in reading.parts] == ["encoder", "decoder"]:
        return relative_written(reading, onto or {})
    part, place = part_to_write(reading, onto or {})
    within: dict[str, Any] = dict(place)
    model_type = within.get("model_type") or architecture_for(part)
    within = {"model_type": model_type} | {key: value for key, value in within.items() if key not in ROTARY}
    dim, layers, heads, length = BARE.get(model_type, USUAL)
    within |= {dim: part.shape.dim, layers: len(part.layers), heads: part.shape.heads}
    if part.trained_length:
        within[length] = part.trained_length
    if model_type in BARE or part.embed.startswith("learned"):
        return placed(within, onto, place)
    within["num_key_value_heads"] = part.kv_heads
    if any(layer.head_dim != part.shape.head_dim for layer in part.layers):
        within["qk_rope_head_dim"] = part.layers[0].head_dim
        within.setdefault("qk_nope_head_dim", part.shape.head_dim - part.layers[0].head_dim)
    elif part.shape.head_dim * part.shape.heads != part.shape.dim or "head_dim" in within:
        within["head_dim"] = part.shape.head_dim
    within |= rotary_written(part, within)
    return placed(within, onto, place)


def part_to_write(reading: Reading, onto: Mapping[str, Any]) -> tuple[Part, Mapping[str, Any]]:
    """The part that is written, and the config, or the config within it, that it is written onto."""
    for part in reading.parts:
        place: Any = onto
        for step in filter(None, part.name.split(".")):
            place = place.get(step) if isinstance(place, Mapping) else None
        if isinstance(place, Mapping) and part.shape.causal:
            return part, place
    if len(reading.parts) == 1:
        return reading.parts[0], onto
    names = ", ".join(part.name or "the whole" for part in reading.parts) or "none"
    raise CannotExpress(f"a config is written for one stack of layers, and the reading has these parts: {names}")


def placed(within: dict[str, Any], onto: Mapping[str, Any] | None, place: Mapping[str, Any]) -> dict[str, Any]:
    """The whole config, with the changed one in the place that it was taken from."""
    if onto is None or place is onto:
        return within
    return {key: placed(within, value, place) if contains(value, place) else value for key, value in onto.items()}


def contains(value: Any, place: Mapping[str, Any]) -> bool:
    return isinstance(value, Mapping) and (value is place or any(contains(one, place) for one in value.values()))


def architecture_for(part: Part) -> str:
    """An architecture of transformers that computes what a part says."""
    named = encodings_of(part)
    names = {name for layer in named for name in layer}
    if part.embed.startswith("learned") and not names:
        return "gpt2" if part.shape.causal else "bert"
    if names == {"alibi"}:
        return "bloom"
    if any(layer.head_dim != part.shape.head_dim for layer in part.layers):
        return "deepseek_v3"
    if not names <= {"rotary"} or not names:
        raise CannotExpress(
            f"no architecture is chosen for {', '.join(sorted(names)) or 'none'}; give a config to write it onto"
        )
    if len({str(layer["rotary"].options()) for layer in named if layer}) > 1:
        return "gemma3_text"
    if any(not layer for layer in named):
        return "smollm3"
    if any(layer.window for layer in part.layers):
        return "qwen2"
    partial = next(layer["rotary"].options()["partial"] for layer in named if layer)
    return "llama" if partial == 1 else "stablelm"


def rotary_written(part: Part, within: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters`, one for each type of layer where they differ, and which layers have none."""
    turning = [layer for layer in part.layers if layer.spec.startswith(("rotary", "multimodal", "proportional"))]
    if not turning:
        return {}
    out: dict[str, Any] = {}
    old = within.get("layer_types")
    types = old if isinstance(old, list) and len(old) == len(part.layers) else [type_of(one) for one in part.layers]
    by_type: dict[str, str] = {}
    first: dict[str, int] = {}
    for index, (kind, layer) in enumerate(zip(types, part.layers, strict=True)):
        if layer.spec == "none" or layer.spec.startswith("step_temperature"):
            continue
        first.setdefault(kind, index)
        if by_type.setdefault(kind, layer.spec) != layer.spec:
            raise CannotExpress(f"layers of the type {kind} have different encodings: {by_type[kind]} and {layer.spec}")
    specs = set(by_type.values())
    parameters = {kind: parameters_of(part, index) for kind, index in first.items()}
    out["rope_parameters"] = parameters if len(specs) > 1 else parameters[next(iter(parameters))]
    if any(layer.window for layer in part.layers):
        out["sliding_window"] = next(layer.window for layer in part.layers if layer.window)
        out["layer_types"] = types
        if within.get("model_type") == "qwen2":
            out["use_sliding_window"] = True
    if any(layer.spec == "none" for layer in part.layers):
        out["no_rope_layers"] = [int(layer.spec != "none") for layer in part.layers]
    return out


def type_of(layer: Layer) -> str:
    return "sliding_attention" if layer.window else "full_attention"


def parameters_of(part: Part, index: int) -> dict[str, Any]:
    """`rope_parameters` of the rotary of one layer."""
    from posenc.checkpoints.kinds import rotary_keys

    rotary: Any = next(one for one in encodings_of(part)[index].values() if hasattr(one, "base"))
    options = rotary.options()
    out = rotary_keys.written_schedule(rotary.schedule)
    if out is None or options.get("order") == "time_last":
        raise CannotExpress(f"transformers has no rope_parameters for {short(rotary)}")
    out["rope_theta"] = rotary.base
    if isinstance(rotary, ProportionalRotary):
        out |= {"rope_type": "proportional", "partial_rotary_factor": rotary.partial}
    elif options["partial"] != 1:
        out["partial_rotary_factor"] = rotary.partial
    if "sections" in options:
        out["mrope_section"] = list(rotary.sections_in_use)
        out |= {"mrope_interleaved": True} if options["order"] == "interleaved" else {}
    return {key: whole(value) if is_number(value) else value for key, value in out.items()}


def relative_written(reading: Reading, onto: Mapping[str, Any]) -> dict[str, Any]:
    """T5's config, from an encoder and a decoder."""
    encoder, decoder = reading.parts
    bias = encodings_of(encoder)[0].get("t5_bias")
    if bias is None:
        raise CannotExpress("a config for an encoder and a decoder is written for T5 alone, and these have no t5_bias")
    options = bias.options()
    out = {"model_type": "t5", **onto, "d_model": encoder.shape.dim, "d_kv": encoder.shape.head_dim}
    out |= {"num_layers": len(encoder.layers), "num_decoder_layers": len(decoder.layers)}
    out |= {"num_heads": encoder.shape.heads, "relative_attention_num_buckets": options["buckets"]}
    out["relative_attention_max_distance"] = options["max_distance"]
    return out | ({"n_positions": encoder.trained_length} if encoder.trained_length else {})
