"""T5's relative bias: distances that share buckets, and an embedding with a number for each bucket and head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, Stack, shadow
from posenc.checkpoints.models.dry_run import FURTHEST, Bucketed, bucketed
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding.base import Encoding
from posenc.encodings.distance_biases.t5_bias import T5Bias


@dataclass
class Buckets(Kind):
    """The method of a module that puts distances into buckets; the embedding of the buckets stays the model's own.

    spec  the catalogue's entry that puts them into the same
    name  what the method is called
    """

    spec: str
    name: str

    words = "a bias of buckets"
    takes = (T5Bias,)
    usual = "t5_bias"
    door = "bias"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["Buckets"]:
        known: dict[bytes, str | None] = {}
        for seen in stack.node.seen.buckets:
            rows = list(tables(stack, seen.path))
            key = seen.buckets.numpy().tobytes()
            if not stack.has(seen.path) or not rows:
                continue
            if key not in known:
                known[key] = explained(stack, seen, len(rows[0][1]))
            if known[key] is not None:
                stack.node.claimed |= {path for path, _ in rows}
                yield cls(stack, seen.path, known[key] or "", seen.name)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module: Any = model.get_submodule(self.path)
        encoding = self.one(encodings)
        rows, weight = next(iter(tables(self.stack, self.path)))
        if weight.shape != encoding.table.shape:
            raise ValueError(
                f"{rows} has {weight.shape[0]} buckets for {weight.shape[1]} heads, and {encoding} has "
                f"{encoding.buckets} for {encoding.heads}"
            )
        seen = next(one for one in self.stack.node.seen.buckets if (one.path, one.name) == (self.path, self.name))
        theirs, ours = seen.buckets, bucketed(partial(bucket_of, encoding), {"relative_position": torch.zeros(1)})
        different = (theirs != ours).nonzero().flatten() - FURTHEST
        if same and len(different):
            raise Differs(
                f"{self.path} and {encoding} put {len(different)} distances into other buckets, the first "
                f"{int(different[different.abs().argmin()])} positions back"
            )
        return [shadow(module, self.name, partial(bucket_of, encoding))]


def bucket_of(encoding: T5Bias, relative_position: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """In the place of T5's function of buckets: (position of the key less that of the query, ...) -> buckets.

    How many buckets there are, and from where on all share one, is the encoding's to say.
    """
    return encoding.bucket(-relative_position)


def tables(stack: Stack, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tables [buckets, heads] of a module that puts distances into buckets, or of those beside it."""
    above = path.rpartition(".")[0]
    for item in stack.pieces("table"):
        if item.values is None or item.values.dim() != 2 or item.values.shape[1] != stack.shape.heads:
            continue
        if item.path.startswith(f"{path}.") or (above and item.path.startswith(f"{above}.")) or not path:
            yield item.path, item.values


def explained(stack: Stack, seen: Bucketed, buckets: int) -> str | None:
    """The spec that puts distances into the buckets that were seen; None where none does."""
    keys = stack.node.keys
    furthest = keys.whole("relative_attention_max_distance", "distances from {} on share a bucket", 128)
    keys.say("relative_attention_num_buckets", f"{buckets} buckets of distances")
    # Numbers that the method was called with, or that the keys have under whatever name.
    numbers = [n for n in (*seen.numbers, furthest, 128) if isinstance(n, int) and not isinstance(n, bool) and n > 1]
    future = bool((seen.buckets[:FURTHEST] != seen.buckets[FURTHEST]).any())
    for distance in dict.fromkeys(numbers):
        spec = spec_of(
            "t5_bias",
            buckets=None if buckets == 32 else buckets,
            max_distance=None if distance == 128 else distance,
            causal=False if future else (None if stack.shape.causal else True),
        )
        try:
            encoding: Any = build(spec, stack.shape)
        except ValueError:
            continue
        if bucketed(partial(bucket_of, encoding), {"relative_position": torch.zeros(1)}).equal(seen.buckets):
            return spec
    return None
