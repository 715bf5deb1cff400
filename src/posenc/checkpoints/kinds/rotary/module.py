"""Rotary modules: what hands out cosines and sines, by buffers of inverse frequencies or for an image's patches."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.calls import parameters
from posenc.checkpoints.kinds.kind import Change, Differs, Kind, NotSaid, Stack, swap
from posenc.checkpoints.models.turns import axes_of
from posenc.encoding.base import Encoding, parts_of
from posenc.encodings.rotations import Rotations
from posenc.encodings.rotations.image_rotary import normalised_grid
from posenc.foreign.text import told
from posenc.tokens.positions import Positions

SAMPLE = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 513, 2049, 8193, 32769)
"""Positions at which a rotary module and what replaces it are compared."""


@dataclass
class RotaryModule(Kind):
    """A module that gives cosines and sines: of position ids (states, ids[, layer_type]), or of an image's patches.

    forms  by layer type, how it hands out what the layers are read to turn by; without those where it does not
    """

    forms: dict[str | None, "Form"] = field(default_factory=dict)

    words = "a rotary module"
    takes = (Rotations,)
    usual = "rotary"
    door = "turn"

    @classmethod
    def find(cls, stack: Stack) -> Iterator["RotaryModule"]:
        for path, module in stack.modules() if stack.turns else ():
            pixels = reads_pixels(module) and len(stack.node.seen.made.get(path, ())) == 2
            for key in ("shift", "jitter", "rescale") if pixels else ():
                stack.node.keys.say(f"pos_embed_{key}", "in training alone: by how much places are drawn")
            by_ids = parameters(type(module))[:2] == ("x", "position_ids") and layer_types(module)
            if path and (pixels or by_ids):
                piece = cls(stack, path)
                piece.claim(module)
                yield piece

    @property
    def types(self) -> list[str | None]:
        """The types of layers that it makes a difference between."""
        return layer_types(self.stack.node.modules[self.path])

    def claim(self, module: nn.Module) -> None:
        """Hold the module to what its layers are read to turn by; what differs stays unclaimed, with the reason."""
        node, shape = self.stack.node, self.stack.shape
        layers = [build(spec, replace(shape, head_dim=wide)) for spec, wide in self.stack.turning or ()]
        held = {item.label: item.path for item in self.stack.pieces("frequencies") if item.owner is module}
        lengths = (1, shape.max_len, 2 * shape.max_len) if any(e.turns_when_attending for e in layers) else (None,)
        for of in self.types:
            try:
                for length in lengths:
                    self.forms[of] = self.choose(module, layers, of, length, same=True)[1]
                node.claimed.add(held.get(of or "", ""))
            except ValueError as reason:
                node.reasons[held.get(of or "", "")] = f"hands out other numbers: {reason}"

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        module: Any = model.get_submodule(self.path)
        chosen = {of: self.choose(module, encodings, of, horizon, same) for of in self.types}
        return [swap(model, self.path, RotaryTable(chosen, horizon, module))]

    def choose(
        self, module: nn.Module, encodings: Sequence[Encoding], of: str | None, horizon: int | None, same: bool
    ) -> tuple[Rotations, "Form"]:
        """The encoding of the layers of one type, compared with what the module hands out where it has to be the same,
        and how it hands that out; of several encodings the one that is."""
        # A copy, because some modules change when they are called, and some draw at random in training.
        theirs, node = copy.deepcopy(module).eval(), self.stack.node
        buffer, layers = next(theirs.buffers()), of_type(encodings, node.config, of)
        patch: Any = getattr(module, "config", node.config).patch_size if reads_pixels(module) else ()
        patch = (patch, patch) if isinstance(patch, int) else tuple(patch)
        rounded = max(rounding(buffer), node.rounding), 0.0
        rotary = {repr(e): e for layer in layers for e in parts_of(layer) if isinstance(e, Rotations)}
        # Which axis comes first only what the model itself turns by can tell.
        known, failure = self.forms.get(of), None
        flips = (False, True) if known is None else (known.flipped,)
        for encoding in map(module_encoding, rotary.values() if rotary and same else [self.one(layers)]):
            exactly = same or (known is None and encoding.axes > 1)
            for flipped, sample in itertools.product(flips, samples(encoding, patch, horizon, buffer.device)):
                try:
                    form = Form(encoding.axes, patch, flipped).measured(theirs, sample, of)
                    pairs, coords = form.pairs_of(handed(theirs, sample, of)), form.coordinates(sample)
                    compare_tables(self.path, encoding, pairs, coords, horizon, same=exactly, rounded=rounded)
                    return encoding, form
                except ValueError as error:
                    failure = failure or error
        assert failure is not None
        raise failure


def reads_pixels(module: nn.Module) -> bool:
    """Whether a module is given an image, and no ids."""
    return parameters(type(module)) == ("pixel_values",)


def handed(module: nn.Module, sample: Tensor, of: str | None, dtype: torch.dtype = torch.float32) -> Any:
    """What a rotary module hands out for ids, or for an image, to states of a dtype in layers of a type.

    Raises NotSaid for what it does not take.
    """
    states, named = torch.zeros(1, 1, 1, device=sample.device, dtype=dtype), {} if of is None else {"layer_type": of}
    try:
        return module(sample.to(dtype)) if reads_pixels(module) else module(states, sample, **named)
    except Exception as error:
        # It is code of many hands, which says so in any way.
        shape = " x ".join(map(str, sample.shape))
        raise NotSaid(f"{type(module).__name__} takes no positions {shape}: {told(error)}") from error


def module_encoding(encoding: Any) -> Any:
    """The encoding with a module's cosines and sines: for "swapped" the model's own code turns the other way round."""
    if encoding.layout == "swapped":
        encoding = copy.deepcopy(encoding)
        encoding.layout = "half"
    return encoding


def samples(encoding: Any, patch: tuple[int, ...], horizon: int | None, device: torch.device) -> Iterator[Tensor]:
    """Ids in the shapes in which rotary modules take them: [1, T], [A, 1, T], [T, A] or [1, T, A]; or an image."""
    within = horizon if horizon and encoding.turns_when_attending else SAMPLE[-1] + 1
    ids = torch.tensor([*(n for n in SAMPLE if n < within - 1), within - 1], device=device)
    if patch:
        yield torch.zeros(1, 1, 3 * patch[0], 5 * patch[1], device=device)
    elif encoding.axes > 1:
        yield (apart := torch.stack([ids.roll(axis) for axis in range(encoding.axes)], -1))
        yield apart[None]
    elif encoding.axes == 0:
        yield torch.stack([ids.roll(axis) for axis in range(len(encoding.sections_in_use))])[:, None]
    else:
        yield ids[None]


@dataclass(frozen=True)
class Form:
    """How a rotary module is told where tokens stand, and how it hands out their cosines and sines.

    axes     of the encoding's positions
    patch    height and width of a patch (pixels) where an image is given; empty where ids are
    flipped  whether the last axis of the ids is the encoding's first
    pairs    "half": all pairs, and all again; "repeated": each twice in a row; "once"; "complex": cos + i sin, once
    blocks   how many parts are each "half" by themselves
    follows  whether they are in the dtype of the states, as most are, or always in float32
    """

    axes: int
    patch: tuple[int, ...] = ()
    flipped: bool = False
    pairs: str = "complex"
    blocks: int = 1
    follows: bool = False

    def measured(self, module: nn.Module, sample: Tensor, of: str | None) -> "Form":
        """The same with what a module hands out to layers of a type; raises NotSaid where it is no such table."""
        if self.axes == 1 and axes_of(module, of) > 1:
            raise NotSaid(f"{type(module).__name__} reads a position on each of several axes, and the encoding on one")
        given = handed(module, sample, of)
        if isinstance(given, Tensor):
            return self
        follows = handed(module, sample, of, torch.bfloat16)[0].dtype == torch.bfloat16
        for blocks in (1, max(self.axes, 1)):
            parts = [
                table.unflatten(-1, (blocks, -1)).chunk(2, -1) for table in given if table.shape[-1] % (2 * blocks) == 0
            ]
            if parts and all(a.equal(b) for a, b in parts):
                return replace(self, pairs="half", blocks=blocks, follows=follows)
        twice = given[0].shape[-1] % 2 == 0 and all(table[..., ::2].equal(table[..., 1::2]) for table in given)
        return replace(self, pairs="repeated" if twice else "once", follows=follows)

    def coordinates(self, given: Tensor) -> Tensor:
        """Where tokens stand [B, T, A], by their ids or by an image."""
        if self.patch:
            rows, columns = (size // one for size, one in zip(given.shape[-2:], self.patch, strict=True))
            coords = normalised_grid(rows, columns, device=given.device).coords
        elif self.axes > 1:
            coords = given if given.dim() == 3 else given[None]
        else:
            coords = given.movedim(0, -1) if given.dim() == 3 else given[..., None]
        return coords.flip(-1) if self.flipped else coords

    def pairs_of(self, given: Any) -> tuple[Tensor, Tensor]:
        """The cosines and sines of each pair [..., P] in what a module has handed out."""
        if self.pairs == "complex":
            return given.real, given.imag
        if self.pairs == "half":
            given = [table.unflatten(-1, (self.blocks, -1)).chunk(2, -1)[0].flatten(-2) for table in given]
        cos, sin = (table[..., ::2] for table in given) if self.pairs == "repeated" else given
        return cos, sin

    def laid_out(self, pairs: Tensor) -> Tensor:
        """Cosines or sines of pairs [..., P] as the model takes them."""
        if self.pairs == "half":
            parts = pairs.unflatten(-1, (self.blocks, -1))
            return torch.cat((parts, parts), -1).flatten(-2)
        return pairs.repeat_interleave(2, -1) if self.pairs == "repeated" else pairs


class RotaryTable(nn.Module):
    """In the place of a rotary module: (states, position_ids[, layer_type]), or (image), -> cosines and sines.

    chosen    by layer type, or under None where the module makes no difference between layers: the encoding, and how
              the module that it replaces takes positions and hands out tables
    horizon   the declared horizon of every sequence (tokens), for schedules that depend on one
    original  what it replaces: some models look things up there, and given an image it draws places in training
    """

    def __init__(
        self, chosen: Mapping[str | None, tuple[Rotations, Form]], horizon: int | None, original: nn.Module
    ) -> None:
        super().__init__()
        # Encodings that rotate hold nothing that is trained or moved, and need no place among the model's children.
        self.chosen, self.horizon = dict(chosen), horizon
        self.original = original if reads_pixels(original) else None
        self.__dict__ |= {name: value for name, value in facts_of(original).items() if name not in self.__dict__}

    @torch.no_grad()
    def forward(
        self, x: Tensor, position_ids: Tensor | None = None, layer_type: str | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        if self.original is not None and self.training:
            return self.original(x)
        encoding, form = self.chosen[layer_type if layer_type in self.chosen else None]
        given = x if position_ids is None else position_ids
        at = at_coordinates(form.coordinates(given), self.horizon)
        dtype = x.dtype if form.follows and form.pairs != "complex" else torch.float32
        cos, sin = encoding.table(at, dtype, x.device)[:, :, 0].unbind(0)  # [B, T, P] each
        if form.patch or (form.axes > 1 and given.dim() == 2):
            cos, sin = cos[0], sin[0]
        return torch.complex(cos, sin) if form.pairs == "complex" else (form.laid_out(cos), form.laid_out(sin))

    def extra_repr(self) -> str:
        return ", ".join(repr(e) if of is None else f"{of}: {e!r}" for of, (e, _) in self.chosen.items())


def facts_of(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of a module, such as its config."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in public.items() if not isinstance(value, Tensor) and not callable(value)}


def at_coordinates(coords: Tensor, horizon: int | None = None) -> Positions:
    """Tokens at coordinates [B, T, A], in the order in which they stand."""
    return Positions(coords, torch.arange(coords.shape[1], device=coords.device)[None]).with_horizon(horizon)


def layer_types(module: nn.Module) -> list[str | None]:
    """The layer types for which a rotary module has frequencies; [None] where it makes no difference."""
    names = [name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
    if "inv_freq" in names or reads_pixels(module):
        return [None]
    return [name.removesuffix("_inv_freq") for name in names if not name.endswith("original_inv_freq")]


def of_type(encodings: Sequence[Encoding], config: Any, of: str | None) -> Sequence[Encoding]:
    """The encodings of the layers of one type."""
    if of is None:
        return encodings
    types = getattr(config, "layer_types", None) or []
    return [e for e, kind in zip(encodings, types, strict=False) if kind == of]


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
