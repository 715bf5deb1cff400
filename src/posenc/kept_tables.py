"""Tables that outlive a forward pass, and what they are known by: all that an encoding holds.

A key that is written by hand forgets an option sooner or later, and the second of two encodings gets the first one's
table. So a key is made of everything, and a table is computed from a copy that holds nothing else.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from types import MethodType
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from posenc.positions import Positions
from posenc.shared_tables import once
from posenc.watched import is_watched

Module = TypeVar("Module", bound=nn.Module)

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


OF_EVERY_MODULE = (frozenset(vars(nn.Module())) - {"training"}) | {"bare", "kept_tables"}
"""What says nothing of what a module computes, or may change unseen: parameters, buffers, modules, hooks."""


class KeptTables:
    """Tables that outlive a forward pass, cut into windows of rows: none is needed, and each only saves time.

    A request is served from the window of 1,024 rows, or of the next power of two above its tokens, that it lies in;
    windows begin at multiples of their length, so that decoding needs a new one every 1,024 tokens, wherever it is.
    What lies across two windows is computed and not kept. The windows that nobody asked for the longest go first.

    limit  how much memory they may take together (bytes); no window takes more than half of it
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self.windows: OrderedDict[Hashable, Tensor] = OrderedDict()
        # The rows that were asked for last: each layer of a model asks for the same.
        self.last: dict[Hashable, tuple[int, int, Tensor]] = {}
        # What an encoding holds -> the bare one that stands for it, as long as somebody asks for its tables.
        self.bare: WeakValueDictionary[Hashable, nn.Module] = WeakValueDictionary()
        self.lock = threading.Lock()

    def bare_of(self, module: Module) -> Module:
        """A module that holds the constants of this one alone: no parameter, no other module, nothing that may change.

        The same one for all modules of a class that hold the same constants, so that it can stand for them in a key.
        Raises AttributeError where a constant of the class would show in place of what is left out.
        """
        held, facts = {}, []
        for name, value in vars(module).items():
            if name in OF_EVERY_MODULE:
                continue
            try:
                facts.append((name, fact(value)))
            except TypeError as reason:
                if hasattr(type(module), name):
                    raise AttributeError(f"{name} cannot be named in a key: {reason}") from reason
            else:
                held[name] = value
        key = (type(module), frozenset(facts))
        with self.lock:
            bare = self.bare.get(key)
            if bare is None:
                bare = object.__new__(type(module))
                vars(bare).update(held)
                self.bare[key] = bare
        return cast(Module, bare)

    def rows(self, key: Hashable, start: int, tokens: int, make: Callable[[Positions], Tensor]) -> Tensor | None:
        """Rows start..start + tokens - 1 of the table that `make` computes, or None where they are not to be kept."""
        asked = self.last.get(key)
        if asked is not None and asked[0] == start and asked[1] == tokens:
            return asked[2]
        size = max(1024, 1 << (tokens - 1).bit_length())
        first = start - start % size
        if start + tokens > first + size:
            return None
        of = key, size, first
        window = self.window(of, lambda: make(Positions.count(size, first, device="cpu")))
        if window is None:
            return None
        rows = window.narrow(-2, start - first, tokens)
        with self.lock:
            # They are a view, and would hold the memory of a window that another thread has pushed out.
            if of in self.windows:
                self.last[key] = start, tokens, rows
        return rows

    def window(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor | None:
        with self.lock:
            if key in self.windows:
                self.windows.move_to_end(key)
                return self.windows[key]
        # One that can be saved for a gradient, whoever asks for it first.
        with torch.inference_mode(False), torch.no_grad():
            table = make()
        # A meta or a fake tensor, made under somebody's context, is no table for anybody else.
        if type(table) is not Tensor or not table.is_cpu or table.nbytes > self.limit // 2:
            return None
        with self.lock:
            if key not in self.windows:
                self.windows[key] = table
                self.held += table.nbytes
            while self.held > self.limit:
                _, oldest = self.windows.popitem(last=False)
                self.held -= oldest.nbytes
                # They are views, and would hold the memory of what goes.
                self.last.clear()
        return table

    def clear(self) -> None:
        """Forget all of them."""
        with self.lock:
            self.windows.clear()
            self.last.clear()
            self.held = 0


KEPT = KeptTables(64 << 20)
"""What this process keeps."""


class KeepsTables(nn.Module):
    """A module whose tables are computed from a copy of it that holds constants alone, and shared by all its likes."""

    kept_tables: KeptTables = KEPT
    """Where rows of its tables are kept: with those of all others, for the whole process."""

    bare: "KeepsTables | None" = None
    """The module without all that may change unseen, which names its tables; made when the first is asked for."""

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
        return {name: value for name, value in vars(self).items() if name not in ("bare", "kept_tables")}

    def once(
        self, make: MethodType, at: Positions, *given: Hashable, keep: bool = False, unwatched: bool = False
    ) -> Tensor:
        """The table `make(at, *given)`, computed once for all layers that ask with these positions.

        `make` is a method of this module, and what is given besides positions is plain: dtypes, devices, numbers. The
        table is known by the class, by every constant that the module holds, and by what is given; and `make` sees a
        copy that holds nothing else, so that no option can be forgotten. What reads a parameter, a module, or an object
        that could change unseen is computed at every call.

        keep       whether rows are kept beyond this forward pass where tokens count up from a known start, so that a
                   decoded token finds its own. `make` then gives [..., T, columns] and computes each row by itself. On
                   the CPU only: elsewhere a table may belong to one stream, or to a graph that is being captured
        unwatched  said by a caller who knows that nothing is compiled and nobody watches
        """
        # A constant that is a tensor may be without numbers under somebody's mode, and only this encoding's own is so.
        if not unwatched and (torch.compiler.is_compiling() or is_watched()):
            return make(at, *given)
        if getattr(make, "__self__", None) is not self:
            raise ValueError(f"{self} asked for a table by {make}; give a method of the encoding that asks")
        try:
            bare = self.bare
            if bare is None:
                vars(self)["bare"] = bare = self.kept_tables.bare_of(self)
            method = make.__func__
            key = bare, method, given
            if keep and (start := at.start) is not None:
                rows = self.kept_tables.rows(key, start, at.tokens, lambda at: method(bare, at, *given))
                if rows is not None:
                    return rows
            return once(at, key, lambda: method(bare, at, *given))
        except AttributeError:
            return make(at, *given)
