"""Tables that layers share, and that outlive a forward pass: known by the options of the encoding that asks."""

from collections.abc import Callable, Hashable
from dataclasses import is_dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from posenc.positions import Positions
from posenc.shared_tables import once
from posenc.watched import is_watched

CONSTANT = (type(None), bool, int, float, str, bytes, range, type, torch.dtype, torch.device)
"""Types whose values never change."""

OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"_options"}
"""What is no option of a module: its parameters, buffers, modules and hooks, and whether it trains."""

WINDOW, LARGEST, WINDOWS = 1024, 32 << 20, 32
"""The fewest rows that are kept of a table, the most bytes that they may take, and of how many tables."""

KEPT: dict[Hashable, tuple[int, Tensor]] = {}
"""Table -> where the rows begin that are kept, and these."""


def constant(value: Any) -> bool:
    """Whether a value cannot change: a number, a name, a tuple of such, or a frozen dataclass compared by value."""
    if isinstance(value, tuple | frozenset):
        return all(map(constant, value))
    frozen = is_dataclass(value) and value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return isinstance(value, CONSTANT) or (frozen and type(value).__hash__ is not object.__hash__)


def options_of(module: nn.Module) -> tuple[tuple[str, Any], ...] | None:
    """The options of a module that reads nothing else; None where it has a state, or an option that could change."""
    state = (*module._parameters.values(), *module._buffers.values(), *module._modules.values())
    options = tuple([item for item in vars(module).items() if item[0] not in OF_EVERY_MODULE])
    if any(part is not None for part in state) or not all([constant(value) for _, value in options]):
        return None
    try:
        hash(options)
    except TypeError:
        # A frozen dataclass may hold a list.
        return None
    return options


class KeepsTables(nn.Module):
    """A module whose tables are shared by all modules of its class with the same options."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        vars(self).pop("_options", None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        vars(self).pop("_options", None)

    def once(self, make: MethodType, at: Positions, *given: Hashable, keep: bool = False) -> Tensor:
        """The table `make(at, *given)`, computed once for all layers that ask with these positions.

        `make` is a method of this module, and what is given besides positions is plain: dtypes, devices, numbers. A
        module that holds parameters, buffers, modules, or an option that could change unseen computes it at every call.

        keep  whether rows are kept beyond this forward pass where tokens count up from a known start, so that a decoded
              token finds its own. `make` then gives [..., T, columns] and computes each row by itself. On the CPU only:
              elsewhere a table may belong to one stream, or to a graph that is being captured
        """
        # Under a mode that watches, a constant that is a tensor may be without numbers.
        if torch.compiler.is_compiling() or is_watched():
            return make(at, *given)
        # Listed again only when an option is set: every decoded token comes this way.
        if "_options" not in self.__dict__:
            self.__dict__["_options"] = options_of(self)
        if (options := self.__dict__["_options"]) is None:
            return make(at, *given)
        if getattr(make, "__self__", None) is not self:
            raise ValueError(f"{self} asked for a table by {make}; give a method of the encoding that asks")
        key = self.__class__, options, make.__func__, given
        if keep and (start := at.start) is not None:
            rows = rows_kept(key, start, at.tokens, lambda at: make(at, *given))
            if rows is not None:
                return rows
        return once(at, key, lambda: make(at, *given))


def rows_kept(table: Hashable, start: int, tokens: int, make: Callable[[Positions], Tensor]) -> Tensor | None:
    """Rows start..start + tokens - 1 of the table that `make` computes, or None where they are not to be kept.

    Of each table one window of rows is kept, which begins at a multiple of its length: decoding needs a new one every
    1,024 tokens, wherever it is.
    """
    first, window = KEPT.get(table, (0, None))
    if window is None or start < first or start + tokens > first + window.shape[-2]:
        size = max(WINDOW, 1 << (tokens - 1).bit_length())
        first = start - start % size
        if start + tokens > first + size:
            return None
        # One that can be saved for a gradient, whoever asks for it first.
        with torch.inference_mode(False), torch.no_grad():
            window = make(Positions.count(size, first, device="cpu"))
        # A meta or a fake tensor, made under somebody's context, is no table for anybody else.
        if type(window) is not Tensor or not window.is_cpu or window.nbytes > LARGEST:
            return None
        KEPT[table] = first, window
        for oldest in list(KEPT)[:-WINDOWS]:
            KEPT.pop(oldest, None)
    return window.narrow(-2, start - first, tokens)
