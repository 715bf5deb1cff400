"""Megatron's arguments: those of its command line, kept with a checkpoint, or of its configs (NeMo's among them)."""

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from posenc.checkpoints.configs import (
    CannotWrite,
    Ledger,
    encodings_of,
    every_nth_without,
    only_part,
    possible,
    rotary_of,
    rotary_spec,
    short,
    spec_of,
    trained_or_one,
    whole,
)
from posenc.checkpoints.reading import CannotRead, Layer, Part, Reading
from posenc.encoding import Shape
from posenc.schedules import Linear, Llama3, Schedule, YaRN

KINDS = ("learned_absolute", "rope", "mrope", "yarn", "relative", "none")
"""What position_embedding_type can be."""

SIGNS = {"rotary_base", "rotary_percent", "rotary_percentage", "num_query_groups", "kv_channels", "no_rope_freq"}
"""Keys that no other format with num_layers and num_attention_heads has."""

SCALED_FROM = 8192
"""The trained length that use_rope_scaling starts from; it stands in Megatron's code and not among its arguments."""

POSITIONS = (
    *("position_embedding_type", "rotary_base", "rotary_percent", "rotary_percentage", "rotary_interleaved"),
    *("rotary_seq_len_interpolation_factor", "seq_len_interpolation_factor", "use_rope_scaling", "rope_scaling"),
    *("rope_scaling_factor", "no_rope_freq", "mrope_section", "mrope_interleaved", "window_size"),
    *("window_attn_skip_freq", "relative_attention_num_buckets", "relative_attention_max_distance", "rope_type"),
    *("rotary_scaling_factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale"),
    *("mscale_all_dim", "yarn_rotary_scaling_factor", "yarn_original_max_position_embeddings", "yarn_beta_fast"),
    *("yarn_beta_slow", "yarn_mscale", "yarn_mscale_all_dim", "yarn_correction_range_round_to_int"),
    *("use_rotary_position_embeddings", "add_position_embedding", "seq_length", "max_position_embeddings"),
)
"""What is said of positions, and is replaced when a reading is written onto other arguments."""

ONLY_HOW = (
    *("apply_rope_fusion", "no_rope_fusion", "rotary_dtype", "reset_position_ids", "variable_seq_lengths"),
    *("decoder_seq_length", "mla_down_proj_fusion", "cache_mla_latents", "fused_single_qkv_rope"),
    *("apply_rotary_pos_emb_in_fp32", "use_fused_rotary_pos_emb", "sequence_parallel", "max_seqlen_per_dp_cp_rank"),
)
"""Keys that sound of position and say only how, or on what, it is computed."""


