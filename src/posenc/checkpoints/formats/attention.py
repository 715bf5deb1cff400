"""Who sees whom in a stack of layers, and what multiplies their logits: as its modules ran, else as its keys say."""

import math
from collections import Counter
from dataclasses import dataclass

from torch import nn

from posenc.checkpoints.models.attended import Attended, Reach
from posenc.checkpoints.models.nodes import Node, of_role
from posenc.checkpoints.vocabulary.bounds import LENGTHS
from posenc.checkpoints.vocabulary.ledger import in_words

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
"""Keys of how layers without attention are computed."""

SCALES = ("query_pre_attn_scalar", "attention_multiplier", "scale_attn_weights", "qk_scale_factor", "scale_attn")

WINDOWS = ("sliding_window", "local_attention", "window_size", "attention_window_size", "attention_window")


@dataclass
class Attending:
    """What attention does in each layer of a stack.

    causal   whether tokens see only the past
    reaches  how far each layer sees
    scales   the factor of its logits, or None where it was not measured
    attends  whether it attends at all
    rows     of the weights that make its queries and its keys, where its modules have their own
    besides  what is to be said of it, in sentences
    ran      whether all that is as it ran, and not as keys say
    left     what was not measured, in sentences
    """

    causal: bool
    reaches: list[Reach]
    scales: list[float | None]
    attends: list[bool]
    rows: list[tuple[int, ...]]
    besides: list[str]
    ran: bool
    left: list[str]


def attending(node: Node, role: str, count: int) -> Attending:
    """What attention does in a stack of so many layers."""
    keys, prefix, ran = node.keys, *as_run(node, role, count)
    told = reaches_by_keys(node, count)
    left, besides = list[str](), list[str]()
    if not ran:
        unread = [key for key in WHICH_ATTEND if keys.has(key)]
        if unread:
            left.append(f"{', '.join(unread)} may say which layers attend, and no run has shown it; all are taken to")
        if node.modules and node.seen.failure:
            left.append(f"who sees whom could not be measured ({node.seen.failure}); it is as the keys say")
        elif node.modules:
            besides.append("no softmax of attention was seen to run; who sees whom is as the keys say")
        for key in (*WHICH_ATTEND, *WHICH_SEE_ALL, *SCALES, *(OF_STATES if unread else ())):
            keys.say(key, "as the keys say, not measured")
        causal = causal_by_keys(node, role)
        return Attending(causal, told, [None] * count, [True] * count, [()] * count, besides, False, left)
    entered = {i for i in range(count) if f"{prefix}{i}" in node.seen.entered}
    still = sorted(entered - ran.keys())
    if node.seen.failure and still and still[-1] == max(entered):
        # There the run ended.
        still.pop()
    unseen = [i for i in range(count) if i not in ran and i not in still]
    if unseen:
        why = f" ({node.seen.failure})" if node.seen.failure else ""
        left.append(f"layers {in_words(unseen)} did not run{why}; who sees whom in them is as the keys say")
    reaches = [(ran[i].reach if i in ran else None) or (Reach() if i in still else told[i]) for i in range(count)]
    sights = [one.causal for one in ran.values() if one.causal is not None]
    causal = all(sights) if sights else causal_by_keys(node, role)
    besides = kinds_of_sight(ran) + without_attention(node, prefix, still, ran)
    if keys.peek("is_decoder") is True and not causal:
        # Some classes are told anew with each call.
        besides.append("is_decoder is true, and tokens see both sides as it ran")
    scales = [ran[i].scale if i in ran else None for i in range(count)]
    unscaled = [i for i in sorted(ran) if scales[i] is None]
    if unscaled:
        left.append(f"what multiplies the logits of layers {in_words(unscaled)} could not be measured")
    enter_keys(node, told, reaches, causal, still)
    rows = [rows_of(node, f"{prefix}{i}") for i in range(count)]
    return Attending(causal, reaches, scales, [i not in still for i in range(count)], rows, besides, True, left)


def as_run(node: Node, role: str, count: int) -> tuple[str, dict[int, Attended]]:
    """The path of a stack up to the number of its layers, and the first attention of each layer that ran one."""
    stacks: dict[str, list[tuple[int, Attended]]] = {}
    for one in node.seen.attended:
        if one.layer and of_role(one.path, role):
            prefix = one.layer.rstrip("0123456789")
            index = one.layer.removeprefix(prefix)
            stacks.setdefault(prefix, []).append((int(index), one))
    if not stacks:
        return "", {}
    prefix = max(stacks, key=lambda name: len({index for index, _ in stacks[name]}))
    found = stacks[prefix]
    if len({index for index, _ in found}) == 1 and len(found) >= count:
        # One layer that runs again and again, or one stage.
        return prefix, dict(enumerate(one for _, one in found[:count]))
    return prefix, {index: one for index, one in reversed(found) if index < count}


