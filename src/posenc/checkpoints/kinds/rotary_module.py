"""Rotary modules: buffers of inverse frequencies, handed out as cosines and sines."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.checkpoints.kinds.calls import parameters
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, NotSaid, Stack, swap
from posenc.encoding import Encoding
from posenc.positions import Positions
from posenc.rotations import Rotations

SAMPLE = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 513, 2049, 8193, 32769)
"""Positions at which a rotary module and what replaces it are compared."""


class RotaryModule(Kind):
    """A module with buffers of inverse frequencies that gives cosines and sines: (states, ids[, layer_type])."""

    words = "a rotary module"
    takes = (Rotations,)
    usual = "rotary"
    door = "turn"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["RotaryModule"]:
        for path, module in stack.modules() if stack.turns else ():
            if path and layer_types(module) and parameters(type(module))[:2] == ("x", "position_ids"):
                yield cls(stack, path)

    def specs(self) -> list[str]:
        return [spec for spec, _ in self.stack.turning or ()]

    @property
    def types(self) -> list[str | None]:
        """The types of layers that it makes a difference between."""
        return layer_types(self.stack.node.modules[self.path])

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module: Any = model.get_submodule(self.path)
        chosen = {of: self.one(of_type(encodings, self.stack.node.config, of)) for of in self.types}
        forms = {of: self.form(module, encoding, of, horizon, same) for of, encoding in chosen.items()}
        return [swap(model, self.path, RotaryTable(chosen, forms, horizon, facts_of(module)))]

    def form(self, module: nn.Module, encoding: Rotations, of: str | None, horizon: int | None, same: bool) -> "Form":
        """How the module hands out its table, compared with the encoding's where it has to be the same."""
        # A copy, because some modules change when they are called.
        theirs = copy.deepcopy(module)
        device = next(buffer.device for buffer in theirs.buffers())
        ids = sample_ids(encoding, theirs, of, device)
        named = {} if of is None else {"layer_type": of}
        given = theirs(torch.zeros(1, 1, 1, device=device), ids, **named)
        if encoding.axes == 1 and joins_axes(theirs, ids, named):
            raise NotSaid(f"{self.path} takes a position on each of several axes, and {encoding} reads one")
        halved = theirs(torch.zeros(1, 1, 1, device=device, dtype=torch.bfloat16), ids, **named)
        coords = coordinates(ids, encoding.axes)
        if isinstance(given, Tensor):
            cos, sin, form = given.real, given.imag, Form("complex", False)
        else:
            (cos, sin), follows = given, halved[0].dtype == torch.bfloat16
            form = Form(pairing(cos, sin), follows)
            if form.pairs == "half":
                cos, sin = (table.chunk(2, -1)[0] for table in (cos, sin))
            elif form.pairs == "repeated":
                cos, sin = cos[..., ::2], sin[..., ::2]
        rounded = (rounding(next(theirs.buffers())), 0.0)
        compare_tables(self.path, encoding, (cos, sin), coords, horizon, same=same, rounded=rounded)
        return form


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


