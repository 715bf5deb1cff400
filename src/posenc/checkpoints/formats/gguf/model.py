"""Load a GGUF file as a model of transformers, and compare its config with the file.

transformers unpacks such files, but ignores some keys. Positions are read here as in `posenc inspect`; a config that
differs is corrected if transformers has the keys, and else refused.
"""

import io
import math
import tempfile
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from posenc.checkpoints.files.tensors import GGUFTensors, import_gguf
from posenc.checkpoints.formats import config_json, huggingface, load
from posenc.checkpoints.formats.gguf.architectures import RECURRENT, TABLES
from posenc.checkpoints.formats.gguf.file import metadata, shortest_decimal
from posenc.checkpoints.formats.gguf.metadata import read
from posenc.checkpoints.vocabulary.bounds import check_bounds
from posenc.checkpoints.vocabulary.differences import differences
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading
from posenc.checkpoints.vocabulary.specs import CannotExpress
from posenc.foreign import naming, parse_json, quote, reading_with

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

ORIGINAL = "`posenc inspect` reads its positions all the same; to load it, take the original checkpoint"

TAKEN_APART = frozenset(("llama",))
"""Architectures whose neighbouring pairs transformers puts half the rotary width apart, as its own classes have them
(`LlamaTensorProcessor`)."""

DIGITS_FIRST = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Pre-tokenizers, by GGUF's names, that split off each digit and then split as GPT-2 does: no space before a number is
part of it. transformers splits all as GPT-2 does. Source: llama.cpp, llama-vocab.cpp."""


@dataclass(frozen=True)
class GGUFModel:
    """The model of a GGUF file, before its tensors are read.

    config   as transformers has it, with the positions of the file
    kind     transformers' class of the model
    reading  the positions of the config, in transformers' layout
    notes    what was corrected, in sentences
    """

    file: GGUFTensors
    config: "PreTrainedConfig"
    kind: Any
    reading: Reading
    notes: tuple[str, ...]

    def load_weights(self, dtype: torch.dtype) -> "PreTrainedModel":
        """Return the model with its weights, dequantised.

        Raises CannotRead if transformers cannot read them, ValueError for numbers beyond the range of the dtype.
        """
        import transformers

        options: dict[str, Any] = {"config": self.config, "dtype": dtype, "attn_implementation": None}
        if hasattr(transformers, "GgufConfig"):
            # Left packed, weights are multiplied by code that transformers fetches.
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        # Its progress bars are tqdm's, which no switch of transformers reaches.
        with redirect_stderr(io.StringIO()):
            model, info = from_file(self.kind, self.file, **options)
        if wrong := sorted({name for name, _, _ in info["mismatched_keys"]} | set(info["missing_keys"])):
            raise CannotRead(f"it has no tensor that fits {wrong[0]} of {self.kind.__name__}", remedy=ORIGINAL)
        model.config.name_or_path = str(self.file.path)
        for name, parameter in model.named_parameters():
            if parameter.isinf().any():
                raise ValueError(f"{name} has numbers beyond {torch.finfo(dtype).max:.6g}, where {dtype} ends")
        return model

    def tokenizer(self) -> "tuple[PreTrainedTokenizerBase | None, tuple[str, ...]]":
        """Return the tokenizer, None if the file has none or transformers cannot read it; and notes on it."""
        import transformers

        kind, cut = (self.file.metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
        if kind is None:
            return None, ()
        try:
            tokenizer = from_file(transformers.AutoTokenizer, self.file, trust_remote_code=False)
        except CannotRead as error:
            return None, (f"It comes without a tokenizer: {error.wrong}; use that of the original checkpoint",)
        words = tokenizer.backend_tokenizer
        if kind != "gpt2" or cut == "gpt-2" or type(words.pre_tokenizer).__name__ != "ByteLevel":
            return tokenizer, ()
        if cut in DIGITS_FIRST:
            from tokenizers import Regex, pre_tokenizers

            digits = pre_tokenizers.Split(Regex(r"\p{N}"), "isolated")
            words.pre_tokenizer = pre_tokenizers.Sequence([digits, words.pre_tokenizer])
            return tokenizer, ()
        note = f"Words are cut as GPT-2 cuts them: the file says {quote(cut)}, for which transformers has no rule"
        return tokenizer, (f"{note}; hold it against the tokenizer of the original checkpoint",)


def from_file(maker: Any, file: GGUFTensors, **options: object) -> Any:
    """Call `from_pretrained` of a class with a GGUF file alone. Raises CannotRead for a file that it cannot read.

    The class gets an empty folder, so that it reads nothing beside the file.
    """
    with tempfile.TemporaryDirectory() as empty, reading_with("transformers", file=file.path, remedy=ORIGINAL):
        return maker.from_pretrained(empty, gguf_file=str(file.path.absolute()), local_files_only=True, **options)


def open_model(file: GGUFTensors) -> GGUFModel:
    """Open the model of a GGUF file, and check all but the numbers in its tensors.

    Raises CannotRead for an architecture that transformers does not load, for unknown keys of positions, for positions
    that transformers' class would not compute, and if the numbers of parameters in model and tensors differ.
    """
    import transformers

    import_gguf(file.path)
    with naming(file.path):
        reading = read(metadata(file))
        check_claims(reading, file)
        fetches_code(str(reading.architecture), file)
        config = from_file(transformers.AutoConfig, file)
        config, again, notes = correct(config, reading)
        with reading_with("transformers"):
            model = load.hollow_model(model_class(config), config)
        check_numbers(model, file)
    return GGUFModel(file, config, type(model), again, notes)


def fetches_code(architecture: str, file: GGUFTensors) -> None:
    """Raise CannotRead if transformers would fetch code for a model: kernels, if their package is installed."""
    package = find_spec("kernels")
    if package is None or package.origin is None:  # a folder of that name is no package
        return
    try:
        from transformers.integrations.gguf import is_gguf_arch_supported
    except ImportError:
        return
    if is_gguf_arch_supported(architecture):
        words = f"for a {architecture} transformers runs code from a hub where the package kernels is installed"
        raise CannotRead(words, file=file.path, remedy="uninstall it, or take the original checkpoint")


def check_claims(reading: Reading, file: GGUFTensors) -> None:
    """Raise CannotRead for a reading that leaves something open, and for sizes beyond the file's tensors."""
    faults = [*reading.contradictions, *(f"it leaves open {sentence}" for sentence in reading.not_covered)]
    faults += [f"it says {key}, which posenc does not read" for key in reading.unknown]
    if faults:
        raise CannotRead(faults[0], remedy=ORIGINAL)
    # The weights of queries alone are counted, so that loops end with what the file can fill.
    numbers = sum(len(p.layers) * p.shape.heads * p.shape.head_dim * p.shape.dim for p in reading.parts)
    if reading.architecture not in RECURRENT and numbers > (total := count_numbers(file, ())):
        raise CannotRead(
            f"by its keys queries alone are made with {numbers:,} numbers, and its tensors have {total:,}; it may be "
            f"truncated"
        )


