"""What every rank knows of the tokens of all: who stands where on the line, in a few numbers for each chunk."""

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from posenc.parallel.layout import Layout
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import version


@dataclass(frozen=True)
class Chunk:
    """What all ranks know of one chunk of the sequence.

    tokens       how many it has
    start        where they begin, when they count up by one in all rows; else None
    first, last  the lowest and the highest order of its tokens in each row, [B or 1]; 0 and -1 where a row has none
    documents    the lowest and the highest document in each row, [B or 1] each; None where there is only one
    in_order     whether orders rise from token to token, and documents never fall
    unit_step, extent   as Positions have them
    """

    tokens: int
    start: int | None
    first: Tensor
    last: Tensor
    documents: tuple[Tensor, Tensor] | None
    in_order: bool
    unit_step: bool
    extent: int | None

    @classmethod
    def of(cls, at: Positions) -> "Chunk":
        order, present = at.order, at.order >= 0
        last = order.amax(1)
        first = order.masked_fill(~present, torch.iinfo(order.dtype).max).amin(1).masked_fill(last < 0, 0)
        # Orders rise whatever padding lies between.
        rises = bool((~present[:, 1:] | (order[:, 1:] > order.cummax(1).values[:, :-1])).all())
        documents = None
        if at.document is not None:
            documents = at.document.amin(1).cpu(), at.document.amax(1).cpu()
            rises = rises and bool((at.document.diff(dim=1) >= 0).all())
        facts = first.cpu(), last.cpu(), documents, rises
        return cls(at.tokens, start_of(at), *facts, unit_step=at.unit_step, extent=at.extent)

    def may_see(self, other: "Chunk", mask: Mask) -> bool:
        """Whether a query of this chunk may see a key of another."""
        seen = (self.last >= 0) & (other.last >= 0)
        if mask.causal:
            seen = seen & ((other.first <= self.last) | ((self.first < mask.prefix) & (other.first < mask.prefix)))
        if mask.window is not None:
            seen = seen & (self.first - other.last < mask.window) & (other.first - self.last < mask.window)
        if self.documents is not None and other.documents is not None:
            seen = seen & (self.documents[0] <= other.documents[1]) & (other.documents[0] <= self.documents[1])
        return bool(seen.any())


@dataclass(frozen=True, eq=False)
class Line:
    """What all ranks know of the sequence, and where the tokens of this one stand.

    chunks  all, in the order of the sequence
    mine    the positions of this rank's chunks, in the order in which it holds them
    layout  which chunks which rank holds
    group   the ranks
    """

    chunks: list[Chunk]
    mine: list[Positions]
    layout: Layout
    group: dist.ProcessGroup

    def travelling(self, at: Positions) -> list[Tensor]:
        """What of this rank's positions has to go round with its keys: nothing where all tokens count up by one."""
        if all(chunk.start is not None for chunk in self.chunks):
            return []
        return [fact for fact in (at.coords, at.order, at.document) if fact is not None]

    def positions(self, chunk: int, place: int, travelled: list[Tensor]) -> Positions:
        """Where the tokens of a chunk stand, which is the `place`-th of those whose positions have travelled."""
        told = self.chunks[chunk]
        if told.start is not None and not travelled:
            return Positions.count(told.tokens, told.start, device=self.mine[0].device)
        few = slice(place * told.tokens, (place + 1) * told.tokens)
        coords, order, *documents = (fact[:, few] for fact in travelled)
        document = documents[0] if documents else None
        return Positions(coords, order, document, unit_step=told.unit_step, extent=told.extent)


def line_of(at: Positions, layout: Layout, group: dist.ProcessGroup) -> Line:
    """The line that the tokens of all ranks make up, found once for all layers that ask.

    Every rank asks at the same time, with its own positions.
    Raises ValueError where they are no line: other numbers of tokens, other kinds of positions, orders that do not
    rise.
    """
    key = ("line", layout, id(group), version(at))
    if key not in at.tables:
        at.tables[key] = found_line(at, layout, group)
    return at.tables[key]


def found_line(at: Positions, layout: Layout, group: dist.ProcessGroup) -> Line:
    own = layout.chunks_of(group.rank())
    size = max(1, at.tokens // len(own))
    mine = [in_a_row(at.rows(slice(place * size, (place + 1) * size))) for place in range(len(own))]
    kind = (
        at.tokens,
        *(None if x is None else (len(x), x.dtype, *x.shape[2:]) for x in (at.coords, at.order, at.document)),
    )
    told: list = [None] * layout.ranks
    dist.all_gather_object(told, (kind, [Chunk.of(part) for part in mine]), group=group)
    for rank, (other, _) in enumerate(told):
        if other != told[0][0]:
            raise ValueError(
                f"all ranks hold as many tokens, with positions of one kind (rows, dtypes, axes), got {told[0][0]} on "
                f"rank 0 and {other} on rank {rank}; cut the tokens and their positions of a whole sequence with "
                f"shards.cut"
            )
    if at.tokens % len(own):
        raise ValueError(
            f"a rank holds {len(own)} chunks of equally many tokens in {layout.order} order, got {at.tokens} tokens; "
            f"cut a whole sequence with shards.cut"
        )
    by_chunk = {
        c: chunk for rank, (_, held) in enumerate(told) for c, chunk in zip(layout.chunks_of(rank), held, strict=True)
    }
    chunks = [by_chunk[c] for c in range(layout.chunks)]
    check(chunks)
    return Line(chunks, mine, layout, group)


def check(chunks: list[Chunk]) -> None:
    """Raises ValueError unless orders rise along the chunks, and documents do not fall."""
    last, document = torch.full_like(chunks[0].last, -1), None
    for number, chunk in enumerate(chunks):
        early = (chunk.last >= 0) & (chunk.first <= last)
        if bool(early.any()) or not chunk.in_order:
            what = f"chunk {number} begins at order {int(chunk.first.min())}, after order {int(last.max())}"
            raise ValueError(
                f"the orders of tokens must rise along a sequence that is cut over ranks, and {what}; give each rank "
                f"the positions of its own tokens, as positions=shards.cut(Positions.count(tokens))"
            )
        if chunk.documents is not None:
            if document is not None and bool((chunk.documents[0] < document).any()):
                raise ValueError(
                    f"the documents of a sequence that is cut over ranks stand behind one another, numbered upwards, "
                    f"and chunk {number} begins with one before that of the chunk before"
                )
            document = chunk.documents[1]
        last = torch.maximum(last, chunk.last)


def in_a_row(at: Positions) -> Positions:
    """The same positions, as counted ones where that is what they are: then kernels know it too."""
    start = start_of(at)
    if start is None or at.start is not None:
        return at
    return replace(Positions.count(at.tokens, start, device=at.device), horizon=at.horizon)


def start_of(at: Positions) -> int | None:
    """Where tokens begin that count up by one, alike in all rows; None where they do not."""
    if at.start is not None:
        return at.start
    if at.document is not None or at.axes != 1 or at.coords.is_floating_point():
        return None
    first = at.order[:1, :1]
    wanted = first + torch.arange(at.tokens, device=at.device)
    counts = (at.order == wanted).all() & (at.coords[..., 0] == wanted).all() & (first >= 0).all()
    return int(first) if bool(counts) else None
