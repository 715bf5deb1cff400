"""Where a live transformers model keeps its position code, found by what its modules hold and take, not by their names.

Each kind of place knows which encodings it can be filled with, what stands in for it, and how to compare the two.
"""

import copy
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posenc.checkpoints.live.replaced import (
    AddedByDistance,
    AddedByKey,
    Buckets,
    CountedFromMask,
    Form,
    ImageRows,
    Interpolating,
    LearnedRows,
    MaskedRows,
    RotaryRows,
    RotaryTable,
    at_coordinates,
    coordinates,
    parameters,
)
from posenc.encoding import Encoding
from posenc.encodings.alibi import ALiBi
from posenc.encodings.learned import Learned
from posenc.encodings.learned_grid import LearnedGrid
from posenc.encodings.t5_bias import T5Bias
from posenc.rotations import Rotations

SAMPLE = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129, 513, 2049, 8193, 32769)
"""Positions at which a rotary module and what replaces it are compared."""


class Differs(ValueError):
    """A place and the encoding that was to fill it compute different numbers; the message says where."""


class NotSaid(ValueError):
    """Nothing that is said of a model could fill a place; the message says what was wanted."""


@dataclass(frozen=True)
class Swapped:
    """A child module that gave way to another."""

    parent: nn.Module
    name: str
    original: nn.Module

    def undo(self) -> None:
        current = getattr(self.parent, self.name)
        # A parameter may have become another object since, such as by load_state_dict(assign=True).
        self.original._parameters.update(current._parameters)
        self.original.train(current.training)
        setattr(self.parent, self.name, self.original)


@dataclass(frozen=True)
class Shadowed:
    """A method or buffer of a module's class, hidden by an attribute of this one module."""

    owner: nn.Module
    name: str

    def undo(self) -> None:
        del self.owner.__dict__[self.name]


@dataclass(frozen=True)
class Hooked:
    """A hook before a module's forward."""

    handle: Any

    def undo(self) -> None:
        self.handle.remove()


Change = Swapped | Shadowed | Hooked


def swap(place: "Place", new: nn.Module) -> Swapped:
    new.train(place.module.training)
    setattr(place.parent, place.name, new)
    return Swapped(place.parent, place.name, place.module)


def shadow(owner: nn.Module, name: str, new: Any) -> Shadowed:
    owner.__dict__[name] = new
    return Shadowed(owner, name)


def hook(module: nn.Module, new: Any) -> Hooked:
    return Hooked(module.register_forward_pre_hook(new, with_kwargs=True))


