"""RoPE (rotary) modules: they return cosines and sines of position ids, or of an image's patches."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.calls import parameter_names
from posenc.checkpoints.kinds.kind import CannotFill, Kind, LayerStack, Mismatch, Undo, replace_module
from posenc.checkpoints.models.rotations import position_axes
from posenc.encoding.base import Encoding, parts_of
from posenc.encodings.rotations import Rotations
from posenc.encodings.rotations.image_rotary import normalised_grid
from posenc.foreign.text import error_text
from posenc.tokens.positions import Positions

SAMPLE = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 513, 2049, 8193, 32769)
"""Positions at which a rotary module and what replaces it are compared."""


@dataclass
class RotaryModule(Kind):
    """A module that returns cosines and sines: of position ids (states, ids[, layer_type]), or of an image's patches.

    forms  by layer type, the form of tables that agree with the specs of the layers; other types are absent
    """

    forms: dict[str | None, "TableForm"] = field(default_factory=dict)

    description = "a rotary module"
    takes = (Rotations,)
    default_spec = "rotary"
    door = "turn"

    @classmethod
    def find(cls, stack: LayerStack) -> Iterator["RotaryModule"]:
        for path, module in stack.modules() if stack.turns else ():
            pixels = reads_pixels(module) and len(stack.node.trace.outputs.get(path, ())) == 2
            for key in ("shift", "jitter", "rescale") if pixels else ():
                stack.node.keys.note(f"pos_embed_{key}", "in training alone: by how much places are drawn")
            by_ids = parameter_names(type(module))[:2] == ("x", "position_ids") and layer_types(module)
            if path and (pixels or by_ids):
                piece = cls(stack, path)
                piece.claim(module)
                yield piece

    @property
    def types(self) -> list[str | None]:
        """The layer types that it distinguishes."""
        return layer_types(self.stack.node.modules[self.path])

    def claim(self, module: nn.Module) -> None:
        """Compare the module with the specs of its layers; what differs stays unclaimed, with the reason."""
        node, shape = self.stack.node, self.stack.shape
        layers = [build(spec, replace(shape, head_dim=wide)) for spec, wide in self.stack.rotations or ()]
        buffers = {item.label: item.path for item in self.stack.pieces("frequencies") if item.owner is module}
        lengths = (1, shape.max_len, 2 * shape.max_len) if any(e.turns_when_attending for e in layers) else (None,)
        for layer_type in self.types:
            try:
                for length in lengths:
                    self.forms[layer_type] = self.choose(module, layers, layer_type, length, exact=True)[1]
                node.claimed_paths.add(buffers.get(layer_type or "", ""))
            except ValueError as reason:
                node.reasons[buffers.get(layer_type or "", "")] = f"hands out other numbers: {reason}"

    def fill(self, model: nn.Module, encodings: Sequence[Encoding], horizon: int | None, *, exact: bool) -> list[Undo]:
        module: Any = model.get_submodule(self.path)
        choices = {layer_type: self.choose(module, encodings, layer_type, horizon, exact) for layer_type in self.types}
        return [replace_module(model, self.path, RotaryTable(choices, horizon, module))]

    def choose(
        self, module: nn.Module, encodings: Sequence[Encoding], layer_type: str | None, horizon: int | None, exact: bool
    ) -> tuple[Rotations, "TableForm"]:
        """Return the encoding of the layers of one type, with the module's numbers if `exact`, and their form."""
        # A copy, because some modules change when called, and some draw at random in training.
        twin, node = copy.deepcopy(module).eval(), self.stack.node
        buffer, layers = next(twin.buffers()), encodings_of_type(encodings, node.config, layer_type)
        config: Any = getattr(module, "config", node.config)
        patch = config.patch_size if reads_pixels(module) else ()
        patch = (patch, patch) if isinstance(patch, int) else tuple(patch)
        errors = max(cast_error(buffer), node.rounding), 0.0
        rotary = {repr(e): e for layer in layers for e in parts_of(layer) if isinstance(e, Rotations)}
        # Only the model's own rotations tell which axis comes first.
        known_form, failure = self.forms.get(layer_type), None
        flips = (False, True) if known_form is None else (known_form.is_flipped,)
        for encoding in map(module_encoding, rotary.values() if rotary and exact else [self.single_encoding(layers)]):
            exactly = exact or (known_form is None and encoding.axes > 1)
            for is_flipped, sample in itertools.product(flips, sample_ids(encoding, patch, horizon, buffer.device)):
                try:
                    form = TableForm(encoding.axes, patch, is_flipped).measure(twin, sample, layer_type)
                    pairs, coords = form.pairs_of(module_output(twin, sample, layer_type)), form.coordinates(sample)
                    compare_tables(self.path, encoding, pairs, coords, horizon, exact=exactly, errors=errors)
                    return encoding, form
                except ValueError as error:
                    failure = failure or error
        assert failure is not None
        raise failure


def reads_pixels(module: nn.Module) -> bool:
    """Whether a module takes an image, and no ids."""
    return parameter_names(type(module)) == ("pixel_values",)


