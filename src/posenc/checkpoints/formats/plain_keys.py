"""Keys that sound like position and need no spec, and keys that a file does not have."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from posenc.checkpoints.kinds.rotary.old_keys import OLD, ORIGINAL_LENGTH
from posenc.checkpoints.models.nodes import ConfigNode
from posenc.checkpoints.vocabulary.ledger import SPEAKS_OF_POSITION

OLD_NAMES = (*OLD, ORIGINAL_LENGTH)
"""Keys that transformers itself moves into `rope_parameters`."""

PLAIN = {
    *("output_attentions", "position_ids", "chunk_size_feed_forward", "learned_pos_emb", "attention_chunk_size"),
    *("frequency_stride", "dropout_positions", "tpu_short_seq_length", "position_biased_input", "image_seq_length"),
    *("num_hash_buckets", "segment_means_seq_len", "cross_attention_frequency"),
    *("frequency_embedding_size", "min_positive_scores_rate", "positive_label_weight", "mamba_chunk_size"),
    *("positional_dropout_rate", "encoder_positional_dropout_rate", "decoder_positional_dropout_rate"),
    "positionwise_conv_kernel_size",
}
"""Keys that sound like position, whose effect other keys have: they count as understood."""

ELSEWHERE = {
    **dict.fromkeys(("video_seq_length", "audio_chunk_size", "window_kernel_size"), "how much becomes a token, or all"),
    "position_id_per_seconds": "where tokens stand in time, which the model's own code counts",
    "reset_position_index_per_cell": "whether positions start anew in each cell, which the model's own code counts",
}
"""Keys of how an input becomes tokens with positions -> their notes."""


def plain_keys(node: ConfigNode) -> None:
    """Note the keys whose effect others have, and those that switch something off."""
    keys = node.keys
    config_keys = [key for key, value in keys.entries.items() if isinstance(value, dict) and key.endswith("_config")]
    for ledger, key in itertools.product((keys, *map(keys.open, config_keys)), PLAIN):
        ledger.note(key, "told by other keys")
    for key, value in keys.entries.items():
        if value is False and node.modules and SPEAKS_OF_POSITION.search(key.lower()):
            keys.note(key, "off")
    if node.modules and not node.trace.failure and not node.trace.turns:
        rope = keys.open("rope_parameters")
        for ledger, names in ((keys, OLD), (rope, rope.entries)):
            for key in names:
                ledger.note(key, "nothing turns")
    if node.modules and not node.trace.failure and not node.trace.attentions:
        for key in filter(re.compile("window|chunk").search, keys.entries):
            keys.note(key, "nothing attends")
    if keys.peek("rotary_value"):
        keys.note("rotary_value", "values are turned too")
        node.leave("rotary_value turns the values too, by their own positions alone")
    if keys.peek("relative_attention") is True:
        node.leave("relative_attention compares signed buckets of distances with content (deberta), and stays")
    elif keys.has("relative_attention"):
        keys.note("max_relative_positions", "not read: logits read no distances")
    for key, words in ELSEWHERE.items():
        keys.note(key, words)


def mark_defaults(notes: dict[str, str], unknown: dict[str, Any], file_keys: Mapping[str, Any]) -> None:
    """Mark keys that the file lacks, drop notes on mere defaults, and keep keys that transformers renamed."""
    present = set(flat_keys(file_keys))
    for key in list(notes):
        if key not in present and key.rpartition(".")[2] in PLAIN:
            del notes[key]
        elif key not in present:
            notes[key] += " (not in the file: default, or from another key)"
    for key in list(unknown):
        if key not in present and key.rpartition(".")[2] not in {name.rpartition(".")[2] for name in present}:
            del unknown[key]
    for key in present:
        if key.rpartition(".")[2] in OLD_NAMES and key not in notes and key not in unknown:
            notes[key] = "taken into rope_parameters"


def flat_keys(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield f"{path}{key}"
        if isinstance(value, Mapping):
            yield from flat_keys(value, f"{path}{key}.")
