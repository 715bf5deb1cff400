"""A GGUF file as a transformers model: its config, and its tensors under transformers' names and in its layout.

Positions are read by the reader that `posenc inspect` has, and the config that is made of them is read back: a model
whose modules do something else than the file says is not loaded.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.checkpoints.files.tensors import GGUFTensors, package
from posenc.checkpoints.formats import config_json, huggingface
from posenc.checkpoints.formats.gguf.architectures import (
    ACTIVATIONS,
    ARCHITECTURES,
    BY_SHAPE,
    BY_TENSOR,
    KEYS,
    NARROW_VALUES,
    NOT_LOADED,
    RECURRENT,
    STACKS,
    TABLES,
    USUAL,
    WITHOUT_CLASS,
    Architecture,
)
from posenc.checkpoints.formats.gguf.changes import Assembly
from posenc.checkpoints.formats.gguf.derived import derived
from posenc.checkpoints.formats.gguf.file import metadata
from posenc.checkpoints.formats.gguf.metadata import read_keys
from posenc.checkpoints.formats.gguf.names import left_out, of_several, stored_names, together
from posenc.checkpoints.models.skeleton import without_pooler
from posenc.checkpoints.vocabulary.bounds import within_bounds
from posenc.checkpoints.vocabulary.differences import differences
from posenc.checkpoints.vocabulary.ledger import Ledger
from posenc.checkpoints.vocabulary.reading import CannotRead, Part, Reading
from posenc.checkpoints.vocabulary.specs import CannotExpress
from posenc.foreign import count, matches, parse_json, quoted, reading_with

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

MOST_TOKENS = 1 << 24
"""The tokens of a vocabulary."""

UNNAMED = {"seq_length", "n_positions", "tie_word_embeddings", "decoder_start_token_id"}
UNNAMED |= {"global_head_dim", "num_global_key_value_heads"}
"""Keys of configs that transformers' classes read and do not name."""


@dataclass(frozen=True)
class GGUFModel:
    """A GGUF file, and the model of transformers that it holds; nothing of its tensors has been read yet.

    config   as transformers has it
    kind     transformers' class of the model
    reading  what the config says of positions, in transformers' layout
    notes    what no such file says and what was taken instead, in sentences
    """

    file: GGUFTensors
    config: "PreTrainedConfig"
    kind: Any
    reading: Reading
    notes: tuple[str, ...]
    assembly: Assembly

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the tensors that the model has, by their names in transformers; tied ones once."""
        return self.assembly.shapes

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors under the names that transformers has, dequantised to float32, one at a time."""
        for name in self.shapes:
            yield name, self.assembly.tensor(name, self.file)

    def said(self) -> dict[str, Any]:
        """The config as a file has it."""
        return parse_json(self.config.to_json_string()) | {"dtype": "float32"}


def open_model(file: GGUFTensors) -> GGUFModel:
    """The model of a GGUF file, all of it checked but for the numbers in its tensors.

    Raises CannotRead for an architecture that is not loaded, for keys that are not understood (a model without them
    would compute something else), for what transformers builds otherwise than the file says, and where the model and
    the file do not have the same tensors.
    """
    given = metadata(file)
    arch, row = row_of(given, file)
    reading, keys = read_keys(given)
    part = understood(reading, file)
    sizes = sizes_of(arch, part, keys, file)
    config, kind, model = built(arch, row, part, sizes, own_keys(arch, row, part, keys, file), file)
    again = config_json.read(parse_json(config.to_json_string()))
    # Of what has no positions transformers' config says nothing.
    expected = replace(reading, parts=()) if arch in RECURRENT else reading
    if "pairs side by side" in row.changes.values():
        specs = (layer.spec.replace("layout='interleaved'", "layout='half'") for layer in part.layers)
        layers = tuple(replace(layer, spec=spec) for layer, spec in zip(part.layers, specs, strict=True))
        expected = replace(reading, parts=(replace(part, layers=layers),))
        if expected == reading and any("rotary" in layer.spec for layer in part.layers):
            raise CannotRead(f"{arch} has no pairs side by side that could be taken apart", file=file.path)
    if wrong := differences(expected, again):
        raise CannotRead(
            f"{kind.__name__} would not compute what it says: {'; '.join(wrong)} (in the file, and in transformers)",
            file=file.path,
        )
    stored = stored_names(arch, model, max(len(one.layers) for one in reading.parts), file)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name in stored}
    unsaid = dict(row.left_open)
    if keys.has(f"{arch}.hidden_activation"):
        unsaid = {key: value for key, value in unsaid.items() if key not in ACTIVATIONS}
    notes = tuple(f"This GGUF file of a {arch} does not say {key}; taken: {value}" for key, value in unsaid.items())
    if (pooled := given.get(f"{arch}.pooling_type")) is not None:
        notes = (*notes, f"How its tokens are pooled (pooling_type {pooled}) is left to who calls the model")
    unread = left_out(config, len(part.layers), keys.has(f"{arch}.nextn_predict_layers"), file)
    assembly = Assembly(file, row, part, config, shapes, stored)
    check_shapes(assembly)
    used = {each for names in stored.values() for one in names for each in (of_several(one)[0], together(one))}
    if unused := sorted(set(file) - used - set(TABLES) - set().union(*unread.values())):
        raise CannotRead(f"it holds {unused[0]}, which {kind.__name__} has no place for", file=file.path)
    return GGUFModel(file, config, kind, again, (*notes, *unread), assembly)


