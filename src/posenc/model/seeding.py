"""Random numbers from a seed of one's own."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Random numbers from a seed of our own; the caller's go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed every other device as well, which is not put back, and is slow without one.
        torch.default_generator.manual_seed(seed)
        yield
