"""Calls of a live model: their arguments by name, and positions from the padding mask."""

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.added.learned import Learned
from posenc.tokens.positions import Positions

FORMER_NAMES = {"cache": "past_key_values", "cache_length": "past_key_values_length"}
"""Names of arguments since transformers 5.24 -> their older names."""


def name_among(names: Collection[str], name: str) -> str:
    """Return the name of an argument among others: its own, or else its older one."""
    return name if name in names else FORMER_NAMES.get(name, name)


def cache_argument(model: nn.Module) -> str:
    """Return the model's name for the KV cache, as an argument and in its output."""
    return name_among(inspect.signature(model.forward).parameters, "cache")


def parameter_names(kind: type[nn.Module]) -> tuple[str, ...]:
    """Return the names of the parameters of a module's forward."""
    return tuple(inspect.signature(kind.forward).parameters)[1:]


class HookedCall:
    """The arguments of a call that a hook reads and changes by name.

    A renamed argument is read by its newer name; a caller may pass it by the older one.
    """

    def __init__(self, names: Sequence[str], args: tuple, kwargs: dict[str, Any]) -> None:
        self.names, self.args, self.kwargs = names, list(args), dict(kwargs)

    def __getitem__(self, name: str) -> Any:
        arguments = dict(zip(self.names, self.args, strict=False)) | self.kwargs
        return arguments.get(name_among(arguments, name))

    def __setitem__(self, name: str, value: object) -> None:
        index = self.names.index(name)
        if index < len(self.args):
            self.args[index] = value
        else:
            self.kwargs[name] = value

    @property
    def arguments(self) -> tuple[tuple, dict[str, Any]]:
        return tuple(self.args), self.kwargs


class PositionsFromMask:
    """Hook before a stack: derive `position_ids` from the padding mask if the caller passes no positions.

    The first token of each row is at 0; padding keeps its index. A position past the table is an error before the
    stack runs, whose own code would fail later.

    first    the id of position 0 in the stack's `position_ids`: above the padding's in RoBERTa, 0 elsewhere
    table    the learned table that ids read, which raises past its end; None without an end
    padding  the id of padding, which has the row before the first; without it, tokens are numbered by index there
    """

    def __init__(self, first: int, stack: nn.Module, table: Learned | None = None, padding: int | None = None) -> None:
        self.first, self.names, self.table, self.padding = first, parameter_names(type(stack)), table, padding
        self.counts = "attention_mask" in self.names and (not first or padding is not None)  # FNet takes no mask.

    def __call__(self, stack: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = HookedCall(self.names, args, kwargs)
        mask, ids, embeds, rows = (call[n] for n in ("attention_mask", "input_ids", "inputs_embeds", "position_ids"))
        from_mask = self.counts and isinstance(mask, Tensor) and mask.dim() == 2
        has_end = self.table is not None and not torch.compiler.is_compiling()
        if rows is None and (from_mask or has_end) and (ids is not None or embeds is not None):
            T, cache = embeds.shape[-2] if ids is None else ids.shape[-1], call["cache"]
            start = 0 if cache is None or (from_mask and mask.shape[1] == T) else int(cache.get_seq_length())
            # A mask may be shorter than the tokens; the model decides what that means.
            if from_mask and mask.shape[1] >= start + T:
                order = Positions.padded(mask).order
                # Padding has the row before the first, if there is one.
                padding_ids = torch.arange(mask.shape[1], device=mask.device)
                padding_ids = padding_ids.clamp(max=self.first - 1) if self.first else padding_ids
                rows = torch.where(order < 0, padding_ids, order + self.first)[:, start : start + T]
                call["position_ids"] = rows
            elif has_end:
                # RoBERTa and its relatives count the tokens without padding, others all.
                count = T if self.padding is None or ids is None else (ids != self.padding).sum(-1)
                rows = torch.as_tensor(self.first + start + count - 1)
        if has_end and rows is not None:
            self.check(self.table, (rows - self.first).clamp(min=0))
        return call.arguments

    def check(self, table: Learned, rows: Tensor) -> None:
        try:
            table.valid_rows(rows, Positions.count(1))
        except ValueError as error:
            remedy = f"posenc convert MODEL --out NEW --max-length {int(rows.max()) + 1} writes a longer one"
            raise ValueError(f"{str(error).partition(';')[0]}; {remedy}") from None


def token_module(model: nn.Module, path: str) -> nn.Module | None:
    """Return the nearest module around a path that takes tokens and positions. It is a model or takes a mask."""
    while path:
        path = path.rpartition(".")[0]
        module = model.get_submodule(path)
        names = set(parameter_names(type(module)))
        is_model = "attention_mask" in names or hasattr(module, "base_model_prefix")
        if is_model and "position_ids" in names and names & {"input_ids", "inputs_embeds"}:
            return module
    return None
