"""A configuration of transformers, of any architecture, to a Reading: what its keys say, held to its own modules.

Keys give the specs. Where transformers is installed and knows the architecture, its modules are the judge of them:
a skeleton of the model (modules.py) tells which channels pair, which layers turn, from which row a table counts, and
whether the frequencies are those that the keys say. What the modules have and no spec says stands in `not_covered`.
"""

import copy
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from posenc.checkpoints.files.named_code import harmless
from posenc.checkpoints.formats.attention import attending, scale_of
from posenc.checkpoints.formats.load import quietly
from posenc.checkpoints.formats.plain_keys import flat, mark_defaults, plain_keys
from posenc.checkpoints.kinds.added.learned_table import feeds_turns
from posenc.checkpoints.kinds.all_kinds import KINDS
from posenc.checkpoints.kinds.kind import Kind, Stack
from posenc.checkpoints.kinds.rotary.measured import rotary_layers
from posenc.checkpoints.kinds.told import reason, unnamed
from posenc.checkpoints.models.nodes import Node, every_layer, look_into, nodes_of, of_role, once, stages_of
from posenc.checkpoints.models.skeleton import hollow
from posenc.checkpoints.vocabulary.bounds import HEAD_DIMS, HEADS, KV_HEADS, LAYERS, LENGTHS, WIDTHS, within_bounds
from posenc.checkpoints.vocabulary.ledger import Ledger
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.checkpoints.vocabulary.specs import possible
from posenc.encoding.base import Shape
from posenc.foreign import count, one_line, reading_with, shortened

OF_ROLE = {
    "heads": ("{}_attention_heads", "num_{}_attention_heads", "{}_num_attention_heads"),
    "key_value_heads": ("{}_num_key_value_heads",),
    "layers": ("{}_layers", "num_{}_layers", "{}_num_hidden_layers"),
}
"""What an encoder and a decoder call their sizes."""


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
        return of_object(config, None)[0]


def read_live(model: Any) -> tuple[Reading, list[Kind]]:
    """What a live model says of positions, and the pieces of it that say so.

    It is not run and not touched: a hollow copy of it is. Paths are those of the model.
    """
    with quietly():
        copied = hollow(model)
        settle(copied.config)
        halves = [b for name, b in model.named_buffers() if name.endswith("inv_freq") and b.element_size() < 4]
        rounding = max((torch.finfo(buffer.dtype).eps for buffer in halves), default=0.0)
        reading, nodes = of_object(copied.config, None, copied, rounding)
        return reading, [piece for node in nodes for piece in node.pieces]


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
    return of_object(filled(given), given)[0]


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
        config = CONFIG_MAPPING[model_type].from_dict(infinite(harmless(given)))
        settle(config)
        # What cannot be written down again is no configuration.
        json.dumps(config.to_dict(), default=str)
        return config


def infinite(value: Any) -> Any:
    """A value of a config.json, in which transformers marks the numbers that JSON has no way to write."""
    if isinstance(value, dict) and set(value) == {"__float__"}:
        return float(value["__float__"])
    if isinstance(value, dict):
        return {key: infinite(one) for key, one in value.items()}
    return [infinite(one) for one in value] if isinstance(value, list) else value


def of_object(
    config: Any, given: Mapping[str, Any] | None, model: Any = None, rounding: float = 0.0
) -> tuple[Reading, list[Node]]:
    """The reading of transformers' object, or of a dictionary where there is none, and the nodes that it came from.

    model     a model of that object without its numbers; None to build one
    rounding  by how much its frequencies have been rounded (relative)
    """
    values = json.loads(json.dumps(dict(given or {}) if config is None else config.to_dict(), default=str))
    keys = Ledger(values, file=set(flat(given or {})))
    nodes = list(nodes_of(config, keys))
    for node in nodes:
        node.rounding = rounding
    if config is not None:
        look_into(config, nodes, model)
    elif values.get("model_type"):
        keys.leave(
            f"layout: transformers does not know the architecture {values['model_type']} here, and the keys do not say "
            f"which channels pair; half is assumed"
        )
    with possible(f"the positions of {values.get('model_type') or 'this configuration'}"):
        found = [(node, role, part) for node in nodes for role, part in parts_of(node)]
    for node in nodes:
        plain_keys(node)
        left = dict(unclaimed(node))
        for sentence in (*left.values(), *unnamed(node)):
            node.leave(sentence)
        adds = any(piece.door == "embed" for piece in node.pieces)
        for key, value in node.keys.given.items():
            told = (adds and re.match(r"use_(abs|learned_pos)", key)) or (
                not left and re.match(r"use_.*(pos|rot)", key)
            )
            if value is True and node.pieces and told:
                node.keys.say(key, "on, as the modules have it")
    parts = tuple(replace(part, known=all_known(node, role)) for node, role, part in found)
    if config is None and not parts:
        keys.leave("the keys name no encoding, and without the modules of the architecture nothing else tells")
    if not parts and not keys.not_covered and (failure := nodes[0].seen.failure):
        nodes[0].leave(f"it could not be run ({failure}), so that nothing is known of its positions")
    understood, unknown = dict(keys.understood), keys.unknown()
    if given is not None:
        mark_defaults(understood, unknown, given)
    named = values.get("model_type") or values.get("architectures") or "unknown"
    architecture = shortened(one_line(str(named[0] if isinstance(named, list) else named)), 80)
    told = tuple(keys.contradictions), tuple(keys.not_covered)
    return Reading("transformers", architecture, parts, understood, unknown, *told), nodes


