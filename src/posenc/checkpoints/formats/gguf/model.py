"""A GGUF file as a model of transformers, which unpacks it; its config is held against what the file says.

transformers reads some keys of such files and leaves out others. Positions are read here by the reader that `posenc
inspect` has; a config that says something else is corrected where transformers has the keys, and refused where not.
"""

import io
import math
import tempfile
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from posenc.checkpoints.files.tensors import GGUFTensors, package
from posenc.checkpoints.formats import config_json, huggingface, load
from posenc.checkpoints.formats.gguf.architectures import RECURRENT, TABLES
from posenc.checkpoints.formats.gguf.file import as_meant, metadata
from posenc.checkpoints.formats.gguf.metadata import read
from posenc.checkpoints.vocabulary.bounds import within_bounds
from posenc.checkpoints.vocabulary.differences import differences
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading
from posenc.checkpoints.vocabulary.specs import CannotExpress
from posenc.foreign import naming, parse_json, quoted, reading_with

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

ORIGINAL = "`posenc inspect` reads its positions all the same; to load it, take the original checkpoint"

TAKEN_APART = frozenset(("llama",))
"""Architectures whose pairs of neighbours transformers puts half the rotary width apart, as its own classes have them
(`LlamaTensorProcessor`)."""

DIGITS_FIRST = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Ways to cut words, by GGUF's names, that put each digit by itself and then cut as GPT-2 does: of the spaces before a
number none is its own. transformers cuts all as GPT-2 does. Source: llama.cpp, llama-vocab.cpp."""


@dataclass(frozen=True)
class GGUFModel:
    """The model of a GGUF file; nothing of its tensors has been read yet.

    config   as transformers has it, with the positions that the file says
    kind     transformers' class of the model
    reading  what the config says of positions, in transformers' layout
    notes    what was corrected, in sentences
    """

    file: GGUFTensors
    config: "PreTrainedConfig"
    kind: Any
    reading: Reading
    notes: tuple[str, ...]

    def filled(self, dtype: torch.dtype) -> "PreTrainedModel":
        """The model with its numbers, dequantised.

        Raises CannotRead for what transformers cannot read, ValueError for numbers that are larger than the dtype
        holds.
        """
        import transformers

        options: dict[str, Any] = {"config": self.config, "dtype": dtype, "attn_implementation": None}
        if hasattr(transformers, "GgufConfig"):
            # Left packed, weights are multiplied by code that transformers fetches.
            options["quantization_config"] = transformers.GgufConfig(dequantize=True)
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        # Its bars are of tqdm itself, which no switch of transformers reaches.
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
        """The tokenizer, None where the file has none or transformers makes none; and what has to be said of it."""
        import transformers

        kind, cut = (self.file.said.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
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
        note = f"Words are cut as GPT-2 cuts them: the file says {quoted(cut)}, for which transformers has no rule"
        return tokenizer, (f"{note}; hold it against the tokenizer of the original checkpoint",)


def from_file(maker: Any, file: GGUFTensors, **options: Any) -> Any:
    """What a class of transformers makes of a GGUF file alone; raises CannotRead for a file that it does not read.

    The class gets an empty folder, so that it reads nothing that lies beside the file.
    """
    with tempfile.TemporaryDirectory() as empty, reading_with("transformers", file=file.path, remedy=ORIGINAL):
        return maker.from_pretrained(empty, gguf_file=str(file.path.absolute()), local_files_only=True, **options)


def open_model(file: GGUFTensors) -> GGUFModel:
    """The model of a GGUF file, all of it checked but for the numbers in its tensors.

    Raises CannotRead for an architecture that transformers does not load, for keys of positions that are not
    understood, for positions that transformers' class would not compute, and where the model and the tensors have not
    as many numbers.
    """
    import transformers

    package(file.path)
    with naming(file.path):
        reading = read(metadata(file))
        check_claims(reading, file)
        fetches_code(str(reading.architecture), file)
        config = from_file(transformers.AutoConfig, file)
        config, again, notes = with_the_files_positions(config, reading)
        with reading_with("transformers"):
            model = load.hollow_model(class_of(config), config)
        check_numbers(model, file)
    return GGUFModel(file, config, type(model), again, notes)


def fetches_code(architecture: str, file: GGUFTensors) -> None:
    """Raises CannotRead where transformers would fetch code for a model: kernels, if their package is installed."""
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
    """Raises CannotRead for a reading that leaves something open, and for sizes that the file has no numbers for."""
    faults = [*reading.contradictions, *(f"it leaves open {sentence}" for sentence in reading.not_covered)]
    faults += [f"it says {key}, which posenc does not read" for key in reading.unknown]
    if faults:
        raise CannotRead(faults[0], remedy=ORIGINAL)
    # Queries alone have as many numbers: nothing is looped over that the file cannot fill.
    claimed = sum(len(part.layers) * part.shape.heads * part.shape.head_dim * part.shape.dim for part in reading.parts)
    if reading.architecture not in RECURRENT and claimed > (stored := numbers_of(file, ())):
        raise CannotRead(
            f"by its keys queries alone are made with {claimed:,} numbers, and its tensors have {stored:,}; it may be "
            f"truncated"
        )


def numbers_of(file: GGUFTensors, without: tuple[str, ...]) -> int:
    return sum(math.prod(file.shape(name)) for name in file if name not in without)


def with_the_files_positions(config: Any, reading: Reading) -> "tuple[PreTrainedConfig, Reading, tuple[str, ...]]":
    """A config that says the positions of a file, what it says, and notes of what transformers had otherwise.

    Raises CannotRead, naming what differs, where transformers has no keys for them.
    """
    keys: dict[str, Any] = {key: as_meant(value) for key, value in parse_json(config.to_json_string()).items()}
    keys.pop("_model_name_or_path", None)
    if keys.get("is_gated_act"):
        # T5's, of which transformers leaves the activation as it is in those without a gate.
        keys |= {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new"}
    within_bounds(keys)
    # Of what has no positions transformers' config says nothing.
    expected = replace(reading, parts=()) if reading.architecture in RECURRENT else in_their_layout(reading)
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
        return huggingface.filled(keys), config_json.read(keys), notes


def in_their_layout(reading: Reading) -> Reading:
    """A reading with the pairs where transformers puts them when it unpacks the file."""
    if reading.architecture not in TAKEN_APART:
        return reading
    parts = []
    for part in reading.parts:
        specs = [layer.spec.replace("layout='interleaved'", "layout='half'") for layer in part.layers]
        layers = tuple(replace(layer, spec=spec) for layer, spec in zip(part.layers, specs, strict=True))
        parts.append(replace(part, layers=layers))
    return replace(reading, parts=tuple(parts))


def class_of(config: Any) -> Any:
    """transformers' class of a model: the one that it names, or that of text that goes on, or is answered."""
    import transformers

    if config.architectures:
        return getattr(transformers, config.architectures[0])
    return transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM


def check_numbers(model: Any, file: GGUFTensors) -> None:
    """Raises CannotRead unless a model without numbers has as many as the tensors of the file.

    transformers leaves out tensors that it has no name for, and fills what is missing at random.
    """
    in_model = sum(tensor.numel() for _, tensor in load.untied(model))
    # Some converters write the head once more that is the embeddings.
    in_file = numbers_of(file, (*TABLES, *(("output.weight",) if model.config.tie_word_embeddings else ())))
    if in_model != in_file:
        raise CannotRead(
            f"its tensors hold {in_file:,} numbers, and the {type(model).__name__} that transformers makes of it has "
            f"{in_model:,}: some would be left out, or be random",
            remedy=ORIGINAL,
        )
