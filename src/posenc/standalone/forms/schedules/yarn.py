"""YaRN: fast pairs keep their frequency, slow ones are divided by the factor, with a ramp between.

Source: Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4; DeepSeek-AI 2024, arXiv:2405.04434, for mscale.
Where it goes wrong: the temperature multiplies cos and sin, so logits are multiplied by its square. DeepSeek's models
also multiply the scale of attention by (0.1 mscale_all_dim ln(factor) + 1)^2; this file does not. The released code's
ramp, also Hugging Face's, is linear in the index of the pair, the paper's in turns: up to 3 times apart.
"""

import math

import torch
from torch import Tensor

FACTOR = 4.0  # target length / trained length
TRAINED_LENGTH = 4096  # tokens, before any stretching
BETA_FAST = 32.0  # pairs that turn more often in the trained length keep their frequency
BETA_SLOW = 1.0  # pairs that turn less often are divided by the factor
TRUNCATE = True
RAMP = "pairs"
HAS_TEMPERATURE = True
TEMPERATURE = 1.1386294361119891  # 0.1 ln(FACTOR) + 1; a config may set attention_factor
REPLACED_OPTIONS = ("attention_factor", "mscale", "mscale_all_dim", "mscale_rule")


def frequencies(dim: int, base: float) -> Tensor | tuple[Tensor, float]:
    """Return the frequencies (radians per position, fastest first)."""
    plain = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if RAMP == "turns":
        turns = TRAINED_LENGTH * plain / (2 * math.pi)  # the paper's ramp
        if BETA_FAST == BETA_SLOW:
            keep = (turns >= BETA_FAST).double()
        else:
            keep = ((turns - BETA_SLOW) / (BETA_FAST - BETA_SLOW)).clamp(0, 1)
    else:
        turns = TRAINED_LENGTH / (2 * math.pi)  # of the fastest pair; pair k turns base^(2k/dim) times less
        ends = [dim / 2 * math.log(turns / beta, base) for beta in (BETA_FAST, BETA_SLOW)]
        if TRUNCATE:
            ends = [math.floor(ends[0]), math.ceil(ends[1])]
        first, last = (min(max(end, 0), dim - 1) for end in ends)  # the released code's ramp
        keep = 1 - ((torch.arange(dim // 2, dtype=torch.float64) - first) / (last - first or 0.001)).clamp(0, 1)
    if HAS_TEMPERATURE:
        return keep * plain + (1 - keep) * plain / FACTOR, TEMPERATURE  # which multiplies cosines and sines
    else:
        return keep * plain + (1 - keep) * plain / FACTOR