def count_numbers(file: GGUFTensors, skip: tuple[str, ...]) -> int:
    return sum(math.prod(file.shape(name)) for name in file if name not in skip)


def correct(config: "PreTrainedConfig", reading: Reading) -> "tuple[PreTrainedConfig, Reading, tuple[str, ...]]":
    """Return a config with the positions of a file, its reading, and notes on corrections.

    Raises CannotRead, which names what differs, if transformers has no keys for them.
    """
    keys: dict[str, Any] = {key: shortest_decimal(value) for key, value in parse_json(config.to_json_string()).items()}
    keys.pop("_model_name_or_path", None)
    if keys.get("is_gated_act"):
        # T5's, for which transformers keeps the activation of models without a gate.
        keys |= {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new"}
    check_bounds(keys)
    # transformers' config has no parts for a model without positions.
    expected = replace(reading, parts=()) if reading.architecture in RECURRENT else in_transformers_layout(reading)
    notes: tuple[str, ...] = ()
    if wrong := differences(expected, config_json.read(keys)):
        try:
            (part,) = expected.parts
            keys = config_json.with_positions(keys, part)
            differing = differences(expected, config_json.read(keys))
        except (CannotExpress, ValueError):
            differing = wrong
        if differing:
            pairs = f"{'; '.join(differing)} (in the file, and in transformers)"
            raise CannotRead(f"transformers would not compute what it says: {pairs}", remedy=ORIGINAL)
        notes = (f"transformers reads other positions out of this file: {'; '.join(wrong)}; taken: those of the file",)
    with reading_with("transformers"):
        return huggingface.build_config(keys), config_json.read(keys), notes


def in_transformers_layout(reading: Reading) -> Reading:
    """Return a reading with the pairs in the layout of transformers' unpacked weights."""
    if reading.architecture not in TAKEN_APART:
        return reading
    parts = []
    for part in reading.parts:
        specs = [layer.spec.replace("layout='interleaved'", "layout='half'") for layer in part.layers]
        layers = tuple(replace(layer, spec=spec) for layer, spec in zip(part.layers, specs, strict=True))
        parts.append(replace(part, layers=layers))
    return replace(reading, parts=tuple(parts))


def model_class(config: "PreTrainedConfig") -> Any:
    """Return transformers' class of a model: the one that it names, or a causal or sequence-to-sequence one."""
    import transformers

    if config.architectures:
        return getattr(transformers, config.architectures[0])
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def check_numbers(model: "PreTrainedModel", file: GGUFTensors) -> None:
    """Raise CannotRead unless a model has as many parameters as the tensors of the file have numbers.

    transformers ignores tensors that it has no name for, and fills missing ones at random.
    """
    in_model = sum(tensor.numel() for _, tensor in load.untied_tensors(model))
    # Some converters write a head that is tied to the embeddings.
    in_file = count_numbers(file, (*TABLES, *(("output.weight",) if model.config.tie_word_embeddings else ())))
    if in_model != in_file:
        raise CannotRead(
            f"its tensors hold {in_file:,} numbers, and the {type(model).__name__} that transformers makes of it has "
            f"{in_model:,}: some would be left out, or be random",
            remedy=ORIGINAL,
        )
