"""Say every second symbol of the prompt, from the first on, then the others: abcde| -> acebd."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from posenc.lab.tasks._symbols import Said


@dataclass(frozen=True, kw_only=True)
class OddsFirst(Said):
    """Say every second symbol of the prompt, from the first on, then the others: abcde| -> acebd.

    Steps of two are asked for, and one long step back, whose distance is another for every length.

    symbols  how many different symbols there are

    Source: Delétang et al. 2022, arXiv:2207.02098, appendix A.1; Ruoss et al. 2023, arXiv:2305.16843, section 4.
    """

    also_called = ("permute", "permutation", "rearrange", "shuffle", "deinterleave")
    recipe = MappingProxyType({"train_length": 8, "steps": 2500, "batch": 32, "curriculum": 0.16, "cool_down": 200})

    def said(self, prompt: Tensor) -> Tensor:
        return torch.cat((prompt[:, ::2], prompt[:, 1::2]), 1)
