"""From a path, or a name of the hub, to a model and its tokenizer; no code of a checkpoint is run."""

import copy
import json
import logging
import math
import os
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.checkpoints.files import hub
from posenc.checkpoints.files.folder_writer import write_folder
from posenc.checkpoints.files.named_code import harmless
from posenc.checkpoints.files.tensors import GGUFTensors, Tensors, open_tensors
from posenc.checkpoints.formats.devices import AUTO, check_device
from posenc.checkpoints.kinds.rotary.old_keys import in_both_spellings
from posenc.checkpoints.models.skeleton import without_pooler
from posenc.checkpoints.vocabulary.bounds import within_bounds
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import files_of, matches, naming, quoted, read_json, reading_with

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
"""Files of which one at least is in a folder that has a tokenizer."""

BESIDE = ("preprocessor_config.json", "generation_config.json")
"""Files of a folder that are kept as they are when its model is written again."""


SPREAD = "auto"
"""What transformers is told of a model that is spread over devices: by the room that each has."""


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, with what goes with it.

    model       the transformers model
    tokenizer   or None where the checkpoint has none
    config      the model's config
    path        the folder or file that it came from
    notes       what of a GGUF file transformers had otherwise, and why there is no tokenizer, in sentences
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase | None"
    config: "PreTrainedConfig"
    path: Path
    notes: tuple[str, ...] = ()

    def said(self) -> dict[str, Any]:
        """The config as it is written, with rotary in both spellings of transformers, 4 and 5."""
        config = json.loads(self.config.to_json_string()) | {"architectures": [type(self.model).__name__]}
        return in_both_spellings(config)

    def save_huggingface(self, target: str | Path, config: dict[str, Any] | None = None) -> Path:
        """Write the model to a new folder in Hugging Face's form, which appears when it is whole.

        config  another one than the model's own, as in config.json

        The weights are written in the dtype that they were loaded in; config, tokenizer and the settings for images
        go with them.

        Raises ValueError if the target exists.
        """
        with tempfile.TemporaryDirectory() as held:
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(held)
            beside = [file for file in files_of(self.path) if file.name in BESIDE] if self.path.is_dir() else []
            return write_folder(
                target, config or self.said(), untied(self.model), copy=[*sorted(Path(held).iterdir()), *beside]
            )


