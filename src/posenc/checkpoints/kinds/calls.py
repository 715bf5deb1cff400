"""The calls of a live model: their arguments by name, and positions counted from the padding mask."""

import inspect
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc.positions import Positions

FORMER_NAMES = {"cache": "past_key_values", "cache_length": "past_key_values_length"}
"""What transformers calls an argument since version 5.24 -> what it was called before, and is in older code."""


def name_among(names: Collection[str], name: str) -> str:
    """The name that an argument has among others: its own, or else the one that it had before it was renamed."""
    return name if name in names else FORMER_NAMES.get(name, name)


def cache_name(model: nn.Module) -> str:
    """What a model calls the KV cache, where it is given one and where it gives one back."""
    return name_among(inspect.signature(model.forward).parameters, "cache")


def parameters(kind: type[nn.Module]) -> tuple[str, ...]:
    """The names of what a module is called with."""
    return tuple(inspect.signature(kind.forward).parameters)[1:]


class Call:
    """The arguments of a call as a hook sees them, by name, and what they become.

    What was renamed is read by its newer name: a caller may give it by the former one to a module that has the newer.
    """

    def __init__(self, names: Sequence[str], args: tuple, kwargs: dict[str, Any]) -> None:
        self.names, self.args, self.kwargs = names, list(args), dict(kwargs)

    def __getitem__(self, name: str) -> Any:
        given = dict(zip(self.names, self.args, strict=False)) | self.kwargs
        return given.get(name_among(given, name))

    def __setitem__(self, name: str, value: Any) -> None:
        place = self.names.index(name)
        if place < len(self.args):
            self.args[place] = value
        else:
            self.kwargs[name] = value

    @property
    def changed(self) -> tuple[tuple, dict[str, Any]]:
        return tuple(self.args), self.kwargs


class CountedFromMask:
    """Before a stack: `position_ids` from the padding mask, where a caller gives a mask and no positions.

    The first token of each row is at 0, wherever it stands; padding keeps the place in which it stands.

    first  the id of position 0 at the stack's door: above the padding's in RoBERTa, 0 elsewhere
    """

    def __init__(self, first: int, stack: nn.Module) -> None:
        self.first, self.names = first, parameters(type(stack))

    def __call__(self, stack: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        call = Call(self.names, args, kwargs)
        mask, known = call["attention_mask"], [name for name in ("input_ids", "inputs_embeds") if name in call.names]
        tokens = next((call[name] for name in known if call[name] is not None), None)
        if call["position_ids"] is not None or not isinstance(mask, Tensor) or mask.dim() != 2 or tokens is None:
            return None
        T = tokens.shape[1]
        cache = call["cache"]
        start = 0 if mask.shape[1] == T or cache is None else int(cache.get_seq_length())
        if mask.shape[1] < start + T:
            # The mask does not speak of all tokens; what that means is for the model to say.
            return None
        order = Positions.padded(mask).order
        # Padding has the row before the first, where there is one.
        standing = torch.arange(mask.shape[1], device=mask.device)
        standing = standing.clamp(max=self.first - 1) if self.first else standing
        ids = torch.where(order < 0, standing, order + self.first)
        call["position_ids"] = ids[:, start : start + T]
        return call.changed


def ancestors(path: str) -> Iterator[str]:
    """The paths of the modules around one, nearest first."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def token_door(model: nn.Module, path: str) -> nn.Module | None:
    """The nearest module around a path that takes tokens, their mask and their positions."""
    for above in ancestors(path):
        module = model.get_submodule(above)
        taken = set(parameters(type(module)))
        if {"attention_mask", "position_ids"} <= taken and taken & {"input_ids", "inputs_embeds"}:
            return module
    return None
