"""Models stretched by their learned table of positions, made longer."""

import copy
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.conversion.tables import resize_positions
from posenc.checkpoints.extension.methods import FirstLosses, Method, Stretch
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.formats import huggingface, load
from posenc.checkpoints.formats.learned_tables import Table, asking_for, cells_of, tables_of
from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.measures.all_measures import of_model
from posenc.checkpoints.vocabulary.reading import Reading
from posenc.foreign import near, quoted

WORDS = {
    "clamp": "every position past the table has its last row",
    "repeat": "past the table it begins again with its first row",
    "nearest": "the table stretched over the target, each position with the nearest row",
    "linear": "the table stretched over the target, mixed linearly between rows",
    "cubic": "the table stretched over the target by cubic convolution",
}
"""The methods: how a table of the trained length becomes one of the target's."""


@dataclass
class ByTable(Stretch):
    """A model whose learned tables are made longer."""

    tables: Sequence[Table]
    held: dict[str, Any] = field(default_factory=dict)
    """The model that was stretched last, by its method."""

    @classmethod
    def of(cls, loaded: Loaded, reading: Reading, settings: Settings, names: Sequence[str]) -> "ByTable":
        """Raises ValueError for the name of no method, for a model that no measure fits, and where no config says how
        long the table is to be."""
        for name in names:
            if name not in ("all", "none", *WORDS):
                raise ValueError(
                    f"{quoted(name)} is no method for a learned table{near(name, WORDS)}; there are: "
                    f"{', '.join(WORDS)}, or all"
                )
        if not (fitting := of_model(loaded)):
            raise ValueError(
                f"posenc has no measure for a {type(loaded.model).__name__}, so that nothing says which method is "
                f"best; posenc convert makes its table longer, by --max-length, or --grid for images"
            )
        found = tables(loaded.model, reading)
        trained = found[0].cells[0]
        target, config = round(trained * settings.factor), loaded.said()
        longer = asking_for(config, found, (target,))
        chosen = tuple(WORDS) if "all" in names else [name for name in dict.fromkeys(names) if name != "none"]
        rows = tuple(f"{table.name}: {trained} positions" for table in found)
        methods = [Method("none", "the model as it is", rows)]
        for name in chosen:
            methods.append(Method(name, WORDS[name], tuple(f"{row} to {target}" for row in rows), config=longer))
        words = f"Its table has {trained:,} positions, and is to have {target:,}."
        plan = (trained, target, tuple(methods), {}, words)
        return cls(*plan, loaded, config, fitting, found)

    def reach(self, method: Method, lengths: Sequence[int]) -> tuple[int, ...]:
        """The model as it is ends with its table."""
        return tuple(length for length in lengths if method.name != "none" or length <= self.trained)

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        # Tables that are continued are as they were wherever they reached before.
        if method.name == "none" or (method.name in ("clamp", "repeat") and length <= self.trained):
            return {"table": "as it is"}
        return {"table": method.name, "positions": self.target}

    @contextmanager
    def used(self, method: Method, length: int) -> Generator[Any]:
        if method.name == "none":
            yield self.loaded.model
            return
        if method.name not in self.held:
            self.held.clear()
            self.held[method.name] = stretched(self.loaded, self.tables, self.target, method.name)
        yield self.held[method.name]

    def write(self, method: Method, where: Path) -> None:
        """The model with the longer table, its config, and its tokenizer, which then takes as much."""
        model = stretched(self.loaded, self.tables, self.target, method.name)
        tokenizer = copy.deepcopy(self.loaded.tokenizer)
        if tokenizer is not None:
            tokenizer.model_max_length = self.target
        Loaded(model, tokenizer, model.config, self.loaded.path).save_huggingface(where)

    def verify(self, method: Method, where: Path, losses: FirstLosses) -> dict[str, Any]:
        """Every weight of what transformers loads is the one that was measured."""
        self.held.clear()
        with torch.inference_mode():
            wanted = dict(stretched(self.loaded, self.tables, self.target, method.name).named_parameters())
            given = {"dtype": self.loaded.model.dtype, "device": str(self.loaded.model.device)}
            del self.loaded
            again = load.load(where, **given).model
            found = dict(again.named_parameters())
        if other := [name for name in wanted if name not in found or not torch.equal(wanted[name], found[name])]:
            raise RuntimeError(f"the written checkpoint has another {other[0]} than what was measured; it is not kept")
        return {"words": "transformers loads it, and every weight of it is the one that was measured."}


def is_by_table(reading: Reading) -> bool:
    """Whether a model keeps its positions in learned tables, and in nothing else."""
    parts = reading.parts
    return bool(parts) and all(cells_of(part) and not any(one.spec != "none" for one in part.layers) for part in parts)


def resized(table: Tensor, first: int, length: int, method: str) -> Tensor:
    """A table [first + positions, dim] with so many positions, by one of WORDS.

    Rows are stretched end to end, i -> i (n - 1)/(m - 1): the last position has the last row.

    >>> resized(torch.tensor([[0.0], [1.0]]), 0, 3, "linear").flatten()
    tensor([0.0000, 0.5000, 1.0000])
    """
    if method not in ("clamp", "repeat"):
        return resize_positions(table, length, method, offset=first)
    count, old = torch.arange(length), len(table) - first
    return torch.cat((table[:first], table[first:][count.clamp(max=old - 1) if method == "clamp" else count % old]))


def stretched(loaded: Loaded, found: Sequence[Table], target: int, method: str) -> Any:
    """The model with tables for the target (tokens), in memory."""
    # Parameters alone: buffers that count positions are made anew, as long as they have to be.
    state = {name: parameter.detach().cpu() for name, parameter in loaded.model.named_parameters()}
    for table in found:
        whole = state[table.name]
        new = resized(whole.reshape(-1, whole.shape[-1]), table.first, target, method)
        state[table.name] = new.view(*whole.shape[:-2], *new.shape)
    with load.quietly():
        config = type(loaded.config).from_dict(asking_for(loaded.config.to_dict(), found, (target,)))
        kind = type(loaded.model)
        model = kind.from_pretrained(None, config=config, state_dict=state, dtype=loaded.model.dtype)
    return model.eval().to(loaded.model.device)


def tables(model: Any, reading: Reading | None = None) -> list[Table]:
    """The learned tables of positions of a live model, as it is read."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return tables_of(reading or huggingface.read(model.config), shapes)
