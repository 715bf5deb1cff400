"""A model to be examined: its config, and a small random model of the same kind that defects are measured on."""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.formats.load import find, quietly, require_transformers
from posenc.checkpoints.kinds.rotary.module import RotaryTable
from posenc.checkpoints.kinds.rotary.old_keys import in_both_spellings
from posenc.checkpoints.live.attach import attach
from posenc.checkpoints.live.unturned import rotary_modules
from posenc.checkpoints.models.skeleton import is_shape, skeleton
from posenc.checkpoints.vocabulary.bounds import within_bounds
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading
from posenc.foreign import naming, quoted, read_json

FEW = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    **dict.fromkeys((f"{n}{side}coder_attention_heads" for n in ("", "num_") for side in ("en", "de")), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 2),
    **dict.fromkeys(("num_experts_per_tok", "n_group", "topk_group", "n_shared_experts", "moe_top_k"), 1),
}
"""How many of each a small model has, at most."""

NARROW = re.compile(r"intermediate_size|ffn_(hidden_)?dim$|^n_inner$|^ffn_hidden_size$|vocab_size")
"""Sizes that have nothing to do with position: within a layer, and of vocabularies."""

SPECIAL = re.compile(r"^(bos|eos|sep|cls|mask|decoder_start)_token_id$")

FURTHEST = 1 << 17
"""The furthest position that is looked at (tokens), and how many are tried up to there."""
TRIED = 4096


@dataclass(frozen=True)
class Patient:
    """A config of transformers, and what is made of it once and for all defects.

    config  transformers' object of the part that reads text, or of the whole where no part does
    file    the config.json that it was made from
    remedy  what is done to the small model before it is measured
    """

    config: Any
    file: Mapping[str, Any] = field(default_factory=dict)
    remedy: Callable[[Any], Any] = lambda model: None

    @functools.cached_property
    def mended(self) -> "Patient":
        """The same model as posenc mends it: attached, and with its config in both spellings."""
        remedy = functools.partial(attach, horizon=self.horizon)
        attached = replace(self, file=in_both_spellings(self.file), remedy=remedy)
        attached.__dict__["reading"] = self.reading
        return attached

    @property
    def horizon(self) -> int | None:
        """Twice the trained length (tokens), where a schedule goes by the length of a text."""
        by_length = any(said.get("rope_type") in ("dynamic", "longrope") for _, said in self.rotary_parameters)
        return 2 * self.trained if by_length and self.trained else None

    @functools.cached_property
    def trained(self) -> int | None:
        """The trained length as the config says it (tokens)."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def dtype(self) -> torch.dtype:
        """In which the config says that its weights are computed with."""
        dtype = getattr(self.config, "dtype", None)
        return dtype if isinstance(dtype, torch.dtype) else torch.float32

    @functools.cached_property
    def rotary_parameters(self) -> list[tuple[str | None, dict[str, Any]]]:
        """The rotary parameters, each with the type of its layers; one without a type where they are for all."""
        said = getattr(self.config, "rope_parameters", None) or {}
        nested = [(key, inner) for key, inner in said.items() if isinstance(inner, dict)]
        return nested or ([(None, said)] if said else [])

    @functools.cached_property
    def reading(self) -> Reading:
        """What the small model says of positions; it has the trained length and the heads' width of the large one."""
        with quietly():
            return huggingface.read_live(self.small)[0]

    @functools.cached_property
    def specs(self) -> set[str]:
        """The specs of all that it does with positions."""
        said = {part.embed for part in self.reading.parts}
        return said.union(*({layer.spec for layer in part.layers} for part in self.reading.parts)) - {"none"}

    @functools.cached_property
    def small(self) -> Any:
        """A model of this kind with random weights: layers, heads and inner widths are cut, the width of a head kept.

        Raises CannotRead where transformers cannot build one.
        """
        with quietly():
            model: Any = skeleton(cut(self.config))
            fill(model)
            self.remedy(model)
        return model

    @functools.cached_property
    def rotary(self) -> list[nn.Module]:
        """Its rotary modules; what they hold depends on the width of a head alone."""
        if all(part.known for part in self.reading.parts) and not any("rotary" in spec for spec in self.specs):
            # Falcon with ALiBi builds one all the same.
            return []
        tables = [module for module in self.small.modules() if isinstance(module, RotaryTable)]
        return [*tables, *(module for _, _, module in rotary_modules(self.small))]

    def positions(self, reach: int | None = None) -> Tensor:
        """Positions [1, n] up to the trained length, the last one among them, evenly spread."""
        last = min(reach or self.trained or TRIED, FURTHEST) - 1
        return torch.linspace(0, last, min(last + 1, TRIED), dtype=torch.float64).round().long()[None]