def arguments(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments themselves: within "args" or "model" where they are nested, with underscores for dashes."""
    for key in ("args", "model", "model_config"):
        if isinstance(given.get(key), Mapping):
            return arguments(given[key])
    return {str(key).lstrip("-").replace("-", "_"): value for key, value in given.items()}


def is_it(given: Mapping[str, Any]) -> bool:
    keys = arguments(given)
    model_type = keys.get("model_type")
    of_transformers = isinstance(model_type, str) and not model_type.startswith("ModelType.")
    named = keys.get("position_embedding_type") in KINDS or bool(SIGNS & set(keys))
    return (
        {"num_attention_heads", "hidden_size"} <= set(keys)
        and named
        and not of_transformers
        and not ("architectures" in keys or "num_hidden_layers" in keys)
    )


def read(given: Mapping[str, Any]) -> Reading:
    """What Megatron's arguments say of positions.

    Arguments that are left out have Megatron's own defaults: learned_absolute (rope in latent attention), base 10,000,
    factor 8 of use_rope_scaling; in latent attention yarn with factor 40 from 4096 tokens. In latent attention the
    pairs are interleaved whatever rotary_interleaved says, as its code takes them apart.
    Raises CannotRead for an unknown position_embedding_type, or schedules that are asked for together.
    """
    keys = Ledger(arguments(given))
    for key in ONLY_HOW:
        keys.take(key, "only how it is computed: {}")
    dim = keys.size("hidden_size", "width of the model {}")
    heads = keys.size("num_attention_heads", "{} heads")
    kv_heads = keys.size("num_query_groups", "{} key and value heads", heads)
    if keys.flag("group_query_attention", "fewer key heads than query heads: {}") is False:
        kv_heads = heads
    latent = bool(keys.flag("multi_latent_attention", "latent attention: {}"))
    kind = kind_of(keys, latent)
    table = keys.whole("max_position_embeddings", "longest sequence {} tokens")
    seen = keys.first(("seq_length", "encoder_seq_length"), "trained on {} tokens", kind="whole")
    length = table or seen
    if table and seen and seen > table:
        keys.contradict(
            f"seq_length is {seen} and max_position_embeddings is {table}; followed: max_position_embeddings"
        )
    if latent:
        turned = keys.size("qk_pos_emb_head_dim", "{} channels of a head are turned", 64)
        head_dim = turned + keys.size("qk_head_dim", "{} channels of a head carry no position", 128)
    else:
        turned = head_dim = keys.size("kv_channels", "{} channels a head", max(dim // heads, 1))
    scale = keys.number("softmax_scale", "logits are multiplied by {}")
    if latent and kind != "none":
        spec, scale = latent_rotary(keys, turned, head_dim, scale)
    else:
        spec = spec_of_kind(keys, kind, turned)
    stacks = layers_of(keys)
    parts = []
    for name, count, causal in stacks:
        windows = windows_of(keys, count)
        without = without_rotary(keys, count)
        here = spec if kind != "relative" else f"{spec[:-1]}, causal={causal})"
        layers = tuple(
            Layer("none" if skip else here, turned, window, scale)
            for skip, window in zip(without, windows, strict=True)
        )
        embed, tables = "none", {}
        if kind == "learned_absolute":
            rows = keys.size("max_position_embeddings", "longest sequence {} tokens")
            embed, tables = spec_of("learned", max_len=rows), {"embedding.position_embeddings.weight": (rows, dim)}
        shape = Shape(dim, heads, head_dim, trained_or_one(length), causal)
        part = Part(name, shape, layers, kv_heads, length, embed, tables, besides(keys))
        with possible(f"position_embedding_type {kind}"):
            part.encoding(0)
        parts.append(part)
    return Reading(
        "megatron",
        "T5" if len(parts) == 2 else "GPT",
        tuple(parts),
        keys.understood,
        keys.unknown(),
        tuple(keys.contradictions),
        tuple(keys.not_covered),
    )


def kind_of(keys: Ledger, latent: bool) -> str:
    kind = keys.word("position_embedding_type", "position enters by {}")
    legacy = keys.flag("use_rotary_position_embeddings", "the older name of position_embedding_type rope: {}")
    if legacy and kind not in (None, "rope"):
        keys.contradict(f"use_rotary_position_embeddings is true and position_embedding_type is {kind}; followed: rope")
    keys.flag("add_position_embedding", "the older name of position_embedding_type learned_absolute: {}")
    if legacy:
        kind = "rope"
    kind = kind or ("rope" if latent else "learned_absolute")
    if kind not in KINDS:
        raise CannotRead(f"position_embedding_type must be one of {', '.join(KINDS)}, got {kind!r}")
    return kind


def layers_of(keys: Ledger) -> list[tuple[str, int, bool]]:
    """The stacks: name, number of layers, and whether it is causal."""
    if keys.has("encoder_num_layers") and keys.has("decoder_num_layers"):
        keys.take("num_layers", "{} layers")
        encoder = keys.size("encoder_num_layers", "{} layers in the encoder")
        return [("encoder", encoder, False), ("decoder", keys.size("decoder_num_layers", "{} in the decoder"), True)]
    return [("", keys.size("num_layers", "{} layers"), True)]


def spec_of_kind(keys: Ledger, kind: str, head_dim: int) -> str:
    """The encoding of the layers, where attention is not latent."""
    if kind in ("learned_absolute", "none"):
        return "none"
    if kind == "relative":
        buckets = keys.whole("relative_attention_num_buckets", "{} buckets of distances", 32)
        reach = keys.whole("relative_attention_max_distance", "beyond {} tokens all share the last bucket", 128)
        return spec_of("t5_bias", buckets=buckets, max_distance=reach)
    share = keys.first(("rotary_percent", "rotary_percentage"), "{} of each head is turned", 1.0)
    sections = order = None
    if kind == "mrope":
        sections = tuple(map(int, keys.numbers("mrope_section", "pairs for time, height and width: {}", ())))
        interleaved = keys.flag("mrope_interleaved", "the axes take the pairs in turn: {}")
        order = "interleaved" if interleaved else None
        if not sections:
            raise CannotRead("position_embedding_type mrope needs mrope_section, the pairs of time, height and width")
    with possible(f"position_embedding_type {kind}"):
        return rotary_spec(
            head_dim=head_dim,
            width=int(head_dim * share + 1e-9),
            base=keys.number("rotary_base", "rotary base {}", 10_000),
            layout="interleaved" if keys.flag("rotary_interleaved", "interleaved pairs: {}") else "half",
            schedule=schedule_of(keys, kind),
            sections=sections,
            order=order,
        )


def schedule_of(keys: Ledger, kind: str) -> Schedule | None:
    found: list[Schedule] = []
    squeeze = keys.first(
        ("rotary_seq_len_interpolation_factor", "seq_len_interpolation_factor"), "positions are divided by {}"
    )
    if squeeze not in (None, 1):
        found.append(Linear(whole(squeeze)))
    factor = keys.number("rope_scaling_factor", "Llama 3's schedule stretches by {}, where it is switched on", 8)
    if keys.first(("use_rope_scaling", "rope_scaling"), "Llama 3's schedule from 8192 tokens: {}", kind="flag"):
        found.append(Llama3(whole(factor), SCALED_FROM))
    if kind == "yarn":
        found.append(yarn(keys, prefix="yarn_", factor=None, length=None))
    if len(found) > 1:
        raise CannotRead(f"two schedules at once have no spec here: {' and '.join(map(str, found))}")
    return found[0] if found else None


def yarn(keys: Ledger, *, prefix: str, factor: float | None, length: int | None) -> YaRN:
    """YaRN's numbers, which models that are not latent keep under names that begin with `prefix`."""

    def number(name: str, words: str, default: Any = None) -> Any:
        names = dict.fromkeys((f"{prefix}{name}", name))
        return whole(keys.first(tuple(names), words, default))

    mscale, all_dim = number("mscale", "YaRN's mscale {}"), number("mscale_all_dim", "YaRN's mscale_all_dim {}")
    if prefix == "":
        mscale, all_dim = 1 if mscale is None else mscale, 0 if all_dim is None else all_dim
    factor = number("rotary_scaling_factor", "YaRN stretches by {}", factor)
    length = number("original_max_position_embeddings", "YaRN starts from {} trained tokens", length)
    if factor is None or length is None:
        raise CannotRead(
            f"position_embedding_type yarn needs {prefix}rotary_scaling_factor and "
            f"{prefix}original_max_position_embeddings"
        )
    truncate = keys.flag(f"{prefix}correction_range_round_to_int", "the ramp's ends are whole pairs: {}", True)
    together = mscale is None or all_dim is None
    return YaRN(
        factor,
        int(length),
        number("beta_fast", "pairs that turn {} times are kept", 32),
        number("beta_slow", "pairs that turn {} times are stretched", 1),
        truncate,
        mscale=None if together else mscale,
        mscale_all_dim=None if together else all_dim,
        mscale_rule="together" if together else "apart",
    )


def latent_rotary(keys: Ledger, turned: int, head_dim: int, scale: float | None) -> tuple[str, float | None]:
    """The rotary part of latent attention, and the scale of its logits."""
    keys.flag("rotary_interleaved", "{}, which latent attention does not read")
    base = keys.number("rotary_base", "rotary base {}", 10_000)
    share = keys.number("rotary_percent", "{} of the rotary part is turned", 1.0)
    schedule = None
    with possible("rope_type"):
        rope_type = keys.word("rope_type", "the frequencies of {}", "yarn")
        if rope_type not in ("rope", "yarn"):
            raise CannotRead(f"rope_type must be rope or yarn, got {rope_type!r}")
        if rope_type == "yarn":
            schedule = yarn(keys, prefix="", factor=40, length=4096)
            if scale is None and schedule.scale_factor != 1:
                scale = schedule.scale_factor / math.sqrt(head_dim)
        spec = rotary_spec(
            head_dim=turned, width=int(turned * share + 1e-9), base=base, layout="interleaved", schedule=schedule
        )
    return spec, scale


def windows_of(keys: Ledger, layers: int) -> list[int | None]:
    """For each layer how many tokens it sees back, itself among them."""
    size = keys.peek("window_size")
    every = keys.take("window_attn_skip_freq", "which layers see everything: {}")
    if size is None:
        return [None] * layers
    size = pattern(size, "window_size")
    keys.say("window_size", f"a window of {size[0]} tokens back")
    window = size[0] + 1 if size[0] >= 0 else None
    if every is None:
        return [window] * layers
    local = cycle(every, layers, "window_attn_skip_freq", last=0)
    return [window if here else None for here in local]


def without_rotary(keys: Ledger, layers: int) -> list[int]:
    """For each layer 1 where it has no rotary."""
    every = keys.take("no_rope_freq", "which layers have no rotary: {}")
    return [0] * layers if every is None else cycle(every, layers, "no_rope_freq", last=1)


def cycle(given: Any, layers: int, key: str, *, last: int) -> list[int]:
    """A number N, of which every N-th layer is `last` and the others are not, or one number for each layer."""
    given = pattern(given, key)
    if isinstance(given, int):
        return [last if (index + 1) % given == 0 else 1 - last for index in range(layers)]
    if len(given) != layers or any(one not in (0, 1) for one in given):
        raise CannotRead(f"{key} must have a 0 or 1 for each of the {layers} layers, got {list(given)}")
    return [int(one) for one in given]


def pattern(given: Any, key: str) -> Any:
    """A number or a list, which the command line may write as ([0]*3+[1])*12; nothing else is evaluated."""
    if isinstance(given, str):
        try:
            given = listed(ast.parse(given.strip(), mode="eval").body)
        except (SyntaxError, ValueError):
            raise CannotRead(
                f"{key} must be a number, a list, or lists with + and * as ([0]*3+[1])*12, got {given!r}"
            ) from None
    numbers = [given] if isinstance(given, int) else given
    if not isinstance(numbers, Sequence) or not all(isinstance(one, int) for one in numbers) or given == 0:
        raise CannotRead(f"{key} must be a number or a list of whole numbers, got {given!r}")
    return given


def listed(tree: ast.expr) -> Any:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Mult)):
        left, right = listed(tree.left), listed(tree.right)
        many = left * right if isinstance(tree.op, ast.Mult) else None
        if many is not None and isinstance(many, list) and len(many) > 10_000:
            raise ValueError("too long")
        return left + right if many is None else many
    return ast.literal_eval(tree)


