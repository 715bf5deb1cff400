"""Chunks of text that are computed once: their keys are kept by their tokens, and spliced behind any prompt."""

from collections import OrderedDict
from copy import copy
from typing import Any

import torch
from torch import Tensor

from posenc import checks
from posenc.cache import Cache


class ChunkStore(checks.ChecksArguments):
    """The keys of chunks of tokens, each computed once and alone, and put behind one another in any order.

    A chunk's keys are moved to where it comes; what its tokens would have read of the chunks in front of it is missing
    in them. So behind the first chunk this is an approximation, which computing the first tokens of each chunk anew,
    behind what is in front of them, makes better: `recompute` of them. Where that is all of its tokens it is exact.

    model   what the keys are of: Decoder, in evaluation mode. After a change of its weights make another store
    limit   how much memory the kept chunks may take (bytes); those that nobody asked for the longest go first

    Raises ValueError for a limit below 1; and where chunks come together, for a model whose keys cannot be moved.
    Source: Hu et al. 2024, arXiv:2410.15332 (EPIC), whose first tokens of each chunk are computed anew.

    >>> from posenc import Decoder
    >>> model = Decoder(vocab=5, dim=8, heads=2, layers=1).eval()
    >>> store = ChunkStore(model)
    >>> prompt, document = torch.tensor([[1, 2]]), torch.tensor([[3, 4, 0]])
    >>> cache = store.behind_one_another(prompt, document)
    >>> cache.held.tokens, store.computed
    (5, 5)
    >>> _ = store.behind_one_another(torch.tensor([[0]]), document)
    >>> store.computed
    6
    """

    def __init__(self, model: Any, *, limit: int = 1 << 30) -> None:
        self.model, self.limit = model, checks.whole("limit", limit, 1)
        self.chunks: OrderedDict[tuple[int, ...], Cache] = OrderedDict()
        self.computed = 0
        """How many tokens went through the model so far."""

    @property
    def bytes(self) -> int:
        """The memory that the kept chunks take (bytes)."""
        return sum(chunk.bytes for chunk in self.chunks.values())

    def behind_one_another(self, *chunks: Tensor, recompute: int = 0) -> Cache:
        """A cache that holds these chunks, ids [1, tokens] each, in a row; it is the caller's own.

        recompute  how many of the first tokens of each chunk behind the first are computed anew, behind all that is in
                   front of them

        Raises ValueError for no chunk, for ids of several rows, and for keys that cannot be moved.
        """
        checks.whole("recompute", recompute, 0)
        if not chunks:
            raise ValueError("give at least one chunk of token ids, [1, tokens]")
        for ids in chunks:
            if checks.tensor("a chunk", ids).dim() != 2 or ids.shape[0] != 1 or ids.shape[1] < 1:
                raise ValueError(f"a chunk is token ids of shape [1, tokens], got {list(ids.shape)}")
        cache = copy(self.alone(chunks[0]))
        for ids in chunks[1:]:
            anew = min(recompute, ids.shape[1])
            if anew:
                self.read(ids[:, :anew], cache)
            if anew < ids.shape[1]:
                rest = copy(self.alone(ids))
                if anew:
                    rest.drop(range(anew))
                held = cache.held
                assert held is not None
                cache.splice(rest, int(held.order.max()) + 1)
        return cache

    def alone(self, ids: Tensor) -> Cache:
        """The keys of a chunk with nothing in front of it, as they are kept."""
        key = tuple(ids[0].tolist())
        if key in self.chunks:
            self.chunks.move_to_end(key)
            return self.chunks[key]
        cache = self.model.cache()
        self.read(ids, cache)
        self.chunks[key] = cache
        while self.bytes > self.limit and len(self.chunks) > 1:
            self.chunks.popitem(last=False)
        return cache

    def read(self, ids: Tensor, cache: Cache) -> None:
        with torch.no_grad():
            self.model(ids, cache=cache, only=slice(-1, None))
        self.computed += ids.shape[1]
