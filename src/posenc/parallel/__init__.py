"""Sequence and head parallelism: exact for every encoding, or refused by name."""

from posenc.parallel.heads import HeadShards, shard_heads
from posenc.parallel.sequence import SequenceShards, shard_sequence, unshard_sequence

__all__ = ["HeadShards", "SequenceShards", "shard_heads", "shard_sequence", "unshard_sequence"]
