"""Bounds of sizes in a configuration: whole numbers, checked before anything is built from them.

Loops, models and runs depend on these numbers, so that one of them could take all memory, or all time. skeleton.py
bounds tensors, and the channels of a head bound tables and frequencies.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from posenc.checkpoints.vocabulary.reading import MOST_LAYERS, WIDEST_HEAD, CannotRead
from posenc.foreign import bounded_count, quote

WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "encoder_hidden_size", "hidden_dim", "emb_dim")

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "num_encoder_attention_heads")

KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")

HEAD_DIMS = ("head_dim", "attention_head_dim", "d_kv", "kv_channels", "dim_head")

LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx"),
    *("model_max_length", "context_length", "max_source_positions"),
)
"""Names of sizes in configurations."""

SIZES = {*WIDTHS, *HEADS, *KV_HEADS, *LAYERS, *HEAD_DIMS, *LENGTHS}
"""Keys that must hold whole numbers, or lists of them."""

LARGEST_BY_NAME: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"layers?$|^depths?$|(^|_)(n|num)_\w*(blocks|stages|levels)$"), MOST_LAYERS),
    (re.compile(r"(experts?|heads?|groups)$"), 1 << 16),
    (re.compile(r"buckets|distance|relative_positions$"), 1 << 20),
    (re.compile(r"(head|rope|nope)_dim$|^d_kv$|^kv_channels$"), WIDEST_HEAD),
    (re.compile(r"(?<!vocab_)size$|dims?$|rank$|channels$|^d_|_embd$|width$"), 1 << 24),
    (re.compile(r""), 1 << 63),
)
"""Patterns of keys -> the largest whole number that they may have; the first match counts.

The deepest models have some hundred layers and the widest some ten thousand channels. Numbers of tokens have no such
bound, as nothing here loops over them."""

LONGEST_NAME = 200
"""The most letters of a key."""

MOST_KEYS = 100_000
"""The most keys of a configuration, with nested ones; a released one names 20,000 classes of images twice."""


def check_bounds(config: Mapping[str, Any]) -> None:
    """Raise CannotRead, with the key, for a size that is no whole number, negative, or out of bounds."""
    left: list[tuple[str, Mapping[str, Any]]] = [("", config)]
    keys = 0
    while left:
        path, mapping = left.pop()
        keys += len(mapping)
        if keys > MOST_KEYS:
            raise CannotRead(f"it has more than {MOST_KEYS:,} keys, which is no configuration of a model")
        for key, value in mapping.items():
            if len(str(key)) > LONGEST_NAME:
                raise CannotRead(f"a key has {len(key)} letters ({quote(key, 40)}); at most {LONGEST_NAME} are read")
            where = f"{path}{key}"
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(item, Mapping) and key not in SIZES:
                    left.append((f"{where}.", item))
                else:
                    check_value(str(key), where, item)


def check_value(key: str, where: str, value: object) -> None:
    """Raise CannotRead for a value that a key may not have."""
    if value is None:
        return
    largest = next(largest for name, largest in LARGEST_BY_NAME if name.search(key))
    if key in SIZES:
        whole = int(value) if isinstance(value, float) and math.isfinite(value) and value == int(value) else value
        # Some files write -1 for "all".
        bounded_count(whole, where, least=-1, limit=largest)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > largest:
        raise CannotRead(f"expected at most {largest:,}, got {quote(value, 60)}", field=where)
