"""Which channels of a head turn together: the weights of a checkpoint from one layout into the other, exactly.

half           pair p is channels p and p + r/2         (GPT-NeoX, Hugging Face's Llama)
interleaved    pair p is channels 2p and 2p + 1         (GPT-J, Meta's Llama, GGUF's llama, DeepSeek)
swapped        pair p is channels p + r/2 and p         (nanochat)

Queries and keys meet in products only, so the rows that make them may be put in another order, the same for both: row c
of each head becomes row order[c], with order[2p] = p and order[2p + 1] = p + r/2 for interleaved from half. With the
rotary of the other layout every logit stays what it was. No number is computed, so the way back gives every bit again.
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
    # These stand beside queries and keys, and position does not turn them.
    "passed": "v_proj value_proj value wv to_v v_lin linear_v v o_proj out_proj dense wo to_out proj c_proj linear_out "
    "out_lin Wo q_a_proj q_a_layernorm kv_a_layernorm kv_b_proj v_norm sinks",
}
"""What the tensors of an attention are for, by their names.

stacked   all queries, then all keys, then all values (Phi-3, ModernBERT)
grouped   for each key head the queries that share it, the key, the value (GPT-NeoX, Falcon)
latent    multi-head latent attention (DeepSeek): the last channels of each query head and of the one key turn
"""

ROLE = {name: role for role, names in ROLES.items() for name in names.split()}
LAYER = re.compile(r"(?:^|\.)(\d+)\.")
OTHER_SENSES = re.compile(r"(?:^|[._])(?:vis|image|audio|speech)\w*(?:[._]|$)")
# Masks and frequencies that old checkpoints hold as buffers.
BUFFER = re.compile(r"(?:rotary_emb\.inv_freq|(?:attn|attention)\.(?:masked_)?bias)$")
BY_CHANNEL = re.compile(r"(?:base_layer\.)?(?:weight|bias)$|lora_B(\.\w+)?\.(?:weight|bias)$|lora_magnitude_vector\b")
NOT_BY_CHANNEL = re.compile(r"lora_A(\.\w+)?\.weight$")


@dataclass(frozen=True)
class Turned:
    """The channels of a tensor that position turns.

    axis    the axis of the tensor that counts channels
    starts  the first turned channel of each head
    width   how many channels of a head are turned, from its start on: the r of the formulas
    """

    axis: int
    starts: tuple[int, ...]
    width: int


def order(width: int, now: str, to: str) -> Tensor:
    """The old channel at each new place, for a head with `width` turned channels.

    >>> order(6, "half", "interleaved").tolist(), order(6, "interleaved", "swapped").tolist()
    ([0, 3, 1, 4, 2, 5], [1, 3, 5, 0, 2, 4])
    """
    check_layout(to)
    old, new = (torch.tensor(channels_of_pairs(width // 2, layout)).flatten() for layout in (now, to))
    return torch.empty_like(old).scatter(0, new, old)


def rearranged(tensor: Tensor, turned: Turned, now: str, to: str) -> Tensor:
    """The same tensor with its turned channels in another layout, `to`; everything else stays where it is.

    >>> weight = torch.arange(8.0)[:, None]
    >>> rearranged(weight, Turned(axis=0, starts=(0, 4), width=4), "half", "interleaved").flatten().tolist()
    [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]
    """
    index, rows = torch.arange(tensor.shape[turned.axis], device=tensor.device), order(turned.width, now, to)
    for start in turned.starts:
        index[start : start + turned.width] = start + rows.to(tensor.device)
    return tensor.index_select(turned.axis, index)


def check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got '{layout}'")


# What a reading says of layouts


def rotary_of(encoding: Encoding) -> Any:
    """The part of an encoding that turns pairs of channels, which has a `layout`; or None."""
    found = [module for module in encoding.modules() if isinstance(getattr(module, "layout", None), str)]
    if len(found) > 1:
        raise CannotRead(f"{encoding} turns pairs in {len(found)} ways; posenc converts the layout of one")
    return found[0] if found else None


def layout_of(reading: Reading) -> str | None:
    """The layout that a reading says its queries and keys are in; None where it has no rotary.

    Raises CannotRead where its layers are in several.
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


def in_layout(reading: Reading, to: str) -> Reading:
    """The same reading with every rotary in another layout: what is true of the weights after the conversion."""
    check_layout(to)
    parts = []
    for part in reading.parts:
        specs = {layer: turned_round(part, number, to) for layer, number in first_of_each(part).items()}
        parts.append(replace(part, layers=tuple(replace(layer, spec=specs[layer]) for layer in part.layers)))
    return replace(reading, parts=tuple(parts))


def first_of_each(part: Part) -> dict[Layer, int]:
    """Every kind of layer of a part, with the number of its first."""
    return {layer: part.layers.index(layer) for layer in dict.fromkeys(part.layers)}


def turned_round(part: Part, number: int, to: str) -> str:
    encoding = copy.deepcopy(part.encoding(number))
    rotary = rotary_of(encoding)
    if rotary is None:
        return part.layers[number].spec
    rotary.layout = to
    return str(encoding)


