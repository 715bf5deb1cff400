"""What a conversion will change: tensors one by one, the config, other files; and what is to be said about it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from posenc.checkpoints.vocabulary.reading import Reading

Change = Callable[[Tensor], Tensor]


@dataclass
class Plan:
    """What will be changed: of tensors, of the config and of other JSON files; and what is to be said about it."""

    config: dict[str, Any]
    reading: Reading
    changes: dict[str, list[tuple[str, Change]]] = field(default_factory=dict)
    edited: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def change(self, name: str, words: str, change: Change) -> None:
        self.changes.setdefault(name, []).append((words, change))

    def apply(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            for _, change in self.changes.get(name, ()):
                tensor = change(tensor)
            yield name, tensor
