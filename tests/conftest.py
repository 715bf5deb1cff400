"""What every test shares: one thread, a fixed seed, and Hypothesis with the same examples on every machine."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("posenc", derandomize=True, deadline=None, database=None, max_examples=25)
settings.load_profile("posenc")
# The suite runs in several processes, and small tensors gain nothing from threads.
torch.set_num_threads(1)
# Workers of a parallel run are told the width of a terminal, and what a pipe is given has none.
os.environ.pop("COLUMNS", None)
# A path that is not there may be a name of the hub; no test asks one but that of the loopback.
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and items stay to the end: they are not looked through for garbage, neither now nor between tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as where a person starts a command: a shell starts background jobs, such as a test run, without it."""
    old_handlers = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if old_handlers:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if old_handlers:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """The same random numbers whatever ran before, and nothing left over for what runs after."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
