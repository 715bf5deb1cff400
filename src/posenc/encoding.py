"""Encoding: how position enters attention, as doors that are all closed by default.

A subclass opens the doors it needs by overriding them; nobody asks an encoding for its name.
"""

import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.foreign import quoted
from posenc.kept_tables import KEPT, KeptTables
from posenc.masks import Mask, MaskLike, check_mask, mask_for
from posenc.positions import Positions, PositionsLike, distance, positions_for
from posenc.watched import is_watched

Own = TypeVar("Own", bound="Encoding")
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

DOORS = ("embed", "query", "key", "by_distance", "score_mod", "attend", "remember")
TURNING = ("query", "key")


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

    @classmethod
    def of(cls, dim: int, heads: int, max_len: int, causal: bool = True) -> "Shape":
        """The usual shape: heads of equal width that together make up the model's.

        Raises ValueError when `heads` does not divide `dim`.
        """
        if checks.whole("heads", heads) < 1 or checks.whole("dim", dim) % heads:
            raise ValueError(f"heads must divide dim={dim}, got heads={heads}; {divisors_in_words(dim)}")
        return cls(dim, heads, dim // heads, max_len, causal)


def divisors_in_words(number: int) -> str:
    """The divisors of a number as an error names them: of a very large one, those up to 1,024."""
    most = 1024
    found = [n for n in range(1, min(number, most) + 1) if number % n == 0]
    return f"the divisors are {found}" if number <= most else f"the divisors up to {most:,} are {found}"


class Projections(NamedTuple):
    """Attention's own projections, each from [B, T, dim] to [B, heads, T, head_dim]."""

    query: Callable[[Tensor], Tensor]
    key: Callable[[Tensor], Tensor]
    value: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Keys:
    """What is remembered of the tokens one may attend to.

    k, v   [B, KV, S, D]     keys and values; KV divides the number of query heads
    at     Positions of the S tokens; order -1 marks an empty cache slot
    memo   name -> [B, heads or 1, S, ...]   what encodings asked to remember of each token
    own    name -> [B, heads or 1, T, ...]   the same facts of the query tokens themselves
    """

    k: Tensor
    v: Tensor
    at: Positions
    memo: Mapping[str, Tensor] = field(default_factory=dict)
    own: Mapping[str, Tensor] = field(default_factory=dict)


class Products(NamedTuple):
    """A bias as dot products: bias(i, j) = asked_i . vectors[m_i - n_j] + of_keys_j, in float32 at least.

    asked    [B, H, T, C]        what each query is multiplied with
    vectors  [1 or H, R, C]      the vector of each distance that was asked for
    of_keys  [B, H, S]           what is added for each key, wherever the query is; None where that is nothing
    """

    asked: Tensor
    vectors: Tensor
    of_keys: Tensor | None = None


class Token(NamedTuple):
    """One query or key of one head, in scalars, as the published formulas see it.

    vector  its query or key (channels)
    at      its coordinate, or one for each axis when there are several
    order   its place in the sequence
    memo    what the encoding remembers of it: name -> a number, or a list of them
    length  the declared horizon of its sequence, if there is one
    """

    vector: Sequence[float]
    at: Any
    order: int
    memo: Mapping[str, Any] = {}
    length: float | None = None


class Encoding(nn.Module):
    """Base of every positional encoding: the doors through which position can enter attention.

    1 `embed` adds to the embeddings; 2 `query` and `key` turn queries and keys; 3 `by_distance` or `score_mod` biases
    the scaled logits; 4 `attend` replaces the attention rule; and `remember` keeps facts of each token beside k and v.
    A subclass overrides what it needs, keeps each constructor argument under its own name, and is a function of
    coordinates: never of a tensor's length, of call history, or of its neighbours in the batch.
    """

    per_layer: bool = False
    """Whether every layer has parameters of its own (Shaw) or all layers share one instance (T5)."""

    axes: int = 1
    """How many coordinates a position has for this encoding; 0 stands for any number."""

    reads_keys: bool = False
    """Whether `score_mod` reads the keys themselves, and not only where they are."""

    fuses: bool = True
    """Whether `score_mod` is made of sums and entries of tables alone, which is what a fused GPU kernel can take in."""

    reads_between: bool = True
    """Whether `score_mod` may read, for a query and a key, the keys between the two as well, and so is given them. Say
    False where each pair stands alone: it then costs less in blocks."""

    turns_when_attending: bool = False
    """Whether keys are cached unturned, and turned with the query's declared horizon when they are attended to."""

    same_beyond: int | None = None
    """The distance (whole positions) from which on, either way, `products` gives the same vector; None where it never
    does."""

    wraps: ClassVar[tuple[str, ...]] = ()
    """For an encoding around another (its first argument, `encoding`): specs of such, the usual one first."""

    source: ClassVar[str] = ""
    """Where the encoding was published: authors, year, arXiv id and section."""

    also_called: ClassVar[tuple[str, ...]] = ()
    """Other names by which people look for it: a wrong name in a spec is answered with the right one."""

    extrapolates: ClassVar[str] = ""
    """Beyond the trained length: what is claimed, and what was found."""

    used_by: ClassVar[str] = ""
    """Released models that use it."""

    gaps: Mapping[str, str] = {}
    """Known gaps: the name of a promise in `posenc.testing` -> why this encoding does not keep it."""

    spec_name: ClassVar[str] = ""
    """The name in specs; the catalogue sets it to the file's name."""

    doors: frozenset[str] = frozenset()
    """The names of the doors that are open: those the class overrides, unless an instance closes one."""

    kept_tables: KeptTables = KEPT
    """Where rows of its tables are kept: with those of all others, for the whole process."""

    bare: "Encoding | None" = None
    """The encoding without all that may change unseen, which names its tables; made when the first is asked for."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A class outside the catalogue goes by its own name, not by that of the class it was made from.
        package, _, module = cls.__module__.rpartition(".")
        cls.spec_name = module if package == "posenc.encodings" else ""
        cls.doors = frozenset(door for door in DOORS if getattr(cls, door) is not getattr(Encoding, door))

    def __new__(cls: type[Own], *given: Any, **named: Any) -> Own:
        """Raises ValueError unless the constructor's arguments are of the kinds that they are annotated with."""
        try:
            checks.arguments(cls.__init__, (None, *given), named)
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None
        return super().__new__(cls)

    def __init__(self) -> None:
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        if "_modules" not in vars(self) and vars(self):
            raise AttributeError(f"a table is computed from {type(self).__name__}, and may not set its {name}")
        super().__setattr__(name, value)
        # Another option makes other tables.
        vars(self).pop("bare", None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        vars(self).pop("bare", None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("bare", "kept_tables")}

    @property
    def wavelengths(self) -> Tensor | None:
        """The wavelength of each channel pair (positions, float64, shortest first), for encodings made of waves."""
        return None

    @property
    def needs_weights(self) -> bool:
        """Whether `attend` reads the logits or the weights, so that only kernels that give them will do."""
        return False

    @property
    def reads_pairs(self) -> bool:
        """Whether `attend` computes something for every pair of tokens: then few queries at a time take less memory."""
        return self.needs_weights

    @property
    def has_own_logits(self) -> bool:
        """Whether queries meet keys otherwise than by scale * q . k, before any bias."""
        cls = type(self)
        formulas = (cls.formula_logit, cls.formula_logits) != (Encoding.formula_logit, Encoding.formula_logits)
        return "key" in self.doors or ("attend" in self.doors and formulas)

    def once(self, make: MethodType, at: Positions, *given: Hashable, keep: bool = False) -> Tensor:
        """The table `make(at, *given)`, computed once for all layers that ask with these positions.

        `make` is a method of this encoding, and what is given besides positions is plain: dtypes, devices, numbers. The
        table is known by the class, by every constant that the encoding holds, and by what is given; and `make` sees a
        copy that holds nothing else, so that no option can be forgotten. What reads a parameter, a module, or an object
        that could change unseen is computed at every call.

        keep  whether rows are kept beyond this forward pass where tokens count up from a known start, so that a decoded
              token finds its own. `make` then gives [..., T, columns] and computes each row by itself. On the CPU only:
              elsewhere a table may belong to one stream, or to a graph that is being captured
        """
        # A constant that is a tensor may be without numbers under somebody's mode, and only this encoding's own is so.
        if torch.compiler.is_compiling() or is_watched():
            return make(at, *given)
        if getattr(make, "__self__", None) is not self:
            raise ValueError(f"{self} asked for a table by {make}; give a method of the encoding that asks")
        try:
            bare = self.bare
            if bare is None:
                vars(self)["bare"] = bare = self.kept_tables.bare_of(self)
            method = make.__func__
            key = bare, method, given
            if keep and (start := at.start) is not None:
                rows = self.kept_tables.rows(key, start, at.tokens, lambda at: method(bare, at, *given))
                if rows is not None:
                    return rows
            return at.once(key, lambda: method(bare, at, *given))
        except AttributeError:
            return make(at, *given)

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        """Door 1. x [B, T, dim] with the position of each token added, in x's dtype."""
        return x

    def embed_in_place(self, x: Tensor, at: Positions) -> Tensor:
        """Door 1 for a caller who owns x and does not read it again: x may be overwritten."""
        return self.embed(x, at)

    def query(self, q: Tensor, at: Positions) -> Tensor:
        """Door 2. The queries [B, H, T, D] turned by their own positions, in their dtype."""
        return q

    def key(self, k: Tensor, at: Positions) -> Tensor:
        """Door 2. The keys [B, KV, S, D] turned by their own positions, in their dtype."""
        return k

    def turn(
        self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions, *, in_place: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Door 2 for queries and keys in one call.

        `in_place` allows to overwrite them: only for a caller who owns both, and reads neither again.
        """
        return self.query(q, at), self.key(k, keys_at)

    def by_distance(self, delta: Tensor) -> Tensor | None:
        """Door 3. The bias [H, ...] at signed distances delta [...]: query coordinate minus key coordinate.

        An encoding that reads several axes gets delta [..., A].
        """
        return None

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod | None:
        """Door 3. A closure (score, b, h, i, j) -> score as FlexAttention has it, where a distance is not enough.

        It must be elementwise in its index tensors. `score` is a scaled logit. The default is derived from
        `by_distance`.
        """
        if "by_distance" not in self.doors:
            return None
        m, n = at.coordinates(self.axes, self), keys.at.coordinates(self.axes, self)
        # Positions that a batch shares need one evaluation, not one for each row.
        shared = m.shape[0] == n.shape[0] == 1
        if not shared:
            m, n = (coords.expand(q.shape[0], *coords.shape[1:]) for coords in (m, n))

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            values = self.by_distance(m[0, i] - n[0, j] if shared else m[b, i] - n[b, j])
            assert values is not None
            self.check_heads(values, q)
            return score + of_heads(values, h).to(score.dtype)

        return score_mod

    def prepare(self, q: Tensor, at: Positions, keys: Keys) -> Keys:
        """The keys with what `score_mod` would compute of every token by itself, in `memo` (keys) and `own` (queries).

        A kernel that asks for the bias block by block prepares once. `score_mod` gives the same for keys that nobody
        prepared.
        """
        return keys

    def products(self, q: Tensor, at: Positions, keys: Keys, distances: range) -> Products | None:
        """Door 3 as dot products with a vector for each of these distances, where `score_mod` is that; else None.

        Kernels ask it for tokens in a row, whose distances are few; it holds for whole distances only.
        """
        return None

    def levels(self, keys: Keys) -> tuple[Tensor, Tensor] | None:
        """Door 3 as a difference of levels, [B, H, T] of queries and [B, H, S] of prepared keys, float64 where it can.

        The bias of a key that comes no later than its query in the same document is the query's level minus the key's.
        None where it is no such difference; what other keys get is for `score_mod` to say.
        """
        return None

    def key_row(self, at: Positions, keys: Keys) -> Tensor | None:
        """Door 3 as one number for each prepared key, [1 or B, H, S] in float64 where it can; the default takes levels.

        It is right where queries see no key that comes after them, and up to a number for each query, which the softmax
        ignores. None where the bias is no such thing.
        """
        levels = self.levels(keys)
        return None if levels is None else -levels[1]

    def attend(
        self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: "BoundKernel"
    ) -> tuple[Tensor, Tensor | None]:
        """Door 4. The attention rule: the output [B, H, T, D] and the weights if the kernel was asked for them."""
        return kernel(self, q, at, keys, mask)

    def remember(self, x: Tensor, at: Positions, project: Projections) -> dict[str, Tensor]:
        """The pocket: per-token facts [B, heads or 1, T, ...] kept beside k and v, under this encoding's own names."""
        return {}

    def formula_added(self, position: float, channel: int) -> float:
        """As published, in scalars: what is added to one channel of the embedding of a token at `position`."""
        return 0.0

    def formula_query(self, q: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        """As published, in scalars: a head's query at `position` as the biases beside this encoding see it."""
        return q

    def formula_key(self, k: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        """As published, in scalars: a head's key at `position` as the biases beside this encoding see it."""
        return k

    def formula_logit(
        self, q: Sequence[float], k: Sequence[float], m: float, n: float, head: int, scale: float
    ) -> float:
        """As published, in scalars: the logit of a query at m on a key at n; plain attention has scale * q . k.

        Positions are tuples for an encoding that reads several axes.
        """
        return scale * math.fsum(a * b for a, b in zip(q, k, strict=True))

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        """As published, in scalars: the logits of a query on the keys that it may see, where one pair is not enough."""
        return [self.formula_logit(query.vector, key.vector, query.at, key.at, head, scale) for key in keys]

    def formula_weights(self, logits: Sequence[float], query: Token, keys: Sequence[Token]) -> list[float]:
        """As published, in scalars: the weights that the attention rule makes of the logits; the softmax."""
        weights = [math.exp(logit - max(logits)) for logit in logits]
        return [weight / math.fsum(weights) for weight in weights]

    def formula_value(self, v: Sequence[float], m: float, n: float, channel: int) -> float:
        """As published, in scalars: one channel of the value that a key at n hands to a query at m."""
        return v[channel]

    def forward(
        self, x: Tensor, k: Tensor | None = None, *, positions: PositionsLike = None, offset: int = 0
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Use it alone: `encoding(x)` on embeddings [B, T, dim], `q, k = encoding(q, k)` on heads [B, H, T, D].

        Positions are Positions, a tensor [T], [B, T] or [B, T, A], an int or an offset (where the first token is), or
        nothing (0, 1, 2, ...). A token decoded alone is not at 0: give its position or offset. Nothing given is changed
        in place.
        """
        axes, shape = (3, "[batch, tokens, dim]") if k is None else (4, "[batch, heads, tokens, head_dim]")
        for name, given in (("x", x), ("k", k)):
            if given is None and name == "k":
                continue
            if (heads := checks.floating(name, given)).ndim != axes:
                raise ValueError(f"{name} must have shape {shape}, got {list(heads.shape)}")
        checks.one_device(x=x, k=k)
        if k is None:
            if "embed" not in self.doors:
                raise ValueError(f"{self} adds nothing to embeddings; it opens {sorted(self.doors) or 'no door'}")
            return self.embed(x, positions_for(x.shape[1], positions, offset, batch=x.shape[0], device=x.device))
        if self.doors.isdisjoint(TURNING):
            raise ValueError(f"{self} does not turn queries and keys; it opens {sorted(self.doors) or 'no door'}")
        batch, _, tokens, _ = x.shape
        if tokens != k.shape[2]:
            raise ValueError(
                f"one call turns queries and keys of the same tokens, got {tokens} and {k.shape[2]} of them; "
                f"for cross-attention call query(q, at) and key(k, keys_at)"
            )
        at = positions_for(tokens, positions, offset, batch=batch, device=x.device)
        return self.turn(x, k, at, at)

    def bias(
        self,
        at: Positions | Tensor | int,
        keys_at: Positions | Tensor | int | None = None,
        *,
        q: Tensor | None = None,
        k: Tensor | None = None,
        causal: bool = False,
        mask: MaskLike = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Door 3 as a tensor [1 or B, H, T, S], ready for SDPA's attn_mask; -inf where the mask forbids.

        Positions are Positions, a tensor of ids, or an int: that many tokens from 0. `keys_at` defaults to `at`.
        Biases that read the query (Shaw) need q [B, H, T, D]; those that read the keys need k [B, KV, S, D].
        Raises ValueError when the encoding has no bias, and when the q or k that it reads are missing.
        """
        for name, given in (("q", q), ("k", k)):
            if given is not None and checks.floating(name, given).dim() != 4:
                raise ValueError(f"{name} must have shape [batch, heads, tokens, head_dim], got {list(given.shape)}")
        checks.kind("causal", causal, bool), checks.kind("dtype", dtype, torch.dtype | None)
        at = placed(at)
        keys_at = at if keys_at is None else placed(keys_at)
        if not self.doors & {"by_distance", "score_mod"}:
            raise ValueError(f"{self} has no bias; it opens {sorted(self.doors) or 'no door'}")
        if "score_mod" in self.doors and q is None:
            raise ValueError(f"the bias of {self} reads the queries; give q of shape [B, H, T, D]")
        if any({"remember", "score_mod"} <= part.doors for part in parts_of(self)):
            raise ValueError(f"the bias of {self} reads what it remembers of tokens; use it in Attention")
        if self.reads_keys and k is None:
            raise ValueError(f"the bias of {self} reads the keys; give k of shape [B, KV, S, D]")
        rule = mask_for(mask)
        rule = replace(rule, causal=True) if causal else rule
        nothing = torch.zeros(1, 1, 1, 1, device=at.order.device)
        dtype = dtype or next((tensor.dtype for tensor in (q, *self.parameters()) if tensor is not None), nothing.dtype)
        if k is None:
            k = (nothing if q is None else q[:, :, :1]).expand(-1, -1, keys_at.tokens, -1)
        values = self.dense_bias(q, at, Keys(k, k, keys_at), dtype)
        assert values is not None
        if rule.causal or rule.window or rule.given is not None or not (at.contiguous and keys_at.contiguous):
            values = values.masked_fill(~rule.allowed(at, keys_at).to(values.device), -torch.inf)
        added = rule.added(at, keys_at)
        return values if added is None else values + added.to(values.dtype)

    def dense_bias(self, q: Tensor | None, at: Positions, keys: Keys, dtype: torch.dtype) -> Tensor | None:
        """Door 3 as a tensor [1 or B, H, T, S] without any mask, or None where it is closed."""
        if "score_mod" in self.doors:
            assert q is not None
            modify = self.score_mod(q, at, keys)
            assert modify is not None
            zero = q.new_zeros((q.shape[0], q.shape[1], at.tokens, keys.at.tokens), dtype=dtype)
            return modify(zero, *index_grids(zero))
        if "by_distance" not in self.doors:
            return None
        if at is keys.at and at.contiguous and at.unit_step and self.axes <= 1:
            # T tokens in a row are only 2 T - 1 distances apart; a gather spreads them into the matrix. (Unfold would
            # too, but it compiles anew for every length, and its gradient is slower.)
            T = at.tokens
            token = torch.arange(T, device=at.order.device)
            delta = torch.arange(T - 1, -T, -1, device=at.order.device)
            vector = self.by_distance(delta if self.axes == 1 else delta[:, None])  # [H, 2T-1]
            assert vector is not None
            self.check_heads(vector, q)
            index = (T - 1 - token[:, None] + token).expand(vector.shape[0], T, T)
            return vector.to(dtype)[:, None].expand(-1, T, -1).gather(-1, index)[None]  # [1, H, T, T]
        values = self.by_distance(distance(at, keys.at, self, self.axes))  # [H, B or 1, T, S]
        assert values is not None
        self.check_heads(values, q)
        return values.movedim(0, 1).to(dtype)

    def check_head_dim(self, x: Tensor, head_dim: int) -> None:
        """Raises ValueError unless heads [B, H, T, D] have the width (channels) that the encoding was built for."""
        if x.shape[-1] != head_dim:
            raise ValueError(
                f"heads must have {head_dim} channels, got {x.shape[-1]}; build {type(self).__name__}({x.shape[-1]})"
            )

    def check_heads(self, values: Tensor, q: Tensor | None) -> None:
        """Raises ValueError unless a bias [H, ...] has a row for each query head: one row would broadcast unseen."""
        if q is None or values.shape[:1] == q.shape[1:2]:
            return
        heads = q.shape[1]
        if values.dim() < 2:
            raise ValueError(
                f"{self} gave a bias of shape {list(values.shape)}, expected [{heads}, ...]: an axis of {heads} heads, "
                f"then those of the distances, as in values.expand({heads}, *delta.shape)"
            )
        raise ValueError(f"{self} has a bias for {values.shape[0]} heads, got queries of {heads}; build it for {heads}")

    def options(self) -> dict[str, Any]:
        """The constructor's options and their values, without what the model decides (its widths, heads, device)."""
        return {
            name: getattr(self, name)
            for name in inspect.signature(type(self).__init__).parameters
            if name not in ("self", "encoding", "dim", "heads", "head_dim", "device", "dtype")
        }

    def __repr__(self) -> str:
        """The spec: what `posenc.build` reads back."""
        parameters = inspect.signature(type(self).__init__).parameters
        # Left out, an option that is also a field of Shape would be filled in from the next model, whatever it was
        # here.
        decided = ("max_len", "causal")
        changed = {n: value for n, value in self.options().items() if n in decided or value != parameters[n].default}
        wrapped = [repr(self.encoding)] if "encoding" in parameters else []
        inside = ", ".join([*wrapped, *(f"{name}={value!r}" for name, value in changed.items())])
        name = self.spec_name or type(self).__name__
        return f"{name}({inside})" if inside else name

    __str__ = __repr__

    def __add__(self, other: "Encoding") -> "Compose":
        return Compose(self, other)


@dataclass(frozen=True)
class BoundKernel:
    """A kernel with what one attention layer asks of it, as door 4 gets it.

    kernel          the kernel's function
    logits_on_grid  (encoding, q, at, keys, mask, scale) -> [B, H, T, S], for other rules than the softmax
    take_values     (weights [B, H, T, S], v, dropout) -> (output, the weights as applied)
    scale           factor of the logits
    dropout         share of the weights dropped
    weights         whether the weights are wanted
    whole           the composition that the calling encoding is a part of: all its doors apply
    """

    kernel: Callable[..., tuple[Tensor, Tensor | None]]
    logits_on_grid: Callable[..., Tensor]
    take_values: Callable[..., tuple[Tensor, Tensor]]
    scale: float
    dropout: float
    weights: bool
    whole: Encoding | None = None

    def __call__(
        self, encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask, *, weights: bool | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Plain attention with the biases of the encoding, and of the composition that it is a part of."""
        self.check(q, keys, mask)
        wanted = self.weights if weights is None else weights
        whole = self.whole or encoding
        return self.kernel(whole, q, at, keys, mask, scale=self.scale, dropout=self.dropout, weights=wanted)

    def logits(self, encoding: Encoding, q: Tensor, at: Positions, keys: Keys, mask: Mask) -> Tensor:
        """The scaled logits [B, H, T, S] in float32 at least, with all biases and what the mask adds.

        What the mask forbids is not marked in them; `mask.allowed(at, keys.at)` says it.
        """
        self.check(q, keys, mask)
        return self.logits_on_grid(self.whole or encoding, q, at, keys, mask, scale=self.scale)

    def finish(self, weights: Tensor, keys: Keys) -> tuple[Tensor, Tensor | None]:
        """The output [B, H, T, E] of an attention rule's own weights [B, H, T, S], with dropout, and the weights."""
        out, applied = self.take_values(weights, keys.v, dropout=self.dropout)
        return out, applied if self.weights else None

    def check(self, q: Tensor, keys: Keys, mask: Mask) -> None:
        if mask.given is not None:
            check_mask(mask.given, q.shape[2], keys.k.shape[2], q.shape[0], q.shape[1])


class Compose(Encoding):
    """Several encodings at once: `a + b`. Doors 1 to 3 of the parts apply together; at most one may open door 4.

    Biases see the query after all parts have turned it.
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
        apart = "score_mod" in opened or len(measured) > 1
        self.doors = (opened - {"by_distance"}) | {"score_mod"} if apart and "by_distance" in opened else opened
        self.axes = next(iter(measured or {part.axes for part in flat if part.axes} or {0}))
        self.per_layer = any(part.per_layer for part in flat)
        self.reads_keys = any(part.reads_keys for part in flat)
        self.reads_between = any(part.reads_between for part in flat if "score_mod" in part.doors)
        self.turns_when_attending = any(part.turns_when_attending for part in flat)

    @property
    def needs_weights(self) -> bool:
        return any(part.needs_weights for part in self.parts)

    @property
    def reads_pairs(self) -> bool:
        return any(part.reads_pairs for part in self.parts)

    @property
    def parts(self) -> list[Encoding]:
        """The encodings that are summed."""
        return cast(list[Encoding], list(self.members))

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        for part in self.parts:
            x = part.embed(x, at)
        return x

    def query(self, q: Tensor, at: Positions) -> Tensor:
        for part in self.parts:
            q = part.query(q, at)
        return q

    def key(self, k: Tensor, at: Positions) -> Tensor:
        for part in self.parts:
            k = part.key(k, at)
        return k

    def turn(
        self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions, *, in_place: bool = False
    ) -> tuple[Tensor, Tensor]:
        for part in self.parts:
            if part.doors & {"query", "key"}:
                q, k = part.turn(q, k, at, keys_at, in_place=in_place)
        return q, k

    def by_distance(self, delta: Tensor) -> Tensor | None:
        total: Tensor | None = None
        for part in self.parts:
            values = part.by_distance(delta)
            total = values if total is None else total if values is None else total + values
        return total

    def prepare(self, q: Tensor, at: Positions, keys: Keys) -> Keys:
        for part in self.parts:
            keys = part.prepare(q, at, keys)
        return keys

    def key_row(self, at: Positions, keys: Keys) -> Tensor | None:
        rows = [part.key_row(at, keys) for part in self.parts if part.doors & {"by_distance", "score_mod"}]
        given = [row for row in rows if row is not None]
        return sum(given[1:], given[0]) if given and len(given) == len(rows) else None

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod | None:
        return in_turn([mod for part in self.parts if (mod := part.score_mod(q, at, keys)) is not None])

    def attend(
        self, q: Tensor, at: Positions, keys: Keys, mask: Mask, kernel: BoundKernel
    ) -> tuple[Tensor, Tensor | None]:
        rule = next((part for part in self.parts if "attend" in part.doors), None)
        if rule is None:
            return kernel(self, q, at, keys, mask)
        # The rule is one part's own, but the kernel it calls must see the doors of the whole.
        return rule.attend(q, at, keys, mask, replace(kernel, whole=kernel.whole or self))

    def remember(self, x: Tensor, at: Positions, project: Projections) -> dict[str, Tensor]:
        memo: dict[str, Tensor] = {}
        for part in self.parts:
            new = part.remember(x, at, project)
            if taken := memo.keys() & new.keys():
                raise ValueError(f"two parts of {self} remember {sorted(taken)}; a memo name belongs to one encoding")
            memo |= new
        return memo

    def formula_added(self, position: float, channel: int) -> float:
        return math.fsum(part.formula_added(position, channel) for part in self.parts)

    def formula_query(self, q: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        for part in self.parts:
            q = part.formula_query(q, position, head)
        return q

    def formula_key(self, k: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        for part in self.parts:
            k = part.formula_key(k, position, head)
        return k

    def formula_logit(
        self, q: Sequence[float], k: Sequence[float], m: float, n: float, head: int, scale: float
    ) -> float:
        return self.formula_logits(Token(q, m, 0), [Token(k, n, 0)], head, scale)[0]

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        def plain(query: Token, keys: Sequence[Token]) -> list[float]:
            return [scale * math.fsum(a * b for a, b in zip(query.vector, key.vector, strict=True)) for key in keys]

        biases = [part for part in self.parts if part.doors & {"by_distance", "score_mod"}]
        reading = [part for part in biases if "score_mod" in part.doors]
        turning = [part for part in self.parts if part not in biases and part.has_own_logits]
        for part in self.parts:
            if "query" in part.doors and part not in turning:
                query = query._replace(vector=part.formula_query(query.vector, query.at, head))
        if not turning:
            total, seen, seen_keys = plain(query, keys), query, keys
        else:
            cls = type(turning[0])
            told = cls.formula_query is not Encoding.formula_query
            told = told and (cls.formula_key is not Encoding.formula_key or not self.reads_keys)
            if len(turning) > 1 or (reading and not told):
                # Each formula takes the query and key as they are projected; there is none for turned ones.
                raise NotImplementedError(
                    f"the formulas of {' and '.join(map(str, turning + reading))} do not add up: "
                    f"one turns what the other reads"
                )
            total = turning[0].formula_logits(query, keys, head, scale)
            seen = query._replace(vector=turning[0].formula_query(query.vector, query.at, head))
            seen_keys = [key._replace(vector=turning[0].formula_key(key.vector, key.at, head)) for key in keys]
        unbiased = plain(seen, seen_keys)
        for part in biases:
            biased = part.formula_logits(seen, seen_keys, head, scale)
            total = [t + b - u for t, b, u in zip(total, biased, unbiased, strict=True)]
        return total

    def formula_weights(self, logits: Sequence[float], query: Token, keys: Sequence[Token]) -> list[float]:
        rule = next((part for part in self.parts if "attend" in part.doors), None)
        return (
            super().formula_weights(logits, query, keys) if rule is None else rule.formula_weights(logits, query, keys)
        )

    def formula_value(self, v: Sequence[float], m: float, n: float, channel: int) -> float:
        rule = next((part for part in self.parts if "attend" in part.doors), None)
        return v[channel] if rule is None else rule.formula_value(v, m, n, channel)

    def __repr__(self) -> str:
        return " + ".join(str(part) for part in self.parts)

    __str__ = __repr__


class OnHeads(Encoding):
    """An encoding on chosen heads only: `on(rotary, heads=(0, 1))`; the other heads have no position.

    `encoding` is built for as many heads as are chosen; `of` is the number of query heads of the model. With fewer key
    heads than query heads, the chosen query heads must be all those of some key heads.
    Raises ValueError for heads that do not exist or stand twice, and for encodings without heads (doors 1 and 4).
    """

    def __init__(self, encoding: Encoding, heads: Sequence[int], of: int) -> None:
        super().__init__()
        chosen = tuple(heads)
        if not chosen or len(set(chosen)) != len(chosen) or min(chosen) < 0 or max(chosen) >= of:
            raise ValueError(f"heads must be different numbers from 0 to {of - 1}, got {quoted(chosen)}")
        for door in ("embed", "attend", "remember"):
            if door in encoding.doors:
                raise ValueError(
                    f"{encoding} opens the door '{door}', which knows no heads; "
                    f"on(...) takes rotary-like and bias encodings"
                )
        self.encoding, self.heads, self.of = encoding, chosen, of
        self.doors, self.per_layer = encoding.doors, encoding.per_layer
        self.axes, self.reads_keys, self.fuses = encoding.axes, encoding.reads_keys, encoding.fuses
        self.reads_between = encoding.reads_between
        self.turns_when_attending = encoding.turns_when_attending

    @property
    def wavelengths(self) -> Tensor | None:
        return self.encoding.wavelengths

    def query(self, q: Tensor, at: Positions) -> Tensor:
        if "query" not in self.doors:
            return q
        chosen = torch.tensor(self.heads, device=q.device)
        return q.index_copy(1, chosen, self.encoding.query(q[:, chosen], at))

    def key(self, k: Tensor, at: Positions) -> Tensor:
        if "key" not in self.doors:
            return k
        group = self.of // k.shape[1]
        groups = sorted({head // group for head in self.heads})
        if len(groups) * group != len(self.heads):
            raise ValueError(
                f"{group} query heads share each key head, so the chosen heads must come in whole groups "
                f"of {group}, got {self.heads}"
            )
        chosen = torch.tensor(groups, device=k.device)
        return k.index_copy(1, chosen, self.encoding.key(k[:, chosen], at))

    def by_distance(self, delta: Tensor) -> Tensor | None:
        values = self.encoding.by_distance(delta)
        if values is None:
            return None
        chosen = torch.tensor(self.heads, device=values.device)
        return values.new_zeros((self.of, *values.shape[1:])).index_copy(0, chosen, values)

    def key_row(self, at: Positions, keys: Keys) -> Tensor | None:
        row = self.encoding.key_row(at, keys)
        if row is None:
            return None
        chosen = torch.tensor(self.heads, device=row.device)
        return row.new_zeros((row.shape[0], self.of, row.shape[2])).index_copy(1, chosen, row)

    def score_mod(self, q: Tensor, at: Positions, keys: Keys) -> ScoreMod | None:
        if "score_mod" not in self.doors:
            return super().score_mod(q, at, keys)
        chosen = torch.tensor(self.heads, device=q.device)
        if self.reads_keys:
            keys = replace(keys, k=keys.k.repeat_interleave(self.of // keys.k.shape[1], 1)[:, chosen])
        modify = self.encoding.score_mod(q[:, chosen], at, keys)
        assert modify is not None
        place = torch.full((self.of,), -1, device=q.device).index_copy(
            0, chosen, torch.arange(len(self.heads), device=q.device)
        )

        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return torch.where(place[h] >= 0, modify(score, b, place[h].clamp(min=0), i, j), score)

        return score_mod

    def formula_query(self, q: Sequence[float], position: float, head: int = 0) -> Sequence[float]:
        raise NotImplementedError(
            f"{self} turns the queries of some heads only, and a formula of one query lacks its head"
        )

    def formula_logit(
        self, q: Sequence[float], k: Sequence[float], m: float, n: float, head: int, scale: float
    ) -> float:
        return self.formula_logits(Token(q, m, 0), [Token(k, n, 0)], head, scale)[0]

    def formula_logits(self, query: Token, keys: Sequence[Token], head: int, scale: float) -> list[float]:
        if head not in self.heads:
            return [super(OnHeads, self).formula_logit(query.vector, k.vector, 0, 0, head, scale) for k in keys]
        return self.encoding.formula_logits(query, keys, self.heads.index(head), scale)

    def __repr__(self) -> str:
        return f"on({self.encoding}, heads={self.heads})"

    __str__ = __repr__


def parts_of(encoding: Encoding) -> list[Encoding]:
    """The parts of a sum, or the encoding itself."""
    return encoding.parts if isinstance(encoding, Compose) else [encoding]


def sums_to(values: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
    """Running sums of a fact of each key token, values [B, H, S], up to each query [B, H, T] and each key [B, H, S].

    The sum over the tokens l with order_j < order_l <= order_i is to_query[i] - to_key[j], for a key j at or before the
    query i in the same document. Tokens go by their order within their document, wherever they stand in the tensor;
    padding and empty cache slots count nothing.
    """
    if at is keys_at and at.contiguous:
        running = values.cumsum(-1)
        return running, running
    B, H = values.shape[:2]
    i, j = at.order.expand(B, -1), keys_at.order.expand(B, -1)
    present = j >= 0
    if at.document is not None and keys_at.document is not None:
        # Documents behind one another on one line: a place on it is the document's, then the token's.
        room = torch.maximum(i.amax(), j.amax()) + 2
        i, j = (order + 1 + document * room for order, document in ((i, at.document), (j, keys_at.document)))
    place, sequence = j.contiguous().sort(dim=-1, stable=True)
    spread = sequence[:, None].expand(-1, H, -1)
    running = values.masked_fill(~present[:, None], 0.0).gather(-1, spread).cumsum(-1)
    to_key = torch.zeros_like(running).scatter(-1, spread, running)
    before = torch.searchsorted(place, i.contiguous(), right=True)[:, None].expand(-1, H, -1)
    return F.pad(running, (1, 0)).gather(-1, before), to_key


def without_autocast(x: Tensor) -> AbstractContextManager:
    """Where what is computed with x keeps its dtype: autocast would round it to half precision."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def in_turn(mods: Sequence[ScoreMod]) -> ScoreMod | None:
    """The closure that applies each of these to the score; None where there are none."""
    if not mods:
        return None

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for mod in mods:
            score = mod(score, b, h, i, j)
        return score

    return score_mod


def of_heads(values: Tensor, h: Tensor) -> Tensor:
    """Values by distance [H, ...] of the heads h, ready to be added to scores.

    FlexAttention asks for one scalar at a time; everybody else for the grid of h [H, 1, 1], whose values are [H, T, S],
    or [H, B, 1, T, S] where each row of the batch has its own.
    """
    if h.dim() == 0:
        return values[h]
    picked = values[h.flatten()]
    return picked if picked.dim() == 3 else picked.squeeze(2).movedim(0, 1)


def look_up(table: Tensor, *index: Tensor) -> Tensor:
    """table[index]. For whole grids by gathers, whose gradients are several times cheaper than those of indexing.

    Each index is a scalar, as FlexAttention has it; or each but the last is a grid of `index_grids`, and the last
    is another one, or differs from pair to pair.
    """
    *token, last = index
    if all(i.dim() == 0 for i in index):
        return table[index]
    rows = at_grids(table, *token)
    if last.dim() == 1:
        return rows.index_select(-1, last)
    if token[-1].dim() == 1:
        # Facts of keys are gathered key by key.
        return _gather(rows, last.transpose(-1, -2)).transpose(-1, -2)
    return _gather(rows if token[-1].dim() == 2 else rows[..., None, :], last)


def dot_products(queries: Tensor, keys: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """queries[b, h, i] . keys[b, h, j] for facts [B, H, T, C] and [B, H, S, C], whose batch or heads may be 1: shared.

    As `look_up`, for scalars and for whole grids.
    """

    def of(facts: Tensor, token: Tensor) -> Tensor:
        row, head = (i.new_zeros(()) if size == 1 else i for size, i in zip(facts.shape[:2], (b, h), strict=True))
        return facts[row, head, token] if token.dim() == 0 else at_grids(facts, row, head, token)

    if i.dim() == 0:
        return (of(queries, i) * of(keys, j)).sum(-1)
    return of(queries, i) @ of(keys, j).transpose(-1, -2)


def at_grids(table: Tensor, *grids: Tensor) -> Tensor:
    """The table with each of its first axes at the indices of a grid of `index_grids`."""
    for axis, grid in enumerate(grids):
        table = table.index_select(axis, grid.flatten())
    return table


def _gather(rows: Tensor, column: Tensor) -> Tensor:
    """One entry of the last axis for each column; the other axes broadcast."""
    # torch.broadcast_shapes would import the symbolic machinery of the compiler.
    shape = torch.broadcast_tensors(rows[..., :1], column[..., :1])[0].shape[:-1]
    return rows.expand(*shape, -1).gather(-1, column.expand(*shape, -1))


def index_grids(score: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The indices b, h, i, j of a score tensor [B, H, T, S] as grids that broadcast to it."""
    b, h, i, j = (torch.arange(n, device=score.device) for n in score.shape)
    return b[:, None, None, None], h[:, None, None], i[:, None], j


def placed(positions: Positions | Tensor | int) -> Positions:
    """Positions that stand for themselves: Positions, ids, or a number of tokens that count from 0."""
    if isinstance(positions, Positions):
        return positions
    return Positions.of(positions) if isinstance(positions, Tensor) else Positions.count(positions)
