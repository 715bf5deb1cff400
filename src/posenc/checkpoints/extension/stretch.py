"""What stretches a model: its methods, the model with one of them in it, and its checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from posenc.checkpoints.extension.methods import Method

if TYPE_CHECKING:
    from torch import Tensor

    from posenc.checkpoints.formats.load import Loaded

FirstLosses = Callable[[Method, int], "tuple[Tensor, Tensor]"]
"""(method, most) -> the ids [n] of at most so many first tokens of a text, and their measured losses [n - 1] (nats)."""


class Stretch(Protocol):
    """Everything that depends on where a model keeps its positions: in its encoding, or in a learned table.

    loaded    the model
    config    its config.json
    trained   its trained length, and `target`, the one that it is stretched to
    unit      of these lengths: "tokens" or "patches a side"
    said      in words, where these lengths come from
    methods   the model as it is first
    left_out  name -> why a method does not apply to this model
    fitting   the names of the measures that this model can be asked for; none where posenc has none for it
    options   the settings that this way reads
    """

    loaded: "Loaded"

    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def fitting(self) -> tuple[str, ...]: ...
    @property
    def options(self) -> frozenset[str]: ...
    @property
    def trained(self) -> int: ...
    @property
    def target(self) -> int: ...
    @property
    def unit(self) -> str: ...
    @property
    def said(self) -> str: ...
    @property
    def methods(self) -> tuple[Method, ...]: ...
    @property
    def left_out(self) -> Mapping[str, str]: ...

    def words(self, method: Method) -> str:
        """What a method does."""
        ...

    def reach(self, method: Method, lengths: Sequence[int]) -> tuple[int, ...]:
        """The lengths at which the model with a method in it can be run."""
        ...

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        """What the model with a method in it depends on, beside the files of the model."""
        ...

    def used(self, method: Method, length: int) -> AbstractContextManager[Any]:
        """The model with a method in it, for inputs of a length."""
        ...

    def write(self, method: Method, where: Path) -> None:
        """Write the checkpoint of a method, which appears when it is whole."""
        ...

    def verify(self, method: Method, where: Path, losses: FirstLosses) -> dict[str, Any]:
        """Load what was written and hold it to what was measured; {"words": how that went}. Raises RuntimeError."""
        ...