def row_of(given: Mapping[str, Any], file: GGUFTensors) -> tuple[str, Architecture]:
    """An architecture's name, and what is known of its weights, or of those that come with one more key."""
    arch = given.get("general.architecture")
    named = package(file.path).MODEL_ARCH_NAMES.values()
    if isinstance(arch, str) and arch in named and arch in ARCHITECTURES:
        return arch, next(row for name, row in reversed(ARCHITECTURES.items()) if is_row(name, arch, given, file))
    why = NOT_LOADED.get(str(arch), "what llama.cpp's converter does to its weights is not known here")
    if arch in WITHOUT_CLASS:
        import transformers

        why = f"transformers {transformers.__version__} has no class for it"
    if arch not in named:
        why = "the gguf package that is installed has no names for its tensors"
    raise CannotRead(
        f"it holds a {quoted(arch)}, and {why}. Load the original checkpoint; posenc loads GGUF files of "
        f"{', '.join(one for one in ARCHITECTURES if ' ' not in one)}",
        file=file.path,
    )


def is_row(name: str, arch: str, given: Mapping[str, Any], file: GGUFTensors) -> bool:
    """Whether a row is of an architecture, and of the key or the tensor that it names besides.

    A key may have to have a value.
    """
    first, _, more = name.partition(" with ")
    key, _, value = more.partition(" ")
    said = given.get(f"{arch}.{key}", key in file)
    return first == arch and (not more or (str(said) == value if value else bool(said)))


def understood(reading: Reading, file: GGUFTensors) -> Part:
    """The stack of layers of a reading that leaves nothing open, or the first of two."""
    left = [*reading.contradictions, *(f"it leaves open {sentence}" for sentence in reading.not_covered)]
    left += [f"it says {key}, which posenc does not read" for key in reading.unknown]
    if left:
        raise CannotRead(left[0], file=file.path)
    if len(reading.parts) != (expected := STACKS.get(str(reading.architecture), 1)):
        raise CannotRead(f"it has {len(reading.parts)} stacks of layers, expected {expected}", file=file.path)
    part = reading.parts[0]
    needed = {"attention.head_count": part.kv_heads, "context_length": part.trained_length}
    needed = {} if reading.architecture in RECURRENT else needed
    for key, value in needed.items():
        if value is None:
            raise CannotRead(
                "it is missing; it is no whole model", file=file.path, field=f"{reading.architecture}.{key}"
            )
    # Queries alone have as many numbers: nothing is looped over that the file cannot fill.
    layers = sum(len(one.layers) for one in reading.parts)
    claimed = layers * part.shape.heads * part.shape.head_dim * part.shape.dim
    held = sum(math.prod(file.shape(name)) for name in file)
    if claimed > held:
        raise CannotRead(
            f"by its keys queries alone are made with {claimed:,} numbers, and its tensors have {held:,}; it may be "
            f"truncated",
            file=file.path,
        )
    return part


