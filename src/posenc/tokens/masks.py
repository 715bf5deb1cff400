"""Masks: who may see whom.

A mask compares orders and documents, never tensor indices, so a cache, padding or packing cannot change its meaning.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from posenc import checks
from posenc.tokens.positions import Positions
from posenc.tokens.watched import may_be_read


@dataclass(frozen=True, eq=False)
class Mask:
    """Who may see whom, by rule and by a given tensor.

    causal   a query sees keys whose order is not after its own
    window   a query sees keys fewer than `window` tokens away in order (unit: tokens)
    prefix   the first `prefix` tokens of a row see each other in both directions (unit: tokens)
    given    a tensor broadcastable to [B, H, T, S]: boolean (true = may see) or floating (added to the logits)

    Padding, empty cache slots and other documents are never seen, whatever the rule.
    The first four are static facts that kernels choose by.
    """

    causal: bool = False
    window: int | None = None
    prefix: int = 0
    given: Tensor | None = None

    def __post_init__(self) -> None:
        if self.causal is not True and self.causal is not False:
            checks.kind("causal", self.causal, bool)
        if self.window is not None and checks.whole("window", self.window) < 1:
            raise ValueError(f"a window holds at least 1 token, got window={self.window}")
        if checks.whole("prefix", self.prefix) < 0:
            raise ValueError(f"a prefix holds 0 tokens or more, got prefix={self.prefix}")
        if self.given is not None:
            checks.tensor("a given mask", self.given)

    def allowed(self, at: Positions, keys_at: Positions) -> Tensor:
        """Boolean [B or 1, 1 or H, T, S]: true where the query may see the key."""
        allowed = self.by_order(at.order[:, None, :, None], keys_at.order[:, None, None, :])
        if at.document is not None and keys_at.document is not None:
            allowed = allowed & (at.document[:, None, :, None] == keys_at.document[:, None, None, :])
        if self.given is not None and self.given.dtype == torch.bool:
            allowed = allowed & self.fitting(at, keys_at)
        elif self.given is not None:
            allowed = allowed & (self.fitting(at, keys_at) != -torch.inf)
        return allowed

    def by_order(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether the rule lets queries of order i see keys of order j; both broadcast."""
        allowed = (i >= 0) & (j >= 0)
        if self.causal:
            allowed = allowed & ((i >= j) | ((i < self.prefix) & (j < self.prefix)))
        if self.window is not None:
            allowed = allowed & ((i - j).abs() < self.window)
        return allowed

    def split(self) -> tuple["Mask", Tensor | None]:
        """Who may see whom, and what is added to the logits: a floating mask says both."""
        if self.given is None or self.given.dtype == torch.bool:
            return self, None
        seen = self.given != -torch.inf
        return replace(self, given=seen), self.given.masked_fill(~seen, 0.0)

    def fitting(self, at: Positions, keys_at: Positions) -> Tensor:
        assert self.given is not None
        check_mask(self.given, at.tokens, keys_at.tokens)
        checks.one_device(mask=self.given, positions=at.order)
        return self.given

    def part(self, batch: slice, rows: slice, keys: slice) -> "Mask":
        """The mask of some rows of the batch, and some queries and keys of theirs."""
        return self if self.given is None else replace(self, given=self.given[part_of(self.given, batch, rows, keys)])

    def within(self, window: int) -> "Mask":
        """The same mask, seeing no further than `window` tokens."""
        return replace(self, window=window if self.window is None else min(window, self.window))

    def sees_everything(self, at: Positions, keys_at: Positions) -> bool:
        """Whether it is certain, without looking at data, that every query sees every key."""
        if self.given is not None or self.window is not None or not (at.contiguous and keys_at.contiguous):
            return False
        last = at.tokens == 1 and at.unit_step and keys_at.unit_step and at.extent == keys_at.extent is not None
        return not self.causal or last

    def is_plain_causal(self, at: Positions, keys_at: Positions) -> bool:
        """Whether it is certain, without looking at data, that token i sees exactly the tokens 0..i."""
        return at is keys_at and at.contiguous and self.only_causal

    def keys_before(self, at: Positions, keys_at: Positions) -> int | None:
        """The n of which it is certain, without looking at data, that query i sees exactly the keys 0..i + n.

        None where there is none, and where the first query sees no key.
        """
        if not (at.contiguous and keys_at.contiguous and self.only_causal):
            return None
        start, keys_start = at.start, keys_at.start
        if start is None or keys_start is None or start < keys_start:
            return None
        # Where only one side names documents, all are of one.
        return None if at.document is not None and keys_at.document is not None else start - keys_start

    def sees_future(self, at: Positions) -> bool | None:
        """Whether tokens that attend to one another see some that come later; None where it is not known.

        A given tensor is read for up to a thousand tokens, where that costs little.
        """
        if self.causal or self.given is None:
            return not self.causal or self.prefix > 1
        if not 1 < at.tokens <= 1024 or self.given.shape[-1] != at.tokens or not may_be_read(self.given):
            return None
        later = at.order[:, None, :, None] < at.order[:, None, None, :]
        return bool((self.allowed(at, at) & later).any())

    @property
    def only_causal(self) -> bool:
        return self.causal and self.given is None and self.window is None and self.prefix == 0


