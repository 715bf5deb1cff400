"""Masks: which keys a query may see.

A mask compares orders and documents, never tensor indices, so a cache, padding or packing cannot change its meaning.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from posenc import checks
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import may_be_read


@dataclass(frozen=True, eq=False)
class Mask:
    """Which keys a query sees, by rule and by tensor.

    causal   a query sees keys whose order is not after its own
    window   a query sees keys fewer than `window` tokens away in order (unit: tokens)
    prefix   the first `prefix` tokens of a row see each other in both directions (unit: tokens)
    tensor   broadcastable to [B, H, T, S]: boolean (true = may see) or floating (added to the logits)

    Padding, empty cache slots and other documents are never seen, whatever the rule.
    Kernels choose by the static fields `causal`, `window` and `prefix`.
    """

    causal: bool = False
    window: int | None = None
    prefix: int = 0
    tensor: Tensor | None = None

    def __post_init__(self) -> None:
        if self.causal is not True and self.causal is not False:
            checks.kind("causal", self.causal, bool)
        if self.window is not None and checks.whole("window", self.window) < 1:
            raise ValueError(f"a window holds at least 1 token, got window={self.window}")
        if checks.whole("prefix", self.prefix) < 0:
            raise ValueError(f"a prefix holds 0 tokens or more, got prefix={self.prefix}")
        if self.tensor is not None:
            checks.tensor("the tensor of a mask", self.tensor)

    def allowed(self, at: Positions, keys_at: Positions) -> Tensor:
        """Return whether each query may see each key, [B or 1, 1 or H, T, S]."""
        visible = self.visible_by_order(at.order[:, None, :, None], keys_at.order[:, None, None, :])
        if at.document is not None and keys_at.document is not None:
            visible = visible & (at.document[:, None, :, None] == keys_at.document[:, None, None, :])
        if self.tensor is not None and self.tensor.dtype == torch.bool:
            visible = visible & self.checked_tensor(at, keys_at)
        elif self.tensor is not None:
            visible = visible & (self.checked_tensor(at, keys_at) != -torch.inf)
        return visible

    def visible_by_order(self, query_order: Tensor, key_order: Tensor) -> Tensor:
        """Return whether the rule lets queries of some order see keys of some order; both broadcast."""
        visible = (query_order >= 0) & (key_order >= 0)
        if self.causal:
            visible = visible & ((query_order >= key_order) | ((query_order < self.prefix) & (key_order < self.prefix)))
        if self.window is not None:
            visible = visible & ((query_order - key_order).abs() < self.window)
        return visible

    def split(self) -> tuple["Mask", Tensor | None]:
        """Split a floating mask into a boolean mask and the numbers to add to the logits."""
        if self.tensor is None or self.tensor.dtype == torch.bool:
            return self, None
        visible = self.tensor != -torch.inf
        return replace(self, tensor=visible), self.tensor.masked_fill(~visible, 0.0)

    def checked_tensor(self, at: Positions, keys_at: Positions) -> Tensor:
        assert self.tensor is not None
        check_mask(self.tensor, at.tokens, keys_at.tokens)
        checks.one_device(mask=self.tensor, positions=at.order)
        return self.tensor

    def part(self, batch: slice, rows: slice, keys: slice) -> "Mask":
        """Return the mask of a slice of rows of the batch, of queries and of keys."""
        if self.tensor is None:
            return self
        return replace(self, tensor=self.tensor[mask_index(self.tensor, batch, rows, keys)])

    def with_window(self, window: int) -> "Mask":
        """Return the same mask with a window of at most `window` tokens."""
        return replace(self, window=window if self.window is None else min(window, self.window))

    def sees_everything(self, at: Positions, keys_at: Positions) -> bool:
        """Whether every query sees every key for certain, without reading tensors."""
        if self.tensor is not None or self.window is not None or not (at.contiguous and keys_at.contiguous):
            return False
        is_last = at.tokens == 1 and at.unit_step and keys_at.unit_step and at.extent == keys_at.extent is not None
        return not self.causal or is_last

    def is_plain_causal(self, at: Positions, keys_at: Positions) -> bool:
        """Whether token i sees exactly the tokens 0..i for certain, without reading tensors."""
        return at is keys_at and at.contiguous and self.only_causal

    def keys_before(self, at: Positions, keys_at: Positions) -> int | None:
        """Return the n for which query i sees exactly the keys 0..i + n, known without reading tensors.

        None if there is no such n, or if the first query sees no key.
        """
        if not (at.contiguous and keys_at.contiguous and self.only_causal):
            return None
        start, keys_start = at.start, keys_at.start
        if start is None or keys_start is None or start < keys_start:
            return None
        # If only one side names documents, there is only one document.
        return None if at.document is not None and keys_at.document is not None else start - keys_start

    def sees_future(self, at: Positions) -> bool | None:
        """Whether a token sees a later one in self-attention; None if unknown.

        The mask tensor is read for up to 1,024 tokens, where that costs little.
        """
        if self.causal or self.tensor is None:
            return not self.causal or self.prefix > 1
        if not 1 < at.tokens <= 1024 or self.tensor.shape[-1] != at.tokens or not may_be_read(self.tensor):
            return None
        later = at.order[:, None, :, None] < at.order[:, None, None, :]
        return bool((self.allowed(at, at) & later).any())

    @property
    def only_causal(self) -> bool:
        return self.causal and self.tensor is None and self.window is None and self.prefix == 0


def mask_index(tensor: Tensor, batch: slice, rows: slice, keys: slice) -> tuple[slice, ...]:
    """Return a part's index in a tensor that broadcasts to [B, H, T, S]. An axis of size 1 is shared."""
    ranges = (batch, slice(None), rows, keys)[4 - tensor.dim() :]
    return tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, ranges, strict=True))