def sizes_of(arch: str, part: Part, keys: Ledger, file: GGUFTensors) -> dict[str, Any]:
    """Sizes, windows and tokens, under the names that most configs of transformers have for them."""
    rows = file.shape("token_embd.weight")[:1] if "token_embd.weight" in file else ()
    tokens = keys.take(f"{arch}.vocab_size", "{} tokens", *rows)
    latent, value_dim = bool(keys.peek(f"{arch}.attention.kv_lora_rank")), None
    for key in ("attention.value_length", "attention.value_length_mla"):
        value_dim = keys.take(f"{arch}.{key}", "{} channels a head of the values", *([value_dim] if value_dim else []))
        matches(value_dim, (None, int), file=file.path, field=f"{arch}.{key}")
    near = keys.take(path := f"{arch}.attention.value_length_swa", "{} of them in layers with a window")
    matches(near, (None, int), file=file.path, field=path)
    for value, windowed, end in ((value_dim, False, ""), (near, True, "_swa")):
        widths = {layer.head_dim for layer in part.layers if bool(layer.window) is windowed}
        if value is not None and widths - {value} and not latent and arch not in NARROW_VALUES:
            raise CannotRead(
                f"expected {min(widths)}, the channels of a head, got {value}",
                file=file.path,
                field=f"{arch}.attention.value_length{end}",
            )
    found = {
        "hidden_size": part.shape.dim,
        "num_hidden_layers": len(part.layers),
        "num_attention_heads": part.shape.heads,
        "num_key_value_heads": part.kv_heads,
        "head_dim": None if latent else part.shape.head_dim,
        "v_head_dim": value_dim,
        "max_position_embeddings": part.trained_length,
        "vocab_size": count(tokens, f"{arch}.vocab_size", file=file.path, most=MOST_TOKENS),
        "tie_word_embeddings": "output.weight" not in file,
        "sliding_window": next((layer.window for layer in part.layers if layer.window), None),
        "layer_types": config_json.types_of({}, part),
    }
    for kind in ("bos", "eos", "padding"):
        token = file.said.get(key := f"tokenizer.ggml.{kind}_token_id")
        matches(token, (None, int), file=file.path, field=key)
        found[f"{'pad' if kind == 'padding' else kind}_token_id"] = token
    return found


def own_keys(arch: str, row: Architecture, part: Part, keys: Ledger, file: GGUFTensors) -> dict[str, Any]:
    """What the config of an architecture has besides: what the file says, and what its tensors tell.

    Raises CannotRead for keys of the file that are missing, and for those that nobody has read.
    """
    maker = maker_of(row, file)
    known = maker.__dataclass_fields__
    found = {**row.fixed, **row.left_open}
    found |= {name: any(one in file for one in BY_TENSOR[name].split()) for name in BY_TENSOR if name in known}
    scale = next((layer.scale for layer in part.layers if layer.attends), None) or part.shape.head_dim**-0.5
    if "attention_multiplier" in known:
        found["attention_multiplier"] = scale
    if "query_pre_attn_scalar" in known:
        found["query_pre_attn_scalar"] = round(scale**-2)
    for key, expected in row.settled.items():
        path = f"{arch}.{key.removesuffix('?')}"
        value = keys.take(path, "{}")
        if value != expected and not (value is None and key.endswith("?")):
            raise CannotRead(f"expected {expected}, got {quoted(value, 40)}", file=file.path, field=path)
    found |= derived(arch, row, part, keys, file)
    acts = keys.take(path := f"{arch}.hidden_activation", "{}")
    matches(acts, (None, str), file=file.path, field=path)
    found |= {name: acts for name in ACTIVATIONS if name in known} if acts else {}
    missing: dict[str, str] = {}
    experts = any("_exps." in name for name in file)
    for key, names in KEYS.items():
        path = f"{arch}.{key}"
        own = (name if name in known else maker.attribute_map.get(name) for name in names.split())
        name = next((name for name in own if name in known), None)
        if path in keys.taken or (name is None and key not in BY_SHAPE):
            continue
        value = keys.take(path, "{}")
        if isinstance(value, (list, tuple)) and len(set(value)) == 1:
            # One for each layer, all alike.
            value = value[0]
        if value is None and key in USUAL and name is not None:
            found.setdefault(name, USUAL[key])
        # What a class does without when it is not told may be missing, and all of experts where there are none.
        elif (
            value is None and name is not None and known[name].default is not None and (experts or key[:7] != "expert_")
        ):
            missing.setdefault(name, path)
        if value is None:
            continue
        matches(value, (float, bool), file=file.path, field=path)
        if not math.isfinite(value):
            raise CannotRead(f"expected a finite number, got {value}", file=file.path, field=path)
        if name and found.setdefault(name, value) != value:
            raise CannotRead(f"expected {found[name]}, as another key says, got {value}", file=file.path, field=path)
    for name, path in missing.items():
        if name not in found:
            raise CannotRead(f"it is missing, and {maker.__name__} needs its {name}", file=file.path, field=path)
    if not part.shape.causal:
        matches(keys.take(f"{arch}.pooling_type", "{}"), (None, int), file=file.path, field=f"{arch}.pooling_type")
    if left := [key for key in keys.given if key not in keys.taken]:
        raise CannotRead(f"it says {left[0]}, which posenc does not read in a GGUF file yet", file=file.path)
    return found


