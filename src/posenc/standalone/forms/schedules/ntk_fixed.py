"""NTK scaling as a number system: a base that is larger by the factor, and an equal step of stretch for each pair.

Source: Su 2023, kexue.fm/archives/9706 ("NTK-RoPE-fixed").
Where it goes wrong: vLLM's "ntk" is this rule, others' is NTK-aware scaling, which keeps the fastest pair.
"""

import torch
from torch import Tensor

FACTOR = 4.0  # target length / trained length


def frequencies(dim: int, base: float) -> Tensor:
    """Return the frequencies (radians per position, fastest first)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    return (base * FACTOR) ** -exponents / FACTOR ** (2 / dim)
