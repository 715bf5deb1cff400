"""Which tables a dry run adds to something, as they stand or resampled, and the grid of patches of each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

ADDS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__}

CONVOLUTIONS = {F.conv2d, F.conv3d}

RESAMPLES = {F.interpolate, F.embedding_bag}

BESIDES = 16
"""Fewer rows than that are of tokens beside the patches, such as that of a class."""


class Added:
    """Follows tables to where they are added: what is computed of one table alone is that table still.

    rows   path of a table whose rows were added as they stand, all of them or some in a row -> the first of them
    cells  path of a table that was added as it stands, or resampled -> its cells on each axis: those that it was
           brought to, else those of the convolution that made patches; () where neither is a grid of its rows
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tables = {path: x for path, x in tensors.items() if x.dim() > 1 and x.is_floating_point()}
        self.origin = WeakTensorKeyDictionary({table: path for path, table in self.tables.items()})
        self.brought: dict[str, tuple[int, ...]] = {}
        self.resampled: set[str] = set()
        self.patches: tuple[int, ...] = ()
        self.rows: dict[str, int] = {}
        self.cells: dict[str, tuple[int, ...]] = {}

    def __call__(self, func: Any, args: tuple, out: Any) -> None:
        """A function of torch was called."""
        # A bag of rows is a weighted sum of some for each patch, and a tensor without axes is a number.
        held = tree_leaves(args[1] if func is F.embedding_bag else args)
        terms = [x for x in held if isinstance(x, Tensor) and x.dim()]
        paths = [self.origin.get(term) for term in terms]
        if func in CONVOLUTIONS:
            self.patches = tuple(out.shape[2:])
        elif len(set(paths)) == 1 and paths[0] and isinstance(out, Tensor):
            if func is Tensor.__getitem__ and out.dim() < terms[0].dim() and out.numel() < terms[0].numel():
                # One of several tables that stand in one, such as that of a layer, is not the whole.
                return
            self.origin[out] = paths[0]
            self.resampled |= {paths[0]} if func in RESAMPLES else set()
            self.brought[paths[0]] = self.brought.get(paths[0]) or self.grid(paths[0], out.shape)
        elif func in ADDS:
            for path, term in zip(paths, terms, strict=True):
                if path:
                    self.add(path, term)

    def add(self, path: str, term: Tensor) -> None:
        table = self.tables[path]
        wide = table.shape[-1]
        # A view of a table has its memory; what was computed of it has not.
        as_it_stands = not term.is_meta and term.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()
        if as_it_stands:
            first = term.storage_offset() // wide
            self.rows[path] = min(self.rows.get(path, first), first)
        # Of a video, all its patches or those of each frame.
        made = self.grid(path, (*self.patches, wide)) or self.grid(path, (*self.patches[-2:], wide))
        if self.brought.get(path) or as_it_stands or path in self.resampled:
            self.cells.setdefault(path, self.brought.get(path) or made)

    def grid(self, path: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The cells on each axis of a shape, where a table has rows for them and few besides; else ()."""
        *rows, wide = self.tables[path].shape
        sizes = [n for n in shape if n > 1]
        if wide in sizes:
            sizes.remove(wide)
        return tuple(sizes) if len(sizes) > 1 and 0 <= math.prod(rows) - math.prod(sizes) < BESIDES else ()
