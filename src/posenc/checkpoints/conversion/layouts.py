"""Rearrange the weights of a checkpoint from one rotary layout to another, without rounding.

half           pair p is channels p and p + r/2         (GPT-NeoX, Hugging Face's Llama)
interleaved    pair p is channels 2p and 2p + 1         (GPT-J, Meta's Llama, GGUF's llama, DeepSeek)
swapped        pair p is channels p + r/2 and p         (nanochat)

Attention reads queries and keys only through their products, so the rows of both projections may be permuted alike:
row c of each head becomes row order[c], with order[2p] = p and order[2p + 1] = p + r/2 for interleaved from half. With
the rotary of the new layout every logit stays the same. No number is computed, so the inverse restores every bit.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.encoding.base import Encoding, parts_of
from posenc.encoding.channel_pairs import channels_of_pairs
from posenc.encodings.rotations.rotary import LAYOUTS
from posenc.tokens.positions import Positions

ROLES = {
    "query": "q_proj query_proj query wq to_q q_lin linear_q q",
    "key": "k_proj key_proj key wk to_k k_lin linear_k k",
    "norm": "q_norm k_norm q_layernorm k_layernorm query_layernorm key_layernorm query_norm key_norm",
    "stacked": "qkv_proj qkv Wqkv c_attn W_pack",
    "grouped": "query_key_value",
    "latent query": "q_b_proj",
    "latent key": "kv_a_proj_with_mqa",
    # Rotary does not rotate these.
    "passed": "v_proj value_proj value wv to_v v_lin linear_v v o_proj out_proj dense wo to_out proj c_proj linear_out "
    "out_lin Wo q_a_proj q_a_layernorm kv_a_layernorm kv_b_proj v_norm sinks",
}
"""The roles of the tensors of an attention, by name.

