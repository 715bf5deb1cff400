"""DeBERTa: a method that puts distances into signed buckets, and a table that each layer projects in two ways."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.distances.relative_sines import projects
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, Stack, shadow
from posenc.checkpoints.vocabulary.specs import spec_of
from posenc.encoding import Encoding
from posenc.encodings.deberta import DeBERTa

METHOD = "get_rel_pos"
TERMS = {"c2p": "content_to_position", "p2c": "position_to_content"}
COMPARED = 1025
"""Tokens whose distances are compared."""


@dataclass
class RelativeBuckets(Kind):
    """A stack with a method that gives the bucket of each pair of tokens; the table stays the model's own."""

    spec: str

    words = "a table of signed buckets that is projected"
    takes = (DeBERTa,)
    usual = "deberta"
    door = "bias"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["RelativeBuckets"]:
        for path, module in stack.modules():
            if getattr(module, "relative_attention", None) is False:
                stack.node.keys.say("max_relative_positions", "not read: logits read no distances")
            if buckets_of(module, 2) is None:
                continue
            spec = explained(stack, module)
            if spec is None:
                stack.node.leave(f"{path}.{METHOD} puts distances into buckets as no spec here says")
                continue
            rows = 2 * build_for(stack, spec).buckets
            for item in stack.pieces("table"):
                table = item.values is not None and tuple(item.values.shape) == (rows, stack.shape.dim)
                if table or projects(item.values, stack):
                    stack.node.claimed.add(item.path)
            yield cls(stack, path, spec)

    def specs(self) -> list[str]:
        return [self.spec] * self.stack.layers

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module, encoding, known = model.get_submodule(self.path), self.one(encodings), build_for(self.stack, self.spec)
        for name in ("buckets", "terms", "mirror"):
            ours, theirs = getattr(encoding, name), getattr(known, name)
            if ours != theirs:
                raise ValueError(f"{self.path} has {name}={theirs!r}, and {encoding} has {ours!r}")
        if same and not alike(module, encoding):
            raise Differs(f"{self.path} and {encoding} put distances below {COMPARED:,} into other buckets")
        return [shadow(module, METHOD, BucketsOf(encoding))]


class BucketsOf:
    """In the place of the method: states [B, S, C], queries [B, T, C] -> the signed bucket of each pair [1, T, S]."""

    def __init__(self, encoding: Any) -> None:
        self.encoding = encoding

    def __call__(
        self, hidden_states: Tensor, query_states: Tensor | None = None, relative_pos: Tensor | None = None
    ) -> Tensor:
        if relative_pos is not None:
            return relative_pos
        queries = hidden_states if query_states is None else query_states
        T, S = (torch.arange(x.shape[-2], device=x.device) for x in (queries, hidden_states))
        return self.encoding.bucket(T[:, None] - S)[None]


def buckets_of(module: Any, tokens: int) -> Tensor | None:
    """What a module's method says of so many tokens [1, T, T]; None where it has none, or says nothing."""
    method = getattr(module, METHOD, None) if hasattr(module, "relative_attention") else None
    given = None if method is None else method(torch.zeros(1, tokens, 1, device=next(module.parameters()).device))
    return given.reshape(1, tokens, tokens) if isinstance(given, Tensor) else None


def alike(module: nn.Module, encoding: DeBERTa) -> bool:
    """Whether a module's method and an encoding give the same buckets, farther ones counted as the last one."""
    theirs, ours = buckets_of(module, COMPARED), BucketsOf(encoding)(torch.zeros(1, COMPARED, 1))
    return theirs is not None and torch.equal(theirs.cpu().clamp(-encoding.buckets, encoding.buckets), ours)


def build_for(stack: Stack, spec: str) -> Any:
    return build(spec, stack.shape)


def explained(stack: Stack, module: nn.Module) -> str | None:
    """The spec that puts distances into a module's buckets; None where none does, or the keys name other terms."""
    keys = stack.node.keys
    keys.say("relative_attention", "logits read distances")
    kinds = keys.peek("pos_att_type") or []
    kinds = kinds.split("|") if isinstance(kinds, str) else kinds
    terms = {TERMS.get(str(kind)) for kind in kinds}
    keys.say("pos_att_type", f"distances are compared with content in {len(terms)} ways")
    furthest = keys.whole("max_relative_positions", "distances up to {}", 0)
    furthest = furthest if furthest > 0 else keys.peek("max_position_embeddings")
    some = keys.peek("position_buckets")
    logarithmic = isinstance(some, int) and some > 0
    keys.say("position_buckets", f"{some} buckets on each side" if logarithmic else "a row for each distance")
    if None in terms or not terms or not isinstance(furthest, int):
        return None
    buckets, distance = (some, furthest) if logarithmic else (furthest, None)
    spec = spec_of(
        "deberta",
        buckets=None if buckets == 256 else buckets,
        max_distance=None if distance == 512 else distance or 0,
        terms=None if len(terms) == 2 else terms.pop(),
        mirror=False,
    ).replace("max_distance=0", "max_distance=None")
    if not alike(module, build_for(stack, spec)):
        return None
    share = keys.peek("share_att_key")
    keys.say(
        "share_att_key", "distances are projected as content is" if share else "distances have their own projections"
    )
    if keys.peek("norm_rel_ebd") and "layer_norm" in str(keys.peek("norm_rel_ebd")):
        stack.besides.append("the table of distances goes through a LayerNorm first")
    keys.say("norm_rel_ebd", "whether the table of distances goes through a LayerNorm")
    stack.besides.append(f"the content's logits are divided by sqrt({len(kinds) + 1} head_dim) too")
    return spec
