"""A configuration of transformers, of any architecture, to a Reading: what its keys say, held to its own modules.

Keys give the specs. Where transformers is installed and knows the architecture, its modules are the judge of them:
a skeleton of the model (modules.py) tells which channels pair, which layers turn, from which row a table counts, and
whether the frequencies are those that the keys say. What the modules have and no spec says stands in `not_covered`.
"""

import copy
import functools
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from posenc.catalogue import build
from posenc.checkpoints.files.load import quietly
from posenc.checkpoints.files.named_code import harmless
from posenc.checkpoints.models.modules import Found
from posenc.checkpoints.models.nodes import Node, every_layer, look_into, nodes_of, of_role
from posenc.checkpoints.models.rotary_keys import rope_parameters as rope_parameters
from posenc.checkpoints.models.rotary_measured import rotary_layers
from posenc.checkpoints.vocabulary.bounds import HEAD_DIMS, HEADS, KV_HEADS, LAYERS, LENGTHS, WIDTHS, within_bounds
from posenc.checkpoints.vocabulary.ledger import SPEAKS_OF_POSITION, Ledger
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.checkpoints.vocabulary.specs import possible, spec_of
from posenc.encoding import Shape
from posenc.foreign import count, one_line, reading_with, shortened

OLD_NAMES = {
    *("rope_scaling", "rope_theta", "partial_rotary_factor", "rope_local_base_freq", "global_rope_theta"),
    *("local_rope_theta", "rotary_pct", "rotary_emb_base", "rope_pct", "original_max_position_embeddings"),
}
"""Keys that transformers itself moves into `rope_parameters`."""

PLAIN = {
    *("output_attentions", "max_window_layers", "use_sliding_window", "position_ids", "chunk_size_feed_forward"),
    *("attention_chunk_size", "sliding_window_pattern", "_sliding_window_pattern", "learned_pos_emb"),
}
"""Keys that speak of position, or seem to, whose effect is told by others: they are entered as understood."""

SINUSOIDS = tuple((layout, endpoint) for layout in ("interleaved", "concatenated") for endpoint in (False, True))


def read(config: Any) -> Reading:
    """What a configuration of transformers says of positions, and what its own modules do.

    config  a dictionary as in config.json, old key names or new, or a configuration object

    A dictionary of a known `model_type` is filled with the defaults of its architecture first; they are marked in
    `understood`. Of an unknown one, or without transformers, only the keys are read, and `not_covered` says what they
    leave open, the layout above all. No code of a checkpoint is run, and no weights are made.

    Raises CannotRead for what is no such dictionary, a value of the wrong kind, or a schedule that cannot be.

    >>> sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    >>> read({**sizes, "rope_theta": 500_000}).parts[0].layers[1].spec
    'rotary(base=500000)'
    """
    if isinstance(config, Mapping):
        try:
            text = json.dumps(config, sort_keys=True, default=str)
        except (TypeError, ValueError) as error:
            raise CannotRead(f"a configuration must be a dictionary as in config.json: {error}") from error
        return cached(text)
    if not hasattr(config, "to_dict"):
        raise CannotRead(f"expected a dictionary or a configuration of transformers, got {type(config).__name__}")
    with quietly():
        config = copy.deepcopy(config)
        settle(config)
        return of_object(config, None)


@functools.lru_cache(maxsize=64)
def cached(text: str) -> Reading:
    given = json.loads(text)
    with quietly():
        return of_dictionary(given)


def of_dictionary(given: dict[str, Any]) -> Reading:
    """The reading of a config.json."""
    within_bounds(given)
    if given.get("model_type") is None and not any(given.get(key) is not None for key in (*WIDTHS, "text_config")):
        raise CannotRead(
            f"expected a config.json of transformers with model_type or hidden_size, got the keys "
            f"{', '.join(list(given)[:8]) or 'none'}"
        )
    return of_object(filled(given), given)