def width_of(part: Part, number: int) -> int | None:
    """How many channels of a head a layer turns; None for a layer that turns none.

    Raises CannotRead for an encoding whose layouts differ by more than the order of channels: that is measured.
    """
    encoding = part.encoding(number)
    rotary = rotary_of(encoding)
    if rotary is None:
        return None
    if rotary.layout not in LAYOUTS:
        raise CannotRead(f"{encoding} pairs its channels as '{rotary.layout}'; posenc converts {' and '.join(LAYOUTS)}")
    for other in parts_of(encoding):
        if {"biases", "remember"} & other.doors:
            raise CannotRead(f"{encoding}: {other} reads channels of queries or keys itself; its layout cannot change")
    head_dim = part.layers[number].head_dim
    width = getattr(rotary, "width", head_dim)
    to = next(layout for layout in LAYOUTS if layout != rotary.layout)
    twin = copy.deepcopy(encoding)
    rotary_of(twin).layout = to
    axes = getattr(rotary, "axes", 1)
    at = Positions.grid(*[2] * axes) if axes > 1 else Positions.count(3)
    x = torch.linspace(1, 2, part.shape.heads * at.coords.shape[1] * head_dim, dtype=torch.float64)
    x = x.view(1, part.shape.heads, -1, head_dim)
    every = Turned(3, (0,), width)
    with torch.no_grad():
        there = partial(rearranged, turned=every, now=rotary.layout, to=to)
        if not torch.allclose(twin.query(there(x), at), there(encoding.query(x, at))):
            raise CannotRead(f"the layouts of {encoding} differ by more than the order of {width} channels")
    return width


# Which tensors are turned


def turned_tensors(reading: Reading, tensors: Mapping[str, Tensor], *, adapter: bool = False) -> dict[str, Turned]:
    """Which tensors of a checkpoint have to be rearranged with the layout, found by their names and measured by shape.

    reading   what the checkpoint says of positions: heads, channels of a head, rotary width, layer by layer
    tensors   the tensors by name; only shapes and dtypes are looked at, so they may be on "meta"
    adapter   whether they are an adapter (LoRA, DoRA): queries or keys may then be missing from a layer

    Projections of queries and keys, apart or fused, their biases, norms of queries and keys (by channel), the rotary
    part of latent attention, and of adapters the factor B and the magnitudes. In partial rotary the turned channels
    alone. Layers without rotary are left as they are.

    Raises CannotRead for anything beside queries and keys that is not recognised, for shapes that contradict the
    reading, for a layer in which no queries or keys are found, and for quantised weights.
    """
    return {
        name: turned
        for attention in attentions(reading, tensors, adapter=adapter)
        for name, turned in attention.turned().items()
    }


def attentions(reading: Reading, tensors: Mapping[str, Tensor], *, adapter: bool = False) -> list["Attention"]:
    """The attentions that have a rotary, one for each layer that turns; raises as `turned_tensors` does."""
    leaves: dict[tuple[str, int], dict[str, dict[str, tuple[str, str]]]] = {}
    for name in tensors:
        part, number = place_of(name, reading.parts)
        if part is None or number is None:
            continue
        module, leaf, what = split(name, number)
        if leaf is None:
            continue
        if number >= len(part.layers) and rotates(part):
            raise CannotRead(f"{name} is of layer {number}, and by the config there are {len(part.layers)}")
        leaves.setdefault((part.name, number), {}).setdefault(module, {})[name] = (leaf, what)
    found = []
    for part in reading.parts:
        widths = {layer: width_of(part, number) for layer, number in first_of_each(part).items()}
        for number, layer in enumerate(part.layers):
            if (width := widths[layer]) is None:
                continue
            here = {
                module: named
                for module, named in leaves.get((part.name, number), {}).items()
                if {ROLE[leaf] for leaf, _ in named.values()} - {"passed", "norm"}
            }
            if len(here) > 1:
                raise CannotRead(
                    f"layer {number} has several attentions ({', '.join(here)}); posenc cannot tell which turns"
                )
            if not here and not adapter:
                raise CannotRead(
                    f"layer {number} turns queries and keys ({layer.spec}), and none of its tensors has a name that "
                    f"queries or keys go by, such as q_proj and k_proj"
                )
            for module, named in here.items():
                check_neighbours(module, named, tensors)
                found.append(Attention(part, number, width, module, named, tensors, adapter))
    return found


def rotates(part: Part) -> bool:
    return any(rotary_of(part.encoding(number)) is not None for number in first_of_each(part).values())


def place_of(name: str, parts: tuple[Part, ...]) -> tuple[Part | None, int | None]:
    """The part of the model and the layer that a tensor belongs to."""
    match = LAYER.search(name)
    number = int(match[1]) if match else None
    if len(parts) == 1 and not parts[0].name:
        return parts[0], number
    other = bool(OTHER_SENSES.search(name))
    fitting = [part for part in parts if bool(OTHER_SENSES.search(part.name)) == other and rotates(part)]
    if len(fitting) > 1:
        raise CannotRead(f"{name} may belong to {' or '.join(part.name for part in fitting)}; posenc cannot tell which")
    return (fitting[0] if fitting else None), number


