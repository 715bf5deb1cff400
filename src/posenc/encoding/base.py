"""Encoding: how position enters attention, as doors that are all closed by default.

A subclass opens the doors it needs by overriding them; nobody asks an encoding for its name.
"""

import inspect
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from posenc import checks
from posenc.encoding.biases import BIASES, Bias, ByDistance, total
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.formulas import Published, Token, dot_product, has_own_logits, logit_of_a_pair
from posenc.encoding.keys import Keys
from posenc.specs.words import with_named_options
from posenc.tokens.masks import Mask, MaskLike, mask_for
from posenc.tokens.positions import Positions, PositionsLike, placed, positions_for
from posenc.tokens.shared_tables import SharesTables

AttentionOutput: TypeAlias = tuple[Tensor, Tensor | None]
"""The output [B, H, T, E] of attention, and the weights [B, H, T, S] where they are wanted."""

Side: TypeAlias = Literal["query", "key"]
"""Which of the two door 2 turns."""

Moves: TypeAlias = Literal["exact", "unturned", "recomputed", "never"]
"""What becomes of a remembered key whose token moves: it is turned by the difference, or holds no position; it is
cached unturned; it has to be computed again from its token; or nothing leads from one place to the other."""

WHY_FIXED = {
    "recomputed": "their keys were made of embeddings with positions added; leave them where they are, as "
    "evict(keep, renumber=False) and crop do, or feed the tokens again",
    "never": "their keys were turned in a way that no rotation by a difference takes back (Encoding.moved); leave them "
    "where they are, as evict(keep, renumber=False) and crop do, or feed the tokens again",
}
"""Why remembered keys that move in such a way are left where they are, and the way out; the others can be moved."""

DOORS = ("embed", "turn", "by_distance", "biases", "attend", "remember")
WIDTHS = ("dim", "heads", "head_dim")
"""Options that the model decides, and no spec."""

DECIDED = ("max_len", "trained_length", "causal")
"""Options that the model decides where a spec leaves them open."""


