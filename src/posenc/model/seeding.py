"""A local seed, which leaves the global random state unchanged."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def local_seed(seed: int) -> Generator[None]:
    """Seed the random numbers of a block; afterwards the caller's random state is as before."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also seed every other device, which is not restored, and slow without one.
        torch.default_generator.manual_seed(seed)
        yield