def settle(config: Any) -> None:
    """Put the keys of rotary where the modules will find them, in a configuration and in those within it.

    transformers does so whenever it makes frequencies, and not only when it makes a configuration. The second time sees
    more: `original_max_position_embeddings` beside the dictionary of rotary, which then goes before the one inside.
    """
    if getattr(config, "rope_parameters", None):
        config.standardize_rope_params()
    for inner in vars(config).values() if hasattr(config, "to_dict") else ():
        settle(inner)


def parts_of(node: Node) -> Iterator[tuple[str, Part]]:
    """The stacks of layers of one configuration, by role: none where it has no heads, two of encoder and decoder."""
    keys = node.keys
    roles = stages_of(node) or [""]
    if any(keys.has(name.format("decoder")) for name in OF_ROLE["layers"]) and not keys.has("text_config"):
        if any(keys.has(key) for key in (*(name.format("encoder") for name in OF_ROLE["layers"]), *LAYERS)):
            roles = ["encoder", "decoder"]
    if roles[-1] == "decoder" and node.modules and not any(of_role(path, "decoder") for path in node.modules):
        # A decoder by itself may name the sizes of both.
        roles = [""]
    for role in roles:
        part = part_of(node, role)
        if part is not None:
            yield role, part


def all_known(node: Node, role: str) -> bool:
    """Whether nothing was left of a stack; what was left of code and not of a tensor is of all stacks of its node."""
    left = dict(unclaimed(node))
    of_code = any(sentence not in left.values() for sentence in node.left)
    return not of_code and not any(of_role(path, role) for path in left)


