"""Read a configuration of transformers, of any architecture, and check it against its own modules.

Keys give the specs. If transformers is installed and knows the architecture, its modules decide: a skeleton of the
model (modules.py) shows which channels pair, which layers rotate, from which row a table counts, and whether the
frequencies are those of the keys. What the modules have and no spec says is listed in `not_covered`.
"""

import copy
import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from posenc.checkpoints.files.named_code import without_code
from posenc.checkpoints.formats.attention import scale_of, stack_attention
from posenc.checkpoints.formats.load import quietly
from posenc.checkpoints.formats.plain_keys import flat_keys, mark_defaults, plain_keys
from posenc.checkpoints.kinds.added.learned_table import feeds_turns
from posenc.checkpoints.kinds.all_kinds import KINDS
from posenc.checkpoints.kinds.kind import Kind, LayerStack
from posenc.checkpoints.kinds.rotary.measured import rotary_layers
from posenc.checkpoints.kinds.uncovered import uncovered_reason, unread_position_code
from posenc.checkpoints.models.nodes import (
    ConfigNode,
    every_layer,
    has_role,
    inspect_nodes,
    merge_layers,
    nodes_of,
    stages_of,
)
from posenc.checkpoints.models.skeleton import hollow_copy
from posenc.checkpoints.vocabulary.bounds import HEAD_DIMS, HEADS, KV_HEADS, LAYERS, LENGTHS, WIDTHS, check_bounds
from posenc.checkpoints.vocabulary.ledger import Ledger
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.checkpoints.vocabulary.specs import possible
from posenc.encoding.base import Shape
from posenc.foreign import bounded_count, one_line, reading_with, shorten

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

OF_ROLE = {
    "heads": ("{}_attention_heads", "num_{}_attention_heads", "{}_num_attention_heads"),
    "key_value_heads": ("{}_num_key_value_heads",),
    "layers": ("{}_layers", "num_{}_layers", "{}_num_hidden_layers"),
}
"""Names of the sizes of an encoder and a decoder."""


def read(config: "Mapping[str, Any] | PreTrainedConfig") -> Reading:
    """Read the positions of a configuration of transformers, and of its own modules.

    config  a dictionary as in config.json, old key names or new, or a configuration object

    A dictionary of a known `model_type` gets the defaults of its architecture first; `understood` marks them. For an
    unknown one, or without transformers, only the keys are read, and `not_covered` lists what they leave open, the
    layout above all. No code of a checkpoint is run, and no weights are allocated.

    Raises CannotRead for no such dictionary, a value of the wrong kind, or an impossible schedule.

    >>> sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    >>> read({**sizes, "rope_theta": 500_000}).parts[0].layers[1].spec
    'rotary(base=500000)'
    """
    if isinstance(config, Mapping):
        try:
            text = json.dumps(config, sort_keys=True, default=str)
        except (TypeError, ValueError) as error:
            raise CannotRead(f"a configuration must be a dictionary as in config.json: {error}") from error
        return read_json_text(text)
    if not hasattr(config, "to_dict"):
        raise CannotRead(f"expected a dictionary or a configuration of transformers, got {type(config).__name__}")
    with quietly():
        config = copy.deepcopy(config)
        standardise_rope(config)
        return read_object(config, None)[0]


def read_live(model: torch.nn.Module) -> tuple[Reading, list[Kind]]:
    """Read the positions of a live model, and return its pieces of position code.

    A copy without weights is run; the model itself is not touched. Paths are those of the model.
    """
    with quietly():
        twin = hollow_copy(model)
        standardise_rope(twin.config)
        halves = [b for name, b in model.named_buffers() if name.endswith("inv_freq") and b.element_size() < 4]
        rounding = max((torch.finfo(buffer.dtype).eps for buffer in halves), default=0.0)
        reading, nodes = read_object(twin.config, None, twin, rounding)
        return reading, [piece for node in nodes for piece in node.pieces]


@functools.lru_cache(maxsize=64)
def read_json_text(text: str) -> Reading:
    config = json.loads(text)
    with quietly():
        return read_dictionary(config)


def read_dictionary(config: dict[str, Any]) -> Reading:
    """Read the positions of a config.json."""
    check_bounds(config)
    if config.get("model_type") is None and not any(config.get(key) is not None for key in (*WIDTHS, "text_config")):
        raise CannotRead(
            f"expected a config.json of transformers with model_type or hidden_size, got the keys "
            f"{', '.join(list(config)[:8]) or 'none'}"
        )
    return read_object(build_config(config), config)[0]


