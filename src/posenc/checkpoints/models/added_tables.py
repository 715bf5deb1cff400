"""Follow the tables that a dry run adds, unchanged or resampled, and the grid of patches of each."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

ADDS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__}

CONVOLUTIONS = {F.conv2d, F.conv3d}

RESAMPLES = {F.interpolate, F.embedding_bag}

MAX_EXTRA_ROWS = 16
"""Fewer extra rows than this belong to tokens beside the patches, such as a class token."""


class TableAdditions:
    """Follow tables to their addition; a tensor computed from one table alone counts as that table.

    rows   path of a table with consecutive rows added unchanged -> the first of these rows
    cells  path of a table that was added unchanged, or resampled -> its cells on each axis: those after resampling,
           else those of the convolution that made patches; () if neither is a grid of its rows
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tables = {path: x for path, x in tensors.items() if x.dim() > 1 and x.is_floating_point()}
        self.origin = WeakTensorKeyDictionary({table: path for path, table in self.tables.items()})
        self.target_cells: dict[str, tuple[int, ...]] = {}
        self.resampled_paths: set[str] = set()
        self.patches: tuple[int, ...] = ()
        self.rows: dict[str, int] = {}
        self.cells: dict[str, tuple[int, ...]] = {}

    def __call__(self, func: Callable[..., Any], args: tuple, out: object) -> None:
        """Record a call of a torch function."""
        # embedding_bag sums some rows for each patch; a tensor without axes is a number.
        arguments = tree_leaves(args[1] if func is F.embedding_bag else args)
        terms = [x for x in arguments if isinstance(x, Tensor) and x.dim()]
        paths = [self.origin.get(term) for term in terms]
        if func in CONVOLUTIONS and isinstance(out, Tensor):
            self.patches = tuple(out.shape[2:])
        elif len(set(paths)) == 1 and paths[0] and isinstance(out, Tensor):
            if func is Tensor.__getitem__ and out.dim() < terms[0].dim() and out.numel() < terms[0].numel():
                # A slice of a stack of tables, such as the table of a layer, is not the whole.
                return
            self.origin[out] = paths[0]
            self.resampled_paths |= {paths[0]} if func in RESAMPLES else set()
            self.target_cells[paths[0]] = self.target_cells.get(paths[0]) or self.grid(paths[0], out.shape)
        elif func in ADDS:
            for path, term in zip(paths, terms, strict=True):
                if path:
                    self.add(path, term)

    def add(self, path: str, term: Tensor) -> None:
        table = self.tables[path]
        wide = table.shape[-1]
        # A view of a table shares its memory; a computed tensor does not.
        as_it_stands = not term.is_meta and term.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
        if as_it_stands:
            first = term.storage_offset() // wide
            self.rows[path] = min(self.rows.get(path, first), first)
        # A video has patches in all frames, or in each frame.
        patch_cells = self.grid(path, (*self.patches, wide)) or self.grid(path, (*self.patches[-2:], wide))
        if self.target_cells.get(path) or as_it_stands or path in self.resampled_paths:
            self.cells.setdefault(path, self.target_cells.get(path) or patch_cells)

    def grid(self, path: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape's cells on each axis if the table has these rows and few others; else ()."""
        *rows, wide = self.tables[path].shape
        sizes = [n for n in shape if n > 1]
        if wide in sizes:
            sizes.remove(wide)
        return tuple(sizes) if len(sizes) > 1 and 0 <= math.prod(rows) - math.prod(sizes) < MAX_EXTRA_ROWS else ()