stacked   all queries, then all keys, then all values (Phi-3, ModernBERT)
grouped   for each key head the queries that share it, the key, the value (GPT-NeoX, Falcon)
latent    multi-head latent attention (DeepSeek): the last channels of each query head and of the shared key rotate
"""

ROLE = {name: role for role, names in ROLES.items() for name in names.split()}
LAYER = re.compile(r"(?:^|\.)(\d+)\.")
OTHER_MODALITIES = re.compile(r"(?:^|[._])(?:vis|image|audio|speech)\w*(?:[._]|$)")
# Masks and frequencies that old checkpoints store as buffers.
BUFFER = re.compile(r"(?:rotary_emb\.inv_freq|(?:attn|attention)\.(?:masked_)?bias)$")
BY_CHANNEL = re.compile(r"(?:base_layer\.)?(?:weight|bias)$|lora_B(\.\w+)?\.(?:weight|bias)$|lora_magnitude_vector\b")
NOT_BY_CHANNEL = re.compile(r"lora_A(\.\w+)?\.weight$")


@dataclass(frozen=True)
class Channels:
    """The channels of a tensor that rotary rotates.

    axis    the axis of the channels
    starts  the first rotated channel of each head
    width   number of rotated channels of a head, from its start: the r of the formulas
    """

    axis: int
    starts: tuple[int, ...]
    width: int


def channel_order(width: int, old: str, new: str) -> Tensor:
    """Return the old channel at each new place, for a head with `width` rotated channels.

    >>> channel_order(6, "half", "interleaved").tolist(), channel_order(6, "interleaved", "swapped").tolist()
    ([0, 3, 1, 4, 2, 5], [1, 3, 5, 0, 2, 4])
    """
    check_layout(new)
    sources, places = (torch.tensor(channels_of_pairs(width // 2, layout)).flatten() for layout in (old, new))
    return torch.empty_like(sources).scatter(0, places, sources)


def rearrange(tensor: Tensor, channels: Channels, old: str, new: str) -> Tensor:
    """Return the tensor with its rotated channels in the layout `new`; the other channels stay in place.

    >>> weight = torch.arange(8.0)[:, None]
    >>> rearrange(weight, Channels(axis=0, starts=(0, 4), width=4), "half", "interleaved").flatten().tolist()
    [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    index = torch.arange(tensor.shape[channels.axis], device=tensor.device)
    rows = channel_order(channels.width, old, new).to(tensor.device)
    for start in channels.starts:
        index[start : start + channels.width] = start + rows
    return tensor.index_select(channels.axis, index)


def check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got '{layout}'")


# The layouts of a reading


def rotary_of(encoding: Encoding) -> Any:
    """Return the rotary of an encoding, or None."""
    rotaries = [module for module in encoding.modules() if isinstance(getattr(module, "layout", None), str)]
    if len(rotaries) > 1:
        raise CannotRead(f"{encoding} turns pairs in {len(rotaries)} ways; posenc converts the layout of one")
    return rotaries[0] if rotaries else None


def layout_of(reading: Reading) -> str | None:
    """Return the layout of queries and keys by a reading; None for a model without rotary.

    Raises CannotRead if layers differ in their layout.
    """
    layouts = {
        rotary.layout
        for part in reading.parts
        for spec, number in first_of_each(part).items()
        if (rotary := rotary_of(part.encoding(number))) is not None
    }
    if len(layouts) > 1:
        raise CannotRead(f"the layers of this checkpoint are in several layouts: {', '.join(sorted(layouts))}")
    return next(iter(layouts), None)


def with_layout(reading: Reading, target: str) -> Reading:
    """Return the reading with every rotary in another layout, as the converted weights need it."""
    check_layout(target)
    parts = []
    for part in reading.parts:
        specs = {layer: spec_with_layout(part, number, target) for layer, number in first_of_each(part).items()}
        parts.append(replace(part, layers=tuple(replace(layer, spec=specs[layer]) for layer in part.layers)))
    return replace(reading, parts=tuple(parts))


def first_of_each(part: Part) -> dict[Layer, int]:
    """Return each kind of layer of a part, with the number of the first such layer."""
    return {layer: part.layers.index(layer) for layer in dict.fromkeys(part.layers)}


def spec_with_layout(part: Part, number: int, target: str) -> str:
    encoding = copy.deepcopy(part.encoding(number))
    rotary = rotary_of(encoding)
    if rotary is None:
        return part.layers[number].spec
    rotary.layout = target
    return str(encoding)


def layer_rotary_width(part: Part, number: int) -> int | None:
    """Return the number of channels of a head that a layer rotates; None for a layer without rotary.

    Raises CannotRead for an encoding whose layouts differ by more than the order of channels, which a test input shows.
    """
    encoding = part.encoding(number)
    rotary = rotary_of(encoding)
    if rotary is None:
        return None
    if rotary.layout not in LAYOUTS:
        raise CannotRead(f"{encoding} pairs its channels as '{rotary.layout}'; posenc converts {' and '.join(LAYOUTS)}")
    for term in parts_of(encoding):
        if {"biases", "remember"} & term.doors:
            raise CannotRead(f"{encoding}: {term} reads channels of queries or keys itself; its layout cannot change")
    head_dim = part.layers[number].head_dim
    width = getattr(rotary, "width", head_dim)
    target = next(layout for layout in LAYOUTS if layout != rotary.layout)
    twin = copy.deepcopy(encoding)
    rotary_of(twin).layout = target
    axes = getattr(rotary, "axes", 1)
    at = Positions.grid(*[2] * axes) if axes > 1 else Positions.count(3)
    x = torch.linspace(1, 2, part.shape.heads * at.coords.shape[1] * head_dim, dtype=torch.float64)
    x = x.view(1, part.shape.heads, -1, head_dim)
    channels = Channels(3, (0,), width)
    with torch.no_grad():
        rearrange_channels = partial(rearrange, channels=channels, old=rotary.layout, new=target)
        if not torch.allclose(twin.query(rearrange_channels(x), at), rearrange_channels(encoding.query(x, at))):
            raise CannotRead(f"the layouts of {encoding} differ by more than the order of {width} channels")
    return width


# The rotated tensors


def rotated_tensors(reading: Reading, tensors: Mapping[str, Tensor], *, adapter: bool = False) -> dict[str, Channels]:
    """Return the tensors that a change of layout rearranges, and their rotated channels.

    reading   heads, channels of a head and rotary width of each layer
    tensors   the tensors by name; only shapes and dtypes are read, so they may be on "meta"
    adapter   whether they are an adapter (LoRA, DoRA): a layer may then lack queries or keys

    These are projections of queries and keys, separate or fused, their biases, norms of queries and keys (by channel),
    the rotary part of latent attention, and of adapters the factor B and the magnitudes. Partial rotary rotates some
    channels only. Layers without rotary stay as they are.

    Raises CannotRead for an unknown tensor beside queries and keys, for shapes that contradict the reading, for a
    layer without queries or keys, and for quantised weights.
    """
    return {
        name: channels
        for attention in rotary_attentions(reading, tensors, adapter=adapter)
        for name, channels in attention.rotated_channels().items()
    }


def rotary_attentions(reading: Reading, tensors: Mapping[str, Tensor], *, adapter: bool = False) -> list["Projections"]:
    """Return the attention of each layer with rotary; raises as `rotated_tensors` does."""
    leaves: dict[tuple[str, int], dict[str, dict[str, tuple[str, str]]]] = {}
    for name in tensors:
        part, number = place_of(name, reading.parts)
        if part is None or number is None:
            continue
        module, leaf, parameter = split_name(name, number)
        if leaf is None:
            continue
        if number >= len(part.layers) and rotates(part):
            raise CannotRead(f"{name} is of layer {number}, and by the config there are {len(part.layers)}")
        leaves.setdefault((part.name, number), {}).setdefault(module, {})[name] = (leaf, parameter)
    attentions_found = []
    for part in reading.parts:
        widths = {layer: layer_rotary_width(part, number) for layer, number in first_of_each(part).items()}
        for number, layer in enumerate(part.layers):
            if (width := widths[layer]) is None:
                continue
            layer_leaves = leaves.get((part.name, number), {})
            modules = {
                m: p for m, p in layer_leaves.items() if {ROLE[leaf] for leaf, _ in p.values()} - {"passed", "norm"}
            }
            if len(modules) > 1:
                raise CannotRead(
                    f"layer {number} has several attentions ({', '.join(modules)}); posenc cannot tell which turns"
                )
            if not modules and not adapter:
                raise CannotRead(
                    f"layer {number} turns queries and keys ({layer.spec}), and none of its tensors has a name that "
                    f"queries or keys go by, such as q_proj and k_proj"
                )
            for module, projections in modules.items():
                check_neighbours(module, projections, tensors)
                attentions_found.append(Projections(part, number, width, module, projections, tensors, adapter))
    return attentions_found


def rotates(part: Part) -> bool:
    return any(rotary_of(part.encoding(number)) is not None for number in first_of_each(part).values())


def place_of(name: str, parts: tuple[Part, ...]) -> tuple[Part | None, int | None]:
    """Return the part of the model and the layer number of a tensor."""
    match = LAYER.search(name)
    number = int(match[1]) if match else None
    if len(parts) == 1 and not parts[0].name:
        return parts[0], number
    other_modality = bool(OTHER_MODALITIES.search(name))
    fitting = [part for part in parts if bool(OTHER_MODALITIES.search(part.name)) == other_modality and rotates(part)]
    if len(fitting) > 1:
        raise CannotRead(f"{name} may belong to {' or '.join(part.name for part in fitting)}; posenc cannot tell which")
    return (fitting[0] if fitting else None), number


def split_name(name: str, number: int) -> tuple[str, str | None, str]:
    """Split a tensor's name into attention, projection and parameter: `...self_attn`, `q_proj`, `weight`."""
    parts = name.split(".")
    for place in range(parts.index(str(number)) + 1, len(parts)):
        if parts[place] in ROLE:
            return ".".join(parts[:place]), parts[place], ".".join(parts[place + 1 :])
    return name, None, ""


def check_neighbours(module: str, projections: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    for name in tensors:
        if name.startswith(f"{module}.") and name not in projections and not BUFFER.search(name):
            raise CannotRead(
                f"{name} stands beside queries and keys, and posenc does not know whether position turns it; "
                f"nothing was converted"
            )


@dataclass(frozen=True)
class Projections:
    """One attention with rotary; `leaves` has its tensors: name -> (projection, parameter)."""

    part: Part
    number: int
    width: int
    module: str
    leaves: Mapping[str, tuple[str, str]]
    tensors: Mapping[str, Tensor]
    adapter: bool = False

    @property
    def roles(self) -> set[str]:
        return {ROLE[leaf] for leaf, _ in self.leaves.values()}

    @property
    def latent(self) -> bool:
        return "latent key" in self.roles

    def rotated_channels(self) -> dict[str, Channels]:
        """Return the rotated channels of each tensor that rotates."""
        sets = ({"stacked"}, {"grouped"}, {"query", "key"}, {"query", "latent key"}, {"latent query", "latent key"})
        if not self.adapter and not any(roles <= self.roles for roles in sets):
            has = ", ".join(dict.fromkeys(leaf for leaf, _ in self.leaves.values()))
            raise CannotRead(f"{self.module} has {has}; expected projections of both queries and keys")
        channels = {}
        for name, (leaf, parameter) in self.leaves.items():
            if ROLE[leaf] == "passed" or NOT_BY_CHANNEL.search(parameter):
                continue
            self.check_plain(name, parameter)
            channels[name] = self.norm(name) if ROLE[leaf] == "norm" else self.projection(name, ROLE[leaf])
        return channels

    def queries_and_keys(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """Return the weight rows of rotated queries [heads, width, in] and keys [key heads, width, in].

        None for latent attention, whose queries and keys are projected from different inputs.
        """
        if self.latent:
            return None
        weights = {ROLE[leaf]: name for name, (leaf, parameter) in self.leaves.items() if parameter.endswith("weight")}
        rows = []
        for side in (0, 1):
            role = next(role for role in weights if role in ("stacked", "grouped", ("query", "key")[side]))
            heads, step = self.heads(weights[role], role)[side], self.part.layers[self.number].head_dim
            weight = tensors[weights[role]].float()
            rows.append(torch.stack([weight[n * step : n * step + self.width] for n in heads]))
        return rows[0], rows[1]

    def check_plain(self, name: str, parameter: str) -> None:
        dtype = self.tensors[name].dtype
        if dtype.is_floating_point and dtype.itemsize > 1 and (BY_CHANNEL.match(parameter) or not parameter):
            return
        raise CannotRead(
            f"{name} ({str(dtype).removeprefix('torch.')}) belongs to weights that are quantised or packed, whose "
            f"blocks and scales do not follow single channels; convert the unquantised checkpoint and quantise that"
        )

    def projection(self, name: str, role: str) -> Channels:
        """Return the rows of a projection that rotary rotates."""
        rows, heads = self.tensors[name].shape[0], self.part.shape.heads
        if role == "latent key":
            self.fit(name, rows > self.width)
            return Channels(0, (rows - self.width,), self.width)
        if role == "latent query" or self.latent:
            self.fit(name, rows % heads == 0 and rows // heads > self.width)
            return Channels(0, tuple(range(rows // heads - self.width, rows, rows // heads)), self.width)
        queries, keys = self.heads(name, role)
        step = self.part.layers[self.number].head_dim
        return Channels(0, tuple(n * step for n in sorted([*queries, *keys])), self.width)

    def heads(self, name: str, role: str) -> tuple[list[int], list[int]]:
        """Return the indices of the query heads and of the key heads among the heads of a projection."""
        rows, heads = self.tensors[name].shape[0], self.part.shape.heads
        count, rest = divmod(rows, self.part.layers[self.number].head_dim)
        if role == "query":
            self.fit(name, rest == 0 and count == heads)
            return list(range(heads)), []
        if role == "key":
            self.fit(name, rest == 0 and count > 0 and heads % count == 0)
            return [], list(range(count))
        kv_heads = (count - heads) // 2
        self.fit(name, rest == 0 and kv_heads > 0 and count == heads + 2 * kv_heads and heads % kv_heads == 0)
        if role == "stacked":
            return list(range(heads)), list(range(heads, heads + kv_heads))
        group_size = heads // kv_heads
        queries = [n for n in range(count) if n % (group_size + 2) < group_size]
        return queries, list(range(group_size, count, group_size + 2))

    def norm(self, name: str) -> Channels:
        """Return the rotated channels of a norm. Its shape is [D] for one head, and [H D] or [H, D] for all heads."""
        shape, head_dim = self.tensors[name].shape, self.part.layers[self.number].head_dim
        self.fit(name, not self.latent and 0 < len(shape) < 3 and shape[-1] % head_dim == 0)
        return Channels(len(shape) - 1, tuple(range(0, shape[-1], head_dim)), self.width)

    def fit(self, name: str, fits: bool) -> None:
        if not fits:
            layer, heads = self.part.layers[self.number], self.part.shape.heads
            raise CannotRead(
                f"{name} has the shape {list(self.tensors[name].shape)}, which does not fit {heads} query heads with "
                f"{layer.head_dim} channels for {layer.spec}"
            )
