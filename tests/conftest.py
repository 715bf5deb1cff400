"""What every test shares: one thread, a fixed seed, and Hypothesis with the same examples on every machine."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("posenc", derandomize=True, deadline=None, database=None, max_examples=25)
settings.load_profile("posenc")
# The suite runs in several processes, and small tensors gain nothing from threads.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """The same random numbers whatever ran before, and nothing left over for what runs after."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
