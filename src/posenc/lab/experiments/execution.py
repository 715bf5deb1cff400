"""How a run is executed: settings that may differ between machines and change results by rounding alone."""

from dataclasses import dataclass

from posenc import checks
from posenc.lab import store

LARGEST_COUNT = 1_000_000
"""The largest numbers here: far beyond use, and small enough for every check to finish."""


@dataclass(frozen=True)
class Execution:
    """How a run is executed on a machine.

    accumulation    the number of micro-batches of a step
    activation_checkpointing   whether the backward pass recomputes the activations of blocks
    parallel        "ddp" or "fsdp", where torchrun has started several processes; None: ddp
    keep            how many of the last checkpoints stay in the folder
    samples         prompts that are continued at every point of the learning curve
    sample_tokens   the largest number of tokens of each continuation

    Raises ValueError for numbers out of range.

    >>> Execution(accumulation=4).keep
    2
    """

    accumulation: int = 1
    activation_checkpointing: bool = False
    parallel: str | None = None
    keep: int = store.KEEP
    samples: tuple[str, ...] = ()
    sample_tokens: int = 100

    def __post_init__(self) -> None:
        for name in ("accumulation", "keep", "sample_tokens"):
            if not 1 <= checks.whole(name, getattr(self, name), 1) <= LARGEST_COUNT:
                raise ValueError(f"{name} must be at most {LARGEST_COUNT:,}, got {getattr(self, name)}")


PLAIN = Execution()
"""The default execution of a run."""
