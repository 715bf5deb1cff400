"""Encoding: how position enters attention, as doors that are all closed by default.

A subclass opens the doors it needs by overriding them; no layer asks an encoding for its name.
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
from posenc.encoding.formulas import Formulas, Token, dot_product, has_own_logits, logit_of_pair
from posenc.encoding.keys import Keys
from posenc.specs.words import with_named_options
from posenc.tokens.masks import Mask, MaskLike, mask_for
from posenc.tokens.positions import Positions, PositionsLike, as_positions, positions_for
from posenc.tokens.shared_tables import SharesTables

AttentionOutput: TypeAlias = tuple[Tensor, Tensor | None]
"""The output [B, H, T, E] of attention, and the weights [B, H, T, S] if requested."""

Side: TypeAlias = Literal["query", "key"]
"""Which of the two door 2 rotates."""

Moves: TypeAlias = Literal["exact", "unturned", "recomputed", "never"]
"""How a cached key follows its token to another position. exact: rotated by the difference, or independent of position;
unturned: cached before rotation; recomputed: only computed again from its token; never: it cannot move."""

WHY_FIXED = {
    "recomputed": "their keys were made of embeddings with positions added; leave them where they are, as "
    "evict(keep, renumber=False) and crop do, or feed the tokens again",
    "never": "their keys were turned in a way that no rotation by a difference takes back (Encoding.moved); leave them "
    "where they are, as evict(keep, renumber=False) and crop do, or feed the tokens again",
}
"""Why cached keys of these kinds cannot move, and what to do instead."""

DOORS = ("embed", "turn", "by_distance", "biases", "attend", "remember")
WIDTHS = ("dim", "heads", "head_dim")
"""Options that the model sets, never a spec."""

MODEL_OPTIONS = ("max_len", "trained_length", "causal")
"""Options that the model sets if a spec does not."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, for encodings that are built from a spec.

    dim       width of the model (channels)
    heads     number of query heads
    head_dim  width of one head (channels)
    max_len   the trained length (tokens): rows of a learned table, first horizon of a schedule
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
        """Return the options of an encoding that the model sets."""
        return {**vars(self), "trained_length": self.max_len}

    @classmethod
    def of(cls, dim: int, heads: int, max_len: int, causal: bool = True) -> "Shape":
        """Return the usual shape: heads of equal width that add up to the model's.

        Raises ValueError when `heads` does not divide `dim`.
        """
        if checks.whole("heads", heads) < 1 or checks.whole("dim", dim) % heads:
            limit = 1024
            divisors = [n for n in range(1, min(dim, limit) + 1) if dim % n == 0]
            prefix = "the divisors are" if dim <= limit else f"the divisors up to {limit:,} are"
            raise ValueError(f"heads must divide dim={dim}, got heads={heads}; {prefix} {divisors}")
        return cls(dim, heads, dim // heads, max_len, causal)


class Encoding(checks.ChecksArguments, SharesTables, Formulas):
    """Base of every positional encoding: the doors through which position can enter attention.

    1 `embed` adds to the embeddings; 2 `turn` rotates queries and keys; 3 `by_distance` or `biases` biases the scaled
    logits; 4 `attend` replaces the attention rule; and `remember` caches facts of each token beside k and v.
    A subclass overrides what it needs, keeps each constructor argument under its own name, and is a function of
    coordinates: never of a tensor's length, of call history, or of its neighbours in the batch.
    """

    per_layer: bool = False
    """Whether every layer has its own parameters (Shaw) or all layers share one instance (T5)."""

    axes: int = 1
    """Number of coordinates of a position; 0: any number."""

    reads_keys: bool = False
    """Whether its biases read the keys, not only their positions."""

    turns: Literal["alike", "each", "queries"] = "each"
    """What `turn` does: the same to queries and keys, something different to each, or nothing to keys."""

    needs_weights: bool = False
    """Whether `attend` reads the logits or the weights, which only some kernels return."""

    queries_together: int = 0
    """Minimum rows per block when `attend` materialises all pairs; 0 if it never does. More than 1: each block costs a
    pass over all keys. On a GPU it covers `biases` too, if their closures do more than sums and table entries."""

    turns_when_attending: bool = False
    """Whether keys are cached before rotation, and rotated by the query's declared horizon at each attention."""

    between: tuple[str, ...] | None = ()
    """Which facts of `remember` need a prefix sum over the sequence (`sums_of`). `()`: pairs are independent. None:
    other keys are read, or unknown (the default with `biases` or `attend`), so no ring attention."""

    wraps: ClassVar[tuple[str, ...]] = ()
    """For a wrapper of another encoding (its first argument, `encoding`): specs of inner ones, the usual first."""

    spec_name: ClassVar[str] = ""
    """The name in specs; the catalogue sets it to the file's name."""

    doors: frozenset[str] = frozenset()
    """The names of the open doors: those the class overrides, unless an instance closes one."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A class outside the catalogue goes by its own name, not by that of its base class.
        package, _, module = cls.__module__.rpartition(".")
        cls.spec_name = module if package.startswith("posenc.encodings") else ""
        cls.doors = frozenset(door for door in DOORS if getattr(cls, door) is not getattr(Encoding, door))
        if not vars(cls).keys().isdisjoint(("biases", "attend")) and "between" not in vars(cls):
            cls.between = None
        if "remember" in vars(cls):
            signature = inspect.signature(cls.remember)
            try:
                signature.bind(cls, "x", "at")
            except TypeError:
                raise ValueError(f"{cls.__name__} has remember{signature}, expected remember(self, x, at)") from None
        # An inherited `turn_both` would not match an overridden `turn`.
        if "turn" in vars(cls) and "turn_both" not in vars(cls):
            cls.turn_both = Encoding.turn_both

    def __init__(self) -> None:
        super().__init__()

    @property
    def moves(self) -> Moves:
        """Return how a cached key follows its token; a class that rotates keys overrides `moved`."""
        if "embed" in self.doors:
            return "recomputed"
        if self.turns_when_attending:
            return "unturned"
        says = type(self).moved is not Encoding.moved
        return "exact" if says or "turn" not in self.doors or self.turns == "queries" else "never"

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        """Return keys [B, KV, S, D], rotated by `turn` at the positions `old_at`, as rotated at `new_at`.

        Keys that were not rotated stay as they are. Raises ValueError for keys that cannot move.
        """
        if self.moves in WHY_FIXED:
            raise ValueError(f"tokens stand elsewhere, and {WHY_FIXED[self.moves]}")
        return k

    @property
    def wavelengths(self) -> Tensor | None:
        """Return the wavelength of each channel pair (positions, float64, shortest first); None without waves."""
        return None

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        """Door 1. Return x [B, T, dim] with the position of each token added, in x's dtype."""
        return x

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        """Door 2. Return queries [B, H, T, D] or keys [B, KV, S, D], named by `side`, rotated by their positions."""
        return x

    def turn_both(self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
        """Door 2 for both: return queries and keys, rotated."""
        return self.turn(q, at, "query"), self.turn(k, keys_at, "key")

    def by_distance(self, delta: Tensor) -> Tensor | None:
        """Door 3. Return the bias [H, ...] at signed distances delta [...]: query coordinate minus key coordinate.

        An encoding that reads several axes gets delta [..., A].
        """
        return None

    def biases(self, q: Tensor | None, at: Positions, keys: Keys) -> list[Bias]:
        """Door 3 beyond a distance. Return the biases of queries [B, H, T, D] on keys.

        The default wraps `by_distance`, and needs no queries.
        """
        if "by_distance" not in self.doors:
            return []
        return [ByDistance(self, at, keys.at, None if q is None else q.shape[1])]

    def attend(self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel) -> AttentionOutput:
        """Door 4. The attention rule: return the output [B, H, T, D], and the weights if the kernel needs them."""
        return kernel(self, q, at, keys, mask)

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        """Return facts of tokens [B, heads or 1, T, ...] to cache beside k and v. Names are the encoding's own."""
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
        """Apply the encoding by itself to embeddings [..., T, dim], or to heads [..., T, D].

        Call `encoding(x)` or `q, k = encoding(q, k)`. Positions are Positions, a tensor [T], [B, T] or [B, T, A], an
        int or an offset (position of the first token; one for each row as a tensor [B]), or None (0, 1, 2, ...). A
        token decoded alone is not at 0: give its position or offset. `seq_dim` is the axis of the tokens if it is not
        the one before the channels: 0 for embeddings [T, B, dim], as in nn.Transformer, and 1 for heads [B, T, H, D],
        where heads would else be taken for tokens. Heads are as in `query`; one tensor may be rotated alone if queries
        and keys are rotated alike. No argument is changed in place.
        """
        turns = "turn" in self.doors
        if k is None and "embed" in self.doors:
            if checks.floating("x", x).dim() < 3:
                raise ValueError(f"x must have shape [batch, tokens, dim], got {list(x.shape)}")
            rows = tokens_last("x", x, seq_dim)
            at = positions_for(rows.shape[-2], positions, offset, batch=math.prod(rows.shape[:-2]), device=x.device)
            embeddings = self.embed(rows.reshape(-1, *rows.shape[-2:]), at)
            return tokens_back(embeddings.reshape(rows.shape), seq_dim)
        if not turns:
            if k is not None and not k.is_floating_point():
                raise ValueError(
                    f"positions are given by name beside embeddings, as encoding(x, positions=...); got "
                    f"{checks.display(k)}"
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
        """Return queries [..., T, D] rotated by their positions, in a new tensor.

        Heads are the last axis before the tokens: [T, D], [H, T, D], [B, H, T, D], after more axes of a batch; or
        [B, T, D] with positions of several rows. Positions and seq_dim are as in `forward`.
        Raises ValueError for another shape, and positions that do not fit.
        """
        return turn_one(self, q, positions, offset, seq_dim, "query")

    @with_named_options
    def key(
        self, k: Tensor, positions: PositionsLike = None, *, offset: int | Tensor = 0, seq_dim: int | None = None
    ) -> Tensor:
        """Return keys [..., S, D] rotated by their positions, in a new tensor; otherwise as `query`."""
        return turn_one(self, k, positions, offset, seq_dim, "key")

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
        """Return door 3 as a tensor [1 or B, H, T, S] for SDPA's attn_mask. Hidden keys have -inf.

        Positions are Positions, a tensor of ids, or an int: that many tokens from 0. `keys_at` defaults to `at`, and
        `dtype` to that of q or of the parameters, else float32; for half precision queries give SDPA their dtype.
        Biases that read the query (Shaw) need q [B, H, T, D]; those that read the keys need k [B, KV, S, D]; of
        [B, T, H, D] with seq_dim=1.
        Raises ValueError when the encoding has no bias, and when the q or k that it reads are missing.
        """
        for name, given in (("q", q), ("k", k)):
            if given is not None and checks.floating(name, given).dim() != 4:
                raise ValueError(f"{name} must have shape [batch, heads, tokens, head_dim], got {list(given.shape)}")
        if seq_dim is not None and q is None and k is None:
            raise ValueError("seq_dim is the axis of the tokens in q and k, and neither was given; leave it out")
        q, k = (None if x is None else tokens_last(name, x, seq_dim) for name, x in (("q", q), ("k", k)))
        checks.kind("causal", causal, bool), checks.kind("dtype", dtype, torch.dtype | None)
        at = as_positions(at)
        keys_at = at if keys_at is None else as_positions(keys_at)
        if not self.doors & BIASES:
            raise ValueError(f"{self} has no bias; it opens {sorted(self.doors) or 'no door'}")
        if "biases" in self.doors and q is None:
            raise ValueError(f"the bias of {self} reads the queries; give q of shape [B, H, T, D]")
        if any({"remember", "biases"} <= part.doors for part in parts_of(self)):
            raise ValueError(f"the bias of {self} reads what it remembers of tokens; use it in Attention")
        if self.reads_keys and k is None:
            raise ValueError(f"the bias of {self} reads the keys; give k of shape [B, KV, S, D]")
        rule, mask_bias = mask_for(mask, causal=causal).split()
        zero = torch.zeros(1, 1, 1, 1, device=at.order.device)
        dtype = dtype or next((tensor.dtype for tensor in (q, *self.parameters()) if tensor is not None), zero.dtype)
        if k is None:
            k = (zero if q is None else q[:, :, :1]).expand(-1, -1, keys_at.tokens, -1)
        values = total(self.biases(q, at, Keys(k, k, keys_at)), dtype)
        assert values is not None
        if rule.causal or rule.window or rule.tensor is not None or not (at.contiguous and keys_at.contiguous):
            values = values.masked_fill(~rule.allowed(at, keys_at).to(values.device), -torch.inf)
        return values if mask_bias is None else values + mask_bias.to(values.dtype)

    def __repr__(self) -> str:
        """Return the spec, which `posenc.build` reads back."""
        parameters = inspect.signature(type(self).__init__).parameters
        # An option left out that the model sets would take the value of the next model.
        options = {n: v for n, v in spec_options(self).items() if n in MODEL_OPTIONS or v != parameters[n].default}
        inner_spec = [repr(self.encoding)] if "encoding" in parameters else []
        arguments = ", ".join([*inner_spec, *(f"{name}={value!r}" for name, value in options.items())])
        name = self.spec_name or type(self).__name__
        return f"{name}({arguments})" if arguments else name

    __str__ = __repr__

    def __add__(self, other: "Encoding") -> "Compose":
        return Compose(self, other)


def spec_options(encoding: Encoding) -> dict[str, Any]:
    """Return the constructor's options and values, except those that the model sets (widths, heads, device)."""
    return constructor_arguments(encoding, but=("encoding", *WIDTHS))


def constructor_arguments(encoding: Encoding, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the constructor's arguments by name, without device, dtype and those of `but`."""
    names = inspect.signature(type(encoding).__init__).parameters
    return {name: getattr(encoding, name) for name in names if name not in ("self", "device", "dtype", *but)}


def turn_one(
    encoding: Encoding, x: Tensor, positions: PositionsLike, offset: int | Tensor, seq_dim: int | None, side: Side
) -> Tensor:
    """Return one tensor of any leading axes, rotated by door 2 at the caller's positions."""
    x = tokens_last("q" if side == "query" else "k", x, seq_dim)
    heads = as_heads(x, positions)
    at = positions_for(heads.shape[2], positions, offset, batch=heads.shape[0], device=x.device)
    return tokens_back(shaped_like(x, encoding.turn(heads, at, side)), seq_dim)


def tokens_last(name: str, x: Tensor, seq_dim: int | None) -> Tensor:
    """Return the tensor as [..., T, D], with the tokens moved from axis `seq_dim`.

    Raises ValueError if there is no such axis.
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
    """Return the tensor with its tokens back on axis `seq_dim`."""
    return x if seq_dim is None else x.movedim(-2, seq_dim)


def as_heads(x: Tensor, positions: PositionsLike) -> Tensor:
    """Return queries or keys [..., T, D] as [B, H, T, D]; see `Encoding.query` for their axes."""
    if x.dim() == 4:
        return x
    if x.dim() == 3 and batch_size(positions) > 1:
        return x[:, None]
    return x.reshape(-1, x.shape[-3] if x.dim() > 2 else 1, *x.shape[-2:])


def batch_size(positions: PositionsLike) -> int:
    """Return the number of rows of a batch in these positions."""
    if isinstance(positions, Positions):
        return max(positions.coords.shape[0], positions.order.shape[0])
    return positions.shape[0] if isinstance(positions, Tensor) and positions.dim() > 1 else 1


def shaped_like(x: Tensor, heads: Tensor) -> Tensor:
    """Return heads [B, H, T, D] with the leading axes of x; they may be wider."""
    return heads if heads.dim() == x.dim() else heads.reshape(*x.shape[:-1], heads.shape[-1])


def parts_of(encoding: Encoding) -> list[Encoding]:
    """Return the parts of a sum, or the encoding itself."""
    return encoding.parts if isinstance(encoding, Compose) else [encoding]


class Compose(Encoding):
    """Several encodings at once: `a + b`. Doors 1 to 3 of the parts apply together; at most one may open door 4.

    Parts rotate queries and keys in the order of the sum, except those that change queries alone, which come last: a
    temperature multiplies the logit of the others. Biases read the query after all rotations.

    Raises ValueError when two parts open door 4.
    """

    def __init__(self, *parts: Encoding) -> None:
        super().__init__()
        members: list[Encoding] = []
        for part in parts:
            members.extend(part.parts if isinstance(part, Compose) else [part])
        rules = [str(part) for part in members if "attend" in part.doors]
        if len(rules) > 1:
            raise ValueError(
                f"at most one encoding may replace the attention rule, got {' and '.join(rules)}; drop one of them"
            )
        self.members = nn.ModuleList(members)
        doors = frozenset().union(*(part.doors for part in members))
        distance_axes = {part.axes for part in members if "by_distance" in part.doors}
        # `by_distance` does not cover the whole bias once one part reads more, or other axes.
        needs_biases = "biases" in doors or len(distance_axes) > 1
        self.doors = (doors - {"by_distance"}) | {"biases"} if needs_biases and "by_distance" in doors else doors
        self.axes = next(iter(distance_axes or {part.axes for part in members if part.axes} or {0}))
        self.per_layer = any(part.per_layer for part in members)
        self.reads_keys = any(part.reads_keys for part in members)
        self.needs_weights = any(part.needs_weights for part in members)
        self.queries_together = max(part.queries_together for part in members)
        names = [part.between for part in members]
        self.between = None if None in names else tuple(dict.fromkeys(name for names in names for name in names or ()))
        # Two rotations may pair different channels, and might not commute.
        self.turns_twice = sum("turn" in part.doors and part.turns != "queries" for part in members) > 1
        ways = {part.turns for part in members if "turn" in part.doors}
        self.turns = ways.pop() if len(ways) == 1 else "each"
        self.turns_when_attending = any(part.turns_when_attending for part in members)

    @property
    def parts(self) -> list[Encoding]:
        """Return the encodings of the sum."""
        return cast(list[Encoding], list(self.members))

    @property
    def rule(self) -> Encoding | None:
        """Return the part that opens door 4."""
        return next((part for part in self.parts if "attend" in part.doors), None)

    @property
    def moves(self) -> Moves:
        ways: set[Moves] = {part.moves for part in self.parts}
        if self.turns_when_attending:
            ways = (ways - {"exact", "never"}) | {"unturned"}
        elif self.turns_twice:
            ways.add("never")
        return next(way for way in ("recomputed", "never", "unturned", "exact") if way in ways)

    def moved(self, k: Tensor, old_at: Positions, new_at: Positions) -> Tensor:
        k = super().moved(k, old_at, new_at)
        for part in self.parts:
            k = part.moved(k, old_at, new_at)
        return k

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        for part in self.parts:
            x = part.embed(x, at)
        return x

    @property
    def turning_parts(self) -> list[Encoding]:
        """Return the parts in the order in which they rotate."""
        return sorted(self.parts, key=lambda part: part.turns == "queries")

    def turn(self, x: Tensor, at: Positions, side: Side) -> Tensor:
        for part in self.turning_parts:
            x = part.turn(x, at, side)
        return x

    def turn_both(self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
        for part in self.turning_parts:
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
        # The rule belongs to one part, but the kernel that it calls adds the biases of all.
        other_parts = tuple(part for part in self.parts if part is not rule)
        return rule.attend(q, at, keys, mask, replace(kernel, other_parts=other_parts))

    def remember(self, x: Tensor, at: Positions) -> dict[str, Tensor]:
        memo: dict[str, Tensor] = {}
        for part in self.parts:
            new = part.remember(x, at)
            if common := memo.keys() & new.keys():
                raise ValueError(f"two parts of {self} remember {sorted(common)}; a memo name belongs to one encoding")
            memo |= new
        return memo

    def formula_added(self, position: float, channel: int) -> float:
        return math.fsum(part.formula_added(position, channel) for part in self.parts)

    def formula_query(self, q: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        for part in self.turning_parts:
            q = part.formula_query(q, position, head)
        return q

    def formula_key(self, k: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        for part in self.parts:
            k = part.formula_key(k, position, head)
        return k

    formula_logit = logit_of_pair

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        def products(query: Token, keys: Sequence[Token]) -> list[float]:
            return [dot_product(query.vector, key.vector, scale) for key in keys]

        biases = [part for part in self.parts if part.doors & BIASES]
        content_biases = [part for part in biases if "biases" in part.doors]
        pair_parts = [part for part in self.parts if part not in biases and has_own_logits(part)]
        turn_parts = [part for part in self.parts if part not in pair_parts and part not in biases]
        temperatures = [part for part in turn_parts if part.turns == "queries"]
        for part in turn_parts:
            if part not in temperatures:
                query = query._replace(vector=part.formula_query(query.vector, query.at, head))
                keys = [key._replace(vector=part.formula_key(key.vector, key.at, head)) for key in keys]
        if not pair_parts:
            logits, turned_query, turned_keys = products(query, keys), query, keys
        else:
            cls = type(pair_parts[0])
            is_turned = cls.formula_query is not Formulas.formula_query
            is_turned = is_turned and (cls.formula_key is not Formulas.formula_key or not self.reads_keys)
            if len(pair_parts) > 1 or (content_biases and not is_turned):
                # Each formula takes the projected query and key; there is none for rotated ones.
                raise NotImplementedError(
                    f"the formulas of {' and '.join(map(str, pair_parts + content_biases))} do not add up: "
                    f"one turns what the other reads"
                )
            logits = pair_parts[0].formula_logits(query, keys, head, scale)
            turned_query = query._replace(vector=pair_parts[0].formula_query(query.vector, query.at, head))
            turned_keys = [key._replace(vector=pair_parts[0].formula_key(key.vector, key.at, head)) for key in keys]
        for part in temperatures:
            # Temperatures also scale logits that are no plain product.
            (factor,) = part.formula_query([1.0], query.at, head)
            logits = [factor * logit for logit in logits]
            turned_query = turned_query._replace(vector=part.formula_query(turned_query.vector, query.at, head))
        plain_logits = products(turned_query, turned_keys)
        for part in biases:
            part_logits = part.formula_logits(turned_query, turned_keys, head, scale)
            logits = [t + b - u for t, b, u in zip(logits, part_logits, plain_logits, strict=True)]
        return logits

    def formula_weights(self, logits: Sequence[float], query: Token, keys: Sequence[Token]) -> list[float]:
        return (self.rule or super()).formula_weights(logits, query, keys)

    def formula_value(self, v: Sequence[float], m: float, n: float, channel: int) -> float:
        return (self.rule or super()).formula_value(v, m, n, channel)

    def __repr__(self) -> str:
        return " + ".join(str(part) for part in self.parts)

    __str__ = __repr__
