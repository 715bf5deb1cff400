"""The growing cache."""

import torch
from torch import Tensor

from posenc.cache.cached_positions import check_behind, check_rows
from posenc.cache.columns import compact
from posenc.cache.layer import LayerCache, concatenated_keys
from posenc.cache.memory import new_memory
from posenc.encoding.keys import Keys
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions
from posenc.tokens.tracing import is_watched


class GrowingCache(LayerCache):
    """A cache without a limit or an option.

    Without gradients, keys lie in buffers of twice their size, so a step copies its own tokens and rarely all of them;
    keys from an earlier `extend` keep their values. With gradients, and inside a compiled graph, every step makes new
    tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        # Name of a fact -> the view of its buffer that holds the tokens, and the buffer.
        self.buffers: dict[str, tuple[Tensor, Tensor]] = {}

    def check(self, at: Positions, mask: Mask) -> None:
        """Raise ValueError unless tokens follow the cached ones."""
        check_behind(self.keys, at, mask)

    def take_in(self, new: Keys) -> Keys:
        if self.keys is None:
            self.stored_keys = new
            return new
        old = self.keys
        check_rows(old, new)
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_watched():
            self.stored_keys = concatenated_keys(old, new)
            return self.stored_keys
        rotated_k = self.current_k_of(old)
        self.stored_keys = concatenated_keys(old, new, self.append)
        if rotated_k is not None:
            self.current_k = self.stored_keys, self.append("rotated", rotated_k, new.k)
        return self.stored_keys

    def append(self, name: str, old: Tensor, new: Tensor) -> Tensor:
        """Append new tokens to a fact [B, H, S, ...]. The old ones are copied only if the buffer is full."""
        if old.dtype != new.dtype:
            return torch.cat((old, new), 2)
        tokens, new_tokens = old.shape[2], new.shape[2]
        total = tokens + new_tokens
        buffer = self.buffer_of(name, old)
        # Keys that were restored or selected do not end where the buffer's tokens end.
        if buffer is old or total > buffer.shape[2]:
            buffer = new_memory(old, (*old.shape[:2], 2 * total, *old.shape[3:]), old.dtype)
            buffer.narrow(2, 0, tokens).copy_(old)
        buffer.narrow(2, tokens, new_tokens).copy_(new)
        self.buffers[name] = buffer.narrow(2, 0, total), buffer
        return self.buffers[name][0]

    def store(self, keys: Keys) -> None:
        self.stored_keys = compact(keys)

    def buffer_of(self, name: str, fact: Tensor) -> Tensor:
        view, buffer = self.buffers.get(name, (None, fact))
        return buffer if view is fact else fact

    def __copy__(self) -> "GrowingCache":
        """Return an independent cache, with its own buffers for new tokens."""
        twin = type(self)()
        twin.stored_keys, twin.current_k = self.stored_keys, self.current_k
        return twin
