"""What papers have published, run again small: one claim a file, whose name is the name in `posenc lab run`.

A claim says its sentence, the paper's numbers, the runs that it takes, and the inequalities that decide it; they were
written down before the seeds that judge them were run. posenc.lab.reproduction runs and judges one.
"""

from posenc.lab.published._claim import CPU, GPU, TIERS, Claim, Inequality, Outcome
from posenc.specs.registry import Registry

__all__ = ["CLAIMS", "CPU", "GPU", "TIERS", "Claim", "Inequality", "Outcome", "claim_of"]

CLAIMS = Registry(__name__, Claim, "posenc.lab.published.Claim", "alibi")
"""The claims that ship, by name; each is imported when it is first asked for."""


def claim_of(name: str) -> Claim:
    """The claim of a name, or of path/to/mine.py:Mine.

    Raises ValueError, naming what is near, for one that there is not.

    >>> claim_of("alibi")
    alibi()
    """
    return CLAIMS.find(name)()
