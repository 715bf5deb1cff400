"""Published claims to reproduce at a small size, one a file, named as `posenc lab run` takes them.

A claim has its sentence, the paper's numbers, the runs that it needs, and the inequalities that decide it; they were
written before the seeds that judge them were run. posenc.lab.reproduction runs and judges a claim.
"""

from posenc.lab.published._claim import CPU, GPU, TIERS, Claim, Inequality, Outcome
from posenc.specs.registry import Registry

__all__ = ["CLAIMS", "CPU", "GPU", "TIERS", "Claim", "Inequality", "Outcome", "claim_of"]

CLAIMS = Registry(__name__, Claim, "posenc.lab.published.Claim", "alibi")
"""The built-in claims by name; each is imported at its first use."""


def claim_of(name: str) -> Claim:
    """Return the claim of a name, or of path/to/mine.py:Mine.

    Raises ValueError for an unknown name, with a suggestion.

    >>> claim_of("alibi")
    alibi()
    """
    return CLAIMS.find(name)()
