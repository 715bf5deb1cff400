"""Texts without an end in bounded memory: the first tokens, on which attention rests, and a window of the newest."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from posenc import checks
from posenc.cache import Cache
from posenc.cache.layer import Operations
from posenc.encoding.base import WHY_FIXED, Encoding


@dataclass(frozen=True)
class Sight:
    """Which tokens are held while a text goes on: `sinks` first ones, and at most `window` of the newest.

    What is held counts up without gaps, so no token ever stands further from another than sinks + window. Where the
    window is full, an eighth of it is forgotten at once: keys are copied once for that many tokens.

    window  newest tokens that are held at most, with the one that comes (tokens)
    sinks   first tokens that stay (tokens); the default is the paper's number

    Raises ValueError for numbers out of range.
    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.2.
    """

    window: int
    sinks: int = 4

    def __post_init__(self) -> None:
        checks.whole("sinks", self.sinks, 0), checks.whole("window", self.window, 1)

    def check(self, encodings: Iterable[Encoding]) -> None:
        """Raises ValueError for encodings whose remembered keys cannot be moved."""
        for encoding in encodings:
            if encoding.moves in WHY_FIXED:
                raise ValueError(
                    f"tokens behind forgotten ones move up, and with {encoding} {WHY_FIXED[encoding.moves]}; without "
                    f"sinks, Decoder(window=...) and a rolling cache hold the newest where they are"
                )

    def make_room(self, cache: Cache) -> None:
        """Forget tokens behind the sinks, if another one would be too many."""
        held = cache.held
        if held is not None and int(held.order.max()) + 1 >= self.sinks + self.window:
            forget_between(cache, self.sinks, self.window - max(1, self.window // 8))


def forget_between(cache: Operations, first: int, newest: int) -> None:
    """Keep only so many of the first tokens of each row, and of the newest, which move up behind them."""
    held = cache.held
    if held is None:
        return
    count = held.order.amax(1, keepdim=True) + 1
    number = torch.arange(int(count.max()), device=count.device)
    cache.evict((number < first) | (number >= count - newest))
