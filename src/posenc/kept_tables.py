"""Tables that outlive a forward pass, and what they are known by: all that an encoding holds.

A key that is written by hand forgets an option sooner or later, and the second of two encodings gets the first one's
table. So a key is made of everything, and a table is computed from a copy that holds nothing else.
"""

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from types import MethodType
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from posenc.positions import Positions
from posenc.shared_tables import once
from posenc.watched import is_watched

CONSTANT = (type(None), bool, int, str, bytes, range, torch.dtype, torch.device)
"""Types whose values never change, and are equal only where they compute the same."""


def fact(value: Any) -> Hashable:
    """What stands for a value in a key: equal only for values of which every computation makes the same.

    Raises TypeError for a value that may change unseen: a tensor, a list, an object with a state.
    """
    if type(value) in CONSTANT or isinstance(value, type):
        return type(value), value
    if type(value) is float:
        # 0.0 equals -0.0, and nan does not equal itself.
        return float, value.hex()
    if isinstance(value, tuple):
        return type(value), tuple(map(fact, value))
    if isinstance(value, frozenset):
        return type(value), frozenset(map(fact, value))
    if is_dataclass(value) and value.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return type(value), tuple(fact(getattr(value, field.name)) for field in fields(value) if field.compare)
    raise TypeError(f"a {type(value).__name__} may change unseen")


OF_EVERY_MODULE = (frozenset(vars(nn.Module())) - {"training"}) | {"bare"}
"""What says nothing of what a module computes, or may change unseen: parameters, buffers, modules, hooks."""

WINDOW, LARGEST = 1024, 32 << 20
"""The fewest rows that are kept of a table, and the most memory that they may take (bytes)."""


class KeepsTables(nn.Module):
    """A module whose tables are computed from a copy of it that holds constants alone, and shared by all its likes."""

    bare: "KeepsTables | None" = None
    """The copy, which names its tables and keeps their rows; made when the first is asked for."""

    kept_windows: dict[Hashable, tuple[int, Tensor]]
    """Of a copy: table -> where its rows begin that are kept, and these."""

    def __setattr__(self, name: str, value: Any) -> None:
        if "_modules" not in vars(self) and vars(self):
            raise AttributeError(f"a table is computed from {type(self).__name__}, and may not set its {name}")
        super().__setattr__(name, value)
        # Another option makes other tables.
        vars(self).pop("bare", None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        vars(self).pop("bare", None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "bare"}

    def once(self, make: MethodType, at: Positions, *given: Hashable, keep: bool = False) -> Tensor:
        """The table `make(at, *given)`, computed once for all layers that ask with these positions.

        `make` is a method of this module, and what is given besides positions is plain: dtypes, devices, numbers. The
        table is known by the class, by every constant that the module holds, and by what is given; and `make` sees a
        copy that holds nothing else, so that no option can be forgotten. What reads a parameter, a module, or an object
        that could change unseen is computed at every call.

        keep  whether rows are kept beyond this forward pass where tokens count up from a known start, so that a decoded
              token finds its own. `make` then gives [..., T, columns] and computes each row by itself. On the CPU only:
              elsewhere a table may belong to one stream, or to a graph that is being captured
        """
        # A constant that is a tensor may be without numbers under somebody's mode, and only this encoding's own is so.
        if torch.compiler.is_compiling() or is_watched():
            return make(at, *given)
        if getattr(make, "__self__", None) is not self:
            raise ValueError(f"{self} asked for a table by {make}; give a method of the encoding that asks")
        try:
            bare = self.bare
            if bare is None:
                key, bare = bare_of(self)
                vars(self)["bare"] = bare = BARE.setdefault(key, bare)
            method = make.__func__
            if keep and (start := at.start) is not None:
                rows = bare.rows_kept((method, given), start, at.tokens, lambda at: method(bare, at, *given))
                if rows is not None:
                    return rows
            return once(at, (bare, method, given), lambda: method(bare, at, *given))
        except AttributeError:
            return make(at, *given)

    def rows_kept(self, table: Hashable, start: int, tokens: int, make: Callable[[Positions], Tensor]) -> Tensor | None:
        """Rows start..start + tokens - 1 of the table that `make` computes, or None where they are not to be kept.

        Of each table one window of rows is kept, which begins at a multiple of its length: decoding needs a new one
        every 1,024 tokens, wherever it is.
        """
        first, window = self.kept_windows.get(table, (0, None))
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
            self.kept_windows[table] = first, window
        return window.narrow(-2, start - first, tokens)


BARE: WeakValueDictionary[Hashable, KeepsTables] = WeakValueDictionary()
"""What a module holds -> the copy that stands for all modules of its class that hold the same."""


def bare_of(module: KeepsTables) -> tuple[Hashable, KeepsTables]:
    """The constants of a module, as they stand in a key, and a copy that holds them alone.

    Raises AttributeError where a constant of the class would show in place of what is left out.
    """
    constants, facts = {}, []
    for name, value in vars(module).items():
        if name in OF_EVERY_MODULE:
            continue
        try:
            facts.append((name, fact(value)))
        except TypeError as reason:
            if hasattr(type(module), name):
                raise AttributeError(f"{name} cannot be named in a key: {reason}") from reason
        else:
            constants[name] = value
    bare = object.__new__(type(module))
    vars(bare).update(constants, kept_windows={})
    return (type(module), frozenset(facts)), bare


def forget() -> None:
    """Let go of all rows that this process keeps."""
    for bare in list(BARE.values()):
        bare.kept_windows.clear()
