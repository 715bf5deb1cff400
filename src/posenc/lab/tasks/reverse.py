"""Say the prompt backwards: cab| -> bac."""

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from posenc.lab.tasks._symbols import Rewrite


@dataclass(frozen=True, kw_only=True)
class Reverse(Rewrite):
    """Say the prompt backwards: cab| -> bac.

    Source and answer are at a different distance for every symbol; at small sizes nothing carries beyond the trained
    length.

    symbols  how many different symbols there are

    Source: Kazemnejad et al. 2023, arXiv:2305.19466, section 4.
    """

    also_called = ("reverse", "backward", "backwards", "mirror")
    recipe = MappingProxyType({"steps": 2500, "batch": 32, "curriculum": 0.16, "cool_down": 200})

    def rewrite(self, prompt: Tensor) -> Tensor:
        return prompt.flip(1)