def split(name: str, number: int) -> tuple[str, str | None, str]:
    """The attention, the projection in it, and what of that a tensor is: `...self_attn`, `q_proj`, `weight`."""
    words = name.split(".")
    for place in range(words.index(str(number)) + 1, len(words)):
        if words[place] in ROLE:
            return ".".join(words[:place]), words[place], ".".join(words[place + 1 :])
    return name, None, ""


def check_neighbours(module: str, known: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    for name in tensors:
        if name.startswith(f"{module}.") and name not in known and not BUFFER.search(name):
            raise CannotRead(
                f"{name} stands beside queries and keys, and posenc does not know whether position turns it; "
                f"nothing was converted"
            )


@dataclass(frozen=True)
class Attention:
    """One attention with rotary, and its tensors: name -> (projection, what of it), as in ("q_proj", "weight")."""

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

    def turned(self) -> dict[str, Turned]:
        """Every tensor that position turns."""
        whole = ({"stacked"}, {"grouped"}, {"query", "key"}, {"query", "latent key"}, {"latent query", "latent key"})
        if not self.adapter and not any(needed <= self.roles for needed in whole):
            has = ", ".join(dict.fromkeys(leaf for leaf, _ in self.leaves.values()))
            raise CannotRead(f"{self.module} has {has}; expected projections of both queries and keys")
        found = {}
        for name, (leaf, what) in self.leaves.items():
            if ROLE[leaf] == "passed" or NOT_BY_CHANNEL.search(what):
                continue
            self.check_plain(name, what)
            found[name] = self.norm(name) if ROLE[leaf] == "norm" else self.projection(name, ROLE[leaf])
        return found

    def queries_and_keys(self, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """The rows of the weights that make turned queries [heads, width, in] and keys [key heads, width, in].

        tensors   the tensors with their numbers

        None for latent attention, whose queries and keys are made of different things.
        """
        if self.latent:
            return None
        weights = {ROLE[leaf]: name for name, (leaf, what) in self.leaves.items() if what.endswith("weight")}
        rows = []
        for wanted in (0, 1):
            role = next(role for role in weights if role in ("stacked", "grouped", ("query", "key")[wanted]))
            chosen, step = self.heads(weights[role], role)[wanted], self.part.layers[self.number].head_dim
            weight = tensors[weights[role]].float()
            rows.append(torch.stack([weight[n * step : n * step + self.width] for n in chosen]))
        return rows[0], rows[1]

    def check_plain(self, name: str, what: str) -> None:
        dtype = self.tensors[name].dtype
        if dtype.is_floating_point and dtype.itemsize > 1 and (BY_CHANNEL.match(what) or not what):
            return
        raise CannotRead(
            f"{name} ({str(dtype).removeprefix('torch.')}) belongs to weights that are quantised or packed, whose "
            f"blocks and scales do not follow single channels; convert the unquantised checkpoint and quantise that"
        )

    def projection(self, name: str, role: str) -> Turned:
        """Where the turned channels of each head start among the rows of a projection."""
        rows, heads = self.tensors[name].shape[0], self.part.shape.heads
        if role == "latent key":
            self.fit(name, rows > self.width)
            return Turned(0, (rows - self.width,), self.width)
        if role == "latent query" or self.latent:
            self.fit(name, rows % heads == 0 and rows // heads > self.width)
            return Turned(0, tuple(range(rows // heads - self.width, rows, rows // heads)), self.width)
        queries, keys = self.heads(name, role)
        step = self.part.layers[self.number].head_dim
        return Turned(0, tuple(n * step for n in sorted([*queries, *keys])), self.width)

    def heads(self, name: str, role: str) -> tuple[list[int], list[int]]:
        """Which of the heads in a projection, counted by its rows, are queries, and which are keys."""
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
        shared = heads // kv_heads
        group = [n for n in range(count) if n % (shared + 2) < shared]
        return group, list(range(shared, count, shared + 2))

    def norm(self, name: str) -> Turned:
        """A norm has a number for each channel of one head, of all heads in a row, or of all heads in a table."""
        shape, head_dim = self.tensors[name].shape, self.part.layers[self.number].head_dim
        self.fit(name, not self.latent and 0 < len(shape) < 3 and shape[-1] % head_dim == 0)
        return Turned(len(shape) - 1, tuple(range(0, shape[-1], head_dim)), self.width)

    def fit(self, name: str, fits: bool) -> None:
        if not fits:
            layer, heads = self.part.layers[self.number], self.part.shape.heads
            raise CannotRead(
                f"{name} has the shape {list(self.tensors[name].shape)}, which does not fit {heads} query heads with "
                f"{layer.head_dim} channels for {layer.spec}"
            )
