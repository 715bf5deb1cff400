"""What an engine is: it begins runs, and hands on what is heard of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from posenc.lab.experiments.experiment import Experiment
from posenc.lab.store import CannotWrite
from posenc.lab.sweeps.engines.worker import Besides


@dataclass(frozen=True)
class News:
    """What is heard of one run.

    changes  of its `Progress`; where its state is done, its record is in the folder, whole
    failed   what it raised, in words; or that its record could not be written
    died     how its worker ended without a word, in words
    lost     whether all of a machine went with that worker, for which the run is less to blame
    """

    key: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    failed: str | CannotWrite = ""
    died: str = ""
    lost: bool = False

    @property
    def over(self) -> bool:
        """Whether its worker is done with it."""
        return bool(self.failed or self.died) or self.changes.get("state") == "done"


class Engine(Protocol):
    """Carries out runs, each once for each time that it is begun, and writes the record of each that ends well.

    The calls come in this order, all from one thread: `open`, then the three in the middle, at last `close`.
    """

    def open(self, experiments: Sequence[Experiment], records: Path, besides: Besides) -> None:
        """Get ready for these runs. Raises ValueError for what this engine cannot do, by its name."""
        ...

    def has_room(self, experiment: Experiment) -> bool:
        """Whether this run may be begun now."""
        ...

    def begin(self, key: str, experiment: Experiment) -> None:
        """Begin a run, and return at once."""
        ...

    def news(self, seconds: float) -> Iterable[News]:
        """What is heard of the runs in hand, as soon as there is something, and after so many seconds in any case."""
        ...

    def close(self) -> None:
        """End at once what is in hand; it leaves no record, and no process stays behind."""
        ...
