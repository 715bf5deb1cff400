"""What a run says while it works, and how long is left."""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from posenc.lab.results.summary import duration

Say = Callable[[str], None]


class Clock:
    """Says how far the work is and how long the rest will take, at most every few seconds.

    Work is counted as `Work` counts it, whatever it is done for.
    """

    def __init__(self, say: Say, every: float = 10.0) -> None:
        self.say, self.every = say, every
        self.began = self.last = time.monotonic()
        self.total = self.done = 0.0

    def expect(self, work: float) -> None:
        self.total += work

    @contextmanager
    def during(self, words: str, work: float) -> Generator[Callable[[float], None]]:
        """What a pass of so much work tells the share of it that is done; what nobody expected is expected now."""
        self.total = max(self.total, self.done + work)

        def tell(share: float) -> None:
            now = time.monotonic()
            if now - self.last < self.every:
                return
            self.last, done = now, self.done + share * work
            left = (now - self.began) * max(self.total - done, 0.0) / done if done else 0.0
            self.say(f"{words}: {share:.0%}; about {duration(left)} left in all")

        yield tell
        self.done += work