def part_of(given: Tensor, batch: slice, rows: slice, keys: slice) -> tuple[slice, ...]:
    """Where a tensor that broadcasts to [B, H, T, S] holds what concerns a part of it; an axis of size 1 is shared."""
    parts = (batch, slice(None), rows, keys)[4 - given.dim() :]
    return tuple(slice(None) if size == 1 else part for size, part in zip(given.shape, parts, strict=True))


def check_mask(mask: Tensor, queries: int, keys: int, batch: int | None = None, heads: int | None = None) -> None:
    """Raises ValueError unless `mask` broadcasts to [batch, heads, queries, keys] and is boolean or floating."""
    shape = list(mask.shape)
    wanted = (batch, heads, queries, keys)
    sizes = [1, 1, 1, 1, *shape][-4:]
    if len(shape) > 4 or any(size != 1 and want not in (None, size) for size, want in zip(sizes, wanted, strict=True)):
        named = f"{'batch' if batch is None else batch}, {'heads' if heads is None else heads}, {queries}, {keys}"
        remedy = ""
        if len(shape) == 2 and shape[1] == keys:
            remedy = "; one that says of each token whether it is there is given as positions=Positions.padded(mask)"
        raise ValueError(f"a mask broadcasts to [{named}], got shape {shape}{remedy}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"a mask is boolean (true = may see) or floating (added to the logits), got {mask.dtype}; where 1 says "
            f"that a key may be seen, give mask.bool()"
        )


def causal() -> Mask:
    """Each token sees itself and what came before."""
    return Mask(causal=True)


def bidirectional() -> Mask:
    """Each token sees all tokens."""
    return Mask()


def window(size: int, *, causal: bool = True) -> Mask:
    """Each token sees the tokens fewer than `size` away (unit: tokens), in the past only unless `causal=False`."""
    return Mask(causal=causal, window=checks.whole("window", size))


def prefix(size: int) -> Mask:
    """Causal, but the first `size` tokens of each row see one another (a prefix language model)."""
    return Mask(causal=True, prefix=size)


MaskLike: TypeAlias = Mask | Tensor | str | None
"""What a caller may give as mask: a Mask, "causal" or "bidirectional", a tensor (boolean: true = may see; floating:
added to the logits), or nothing (see all)."""

NAMED = {"causal": causal(), "bidirectional": bidirectional()}
"""The masks that a word says."""


def mask_for(mask: MaskLike, *, causal: bool = False) -> Mask:
    """The mask that a caller gave, to which a `causal` layer adds that no token sees the future.

    A prefix, which is causal but for its first tokens, stays what it is.
    Raises ValueError for a bidirectional mask in a causal layer, for a word that is no mask, for what is neither a mask
    nor a tensor, and for a floating tensor with nan or +inf in it, or with zeros and ones alone, as one has that says
    who may see whom; one on another device, and in a graph that is being made, is not looked at.
    """
    if mask is None:
        return NAMED["causal" if causal else "bidirectional"]
    if isinstance(mask, str) and mask in NAMED:
        mask = NAMED[mask]
    if isinstance(mask, (Mask, Tensor)):
        rule = mask if isinstance(mask, Mask) else Mask(given=mask)
        if rule.given is not None:
            check_added(rule.given)
        if not causal or rule.causal:
            return rule
        if rule.given is None and rule.window is None:
            raise ValueError(
                "a bidirectional mask lets tokens see the future, and this layer is causal; leave the mask out, or "
                "build an Encoder, or a layer with causal=False"
            )
        return replace(rule, causal=True)
    raise ValueError(
        f"a mask is a Mask such as masks.causal() or masks.window(512), a tensor, or one of the words "
        f"{', '.join(NAMED)}; got {checks.shown(mask)}"
    )


def check_added(given: Tensor) -> None:
    """Raises ValueError for a floating mask that cannot be meant to be added; see `mask_for`."""
    if not (given.is_floating_point() and given.is_cpu and may_be_read(given)):
        return
    highest = given.amax()
    if not highest < torch.inf:
        raise ValueError("a floating mask is added to the logits, got nan or inf in one; -inf hides a key")
    if highest == 1 and given.amin() == 0 and bool(((given == 0) | (given == 1)).all()):
        raise ValueError(
            "a floating mask is added to the logits, got one of zeros and ones; where 1 says that a key may be seen, "
            "give mask.bool()"
        )


def both(rule: MaskLike, given: Tensor | None) -> Mask:
    """The rule and a given tensor together."""
    rule = mask_for(rule)
    if given is None:
        return rule
    if rule.given is not None:
        raise ValueError("the mask already carries a given tensor; combine the two tensors before")
    return replace(rule, given=given)
