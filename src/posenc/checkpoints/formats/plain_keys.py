"""Keys that seem to speak of position and say nothing of it themselves, and keys that a file does not have."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from posenc.checkpoints.kinds.rotary.old_keys import BEFORE, OLD
from posenc.checkpoints.models.nodes import Node
from posenc.checkpoints.vocabulary.ledger import SPEAKS_OF_POSITION

OLD_NAMES = (*OLD, BEFORE)
"""Keys that transformers itself moves into `rope_parameters`."""

PLAIN = {
    *("output_attentions", "position_ids", "chunk_size_feed_forward", "learned_pos_emb", "attention_chunk_size"),
    *("frequency_stride", "dropout_positions", "tpu_short_seq_length", "position_biased_input", "image_seq_length"),
    *("num_hash_buckets", "segment_means_seq_len", "cross_attention_frequency"),
    *("frequency_embedding_size", "min_positive_scores_rate", "positive_label_weight", "mamba_chunk_size"),
    *("positional_dropout_rate", "encoder_positional_dropout_rate", "decoder_positional_dropout_rate"),
    "positionwise_conv_kernel_size",
}
"""Keys that speak of position, or seem to, whose effect is told by others: they are entered as understood."""

ELSEWHERE = {
    **dict.fromkeys(("video_seq_length", "audio_chunk_size", "window_kernel_size"), "how much becomes a token, or all"),
    "position_id_per_seconds": "where tokens stand in time, which the model's own code counts",
    "reset_position_index_per_cell": "whether positions start anew in each cell, which the model's own code counts",
}
"""Keys of how an input is cut into tokens and where these stand, whatever reads their positions, and what they say."""


def plain_keys(node: Node) -> None:
    """Enter the keys whose effect others tell, and those that only say that something is off."""
    keys = node.keys
    within = [key for key, value in keys.given.items() if isinstance(value, dict) and key.endswith("_config")]
    for ledger, key in itertools.product((keys, *map(keys.open, within)), PLAIN):
        ledger.say(key, "told by other keys")
    for key, value in keys.given.items():
        if value is False and node.modules and SPEAKS_OF_POSITION.search(key.lower()):
            keys.say(key, "off")
    if node.modules and not node.seen.failure and not node.seen.turns:
        rope = keys.open("rope_parameters")
        for ledger, names in ((keys, OLD), (rope, rope.given)):
            for key in names:
                ledger.say(key, "nothing turns")
    if node.modules and not node.seen.failure and not node.seen.attended:
        for key in filter(re.compile("window|chunk").search, keys.given):
            keys.say(key, "nothing attends")
    if keys.peek("rotary_value"):
        keys.say("rotary_value", "values are turned too")
        node.leave("rotary_value turns the values too, by their own positions alone")
    if keys.peek("relative_attention") is True:
        node.leave("relative_attention compares signed buckets of distances with content (deberta), and stays")
    elif keys.has("relative_attention"):
        keys.say("max_relative_positions", "not read: logits read no distances")
    for key, words in ELSEWHERE.items():
        keys.say(key, words)


def mark_defaults(understood: dict[str, str], unknown: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Say which keys the file does not have; drop what only defaults say; keep what transformers renamed."""
    present = set(flat(given))
    for key in list(understood):
        if key not in present and key.rpartition(".")[2] in PLAIN:
            del understood[key]
        elif key not in present:
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