def filled(given: Mapping[str, Any]) -> Any:
    """transformers' object for a dictionary, with the defaults of its architecture; None where it knows none."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        return None
    model_type = str(given.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        return None
    remedy = f"compare its keys with those of a released {model_type}"
    # Its classes are code of many hands, which says in any way what it does not like.
    with reading_with("transformers", field=f"this {model_type} configuration", remedy=remedy):
        config = CONFIG_MAPPING[model_type].from_dict(harmless(given))
        settle(config)
        # What cannot be written down again is no configuration.
        json.dumps(config.to_dict(), default=str)
        return config


def of_object(config: Any, given: Mapping[str, Any] | None) -> Reading:
    """The reading of transformers' object, or of a dictionary where there is none."""
    values = json.loads(json.dumps(dict(given or {}) if config is None else config.to_dict(), default=str))
    keys = Ledger(values, file=set(flat(given or {})))
    nodes = list(nodes_of(config, keys))
    if config is not None:
        look_into(config, nodes)
    elif values.get("model_type"):
        keys.leave(
            f"layout: transformers does not know the architecture {values['model_type']} here, and the keys do not say "
            f"which channels pair; half is assumed"
        )
    with possible(f"the positions of {values.get('model_type') or 'this configuration'}"):
        parts = tuple(part for node in nodes for part in parts_of(node))
    for node in nodes:
        plain_keys(node)
        for sentence in unclaimed(node):
            node.leave(sentence)
    if config is None and not parts:
        keys.leave(
            "the keys name no encoding, and without the modules of the architecture there is nothing else to go by"
        )
    understood, unknown = dict(keys.understood), keys.unknown()
    if given is not None:
        mark_defaults(understood, unknown, given)
    named = values.get("model_type") or values.get("architectures") or "unknown"
    architecture = shortened(one_line(str(named[0] if isinstance(named, list) else named)), 80)
    told = tuple(keys.contradictions), tuple(keys.not_covered)
    return Reading("transformers", architecture, parts, understood, unknown, *told)


def settle(config: Any) -> None:
    """Put the keys of rotary where the modules will find them, in a configuration and in those within it.

    transformers does so whenever it makes frequencies, and not only when it makes a configuration. The second time sees
    more: `original_max_position_embeddings` beside the dictionary of rotary, which then goes before the one inside.
    """
    if getattr(config, "rope_parameters", None):
        config.standardize_rope_params()
    for inner in vars(config).values() if hasattr(config, "to_dict") else ():
        settle(inner)


def plain_keys(node: Node) -> None:
    """Enter the keys whose effect others tell, and those that only say that something is off."""
    keys = node.keys
    for key in PLAIN:
        keys.say(key, "told by other keys")
    for key, value in keys.given.items():
        if value is False and node.modules and SPEAKS_OF_POSITION.search(key.lower()):
            keys.say(key, "off")
    if keys.peek("rotary_value"):
        keys.say("rotary_value", "values are turned too")
        node.leave("rotary_value turns the values too, by their own positions alone")


