"""Biases that read content, block by block: what `score_mod` says, without a matrix of all queries and keys.

Three ways, chosen by what an encoding can do and by what is known of the tokens without looking at data:

ByProducts   the bias is a dot product with a vector of the distance (Shaw), and tokens stand in a row: a block is a
             product with the few vectors that it meets, read through a skewed view; far keys share one number a query
ByLevels     the bias is a difference of levels (forgetting), and tokens stand in a row: keys that come before a whole
             block get a row of numbers, its queries a shift; the block's own keys are evaluated
ByScoreMod   anything else: `score_mod` is evaluated on a block, and once more in the backward pass
"""

import copy
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posenc.encoding import Encoding, Keys, index_grids, parts_of, without_autocast
from posenc.kernels.bias_in_blocks import BiasInBlocks, Block, Part
from posenc.kernels.block_sizes import SIZES
from posenc.masks import Mask
from posenc.positions import Positions

FAR = 300
"""How many keys far away are worth a part of their own, which has to be merged with the rest."""


def content_bias(encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask) -> BiasInBlocks:
    """How to evaluate in blocks the bias of an encoding that opens `score_mod`."""
    biased = [part for part in parts_of(encoding) if part.doors & {"by_distance", "score_mod"}]
    if len(biased) == 1:
        encoding = biased[0]
    with without_autocast(q):
        keys = encoding.prepare(q, at, keys)
        seen = SeenDistances.of(at, keys.at, mask)
        if seen is not None:
            table = seen.met(at.tokens, keys.at.tokens, encoding.same_beyond)
            products = encoding.products(q, at, keys, table)
            if products is not None:
                return ByProducts(*products, table, seen)
            levels = encoding.levels(keys)
            if levels is not None:
                return ByLevels(ByScoreMod(encoding, q, at, keys, seen), *levels, seen)
    return ByScoreMod(encoding, q, at, keys, seen)


@dataclass(frozen=True)
class SeenDistances:
    """For tokens in a row on both sides: query i is i - j + offset after key j, and sees distances in a range.

    offset   the first query's coordinate minus the first key's (positions)
    lowest   the smallest distance that is seen, 0 under a causal mask; -inf where there is none
    highest  the largest distance that is seen, in a window; inf where there is none
    patterns what `hidden` gave last
    """

    offset: int
    lowest: float
    highest: float
    patterns: dict[tuple[int, int, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, at: Positions, keys_at: Positions, mask: Mask) -> "SeenDistances | None":
        """None where tokens are not known to stand in a row, or the rule of the mask is more than a range."""
        if at.start is None or keys_at.start is None or mask.prefix:
            return None
        highest = math.inf if mask.window is None else mask.window - 1
        return cls(at.start - keys_at.start, 0 if mask.causal else -highest, highest)

    def met(self, queries: int, keys: int, reach: int | None) -> range:
        """The distances, far keys first, that so many tokens meet and see; the reach stands for all beyond it."""
        lowest, highest = max(self.offset - keys + 1, self.lowest), min(self.offset + queries - 1, self.highest)
        # Where nothing is seen there is still one distance, so that no shape is empty.
        ends = lowest, max(lowest, highest)
        bottom, top = ends if reach is None else (min(max(end, -reach), reach) for end in ends)
        return range(int(top), int(bottom) - 1, -1)

    def hide(self, values: Tensor, block: Block) -> Tensor:
        """The values of a block with -inf, in place, where a query does not see the key."""
        _, n, m = block.size
        first = block.rows.start - block.keys.start + self.offset  # the distance of the first query and key
        seen_by_all = 0
        if self.highest == math.inf:
            # Keys that lie far enough back for the first query are seen by those behind it.
            seen_by_all = min(max(first + 1, 0), m) if self.lowest == 0 else m
        if seen_by_all < m:
            values[..., seen_by_all:] += self.hidden(first - seen_by_all, n, m - seen_by_all, values)
        return values

    def hidden(self, first: int, queries: int, keys: int, like: Tensor) -> Tensor:
        """0 [queries, keys] where a distance is seen, else -inf."""
        # Blocks on the diagonal are all alike.
        if (first, queries, keys) not in self.patterns:
            device = like.device
            distance = first + torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)
            unseen = (distance < self.lowest) | (distance > self.highest)
            self.patterns.clear()
            self.patterns[first, queries, keys] = like.new_zeros(queries, keys).masked_fill_(unseen, -math.inf)
        return self.patterns[first, queries, keys]


