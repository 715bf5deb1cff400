"""A sequence sharded over ranks sends as many bytes as the guide says."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from tiers import rest_slow

from posenc import Attention, Positions, masks
from posenc.parallel import shard_sequence

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed training")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "long-sequences.md"
ROW = re.compile(r"^\| `([^|`]+)`(, packed)? \| (ring|gather) \| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)
"""A row of the guide's table: spec, whether documents are packed, exchange, bytes forwards, bytes of gradients."""

RANKS, TOKENS = 2, 32


def table() -> list[tuple[str, bool, str, int, int]]:
    rows = ROW.findall(GUIDE.read_text(encoding="utf-8"))
    return [
        (spec, bool(packed), way, *(int(size.replace(",", "")) for size in sizes)) for spec, packed, way, *sizes in rows
    ]


class Counter:
    """A wrapper that calls a function and counts the bytes that it sends."""

    def __init__(self, call: Callable[..., Any], size_of: Callable[..., int]) -> None:
        self.call, self.size_of, self.total = call, size_of, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.total += self.size_of(*args)
        return self.call(*args, **options)


def message_bytes(operations: list) -> int:
    return sum(op.tensor.numel() * op.tensor.element_size() for op in operations if op.op is dist.isend)


def count_bytes(rank: int, rows: list[tuple[str, bool, str, int, int]], file: str) -> None:
    messages = dist.batch_isend_irecv = Counter(dist.batch_isend_irecv, message_bytes)
    totals = dist.all_gather = Counter(dist.all_gather, lambda _, x: x.numel() * x.element_size())
    counts = []
    for spec, packed, exchange, *_ in rows:
        layer = Attention(32, 32, kv_heads=8, head_dim=128, encoding=spec, max_len=TOKENS, dtype=torch.bfloat16)
        shards = shard_sequence(layer, exchange=exchange)
        # The ranks exchange their positions once for all layers.
        at = shards.cut(Positions.packed([TOKENS // 2] * 2) if packed else Positions.count(TOKENS))
        x = shards.cut(torch.randn(1, TOKENS, 32, dtype=torch.bfloat16)).requires_grad_()
        layer(x.detach(), positions=at, mask=masks.causal())
        start = messages.total, totals.total
        out = layer(x, positions=at, mask=masks.causal())
        forwards, of_sums = messages.total - start[0], totals.total - start[1]
        out.sum().backward()
        backwards = messages.total - start[0] - forwards
        if exchange == "gather":
            forwards, of_sums = (RANKS - 1) * of_sums, 0
        counts.append((forwards, backwards, of_sums))
    if rank == 0:
        Path(file).write_text(json.dumps(counts))


@pytest.mark.parametrize("part", rest_slow([0, 1], 1))
def test_the_guide_says_how_many_bytes_go_round(tmp_path: Path, part: int) -> None:
    rows, here = table()[part::2], TOKENS // RANKS
    assert len(rows) > 4
    file = tmp_path / "counts.json"
    run_on_ranks(RANKS, count_bytes, tmp_path, rows, str(file))
    for (spec, _, way, of_keys, of_gradients), counts in zip(rows, json.loads(file.read_text()), strict=True):
        forwards, backwards, of_sums = counts
        # Keys go to all other ranks, and again in the backward pass; their gradients return over all ranks.
        assert forwards == (RANKS - 1) * here * of_keys, f"{spec}: {forwards / here / (RANKS - 1)} bytes"
        again, hops = (of_keys, RANKS) if way == "ring" else (0, RANKS - 1)
        expected = ((RANKS - 1) * again + hops * of_gradients) * here
        gradients = (backwards / here - (RANKS - 1) * again) / hops
        assert backwards == expected, f"{spec}: gradients of {gradients} bytes"
        # Each chunk and head sends one number of its log-sum-exps, for any number of tokens.
        assert of_sums in (0, 2 * 32 * 8, 2 * 32 * 64 * 8), f"{spec}: {of_sums}"