def mark_defaults(understood: dict[str, str], unknown: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Say which keys the file does not have; drop what only defaults say; keep what transformers renamed."""
    present = set(flat(given))
    for key in list(understood):
        if key not in present:
            understood[key] += " (not in the file: default, or from another key)"
    for key in list(unknown):
        if key not in present and key.rpartition(".")[2] not in {name.rpartition(".")[2] for name in present}:
            del unknown[key]
    for key in present:
        if key.rpartition(".")[2] in OLD_NAMES and key not in understood and key not in unknown:
            understood[key] = "taken into rope_parameters"


def flat(given: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in given.items():
        yield f"{path}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}{key}.")


def parts_of(node: Node) -> Iterator[Part]:
    """The stacks of layers of one configuration: none where it has no heads, two for an encoder and a decoder."""
    keys = node.keys
    roles = [""]
    if (keys.has("decoder_layers") or keys.has("num_decoder_layers")) and not keys.has("text_config"):
        has_encoder = any(keys.has(key) for key in ("encoder_layers", "num_layers", "num_hidden_layers"))
        roles = ["encoder", "decoder"] if has_encoder else ["decoder"]
    for role in roles:
        part = part_of(node, role)
        if part is not None:
            yield part


def sizes_of(node: Node, role: str) -> tuple[int, int, int, int, int] | None:
    """Width, heads, key and value heads, channels of a head, and layers of a stack; None where it is no such stack."""
    heads = node.first((f"{role}_attention_heads", f"num_{role}_attention_heads", *HEADS))
    layers = node.first((f"{role}_layers", f"num_{role}_layers", *LAYERS))
    width = node.first(WIDTHS)
    if not all(isinstance(n, int) and n > 0 for n in (heads, layers, width)):
        return None
    turned = next((turn.matrices.shape[-1] for turn in node.seen.turns if of_role(turn.path, role)), None)
    head_dim = node.first(HEAD_DIMS)
    if turned and not head_dim:
        # A tower that gives out another width than it works in names both.
        width = next((node.keys.peek(name) for name in WIDTHS if node.keys.peek(name) == turned * heads), width)
    kv = node.first(KV_HEADS)
    if node.keys.peek("multi_query") is True and not node.keys.peek("new_decoder_architecture"):
        kv = 1
    head_dim = head_dim if isinstance(head_dim, int) else max(width // heads, 1)
    count(head_dim, f"{node.path or 'the model'}: channels of a head", most=1 << 16)
    return width, heads, kv if isinstance(kv, int) else heads, head_dim, layers


def part_of(node: Node, role: str) -> Part | None:
    """One stack of layers; None where nothing in it has to do with position."""
    sizes = sizes_of(node, role)
    if sizes is None:
        return None
    width, heads, kv, head_dim, count = sizes
    keys, besides = node.keys, list[str]()
    turned = keys.whole("qk_rope_head_dim", "{} channels of a head turn, in latent attention") or head_dim
    if keys.has("qk_rope_head_dim"):
        head_dim = turned + keys.whole("qk_nope_head_dim", "{} channels of a head do not turn", 0)
        keys.say("qk_head_dim", "channels of a head, in latent attention")
    length = trained_length(node, role)
    shape = Shape(width, heads, head_dim, length or 1, is_causal(node, role))
    embed, tables, rows = embedded(node, role, shape, besides)
    shape = replace(shape, max_len=rows or length or 1)
    layers = rotary_layers(node, role, shape, turned, count, besides)
    bias = bias_of(node, role, shape)
    if layers is None and bias is None and embed == "none":
        return None
    specs = layers or [("none", turned)] * count
    if bias is not None:
        specs = [(bias if spec == "none" else f"{spec} + {bias}", wide) for spec, wide in specs]
    out = tuple(
        Layer(spec, wide, window, None if scale is None or math.isclose(scale, wide**-0.5, rel_tol=1e-6) else scale)
        for (spec, wide), window, scale in zip(
            specs, windows_of(node, count), scales_of(node, role, count), strict=True
        )
    )
    name = f"{node.path}.{role}".strip(".")
    return Part(name, shape, out, kv, length or rows, embed, tables, tuple(besides))


def trained_length(node: Node, role: str) -> int | None:
    """The trained length, and which key says so."""
    own = {"encoder": ("max_source_positions",), "decoder": ("max_target_positions",)}.get(role, ())
    for key in (*own, f"max_{role}_position_embeddings", *LENGTHS):
        value = node.keys.peek(key)
        if isinstance(value, int) and value > 0:
            node.keys.say(key, f"trained length {value} tokens")
            for other in LENGTHS:
                if node.keys.peek(other) == value:
                    node.keys.say(other, f"trained length {value} tokens")
            return value
    return None


def is_causal(node: Node, role: str) -> bool:
    """Whether tokens see only the past: by the role, else as the modules make masks, else by the keys."""
    if role:
        return role == "decoder"
    masks = [name for m in node.modules.values() for name in masks_of(m)]
    if masks:
        return any("bidirectional" not in name for name in masks) and node.keys.peek("is_decoder") is not False
    said = [m.is_causal for m in node.modules.values() if isinstance(getattr(m, "is_causal", None), bool)]
    if said:
        return any(said)
    if node.keys.has("is_decoder") or node.keys.has("image_size") or node.keys.has("patch_size"):
        return bool(node.keys.peek("is_decoder"))
    return bool(node.keys.peek("use_cache", True))


def masks_of(module: Any) -> list[str]:
    """The functions that a module's own code makes attention masks with."""
    names = type(module).forward.__code__.co_names if hasattr(type(module).forward, "__code__") else ()
    inner = getattr(type(module).forward, "__wrapped__", None)
    while inner is not None:
        names, inner = inner.__code__.co_names, getattr(inner, "__wrapped__", None)
    return [name for name in names if re.fullmatch(r"create_\w*mask\w*", name)]


def embedded(
    node: Node, role: str, shape: Shape, besides: list[str]
) -> tuple[str, dict[str, tuple[int, ...]], int | None]:
    """The spec of what is added to the embeddings, the shape of its table, and for how many positions it serves."""
    kind = node.keys.peek("position_embedding_type")
    if isinstance(kind, str):
        node.keys.say("position_embedding_type", f"positions are {kind}")
    for item in node.found:
        if item.kind not in ("table", "fixed") or not of_role(item.path, role) or item.values is None:
            continue
        size = tuple(item.values.shape)
        count, wide = size[-2:] if len(size) > 1 else (0, 0)
        if math.prod(size) != count * wide or feeds_turns(node, item):
            continue
        grid = grid_of(node, count) if wide == shape.dim else None
        first = node.seen.rows.get(item.path)
        if not first and grid is not None:
            embed, first = spec_of("learned_grid", grid=grid[0], prefix=grid[1] or None), 0
            for key in ("image_size", "patch_size"):
                node.keys.say(key, "the grid of patches")
        elif first is not None or (wide == shape.dim and count == trained_length(node, role)):
            embed, first = as_table(item, first or 0, count, wide), first or 0
        else:
            continue
        if first:
            besides.append(f"the first {first} rows of {item.path} are no positions")
        if wide != shape.dim:
            besides.append(f"{item.path} has {wide} channels, which a projection brings to {shape.dim}")
        node.claimed.add(item.path)
        return embed, {item.path: size}, count - first
    if kind == "absolute" and not node.modules:
        return "learned", {}, shape.max_len
    return "none", {}, None


def feeds_turns(node: Node, item: Found) -> bool:
    """Whether a table holds the sines of rotary code, as those of GPT-J and RoFormer, and nothing is added."""
    turned = node.seen.turns[0].matrices.shape[-1] if node.seen.turns else None
    return item.kind in ("fixed", "table") and item.values is not None and item.values.shape[-1] == turned


def as_table(item: Found, first: int, count: int, wide: int) -> str:
    """The spec of a table: sinusoidal where its numbers are those of sines, else learned."""
    assert item.values is not None
    if wide > 2 and not item.values.is_meta:
        values = item.values.reshape(count, wide)
        for layout, endpoint in SINUSOIDS:
            spec = spec_of("sinusoidal", layout=None if layout == "interleaved" else layout, endpoint=endpoint or None)
            expected = build(spec, Shape(wide, 1, wide, count))(torch.zeros(1, count - first, wide))[0]
            if torch.allclose(values[first:].float(), expected, atol=1e-3):
                return spec
    return "learned"


def grid_of(node: Node, count: int) -> tuple[tuple[int, int], int] | None:
    """The grid of patches that fits a table of so many rows, and the rows before it."""
    for key in ("num_position_embeddings", "num_patches"):
        if node.keys.peek(key) == count and math.isqrt(count) ** 2 == count:
            node.keys.say(key, "the grid of patches, resampled to each image")
            return (math.isqrt(count), math.isqrt(count)), 0
    image, patch = node.keys.peek("image_size"), node.keys.peek("patch_size")
    if not isinstance(image, int) or not isinstance(patch, int) or not patch:
        return None
    side = image // patch
    return ((side, side), count - side * side) if 0 <= count - side * side < 16 else None


def bias_of(node: Node, role: str, shape: Shape) -> str | None:
    """The spec of what is added to the logits: T5's buckets, ALiBi, or None."""
    keys = node.keys
    buckets = keys.whole("relative_attention_num_buckets", "{} buckets of distances")
    if buckets:
        return buckets_of(node, role, shape, buckets)
    nested = keys.open("attn_config") if isinstance(keys.peek("attn_config"), dict) else None
    if nested is not None and nested.flag("alibi", "ALiBi: {}"):
        greatest = nested.number("alibi_bias_max", "the last slope is 2^-{}", 8)
        return checked_slopes(node, spec_of("alibi", bias_max=None if greatest == 8 else float(greatest)), shape)
    if keys.flag("alibi", "ALiBi: {}"):
        return checked_slopes(node, "alibi(form='falcon')", shape)
    if node.seen.slopes and not keys.has("alibi") and nested is None:
        return checked_slopes(node, "alibi", shape)
    return None


def buckets_of(node: Node, role: str, shape: Shape, buckets: int) -> str | None:
    keys = node.keys
    furthest = keys.whole("relative_attention_max_distance", "distances from {} on share a bucket", 128)
    spec = spec_of(
        "t5_bias",
        buckets=None if buckets == 32 else buckets,
        max_distance=None if furthest == 128 else furthest,
        causal=None if shape.causal else False,
    )
    if not node.modules:
        return spec
    encoding: Any = build(spec, shape)
    delta = torch.arange(-2 * furthest, 2 * furthest)
    for module in node.modules.values():
        function = getattr(module, "_relative_position_bucket", None) or getattr(
            module, "relative_position_bucket", None
        )
        if function is None:
            continue
        words = {"num_buckets": buckets, "max_distance": furthest, "bidirectional": not shape.causal}
        taken = inspect.signature(function).parameters
        got = function(-delta, **{word: value for word, value in words.items() if word in taken})
        if (got != encoding.bucket(delta)).sum() > 4:
            return None
        break
    else:
        return None
    claimed = [
        item.path
        for item in node.found
        if item.values is not None and tuple(item.values.shape) == (buckets, shape.heads)
    ]
    node.claimed |= {path for path in claimed if of_role(path, role)}
    return spec if claimed else None


def checked_slopes(node: Node, spec: str, shape: Shape) -> str | None:
    """The spec, if the biases that the model's own code made have its slopes."""
    if not node.modules:
        return spec
    encoding: Any = build(spec, shape)
    slopes = torch.tensor(encoding.slopes)
    for bias in node.seen.slopes:
        flat = bias.float().reshape(-1, bias.shape[-1])
        if bias.dim() == 1:
            steps = bias.float()
        elif flat.shape[0] % shape.heads == 0 and bias.shape[-1] > 1:
            steps = (flat[:, -1] - flat[:, -2]).reshape(-1, shape.heads)[0]
        else:
            continue
        # Some make them in bfloat16.
        if steps.shape == slopes.shape and torch.allclose(steps, slopes, rtol=1e-2):
            return spec
    reason = node.seen.failure or "no such code was seen to run"
    node.leave(f"ALiBi could not be held to the model's own slopes ({reason})")
    return spec if not node.seen.slopes else None


def attention_modules(node: Node, role: str) -> dict[int, Any]:
    """The first module of each layer that scales logits or has a window."""
    out: dict[int, Any] = {}
    for path, module in node.modules.items():
        match = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
        if match and of_role(path, role) and isinstance(getattr(module, "scaling", None), (int, float)):
            out.setdefault(int(match.group(1)), module)
    return out


def scales_of(node: Node, role: str, count: int) -> list[float | None]:
    """What each layer multiplies its logits by, as its module says."""
    for key in ("query_pre_attn_scalar", "attention_multiplier", "scale_attn_weights", "qk_scale_factor"):
        node.keys.say(key, "the scale of attention")
    own = attention_modules(node, role)
    return [float(own[i].scaling) if i in own else None for i in range(count)]


def windows_of(node: Node, count: int) -> list[int | None]:
    """How many tokens each layer sees back, or None for all."""
    keys = node.keys
    size, types = keys.peek("sliding_window"), keys.peek("layer_types")
    keys.say("sliding_window", f"windows of {size} tokens")
    keys.say("layer_types", "which kind each layer is of")
    if keys.has("rope_parameters"):
        keys.say("original_max_position_embeddings", "trained length before stretching, where a schedule stretches")
    if not isinstance(size, int) or keys.peek("use_sliding_window") is False:
        return [None] * count
    if isinstance(types, list) and len(types) == count:
        return [size if kind == "sliding_attention" else None for kind in types]
    return [size] * count


def unclaimed(node: Node) -> Iterator[str]:
    """What the modules have and no spec accounts for, one sentence for each kind of tensor or module."""
    for item in node.found:
        if item.path not in node.claimed and not feeds_turns(node, item):
            yield f"{every_layer(item.path)} ({type(item.owner).__name__}) carries position, and no spec here says how"