class Room:
    """Memory for the values of one block at a time: new memory costs more than what is computed in it."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.held = like.new_empty(0, dtype=dtype)

    def of(self, *shape: int) -> Tensor:
        """A tensor of this shape that holds anything, until the next one is asked for."""
        if self.held.numel() < math.prod(shape):
            self.held = self.held.new_empty(math.prod(shape))
        return self.held[: math.prod(shape)].view(shape)


class ByProducts:
    """A bias that is a dot product with a vector of the distance, for tokens in a row.

    asked [B, H, T, C] times the vectors [1 or H, R, C] of the distances in `table` (descending) are curves: for each
    query its bias by distance. From one query to the next a key moves by one distance, so a block of the bias is a view
    of the block's curves, each row a step further on.
    """

    backwards: bool = False
    masked: bool = True

    def __init__(
        self, asked: Tensor, vectors: Tensor, of_keys: Tensor | None, table: range, seen: SeenDistances
    ) -> None:
        self.asked, self.vectors, self.of_keys, self.table, self.seen = asked, vectors, of_keys, table, seen
        self.inputs: tuple[Tensor, ...] = (asked, vectors) if of_keys is None else (asked, vectors, of_keys)
        self.room = Room(asked, asked.dtype)

    def block(self, block: Block) -> Tensor:
        start, stop = self.cuts(block)
        if block.keys.stop <= start or stop <= block.keys.start:
            (part,) = self.parts(block)
            assert part.shift is not None
            column = part.shift[..., None]
            return column.expand(-1, -1, -1, length(block.keys)) if part.bias is None else part.bias + column
        met, known, near = self.spread(block)
        asked = self.asked[block.batch, :, block.rows]
        n, m = length(block.rows), length(block.keys)
        curves = self.room.of(*asked.shape[:3], len(met))
        products = self.product(asked, known)
        curves[..., near] = products
        # Beyond the table its edges go on.
        curves[..., : near.start] = products[..., :1]
        curves[..., near.stop :] = products[..., -1:]
        if self.seen.highest < met.start:
            curves[..., : met.start - int(self.seen.highest)] = -math.inf
        if self.seen.lowest > met[-1]:
            curves[..., max(0, met.start - int(self.seen.lowest) + 1) :] = -math.inf
        values = skewed(curves, n, m)
        return values if self.of_keys is None else values.add_(self.row(block))

    def spread(self, block: Block) -> tuple[range, slice, slice]:
        """The distances that a block meets, far keys first; those of the table among them; and where they stand."""
        top = block.rows.stop - 1 - block.keys.start + self.seen.offset
        bottom = block.rows.start - (block.keys.stop - 1) + self.seen.offset
        # A block wholly beyond the table meets its edge alone.
        first, last = (min(max(end, self.table[-1]), self.table[0]) for end in (top, bottom))
        start, stop = max(0, top - first), max(0, top - last) + 1
        known = slice(self.table[0] - first, self.table[0] - last + 1)
        width = top - bottom + 1
        near = slice(min(start, width - 1), min(stop, width))
        return range(top, bottom - 1, -1), known, near

    def product(self, asked: Tensor, known: slice) -> Tensor:
        vectors = self.vectors[:, known]
        return asked @ (vectors[0] if vectors.shape[0] == 1 else vectors).transpose(-1, -2)

    def row(self, block: Block) -> Tensor:
        assert self.of_keys is not None
        return self.of_keys[block.batch, :, None, block.keys]

    def parts(self, block: Block) -> list[Part]:
        start, stop = self.cuts(block)
        start = start if start - block.keys.start >= FAR or start == block.keys.stop else block.keys.start
        stop = stop if block.keys.stop - stop >= FAR or stop == block.keys.start else block.keys.stop
        parts = []
        for keys, edge in (
            (slice(block.keys.start, start), slice(0, 1)),
            (slice(start, stop), None),
            (slice(stop, block.keys.stop), slice(-1, None)),
        ):
            part = block._replace(keys=keys)
            if not length(keys):
                continue
            if edge is None:
                parts.append(Part(keys, self.block(part)))
                continue
            shift = self.product(self.asked[block.batch, :, block.rows], edge)[..., 0]
            bias = None if self.of_keys is None else self.row(part).expand(-1, -1, length(block.rows), -1)
            parts.append(Part(keys, bias, shift))
        return parts

    def cuts(self, block: Block) -> tuple[int, int]:
        """Where the keys begin and end whose bias is not the same for all: before and behind, edges of the table."""
        start, stop = block.keys.start, block.keys.stop
        if self.seen.highest == math.inf:
            start = min(max(start, block.rows.start + self.seen.offset - self.table[0] + 1), stop)
        if self.seen.lowest == -math.inf:
            stop = max(min(stop, block.rows.stop - 1 + self.seen.offset - self.table[-1]), start)
        return start, stop

    def gradient(self) -> "ProductsGradient":
        return ProductsGradient(self)


class ProductsGradient:
    """Takes the gradient of a block back along the skew: into what is asked, the vectors, and the numbers of keys."""

    def __init__(self, bias: ByProducts) -> None:
        self.bias = bias
        self.asked, self.vectors = torch.zeros_like(bias.asked), torch.zeros_like(bias.vectors)
        self.of_keys = None if bias.of_keys is None else torch.zeros_like(bias.of_keys)

    def add(self, block: Block, upstream: Tensor) -> None:
        bias, n, m = self.bias, length(block.rows), length(block.keys)
        met, known, near = bias.spread(block)
        asked, vectors = bias.asked[block.batch, :, block.rows], bias.vectors[:, known]
        if len(bias.table[known]) == 1:
            # The same vector for all keys, whatever the distance.
            curves = upstream.sum(-1, keepdim=True)
        else:
            spread = upstream.new_zeros((*upstream.shape[:3], len(met)))
            skewed(spread, n, m).copy_(upstream)
            curves = spread[..., near]
            curves[..., 0] += spread[..., : near.start].sum(-1)
            curves[..., -1] += spread[..., near.stop :].sum(-1)
        curves = curves.to(vectors.dtype)
        self.asked[block.batch, :, block.rows] += curves @ vectors
        of_heads = (curves.transpose(-1, -2) @ asked).sum(0)
        self.vectors[:, known] += of_heads.sum(0, keepdim=True) if vectors.shape[0] == 1 else of_heads
        if self.of_keys is not None:
            self.of_keys[block.batch, :, block.keys] += upstream.sum(-2)

    def total(self) -> tuple[Tensor | None, ...]:
        return (self.asked, self.vectors) if self.of_keys is None else (self.asked, self.vectors, self.of_keys)


class ByScoreMod:
    """A bias evaluated by `score_mod` on a block, and again under autograd when its gradient is wanted.

    Queries do not read each other, so a block goes through in a few queries at a time.
    """

    backwards: bool = False

    def __init__(self, encoding: Encoding, q: Tensor, at: Positions, keys: Keys, seen: SeenDistances | None) -> None:
        self.encoding, self.at, self.keys_at, self.seen = encoding, at, keys.at, seen
        self.masked = seen is not None
        read = {
            "queries": {"q": q},
            "keys": {"k": keys.k, "v": keys.v},
            "memo": keys.memo,
            "own": keys.own,
            "parameters": dict(encoding.named_parameters()),
        }
        self.names = tuple((kind, name) for kind, tensors in read.items() for name in tensors)
        self.inputs: tuple[Tensor, ...] = tuple(tensor for tensors in read.values() for tensor in tensors.values())
        self.room = Room(q, torch.promote_types(q.dtype, torch.float32))

    def cut(self, block: Block, index: int, tensor: Tensor) -> Tensor:
        """What a block reads of an input, or writes of its gradient."""
        kind, _ = self.names[index]
        if kind == "parameters":
            return tensor
        shared = slice(None) if tensor.shape[0] == 1 else block.batch
        return tensor[shared, :, block.rows if kind in ("queries", "own") else block.keys]

    def read(self, block: Block) -> list[Tensor]:
        return [self.cut(block, index, tensor) for index, tensor in enumerate(self.inputs)]

    def values(self, encoding: Encoding, block: Block, inputs: list[Tensor]) -> Tensor:
        """The bias [b, H, n, m] of a block, from what it reads of the inputs."""
        read: dict[str, dict[str, Tensor]] = {kind: {} for kind, _ in self.names} | {"memo": {}, "own": {}}
        for (kind, name), tensor in zip(self.names, inputs, strict=True):
            read[kind][name] = tensor
        q, at = read["queries"]["q"], self.at.part(block.batch, block.rows)
        keys_at = self.keys_at.part(block.batch, block.keys)
        with without_autocast(q):
            modify = encoding.score_mod(q, at, Keys(**read["keys"], at=keys_at, memo=read["memo"], own=read["own"]))
            assert modify is not None
            score = q.new_zeros((*q.shape[:3], keys_at.tokens), dtype=torch.promote_types(q.dtype, torch.float32))
            return modify(score, *index_grids(score))

    def block(self, block: Block) -> Tensor:
        b, n, m = block.size
        out = self.room.of(b, self.inputs[0].shape[1], n, m)
        wide, keys = self.keys_read(block)
        for few, rows in self.few_queries(wide):
            out[:, :, rows] = self.values(self.encoding, few, self.read(few))[..., keys]
        return out if self.seen is None else self.seen.hide(out, block)

    def keys_read(self, block: Block) -> tuple[Block, slice]:
        """The block with all keys that its bias reads, and where its own stand among them."""
        first, last = block.keys.start, block.keys.stop
        if not self.encoding.reads_between:
            return block, slice(0, last - first)
        start, stop = 0, self.keys_at.tokens
        if self.seen is not None:
            queries = slice(block.rows.start + self.seen.offset, block.rows.stop + self.seen.offset)
            start, stop = max(0, min(first, queries.start)), min(stop, max(last, queries.stop))
        return block._replace(keys=slice(start, stop)), slice(first - start, last - start)

    def few_queries(self, block: Block) -> list[tuple[Block, slice]]:
        """The block in blocks of fewer queries, and where their rows stand in it."""
        step = max(1, SIZES.pairs_of_content // (block.size[0] * self.inputs[0].shape[1] * length(block.keys)))
        starts = range(block.rows.start, block.rows.stop, step)
        cut = [slice(start, min(start + step, block.rows.stop)) for start in starts]
        first = block.rows.start
        return [(block._replace(rows=rows), slice(rows.start - first, rows.stop - first)) for rows in cut]

    def parts(self, block: Block) -> list[Part]:
        return [Part(block.keys, self.block(block))]

    def gradient(self) -> "ScoreModGradient":
        return ScoreModGradient(self)


class ScoreModGradient:
    """Evaluates each block once more under autograd, and adds up what it gives for the inputs."""

    def __init__(self, bias: ByScoreMod) -> None:
        self.bias = bias
        self.wanted = [index for index, tensor in enumerate(bias.inputs) if tensor.requires_grad]
        self.sums: dict[int, Tensor] = {}
        # A copy whose parameters are leaves of their own: those of the encoding may have been replaced or have hooks.
        self.leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in bias.inputs]
        parameters = dict(bias.encoding.named_parameters())
        standing_in = {
            id(parameters[name]): leaf
            for (kind, name), leaf in zip(bias.names, self.leaves, strict=True)
            if kind == "parameters"
        }
        self.encoding = copy.deepcopy(bias.encoding, standing_in)

    def add(self, block: Block, upstream: Tensor) -> None:
        wide, keys = self.bias.keys_read(block)
        for few, rows in self.bias.few_queries(wide):
            with torch.enable_grad():
                read = [self.bias.cut(few, index, leaf) for index, leaf in enumerate(self.leaves)]
                values = self.bias.values(self.encoding, few, read)[..., keys]
            if not values.requires_grad:
                return
            read = [read[index] for index in self.wanted]
            slopes = torch.autograd.grad(values, read, upstream[:, :, rows].to(values.dtype), allow_unused=True)
            for index, slope in zip(self.wanted, slopes, strict=True):
                if slope is not None:
                    self.bias.cut(few, index, self.sum(index)).add_(slope)

    def sum(self, index: int) -> Tensor:
        if index not in self.sums:
            tensor = self.bias.inputs[index]
            self.sums[index] = torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
        return self.sums[index]

    def total(self) -> tuple[Tensor | None, ...]:
        return tuple(
            self.sums[index].to(tensor.dtype) if index in self.sums else None
            for index, tensor in enumerate(self.bias.inputs)
        )


class ByLevels:
    """A bias that is a difference of levels: for keys before a whole block a row of numbers, and a shift of each query.

    A level grows along the sequence and is kept as two float32 numbers, what one holds of it and the rest. Their
    differences are then as exact as if they were taken in float64: rounded in proportion to the bias, never to the
    level. A bias of -x is off by x 2^-23 at most, where its weight has faded by e^-x: by less than 5e-8 of a weight.
    Keys after a query are left to `score_mod`, where they are seen.
    """

    backwards: bool = False
    masked: bool = True

    def __init__(self, rest: ByScoreMod, of_queries: Tensor, of_keys: Tensor, seen: SeenDistances) -> None:
        self.rest, self.of_queries, self.of_keys, self.seen = rest, of_queries, of_keys, seen
        self.inputs: tuple[Tensor, ...] = (*rest.inputs, of_queries, of_keys)
        self.dtype = torch.promote_types(rest.inputs[0].dtype, torch.float32)
        self.room = Room(of_queries, self.dtype)
        self.queries, self.keys = self.in_two(of_queries), self.in_two(of_keys)

    def in_two(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """A level [B, H, T] in the dtype of logits, and what that leaves of it."""
        level = level.detach()
        most = level.to(self.dtype)
        return most, (level - most).to(self.dtype)

    def difference(self, block: Block) -> Tensor:
        """The levels of a block's queries minus those of its keys, [b, H, n, m]."""
        queries, keys = (block.batch, slice(None), block.rows), (block.batch, slice(None), block.keys)
        most, rest = (level[queries][..., None] for level in self.queries)
        key_most, key_rest = (level[keys][:, :, None] for level in self.keys)
        out = self.room.of(*most.shape[:3], key_most.shape[-1])
        return torch.sub(most, key_most, out=out).add_(rest).sub_(key_rest)

    def block(self, block: Block) -> Tensor:
        end = self.known(block)
        near, rest = (block._replace(keys=keys) for keys in divided(block.keys, end))
        if not length(rest.keys):
            return self.seen.hide(self.difference(block), block)
        if not length(near.keys):
            return self.rest.block(block)
        return torch.cat((self.seen.hide(self.difference(near), near), self.rest.block(rest)), -1)

    def known(self, block: Block) -> int:
        """Where the keys of a block end whose bias is the difference of levels for every query that sees them."""
        return block.keys.stop if self.seen.lowest >= 0 else self.before(block)

    def before(self, block: Block) -> int:
        """Where the keys of a block end that come before all its queries."""
        return min(max(block.rows.start + self.seen.offset, block.keys.start), block.keys.stop)

    def parts(self, block: Block) -> list[Part]:
        end, parts = self.before(block), []
        # Keys that some of the queries do not see, under a window, have no row of their own.
        if self.seen.highest < math.inf or end - block.keys.start < FAR:
            end = block.keys.start
        if end > block.keys.start:
            far = slice(block.keys.start, end)
            # Both are taken from the level of the last key: then they are no larger than the bias.
            nearest, queries = (block.batch, slice(None), slice(end - 1, end)), (block.batch, slice(None), block.rows)
            (most, rest), (query_most, query_rest) = self.keys, self.queries
            row = (most[nearest] - most[block.batch, :, far]) + (rest[nearest] - rest[block.batch, :, far])
            shift = (query_most[queries] - most[nearest]) + (query_rest[queries] - rest[nearest])
            parts.append(Part(far, row[:, :, None].expand(-1, -1, length(block.rows), -1), shift))
        if end < block.keys.stop:
            near = block._replace(keys=slice(end, block.keys.stop))
            parts.append(Part(near.keys, self.block(near)))
        return parts

    def gradient(self) -> "LevelsGradient":
        return LevelsGradient(self)


