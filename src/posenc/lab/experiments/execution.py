"""How a run is carried out: what may differ between machines, and changes what is learned by rounding alone."""

from dataclasses import dataclass

from posenc import checks
from posenc.lab import store

MOST = 1_000_000
"""The largest numbers here: far beyond use, and small enough that each is refused or tried."""


@dataclass(frozen=True)
class Execution:
    """How a run is carried out, on whatever there is to carry it out on.

    accumulation    in how many parts the batch of a step goes through the model, one after another
    activation_checkpointing   whether the insides of blocks are computed again in the backward pass, and not kept
    parallel        "ddp" or "fsdp", where torchrun has started several processes; None: ddp
    keep            how many of the last checkpoints stay in the folder
    samples         prompts that are continued at every point of the learning curve
    sample_tokens   how many tokens they are continued by, at most

    Raises ValueError for numbers out of range.

    >>> Execution(accumulation=4).keep
    2
    """

    accumulation: int = 1
    activation_checkpointing: bool = False
    parallel: str | None = None
    keep: int = store.KEPT
    samples: tuple[str, ...] = ()
    sample_tokens: int = 100

    def __post_init__(self) -> None:
        for name in ("accumulation", "keep", "sample_tokens"):
            if not 1 <= checks.whole(name, getattr(self, name), 1) <= MOST:
                raise ValueError(f"{name} must be at most {MOST:,}, got {getattr(self, name)}")


PLAIN = Execution()
"""As a run is carried out where nobody says."""
