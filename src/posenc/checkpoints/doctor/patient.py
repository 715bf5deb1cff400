"""A model under examination: its config, and a small random twin on which defects are measured."""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.formats.load import find_checkpoint, quietly, require_transformers
from posenc.checkpoints.kinds.rotary.module import RotaryTable
from posenc.checkpoints.kinds.rotary.old_keys import in_both_spellings
from posenc.checkpoints.live.attach import attach
from posenc.checkpoints.live.unturned_keys import rotary_modules
from posenc.checkpoints.models.skeleton import is_shape, skeleton
from posenc.checkpoints.vocabulary.bounds import check_bounds
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading
from posenc.foreign import naming, quote, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

SMALL_COUNTS = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    **dict.fromkeys((f"{n}{side}coder_attention_heads" for n in ("", "num_") for side in ("en", "de")), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 2),
    **dict.fromkeys(("num_experts_per_tok", "n_group", "topk_group", "n_shared_experts", "moe_top_k"), 1),
}
"""The largest counts of layers, heads and experts in a small model, by config key."""

WIDTH_KEYS = re.compile(r"intermediate_size|ffn_(hidden_)?dim$|^n_inner$|^ffn_hidden_size$|vocab_size")
"""Keys of sizes that have nothing to do with position: within a layer, and of vocabularies."""

SPECIAL_IDS = re.compile(r"^(bos|eos|sep|cls|mask|decoder_start)_token_id$")

FURTHEST_POSITION = 1 << 17
"""The furthest position that is tried (tokens), and below it the largest number of positions."""
MAX_POSITIONS = 4096


@dataclass(frozen=True)
class Patient:
    """A config of transformers, and the small model that all defects share.

    config  transformers' config of the text model, or of the whole model where it has no text part
    file    its config.json
    remedy  changes the small model before it is measured
    """

    config: "PreTrainedConfig"
    file: Mapping[str, Any] = field(default_factory=dict)
    remedy: Callable[[nn.Module], object] = lambda model: None

    @functools.cached_property
    def mended_patient(self) -> "Patient":
        """The same patient after posenc's remedies: attached, and with its config in both spellings."""
        remedy = functools.partial(attach, horizon=self.horizon)
        patient = replace(self, file=in_both_spellings(self.file), remedy=remedy)
        patient.__dict__["reading"] = self.reading
        return patient

    @property
    def horizon(self) -> int | None:
        """Twice the trained length (tokens), where a schedule depends on the length of a text."""
        by_length = {"dynamic", "longrope"} & {rope.get("rope_type") for _, rope in self.rotary_parameters}
        return 2 * self.trained_length if by_length and self.trained_length else None

    @functools.cached_property
    def trained_length(self) -> int | None:
        """The trained length in the config (tokens)."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights in the config; float32 where it has none."""
        dtype = getattr(self.config, "dtype", None)
        return dtype if isinstance(dtype, torch.dtype) else torch.float32

    @functools.cached_property
    def rotary_parameters(self) -> list[tuple[str | None, dict[str, Any]]]:
        """The RoPE parameters by layer type; the type is None where all layers share them."""
        parameters = getattr(self.config, "rope_parameters", None) or {}
        by_layer_type = [(key, inner) for key, inner in parameters.items() if isinstance(inner, dict)]
        return by_layer_type or ([(None, parameters)] if parameters else [])

    @functools.cached_property
    def reading(self) -> Reading:
        """The reading of the small model, with the trained length and the head dimension of the large one."""
        with quietly():
            return huggingface.read_live(self.small)[0]

    @functools.cached_property
    def specs(self) -> set[str]:
        """The specs of all its position encodings."""
        embeddings = {part.embed for part in self.reading.parts}
        return embeddings.union(*({layer.spec for layer in part.layers} for part in self.reading.parts)) - {"none"}

    @functools.cached_property
    def small(self) -> "PreTrainedModel":
        """A small model of this kind with random weights and the head dimension of the large one.

        Raises CannotRead where transformers cannot build one.
        """
        with quietly():
            model = cast("PreTrainedModel", skeleton(shrink_config(self.config)))
            fill_weights(model)
            self.remedy(model)
        return model

    @functools.cached_property
    def rotary(self) -> list[nn.Module]:
        """Its rotary (RoPE) modules, which depend on the head dimension alone."""
        if all(part.is_complete for part in self.reading.parts) and not any("rotary" in spec for spec in self.specs):
            # Falcon builds a rotary module even with ALiBi.
            return []
        tables = [module for module in self.small.modules() if isinstance(module, RotaryTable)]
        return [*tables, *(module for _, _, module in rotary_modules(self.small))]

    def positions(self, reach: int | None = None) -> Tensor:
        """Return evenly spaced positions [1, n] up to the trained length, the last one included."""
        last = min(reach or self.trained_length or MAX_POSITIONS, FURTHEST_POSITION) - 1
        return torch.linspace(0, last, min(last + 1, MAX_POSITIONS), dtype=torch.float64).round().long()[None]


