"""Positions: the coordinates, order and document of each token.

Packing, padding, caching and foreign position ids are described here once, and travel with the tokens.
Encodings read `coords`, causality reads `order`, packing reads `document`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn, TypeAlias, cast

import torch
from torch import Tensor

from posenc import checks
from posenc.tokens.tracing import assert_on_gpu, may_be_read

TENSOR_FIELDS = ("coords", "order", "document", "horizon")
"""The fields of positions that hold tensors."""


@dataclass(frozen=True, eq=False)
class Positions:
    """The coordinates, order and document of each token.

    coords    [B or 1, T, A]  what encodings read; integer or floating, one axis (A = 1) or several (unit: positions)
    order     [B or 1, T]     what causality reads; -1 marks padding or an empty cache slot
    document  [B or 1, T]     which packed document a token belongs to; None when there is only one
    horizon   [B or 1]        the declared length of each sequence, for encodings that depend on one (unit: positions)

    The last four fields are known without reading tensors, so they hold inside a compiled graph:
    contiguous  every row's order is s, s+1, s+2, ... for one s, with no padding and one document
    unit_step   coords have one axis and equal order wherever there is a token
    extent      every coordinate c satisfies 0 <= c < extent; where all rows are contiguous in unit steps, the last
                coordinate is extent - 1
    loose       order is relative to these tokens alone (ids, packed documents, a grid): attention puts them behind the
                tokens of a cache

    >>> Positions.count(3).coords[..., 0]
    tensor([[0, 1, 2]])
    >>> Positions.packed([2, 3]).coords[..., 0]
    tensor([[0, 1, 0, 1, 2]])
    """

    coords: Tensor
    order: Tensor
    document: Tensor | None = None
    horizon: Tensor | None = None
    contiguous: bool = False
    unit_step: bool = False
    extent: int | None = None
    loose: bool = False

    def __post_init__(self) -> None:
        if type(self.coords) is not Tensor or type(self.order) is not Tensor:
            checks.tensor("coords", self.coords), checks.tensor("order", self.order)
        if self.coords.dim() != 3:
            raise ValueError(f"coords must have shape [batch or 1, tokens, axes], got {list(self.coords.shape)}")
        if self.order.dim() != 2 or self.order.shape[1] != self.coords.shape[1]:
            raise ValueError(
                f"order must have shape [batch or 1, {self.coords.shape[1]}] to go with coords of shape "
                f"{list(self.coords.shape)}, got {list(self.order.shape)}"
            )
        if self.document is not None and (
            checks.tensor("document", self.document).dim() != 2 or self.document.shape[1] != self.order.shape[1]
        ):
            raise ValueError(f"document must name {self.order.shape[1]} tokens, got shape {list(self.document.shape)}")
        if self.horizon is not None:
            if checks.tensor("the declared horizon", self.horizon).dim() != 1:
                raise ValueError(f"the declared horizon must have shape [batch or 1], got {list(self.horizon.shape)}")
            if self.horizon.dtype == torch.bool or self.horizon.is_complex():
                raise ValueError(f"the declared horizon must be a number of positions, got {self.horizon.dtype}")
            if self.horizon.is_cpu and may_be_read(self.horizon) and not bool((self.horizon >= 1).all()):
                raise ValueError(f"the declared horizon must be 1 or more, got {self.horizon.min().item():g}")
        if self.order.is_floating_point() or self.order.dtype == torch.bool:
            raise ValueError(f"order must be whole numbers, got {self.order.dtype}; fractions belong in coords")
        self.check_rows()
        if self.document is not None and (self.document.is_floating_point() or self.document.is_complex()):
            raise ValueError(f"document must be whole numbers, got {self.document.dtype}")
        if self.coords.dtype == torch.bool or self.coords.is_complex():
            raise ValueError(f"coords must be whole or floating numbers, got {self.coords.dtype}")
        if self.coords.is_floating_point() and self.coords.is_cpu and may_be_read(self.coords):
            if not bool(self.coords.isfinite().all()):
                raise ValueError("positions must be finite numbers, got nan or infinity among the coords")

    def check_rows(self) -> None:
        if self.document is None and self.horizon is None and self.coords.shape[0] == self.order.shape[0]:
            return
        rows = {name: fact.shape[0] for name, fact in self.tensors().items()}
        # Symbolic sizes have no hash; the sizes under torch.jit.trace are tensors, which are not compared.
        batch_sizes = [] if torch.jit.is_tracing() else [size for size in rows.values() if size != 1]
        if any(size != batch_sizes[0] for size in batch_sizes):
            sizes = ", ".join(f"{name} of {size}" for name, size in rows.items())
            raise ValueError(f"all fields of positions have one batch size, or 1 row for all of it; got {sizes}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: fact for name, fact in vars(self).items() if name != "tables"}

    @cached_property
    def tables(self) -> dict[Hashable, Any]:
        """Return the tables computed from these positions by `shared_tables.once`; copies start empty."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that hold tensors, by name."""
        facts = {name: getattr(self, name) for name in TENSOR_FIELDS}
        return {name: fact for name, fact in facts.items() if fact is not None}

    def with_facts(self, **facts: Any) -> "Positions":
        """Return the same positions with these fields replaced."""
        return Positions(**facts, **{name: getattr(self, name) for name in FIELDS if name not in facts})

    @classmethod
    def count(cls, tokens: int, start: int = 0, *, device: torch.device | str | None = None) -> "Positions":
        """Return start, start + 1, ...: one document without padding, shared by every row of a batch.

        Raises ValueError when there is no token or `start` is negative.
        """
        check_counts(tokens, start)
        order = torch.arange(start, start + tokens, device=device)[None]
        return cls(order[..., None], order, contiguous=True, unit_step=True, extent=start + tokens)

    @classmethod
    def of(cls, ids: Tensor, *, order: Tensor | None = None, horizon: int | Tensor | None = None) -> "Positions":
        """Return positions from ids of shape [T], [B, T] or [B, T, A].

        Ids are integer or floating, in any order. The causal order is that of the tensor, after the tokens of a cache,
        unless `order` is given. Raises ValueError for another shape or an empty sequence, for negative ids of an
        integer type, and for ids on the CPU that are nan or infinite. Ids on another device, or inside a compiled
        graph, are not read; on a GPU negative ids stop the program with the same message.
        """
        checks.tensor("positions", ids)
        if ids.dim() not in (1, 2, 3):
            raise ValueError(f"positions must have shape [T], [B, T] or [B, T, A], got {list(ids.shape)}")
        if 0 in ids.shape[1:] or ids.shape == (0,):
            raise ValueError(f"a sequence needs at least one token, got positions of shape {list(ids.shape)}")
        if ids.dtype in (torch.bool, torch.bfloat16, torch.float16) or ids.is_complex():
            raise ValueError(f"positions must be integer, float32 or float64 ({ids.dtype} cannot count far), cast them")
        if (
            ids.dtype == torch.float32
            and ids.is_cpu
            and may_be_read(ids)
            and bool(((ids.abs() >= 2**24) & ids.isfinite()).any())
        ):
            raise ValueError(
                "float32 cannot tell positions beyond 16,777,216 apart, as time stamps are; subtract the first of them "
                "before they are float32, or give float64 or whole numbers"
            )
        coords = ids[None, :, None] if ids.dim() == 1 else ids[..., None] if ids.dim() == 2 else ids
        if not ids.is_floating_point() and may_be_read(ids):
            remedy = "say which tokens are padding with Positions.padded(mask), or give floats if an axis goes below 0"
            on_gpu = assert_on_gpu(ids, lambda: ids >= 0, f"position ids must not be negative; {remedy}")
            if not on_gpu and (lowest := int(ids.min())) < 0:
                raise ValueError(f"position ids must not be negative, got {lowest}; {remedy}")
        loose = order is None
        if order is None:
            order = torch.arange(coords.shape[1], device=ids.device)[None]
        return cls(coords, order, loose=loose).with_horizon(horizon)

    @classmethod
    def padded(cls, mask: Tensor) -> "Positions":
        """Return positions from a padding mask [B, T], true or 1 where a token is.

        Padding may be on any side or inside. The first token of every row is at 0.

        >>> Positions.padded(torch.tensor([[0, 1, 1]])).order
        tensor([[-1,  0,  1]])
        """
        if checks.tensor("a padding mask", mask).dim() != 2 or mask.shape[1] < 1:
            raise ValueError(f"a padding mask has shape [B, T] with at least one token, got {list(mask.shape)}")
        present = mask != 0
        if mask.dtype != torch.bool and mask.is_cpu and may_be_read(mask) and not bool((present == mask).all()):
            raise ValueError(
                "a padding mask is true or 1 where a token is, and false or 0 elsewhere, got other numbers; for "
                "segment ids, one number for each document, give Positions.packed(mask)"
            )
        order = (present.long().cumsum(1) - 1).masked_fill(~present, -1)
        return cls(order.clamp(min=0)[..., None], order, unit_step=True, extent=mask.shape[1])

    @classmethod
    def packed(
        cls,
        lengths: Sequence[int] | Tensor | None = None,
        *,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> "Positions":
        """Return positions of several documents in a row: coords restart with each, and none sees another.

        lengths     of the documents of one row (tokens); or segment ids [B, T], a tensor with one number for all tokens
                    of a document and 0 for padding
        cu_seqlens  instead of lengths, where each document begins and the last one ends: 0, n1, n1 + n2, ... (tokens)

        Raises ValueError for other values, empty documents, and a segment that is split by another.

        >>> Positions.packed(cu_seqlens=[0, 2, 5]).coords[..., 0]
        tensor([[0, 1, 0, 1, 2]])
        >>> Positions.packed(torch.tensor([[1, 1, 2, 2, 2, 0]])).document
        tensor([[ 0,  0,  1,  1,  1, -1]])
        """
        if (lengths is None) == (cu_seqlens is None):
            raise ValueError("packed takes lengths, segment ids or cu_seqlens, and one of them; got none or several")
        if isinstance(lengths, Tensor) and lengths.dim() == 2:
            return cls.from_segments(lengths if device is None else lengths.to(device))
        name, numbers = ("lengths", lengths) if cu_seqlens is None else ("cu_seqlens", cu_seqlens)
        if isinstance(numbers, Tensor) and numbers.dim() == 1:
            device, numbers = numbers.device if device is None else device, numbers.tolist()
        if not isinstance(numbers, (list, tuple, range)):
            raise ValueError(
                f"{name} are a list or a tensor [n] of whole numbers, or segment ids a tensor [B, T], got "
                f"{checks.display(numbers)}"
            )
        for number in numbers:
            if isinstance(number, (list, tuple)):
                raise ValueError(f"{name} are those of one row, got several lists; give segment ids as a tensor [B, T]")
            checks.whole("the length of a document" if cu_seqlens is None else "a boundary of cu_seqlens", number)
        remedy = ""
        if cu_seqlens is not None:
            if len(numbers) < 2 or numbers[0] != 0:
                raise ValueError(f"cu_seqlens begin with 0 and end with the number of tokens, got {numbers}")
            numbers = [end - start for start, end in pairwise(numbers)]
        elif len(numbers) > 1 and numbers[0] == 0:
            remedy = "; give boundaries as cu_seqlens=..."
        if not numbers or min(numbers) < 1:
            raise ValueError(f"packed documents need at least one token each, got lengths {list(numbers)}{remedy}")
        coords = torch.cat([torch.arange(n, device=device) for n in numbers])[None]
        document = torch.cat([torch.full((n,), index, device=device) for index, n in enumerate(numbers)])[None]
        order = torch.arange(coords.shape[1], device=device)[None]
        return cls(coords[..., None], order, document, extent=max(numbers), loose=True)

    @classmethod
    def from_segments(cls, segments: Tensor) -> "Positions":
        """Return packed positions from segment ids [B, T]."""
        if segments.is_floating_point() or segments.dtype == torch.bool or segments.shape[1] < 1:
            raise ValueError(f"segment ids are whole numbers [B, T], got {checks.display(segments)}")
        present = segments != 0
        first = segments.diff(dim=1, prepend=segments[:, :1] - 1) != 0
        run = (first & present).long().cumsum(1)
        if segments.is_cpu and may_be_read(segments):
            for row, last in zip(segments, run[:, -1].tolist(), strict=True):
                if len(row.unique()) - bool((row == 0).any()) != last:
                    raise ValueError("the tokens of a segment must be adjacent, got a segment split by another")
        index = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
        coords = (index - torch.where(first, index, 0).cummax(1).values).masked_fill(~present, 0)
        order = (present.long().cumsum(1) - 1).masked_fill(~present, -1)
        document = (run - 1).masked_fill(~present, -1)
        return cls(coords[..., None], order, document, extent=segments.shape[1], loose=True)

    @classmethod
    def grid(cls, *sizes: int, prefix: int = 0, device: torch.device | str | None = None) -> "Positions":
        """Return every cell of a grid, one axis for each size, the last axis running fastest.

        prefix  number of tokens in front, outside the grid, such as a class token: the k-th has all coordinates -k

        >>> Positions.grid(2, 2).coords[0].tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
        """
        for size in sizes:
            checks.whole("the size of a grid", size)
        if not sizes or min(sizes) < 1:
            raise ValueError(f"a grid needs at least one cell on each axis, got sizes {sizes}")
        axes = torch.meshgrid(*(torch.arange(n, device=device) for n in sizes), indexing="ij")
        coords = torch.stack([axis.flatten() for axis in axes], -1)[None]
        if checks.whole("prefix", prefix, 0):
            prefix_coords = -1 - torch.arange(prefix, device=device)
            coords = torch.cat((prefix_coords[None, :, None].expand(1, -1, len(sizes)), coords), 1)
        order = torch.arange(coords.shape[1], device=device)[None]
        extent, unit_step = None if prefix else max(sizes), len(sizes) == 1 and not prefix
        return cls(coords, order, contiguous=True, unit_step=unit_step, extent=extent, loose=True)

    @property
    def tokens(self) -> int:
        return self.order.shape[1]

    @property
    def axes(self) -> int:
        return self.coords.shape[2]

    @property
    def device(self) -> torch.device | None:
        """Return the device of its tensors; None for the default device."""
        return self.order.device

    @property
    def start(self) -> int | None:
        """Return the first order if all rows count up from it by one; else None. Tensors are not read."""
        if not (self.contiguous and self.unit_step and self.extent is not None):
            return None
        return self.extent - self.tokens

    def axis(self, reader: object) -> Tensor:
        """Return the coordinates [B or 1, T] of one-axis positions; an error for more axes names the `reader`."""
        return self.coordinates(1, reader)

    def coordinates(self, axes: int, reader: object) -> Tensor:
        """Return the coordinates for a reader of `axes` axes. One axis gives [B or 1, T], more give [B or 1, T, A].

        0 takes any number of axes. Raises ValueError, naming the `reader`, for another number.
        """
        if axes == 0:
            return self.coords
        if self.axes != axes:
            remedy = "choose one with coords[..., :1]" if axes == 1 else f"give coords of shape [B, T, {axes}]"
            raise ValueError(
                f"{reader} reads {'one axis' if axes == 1 else f'{axes} axes'}, got positions with "
                f"{self.axes} {'axis' if self.axes == 1 else 'axes'}; {remedy}"
            )
        return self.coords[..., 0] if axes == 1 else self.coords

    def rows(self, rows: slice | Tensor) -> "Positions":
        """Return the tokens of a slice or of indices [n]; the result is not loose."""
        contiguous, extent = False, self.extent
        if self.start is not None and isinstance(rows, slice):
            first, stop, step = rows.indices(self.tokens)
            contiguous = step == 1 and stop > first
            if contiguous and not self.loose and stop - first == self.tokens:
                return self
            extent = self.start + stop if contiguous else extent
        return self.with_facts(
            coords=self.coords[:, rows],
            order=self.order[:, rows],
            document=None if self.document is None else self.document[:, rows],
            contiguous=contiguous,
            extent=extent,
            loose=False,
        )

    def batch_rows(self, rows: slice | Tensor) -> "Positions":
        """Return the rows of the batch in a slice or indices [n]. Fields that all rows share stay shared."""
        batch_facts = {name: fact for name, fact in self.tensors().items() if fact.shape[0] > 1}
        index = rows.to(self.order.device) if isinstance(rows, Tensor) else rows
        return self.with_facts(**{name: fact[index] for name, fact in batch_facts.items()}) if batch_facts else self

    def __getitem__(self, key: object) -> NoReturn:
        raise TypeError(
            "Positions cannot be indexed; take tokens with at.rows(...), such as at.rows(slice(-1, None)) for the "
            "last one, and rows of the batch with at.batch_rows(...)"
        )

    def restarts(self) -> bool:
        """Whether ids restart from 0 within a row without naming documents; False if unknown."""
        if not self.loose or self.document is not None or self.axes != 1 or self.coords.is_floating_point():
            return False
        if not (self.coords.is_cpu and may_be_read(self.coords)):
            return False
        ids = self.coords[..., 0]
        at_zero = ids[:, 1:] == 0
        return bool(((ids.diff(dim=1) == 1) | at_zero).all() and (at_zero & (ids[:, :-1] > 0)).any())

    def next(self, tokens: int = 1) -> "Positions":
        """Return the positions of the next tokens: each row continues from its own last token.

        Only for one axis in steps of one (count, padded, packed: a packed row continues its last document).
        """
        if self.axes != 1 or (not self.unit_step and self.document is None):
            raise ValueError(
                "only positions that count up by one know what comes next; give the next ones with Positions.of"
            )
        if type(tokens) is not int or tokens < 1:
            check_counts(tokens)
        steps = torch.arange(1, tokens + 1, device=self.order.device)
        last = self.order.argmax(1, keepdim=True)
        order = self.order.gather(1, last) + steps
        coords = fact_at_token(self.coords[..., 0], last) + steps
        # A row of padding alone starts at 0.
        empty = self.order.amax(1, keepdim=True) < 0
        coords = torch.where(empty, order, coords)
        document = None if self.document is None else fact_at_token(self.document, last).expand(-1, tokens)
        # A number that changes with every token would recompile the graph.
        extent = None if torch.compiler.is_compiling() or self.extent is None else self.extent + tokens
        return self.with_facts(coords=coords[..., None], order=order, document=document, extent=extent, loose=False)

    def appended_to(self, past_at: "Positions") -> "Positions":
        """Return these positions with loose tokens put behind the tokens of a cache.

        Without documents of their own, the tokens continue the last document of their row; documents of loose tokens
        are new ones. The cache checks that the order of tokens that are not loose comes behind its own.
        """
        document = self.document
        if document is None and past_at.document is not None:
            document = fact_at_token(past_at.document, past_at.order.argmax(1, keepdim=True)).expand(-1, self.tokens)
        if not self.loose:
            return self if document is self.document else self.with_facts(document=document)
        if self.document is not None:
            document = self.document + 1 + (0 if past_at.document is None else past_at.document.amax(1, keepdim=True))
        order = past_at.order.amax(1, keepdim=True) + 1 + self.order
        return self.with_facts(order=order, document=document, contiguous=False, unit_step=False, loose=False)

    def with_coords(self, coords: Tensor) -> "Positions":
        """Return the same tokens at other coordinates, as a coordinate map does (interpolation, shift, randomised)."""
        coords = coords if checks.tensor("coords", coords).dim() == 3 else coords[..., None]
        return self.with_facts(coords=coords, unit_step=False, extent=None)

    def with_horizon(self, horizon: int | Tensor | None) -> "Positions":
        """Return these positions with a declared horizon: one for all sequences (int) or one for each (tensor [B])."""
        if horizon is not None and not isinstance(horizon, Tensor):
            checks.whole("the declared horizon", horizon, 1)
            horizon = torch.full((1,), horizon, device=self.order.device)
        return self.with_facts(horizon=horizon)

    def to(self, device: torch.device | str) -> "Positions":
        return self.with_facts(**{name: fact.to(device) for name, fact in self.tensors().items()})


FIELDS = tuple(field.name for field in fields(Positions))


class CountedPositions(Positions):
    """Tokens that count up by one, like `Positions.count`, with tensors created on first read.

    So a single decoded token finds its row of a kept table without creating a tensor. `with_facts` returns plain
    Positions. Raises ValueError as `Positions.count` does.
    """

    # Attributes instead of properties: kernels read them at every call.
    tokens: int = 0
    start: int = 0
    device: torch.device | None = None

    def __init__(self, tokens: int, start: int, device: torch.device | None) -> None:
        if type(start) is not int or type(tokens) is not int or tokens < 1 or start < 0:
            check_counts(tokens, start)
        facts = vars(self)
        facts["tokens"], facts["start"], facts["device"], facts["extent"] = tokens, start, device, start + tokens
        # The other fields keep their defaults.
        facts["contiguous"] = facts["unit_step"] = True

    def __getattr__(self, name: str) -> Any:
        # Cached properties take a lock before Python 3.12, which a compiled graph cannot.
        if name not in ("coords", "order"):
            raise AttributeError(name)
        counted_positions = Positions.count(self.tokens, self.start, device=self.device)
        vars(self).update(coords=counted_positions.coords, order=counted_positions.order)
        return getattr(counted_positions, name)

    def next(self, tokens: int = 1) -> Positions:
        # A number that changes with every token would recompile the graph, so there positions are tensors alone.
        if torch.compiler.is_compiling():
            return super().next(tokens)
        return CountedPositions(tokens, cast(int, self.extent), self.device)

    def with_next(self, at: Positions) -> Positions | None:
        """Return these tokens with those of `at` behind them; None unless all count up from one start."""
        if type(at) is not CountedPositions or at.start != self.extent or at.device != self.device:
            return None
        return CountedPositions(self.tokens + at.tokens, self.start, self.device)


def fact_at_token(fact: Tensor, token: Tensor) -> Tensor:
    """Return a fact at one token [B or 1, 1] of each row. The fact is [B or 1, T] or [B or 1, T, A]."""
    if fact.shape[0] != token.shape[0]:
        rows = max(fact.shape[0], token.shape[0])
        fact, token = fact.expand(rows, *fact.shape[1:]), token.expand(rows, 1)
    return fact.gather(1, token if fact.dim() == 2 else token[..., None].expand(-1, -1, fact.shape[2]))


def check_counts(tokens: int, start: int = 0) -> None:
    """Raise ValueError unless there is a token and `start` is 0 or more."""
    if checks.whole("the number of tokens", tokens) < 1:
        raise ValueError(f"a sequence needs at least one token, got {tokens}")
    if checks.whole("start, or an offset,", start) < 0:
        raise ValueError(f"positions start at 0 or later, got start={start}")


PositionsLike: TypeAlias = Positions | Tensor | int | None
"""Positions as a caller gives them: Positions, ids, the position of the first token, or None (0, 1, 2, ...)."""


def positions_for(
    tokens: int,
    positions: PositionsLike,
    offset: int | Tensor = 0,
    *,
    batch: int | None = None,
    device: torch.device | None = None,
    past_at: Positions | None = None,
) -> Positions:
    """Return the caller's positions of `tokens` tokens as Positions.

    past_at  positions of the tokens in a cache: new tokens come behind them, each row after its last token by default

    Raises ValueError for both positions and an offset, and for positions that do not fit the tokens.
    """
    if isinstance(offset, Tensor):
        if positions is not None:
            raise ValueError("give positions or an offset, not both")
        if offset.dim() > 1 or offset.is_floating_point() or offset.dtype == torch.bool:
            raise ValueError(f"an offset is a whole number, or a tensor [B] of them, got {checks.display(offset)}")
        positions, offset = offset.reshape(-1, 1) + torch.arange(tokens, device=offset.device), 0
    if past_at is not None:
        if positions is not None or offset:
            return positions_for(tokens, positions, offset, batch=batch, device=device).appended_to(past_at)
        positions = past_at.next(tokens)
        if type(positions) is CountedPositions:
            return positions
    if positions is None:
        if torch.compiler.is_compiling():
            return Positions.count(tokens, offset, device=device)
        return CountedPositions(tokens, offset, device)
    if offset:
        raise ValueError(f"give positions or offset={offset}, not both")
    if isinstance(positions, Positions):
        at = positions
    elif not isinstance(positions, Tensor) and checks.is_whole(positions):
        return positions_for(tokens, None, positions, batch=batch, device=device)
    else:
        at = Positions.of(checks.tensor("positions", positions))
    if at.tokens != tokens:
        if at.axes == tokens and batch in (None, at.tokens) and isinstance(positions, Tensor):
            remedy = "ids [axes, B, T] are given as ids.permute(1, 2, 0)"
        elif at.axes > 1 and at.tokens < tokens < at.tokens + 9:
            extra_tokens = tokens - at.tokens
            remedy = (
                f"tokens outside a grid, such as a class token, stand in Positions.grid(..., prefix={extra_tokens})"
            )
        else:
            remedy = "give one position for each token, or name the axis of the tokens by seq_dim=..."
        raise ValueError(f"got positions of {at.tokens} tokens for {tokens} tokens; {remedy}")
    rows = [] if batch is None or torch.jit.is_tracing() else [at.order.shape[0], at.coords.shape[0]]
    if wrong_sizes := [size for size in rows if size != 1 and size != batch]:
        remedy = "give one row, or one for each" if past_at is None else "start a new cache for another batch"
        raise ValueError(f"got positions of {wrong_sizes[0]} rows for a batch of {batch}; {remedy}")
    if device is not None and at.order.device != device:
        if at.order.is_meta or at.coords.is_meta:
            raise ValueError(f"the positions are on 'meta', which holds no numbers, and the tokens on '{device}'")
        return at.to(device)
    return at


def distance(at: Positions, keys_at: Positions, reader: object, axes: int = 1) -> Tensor:
    """Return signed distances [B or 1, T, S], query minus key coordinate.

    They are positive for keys in the past, and [B or 1, T, S, A] unless `axes` is 1.
    """
    return at.coordinates(axes, reader)[:, :, None] - keys_at.coordinates(axes, reader)[:, None, :]


def as_positions(positions: Positions | Tensor | int, offset: int = 0) -> Positions:
    """Return Positions from Positions, ids, or a number of tokens that count up from `offset`.

    Raises ValueError for an offset beside Positions or ids.
    """
    if not isinstance(positions, (Positions, Tensor)):
        return Positions.count(positions, offset)
    if offset:
        raise ValueError(f"give positions or offset={offset}, not both")
    return positions if isinstance(positions, Positions) else Positions.of(positions)
