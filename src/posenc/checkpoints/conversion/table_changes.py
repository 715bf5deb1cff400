"""Plan the resizing of position tables, with the config, the tokenizer and the buffers that depend on them."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from posenc.checkpoints.conversion import tables
from posenc.checkpoints.conversion.source import ConversionPlan, Source
from posenc.checkpoints.formats import learned_tables
from posenc.checkpoints.formats.learned_tables import PositionTable
from posenc.checkpoints.inspection import configs
from posenc.foreign import read_json


def plan_positions(plan: ConversionPlan, source: Source, length: int, how: str) -> None:
    """Plan new tables of positions in one dimension, and their length in the config and the tokenizer."""
    learned = [table for table in source_tables(source) if len(table.cells) == 1]
    if not learned:
        raise ValueError(
            "this checkpoint has no learned table of positions in a row to resize; a rotary model is extended with "
            "`posenc extend`, a learned grid with grid"
        )
    for table in learned:
        (old,) = table.cells
        if old == length:
            raise ValueError(f"the table has {length} positions already; nothing was written")
        rows = {old, old + table.first}
        for name, tensor in source.meta_tensors.items():
            counts = name.endswith("position_ids") and tensor.shape[-1] in rows and not tensor.is_floating_point()
            # An encoder and a decoder may share a table, which changes once.
            if counts and name not in plan.changes:
                plan.change(name, "counted further", partial(longer_position_ids, extra=length - old))
        for file in source.files:
            if file.name == "tokenizer_config.json":
                tokenizer_config = plan.edited_files.get(file.name) or read_json(file)
                if tokenizer_config.get("model_max_length") == old:
                    plan.edited_files[file.name] = tokenizer_config | {"model_max_length": length}
    resize_tables(plan, learned, (length,), how)
    plan.notes.append("Fine-tune the model, or measure it: positions now lie closer together than in training.")


def plan_grid(plan: ConversionPlan, source: Source, grid: tuple[int, ...], how: str) -> None:
    """Plan new tables of a grid, and image_size."""
    learned = [table for table in source_tables(source) if len(table.cells) > 1]
    if not learned:
        raise ValueError("this checkpoint has no learned grid to resize")
    for table in learned:
        if len(grid) != len(table.cells):
            raise ValueError(f"the grid of this checkpoint has {len(table.cells)} axes, got {grid}")
        if grid == table.cells:
            raise ValueError(f"the grid has {' x '.join(map(str, grid))} cells already; nothing was written")
    resize_tables(plan, learned, grid, how)
    if len(set(grid)) > 1:
        plan.notes.append("Some models of transformers, such as DINOv2, assume that the grid is square; try it.")


def source_tables(source: Source) -> list[PositionTable]:
    return learned_tables.position_tables(
        source.reading, {name: tuple(tensor.shape) for name, tensor in source.meta_tensors.items()}
    )


def resize_tables(plan: ConversionPlan, learned: Sequence[PositionTable], cells: tuple[int, ...], how: str) -> None:
    """Plan tables with other numbers of cells, and the config for them."""
    old_config, plan.config = plan.config, learned_tables.resize_config(plan.config, learned, cells)
    plan.reading = configs.read(plan.config, "transformers")
    for name in learned_tables.resized_tensors(old_config, plan.config):
        if not any(
            learned_tables.common_steps(name, known_name)
            for known_name in (*plan.changes, *(table.name for table in learned))
        ):
            raise ValueError(f"{name} grows with it, and posenc does not know by which rule; nothing was written")
    for table in learned:
        old, new = (" x ".join(map(str, size)) for size in (table.cells, cells))
        if len(cells) == 1:
            change = partial(tables.resize_positions, length=cells[0], how=how, offset=table.first)
            new += " positions"
        else:
            change = partial(tables.resize_grid, old=table.cells, new=cells, how=how, prefix=table.first)
        plan.change(table.name, f"resized from {old} to {new} ({how})", change)


def longer_position_ids(ids: Tensor, extra: int) -> Tensor:
    return torch.arange(ids.shape[-1] + extra, dtype=ids.dtype).expand(*ids.shape[:-1], -1).contiguous()
