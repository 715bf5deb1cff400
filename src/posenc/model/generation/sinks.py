"""Endless text in bounded memory: a cache of attention sinks and a window of the newest tokens."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from posenc import checks
from posenc.cache import Cache
from posenc.cache.layer import CacheOperations
from posenc.encoding.base import WHY_FIXED, Encoding


@dataclass(frozen=True)
class SinkWindow:
    """The tokens that a cache keeps of a growing text: `sinks` first and `window` newest ones.

    Their positions count up without gaps, so no distance exceeds sinks + window. If the window is full, an eighth of it
    is evicted at once: keys are copied once for that many tokens.

    window  most newest tokens to keep, including the next one (tokens)
    sinks   first tokens to keep (tokens); the default is the paper's number

    Raises ValueError for numbers out of range.
    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.2.
    """

    window: int
    sinks: int = 4

    def __post_init__(self) -> None:
        checks.whole("sinks", self.sinks, 0), checks.whole("window", self.window, 1)

    def check(self, encodings: Iterable[Encoding]) -> None:
        """Raise ValueError for encodings whose cached keys cannot be moved."""
        for encoding in encodings:
            if encoding.moves in WHY_FIXED:
                raise ValueError(
                    f"tokens behind forgotten ones move up, and with {encoding} {WHY_FIXED[encoding.moves]}; without "
                    f"sinks, Decoder(window=...) and a rolling cache hold the newest where they are"
                )

    def make_room(self, cache: Cache) -> None:
        """Evict tokens after the sinks, if another token would be too many."""
        keys_at = cache.held
        if keys_at is not None and int(keys_at.order.max()) + 1 >= self.sinks + self.window:
            evict_between(cache, self.sinks, self.window - max(1, self.window // 8))


def evict_between(cache: CacheOperations, first: int, newest: int) -> None:
    """Keep only the `first` and the `newest` tokens of each row; the newest move up behind the first."""
    keys_at = cache.held
    if keys_at is None:
        return
    count = keys_at.order.amax(1, keepdim=True) + 1
    number = torch.arange(int(count.max()), device=count.device)
    cache.evict((number < first) | (number >= count - newest))
