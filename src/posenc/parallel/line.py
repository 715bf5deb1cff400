"""Facts of the whole sequence that every rank shares: a few numbers for each chunk."""

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from posenc.parallel.layout import Layout
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.shared_tables import tensor_versions


@dataclass(frozen=True)
class ChunkFacts:
    """The facts of one chunk of the sequence that all ranks know.

    tokens       number of tokens
    start        first order if tokens count up by one in all rows; else None
    first, last  lowest and highest order in each row, [B or 1]; 0 and -1 for a row of padding
    documents    lowest and highest document in each row, [B or 1] each; None for one document
    in_order     whether orders rise from token to token, and documents never fall
    unit_step, extent   as in Positions
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
    def from_positions(cls, at: Positions) -> "ChunkFacts":
        order, present = at.order, at.order >= 0
        last = order.amax(1)
        first = order.masked_fill(~present, torch.iinfo(order.dtype).max).amin(1).masked_fill(last < 0, 0)
        # Orders must rise across padding too.
        rises = bool((~present[:, 1:] | (order[:, 1:] > order.cummax(1).values[:, :-1])).all())
        documents = None
        if at.document is not None:
            documents = at.document.amin(1).cpu(), at.document.amax(1).cpu()
            rises = rises and bool((at.document.diff(dim=1) >= 0).all())
        facts = first.cpu(), last.cpu(), documents, rises
        return cls(at.tokens, start_of(at), *facts, unit_step=at.unit_step, extent=at.extent)

    def may_see(self, keys: "ChunkFacts", mask: Mask) -> bool:
        """Whether a query of this chunk may see a key of another chunk."""
        visible = (self.last >= 0) & (keys.last >= 0)
        if mask.causal:
            visible = visible & ((keys.first <= self.last) | ((self.first < mask.prefix) & (keys.first < mask.prefix)))
        if mask.window is not None:
            visible = visible & (self.first - keys.last < mask.window) & (keys.first - self.last < mask.window)
        if self.documents is not None and keys.documents is not None:
            visible = visible & (self.documents[0] <= keys.documents[1]) & (keys.documents[0] <= self.documents[1])
        return bool(visible.any())


@dataclass(frozen=True, eq=False)
class Line:
    """The facts of a sequence over ranks, and the positions of this rank.

    chunks         facts of all chunks, in the order of the sequence
    own_positions  positions of this rank's chunks, in its order
    layout         assignment of chunks to ranks
    group          the ranks
    """

    chunks: list[ChunkFacts]
    own_positions: list[Positions]
    layout: Layout
    group: dist.ProcessGroup

    def travelling(self, at: Positions) -> list[Tensor]:
        """Return the positions to send round with this rank's keys; none if all tokens count up by one."""
        if all(chunk.start is not None for chunk in self.chunks):
            return []
        return [fact for fact in (at.coords, at.order, at.document) if fact is not None]

    def positions(self, chunk: int, place: int, travelling: list[Tensor]) -> Positions:
        """Return the positions of a chunk, the `place`-th of its rank, from the received tensors."""
        facts = self.chunks[chunk]
        if facts.start is not None and not travelling:
            return Positions.count(facts.tokens, facts.start, device=self.own_positions[0].device)
        part = slice(place * facts.tokens, (place + 1) * facts.tokens)
        coords, order, *documents = (fact[:, part] for fact in travelling)
        document = documents[0] if documents else None
        return Positions(coords, order, document, unit_step=facts.unit_step, extent=facts.extent)


def line_of(at: Positions, layout: Layout, group: dist.ProcessGroup) -> Line:
    """Return the facts of the sequence of all ranks, exchanged once for all layers.

    All ranks call it together, each with its own positions.
    Raises ValueError for different numbers of tokens, different kinds of positions, and orders that do not rise.
    """
    key = ("line", layout, id(group), tensor_versions(at))
    if key not in at.tables:
        at.tables[key] = exchange_line(at, layout, group)
    return at.tables[key]


def exchange_line(at: Positions, layout: Layout, group: dist.ProcessGroup) -> Line:
    numbers = layout.chunks_of(group.rank())
    size = max(1, at.tokens // len(numbers))
    own_positions = [counted_positions(at.rows(slice(n * size, (n + 1) * size))) for n in range(len(numbers))]
    kind = (
        at.tokens,
        *(None if x is None else (len(x), x.dtype, *x.shape[2:]) for x in (at.coords, at.order, at.document)),
    )
    rank_facts: list = [None] * layout.ranks
    dist.all_gather_object(rank_facts, (kind, [ChunkFacts.from_positions(part) for part in own_positions]), group=group)
    for rank, (rank_kind, _) in enumerate(rank_facts):
        if rank_kind != rank_facts[0][0]:
            raise ValueError(
                f"all ranks hold as many tokens, with positions of one kind (rows, dtypes, axes), got "
                f"{rank_facts[0][0]} on rank 0 and {rank_kind} on rank {rank}; cut the tokens and their positions of "
                f"a whole sequence with shards.cut"
            )
    if at.tokens % len(numbers):
        raise ValueError(
            f"a rank holds {len(numbers)} chunks of equally many tokens in {layout.order} order, got {at.tokens} "
            f"tokens; cut a whole sequence with shards.cut"
        )
    by_chunk = {
        c: chunk
        for rank, (_, parts) in enumerate(rank_facts)
        for c, chunk in zip(layout.chunks_of(rank), parts, strict=True)
    }
    chunks = [by_chunk[c] for c in range(layout.chunks)]
    check_line(chunks)
    return Line(chunks, own_positions, layout, group)


def check_line(chunks: list[ChunkFacts]) -> None:
    """Raise ValueError unless orders rise along the chunks, and documents do not fall."""
    last, document = torch.full_like(chunks[0].last, -1), None
    for number, chunk in enumerate(chunks):
        is_early = (chunk.last >= 0) & (chunk.first <= last)
        if bool(is_early.any()) or not chunk.in_order:
            fault = f"chunk {number} begins at order {int(chunk.first.min())}, after order {int(last.max())}"
            raise ValueError(
                f"the orders of tokens must rise along a sequence that is cut over ranks, and {fault}; give each rank "
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


def counted_positions(at: Positions) -> Positions:
    """Return the same positions, as counted ones if they count up by one, which kernels can then use."""
    start = start_of(at)
    if start is None or at.start is not None:
        return at
    return replace(Positions.count(at.tokens, start, device=at.device), horizon=at.horizon)


def start_of(at: Positions) -> int | None:
    """Return the first order of tokens that count up by one, equal in all rows; else None."""
    if at.start is not None:
        return at.start
    if at.document is not None or at.axes != 1 or at.coords.is_floating_point():
        return None
    first = at.order[:1, :1]
    expected_order = first + torch.arange(at.tokens, device=at.device)
    counts = (at.order == expected_order).all() & (at.coords[..., 0] == expected_order).all() & (first >= 0).all()
    return int(first) if bool(counts) else None