def build_config(keys: Mapping[str, Any]) -> Any:
    """Return transformers' object for a dictionary, with the defaults of its architecture; None for an unknown one."""
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError:
        return None
    model_type = str(keys.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        return None
    remedy = f"compare its keys with those of a released {model_type}"
    # Its classes may raise anything.
    with reading_with("transformers", field=f"this {model_type} configuration", remedy=remedy):
        config = CONFIG_MAPPING[model_type].from_dict(with_infinities(without_code(keys)))
        standardise_rope(config)
        # A configuration must be serialisable.
        json.dumps(config.to_dict(), default=str)
        return config


def with_infinities(value: Any) -> Any:
    """Return a value of a config.json with transformers' marks for infinities and NaN replaced."""
    if isinstance(value, dict) and set(value) == {"__float__"}:
        return float(value["__float__"])
    if isinstance(value, dict):
        return {key: with_infinities(item) for key, item in value.items()}
    return [with_infinities(item) for item in value] if isinstance(value, list) else value


def read_object(
    config: Any, file_keys: Mapping[str, Any] | None, model: torch.nn.Module | None = None, rounding: float = 0.0
) -> tuple[Reading, list[ConfigNode]]:
    """Return the reading of transformers' object, or of a dictionary without one, and its nodes.

    model     a model of that object without weights; None to build one
    rounding  the rounding error of its frequencies (relative)
    """
    values = json.loads(json.dumps(dict(file_keys or {}) if config is None else config.to_dict(), default=str))
    keys = Ledger(values, file=set(flat_keys(file_keys or {})))
    nodes = list(nodes_of(config, keys))
    for node in nodes:
        node.rounding = rounding
    if config is not None:
        inspect_nodes(config, nodes, model)
    elif values.get("model_type"):
        keys.add_uncovered(
            f"layout: transformers does not know the architecture {values['model_type']} here, and the keys do not say "
            f"which channels pair; half is assumed"
        )
    with possible(f"the positions of {values.get('model_type') or 'this configuration'}"):
        stacks = [(node, role, part) for node in nodes for role, part in stack_parts(node)]
    for node in nodes:
        plain_keys(node)
        rest = dict(unclaimed_items(node))
        for sentence in (*rest.values(), *unread_position_code(node)):
            node.leave(sentence)
        adds = any(piece.door == "embed" for piece in node.pieces)
        for key, value in node.keys.entries.items():
            is_used = adds and re.match(r"use_(abs|learned_pos)", key)
            is_used = is_used or (not rest and re.match(r"use_.*(pos|rot)", key))
            if value is True and node.pieces and is_used:
                node.keys.note(key, "on, as the modules have it")
    parts = tuple(replace(part, is_complete=is_fully_read(node, role)) for node, role, part in stacks)
    if config is None and not parts:
        keys.add_uncovered("the keys name no encoding, and without the modules of the architecture nothing else tells")
    if not parts and not keys.not_covered and (failure := nodes[0].trace.failure):
        nodes[0].leave(f"it could not be run ({failure}), so that nothing is known of its positions")
    notes, unknown = dict(keys.notes), keys.unknown()
    if file_keys is not None:
        mark_defaults(notes, unknown, file_keys)
    name = values.get("model_type") or values.get("architectures") or "unknown"
    architecture = shorten(one_line(str(name[0] if isinstance(name, list) else name)), 80)
    sentences = tuple(keys.contradictions), tuple(keys.not_covered)
    return Reading("transformers", architecture, parts, notes, unknown, *sentences), nodes


def standardise_rope(config: Any) -> None:
    """Move the keys of rotary to where the modules read them, in a configuration and in nested ones.

    transformers does so whenever it computes frequencies, not only when it builds a configuration. The second time it
    sees `original_max_position_embeddings` beside the dictionary of rotary, and prefers it to the one inside.
    """
    if getattr(config, "rope_parameters", None):
        config.standardize_rope_params()
    for inner in vars(config).values() if hasattr(config, "to_dict") else ():
        standardise_rope(inner)


def stack_parts(node: ConfigNode) -> Iterator[tuple[str, Part]]:
    """Yield the stacks of a configuration by role: none without heads, two for encoder and decoder."""
    keys = node.keys
    roles = stages_of(node) or [""]
    if any(keys.has(name.format("decoder")) for name in OF_ROLE["layers"]) and not keys.has("text_config"):
        if any(keys.has(key) for key in (*(name.format("encoder") for name in OF_ROLE["layers"]), *LAYERS)):
            roles = ["encoder", "decoder"]
    if roles[-1] == "decoder" and node.modules and not any(has_role(path, "decoder") for path in node.modules):
        # A decoder alone may have the sizes of both.
        roles = [""]
    for role in roles:
        part = stack_part(node, role)
        if part is not None:
            yield role, part


def is_fully_read(node: ConfigNode, role: str) -> bool:
    """Whether specs cover a stack; uncovered code without a tensor counts for all stacks of its node."""
    rest = dict(unclaimed_items(node))
    of_code = any(sentence not in rest.values() for sentence in node.left)
    return not of_code and not any(has_role(path, role) for path in rest)


def sizes_of(node: ConfigNode, role: str) -> tuple[int, int, int | None, int, int] | None:
    """Return width, heads, key and value heads, head dimension and layers of a stack; None for another stack."""
    # An encoder or a decoder alone may name its sizes as if both existed.
    roles = (role,) if role else ("decoder", "encoder")
    role_names = {size: [name.format(stack) for name in names for stack in roles] for size, names in OF_ROLE.items()}
    heads: Any = node.first((*role_names["heads"], *HEADS) if role else (*HEADS, *role_names["heads"]))
    layers: Any = node.first(
        (*role_names["layers"], *LAYERS) if role else (*LAYERS, *role_names["layers"], "layers"),
        getattr(node.config, LAYERS[0], None),
    )
    width: Any = node.first(WIDTHS)
    if role in (stages := stages_of(node)):
        # Heads have one size, and later stages have more of them.
        stage, first = stages.index(role), heads[0]
        heads, layers = heads[stage], node.first(("depths", "depth", *LAYERS))[stage]
        width = node.first(("embed_dim", *WIDTHS))
        width = width * heads // first if isinstance(width, int) and first else 0
    # Without a key for the number of layers, count those that ran.
    layers = layers or len({attention.layer for attention in node.trace.attentions})
    headless = heads is None and bool(node.trace.first_rows)
    if headless:
        heads = 1
    if not all(isinstance(n, int) and n > 0 for n in (heads, layers, width)):
        return None
    rotary_dim = next((turn.matrices.shape[-1] for turn in node.trace.turns if has_role(turn.path, role)), None)
    head_dim = node.first(HEAD_DIMS)
    if rotary_dim and not head_dim:
        # A tower with another output width has both as keys.
        width = next((node.keys.peek(name) for name in WIDTHS if node.keys.peek(name) == rotary_dim * heads), width)
    kv = node.first((*role_names["key_value_heads"], *KV_HEADS))
    if node.keys.peek("multi_query") is True and not node.keys.peek("new_decoder_architecture"):
        kv = 1
    if not isinstance(head_dim, int) or (head_dim == 0 and node.keys.peek("qk_rope_head_dim") == 0):
        # In latent attention it may be the channels that rotate, and none do.
        head_dim = max(width // heads, 1)
    bounded_count(head_dim, f"{node.path or 'the model'}: channels of a head", limit=1 << 16)
    return width, heads, kv if isinstance(kv, int) else None if headless else heads, head_dim, layers


def stack_part(node: ConfigNode, role: str) -> Part | None:
    """Return one stack of layers; None without any position code."""
    sizes = sizes_of(node, role)
    if sizes is None:
        return None
    width, heads, kv, head_dim, count = sizes
    keys, remarks = node.keys, list[str]()
    rotary_dim = keys.whole("qk_rope_head_dim", "{} channels of a head turn, in latent attention") or 0
    if keys.has("qk_rope_head_dim"):
        head_dim = rotary_dim + keys.whole("qk_nope_head_dim", "{} channels of a head do not turn", 0)
        keys.note("qk_head_dim", "channels of a head, in latent attention")
    rotary_dim = rotary_dim or head_dim
    length, attention = find_trained_length(node, role), stack_attention(node, role, count)
    shape = Shape(width, heads, head_dim, length or 1, attention.causal)
    stack = LayerStack(node, role, shape, rotary_dim, count, remarks)
    stack.rotations = rotary_layers(stack)
    pieces = [piece for kind in KINDS for piece in kind.find(stack)]
    node.reasons |= {i.path: why for i in node.items if stack.has(i.path) and (why := uncovered_reason(stack, i))}
    embed, tables, rows = added_to_embeddings(stack, pieces)
    shape = stack.shape = replace(shape, max_len=rows or length or 1)
    biases = list(dict.fromkeys(spec for piece in pieces if piece.door == "bias" for spec in piece.specs()))
    has_no_code = stack.rotations is None and not biases and embed == "none"
    # Order can enter through a causal mask alone, if all else is known.
    by_mask = attention.from_run and shape.causal and not node.trace.failure and not any(unclaimed_items(node))
    if has_no_code and not by_mask:
        return None
    specs = stack.rotations or [("none", rotary_dim)] * count
    for bias in biases:
        specs = [(bias if spec == "none" else f"{spec} + {bias}", wide) for spec, wide in specs]
    node.pieces += pieces
    layers = tuple(
        Layer(spec if attends else "none", wide, reach.window, scale_of(scale, head_dim), reach.chunk, attends, rows)
        for (spec, wide), reach, scale, attends, rows in zip(
            specs, attention.reaches, attention.scales, attention.attends, attention.rows, strict=True
        )
    )
    remarks += attention.remarks
    for sentence in attention.left:
        node.leave(sentence)
    if embed == "learned" and rows and length and rows < length:
        # Some configs also count rows that are no positions.
        length = rows
    part = Part(stack.name, shape, layers, kv, length or rows, embed, tables, tuple(merge_layers(remarks)))
    for layer in dict.fromkeys(layers):
        # On the meta device; the numbers of a file may be impossible.
        with possible(f"what {stack.name or 'the model'} says of positions"), torch.device("meta"):
            part.encoding(layers.index(layer))
    return part


def added_to_embeddings(stack: LayerStack, pieces: list[Kind]) -> tuple[str, dict[str, tuple[int, ...]], int | None]:
    """Return the spec added to the embeddings, the shapes of its tables, and its number of positions."""
    node = stack.node
    kind = node.keys.peek("position_embedding_type")
    if isinstance(kind, str):
        node.keys.note("position_embedding_type", f"positions are {kind}")
    embed, positions, tables = "none", None, dict[str, tuple[int, ...]]()
    for piece in pieces:
        size = piece.sizes
        if len(size) > 1 and embed == "none":
            tables[piece.where] = size
        if piece.door != "embed":
            continue
        node.claimed_paths.add(piece.where)
        rows, wide, spec = math.prod(size[:-1]), size[-1], piece.specs()[0]
        counts = {rows, rows - getattr(piece, "row", 0), rows - getattr(piece, "prefix", 0), *size[:-1]} - {1}
        for key, value in node.keys.entries.items():
            if type(value) is int and value in counts and re.search(r"pos|seq_len", key):
                node.keys.note(key, f"the rows of {piece.where}")
        stack.remarks += [piece.remarks] if piece.remarks else []
        if wide != stack.shape.dim:
            stack.remarks.append(f"{piece.where} has {wide} channels, which a projection brings to {stack.shape.dim}")
        if embed == "none":
            embed, positions = spec, rows - getattr(piece, "row", 0) if len(size) > 1 else None
        else:
            stack.remarks.append(f"{piece.where} is added too: {spec}")
    if embed == "none" and kind == "absolute" and not node.modules:
        return "learned", {}, stack.shape.max_len
    return embed, tables, positions


def find_trained_length(node: ConfigNode, role: str) -> int | None:
    """Return the trained length, and note its keys."""
    role_keys = {"encoder": ("max_source_positions",), "decoder": ("max_target_positions",)}.get(role, ())
    for key in (*role_keys, f"max_{role}_position_embeddings", *LENGTHS):
        value = node.keys.peek(key)
        if isinstance(value, int) and value > 0:
            node.keys.note(key, f"trained length {value} tokens")
            for same_key in LENGTHS:
                if node.keys.peek(same_key) == value:
                    node.keys.note(same_key, f"trained length {value} tokens")
            return value
    return None


def unclaimed_items(node: ConfigNode) -> Iterator[tuple[str, str]]:
    """Yield the paths of modules and tensors that no spec accounts for, each with a sentence."""
    for item in node.items:
        if item.path not in node.claimed_paths and not feeds_turns(node, item):
            path, kind = every_layer(item.path), type(item.owner).__name__
            why = node.reasons.get(item.path, "carries position, and no spec here says how")
            yield item.path, f"{path} ({kind}) {why}"
