"""T5's relative bias: buckets of distances, and an embedding with a number for each bucket and head."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.kind import Kind, LayerStack, Mismatch, Undo, shadow
from posenc.checkpoints.models.dry_run import MAX_DISTANCE, BucketMethod, bucket_row
from posenc.checkpoints.vocabulary.specs import new_spec
from posenc.encoding.base import Encoding
from posenc.encodings.distance_biases.t5_bias import T5Bias


@dataclass
class Buckets(Kind):
    """The method of a module that maps distances to buckets. The embedding of the buckets stays the model's own.

    spec  the catalogue's entry with the same buckets
    name  of the method
    """

    spec: str
    name: str

    description = "a bias of buckets"
    takes = (T5Bias,)
    default_spec = "t5_bias"
    door = "bias"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["Buckets"]:
        specs: dict[bytes, str | None] = {}
        for mapping in stack.node.trace.buckets:
            rows = list(bucket_tables(stack, mapping.path))
            key = mapping.buckets.numpy().tobytes()
            if not stack.has(mapping.path) or not rows:
                continue
            if key not in specs:
                specs[key] = bucket_spec(stack, mapping, len(rows[0][1]))
            if specs[key] is not None:
                stack.node.claimed_paths |= {path for path, _ in rows}
                yield cls(stack, mapping.path, specs[key] or "", mapping.name)

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        module: Any = model.get_submodule(self.path)
        encoding = self.single_encoding(encodings)
        rows, weight = next(iter(bucket_tables(self.stack, self.path)))
        if weight.shape != encoding.table.shape:
            raise ValueError(
                f"{rows} has {weight.shape[0]} buckets for {weight.shape[1]} heads, and {encoding} has "
                f"{encoding.buckets} for {encoding.heads}"
            )
        mapping = next(m for m in self.stack.node.trace.buckets if (m.path, m.name) == (self.path, self.name))
        buckets = bucket_row(partial(bucket_of, encoding), {"relative_position": torch.zeros(1)})
        different = (mapping.buckets != buckets).nonzero().flatten() - MAX_DISTANCE
        if exact and len(different):
            raise Mismatch(
                f"{self.path} and {encoding} put {len(different)} distances into other buckets, the first "
                f"{int(different[different.abs().argmin()])} positions back"
            )
        return [shadow(module, self.name, partial(bucket_of, encoding))]


def bucket_of(encoding: T5Bias, relative_position: Tensor, *args: object, **kwargs: object) -> Tensor:
    """Replacement of T5's bucket function: (position of the key less that of the query, ...) -> buckets.

    The encoding decides the number of buckets and the largest distance; the arguments for them are ignored.
    """
    return encoding.bucket(-relative_position)


def bucket_tables(stack: LayerStack, path: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tables [buckets, heads] in a module or beside it."""
    parent = path.rpartition(".")[0]
    for item in stack.pieces("table"):
        if item.values is None or item.values.dim() != 2 or item.values.shape[1] != stack.shape.heads:
            continue
        if item.path.startswith(f"{path}.") or (parent and item.path.startswith(f"{parent}.")) or not path:
            yield item.path, item.values


def bucket_spec(stack: LayerStack, mapping: BucketMethod, buckets: int) -> str | None:
    """Return the spec with the buckets of a mapping; None if there is none."""
    keys = stack.node.keys
    furthest = keys.whole("relative_attention_max_distance", "distances from {} on share a bucket", 128)
    keys.note("relative_attention_num_buckets", f"{buckets} buckets of distances")
    # Numbers among the method's arguments, or in the keys under any name.
    numbers = [n for n in (*mapping.numbers, furthest, 128) if isinstance(n, int) and not isinstance(n, bool) and n > 1]
    future = bool((mapping.buckets[:MAX_DISTANCE] != mapping.buckets[MAX_DISTANCE]).any())
    for distance in dict.fromkeys(numbers):
        spec = new_spec(
            "t5_bias",
            buckets=None if buckets == 32 else buckets,
            max_distance=None if distance == 128 else distance,
            causal=False if future else (None if stack.shape.causal else True),
        )
        try:
            encoding: Any = build(spec, stack.shape)
        except ValueError:
            continue
        if bucket_row(partial(bucket_of, encoding), {"relative_position": torch.zeros(1)}).equal(mapping.buckets):
            return spec
    return None