class RotaryTable(nn.Module):
    """In the place of a rotary module: (states, position_ids[, layer_type]) -> cosines and sines of each token.

    encodings  by layer type; under None where the module makes no difference between layers
    forms      how the module that it replaces hands them out, for each of these
    horizon    the declared horizon of every sequence (tokens), for schedules that depend on one
    facts      what the module that it replaces says of itself by name: some models look things up there
    """

    def __init__(
        self,
        encodings: Mapping[str | None, Rotations],
        forms: Mapping[str | None, Form],
        horizon: int | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # Encodings that rotate hold nothing that is trained or moved, and need no place among the model's children.
        self.encodings, self.forms, self.horizon = dict(encodings), dict(forms), horizon
        self.__dict__ |= {name: value for name, value in (facts or {}).items() if name not in self.__dict__}

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


def facts_of(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of a module, such as its config."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in public.items() if not isinstance(value, Tensor) and not callable(value)}


def coordinates(ids: Tensor, axes: int) -> Tensor:
    """Position ids [B, T] or [A, B, T], or [T, A] where an encoding reads so many axes, as coordinates [B, T, A]."""
    if ids.dim() == 3:
        return ids.movedim(0, -1)
    return ids[None] if axes > 1 else ids[..., None]


def at_coordinates(coords: Tensor, horizon: int | None = None) -> Positions:
    """Tokens at coordinates [B, T, A], in the order in which they stand."""
    return Positions(coords, torch.arange(coords.shape[1], device=coords.device)[None]).with_horizon(horizon)


def layer_types(module: nn.Module) -> list[str | None]:
    """The layer types for which a rotary module has frequencies; [None] where it makes no difference."""
    names = [name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
    if "inv_freq" in names:
        return [None]
    return [name.removesuffix("_inv_freq") for name in names if not name.endswith("original_inv_freq")]


def of_type(encodings: Sequence[Encoding], config: Any, of: str | None) -> Sequence[Encoding]:
    """The encodings of the layers of one type."""
    if of is None:
        return encodings
    types = getattr(config, "layer_types", None) or []
    return [e for e, kind in zip(encodings, types, strict=False) if kind == of]


def sample_ids(encoding: Rotations, module: nn.Module, of: str | None, device: torch.device) -> Tensor:
    """Position ids in the shape in which a rotary module takes them: [1, T], [A, 1, T], or [T, A] for image patches."""
    ids = torch.tensor(SAMPLE, device=device)
    if encoding.axes > 1:
        return torch.stack([ids.roll(axis) for axis in range(encoding.axes)], -1)
    axes = len(getattr(encoding, "sections_in_use", ())) if encoding.axes == 0 else 0
    if not axes:
        return ids[None]
    return torch.stack([ids.roll(axis) for axis in range(axes)])[:, None]


def joins_axes(module: nn.Module, ids: Tensor, named: Mapping[str, Any]) -> bool:
    """Whether a rotary module makes one table of the positions [2, 1, T] that tokens have on two axes."""
    try:
        given = module(torch.zeros(1, 1, 1, device=ids.device), torch.stack((ids, ids)), **named)
    except Exception:
        # It is code of many hands, which says in any way that it takes no axes.
        return False
    return not isinstance(given, Tensor) and given[0].shape[:-1] == ids.shape


def pairing(cos: Tensor, sin: Tensor) -> str:
    """How the pairs lie in tables [..., W]: "half", "repeated", or "once"."""
    halves = [table.chunk(2, -1) for table in (cos, sin)]
    if cos.shape[-1] % 2 == 0 and all(a.equal(b) for a, b in halves):
        return "half"
    if cos.shape[-1] % 2 == 0 and all(table[..., ::2].equal(table[..., 1::2]) for table in (cos, sin)):
        return "repeated"
    return "once"


def compare_tables(
    path: str,
    encoding: Rotations,
    given: tuple[Tensor, Tensor],
    coords: Tensor,
    horizon: int | None,
    *,
    same: bool,
    rounded: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Raises ValueError where a model's cosines and sines have another width, and Differs where other values.

    Angles in float32 are off by parts of the distance, so much and no more is allowed for; `rounded` is by how much the
    model's angles (relative) and its cosines and sines (absolute) have been rounded besides.
    """
    cos, sin = encoding.table(at_coordinates(coords, horizon), torch.float64, coords.device)[:, :, 0].unbind(0)
    theirs = tuple(table.double().reshape(-1, table.shape[-1]) for table in given)
    ours = tuple(table.reshape(-1, table.shape[-1]) for table in (cos, sin))
    if theirs[0].shape != ours[0].shape:
        raise ValueError(
            f"{path} turns {2 * theirs[0].shape[-1]} channels of a head, and {encoding} turns {2 * ours[0].shape[-1]}; "
            f"choose another share with partial=..."
        )
    if not same:
        return
    # At a small fraction of a position the angle is the frequency times it.
    step = torch.full_like(coords[:1, :1], 1, dtype=torch.float64) / 1024
    near = encoding.table(at_coordinates(step, horizon), torch.float64, coords.device)[:, 0, 0, 0]
    turn, size = torch.atan2(near[1], near[0]).abs() * 1024, near.norm(dim=0)
    reach = coords.reshape(-1, coords.shape[-1]).abs().amax(-1, keepdim=True)
    allowed = size * (2e-6 + rounded[1] + (5e-7 + rounded[0]) * reach * turn)
    off = torch.maximum(*((a - b).abs() for a, b in zip(theirs, ours, strict=True)))
    if not bool((off <= allowed).all()):
        token, pair = divmod(int((off / allowed).argmax()), off.shape[-1])
        place = coords.reshape(-1, coords.shape[-1])[token].tolist()
        raise Differs(
            f"{path} and {encoding} differ: at position {place[0] if len(place) == 1 else place} pair {pair} has "
            f"cos {theirs[0][token, pair]:.6f}, sin {theirs[1][token, pair]:.6f} in the model, and "
            f"cos {ours[0][token, pair]:.6f}, sin {ours[1][token, pair]:.6f} by the encoding"
        )


def rounding(tensor: Tensor) -> float:
    """By how much a cast of the model to half precision has rounded what is in float32 as a rule (relative)."""
    return torch.finfo(tensor.dtype).eps if tensor.dtype in (torch.bfloat16, torch.float16) else 0.0