def without_attention(node: Node, prefix: str, still: list[int], ran: dict[int, Attended]) -> list[str]:
    """Which layers do not attend, and what they have instead."""

    def children(index: int) -> set[tuple[str, str]]:
        layer = node.modules.get(f"{prefix}{index}")
        return set() if layer is None else {(name, type(child).__name__) for name, child in layer.named_children()}

    usual = set().union(*(children(i) for i in ran))
    instead: dict[str, list[int]] = {}
    for i in still:
        own = sorted(f"{name} ({kind})" for name, kind in children(i) - usual)
        instead.setdefault(", ".join(own) or "nothing in its place", []).append(i)
    return [f"layers {in_words(layers)} do not attend: {what}" for what, layers in instead.items()]


def rows_of(node: Node, layer: str) -> tuple[int, ...]:
    """The rows of the weights that make a layer's queries and its keys; empty where no two modules do."""
    both = (node.modules.get(f"{layer}.self_attn.{name}") for name in ("q_proj", "k_proj"))
    found = tuple(one.out_features for one in both if isinstance(one, nn.Linear))
    return found if len(found) == 2 else ()


def kinds_of_sight(ran: dict[int, Attended]) -> list[str]:
    """What a window and a word for the whole stack do not say of who sees whom."""
    causal, both, blocks = (sorted(i for i, one in ran.items() if one.causal is what) for what in (True, False, None))
    said = (
        [f"layers {in_words(causal)} are causal, and layers {in_words(both)} see both sides"] if causal and both else []
    )
    return said + [f"layers {in_words(blocks)} attend in blocks, whose reach is not measured"] * bool(blocks)


def enter_keys(node: Node, told: list[Reach], reaches: list[Reach], causal: bool, still: list[int]) -> None:
    """Say what the keys of attention were found to do, and where they say something else."""
    keys = node.keys
    windows = Counter(one.window for one in reaches if one.window)
    chunks = Counter(one.chunk for one in reaches if one.chunk)
    count, longest = len(reaches), node.first(LENGTHS)
    shown = [f"windows of {window} tokens in {n} of {count} layers, measured" for window, n in windows.items()]
    for key in WINDOWS:
        size = keys.peek(key)
        if shown or "measured" not in keys.understood.get(keys.path(key), ""):
            # What was found in an encoder goes before a decoder without windows.
            keys.say(key, "; ".join(shown) or "no layer has a window, measured")
        if not isinstance(size, int) or keys.path(key) not in keys.file or all(one.window != size for one in told):
            continue
        # A window to both sides may be named by what it holds, and one of the trained length leaves nothing out.
        followed = any(window in (size, size + 1, size // 2, size // 2 + 1) for window in windows)
        if not followed and (shown or not isinstance(longest, int) or size < longest):
            sight = shown[0] if shown else "no layer has a window in a short pass without a cache"
            keys.contradict(f"{keys.path(key)} is {size}, and {sight}; followed: the modules")
    for index, reach in enumerate(reaches if keys.has("per_layer_config") else ()):
        own = f"a window of {reach.window} tokens, measured" if reach.window else "no window, measured"
        for key in WINDOWS:
            keys.open("per_layer_config").open(str(index)).say(key, own)
    if still:
        for key in OF_STATES:
            keys.say(key, "how layers without attention are computed")
    for chunk, n in chunks.items():
        keys.say("attention_chunk_size", f"chunks of {chunk} tokens in {n} of {count} layers, measured")
    for key in WHICH_ATTEND:
        keys.say(key, f"which layers attend: {count - len(still)} of {count}, measured")
    for key in WHICH_SEE_ALL:
        keys.say(key, "how far each layer sees, which is measured")
    if keys.has("rope_parameters"):
        keys.say("original_max_position_embeddings", "trained length before stretching, where a schedule stretches")
    for key in SCALES:
        keys.say(key, "the scale of attention, which is measured")


def causal_by_keys(node: Node, role: str) -> bool:
    """Whether tokens see only the past, where nothing has run."""
    if role:
        return role == "decoder"
    if node.keys.has("is_decoder") or node.of_images:
        return bool(node.keys.peek("is_decoder"))
    # A known architecture without a cache predicts no next token.
    return bool(node.keys.peek("use_cache", node.config is None))


def reaches_by_keys(node: Node, count: int) -> list[Reach]:
    """How far each layer sees by `sliding_window`, `attention_chunk_size` and `layer_types`."""
    keys = node.keys
    size, chunk, types = (keys.peek(key) for key in ("sliding_window", "attention_chunk_size", "layer_types"))
    keys.say("sliding_window", f"windows of {size} tokens")
    off = not isinstance(size, int) or keys.peek("use_sliding_window") is False
    window = Reach() if off else Reach(window=size)
    if isinstance(types, list) and len(types) == count:
        of = {"sliding_attention": window, "chunked_attention": Reach(chunk=chunk if isinstance(chunk, int) else None)}
        return [of.get(kind, Reach()) for kind in types]
    return [window] * count


def scale_of(measured: float | None, channels: int) -> float | None:
    """The factor of logits where it is not the usual one."""
    usual = measured is None or math.isclose(measured, channels**-0.5, rel_tol=1e-4)
    return None if usual else float(f"{measured:.7g}")