def load_patient(path: str | Path) -> Patient:
    """Load the patient of a config.json, or of a folder that has one. Weights are not needed.

    Raises CannotRead for any other path, and for a config that this transformers does not know.
    """
    require_transformers()
    import transformers

    where = find_checkpoint(path, weights=False)
    file, folder = (where / "config.json", where) if where.is_dir() else (where, None)
    with naming(file):
        content = read_json(file, folder=folder)
        if not isinstance(content, dict) or "model_type" not in content:
            words = "the doctor examines models of transformers: "
            raise CannotRead(f"{words}give the folder of one, or its config.json, with model_type")
        check_bounds(content)
        with quietly():
            config = huggingface.build_config(content)
        if config is None:
            kind = quote(str(content["model_type"]))
            raise CannotRead(f"transformers {transformers.__version__} knows no model_type {kind}; a newer one may")
    return Patient(config.get_text_config(), content)


def shrink_config(config: "PreTrainedConfig") -> "PreTrainedConfig":
    """Return a config of the same kind for a model that is small enough to build at once."""
    small = copy.deepcopy(config)
    layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
    width, changes = getattr(config, "hidden_size", None), dict[str, Any]()
    for key in config.to_dict():
        value = getattr(config, key, None)
        if isinstance(value, list) and layers and len(value) == layers:
            # Two layers of different kinds, where a model has them.
            changes[key] = [value[0], next((item for item in value if item != value[0]), value[-1])]
        elif type(value) is int and WIDTH_KEYS.search(key):
            changes[key] = min(value, 64)
        elif type(value) is int and SPECIAL_IDS.search(key):
            changes[key] = 1
    for key, limit in SMALL_COUNTS.items():
        # Some configs compute the number of layers.
        if type(value := getattr(config, key, None)) is int and key in {**config.to_dict(), **config.attribute_map}:
            changes[key] = min(value, limit)
    if getattr(config, "pad_token_id", None) is not None:
        changes["pad_token_id"] = 0
    if width and heads and not width % heads:
        changes["hidden_size"] = changes["num_attention_heads"] * (width // heads)
    small.update(changes)
    limit = {**SMALL_COUNTS, "kv_n_heads": SMALL_COUNTS["num_key_value_heads"]}
    for inner in vars(small).values():
        # DBRX keeps the widths of layers and the numbers of experts and heads in nested configs.
        for key, value in inner.to_dict().items() if hasattr(inner, "to_dict") else ():
            small_width = 64 if WIDTH_KEYS.search(key) else limit.get(key)
            fewer = changes.get("hidden_size", value) if value == width else small_width
            inner.update({key: min(value, fewer)} if type(value) is int and fewer is not None else {})
    return small


def fill_weights(model: nn.Module) -> None:
    """Fill a model with the same random weights each time, large enough that positions matter."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if is_shape(parameter):
            raise CannotRead(f"its {name} of shape {list(parameter.shape)} is too large to be tried")
        if parameter.dim() > 1:
            std = 1.0 if "embed" in name or name.endswith(("wte.weight", "wpe.weight")) else parameter.shape[-1] ** -0.5
            parameter.normal_(0, std, generator=generator)
        elif name.endswith(("bias", "weight")):
            parameter.fill_(name.endswith("weight"))


def model_states(model: "PreTrainedModel", **inputs: Tensor) -> Tensor:
    """Return the hidden states [B, T, width] of a model, or of its encoder where it has one."""
    with torch.no_grad():
        return (model.get_encoder() if model.config.is_encoder_decoder else model)(**inputs)[0]


def rotary_cosines(module: nn.Module, positions: Tensor, config: "PreTrainedConfig") -> Iterator[Tensor]:
    """Yield a rotary module's cosines at positions [1, n], in float32, one tensor for each layer type."""
    dummy = torch.zeros(1, 1, 1)
    takes_layer_type = "layer_type" in inspect.signature(inspect.unwrap(type(module).forward)).parameters
    types = dict.fromkeys(getattr(config, "layer_types", None) or (None,)) if takes_layer_type else (None,)
    for kind in types:
        with torch.no_grad():
            output = module(dummy, positions, **({} if kind is None else {"layer_type": kind}))
        yield (output.real if isinstance(output, Tensor) else output[0]).float()
