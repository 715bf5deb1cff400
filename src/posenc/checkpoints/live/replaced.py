"""What stands in for a model's own position code: the same calls and the same forms, computed by posenc's encodings.

None of it holds a tensor of its own. Learned tables are read from the model's own parameters, so that they train, save
and load as before; everything else is computed from Python numbers when it is asked for, so that no cast of the model
can damage it.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encoding import Encoding
from posenc.encodings.learned import Learned
from posenc.encodings.learned_grid import LearnedGrid
from posenc.encodings.t5_bias import T5Bias
from posenc.positions import Positions
from posenc.rotations import Rotations


@dataclass(frozen=True)
class Form:
    """How a rotary module hands out its cosines and sines.

    pairs    "half": all pairs, and all again; "repeated": each twice in a row; "once"; "complex": cos + i sin, once
    follows  whether they are in the dtype of the states, as most are, or always in float32
    """

    pairs: str
    follows: bool

    def laid_out(self, pairs: Tensor) -> Tensor:
        """Cosines or sines of pairs [..., P] as the model takes them."""
        if self.pairs == "half":
            return torch.cat((pairs, pairs), -1)
        return pairs.repeat_interleave(2, -1) if self.pairs == "repeated" else pairs


def coordinates(ids: Tensor, axes: int) -> Tensor:
    """Position ids [B, T] or [A, B, T], or [T, A] where an encoding reads so many axes, as coordinates [B, T, A]."""
    if ids.dim() == 3:
        return ids.movedim(0, -1)
    return ids[None] if axes > 1 else ids[..., None]


def at_coordinates(coords: Tensor, horizon: int | None = None) -> Positions:
    """Tokens at coordinates [B, T, A], in the order in which they stand."""
    return Positions(coords, torch.arange(coords.shape[1], device=coords.device)[None]).with_horizon(horizon)


class RotaryTable(nn.Module):
    """In the place of a rotary module: (states, position_ids[, layer_type]) -> cosines and sines of each token.

    encodings  by layer type; under None where the module makes no difference between layers
    forms      how the module that it replaces hands them out, for each of these
    horizon    the declared horizon of every sequence (tokens), for schedules that depend on one
    config     that of the module that it replaces: some models look it up there
    """

    def __init__(
        self,
        encodings: Mapping[str | None, Rotations],
        forms: Mapping[str | None, Form],
        horizon: int | None = None,
        config: Any = None,
    ) -> None:
        super().__init__()
        # Encodings that rotate hold nothing that is trained or moved, and need no place among the model's children.
        self.encodings, self.forms, self.horizon, self.config = dict(encodings), dict(forms), horizon, config

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Tensor | tuple[Tensor, Tensor]:
        of = layer_type if layer_type in self.encodings else None
        encoding, form = self.encodings[of], self.forms[of]
        at = at_coordinates(coordinates(position_ids, encoding.axes), self.horizon)
        dtype = x.dtype if form.follows and form.pairs != "complex" else torch.float32
        cos, sin = encoding.table(at, dtype, x.device)[:, :, 0].unbind(0)  # [B, T, P] each
        if encoding.axes > 1:
            cos, sin = cos[0], sin[0]
        return torch.complex(cos, sin) if form.pairs == "complex" else (form.laid_out(cos), form.laid_out(sin))

    def extra_repr(self) -> str:
        return ", ".join(repr(e) if of is None else f"{of}: {e!r}" for of, e in self.encodings.items())


class RotaryRows:
    """In the place of a buffer [rows, 2 P] of sines and cosines: rows are computed when they are read, at any position.

    It is what attention does with that buffer: index it with position ids, or repeat and gather from it.
    """

    def __init__(self, encoding: Rotations, buffer: str, buffers: Mapping[str, Any], horizon: int | None) -> None:
        self.encoding, self.buffer, self.buffers, self.horizon = encoding, buffer, buffers, horizon

    @property
    def device(self) -> torch.device:
        """Where the model has put the buffer."""
        return self.buffers[self.buffer].device

    @property
    def shape(self) -> torch.Size:
        return self.buffers[self.buffer].shape

    def repeat(self, *times: int) -> "RotaryRows":
        """The same rows for each sequence of a batch."""
        return self

    def __getitem__(self, position_ids: Tensor) -> Tensor:
        at = at_coordinates(position_ids[..., None], self.horizon)
        cos, sin = self.encoding.table(at, self.buffers[self.buffer].dtype, position_ids.device)[:, :, 0].unbind(0)
        return torch.cat((sin, cos), -1)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Tensor:
        if function is torch.gather and len(args) == 3 and args[1] == 1:
            return args[0][args[2][..., 0]]
        raise TypeError(
            f"rotary rows are read by position ids or gathered from, and this model calls {function.__name__} on them; "
            f"detach it"
        )


class Borrowed(Learned):
    """A learned encoding whose table [rows, dim] is part of somebody else's parameter."""

    def __init__(self, table: Tensor, overrun: str) -> None:
        Encoding.__init__(self)
        self.__dict__["table"], self.overrun = table, overrun
        self.max_len, self.dim = table.shape