def untied(model: "PreTrainedModel") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model by name, each one once: of parameters that are one tensor, the first."""
    tied = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    return ((name, tensor) for name, tensor in model.state_dict().items() if name not in tied)


def load(path: str | Path, *, dtype: torch.dtype | str | None = None, device: str = "cpu") -> Loaded:
    """Load a checkpoint: a folder in Hugging Face's form, a GGUF file, or a model of the hub, see `find`.

    dtype   of the weights: a torch dtype or its name; None takes the config's (float32 for a GGUF, dequantised)
    device  cpu, cuda, cuda:1, mps; or auto, and accelerate spreads a folder over GPUs, CPU and disk, as they have room

    The class is the one that the config names, one of transformers' own, with the attention that is its own default:
    a config never chooses code. While transformers fills a model it changes torch's default dtype and its functions of
    initialisation for the whole process: build no models in other threads.

    Raises CannotRead where nothing is there, where the checkpoint brings code of its own (never run) or only pickles
    (never unpickled), where tensors are missing, quantised in transformers' ways or out of reach of the folder, for
    what transformers cannot read, or where the extra posenc[hf] is not installed; ValueError for a dtype that is none
    and a device that is not there.
    """
    require_transformers()
    where, kind = find(path), dtype_of(dtype)
    check_device(device)
    tensors = open_tensors(where)
    if isinstance(tensors, GGUFTensors):
        if device == AUTO:
            raise ValueError(f"{where} is unpacked in memory and cannot be spread; name one --device, or convert it")
        return on_device(load_gguf(tensors, kind or torch.float32), device)
    if not where.is_dir():
        raise CannotRead(f"{where} holds tensors and no config; give the folder with config.json that it belongs to")
    return on_device(load_folder(where, tensors, kind, device), device)


def on_device(loaded: Loaded, device: str) -> Loaded:
    if device != AUTO:
        loaded.model.to(torch.device(device))
    return loaded


def without_weights(path: str | Path, *, dtype: torch.dtype | str | None = None) -> Loaded:
    """A checkpoint with shapes in place of its weights, and without a tokenizer: what its config alone says.

    path  as `load` takes it, and also a config.json, or a folder with nothing else; of a model of the hub, its config
          alone is fetched

    Raises as `load` does.
    """
    require_transformers()
    where, kind = find(path, weights=False), dtype_of(dtype)
    beside = where / "config.json" if where.is_dir() else where
    if beside.suffix != ".json" or not beside.exists():
        tensors = open_tensors(where)
        if isinstance(tensors, GGUFTensors):
            from posenc.checkpoints.formats.gguf.model import open_model

            with quietly(), naming(tensors.path):
                found = open_model(tensors)
                return Loaded(hollow_model(found.kind, found.config, kind), None, found.config, tensors.path)
    folder, name = (where, "config.json") if where.is_dir() else (where.parent, where.name)
    with quietly():
        config = config_of(folder, name)
        model = hollow_model(class_of(folder, config), config, kind)
    return Loaded(model, None, config, where)


def hollow_model(kind: Any, config: "PreTrainedConfig", dtype: torch.dtype | None = None) -> Any:
    """The model of a class and a config, with shapes in place of all its tensors."""
    twin = copy.deepcopy(config)
    with torch.device("meta"):
        model = kind.from_config(twin) if hasattr(kind, "from_config") else kind(twin)
    return model.to(dtype or getattr(config, "dtype", None) or torch.float32).eval()


def find(path: str | Path, *, weights: bool = True) -> Path:
    """The folder or file of a path, or of a name of the hub, such as HuggingFaceTB/SmolLM2-135M@main.

    weights  False asks the hub for the config alone, where it has one, and gives the path of that

    A path that exists goes before a name; what begins with "./", and a Path, is never a name. Raises CannotRead as
    `hub.fetched` does, and for what is neither.
    """
    where = Path(os.path.expanduser(path))
    if os.path.exists(where):
        return where
    if isinstance(path, str) and hub.is_name(path):
        return hub.fetched(path, weights=weights)
    raise CannotRead(
        f"there is no file or folder {quoted(str(path))}; give the folder of a checkpoint, a GGUF file, or a model of "
        f"the hub as owner/name"
    )


def dtype_of(name: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype from its name."""
    found = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else name
    if found is not None and isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    if name is None:
        return None
    raise ValueError(f"dtype must be float32, bfloat16, float16 or float64, got '{name}'")


def require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise CannotRead("loading a model needs transformers; install it with `pip install 'posenc[hf]'`") from error


def load_folder(folder: Path, tensors: Tensors, dtype: torch.dtype | None, device: str) -> Loaded:
    import transformers

    # No link may lead transformers out of the folder.
    names = {file.name for file in [*files_of(folder), *files_of(folder, "additional_chat_templates/*")]}
    if "config.json" not in names:
        raise CannotRead("it has no config.json; without it the tensors are of no known model", file=folder)
    if "adapter_config.json" in names:
        raise CannotRead("an adapter lies beside the model", file=folder, remedy="load the model from a folder alone")
    with quietly():
        config = config_of(folder)
        kind = class_of(folder, config)
        check_size(folder, kind, config, tensors)
        given = {"config": config, "dtype": dtype or "auto", "local_files_only": True, "use_safetensors": True}
        # Shapes that do not fit are looked at below, where all of them are known.
        given |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        if device == AUTO:
            given["device_map"] = SPREAD
        if not any("pooler." in name for name in tensors):
            given |= without_pooler(kind)
        with reading_with("transformers", file=folder, remedy="the config or the tensors are those of no whole model"):
            # The best of transformers' own for the class: what the file asks for was taken out of the config.
            model, info = kind.from_pretrained(folder, attn_implementation=None, **given)
        for name, stored, expected in sorted(info["mismatched_keys"]):
            wrong = f"it has the shape {list(stored)}, and by the config it has {list(expected)}"
            raise CannotRead(f"{wrong}; config and weights are not of the same model", file=folder, field=name)
        if missing := sorted(info["missing_keys"]):
            wrong = f"it lacks {missing[0]} (of {len(missing)}), which {type(model).__name__} needs"
            raise CannotRead(f"{wrong}; loaded as it is the model would have random numbers there", file=folder)
        tokenizer = None
        if names.intersection(TOKENIZER):
            with reading_with("transformers", file=folder, field="tokenizer", remedy="mend or remove its files"):
                given = {"local_files_only": True, "trust_remote_code": False}
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **given)
    return Loaded(model.eval(), tokenizer, model.config, folder)