def patient(path: str | Path) -> Patient:
    """The patient at a path: a folder with a config.json, with weights or without, or such a file by itself.

    Raises CannotRead for what is neither, and for a config that this transformers does not know.
    """
    require_transformers()
    import transformers

    where = find(path, weights=False)
    file, within = (where / "config.json", where) if where.is_dir() else (where, None)
    with naming(file):
        said = read_json(file, within=within)
        if not isinstance(said, dict) or "model_type" not in said:
            raise CannotRead(
                "the doctor looks at models of transformers: give the folder of one, or its config.json, with "
                "model_type"
            )
        within_bounds(said)
        with quietly():
            config = huggingface.filled(said)
        if config is None:
            raise CannotRead(
                f"transformers {transformers.__version__} knows no model_type {quoted(str(said['model_type']))}; a "
                f"newer one may"
            )
    return Patient(config.get_text_config(), said)


def cut(config: Any) -> Any:
    """A config of the same kind, of a model that is built in no time."""
    small = copy.deepcopy(config)
    layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
    width, changes = getattr(config, "hidden_size", None), dict[str, Any]()
    for key in config.to_dict():
        value = getattr(config, key, None)
        if isinstance(value, list) and layers and len(value) == layers:
            # Two of different kinds, where there are such.
            changes[key] = [value[0], next((item for item in value if item != value[0]), value[-1])]
        elif type(value) is int and NARROW.search(key):
            changes[key] = min(value, 64)
        elif type(value) is int and SPECIAL.search(key):
            changes[key] = 1
    for key, most in FEW.items():
        # Some compute how many layers they have.
        if type(value := getattr(config, key, None)) is int and key in {**config.to_dict(), **config.attribute_map}:
            changes[key] = min(value, most)
    if getattr(config, "pad_token_id", None) is not None:
        changes["pad_token_id"] = 0
    if width and heads and not width % heads:
        changes["hidden_size"] = changes["num_attention_heads"] * (width // heads)
    small.update(changes)
    most = {**FEW, "kv_n_heads": FEW["num_key_value_heads"]}
    for inner in vars(small).values():
        # DBRX says in its parts how wide its layers are, and how many experts and heads they have.
        for key, value in inner.to_dict().items() if hasattr(inner, "to_dict") else ():
            fewer = changes.get("hidden_size", value) if value == width else 64 if NARROW.search(key) else most.get(key)
            inner.update({key: min(value, fewer)} if type(value) is int and fewer is not None else {})
    return small


def fill(model: nn.Module) -> None:
    """Random weights, of a size at which positions matter; always the same ones, and no random state is touched."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if is_shape(parameter):
            raise CannotRead(f"its {name} of shape {list(parameter.shape)} is too large to be tried")
        if parameter.dim() > 1:
            spread = (
                1.0 if "embed" in name or name.endswith(("wte.weight", "wpe.weight")) else parameter.shape[-1] ** -0.5
            )
            parameter.normal_(0, spread, generator=generator)
        elif name.endswith(("bias", "weight")):
            parameter.fill_(name.endswith("weight"))


def states(model: Any, **given: Any) -> Tensor:
    """What a model, or its encoder where it has one, gives for tokens before any head: [B, T, width]."""
    with torch.no_grad():
        return (model.get_encoder() if model.config.is_encoder_decoder else model)(**given)[0]


def turns(module: nn.Module, positions: Tensor, config: Any) -> Iterator[Tensor]:
    """The cosines that a rotary module gives at positions [1, n], in float32, for each type of layers that it has."""
    x = torch.zeros(1, 1, 1)
    typed = "layer_type" in inspect.signature(inspect.unwrap(type(module).forward)).parameters
    types = dict.fromkeys(getattr(config, "layer_types", None) or (None,)) if typed else (None,)
    for kind in types:
        with torch.no_grad():
            given = module(x, positions, **({} if kind is None else {"layer_type": kind}))
        yield (given.real if isinstance(given, Tensor) else given[0]).float()
