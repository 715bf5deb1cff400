"""Masks and logit scales of a stack of layers: measured in its modules, else read from its keys."""

import math
from collections import Counter
from dataclasses import dataclass

from torch import nn

from posenc.checkpoints.models.attention_trace import AttentionCall, Reach
from posenc.checkpoints.models.nodes import ConfigNode, has_role
from posenc.checkpoints.vocabulary.bounds import LENGTHS
from posenc.checkpoints.vocabulary.ledger import show_value

WHICH_ATTEND = (
    *("attn_type_list", "layers_block_type", "block_types", "hybrid_override_pattern", "hybrid_layer_pattern"),
    *("full_attention_interval", "attn_layer_period", "attn_layer_offset", "attn_layer_indices", "full_attn_idxs"),
    *("linear_attn_config", "layers_types"),
)
"""Keys that say which layers attend."""

WHICH_SEE_ALL = (
    *("layer_types", "attention_types", "attention_layers", "global_attn_every_n_layers", "no_rope_layers"),
    *("sliding_window_pattern", "_sliding_window_pattern", "prefix_dense_sliding_window_pattern"),
    *("max_window_layers", "use_sliding_window"),
)
"""Keys that say which layers see how far."""

OF_STATES = ("chunk_size", "mamba_chunk_size")
"""Keys of layers without attention."""

SCALES = ("query_pre_attn_scalar", "attention_multiplier", "scale_attn_weights", "qk_scale_factor", "scale_attn")

WINDOWS = ("sliding_window", "local_attention", "window_size", "attention_window_size", "attention_window")


@dataclass
class StackAttention:
    """The attention of each layer in a stack.

    causal    whether tokens see only the past
    reaches   window or chunk of each layer
    scales    the factor of its logits, or None if not measured
    attends   whether it attends at all
    rows      of the weights of its queries and keys, if its modules have separate ones
    remarks   in sentences
    from_run  whether all that was measured in a run, and not read from keys
    left      what was not measured, in sentences
    """

    causal: bool
    reaches: list[Reach]
    scales: list[float | None]
    attends: list[bool]
    rows: list[tuple[int, ...]]
    remarks: list[str]
    from_run: bool
    left: list[str]


def stack_attention(node: ConfigNode, role: str, count: int) -> StackAttention:
    """Return the attention of a stack with `count` layers."""
    keys, prefix, ran = node.keys, *attention_as_run(node, role, count)
    key_reaches = reaches_by_keys(node, count)
    left, remarks = list[str](), list[str]()
    if not ran:
        unread = [key for key in WHICH_ATTEND if keys.has(key)]
        if unread:
            left.append(f"{', '.join(unread)} may say which layers attend, and no run has shown it; all are taken to")
        if node.modules and node.trace.failure:
            left.append(f"who sees whom could not be measured ({node.trace.failure}); it is as the keys say")
        elif node.modules:
            remarks.append("no softmax of attention was seen to run; who sees whom is as the keys say")
        for key in (*WHICH_ATTEND, *WHICH_SEE_ALL, *SCALES, *(OF_STATES if unread else ())):
            keys.note(key, "as the keys say, not measured")
        causal = causal_by_keys(node, role)
        return StackAttention(causal, key_reaches, [None] * count, [True] * count, [()] * count, remarks, False, left)
    entered_layers = {i for i in range(count) if f"{prefix}{i}" in node.trace.entered_paths}
    still = sorted(entered_layers - ran.keys())
    if node.trace.failure and still and still[-1] == max(entered_layers):
        # The run ended there.
        still.pop()
    unseen = [i for i in range(count) if i not in ran and i not in still]
    if unseen:
        why = f" ({node.trace.failure})" if node.trace.failure else ""
        left.append(f"layers {show_value(unseen)} did not run{why}; who sees whom in them is as the keys say")
    reaches = [(i in ran and ran[i].reach) or (Reach() if i in still else key_reaches[i]) for i in range(count)]
    sights = [attention.causal for attention in ran.values() if attention.causal is not None]
    causal = all(sights) if sights else causal_by_keys(node, role)
    remarks = visibility_remarks(ran) + without_attention(node, prefix, still, ran)
    if keys.peek("is_decoder") is True and not causal:
        # Some classes take it as an argument of each call.
        remarks.append("is_decoder is true, and tokens see both sides as it ran")
    scales = [ran[i].scale if i in ran else None for i in range(count)]
    without_scale = [i for i in sorted(ran) if scales[i] is None]
    if without_scale:
        left.append(f"what multiplies the logits of layers {show_value(without_scale)} could not be measured")
    note_keys(node, key_reaches, reaches, causal, still)
    rows = [projection_rows(node, f"{prefix}{i}") for i in range(count)]
    return StackAttention(causal, reaches, scales, [i not in still for i in range(count)], rows, remarks, True, left)


def attention_as_run(node: ConfigNode, role: str, count: int) -> tuple[str, dict[int, AttentionCall]]:
    """Return the path prefix of a stack's layers, and the first attention that ran in each layer."""
    stacks: dict[str, list[tuple[int, AttentionCall]]] = {}
    for attention in node.trace.attentions:
        if attention.layer and has_role(attention.path, role):
            prefix = attention.layer.rstrip("0123456789")
            index = attention.layer.removeprefix(prefix)
            stacks.setdefault(prefix, []).append((int(index), attention))
    if not stacks:
        return "", {}
    prefix = max(stacks, key=lambda name: len({index for index, _ in stacks[name]}))
    runs = stacks[prefix]
    if len({index for index, _ in runs}) == 1 and len(runs) >= count:
        # One layer that runs repeatedly, or one stage.
        return prefix, dict(enumerate(attention for _, attention in runs[:count]))
    return prefix, {index: attention for index, attention in reversed(runs) if index < count}


