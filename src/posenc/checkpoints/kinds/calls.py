"""The calls of a live model: their arguments by name, and positions counted from the padding mask."""

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.added.learned import Learned
from posenc.tokens.positions import Positions

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

    The first token of each row is at 0, wherever it stands; padding keeps the place in which it stands. A position past
    the table is an error before the stack runs, whose own code would fail at whatever it has of that length first.

    first    the id of position 0 at the stack's door: above the padding's in RoBERTa, 0 elsewhere
    table    the learned table that ids read, which raises past its end; None where there is no end
    padding  the id of padding, which has the row before the first; without it, all tokens are numbered by place there
    """

    def __init__(self, first: int, stack: nn.Module, table: Learned | None = None, padding: int | None = None) -> None:
        self.first, self.names, self.table, self.padding = first, parameters(type(stack)), table, padding
        self.counts = "attention_mask" in self.names and (not first or padding is not None)  # FNet takes no mask.

    def __call__(self, stack: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = Call(self.names, args, kwargs)
        mask, ids, embeds, places = (call[n] for n in ("attention_mask", "input_ids", "inputs_embeds", "position_ids"))
        counted = self.counts and isinstance(mask, Tensor) and mask.dim() == 2
        checked = self.table is not None and not torch.compiler.is_compiling()
        if places is None and (counted or checked) and (ids is not None or embeds is not None):
            T, cache = embeds.shape[-2] if ids is None else ids.shape[-1], call["cache"]
            start = 0 if cache is None or (counted and mask.shape[1] == T) else int(cache.get_seq_length())
            # A mask may not speak of all tokens; what that means is for the model to say.
            if counted and mask.shape[1] >= start + T:
                order = Positions.padded(mask).order
                # Padding has the row before the first, where there is one.
                standing = torch.arange(mask.shape[1], device=mask.device)
                standing = standing.clamp(max=self.first - 1) if self.first else standing
                places = torch.where(order < 0, standing, order + self.first)[:, start : start + T]
                call["position_ids"] = places
            elif checked:
                # RoBERTa and its kin count the tokens that are no padding, and others all.
                count = T if self.padding is None or ids is None else (ids != self.padding).sum(-1)
                places = torch.as_tensor(self.first + start + count - 1)
        if checked and places is not None:
            self.check(self.table, (places - self.first).clamp(min=0))
        return call.changed

    def check(self, table: Learned, places: Tensor) -> None:
        try:
            table.checked(places, Positions.count(1))
        except ValueError as error:
            todo = f"posenc convert MODEL --out NEW --max-length {int(places.max()) + 1} writes a longer one"
            raise ValueError(f"{str(error).partition(';')[0]}; {todo}") from None


def token_door(model: nn.Module, path: str) -> nn.Module | None:
    """The nearest module around a path that takes tokens and their positions, and is a model or takes their mask."""
    while path:
        path = path.rpartition(".")[0]
        module = model.get_submodule(path)
        taken = set(parameters(type(module)))
        whole = "attention_mask" in taken or hasattr(module, "base_model_prefix")
        if whole and "position_ids" in taken and taken & {"input_ids", "inputs_embeds"}:
            return module
    return None