def module_output(module: nn.Module, sample: Tensor, layer_type: str | None, dtype: torch.dtype = torch.float32) -> Any:
    """Call a rotary module with ids or an image, for states of a dtype and a layer type.

    Raises CannotFill for positions that it does not take.
    """
    states = torch.zeros(1, 1, 1, device=sample.device, dtype=dtype)
    options = {} if layer_type is None else {"layer_type": layer_type}
    try:
        return module(sample.to(dtype)) if reads_pixels(module) else module(states, sample, **options)
    except Exception as error:
        # Foreign code may raise anything.
        shape = " x ".join(map(str, sample.shape))
        raise CannotFill(f"{type(module).__name__} takes no positions {shape}: {error_text(error)}") from error


def module_encoding(encoding: Any) -> Any:
    """Return the encoding with a module's cosines and sines: for "swapped" the model's code swaps the sign."""
    if encoding.layout == "swapped":
        encoding = copy.deepcopy(encoding)
        encoding.layout = "half"
    return encoding


def sample_ids(encoding: Any, patch: tuple[int, ...], horizon: int | None, device: torch.device) -> Iterator[Tensor]:
    """Yield ids, or an image, as rotary modules take them. Ids are [1, T], [A, 1, T], [T, A] or [1, T, A]."""
    length = horizon if horizon and encoding.turns_when_attending else SAMPLE[-1] + 1
    ids = torch.tensor([*(n for n in SAMPLE if n < length - 1), length - 1], device=device)
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
class TableForm:
    """How a rotary module takes positions, and how it lays out their cosines and sines.

    axes        of the encoding's positions
    patch       height and width of a patch (pixels) for an image; empty for ids
    is_flipped  whether the last axis of the ids is the encoding's first
    pairs       "half": all pairs, and all again; "repeated": each twice in a row; "once"; "complex": cos + i sin, once
    blocks      number of parts that are each "half"
    follows     whether they have the dtype of the states, as most have, or always float32
    """

    axes: int
    patch: tuple[int, ...] = ()
    is_flipped: bool = False
    pairs: str = "complex"
    blocks: int = 1
    follows: bool = False

    def measure(self, module: nn.Module, sample: Tensor, layer_type: str | None) -> "TableForm":
        """Return the form of a module's tables for layers of a type; raises CannotFill for no such table."""
        if self.axes == 1 and position_axes(module, layer_type) > 1:
            name = type(module).__name__
            raise CannotFill(f"{name} reads a position on each of several axes, and the encoding on one")
        output = module_output(module, sample, layer_type)
        if isinstance(output, Tensor):
            return self
        follows = module_output(module, sample, layer_type, torch.bfloat16)[0].dtype == torch.bfloat16
        for blocks in (1, max(self.axes, 1)):
            parts = [t.unflatten(-1, (blocks, -1)).chunk(2, -1) for t in output if t.shape[-1] % (2 * blocks) == 0]
            if parts and all(a.equal(b) for a, b in parts):
                return replace(self, pairs="half", blocks=blocks, follows=follows)
        twice = output[0].shape[-1] % 2 == 0 and all(table[..., ::2].equal(table[..., 1::2]) for table in output)
        return replace(self, pairs="repeated" if twice else "once", follows=follows)

    def coordinates(self, ids: Tensor) -> Tensor:
        """Return the coordinates [B, T, A] of ids, or of an image's patches."""
        if self.patch:
            rows, columns = (size // side for size, side in zip(ids.shape[-2:], self.patch, strict=True))
            coords = normalised_grid(rows, columns, device=ids.device).coords
        elif self.axes > 1:
            coords = ids if ids.dim() == 3 else ids[None]
        else:
            coords = ids.movedim(0, -1) if ids.dim() == 3 else ids[..., None]
        return coords.flip(-1) if self.is_flipped else coords

    def pairs_of(self, output: Any) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of each pair [..., P] in a module's output."""
        if self.pairs == "complex":
            return output.real, output.imag
        if self.pairs == "half":
            output = [table.unflatten(-1, (self.blocks, -1)).chunk(2, -1)[0].flatten(-2) for table in output]
        cos, sin = (table[..., ::2] for table in output) if self.pairs == "repeated" else output
        return cos, sin

    def laid_out(self, pairs: Tensor) -> Tensor:
        """Return cosines or sines of pairs [..., P] in the model's layout."""
        if self.pairs == "half":
            parts = pairs.unflatten(-1, (self.blocks, -1))
            return torch.cat((parts, parts), -1).flatten(-2)
        return pairs.repeat_interleave(2, -1) if self.pairs == "repeated" else pairs


class RotaryTable(nn.Module):
    """Replacement of a rotary module: (states, position_ids[, layer_type]), or (image), -> cosines and sines.

    choices   by layer type, or under None if the module does not distinguish any: the encoding, and the form of the
              tables of the module that it replaces
    horizon   the declared horizon of every sequence (tokens), for schedules that depend on one
    original  the module that it replaces, kept for images: it draws positions at random in training
    """

    def __init__(
        self, choices: Mapping[str | None, tuple[Rotations, TableForm]], horizon: int | None, original: nn.Module
    ) -> None:
        super().__init__()
        # Rotary encodings have no parameters or buffers, and need not be children of the model.
        self.choices, self.horizon = dict(choices), horizon
        self.original = original if reads_pixels(original) else None
        self.__dict__ |= {name: value for name, value in public_facts(original).items() if name not in self.__dict__}

    @torch.no_grad()
    def forward(
        self, x: Tensor, position_ids: Tensor | None = None, layer_type: str | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        if self.original is not None and self.training:
            return self.original(x)
        encoding, form = self.choices[layer_type if layer_type in self.choices else None]
        ids = x if position_ids is None else position_ids
        at = at_coordinates(form.coordinates(ids), self.horizon)
        dtype = x.dtype if form.follows and form.pairs != "complex" else torch.float32
        cos, sin = encoding.table(at, dtype, x.device)[:, :, 0].unbind(0)  # [B, T, P] each
        if form.patch or (form.axes > 1 and ids.dim() == 2):
            cos, sin = cos[0], sin[0]
        return torch.complex(cos, sin) if form.pairs == "complex" else (form.laid_out(cos), form.laid_out(sin))

    def extra_repr(self) -> str:
        return ", ".join(repr(e) if kind is None else f"{kind}: {e!r}" for kind, (e, _) in self.choices.items())


def public_facts(module: nn.Module) -> dict[str, Any]:
    """Return the plain attributes of a module, such as its config."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return {name: value for name, value in public.items() if not isinstance(value, Tensor) and not callable(value)}


def at_coordinates(coords: Tensor, horizon: int | None = None) -> Positions:
    """Return the positions of tokens at coordinates [B, T, A], in their order."""
    return Positions(coords, torch.arange(coords.shape[1], device=coords.device)[None]).with_horizon(horizon)


def layer_types(module: nn.Module) -> list[str | None]:
    """Return the layer types for which a rotary module has frequencies; [None] for all layers alike."""
    names = [name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
    if "inv_freq" in names or reads_pixels(module):
        return [None]
    return [name.removesuffix("_inv_freq") for name in names if not name.endswith("original_inv_freq")]


def encodings_of_type(encodings: Sequence[Encoding], config: object, layer_type: str | None) -> Sequence[Encoding]:
    """Return the encodings of the layers of one type."""
    if layer_type is None:
        return encodings
    types = getattr(config, "layer_types", None) or []
    return [e for e, kind in zip(encodings, types, strict=False) if kind == layer_type]


def compare_tables(
    path: str,
    encoding: Rotations,
    model_tables: tuple[Tensor, Tensor],
    coords: Tensor,
    horizon: int | None,
    *,
    exact: bool,
    errors: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Raise ValueError if a model's cosines and sines have another width, and Mismatch if they have other values.

    The tolerance is that of float32, whose error of angles grows with the distance; `errors` are further ones of the
    model's angles (relative) and of its cosines and sines (absolute).
    """
    cos, sin = encoding.table(at_coordinates(coords, horizon), torch.float64, coords.device)[:, :, 0].unbind(0)
    model_pairs = tuple(table.double().reshape(-1, table.shape[-1]) for table in model_tables)
    encoding_pairs = tuple(table.reshape(-1, table.shape[-1]) for table in (cos, sin))
    channels, width = 2 * model_pairs[0].shape[-1], 2 * encoding_pairs[0].shape[-1]
    if model_pairs[0].shape != encoding_pairs[0].shape:
        raise ValueError(
            f"{path} turns {channels} channels of a head, and {encoding} turns {width}; choose another share with "
            f"partial=..."
        )
    if not exact:
        return
    # At a small fraction of a position the angle is the frequency times that fraction.
    step = torch.full_like(coords[:1, :1], 1, dtype=torch.float64) / 1024
    step_table = encoding.table(at_coordinates(step, horizon), torch.float64, coords.device)[:, 0, 0, 0]
    turn, size = torch.atan2(step_table[1], step_table[0]).abs() * 1024, step_table.norm(dim=0)
    reach = coords.reshape(-1, coords.shape[-1]).abs().amax(-1, keepdim=True)
    tolerance = size * (2e-6 + errors[1] + (5e-7 + errors[0]) * reach * turn)
    error = torch.maximum(*((a - b).abs() for a, b in zip(model_pairs, encoding_pairs, strict=True)))
    if not bool((error <= tolerance).all()):
        token, pair = divmod(int((error / tolerance).argmax()), error.shape[-1])
        place = coords.reshape(-1, coords.shape[-1])[token].tolist()
        raise Mismatch(
            f"{path} and {encoding} differ: at position {place[0] if len(place) == 1 else place} pair {pair} has "
            f"cos {model_pairs[0][token, pair]:.6f}, sin {model_pairs[1][token, pair]:.6f} in the model, and "
            f"cos {encoding_pairs[0][token, pair]:.6f}, sin {encoding_pairs[1][token, pair]:.6f} by the encoding"
        )


def cast_error(tensor: Tensor) -> float:
    """Return the relative rounding error of a tensor in half precision; 0 for float32."""
    return torch.finfo(tensor.dtype).eps if tensor.dtype in (torch.bfloat16, torch.float16) else 0.0