def maker_of(row: Architecture, file: GGUFTensors) -> Any:
    """transformers' class of the config of an architecture."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with reading_with("transformers", file=file.path, field=f"this {row.model}"):
        return CONFIG_MAPPING[row.model]


def built(
    arch: str, row: Architecture, part: Part, sizes: dict[str, Any], own: dict[str, Any], file: GGUFTensors
) -> tuple["PreTrainedConfig", Any, Any]:
    """transformers' config, its class of the model, and one without numbers."""
    with reading_with("transformers", file=file.path, field=f"this {row.model}"):
        maker = maker_of(row, file)
        known = maker.__dataclass_fields__
        if strange := set(own) - {*known, *UNNAMED}:
            raise CannotRead(f"{maker.__name__} of this transformers has no {min(strange)}", file=file.path)
        apart = sizes["head_dim"] not in (None, part.shape.dim // part.shape.heads)
        # What a class has no key for follows from others there; some read this one without naming it.
        sizes = {key if key in known else maker.attribute_map.get(key, key): value for key, value in sizes.items()}
        given = {key: value for key, value in sizes.items() if key in known or (key == "head_dim" and apart)}
        # Some classes must have a token for padding.
        given = {key: value for key, value in given.items() if value is not None or known[key].type is not int} | own
        within_bounds(given)
        try:
            placed = replace(part, trained_length=None) if arch in RECURRENT else part
            config = huggingface.filled(config_json.with_positions({"model_type": row.model, **given}, placed))
        except CannotExpress as error:
            raise CannotRead(str(error), file=file.path) from error
        kind = class_of(config, arch, part)
        config.architectures = [kind.__name__]
        with torch.device("meta"):
            return config, kind, kind(config, **without_pooler(kind))


def class_of(config: "PreTrainedConfig", arch: str, part: Part) -> Any:
    """transformers' class of a model: of two stacks, of text that goes on, of an encoder alone."""
    from transformers.models.auto import modeling_auto as classes

    if arch in STACKS:
        return classes.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)]
    if part.shape.causal:
        return classes.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    encoders = classes.MODEL_FOR_TEXT_ENCODING_MAPPING
    return (encoders if type(config) in encoders else classes.MODEL_MAPPING)[type(config)]


def check_shapes(assembly: Assembly) -> None:
    """Raises CannotRead unless each tensor of the file is of the shape that the model has for it."""
    described = assembly.file.described()
    for name, shape in assembly.shapes.items():
        try:
            found = tuple(assembly.tensor(name, described).shape)
        # What does not even fit together.
        except (RuntimeError, IndexError):
            found = None
        if found != shape:
            stored = assembly.stored[name][0]
            held = list(assembly.file.shape(of_several(stored)[0]))
            raise CannotRead(
                f"{stored} has the shape {held}, but by the file's own numbers {name} has {list(shape)}",
                file=assembly.file.path,
            )