class Rows(nn.Module):
    """Rows of a model's own table of positions, which it holds under the name that the model has for it.

    weight   the model's parameter
    first    the row of position 0: those before it are for padding, and are read as they are
    overrun  what happens past the table, as in `learned`
    horizon  the declared length of every sequence (tokens), which "interpolate" needs
    """

    def __init__(self, weight: nn.Parameter, first: int, overrun: str, horizon: int | None) -> None:
        super().__init__()
        if overrun == "interpolate" and horizon is None:
            raise ValueError(
                "overrun='interpolate' squeezes by the declared horizon of each sequence; declare it with horizon=..."
            )
        self.weight, self.first, self.overrun, self.horizon = weight, first, overrun, horizon

    def read(self, ids: Tensor) -> Tensor:
        """The rows [..., dim] of ids [...]."""
        encoding = Borrowed(self.weight[self.first :], self.overrun)
        places = (ids - self.first).clamp(min=0) if self.first else ids
        rows = encoding.vectors(at_coordinates(places.reshape(1, -1, 1), self.horizon)).view(*ids.shape, -1)
        if self.first:
            before = F.embedding(ids.clamp(0, self.first - 1), self.weight)
            rows = torch.where((ids < self.first)[..., None], before, rows)
        return rows

    def extra_repr(self) -> str:
        return f"{len(self.weight) - self.first} rows of {self.weight.shape[1]}, overrun={self.overrun}"


class LearnedRows(Rows):
    """In the place of an embedding of positions."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.read(ids)


class MaskedRows(Rows):
    """In the place of a table that counts positions from the padding mask itself, as OPT's does."""

    def forward(
        self, attention_mask: Tensor, past_key_values_length: int = 0, position_ids: Tensor | None = None
    ) -> Tensor:
        if position_ids is None:
            position_ids = attention_mask.cumsum(1) * attention_mask - 1
            position_ids = position_ids[:, past_key_values_length:].long()
        return self.read(position_ids + self.first)


