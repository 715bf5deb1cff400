"""The tensors of transformers' models from those of a GGUF file: what llama.cpp's converter did to them is undone."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posenc.checkpoints.files.tensors import GGUFTensors
from posenc.checkpoints.formats.gguf.architectures import Architecture
from posenc.checkpoints.formats.gguf.names import in_keys, of_several, together
from posenc.checkpoints.vocabulary.reading import Part

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True)
class Assembly:
    """How the tensors of a model are made of those of a file.

    part    what is read of positions, in the file's layout
    config  as transformers has it
    shapes  of the tensors that the model has, by their names in transformers; tied ones once
    stored  for each of them the names that the file has for it: one, or several that it is made of
    """

    file: GGUFTensors
    row: Architecture
    part: Part
    config: "PreTrainedConfig"
    shapes: Mapping[str, tuple[int, ...]]
    stored: Mapping[str, tuple[str, ...]]

    def tensor(self, name: str, of: Mapping[str, Tensor]) -> Tensor:
        """A tensor of the model from those of the file, or from as many described by their shapes."""
        stored, shape = self.stored[name], self.shapes[name]
        found = self.joined(name, [self.undone(one, self.piece(one, of)) for one in stored])
        if head := re.search(r"\.norms\.(\d+)\.weight$", name):
            heads = self.part.shape.heads if "q_layernorm" in name else self.part.kv_heads
            found = found.view(heads or 0, -1)[int(head[1])]
        if found.dim() == 3 and len(shape) == 2:
            # Experts below one another.
            found = found.flatten(0, 1)
        # Converters drop axes of one.
        wide = [size for size in shape if size != 1]
        return found.reshape(shape) if [size for size in found.shape if size != 1] == wide else found

    def piece(self, name: str, of: Mapping[str, Tensor]) -> Tensor:
        """A stored tensor, or its rows of the one that some files have for several."""
        if name in of:
            return of[name]
        if (number := in_keys(name, self.file)) is not None:
            return number
        held, place = of_several(name)
        if place is not None:
            return of[held][place]
        # Queries, keys and values behind one another.
        queries, keys = (many * self.part.shape.head_dim for many in (self.part.shape.heads, self.part.kv_heads or 0))
        pieces = of[together(name)].split([queries, keys, keys])
        return pieces["qkv".index(name[name.index(".attn_") + 6])]

    def joined(self, name: str, pieces: list[Tensor]) -> Tensor:
        """One tensor of its pieces."""
        first = self.stored[name][0]
        if len(pieces) == 1:
            return pieces[0]
        if ".attn_k_b." in first:
            return torch.cat([pieces[0].mT, pieces[1]], dim=1).flatten(0, 1)
        if ".attn_qkv." in first:
            # Of linear attention: queries, keys, values and gates of each head of keys, one head after another.
            heads, width = self.config.linear_num_key_heads, self.config.linear_key_head_dim
            keys = heads * width
            pieces = [*pieces[0].split([keys, keys, len(pieces[0]) - 2 * keys]), pieces[1]]
            return torch.cat([one.unflatten(0, (heads, -1)) for one in pieces], dim=1).flatten(0, 1)
        changes = self.row.changes_of(first)
        if "in turns" in changes:
            found = torch.stack(pieces, dim=2).flatten(1, 2)
            return found.mT if name.endswith("_proj") else found
        return torch.cat(pieces, dim=-1 if "transposed" in changes else -2)

    def undone(self, name: str, tensor: Tensor) -> Tensor:
        """A stored tensor as it was before the converter changed it: weights [O, I], biases and norms [O]."""
        heads, kv_heads = self.part.shape.heads, self.part.kv_heads or 0
        head_dim = self.part.shape.head_dim
        for change in self.row.changes_of(name):
            if change == "pairs side by side":
                # Rows (2i, 2i + 1) of each head, which turn together, go to (i, i + half).
                turned = tensor.unflatten(0, (heads if ".attn_q." in name else kv_heads, -1, 2))
                tensor = turned.transpose(1, 2).flatten(0, 2)
            if change == "plus one":
                tensor = tensor - 1
            if change == "transposed":
                tensor = tensor.mT
            if change == "queries, keys and values of all heads":
                tensor = tensor.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
            if change == "queries, keys and values of all groups":
                sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
                groups = [one.unflatten(0, (kv_heads, -1, head_dim)) for one in tensor.split(sizes)]
                tensor = torch.cat(groups, dim=1).flatten(0, 2)
            if change == "minus its power of e":
                tensor = (-tensor).log()
            if change == "axes of one":
                tensor = tensor.squeeze()
            if change == "groups below one another":
                tensor = tensor.flatten()
            if change == "values of each key in turns":
                tensor = self.in_groups(name, tensor)
        return tensor

    def in_groups(self, name: str, tensor: Tensor) -> Tensor:
        """Heads of values that stand in turns, one for each head of keys in linear attention: those of a key together.

        They are the last rows of a tensor, or the columns of what comes after them.
        """
        config, axis = self.config, int(".ssm_out." in name)
        each = config.linear_num_value_heads // config.linear_num_key_heads
        width = config.linear_value_head_dim if re.search(r"attn_|conv1d|ssm_out", name) else 1
        values = config.linear_num_value_heads * width
        others, own = tensor.split([tensor.shape[axis] - values, values], dim=axis)
        own = own.unflatten(axis, (each, -1, width)).transpose(axis, axis + 1).flatten(axis, axis + 2)
        return torch.cat([others, own], dim=axis)