def check_mask(mask: Tensor, queries: int, keys: int, batch: int | None = None, heads: int | None = None) -> None:
    """Raise ValueError unless `mask` broadcasts to [batch, heads, queries, keys] and is boolean or floating."""
    shape = list(mask.shape)
    expected = (batch, heads, queries, keys)
    sizes = [1, 1, 1, 1, *shape][-4:]
    if len(shape) > 4 or any(n != 1 and limit not in (None, n) for n, limit in zip(sizes, expected, strict=True)):
        axis_names = f"{'batch' if batch is None else batch}, {'heads' if heads is None else heads}, {queries}, {keys}"
        remedy = ""
        if len(shape) == 2 and shape[1] == keys:
            remedy = "; give a padding mask of the tokens as positions=Positions.padded(mask)"
        raise ValueError(f"a mask broadcasts to [{axis_names}], got shape {shape}{remedy}")
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            f"a mask is boolean (true = may see) or floating (added to the logits), got {mask.dtype}; if 1 means that "
            f"a key may be seen, give mask.bool()"
        )


def causal() -> Mask:
    """Return the mask under which each token sees itself and earlier tokens."""
    return Mask(causal=True)


def bidirectional() -> Mask:
    """Return the mask under which each token sees all tokens."""
    return Mask()


def window(size: int, *, causal: bool = True) -> Mask:
    """Return a sliding window: each token sees those fewer than `size` tokens away, only past ones if `causal`."""
    return Mask(causal=causal, window=checks.whole("window", size))


def prefix(size: int) -> Mask:
    """Return the mask of a prefix language model. It is causal, but a row's first `size` tokens see one another."""
    return Mask(causal=True, prefix=size)


MaskLike: TypeAlias = Mask | Tensor | str | None
"""What a caller may give as mask: a Mask, "causal" or "bidirectional", a tensor (boolean: true = may see; floating:
added to the logits), or nothing (see all)."""

MASKS_BY_NAME = {"causal": causal(), "bidirectional": bidirectional()}
"""The masks that a caller can name by a string."""


def mask_for(mask: MaskLike, *, causal: bool = False) -> Mask:
    """Return the caller's mask as a Mask, made causal for a `causal` layer.

    A prefix mask is causal except for its first tokens, and stays as it is.
    Raises ValueError for a bidirectional mask in a causal layer, an unknown name, a value that is neither a mask nor a
    tensor, and a floating tensor that holds nan, +inf or only zeros and ones (a boolean mask in the wrong dtype).
    Tensors on another device, or inside a graph that is compiled, are not read.
    """
    if mask is None:
        return MASKS_BY_NAME["causal" if causal else "bidirectional"]
    if isinstance(mask, str) and mask in MASKS_BY_NAME:
        mask = MASKS_BY_NAME[mask]
    if isinstance(mask, (Mask, Tensor)):
        rule = mask if isinstance(mask, Mask) else Mask(tensor=mask)
        if rule.tensor is not None:
            check_added_mask(rule.tensor)
        if not causal or rule.causal:
            return rule
        if rule.tensor is None and rule.window is None:
            raise ValueError(
                "a bidirectional mask lets tokens see the future, and this layer is causal; leave the mask out, or "
                "build an Encoder, or a layer with causal=False"
            )
        return replace(rule, causal=True)
    raise ValueError(
        f"a mask is a Mask such as masks.causal() or masks.window(512), a tensor, or one of the words "
        f"{', '.join(MASKS_BY_NAME)}; got {checks.display(mask)}"
    )


def check_added_mask(tensor: Tensor) -> None:
    """Raise ValueError for a floating mask that cannot be meant to be added; see `mask_for`."""
    if not (tensor.is_floating_point() and tensor.is_cpu and may_be_read(tensor)):
        return
    highest = tensor.amax()
    if not highest < torch.inf:
        raise ValueError("a floating mask is added to the logits, got nan or inf in one; -inf hides a key")
    if highest == 1 and tensor.amin() == 0 and bool(((tensor == 0) | (tensor == 1)).all()):
        raise ValueError(
            "a floating mask is added to the logits, got one of zeros and ones; if 1 means that a key may be seen, "
            "give mask.bool()"
        )


def with_tensor(rule: MaskLike, tensor: Tensor | None) -> Mask:
    """Return the mask of a rule and a tensor together."""
    rule = mask_for(rule)
    if tensor is None:
        return rule
    if rule.tensor is not None:
        raise ValueError("the mask already carries a tensor; combine the two tensors first")
    return replace(rule, tensor=tensor)