class ImageRows:
    """In the place of `interpolate_pos_encoding`: the table of an image's patches, resampled where its size is another.

    module   holds the parameter `name` [1, prefix + cells, dim], whose cells make up a square grid
    patch    height and width of a patch (pixels)
    """

    def __init__(self, module: Any, name: str, prefix: int, grid: int, patch: tuple[int, int]) -> None:
        self.module, self.name, self.prefix, self.grid, self.patch = module, name, prefix, grid, patch

    def __call__(self, embeddings: Tensor, height: int, width: int) -> Tensor:
        table: Tensor = getattr(self.module, self.name)
        size = (height // self.patch[0], width // self.patch[1])
        if size == (self.grid, self.grid):
            return table
        cells = resampling(self.grid, size, table.device) @ table[0, self.prefix :].double()
        return torch.cat((table[:, : self.prefix], cells[None].to(table.dtype)), 1)


def resampling(grid: int, size: tuple[int, int], device: torch.device) -> Tensor:
    """The matrix [cells of `size`, grid * grid] that resamples any square table bicubically, in float64."""
    # What resampling makes of unit vectors is what it does to every table; the table itself keeps its gradient.
    unit = LearnedGrid(grid * grid, grid=(grid, grid), device=device, dtype=torch.float64)
    with torch.no_grad():
        unit.table.copy_(torch.eye(grid * grid))
    return unit.resampled(*size, antialias=False).table.detach()


class Buckets:
    """In the place of T5's `compute_bias`: the bias [1, H, T, S] of buckets, read from the model's own embedding."""

    def __init__(self, encoding: T5Bias, attention: Any) -> None:
        self.encoding, self.attention = encoding, attention

    def __call__(self, query_length: int, key_length: int, device: Any = None, past_seen_tokens: int = 0) -> Tensor:
        weight: Tensor = self.attention.relative_attention_bias.weight  # [buckets, H]
        device = weight.device if device is None else device
        queries = torch.arange(query_length, device=device) + past_seen_tokens
        delta = queries[:, None] - torch.arange(key_length, device=device)
        return F.embedding(self.encoding.bucket(delta), weight).permute(2, 0, 1)[None]


class Call:
    """The arguments of a call as a hook sees them, by name, and what they become."""

    def __init__(self, names: Sequence[str], args: tuple, kwargs: dict[str, Any]) -> None:
        self.names, self.args, self.kwargs = names, list(args), dict(kwargs)

    def __getitem__(self, name: str) -> Any:
        place = self.names.index(name)
        return self.args[place] if place < len(self.args) else self.kwargs.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        place = self.names.index(name)
        if place < len(self.args):
            self.args[place] = value
        else:
            self.kwargs[name] = value

    @property
    def changed(self) -> tuple[tuple, dict[str, Any]]:
        return tuple(self.args), self.kwargs


def parameters(kind: type[nn.Module]) -> tuple[str, ...]:
    """The names of what a module is called with."""
    return tuple(inspect.signature(kind.forward).parameters)[1:]


class AddedByDistance:
    """Before a block whose `alibi` [B*H, 1, S] grows along the keys: the bias [B*H, T, S] of each query's distances.

    Adding slope times the key's position is the same to a softmax, and in half precision loses what is near; the
    distance keeps it. Who sees whom, and so where tokens stand, is read from the block's mask.
    """

    def __init__(self, encoding: Encoding, block: nn.Module) -> None:
        self.encoding, self.names = encoding, parameters(type(block))

    def __call__(self, block: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = Call(self.names, args, kwargs)
        mask = call["attention_mask"]
        seen = (mask if mask.dtype == torch.bool else mask == 0)[:, 0]  # [B, T, S]
        place = (seen.any(1).cumsum(-1) - 1).clamp(min=0)  # [B, S]
        # A query's own key is the last one that it sees.
        own = seen.shape[-1] - 1 - seen.flip(-1).int().argmax(-1)  # [B, T]
        delta = place.gather(-1, own)[..., None] - place[:, None]
        bias = self.encoding.by_distance(delta)  # [H, B, T, S]
        assert bias is not None
        call["alibi"] = bias.transpose(0, 1).flatten(0, 1).to(call["hidden_states"].dtype)
        return call.changed


class AddedByKey:
    """Before a block of MPT: its `position_bias` [H, 1, S], for as many keys as there are."""

    def __init__(self, encoding: Encoding, block: nn.Module) -> None:
        self.encoding, self.names = encoding, parameters(type(block))

    def __call__(self, block: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = Call(self.names, args, kwargs)
        mask = call["attention_mask"]
        behind = torch.arange(mask.shape[-1] - 1, -1, -1, device=mask.device)
        bias = self.encoding.by_distance(behind)
        assert bias is not None
        call["position_bias"] = bias[:, None]
        return call.changed


class Interpolating:
    """Before an image embedding that takes `interpolate_pos_encoding`: its positions always come from ImageRows."""

    def __init__(self, size: tuple[int, int], module: nn.Module) -> None:
        self.size, self.names = size, parameters(type(module))

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        call = Call(self.names, args, kwargs)
        height, width = call["pixel_values"].shape[-2:]
        if (height, width) != self.size and not call["interpolate_pos_encoding"]:
            raise ValueError(
                f"the learned table is for images of {self.size[0]} x {self.size[1]} pixels, got {height} x {width}; "
                f"resize them, or call the model with interpolate_pos_encoding=True"
            )
        call["interpolate_pos_encoding"] = True
        return call.changed


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
        cache = call["past_key_values"] if "past_key_values" in call.names else None
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
