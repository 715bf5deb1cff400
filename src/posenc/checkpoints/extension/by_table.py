"""Stretch a model by a longer learned table of positions."""

import copy
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.checkpoints.conversion.tables import resize_positions
from posenc.checkpoints.extension.methods import FirstLosses, Method, Stretch
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.formats import huggingface, load
from posenc.checkpoints.formats.learned_tables import PositionTable, part_cells, position_tables, resize_config
from posenc.checkpoints.formats.load import LoadedModel
from posenc.checkpoints.measures.all_measures import measures_for
from posenc.checkpoints.vocabulary.reading import Reading
from posenc.foreign import quote, suggestion

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TABLE_METHODS = {
    "clamp": "every position past the table has its last row",
    "repeat": "past the table it begins again with its first row",
    "nearest": "the table stretched over the target, each position with the nearest row",
    "linear": "the table stretched over the target, mixed linearly between rows",
    "cubic": "the table stretched over the target by cubic convolution",
}
"""The methods that lengthen a table from the trained length to the target."""


@dataclass
class ByTable(Stretch):
    """A model whose learned tables are made longer."""

    tables: Sequence[PositionTable]
    models: "dict[str, PreTrainedModel]" = field(default_factory=dict)
    """The model that was stretched last, by its method."""

    @classmethod
    def plan(cls, checkpoint: LoadedModel, reading: Reading, settings: Settings, names: Sequence[str]) -> "ByTable":
        """Plan the methods of these names. Raises ValueError for an unknown one, and without a measure or a length."""
        for name in names:
            if name not in ("all", "none", *TABLE_METHODS):
                raise ValueError(
                    f"{quote(name)} is no method for a learned table{suggestion(name, TABLE_METHODS)}; there are: "
                    f"{', '.join(TABLE_METHODS)}, or all"
                )
        if not (fitting := measures_for(checkpoint)):
            raise ValueError(
                f"posenc has no measure for a {type(checkpoint.model).__name__}, so that nothing says which method is "
                f"best; posenc convert makes its table longer, by --max-length, or --grid for images"
            )
        tables = model_tables(checkpoint.model, reading)
        length, config = tables[0].cells[0], checkpoint.config_keys()
        target = round(length * settings.factor)
        longer = resize_config(config, tables, (target,))
        rows = tuple(f"{table.name}: {length} positions" for table in tables)
        new_rows = tuple(f"{row} to {target}" for row in rows)
        methods = [Method("none", "the model as it is", rows)]
        for name in TABLE_METHODS if "all" in names else dict.fromkeys(names):
            if name != "none":
                methods.append(Method(name, TABLE_METHODS[name], new_rows, config=longer))
        words = f"Its table has {length:,} positions, and is to have {target:,}."
        return cls(length, target, tuple(methods), {}, words, checkpoint, config, fitting, tables)

    def reach(self, method: Method, lengths: Sequence[int]) -> tuple[int, ...]:
        """Return the lengths that a method reaches: the original model ends with its table."""
        return tuple(length for length in lengths if method.name != "none" or length <= self.trained_length)

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        # These methods keep the rows of the old table.
        if method.name == "none" or (method.name in ("clamp", "repeat") and length <= self.trained_length):
            return {"table": "as it is"}
        return {"table": method.name, "positions": self.target}

    @contextmanager
    def model_with(self, method: Method, length: int) -> Generator["PreTrainedModel"]:
        if method.name == "none":
            yield self.checkpoint.model
            return
        if method.name not in self.models:
            self.models.clear()
            self.models[method.name] = stretch_model(self.checkpoint, self.tables, self.target, method.name)
        yield self.models[method.name]

    def write(self, method: Method, where: Path) -> None:
        """Write the model with the longer table, its config, and its tokenizer with the new length."""
        model = stretch_model(self.checkpoint, self.tables, self.target, method.name)
        tokenizer = copy.deepcopy(self.checkpoint.tokenizer)
        if tokenizer is not None:
            tokenizer.model_max_length = self.target
        LoadedModel(model, tokenizer, model.config, self.checkpoint.path).save_huggingface(where)

    def verify(self, method: Method, where: Path, losses: FirstLosses) -> dict[str, Any]:
        """Check that transformers loads every weight as it was measured."""
        self.models.clear()
        with torch.inference_mode():
            expected = dict(stretch_model(self.checkpoint, self.tables, self.target, method.name).named_parameters())
            options = {"dtype": self.checkpoint.model.dtype, "device": str(self.checkpoint.model.device)}
            del self.checkpoint
            actual = dict(load.load(where, **options).model.named_parameters())
        for name, tensor in expected.items():
            if name not in actual or not torch.equal(tensor, actual[name]):
                raise RuntimeError(f"the written checkpoint has another {name} than what was measured; it is not kept")
        return {"words": "transformers loads it, and every weight of it is the one that was measured."}


def is_by_table(reading: Reading) -> bool:
    """Whether a model encodes positions in learned tables alone."""
    specs = {layer.spec for part in reading.parts for layer in part.layers}
    return bool(reading.parts) and all(map(part_cells, reading.parts)) and specs <= {"none"}


def resize_table(table: Tensor, first: int, length: int, method: str) -> Tensor:
    """Return a table [first + positions, dim] with another number of positions, by one of TABLE_METHODS.

    Rows are stretched end to end, i -> i (n - 1)/(m - 1): the last position has the last row.

    >>> resize_table(torch.tensor([[0.0], [1.0]]), 0, 3, "linear").flatten()
    tensor([0.0000, 0.5000, 1.0000])
    """
    if method not in ("clamp", "repeat"):
        return resize_positions(table, length, method, offset=first)
    count, old = torch.arange(length), len(table) - first
    return torch.cat((table[:first], table[first:][count.clamp(max=old - 1) if method == "clamp" else count % old]))


def stretch_model(
    checkpoint: LoadedModel, tables: Sequence[PositionTable], target: int, method: str
) -> "PreTrainedModel":
    """Build the model with tables for the target (tokens), in memory."""
    # Parameters alone: transformers makes buffers of positions anew, in the new length.
    state = {name: parameter.detach().cpu() for name, parameter in checkpoint.model.named_parameters()}
    for table in tables:
        whole = state[table.name]
        new = resize_table(whole.reshape(-1, whole.shape[-1]), table.first, target, method)
        state[table.name] = new.view(*whole.shape[:-2], *new.shape)
    with load.quietly():
        config = type(checkpoint.config).from_dict(resize_config(checkpoint.config.to_dict(), tables, (target,)))
        kind = type(checkpoint.model)
        model = kind.from_pretrained(None, config=config, state_dict=state, dtype=checkpoint.model.dtype)
    return model.eval().to(checkpoint.model.device)


def model_tables(model: "PreTrainedModel", reading: Reading | None = None) -> list[PositionTable]:
    """Return the learned tables of positions of a live model."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return position_tables(reading or huggingface.read(model.config), shapes)
