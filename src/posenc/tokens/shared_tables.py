"""Tables that live as long as the positions they were computed from, and windows of tables that this process keeps."""

from collections.abc import Callable, Hashable, Sequence
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from posenc.tokens.positions import TENSORS, Positions
from posenc.tokens.watched import is_watched

Table = TypeVar("Table")

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""What is no option of a module: its parameters, buffers, modules and hooks, and whether it trains."""

BY_IDENTITY = (None, object.__hash__, Tensor.__hash__)
"""How types hash whose values may change unseen."""

WINDOW, WINDOWS = 1024, 32
"""How many rows of a table are kept together, and how many such windows."""

KEPT: dict[Hashable, Tensor] = {}
"""Table and first row -> the rows of a window."""

CONSTANTS: dict[Hashable, Tensor] = {}
"""What a constant is made of and its device -> the constant there."""


def once(at: Positions, key: Hashable, make: Callable[[], Table]) -> Table:
    """The table that `make` computes from these positions, computed once and shared by all layers that ask.

    No result may depend on whether the table was there, so `key` must name everything that `make` reads besides the
    positions: encodings ask through `Encoding.once`, which makes it. Positions live for one forward pass, and so do
    their tables; nothing is kept under compilation, where the graph itself shares equal computations.
    """
    if torch.compiler.is_compiling() or is_watched():
        return make()
    # A table made in inference mode cannot be saved for backward, and one made without gradients has none.
    key = (key, version(at), torch.is_inference_mode_enabled(), torch.is_grad_enabled())
    if key not in at.tables:
        table = make()
        # A graph serves one backward pass.
        if isinstance(table, Tensor) and table.requires_grad:
            return table
        at.tables[key] = table
    return at.tables[key]


def kept(at: Positions, key: Hashable, make: Callable[[Positions], Tensor]) -> Tensor:
    """Rows [..., T, columns] of a table on the CPU that `make` computes, each row by itself, from positions.

    Where they count up from a known start within one window, a window is kept beyond the forward pass, so that a
    decoded token finds its own row; other tables are shared as by `once`.
    """
    start, tokens = at.start, at.tokens
    if start is None or start % WINDOW + tokens > WINDOW or is_watched():
        return once(at, key, lambda: make(at))
    first = start - start % WINDOW
    window = KEPT.get((key, first))
    if window is None:
        # One that can be saved for a gradient, whoever asks for it first.
        with torch.inference_mode(False), torch.no_grad():
            window = KEPT[key, first] = make(Positions.count(WINDOW, first, device="cpu"))
        for oldest in list(KEPT)[:-WINDOWS]:
            KEPT.pop(oldest, None)
    return window.narrow(-2, start - first, tokens)


def constant(key: Hashable, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
    """What `make` gives on a device, made once and kept there; `key` names everything that it is made of.

    It is never dropped: a CUDA graph that was captured reads it where it lay.
    """
    if device.type == "cpu" or torch.compiler.is_compiling() or is_watched():
        return make()
    made = CONSTANTS.get((key, device))
    if made is None:
        with torch.inference_mode(False), torch.no_grad():
            made = CONSTANTS[key, device] = make()
    return made


def numbers(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor [n] of numbers. A GPU is given them one by one, once: a copy would wait, and stop a CUDA graph."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=dtype, device=device)

    def filled() -> Tensor:
        made = torch.empty(len(values), dtype=dtype, device=device)
        for place, value in enumerate(values):
            made[place].fill_(value)
        return made

    return constant((tuple(values), dtype), device, filled)


def options_of(module: nn.Module) -> tuple[tuple[str, Any], ...] | None:
    """The options of a module that reads nothing else; None where it has a state, or an option that could change."""
    if module._parameters or module._buffers or module._modules:
        return None
    options = []
    for name, value in vars(module).items():
        if name not in OF_EVERY_MODULE:
            if value is not None and type(value).__hash__ in BY_IDENTITY:
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

    def once(self, make: MethodType, at: Positions, *given: Hashable, keep: bool = False) -> Tensor:
        """The table that the method `make(at, *given)` computes, once for all layers that ask with these positions.

        What is given besides positions is plain: dtypes, devices, numbers. With parameters, buffers, modules, or an
        option that could change unseen, it is computed at every call. `keep` says whether rows may be kept beyond the
        forward pass: of [..., T, columns] on the CPU, each computed by itself.
        """
        options = None if torch.compiler.is_compiling() else options_of(self)
        if options is None:
            return make(at, *given)
        key = type(self), options, make.__func__, given
        return kept(at, key, lambda at: make(at, *given)) if keep else once(at, key, lambda: make(at, *given))


def version(at: Positions) -> tuple[int, ...]:
    """How often whoever holds the tensors of these positions has changed them in place; 0 before they are made.

    Inference mode does not count it.
    """
    made = map(vars(at).get, TENSORS)
    return tuple([0 if fact is None or fact.is_inference() else fact._version for fact in made])


def versions(*of: Positions) -> tuple[tuple[int, ...], ...]:
    """How often each of these was changed in place, for `check_versions` in a backward pass that reads them again."""
    return tuple(version(at) for at in of)


def check_versions(before: tuple[tuple[int, ...], ...], *of: Positions) -> None:
    """Raises RuntimeError where positions were changed in place since."""
    if versions(*of) != before:
        raise RuntimeError(
            "positions that the backward pass reads again were changed in place after the forward pass; give each call "
            "its own, as Positions.of(ids.clone())"
        )
