"""Tables of positions of another size, with the config, the tokenizer and the buffers that follow."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from posenc.checkpoints.conversion import tables
from posenc.checkpoints.conversion.source import Plan, Source
from posenc.checkpoints.formats.learned_tables import Table, asking_for, ends_alike, grown, tables_of
from posenc.checkpoints.inspection import configs
from posenc.foreign import read_json


def plan_positions(plan: Plan, source: Source, length: int, how: str) -> None:
    """Tables of positions in a row, resized; the keys of the config and the tokenizer that name their length follow."""
    found = [one for one in learned_tables(source) if len(one.cells) == 1]
    if not found:
        raise ValueError(
            "this checkpoint has no learned table of positions in a row to resize; a rotary model is extended with "
            "`posenc extend`, a learned grid with grid"
        )
    for table in found:
        (old,) = table.cells
        if old == length:
            raise ValueError(f"the table has {length} positions already; nothing was written")
        rows = {old, old + table.first}
        for name, tensor in source.described.items():
            counts = name.endswith("position_ids") and tensor.shape[-1] in rows and not tensor.is_floating_point()
            # An encoder and a decoder may share tables, so what one has changed the other leaves alone.
            if counts and name not in plan.changes:
                plan.change(name, "counted further", partial(counted, grow=length - old))
        for file in source.files:
            if file.name == "tokenizer_config.json":
                said = plan.edited.get(file.name) or read_json(file)
                if said.get("model_max_length") == old:
                    plan.edited[file.name] = said | {"model_max_length": length}
    resize(plan, found, (length,), how)
    plan.notes.append("Fine-tune the model, or measure it: positions now lie closer together than in training.")


def plan_grid(plan: Plan, source: Source, grid: tuple[int, ...], how: str) -> None:
    """Tables of a grid, resized; image_size follows."""
    found = [one for one in learned_tables(source) if len(one.cells) > 1]
    if not found:
        raise ValueError("this checkpoint has no learned grid to resize")
    for table in found:
        if len(grid) != len(table.cells):
            raise ValueError(f"the grid of this checkpoint has {len(table.cells)} axes, got {grid}")
        if grid == table.cells:
            raise ValueError(f"the grid has {' x '.join(map(str, grid))} cells already; nothing was written")
    resize(plan, found, grid, how)
    if len(set(grid)) > 1:
        plan.notes.append(
            "Some models of transformers, such as DINOv2, take every table for one of a square grid; try it."
        )


def learned_tables(source: Source) -> list[Table]:
    return tables_of(source.reading, {name: tuple(tensor.shape) for name, tensor in source.described.items()})


def resize(plan: Plan, found: Sequence[Table], cells: tuple[int, ...], how: str) -> None:
    """Tables of other cells, and the config that asks for them."""
    before, plan.config = plan.config, asking_for(plan.config, found, cells)
    plan.reading = configs.read(plan.config, "transformers")
    for name in grown(before, plan.config):
        if not any(ends_alike(name, one) for one in (*plan.changes, *(table.name for table in found))):
            raise ValueError(f"{name} grows with it, and posenc does not know by which rule; nothing was written")
    for table in found:
        old, new = (" x ".join(map(str, size)) for size in (table.cells, cells))
        unit = "positions " if len(cells) == 1 else ""
        if len(cells) == 1:
            change = partial(tables.resize_positions, length=cells[0], how=how, offset=table.first)
        else:
            change = partial(tables.resize_grid, old=table.cells, new=cells, how=how, prefix=table.first)
        plan.change(table.name, f"resized from {old} to {new} {unit}({how})", change)


def counted(ids: Tensor, grow: int) -> Tensor:
    return torch.arange(ids.shape[-1] + grow, dtype=ids.dtype).expand(*ids.shape[:-1], -1).contiguous()