def besides(keys: Ledger) -> tuple[str, ...]:
    chunk = keys.first(("attention_chunk_size", "chunk_attention_size"), "attention within chunks of {} tokens")
    return (f"layers attend within chunks of {chunk} tokens, which is no window",) if chunk else ()


def write(reading: Reading, onto: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Megatron's arguments of a reading, as a flat dictionary; raises CannotWrite for what they have no word for."""
    out: dict[str, Any] = {}
    if [part.name.rpartition(".")[2] for part in reading.parts] == ["encoder", "decoder"]:
        reading, (encoder, decoder) = replace(reading, parts=reading.parts[:1]), reading.parts
        out |= {"encoder_num_layers": len(encoder.layers), "decoder_num_layers": len(decoder.layers)}
    part = only_part(reading, "Megatron")
    out |= {key: value for key, value in arguments(onto or {}).items() if key not in POSITIONS}
    out |= {"num_layers": len(part.layers), "hidden_size": part.shape.dim, "num_attention_heads": part.shape.heads}
    out |= {"num_query_groups": part.kv_heads, "group_query_attention": part.kv_heads != part.shape.heads}
    if part.trained_length:
        out["max_position_embeddings"] = part.trained_length
    latent = any(layer.head_dim != part.shape.head_dim for layer in part.layers)
    if latent:
        turned = part.layers[0].head_dim
        out |= {"multi_latent_attention": True, "qk_pos_emb_head_dim": turned}
        out["qk_head_dim"] = part.shape.head_dim - turned
    else:
        out["kv_channels"] = part.shape.head_dim
        if part.layers[0].scale is not None:
            out["softmax_scale"] = part.layers[0].scale
    out |= windows_written(part)
    names = {name for layer in encodings_of(part) for name in layer}
    if names == {"t5_bias"}:
        bias = next(iter(encodings_of(part)))["t5_bias"].options()
        out |= {"position_embedding_type": "relative", "relative_attention_num_buckets": bias["buckets"]}
        return out | {"relative_attention_max_distance": bias["max_distance"]}
    rotary = rotary_of(part, "Megatron")
    if "step_temperature" in names:
        raise CannotWrite("Megatron has no words for step_temperature")
    if rotary is None:
        learned = part.embed.partition("(")[0]
        if learned not in ("none", "learned"):
            raise CannotWrite(f"Megatron has no words for {part.embed}")
        return out | {"position_embedding_type": "learned_absolute" if learned == "learned" else "none"}
    if (step := every_nth_without(part, "Megatron")) is not None:
        out["no_rope_freq"] = step
    return out | rotary_written(rotary, latent)


def windows_written(part: Part) -> dict[str, Any]:
    windows = [layer.window for layer in part.layers]
    sizes = {window for window in windows if window is not None}
    if not sizes:
        return {}
    if len(sizes) > 1:
        raise CannotWrite(f"Megatron has one window for all layers, and here there are {sorted(sizes)}")
    out: dict[str, Any] = {"window_size": [sizes.pop() - 1, 0]}
    if None in windows:
        out["window_attn_skip_freq"] = [int(window is not None) for window in windows]
    return out


def rotary_written(rotary: Any, latent: bool) -> dict[str, Any]:
    options = rotary.options()
    out: dict[str, Any] = {"position_embedding_type": "rope", "rotary_base": whole(rotary.base)}
    out |= {"rotary_percent": rotary.partial, "rotary_interleaved": rotary.layout == "interleaved" and not latent}
    if "sections" in options:
        if rotary.order == "time_last":
            raise CannotWrite("Megatron has no words for the order time_last of multimodal_rotary")
        out |= {"position_embedding_type": "mrope", "mrope_section": list(rotary.sections_in_use)}
        out["mrope_interleaved"] = rotary.order == "interleaved"
    schedule = rotary.schedule
    if latent:
        out["rope_type"] = "rope" if schedule is None else "yarn"
    if schedule is None:
        return out
    if isinstance(schedule, Linear) and not latent:
        return out | {"rotary_seq_len_interpolation_factor": schedule.factor}
    if isinstance(schedule, Llama3) and (schedule.trained_length, schedule.low, schedule.high) == (8192, 1, 4):
        if not latent:
            return out | {"use_rope_scaling": True, "rope_scaling_factor": schedule.factor}
    elif isinstance(schedule, YaRN) and schedule.attention_factor is None and schedule.ramp == "pairs":
        prefix = "" if latent else "yarn_"
        if not latent:
            out["position_embedding_type"] = "yarn"
        out |= {f"{prefix}rotary_scaling_factor": schedule.factor, f"{prefix}beta_fast": schedule.beta_fast}
        out |= {f"{prefix}beta_slow": schedule.beta_slow}
        out |= {f"{prefix}original_max_position_embeddings": schedule.trained_length}
        out |= {f"{prefix}mscale": schedule.mscale, f"{prefix}mscale_all_dim": schedule.mscale_all_dim}
        if not latent:
            out["yarn_correction_range_round_to_int"] = schedule.truncate
        return out
    raise CannotWrite(f"Megatron has no arguments for the schedule {short(schedule)}")