@dataclass(frozen=True)
class Place:
    """One piece of a model's position code.

    path    where it is in the model: "model.rotary_emb"
    parent  the module that holds it, and `name`, what it is called there
    module  the piece itself
    config  the config that it was built from, as far as that can be told
    stack   the module around it that takes the tokens, where positions can be counted from the padding mask
    """

    path: str
    parent: nn.Module
    name: str
    module: Any
    config: Any
    stack: nn.Module | None

    kind: ClassVar[str]
    takes: ClassVar[tuple[type[Encoding], ...]]
    usual: ClassVar[str]
    added: ClassVar[bool] = False
    """Whether it is added to the embeddings, and so belongs to the stack and not to its layers."""

    turns: ClassVar[bool] = False
    """Whether it turns queries and keys."""

    @property
    def causal(self) -> bool:
        return True

    @classmethod
    def at(cls, module: Any) -> bool:
        """Whether a module is such a piece."""
        raise NotImplementedError

    def fill(self, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        """Put what these encodings compute in its place, one encoding for each layer that reads it.

        `same` says that it has to compute what was there; raises Differs where it does not.
        """
        raise NotImplementedError

    def one(self, encodings: Sequence[Encoding]) -> Any:
        """The one encoding that this place can be filled with; raises ValueError where there are several, or none."""
        fitting = {repr(e): e for e in encodings if isinstance(e, self.takes)}
        if len(fitting) != 1:
            got = ", ".join(sorted({repr(e) for e in encodings})) or "nothing"
            raise (ValueError if fitting else NotSaid)(
                f"{self.path} is {self.kind}, the same for all its layers, and takes one encoding of its kind, such as "
                f"{self.usual}; got {got}"
            )
        return next(iter(fitting.values()))


class RotaryModule(Place):
    """A module with buffers of inverse frequencies that gives cosines and sines: (states, ids[, layer_type])."""

    kind = "a rotary module"
    takes = (Rotations,)
    usual = "rotary"
    turns = True

    @classmethod
    def at(cls, module: Any) -> bool:
        return bool(layer_types(module)) and parameters(type(module))[:2] == ("x", "position_ids")

    @property
    def types(self) -> list[str | None]:
        return layer_types(self.module)

    def fill(self, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        chosen = {of: self.one(of_type(encodings, self.config, of)) for of in self.types}
        forms = {of: self.form(encoding, of, horizon, same) for of, encoding in chosen.items()}
        return [swap(self, RotaryTable(chosen, forms, horizon, getattr(self.module, "config", None)))]

    def form(self, encoding: Rotations, of: str | None, horizon: int | None, same: bool) -> Form:
        """How the module hands out its table, compared with the encoding's where it has to be the same."""
        # A copy, because some modules change when they are called.
        theirs = copy.deepcopy(self.module)
        device = next(buffer.device for buffer in theirs.buffers())
        ids = sample_ids(encoding, theirs, of, device)
        named = {} if of is None else {"layer_type": of}
        given = theirs(torch.zeros(1, 1, 1, device=device), ids, **named)
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


class RotaryBuffer(Place):
    """A buffer [rows, 2 P] of sines and cosines in every layer, as GPT-J and CodeGen have it."""

    kind = "a buffer of sines and cosines"
    takes = (Rotations,)
    usual = "rotary"
    turns = True

    @classmethod
    def at(cls, module: Any) -> bool:
        buffer = module._buffers.get("embed_positions")
        return buffer is not None and buffer.dim() == 2 and buffer.is_floating_point()

    def fill(self, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        encoding, table = self.one(encodings), self.module._buffers["embed_positions"]
        assert table is not None
        sin, cos = table.float().chunk(2, -1)
        ids = torch.arange(len(table), device=table.device)[None]
        rounded = (0.0, rounding(table))
        compare_tables(self.path, encoding, (cos[None], sin[None]), ids[..., None], horizon, same=same, rounded=rounded)
        rows = RotaryRows(encoding, "embed_positions", self.module._buffers, horizon)
        return [shadow(self.module, "embed_positions", rows)]


class LearnedTable(Place):
    """An embedding of positions, added to the embeddings of tokens."""

    kind = "a learned table of positions"
    takes = (Learned, LearnedGrid)
    usual = "learned"
    added = True

    @classmethod
    def at(cls, module: Any) -> bool:
        return type(module) is nn.Embedding or (isinstance(module, nn.Embedding) and counts_from_mask(module))

    @property
    def first(self) -> int:
        """The row of position 0."""
        if counts_from_mask(self.module):
            return self.module.offset
        # In RoBERTa and its kin position 0 comes after the row for padding.
        after = hasattr(type(self.parent), "create_position_ids_from_input_ids")
        return self.module.padding_idx + 1 if after and self.module.padding_idx is not None else 0

    def fill(self, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        overrun = self.one(encodings).overrun
        cls = MaskedRows if counts_from_mask(self.module) else LearnedRows
        return [swap(self, cls(self.module.weight, self.first, overrun, horizon))]


class ImageTable(Place):
    """A learned table for the patches of an image, of a module that resamples it for other sizes."""

    kind = "a learned table of image patches"
    takes = (LearnedGrid, Learned)
    usual = "learned_grid"
    added = True

    @classmethod
    def at(cls, module: Any) -> bool:
        return hasattr(module, "interpolate_pos_encoding") and isinstance(
            getattr(module, "position_embeddings", None), nn.Parameter
        )

    def fill(self, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        self.one(encodings)
        table, config = self.module.position_embeddings, self.config
        side, patch = (n if isinstance(n, Sequence) else (n, n) for n in (config.image_size, config.patch_size))
        grid = (side[0] // patch[0], side[1] // patch[1])
        prefix = table.shape[1] - grid[0] * grid[1]
        if grid[0] != grid[1] or prefix < 0:
            raise Differs(
                f"{self.path} has {table.shape[1]} rows for a grid of {grid[0]} x {grid[1]} patches; "
                f"only square grids behind their prefix tokens can be filled"
            )
        rows = ImageRows(self.module, "position_embeddings", prefix, grid[0], tuple(patch))
        sample = torch.empty(1, table.shape[1], table.shape[2], device=table.device, dtype=table.dtype)
        for size in ((side[0], side[1]), (2 * side[0], side[1] + patch[1])):
            larger = sample.new_empty(1, prefix + (size[0] // patch[0]) * (size[1] // patch[1]), table.shape[2])
            with torch.no_grad():
                theirs, ours = self.module.interpolate_pos_encoding(larger, *size), rows(larger, *size)
            close = max(1e-5, 2 * rounding(table))
            if theirs.shape != ours.shape or not torch.allclose(theirs, ours, rtol=10 * close, atol=close):
                raise Differs(f"{self.path} resamples its table for {size[0]} x {size[1]} pixels otherwise than we do")
        changes: list[Change] = [shadow(self.module, "interpolate_pos_encoding", rows)]
        if "interpolate_pos_encoding" in parameters(type(self.module)):
            changes.append(hook(self.module, Interpolating((side[0], side[1]), self.module)))
        return changes


class SlopesOfBlocks(Place):
    """ALiBi that a model builds once and hands to its blocks, as BLOOM and MPT do."""

    kind = "ALiBi"
    takes = (ALiBi,)
    usual = "alibi"

    @classmethod
    def at(cls, module: Any) -> bool:
        return builder_of(module) is not None

    def fill(self, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        encoding, build = self.one(encodings), getattr(self.module, builder_of(self.module) or "")
        blocks = [
            child
            for stack in self.module.children()
            if isinstance(stack, nn.ModuleList)
            for child in stack
            if {"alibi", "position_bias"} & {*parameters(type(child))}
        ]
        by_mask = "attention_mask" in inspect.signature(build).parameters
        heads, keys = self.module.num_heads, 64
        mask = torch.ones(1, keys, device=next(self.module.parameters()).device)
        theirs = build(mask, heads, torch.float32) if by_mask else build(heads, keys, device=mask.device)
        theirs = theirs.reshape(heads, keys).cpu()
        ours = encoding.by_distance(torch.arange(keys - 1, -1, -1))
        if ours.shape != theirs.shape:
            raise ValueError(f"{self.path} has {heads} heads, and {encoding} has {len(ours)}")
        far = (ours - ours[:, -1:] - theirs + theirs[:, -1:]).abs().amax(-1)
        if same and float(far.max()) > 1e-4:
            raise Differs(
                f"{self.path} and {encoding} have other slopes: head {int(far.argmax())} differs by "
                f"{float(far.max()) / (keys - 1):.3g} for each position"
            )
        return [hook(block, (AddedByDistance if by_mask else AddedByKey)(encoding, block)) for block in blocks]


class BucketsOfAttention(Place):
    """T5's relative bias: an embedding of buckets in the attention of the first layer, or of each."""

    kind = "a bias of buckets"
    takes = (T5Bias,)
    usual = "t5_bias"

    @classmethod
    def at(cls, module: Any) -> bool:
        return hasattr(module, "compute_bias") and isinstance(
            getattr(module, "relative_attention_bias", None), nn.Embedding
        )

    @property
    def causal(self) -> bool:
        return bool(getattr(self.module, "is_decoder", False))

    def fill(self, encodings: Sequence[Encoding], horizon: int | None, *, same: bool) -> list[Change]:
        encoding, weight = self.one(encodings), self.module.relative_attention_bias.weight
        if weight.shape != encoding.table.shape:
            raise ValueError(
                f"{self.path} has {weight.shape[0]} buckets for {weight.shape[1]} heads, and {encoding} has "
                f"{encoding.buckets} for {encoding.heads}"
            )
        bias = Buckets(encoding, self.module)
        if same:
            far = 2 * encoding.max_distance
            with torch.no_grad():
                # A query in the middle sees every distance that has a bucket of its own, on both sides.
                theirs, ours = (make(1, 2 * far, past_seen_tokens=far) for make in (self.module.compute_bias, bias))
            different = (theirs != ours).any(1).flatten().nonzero().flatten() - far
            if len(different):
                raise Differs(
                    f"{self.path} and {encoding} put {len(different)} distances into other buckets, the first "
                    f"{-int(different[0])} positions back"
                )
        return [shadow(self.module, "compute_bias", bias)]


KINDS: tuple[type[Place], ...] = (
    RotaryModule,
    RotaryBuffer,
    ImageTable,
    LearnedTable,
    SlopesOfBlocks,
    BucketsOfAttention,
)

TABLE_NAME = re.compile(r"^(wpe|pos|position|embed_pos)")


def places_of(model: nn.Module) -> list[Place]:
    """All the pieces of position code that are recognised in a model."""
    found: list[Place] = []
    around: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    for path, module in around.items():
        for kind in KINDS:
            name = path.rpartition(".")[2]
            if not kind.at(module) or (kind is LearnedTable and not TABLE_NAME.match(name)):
                continue
            above = [around[p] for p in ancestors(path)]
            config = next((m.config for m in (module, *above) if hasattr(m, "config")), None)
            found.append(kind(path, above[0] if above else module, name, module, config, stack_of(above)))
            break
    return found


def ancestors(path: str) -> Iterator[str]:
    """The paths of the modules around one, nearest first."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def stack_of(above: Sequence[nn.Module]) -> nn.Module | None:
    """The nearest module around a place that takes tokens, their mask and their positions."""
    for module in above:
        taken = set(parameters(type(module)))
        if {"attention_mask", "position_ids"} <= taken and taken & {"input_ids", "inputs_embeds"}:
            return module
    return None


def counting(places: Sequence[Place]) -> list[Change]:
    """Hooks that count positions from the padding mask, one before each stack that reads some of these places."""
    first: dict[nn.Module, int] = {}
    for place in places:
        if place.stack is not None and (place.turns or isinstance(place, LearnedTable)):
            inside = isinstance(place, LearnedTable) and counts_from_mask(place.module)
            first[place.stack] = place.first if isinstance(place, LearnedTable) and not inside else 0
    return [hook(stack, CountedFromMask(start, stack)) for stack, start in first.items()]


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


def counts_from_mask(module: Any) -> bool:
    """Whether a table counts positions from the padding mask, and begins some rows later."""
    return parameters(type(module))[:1] == ("attention_mask",) and hasattr(module, "offset")


def builder_of(module: nn.Module) -> str | None:
    """The method by which a model builds ALiBi for its blocks."""
    if not hasattr(module, "num_heads"):
        return None
    return next((name for name in dir(type(module)) if re.fullmatch(r"build_\w*alibi\w*", name)), None)


def sample_ids(encoding: Rotations, module: nn.Module, of: str | None, device: torch.device) -> Tensor:
    """Position ids in the shape in which a rotary module takes them: [1, T], [A, 1, T], or [T, A] for image patches."""
    ids = torch.tensor(SAMPLE, device=device)
    if encoding.axes > 1:
        return torch.stack([ids.roll(axis) for axis in range(encoding.axes)], -1)
    axes = len(getattr(encoding, "sections_in_use", ())) if encoding.axes == 0 else 0
    if not axes:
        return ids[None]
    return torch.stack([ids.roll(axis) for axis in range(axes)])[:, None]


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