def sizes_of(node: Node, role: str) -> tuple[int, int, int | None, int, int] | None:
    """Width, heads, key and value heads, channels of a head, and layers of a stack; None where it is no such stack."""
    # What is an encoder or a decoder alone names its sizes as if there were the other.
    own = (role,) if role else ("decoder", "encoder")
    named = {what: [name.format(one) for name in names for one in own] for what, names in OF_ROLE.items()}
    heads: Any = node.first((*named["heads"], *HEADS) if role else (*HEADS, *named["heads"]))
    layers: Any = node.first(
        (*named["layers"], *LAYERS) if role else (*LAYERS, *named["layers"], "layers"),
        getattr(node.config, LAYERS[0], None),
    )
    width: Any = node.first(WIDTHS)
    if role in (stages := stages_of(node)):
        # Heads are of one size, and there are more of them from stage to stage.
        stage, first = stages.index(role), heads[0]
        heads, layers = heads[stage], node.first(("depths", "depth", *LAYERS))[stage]
        width = node.first(("embed_dim", *WIDTHS))
        width = width * heads // first if isinstance(width, int) and first else 0
    # Where no key counts layers, those that ran are they.
    layers = layers or len({one.layer for one in node.seen.attended})
    headless = heads is None and bool(node.seen.rows)
    if headless:
        heads = 1
    if not all(isinstance(n, int) and n > 0 for n in (heads, layers, width)):
        return None
    turned = next((turn.matrices.shape[-1] for turn in node.seen.turns if of_role(turn.path, role)), None)
    head_dim = node.first(HEAD_DIMS)
    if turned and not head_dim:
        # A tower that gives out another width than it works in names both.
        width = next((node.keys.peek(name) for name in WIDTHS if node.keys.peek(name) == turned * heads), width)
    kv = node.first((*named["key_value_heads"], *KV_HEADS))
    if node.keys.peek("multi_query") is True and not node.keys.peek("new_decoder_architecture"):
        kv = 1
    if not isinstance(head_dim, int) or (head_dim == 0 and node.keys.peek("qk_rope_head_dim") == 0):
        # In latent attention it may be the channels that turn, and none do.
        head_dim = max(width // heads, 1)
    count(head_dim, f"{node.path or 'the model'}: channels of a head", most=1 << 16)
    return width, heads, kv if isinstance(kv, int) else None if headless else heads, head_dim, layers


def part_of(node: Node, role: str) -> Part | None:
    """One stack of layers; None where nothing in it has to do with position."""
    sizes = sizes_of(node, role)
    if sizes is None:
        return None
    width, heads, kv, head_dim, count = sizes
    keys, besides = node.keys, list[str]()
    turned = keys.whole("qk_rope_head_dim", "{} channels of a head turn, in latent attention") or 0
    if keys.has("qk_rope_head_dim"):
        head_dim = turned + keys.whole("qk_nope_head_dim", "{} channels of a head do not turn", 0)
        keys.say("qk_head_dim", "channels of a head, in latent attention")
    turned = turned or head_dim
    length, attention = trained_length(node, role), attending(node, role, count)
    shape = Shape(width, heads, head_dim, length or 1, attention.causal)
    stack = Stack(node, role, shape, turned, count, besides)
    stack.turning = rotary_layers(stack)
    pieces = [piece for kind in KINDS for piece in kind.find(stack)]
    node.reasons |= {item.path: why for item in node.found if stack.has(item.path) and (why := reason(stack, item))}
    embed, tables, rows = added(stack, pieces)
    shape = stack.shape = replace(shape, max_len=rows or length or 1)
    biases = list(dict.fromkeys(spec for piece in pieces if piece.door == "bias" for spec in piece.specs()))
    nothing = stack.turning is None and not biases and embed == "none"
    # Order can enter through a causal mask alone, where all else is known.
    if nothing and not (attention.ran and shape.causal and not node.seen.failure and not any(unclaimed(node))):
        return None
    specs = stack.turning or [("none", turned)] * count
    for bias in biases:
        specs = [(bias if spec == "none" else f"{spec} + {bias}", wide) for spec, wide in specs]
    node.pieces += pieces
    out = tuple(
        Layer(spec if attends else "none", wide, reach.window, scale_of(scale, head_dim), reach.chunk, attends, rows)
        for (spec, wide), reach, scale, attends, rows in zip(
            specs, attention.reaches, attention.scales, attention.attends, attention.rows, strict=True
        )
    )
    besides += attention.besides
    for sentence in attention.left:
        node.leave(sentence)
    if embed == "learned" and rows and length and rows < length:
        # Some configs count the rows that are no positions, too.
        length = rows
    part = Part(stack.name, shape, out, kv, length or rows, embed, tables, tuple(once(besides)))
    for layer in dict.fromkeys(out):
        # Shapes alone are made of it; a file may say what cannot be.
        with possible(f"what {stack.name or 'the model'} says of positions"), torch.device("meta"):
            part.encoding(out.index(layer))
    return part


def added(stack: Stack, pieces: list[Kind]) -> tuple[str, dict[str, tuple[int, ...]], int | None]:
    """The spec of what is added to the embeddings, the shape of its table, and for how many positions it serves."""
    node = stack.node
    kind = node.keys.peek("position_embedding_type")
    if isinstance(kind, str):
        node.keys.say("position_embedding_type", f"positions are {kind}")
    embed, positions, tables = "none", None, dict[str, tuple[int, ...]]()
    for piece in pieces:
        size = piece.sizes
        if len(size) > 1 and embed == "none":
            tables[piece.where] = size
        if piece.door != "embed":
            continue
        node.claimed.add(piece.where)
        rows, wide, spec = math.prod(size[:-1]), size[-1], piece.specs()[0]
        counts = {rows, rows - getattr(piece, "row", 0), rows - getattr(piece, "prefix", 0), *size[:-1]} - {1}
        for key, value in node.keys.given.items():
            if type(value) is int and value in counts and re.search(r"pos|seq_len", key):
                node.keys.say(key, f"the rows of {piece.where}")
        stack.besides += [piece.besides] if piece.besides else []
        if wide != stack.shape.dim:
            stack.besides.append(f"{piece.where} has {wide} channels, which a projection brings to {stack.shape.dim}")
        if embed == "none":
            embed, positions = spec, rows - getattr(piece, "row", 0) if len(size) > 1 else None
        else:
            stack.besides.append(f"{piece.where} is added too: {spec}")
    if embed == "none" and kind == "absolute" and not node.modules:
        return "learned", {}, stack.shape.max_len
    return embed, tables, positions


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


def unclaimed(node: Node) -> Iterator[tuple[str, str]]:
    """What the modules have and no spec accounts for, by path, a sentence for each kind of tensor or module."""
    for item in node.found:
        if item.path not in node.claimed and not feeds_turns(node, item):
            path, of = every_layer(item.path), type(item.owner).__name__
            why = node.reasons.get(item.path, "carries position, and no spec here says how")
            yield item.path, f"{path} ({of}) {why}"
