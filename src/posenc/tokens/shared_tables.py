"""Tables of encodings, computed once: per forward pass (`once`) or kept for the process (`kept_rows`, `constant`)."""

from collections.abc import Callable, Hashable, Sequence
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from posenc.tokens.positions import TENSOR_FIELDS, Positions
from posenc.tokens.tracing import is_watched

Table = TypeVar("Table")

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes of every nn.Module, which are no options of an encoding."""

IDENTITY_HASHES = (None, object.__hash__, Tensor.__hash__)
"""Hash functions of mutable types: their hash does not change with the value."""

WINDOW_ROWS, MAX_WINDOWS = 1024, 32
"""Rows of a kept window of a table; windows kept at most, over all tables."""

KEPT_WINDOWS: dict[Hashable, Tensor] = {}
"""(key of the table, first row) -> WINDOW_ROWS rows of that table, [..., rows, columns] (CPU), oldest first."""

CONSTANTS: dict[Hashable, Tensor] = {}
"""(key of the constant, device) -> the constant on that device; never dropped."""


def once(at: Positions, key: Hashable, make: Callable[[], Table]) -> Table:
    """Return the table that `make` computes from these positions, shared by all layers of a forward pass.

    `key` must name everything that `make` reads besides the positions; `Encoding.once` builds it. The table is stored
    in `at.tables` and lives as long as the positions. Nothing is stored under compilation, where the graph shares equal
    computations.
    """
    if torch.compiler.is_compiling() or is_watched():
        return make()
    # A table made in inference mode cannot be saved for backward, and one made without gradients has none.
    key = (key, tensor_versions(at), torch.is_inference_mode_enabled(), torch.is_grad_enabled())
    if key not in at.tables:
        table = make()
        # A graph serves one backward pass.
        if isinstance(table, Tensor) and table.requires_grad:
            return table
        at.tables[key] = table
    return at.tables[key]


def kept_rows(at: Positions, key: Hashable, make: Callable[[Positions], Tensor]) -> Tensor:
    """Return the rows [..., T, columns] of a CPU table at these positions, from a kept window.

    `make` computes each row alone. Windows of WINDOW_ROWS rows stay between passes, so decoded tokens find their rows.
    Positions that do not count up from a known start, or that cross a window, use `once` instead.
    """
    start, tokens = at.start, at.tokens
    if start is None or start % WINDOW_ROWS + tokens > WINDOW_ROWS or is_watched():
        return once(at, key, lambda: make(at))
    first = start - start % WINDOW_ROWS
    window = KEPT_WINDOWS.get((key, first))
    if window is None:
        # A table made in inference mode could not be saved for a gradient later.
        with torch.inference_mode(False), torch.no_grad():
            window = KEPT_WINDOWS[key, first] = make(Positions.count(WINDOW_ROWS, first, device="cpu"))
        for oldest in list(KEPT_WINDOWS)[:-MAX_WINDOWS]:
            KEPT_WINDOWS.pop(oldest, None)
    return window.narrow(-2, start - first, tokens)


def constant(key: Hashable, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
    """Return the tensor that `make` creates on a device, created once; `key` names everything it depends on.

    It is never dropped: a captured CUDA graph reads it at its address.
    """
    if device.type == "cpu" or torch.compiler.is_compiling() or is_watched():
        return make()
    tensor = CONSTANTS.get((key, device))
    if tensor is None:
        with torch.inference_mode(False), torch.no_grad():
            tensor = CONSTANTS[key, device] = make()
    return tensor


def number_tensor(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor [n] of numbers. On a GPU it is filled element by element: a copy would break a CUDA graph."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype, device=device)

    def filled_tensor() -> Tensor:
        tensor = torch.empty(len(values), dtype=dtype, device=device)
        for index, value in enumerate(values):
            tensor[index].fill_(value)
        return tensor

    return constant((tuple(values), dtype), device, filled_tensor)


def module_options(module: nn.Module) -> tuple[tuple[str, Any], ...] | None:
    """Return a module's options as (name, value) pairs; None for state or a mutable option."""
    if module._parameters or module._buffers or module._modules:
        return None
    options = []
    for name, value in vars(module).items():
        if name not in MODULE_ATTRIBUTES:
            if value is not None and type(value).__hash__ in IDENTITY_HASHES:
                return None
            options.append((name, value))
    try:
        hash(tuple(options))
    except TypeError:
        # A frozen dataclass may hold a list.
        return None
    return tuple(options)


class SharesTables(nn.Module):
    """A module whose tables are computed once for all layers of a pass."""

    def once(self, make: MethodType, at: Positions, *args: Hashable, keep: bool = False) -> Tensor:
        """Return the table that the method `make(at, *args)` computes, once for all layers of a forward pass.

        The args are hashable: dtypes, devices, numbers. A module with parameters, buffers, submodules or a mutable
        option computes it at every call. With `keep`, rows are kept across forward passes (`kept_rows`): the table is
        [..., T, columns] on the CPU, each row independent of the others.
        """
        options = None if torch.compiler.is_compiling() else module_options(self)
        if options is None:
            return make(at, *args)
        key = type(self), options, make.__func__, args
        return kept_rows(at, key, lambda at: make(at, *args)) if keep else once(at, key, lambda: make(at, *args))


def tensor_versions(at: Positions) -> tuple[int, ...]:
    """Return PyTorch's version counters of the tensors of these positions; 0 for missing ones.

    Inference mode does not count changes in place.
    """
    facts = map(vars(at).get, TENSOR_FIELDS)
    return tuple([0 if fact is None or fact.is_inference() else fact._version for fact in facts])


def all_versions(*positions: Positions) -> tuple[tuple[int, ...], ...]:
    """Return the version counters of several positions, for `check_versions` in a backward pass that rereads them."""
    return tuple(tensor_versions(at) for at in positions)


def check_versions(saved_versions: tuple[tuple[int, ...], ...], *positions: Positions) -> None:
    """Raise RuntimeError if positions were changed in place since the versions were saved."""
    if all_versions(*positions) != saved_versions:
        raise RuntimeError(
            "positions that the backward pass reads again were changed in place after the forward pass; give each call "
            "its own, as Positions.of(ids.clone())"
        )
