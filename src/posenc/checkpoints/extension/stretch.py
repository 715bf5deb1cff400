"""What stretches a model: its methods, the model with one of them in it, and its checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from posenc.checkpoints.extension.methods import Method, Plan

if TYPE_CHECKING:
    from torch import Tensor

    from posenc.checkpoints.formats.load import Loaded

FirstLosses = Callable[[Method, int], "tuple[Tensor, Tensor]"]
"""(method, most) -> the ids [n] of at most so many first tokens of a text, and their measured losses [n - 1] (nats)."""


@dataclass
class Stretch(Plan):
    """Everything that depends on where a model keeps its positions: in its encoding, or in a learned table.

    config    its config.json
    fitting   the names of the measures that this model can be asked for; none where posenc has none for it
    unit      of the lengths: "tokens" or "patches a side"
    options   the settings that this way reads
    """

    loaded: "Loaded"
    config: Mapping[str, Any]
    fitting: tuple[str, ...]
    unit: str
    options: ClassVar[frozenset[str]] = frozenset()

    def reach(self, method: Method, lengths: Sequence[int]) -> tuple[int, ...]:
        """The lengths at which the model with a method in it can be run."""
        return tuple(lengths)

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        """What the model with a method in it depends on, beside the files of the model."""
        raise NotImplementedError

    def used(self, method: Method, length: int) -> AbstractContextManager[Any]:
        """The model with a method in it, for inputs of a length."""
        raise NotImplementedError

    def write(self, method: Method, where: Path) -> None:
        """Write the checkpoint of a method, which appears when it is whole."""
        raise NotImplementedError

    def verify(self, method: Method, where: Path, losses: FirstLosses) -> dict[str, Any]:
        """Load what was written and hold it to what was measured; {"words": how that went}. Raises RuntimeError."""
        raise NotImplementedError