@dataclass(frozen=True)
class Shape:
    """What a model is, for encodings that are built from a spec.

    dim       width of the model (channels)
    heads     number of query heads
    head_dim  width of one head (channels)
    max_len   the trained length (tokens): the rows of a learned table, the horizon that a schedule starts from
    causal    whether tokens see only the past
    """

    dim: int
    heads: int
    head_dim: int
    max_len: int
    causal: bool = True

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "head_dim", "max_len"):
            if checks.whole(name, getattr(self, name)) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        checks.kind("causal", self.causal, bool)

    @property
    def options(self) -> dict[str, Any]:
        """What a model decides of an encoding's options."""
        return {**vars(self), "trained_length": self.max_len}

    @classmethod
    def of(cls, dim: int, heads: int, max_len: int, causal: bool = True) -> "Shape":
        """The usual shape: heads of equal width that together make up the model's.

        Raises ValueError when `heads` does not divide `dim`.
        """
        if checks.whole("heads", heads) < 1 or checks.whole("dim", dim) % heads:
            most = 1024
            divisors = [n for n in range(1, min(dim, most) + 1) if dim % n == 0]
            known = "the divisors are" if dim <= most else f"the divisors up to {most:,} are"
            raise ValueError(f"heads must divide dim={dim}, got heads={heads}; {known} {divisors}")
        return cls(dim, heads, dim // heads, max_len, causal)


class Encoding(checks.ChecksArguments, SharesTables, Published):
    """Base of every positional encoding: the doors through which position can enter attention.

    1 `embed` adds to the embeddings; 2 `turn` turns queries and keys; 3 `by_distance` or `biases` biases the scaled
    logits; 4 `attend` replaces the attention rule; and `remember` keeps facts of each token beside k and v.
    A subclass overrides what it needs, keeps each constructor argument under its own name, and is a function of
    coordinates: never of a tensor's length, of call history, or of its neighbours in the batch.
    """

    per_layer: bool = False
    """Whether every layer has parameters of its own (Shaw) or all layers share one instance (T5)."""

    axes: int = 1
    """How many coordinates a position has for this encoding; 0 stands for any number."""

    reads_keys: bool = False
    """Whether its biases read the keys themselves, and not only where they are."""

    turns: Literal["alike", "each", "queries"] = "each"
    """What `turn` does to queries and keys: the same to both, each in a way of its own, or nothing to keys."""

    needs_weights: bool = False
    """Whether `attend` reads the logits or the weights, so that only kernels that give them will do."""

    queries_together: int = 0
    """Of how many queries at a time `attend` is asked at least, where it computes something else for every pair and few
    take less memory; more than 1 where going through all keys for each few is what costs. 0: for no pair. On a GPU it
    is said of `biases` too, whose closures are no sums and entries of tables, as a fused kernel takes them in."""

    turns_when_attending: bool = False
    """Whether keys are cached unturned, and turned with the query's declared horizon when they are attended to."""

    between: tuple[str, ...] | None = ()
    """What `biases` and `attend` read, for a query and a key, of other keys, beside the softmax's sum: the names of
    remembered facts that `sums_of` adds up along the sequence, or nothing; None stands for the keys themselves, and is
    what a class has that overrides one of the two and does not say."""

    wraps: ClassVar[tuple[str, ...]] = ()
    """For an encoding around another (its first argument, `encoding`): specs of such, the usual one first."""

    spec_name: ClassVar[str] = ""
    """The name in specs; the catalogue sets it to the file's name."""

    doors: frozenset[str] = frozenset()
    """The names of the doors that are open: those the class overrides, unless an instance closes one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A class outside the catalogue goes by its own name, not by that of the class it was made from.
        package, _, module = cls.__module__.rpartition(".")
        cls.spec_name = module if package.startswith("posenc.encodings") else ""
        cls.doors = frozenset(door for door in DOORS if getattr(cls, door) is not getattr(Encoding, door))
        if not vars(cls).keys().isdisjoint(("biases", "attend")) and "between" not in vars(cls):
            cls.between = None
        if "remember" in vars(cls):
            written = inspect.signature(cls.remember)
            try:
                written.bind(cls, "x", "at")
            except TypeError:
                raise ValueError(f"{cls.__name__} has remember{written}, expected remember(self, x, at)") from None
        # A class that turns otherwise than the class it was made from does not turn both as that one does.
        if "turn" in vars(cls) and "turn_both" not in vars(cls):
            cls.turn_both = Encoding.turn_both

    def __init__(self) -> None:
        super().__init__()

    @property
    def moves(self) -> Moves:
        """What becomes of a remembered key whose token moves; a class that turns keys says how, in `moved`."""
        if "embed" in self.doors:
            return "recomputed"
        if self.turns_when_attending:
            return "unturned"
        says = type(self).moved is not Encoding.moved
        return "exact" if says or "turn" not in self.doors or self.turns == "queries" else "never"

    def moved(self, k: Tensor, before: Positions, after: Positions) -> Tensor:
        """Remembered keys [B, KV, S, D] that `turn` turned at the positions `before`, as it would turn them at `after`.

        Keys that were not turned hold no position, and stay as they are. Raises ValueError where that cannot be done.
        """
        if self.moves in WHY_FIXED:
            raise ValueError(f"tokens stand elsewhere, and {WHY_FIXED[self.moves]}")
        return k

    @property
    def wavelengths(self) -> Tensor | None:
        """The wavelength of each channel pair (positions, float64, shortest first), for encodings made of waves."""
        return None

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        """Door 1. x [B, T, dim] with the position of each token added, in x's dtype."""
        return x

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        """Door 2. Queries [B, H, T, D] or keys [B, KV, S, D], whichever `side` says, turned by their own positions."""
        return x

    def turn_both(self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
        """Door 2 for queries and keys in one call."""
        return self.turn(q, at, "query"), self.turn(k, keys_at, "key")

    def by_distance(self, delta: Tensor) -> Tensor | None:
        """Door 3. The bias [H, ...] at signed distances delta [...]: query coordinate minus key coordinate.

        An encoding that reads several axes gets delta [..., A].
        """
        return None

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        """Door 3, where a distance is not enough: the biases of queries [B, H, T, D] at some positions on keys.

        The default is made of `by_distance`, and needs no queries.
        """
        if "by_distance" not in self.doors:
            return []
        return [ByDistance(self, at, keys.at, None if q is None else q.shape[1])]

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        """Door 4. The attention rule: the output [B, H, T, D] and the weights if the kernel was asked for them."""
        return kernel(self, q, at, keys, mask)

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        """The pocket: per-token facts [B, heads or 1, T, ...] kept beside k and v, under this encoding's own names."""
        return {}

    @with_named_options
    def forward(
        self,
        x: Tensor,
        k: Tensor | None = None,
        positions: PositionsLike = None,
        *,
        offset: int | Tensor = 0,
        seq_dim: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Use it alone: `encoding(x)` on embeddings [..., T, dim], `q, k = encoding(q, k)` on heads [..., T, D].

        Positions are Positions, a tensor [T], [B, T] or [B, T, A], an int or an offset (where the first token is; one
        for each row as a tensor [B]), or nothing (0, 1, 2, ...). A token decoded alone is not at 0: give its position
        or offset. `seq_dim` is the axis of the tokens where it is not the one before the channels: 0 for embeddings
        [T, B, dim], as nn.Transformer has them, and 1 for heads [B, T, H, D]; without it heads are numbered in silence
        there. Heads are as `query` takes them, and one tensor of them may be turned alone where queries and keys are
        turned alike. Nothing given is changed in place.
        """
        turns = "turn" in self.doors
        if k is None and "embed" in self.doors:
            if checks.floating("x", x).dim() < 3:
                raise ValueError(f"x must have shape [batch, tokens, dim], got {list(x.shape)}")
            rows = tokens_last("x", x, seq_dim)
            at = positions_for(rows.shape[-2], positions, offset, batch=math.prod(rows.shape[:-2]), device=x.device)
            added = self.embed(rows.reshape(-1, *rows.shape[-2:]), at)
            return tokens_back(added.reshape(rows.shape), seq_dim)
        if not turns:
            if k is not None and not k.is_floating_point():
                raise ValueError(
                    f"positions are given by name beside embeddings, as encoding(x, positions=...); got "
                    f"{checks.shown(k)}"
                )
            does = "adds nothing to embeddings" if k is None else "does not turn queries and keys"
            raise ValueError(f"{self} {does}; it opens {sorted(self.doors) or 'no door'}")
        if k is None:
            if self.turns != "each":
                return self.query(x, positions, offset=offset, seq_dim=seq_dim)
            raise ValueError(
                f"{self} adds nothing to embeddings, and turns queries and keys each in their own way; call query(q) "
                f"or key(k)"
            )
        x, k = tokens_last("x", x, seq_dim), tokens_last("k", k, seq_dim)
        queries, keys = as_heads(x, positions), as_heads(k, positions)
        if k.dim() != x.dim():
            raise ValueError(f"k must have as many axes as x, got {list(k.shape)} beside {list(x.shape)}")
        if x.device != k.device:
            checks.one_device(x=x, k=k)
        batch, _, tokens, _ = queries.shape
        if tokens != keys.shape[2]:
            raise ValueError(
                f"one call turns queries and keys of the same tokens, got {tokens} and {keys.shape[2]} of them; "
                f"for cross-attention call query(q, positions) and key(k, key_positions), and for heads [B, T, H, D] "
                f"say seq_dim=1"
            )
        at = positions_for(tokens, positions, offset, batch=batch, device=x.device)
        queries, keys = self.turn_both(queries, keys, at, at)
        queries, keys = shaped_like(x, queries), shaped_like(k, keys)
        return (queries, keys) if seq_dim is None else (tokens_back(queries, seq_dim), tokens_back(keys, seq_dim))

    @with_named_options
    def query(
        self, q: Tensor, positions: PositionsLike = None, *, offset: int | Tensor = 0, seq_dim: int | None = None
    ) -> Tensor:
        """Queries [..., T, D] turned by their positions, in a new tensor.

        Heads are the last axis before the tokens: [T, D], [H, T, D], [B, H, T, D], with more axes of a batch before; or
        [B, T, D] where the positions are those of several rows. Positions and seq_dim are as in `forward`.
        Raises ValueError for another shape, and positions that do not fit.
        """
        return turned_alone(self, q, positions, offset, seq_dim, "query")

    @with_named_options
    def key(
        self, k: Tensor, positions: PositionsLike = None, *, offset: int | Tensor = 0, seq_dim: int | None = None
    ) -> Tensor:
        """Keys [..., S, D] turned by their positions, in a new tensor; otherwise as `query`."""
        return turned_alone(self, k, positions, offset, seq_dim, "key")

    @with_named_options
    def bias(
        self,
        at: Positions | Tensor | int,
        keys_at: Positions | Tensor | int | None = None,
        *,
        q: Tensor | None = None,
        k: Tensor | None = None,
        causal: bool = False,
        mask: MaskLike = None,
        seq_dim: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Door 3 as a tensor [1 or B, H, T, S], ready for SDPA's attn_mask; -inf where the mask forbids.

        Positions are Positions, a tensor of ids, or an int: that many tokens from 0. `keys_at` defaults to `at`, and
        `dtype` to that of q or of the parameters, else float32; beside queries of half precision give SDPA theirs.
        Biases that read the query (Shaw) need q [B, H, T, D]; those that read the keys need k [B, KV, S, D]; of
        [B, T, H, D] with seq_dim=1.
        Raises ValueError when the encoding has no bias, and when the q or k that it reads are missing.
        """
        for name, given in (("q", q), ("k", k)):
            if given is not None and checks.floating(name, given).dim() != 4:
                raise ValueError(f"{name} must have shape [batch, heads, tokens, head_dim], got {list(given.shape)}")
        if seq_dim is not None and q is None and k is None:
            raise ValueError("seq_dim is the axis of the tokens in q and k, and neither was given; leave it out")
        q, k = (None if given is None else tokens_last(name, given, seq_dim) for name, given in (("q", q), ("k", k)))
        checks.kind("causal", causal, bool), checks.kind("dtype", dtype, torch.dtype | None)
        at = placed(at)
        keys_at = at if keys_at is None else placed(keys_at)
        if not self.doors & BIASES:
            raise ValueError(f"{self} has no bias; it opens {sorted(self.doors) or 'no door'}")
        if "biases" in self.doors and q is None:
            raise ValueError(f"the bias of {self} reads the queries; give q of shape [B, H, T, D]")
        if any({"remember", "biases"} <= part.doors for part in parts_of(self)):
            raise ValueError(f"the bias of {self} reads what it remembers of tokens; use it in Attention")
        if self.reads_keys and k is None:
            raise ValueError(f"the bias of {self} reads the keys; give k of shape [B, KV, S, D]")
        rule, added = mask_for(mask, causal=causal).split()
        nothing = torch.zeros(1, 1, 1, 1, device=at.order.device)
        dtype = dtype or next((tensor.dtype for tensor in (q, *self.parameters()) if tensor is not None), nothing.dtype)
        if k is None:
            k = (nothing if q is None else q[:, :, :1]).expand(-1, -1, keys_at.tokens, -1)
        values = total(self.biases(q, at, Keys(k, k, keys_at)), dtype)
        assert values is not None
        if rule.causal or rule.window or rule.given is not None or not (at.contiguous and keys_at.contiguous):
            values = values.masked_fill(~rule.allowed(at, keys_at).to(values.device), -torch.inf)
        return values if added is None else values + added.to(values.dtype)

    def __repr__(self) -> str:
        """The spec: what `posenc.build` reads back."""
        parameters = inspect.signature(type(self).__init__).parameters
        # Left out, what a model decides would be filled in from the next model, whatever it was here.
        changed = {n: value for n, value in settings_of(self).items() if n in DECIDED or value != parameters[n].default}
        wrapped = [repr(self.encoding)] if "encoding" in parameters else []
        inside = ", ".join([*wrapped, *(f"{name}={value!r}" for name, value in changed.items())])
        name = self.spec_name or type(self).__name__
        return f"{name}({inside})" if inside else name

    __str__ = __repr__

    def __add__(self, other: "Encoding") -> "Compose":
        return Compose(self, other)


def settings_of(encoding: Encoding) -> dict[str, Any]:
    """The constructor's options and their values, without what the model decides (its widths, heads, device)."""
    return arguments_of(encoding, but=("encoding", *WIDTHS))


def arguments_of(encoding: Encoding, but: Collection[str] = ()) -> dict[str, Any]:
    """What the constructor was given, by its names, but for device, dtype, and some others."""
    names = inspect.signature(type(encoding).__init__).parameters
    return {name: getattr(encoding, name) for name in names if name not in ("self", "device", "dtype", *but)}


def turned_alone(
    encoding: Encoding, x: Tensor, positions: PositionsLike, offset: int | Tensor, seq_dim: int | None, side: Side
) -> Tensor:
    """Door 2 for a tensor of any leading axes, at positions as a caller says them."""
    x = tokens_last("q" if side == "query" else "k", x, seq_dim)
    heads = as_heads(x, positions)
    at = positions_for(heads.shape[2], positions, offset, batch=heads.shape[0], device=x.device)
    return tokens_back(shaped_like(x, encoding.turn(heads, at, side)), seq_dim)


def tokens_last(name: str, x: Tensor, seq_dim: int | None) -> Tensor:
    """The tensor with its tokens on the axis before the channels, [..., T, D], from where `seq_dim` says that they are.

    Raises ValueError where there is no such axis.
    """
    axes = checks.floating(name, x).dim()
    if axes < 2:
        raise ValueError(f"{name} must have shape [..., tokens, head_dim], got {list(x.shape)}")
    if seq_dim is None:
        return x
    if not -axes <= checks.whole("seq_dim", seq_dim) < axes or seq_dim % axes == axes - 1:
        raise ValueError(
            f"seq_dim must be an axis of {name} before its channels, 0 to {axes - 2}, got {seq_dim} for shape "
            f"{list(x.shape)}"
        )
    return x.movedim(seq_dim, -2)


def tokens_back(x: Tensor, seq_dim: int | None) -> Tensor:
    """What `tokens_last` moved, where it was."""
    return x if seq_dim is None else x.movedim(-2, seq_dim)


def as_heads(x: Tensor, positions: PositionsLike) -> Tensor:
    """Queries or keys [..., T, D] as [B, H, T, D], by `Encoding.query`'s reading of their axes."""
    if x.dim() == 4:
        return x
    if x.dim() == 3 and rows_of(positions) > 1:
        return x[:, None]
    return x.reshape(-1, x.shape[-3] if x.dim() > 2 else 1, *x.shape[-2:])


def rows_of(positions: PositionsLike) -> int:
    """For how many rows of a batch positions are said."""
    if isinstance(positions, Positions):
        return max(positions.coords.shape[0], positions.order.shape[0])
    return positions.shape[0] if isinstance(positions, Tensor) and positions.dim() > 1 else 1


def shaped_like(x: Tensor, turned: Tensor) -> Tensor:
    """Heads that were turned as [B, H, T, D], with the leading axes of what was given; they may be wider."""
    return turned if turned.dim() == x.dim() else turned.reshape(*x.shape[:-1], turned.shape[-1])


def parts_of(encoding: Encoding) -> list[Encoding]:
    """The parts of a sum, or the encoding itself."""
    return encoding.parts if isinstance(encoding, Compose) else [encoding]


class Compose(Encoding):
    """Several encodings at once: `a + b`. Doors 1 to 3 of the parts apply together; at most one may open door 4.

    Parts turn queries and keys in the order in which they are written, but for those that turn queries alone: a
    temperature multiplies what the others make of the logit, wherever it is written. Biases see the query after all
    parts have turned it.

    Raises ValueError when two parts open door 4.
    """

    def __init__(self, *parts: Encoding) -> None:
        super().__init__()
        flat: list[Encoding] = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, Compose) else [part])
        rules = [str(part) for part in flat if "attend" in part.doors]
        if len(rules) > 1:
            raise ValueError(
                f"at most one encoding may replace the attention rule, got {' and '.join(rules)}; drop one of them"
            )
        self.members = nn.ModuleList(flat)
        opened = frozenset().union(*(part.doors for part in flat))
        measured = {part.axes for part in flat if "by_distance" in part.doors}
        # A distance alone no longer tells the whole bias once one part reads more, or counts other axes.
        apart = "biases" in opened or len(measured) > 1
        self.doors = (opened - {"by_distance"}) | {"biases"} if apart and "by_distance" in opened else opened
        self.axes = next(iter(measured or {part.axes for part in flat if part.axes} or {0}))
        self.per_layer = any(part.per_layer for part in flat)
        self.reads_keys = any(part.reads_keys for part in flat)
        self.needs_weights = any(part.needs_weights for part in flat)
        self.queries_together = max(part.queries_together for part in flat)
        read = [part.between for part in flat]
        self.between = None if None in read else tuple(dict.fromkeys(name for names in read for name in names or ()))
        # Which channels its parts pair is known to each of them alone: two turns might not commute.
        self.turns_twice = sum("turn" in part.doors and part.turns != "queries" for part in flat) > 1
        ways = {part.turns for part in flat if "turn" in part.doors}
        self.turns = ways.pop() if len(ways) == 1 else "each"
        self.turns_when_attending = any(part.turns_when_attending for part in flat)

    @property
    def parts(self) -> list[Encoding]:
        """The encodings that are summed."""
        return cast(list[Encoding], list(self.members))

    @property
    def rule(self) -> Encoding | None:
        """The part that opens door 4."""
        return next((part for part in self.parts if "attend" in part.doors), None)

    @property
    def moves(self) -> Moves:
        ways: set[Moves] = {part.moves for part in self.parts}
        if self.turns_when_attending:
            ways = (ways - {"exact", "never"}) | {"unturned"}
        elif self.turns_twice:
            ways.add("never")
        return next(way for way in ("recomputed", "never", "unturned", "exact") if way in ways)

    def moved(self, k: Tensor, before: Positions, after: Positions) -> Tensor:
        k = super().moved(k, before, after)
        for part in self.parts:
            k = part.moved(k, before, after)
        return k

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        for part in self.parts:
            x = part.embed(x, at)
        return x

    @property
    def turning(self) -> list[Encoding]:
        """The parts in the order in which they turn."""
        return sorted(self.parts, key=lambda part: part.turns == "queries")

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        for part in self.turning:
            x = part.turn(x, at, side)
        return x

    def turn_both(self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
        for part in self.turning:
            if "turn" in part.doors:
                q, k = part.turn_both(q, k, at, keys_at)
        return q, k

    def by_distance(self, delta: Tensor) -> Tensor | None:
        values = [of_part for part in self.parts if (of_part := part.by_distance(delta)) is not None]
        return sum(values[1:], values[0]) if values else None

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        return [bias for part in self.parts for bias in part.biases(q, at, keys)]

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        rule = self.rule
        if rule is None:
            return kernel(self, q, at, keys, mask)
        # The rule is one part's own, but the kernel that it calls adds the biases of all.
        beside = tuple(part for part in self.parts if part is not rule)
        return rule.attend(q, at, keys, mask, replace(kernel, beside=beside))

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        memo: dict[str, Tensor] = {}
        for part in self.parts:
            new = part.remember(x, at)
            if taken := memo.keys() & new.keys():
                raise ValueError(f"two parts of {self} remember {sorted(taken)}; a memo name belongs to one encoding")
            memo |= new
        return memo

    def formula_added(self, position: float, channel: int) -> float:
        return math.fsum(part.formula_added(position, channel) for part in self.parts)

    def formula_query(self, q: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        for part in self.turning:
            q = part.formula_query(q, position, head)
        return q

    def formula_key(self, k: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        for part in self.parts:
            k = part.formula_key(k, position, head)
        return k

    formula_logit = logit_of_a_pair

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        def plain(query: Token, keys: Sequence[Token]) -> list[float]:
            return [dot_product(query.vector, key.vector, scale) for key in keys]

        biases = [part for part in self.parts if part.doors & BIASES]
        reading = [part for part in biases if "biases" in part.doors]
        pairing = [part for part in self.parts if part not in biases and has_own_logits(part)]
        turning = [part for part in self.parts if part not in pairing and part not in biases]
        temperatures = [part for part in turning if part.turns == "queries"]
        for part in turning:
            if part not in temperatures:
                query = query._replace(vector=part.formula_query(query.vector, query.at, head))
                keys = [key._replace(vector=part.formula_key(key.vector, key.at, head)) for key in keys]
        if not pairing:
            added, seen, seen_keys = plain(query, keys), query, keys
        else:
            cls = type(pairing[0])
            told = cls.formula_query is not Published.formula_query
            told = told and (cls.formula_key is not Published.formula_key or not self.reads_keys)
            if len(pairing) > 1 or (reading and not told):
                # Each formula takes the query and key as they are projected; there is none for turned ones.
                raise NotImplementedError(
                    f"the formulas of {' and '.join(map(str, pairing + reading))} do not add up: "
                    f"one turns what the other reads"
                )
            added = pairing[0].formula_logits(query, keys, head, scale)
            seen = query._replace(vector=pairing[0].formula_query(query.vector, query.at, head))
            seen_keys = [key._replace(vector=pairing[0].formula_key(key.vector, key.at, head)) for key in keys]
        for part in temperatures:
            # Of a logit that is no product of what was projected, too.
            (factor,) = part.formula_query([1.0], query.at, head)
            added = [factor * logit for logit in added]
            seen = seen._replace(vector=part.formula_query(seen.vector, query.at, head))
        unbiased = plain(seen, seen_keys)
        for part in biases:
            biased = part.formula_logits(seen, seen_keys, head, scale)
            added = [t + b - u for t, b, u in zip(added, biased, unbiased, strict=True)]
        return added

    def formula_weights(self, logits: Sequence[float], query: Token, keys: Sequence[Token]) -> list[float]:
        return (self.rule or super()).formula_weights(logits, query, keys)

    def formula_value(self, v: Sequence[float], m: float, n: float, channel: int) -> float:
        return (self.rule or super()).formula_value(v, m, n, channel)

    def __repr__(self) -> str:
        return " + ".join(str(part) for part in self.parts)

    __str__ = __repr__