CONFIG = {
    "architectures?": (None, [str]),
    "model_type": str,
    "dtype?": (None, str, dict),
    "torch_dtype?": (None, str, dict),
    "*": Any,
}
"""What of a config.json decides how a model is made."""


def config_of(folder: Path, name: str = "config.json") -> "PreTrainedConfig":
    """The config of a folder as transformers has it, its sizes within bounds, without what chooses code."""
    import transformers

    file = folder / name
    said = read_json(file, within=folder)
    matches(said, CONFIG, file=file)
    with naming(file):
        within_bounds(said)
    for key in ("dtype", "torch_dtype"):
        if isinstance(said.get(key), str):
            try:
                dtype_of(said[key])
            except ValueError as error:
                raise CannotRead(str(error), file=file, field=key, remedy="correct it, or take it out") from None
    if said.get("quantization_config") is not None:
        wrong = "its weights are quantised in a way that posenc does not load"
        remedy = "use the weights that it was made from, or a GGUF file"
        raise CannotRead(wrong, file=file, field="quantization_config", remedy=remedy)
    remedy = "a newer transformers may know it; or correct the file"
    with tempfile.TemporaryDirectory() as held, reading_with("transformers", file=file, remedy=remedy):
        (Path(held) / "config.json").write_text(json.dumps(harmless(said)), encoding="utf-8")
        config = transformers.AutoConfig.from_pretrained(held, local_files_only=True, trust_remote_code=False)
        config.name_or_path = str(folder)
        return config


def check_size(folder: Path, kind: Any, config: "PreTrainedConfig", tensors: Tensors) -> None:
    """Raises CannotRead where the model would be far larger than the tensors: it is built without its numbers first."""
    file = folder / "config.json"
    with reading_with("transformers", file=file):
        model = hollow_model(kind, config)
    claimed = sum(parameter.numel() for parameter in model.parameters())
    held = sum(math.prod(tensors.shape(name)) for name in tensors)
    if claimed > 2 * held + (1 << 20):
        wrong = f"by it the model has {claimed:,} parameters, and the tensors have {held:,} numbers"
        raise CannotRead(f"{wrong}; config and weights are not of the same model", file=file)


def class_of(folder: Path, config: "PreTrainedConfig") -> Any:
    """transformers' class for a config: the one that it names, or the bare model where it names none."""
    import transformers

    named = (config.architectures or [None])[0]
    if named is None:
        return transformers.AutoModel
    where: dict[str, Any] = {"file": folder / "config.json", "field": "architectures"}
    with reading_with("transformers", **where):
        found = getattr(transformers, named, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        wrong = f"{quoted(named)} is no model class of transformers {transformers.__version__}"
        raise CannotRead(f"{wrong}; the code that a checkpoint brings is never run", **where)
    if found.config_class is None or not isinstance(config, found.config_class):
        raise CannotRead(f"{named} is no model with a {type(config).__name__}", **where, remedy="correct one of them")
    return found


def load_gguf(file: GGUFTensors, dtype: torch.dtype) -> Loaded:
    require_transformers()
    from posenc.checkpoints.formats.gguf.model import open_model

    with quietly(), naming(file.path):
        found = open_model(file)
        model = found.filled(dtype)
        tokenizer, notes = found.tokenizer()
    return Loaded(model.eval(), tokenizer, model.config, file.path, notes=(*found.notes, *notes))


@contextmanager
def quietly() -> Generator[None]:
    """transformers without its warnings, in this thread alone; what matters of them is checked here."""
    thread = threading.get_ident()

    def heard(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno >= logging.ERROR or not record.name.startswith("transformers")

    handlers = list(logging.getLogger("transformers").handlers)
    for handler in handlers:
        handler.addFilter(heard)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(heard)


def without_bars() -> None:
    """For a command, which has its process to itself: transformers shows no progress bars from now on."""
    require_transformers()
    from transformers.utils import logging

    logging.disable_progress_bar()
