"""Say the prompt again: cab| -> cab."""

from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from posenc import checks
from posenc.lab.tasks._symbols import Rewrite


@dataclass(frozen=True, kw_only=True)
class Copy(Rewrite):
    """Say the prompt again: cab| -> cab.

    Each symbol has to be found by its place: relative encodings carry some way, absolute ones do not.

    symbols  how many different symbols there are
    times    how often the answer repeats it; 2 is known as duplicate

    Source: Kazemnejad et al. 2023, arXiv:2305.19466, section 4; duplicate: Delétang et al. 2022, arXiv:2207.02098,
    appendix A.1.
    """

    times: int = 1

    also_called = ("copy", "quote", "verbatim", "reproduce", "transcribe", "repeat", "duplicate")
    recipe = MappingProxyType({"steps": 2500, "batch": 32, "curriculum": 0.16, "cool_down": 200})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hold(checks.whole, times=1)

    def tokens(self, length: int) -> int:
        return (1 + self.times) * length + 2

    def rewrite(self, prompt: Tensor) -> Tensor:
        return prompt.repeat(1, self.times)
