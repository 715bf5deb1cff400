"""What a configuration may say of sizes: whole numbers between sane bounds, held to before anything is built from them.

Models are looped over, built and run by these numbers, so that one of them alone could take all memory, or all time.
Besides that: skeleton.py bounds tensors, and the channels of a head bound tables and frequencies.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from posenc.checkpoints.vocabulary.reading import MOST_LAYERS, WIDEST_HEAD, CannotRead
from posenc.foreign import count, quoted

WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "encoder_hidden_size", "hidden_dim", "emb_dim")

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "num_encoder_attention_heads")

KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")

HEAD_DIMS = ("head_dim", "attention_head_dim", "d_kv", "kv_channels", "dim_head")

LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx"),
    *("model_max_length", "context_length", "max_source_positions"),
)
"""What configurations call their sizes."""

SIZES = {*WIDTHS, *HEADS, *KV_HEADS, *LAYERS, *HEAD_DIMS, *LENGTHS}
"""Keys that must hold whole numbers, or lists of them."""

MOST: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"layers?$|^depths?$|(^|_)(n|num)_\w*(blocks|stages|levels)$"), MOST_LAYERS),
    (re.compile(r"(experts?|heads?|groups)$"), 1 << 16),
    (re.compile(r"buckets|distance|relative_positions$"), 1 << 20),
    (re.compile(r"(head|rope|nope)_dim$|^d_kv$|^kv_channels$"), WIDEST_HEAD),
    (re.compile(r"(?<!vocab_)size$|dims?$|rank$|channels$|^d_|_embd$|width$"), 1 << 24),
    (re.compile(r""), 1 << 63),
)
"""By the name of a key, the largest whole number that it may hold; the first that fits counts.

The deepest models have some hundred layers and the widest some ten thousand channels. Numbers of tokens are not bounded
by memory, and nothing here loops over them."""

LONGEST_NAME = 200
"""The letters of a key."""

MOST_KEYS = 100_000
"""The keys of a configuration, those within it too; the most of released ones name 20,000 classes of images twice."""


def within_bounds(given: Mapping[str, Any]) -> None:
    """Raises CannotRead, naming the key, for a size that is no whole number, is negative, or is beyond all bounds."""
    left: list[tuple[str, Mapping[str, Any]]] = [("", given)]
    keys = 0
    while left:
        path, within = left.pop()
        keys += len(within)
        if keys > MOST_KEYS:
            raise CannotRead(f"it has more than {MOST_KEYS:,} keys, which is no configuration of a model")
        for key, value in within.items():
            if len(str(key)) > LONGEST_NAME:
                raise CannotRead(f"a key has {len(key)} letters ({quoted(key, 40)}); at most {LONGEST_NAME} are read")
            where = f"{path}{key}"
            for one in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(one, Mapping) and key not in SIZES:
                    left.append((f"{where}.", one))
                else:
                    hold(str(key), where, one)


def hold(key: str, where: str, value: Any) -> None:
    """Raises CannotRead unless one value may stand under a key."""
    if value is None:
        return
    most = next(most for name, most in MOST if name.search(key))
    if key in SIZES:
        whole = int(value) if isinstance(value, float) and math.isfinite(value) and value == int(value) else value
        # Some say "as many as there are" by -1.
        count(whole, where, least=-1, most=most)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > most:
        raise CannotRead(f"expected at most {most:,}, got {quoted(value, 60)}", field=where)