def without_attention(node: ConfigNode, prefix: str, still: list[int], ran: dict[int, AttentionCall]) -> list[str]:
    """Return sentences on layers without attention, and the modules that they have instead."""

    def children(index: int) -> set[tuple[str, str]]:
        layer = node.modules.get(f"{prefix}{index}")
        return set() if layer is None else {(name, type(child).__name__) for name, child in layer.named_children()}

    usual = set().union(*(children(i) for i in ran))
    instead: dict[str, list[int]] = {}
    for i in still:
        modules = sorted(f"{name} ({kind})" for name, kind in children(i) - usual)
        instead.setdefault(", ".join(modules) or "nothing in its place", []).append(i)
    return [f"layers {show_value(layers)} do not attend: {names}" for names, layers in instead.items()]


def projection_rows(node: ConfigNode, layer: str) -> tuple[int, ...]:
    """Return the rows of a layer's q_proj and k_proj; empty without these two."""
    projections = (node.modules.get(f"{layer}.self_attn.{name}") for name in ("q_proj", "k_proj"))
    rows = tuple(projection.out_features for projection in projections if isinstance(projection, nn.Linear))
    return rows if len(rows) == 2 else ()


def visibility_remarks(ran: dict[int, AttentionCall]) -> list[str]:
    """Return sentences on masks that no window expresses: mixed causality, and blocks."""
    causal, two_sided, blocks = (sorted(i for i, a in ran.items() if a.causal is kind) for kind in (True, False, None))
    mixed_layers = f"layers {show_value(causal)} are causal, and layers {show_value(two_sided)} see both sides"
    in_blocks = f"layers {show_value(blocks)} attend in blocks, whose reach is not measured"
    return [mixed_layers] * bool(causal and two_sided) + [in_blocks] * bool(blocks)


def note_keys(node: ConfigNode, by_keys: list[Reach], reaches: list[Reach], causal: bool, still: list[int]) -> None:
    """Note the measured meaning of attention keys, and contradictions."""
    keys = node.keys
    windows = Counter(item.window for item in reaches if item.window)
    chunks = Counter(item.chunk for item in reaches if item.chunk)
    count, longest = len(reaches), node.first(LENGTHS)
    window_notes = [f"windows of {window} tokens in {n} of {count} layers, measured" for window, n in windows.items()]
    for key in WINDOWS:
        size = keys.peek(key)
        if window_notes or "measured" not in keys.notes.get(keys.path(key), ""):
            # The windows of an encoder win over a decoder without any.
            keys.note(key, "; ".join(window_notes) or "no layer has a window, measured")
        if not isinstance(size, int) or keys.path(key) not in keys.file or all(r.window != size for r in by_keys):
            continue
        # A two-sided window may count both sides, and one of the trained length hides nothing.
        agrees = any(window in (size, size + 1, size // 2, size // 2 + 1) for window in windows)
        if not agrees and (window_notes or not isinstance(longest, int) or size < longest):
            sight = window_notes[0] if window_notes else "no layer has a window in a short pass without a cache"
            keys.contradict(f"{keys.path(key)} is {size}, and {sight}; followed: the modules")
    for index, reach in enumerate(reaches if keys.has("per_layer_config") else ()):
        note = f"a window of {reach.window} tokens, measured" if reach.window else "no window, measured"
        for key in WINDOWS:
            keys.open("per_layer_config").open(str(index)).note(key, note)
    if still:
        for key in OF_STATES:
            keys.note(key, "how layers without attention are computed")
    for chunk, n in chunks.items():
        keys.note("attention_chunk_size", f"chunks of {chunk} tokens in {n} of {count} layers, measured")
    for key in WHICH_ATTEND:
        keys.note(key, f"which layers attend: {count - len(still)} of {count}, measured")
    for key in WHICH_SEE_ALL:
        keys.note(key, "how far each layer sees, which is measured")
    if keys.has("rope_parameters"):
        keys.note("original_max_position_embeddings", "trained length before stretching, where a schedule stretches")
    for key in SCALES:
        keys.note(key, "the scale of attention, which is measured")


def causal_by_keys(node: ConfigNode, role: str) -> bool:
    """Whether tokens see only the past, by the keys."""
    if role:
        return role == "decoder"
    if node.keys.has("is_decoder") or node.of_images:
        return bool(node.keys.peek("is_decoder"))
    # A known architecture without a cache does not predict next tokens.
    return bool(node.keys.peek("use_cache", node.config is None))


def reaches_by_keys(node: ConfigNode, count: int) -> list[Reach]:
    """Return the reach of each layer by `sliding_window`, `attention_chunk_size` and `layer_types`."""
    keys = node.keys
    size, chunk, types = (keys.peek(key) for key in ("sliding_window", "attention_chunk_size", "layer_types"))
    keys.note("sliding_window", f"windows of {size} tokens")
    is_off = not isinstance(size, int) or keys.peek("use_sliding_window") is False
    window = Reach() if is_off else Reach(window=size)
    if isinstance(types, list) and len(types) == count:
        chunks = Reach(chunk=chunk if isinstance(chunk, int) else None)
        by_type = {"sliding_attention": window, "chunked_attention": chunks}
        return [by_type.get(kind, Reach()) for kind in types]
    return [window] * count


def scale_of(scale: float | None, channels: int) -> float | None:
    """Return the factor of logits, None for the usual one."""
    usual = scale is None or math.isclose(scale, channels**-0.5, rel_tol=1e-4)
    return None if usual else float(f"{scale:.7g}")