class LevelsGradient:
    """Adds up the rows and columns of a block; what `score_mod` said goes back through it."""

    def __init__(self, bias: ByLevels) -> None:
        self.bias, self.rest = bias, bias.rest.gradient()
        self.of_queries, self.of_keys = torch.zeros_like(bias.of_queries), torch.zeros_like(bias.of_keys)

    def add(self, block: Block, upstream: Tensor) -> None:
        known, rest = divided(block.keys, self.bias.known(block))
        if length(known):
            here = upstream[..., : length(known)]
            self.of_queries[block.batch, :, block.rows] += here.sum(-1)
            self.of_keys[block.batch, :, known] -= here.sum(-2)
        if length(rest):
            self.rest.add(block._replace(keys=rest), upstream[..., length(known) :])

    def total(self) -> tuple[Tensor | None, ...]:
        return (*self.rest.total(), self.of_queries, self.of_keys)


def divided(keys: slice, at: int) -> tuple[slice, slice]:
    """A slice in two."""
    return slice(keys.start, at), slice(at, keys.stop)


def skewed(curves: Tensor, n: int, m: int) -> Tensor:
    """Curves [b, H, n, n + m - 1] by distance, far keys first, as a view [b, H, n, m]: each row one step further on."""
    batch, head, row, step = curves.stride()
    size = (*curves.shape[:2], n, m)
    return curves.as_strided(size, (batch, head, row - step, step), curves.storage_offset() + (n - 1) * step)


def length(part: slice) -> int:
    return part.stop - part.start
