"""Load a model and its tokenizer from a path or a name of the hub. No code of a checkpoint is run."""

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
from posenc.checkpoints.files.named_code import without_code
from posenc.checkpoints.files.tensors import GGUFTensors, Tensors, open_tensors
from posenc.checkpoints.formats.devices import AUTO, check_device
from posenc.checkpoints.kinds.rotary.old_keys import in_both_spellings
from posenc.checkpoints.models.skeleton import without_pooler
from posenc.checkpoints.vocabulary.bounds import check_bounds
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import matches, naming, quote, read_json, reading_with, regular_files

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
"""Files of a tokenizer; a folder that has one has at least one of them."""

COPIED_FILES = ("preprocessor_config.json", "generation_config.json")
"""Files of a folder that are copied when its model is written again."""

DEVICE_MAP = "auto"
"""transformers' device_map for a model that is spread over devices by their free memory."""


@dataclass(frozen=True)
class LoadedModel:
    """A model in evaluation mode, with its tokenizer, config and path.

    model       the transformers model
    tokenizer   or None if the checkpoint has none
    config      the model's config
    path        the folder or file that it came from
    notes       corrections of what transformers read in a GGUF file, and why there is no tokenizer, in sentences
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase | None"
    config: "PreTrainedConfig"
    path: Path
    notes: tuple[str, ...] = ()

    def config_keys(self) -> dict[str, Any]:
        """Return the config to write, with rotary in both spellings of transformers, 4 and 5."""
        config = json.loads(self.config.to_json_string()) | {"architectures": [type(self.model).__name__]}
        return in_both_spellings(config)

    def save_huggingface(self, target: str | Path, config: dict[str, Any] | None = None) -> Path:
        """Write the model to a new folder in Hugging Face's form, which appears when it is complete.

        config  as in config.json; None writes the model's own

        The weights keep the dtype that they were loaded in; config, tokenizer and the settings for images are written
        too.

        Raises ValueError if the target exists.
        """
        with tempfile.TemporaryDirectory() as temporary:
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(temporary)
            files = regular_files(self.path) if self.path.is_dir() else []
            extra = [*sorted(Path(temporary).iterdir()), *(file for file in files if file.name in COPIED_FILES)]
            return write_folder(target, config or self.config_keys(), untied_tensors(self.model), copy=extra)


def untied_tensors(model: "PreTrainedModel") -> Iterator[tuple[str, Tensor]]:
    """Return the tensors of a model by name; of tied parameters, the first."""
    tied_names = dict(model.named_parameters(remove_duplicate=False)).keys() - dict(model.named_parameters()).keys()
    return ((name, tensor) for name, tensor in model.state_dict().items() if name not in tied_names)


def load(path: str | Path, *, dtype: torch.dtype | str | None = None, device: str = "cpu") -> LoadedModel:
    """Load a checkpoint: a Hugging Face folder, a GGUF file, or a hub model, see `find_checkpoint`.

    dtype   of the weights: a torch dtype or its name; None takes the config's (float32 for a GGUF, dequantised)
    device  cpu, cuda, cuda:1, mps; or auto: accelerate spreads a folder over GPUs, CPU and disk, by their free memory

    The class is the one that the config names, one of transformers' own, with its default attention: a config never
    chooses code. While transformers fills a model it changes torch's default dtype and its functions of
    initialisation for the whole process: build no models in other threads.

    Raises CannotRead if the path does not exist, if the checkpoint brings code of its own (never run) or only pickles
    (never unpickled), if tensors are missing, quantised in transformers' ways or outside the folder, if transformers
    cannot read it, or without the extra posenc[hf]; ValueError for an unknown dtype and an unavailable device.
    """
    require_transformers()
    where, kind = find_checkpoint(path), dtype_of(dtype)
    check_device(device)
    tensors = open_tensors(where)
    if isinstance(tensors, GGUFTensors):
        if device == AUTO:
            raise ValueError(f"{where} is unpacked in memory and cannot be spread; name one --device, or convert it")
        return on_device(load_gguf(tensors, kind or torch.float32), device)
    if not where.is_dir():
        raise CannotRead(f"{where} holds tensors and no config; give the folder with config.json that it belongs to")
    return on_device(load_folder(where, tensors, kind, device), device)


def on_device(checkpoint: LoadedModel, device: str) -> LoadedModel:
    if device != AUTO:
        checkpoint.model.to(torch.device(device))
    return checkpoint


def without_weights(path: str | Path, *, dtype: torch.dtype | str | None = None) -> LoadedModel:
    """Load a checkpoint from its config alone: on the meta device, and without a tokenizer.

    path  as in `load`, or a config.json, or a folder with nothing else; of a model of the hub only the config is
          fetched

    Raises as `load` does.
    """
    require_transformers()
    where, kind = find_checkpoint(path, weights=False), dtype_of(dtype)
    config_file = where / "config.json" if where.is_dir() else where
    if config_file.suffix != ".json" or not config_file.exists():
        tensors = open_tensors(where)
        if isinstance(tensors, GGUFTensors):
            from posenc.checkpoints.formats.gguf.model import open_model

            with quietly(), naming(tensors.path):
                gguf = open_model(tensors)
                return LoadedModel(hollow_model(gguf.kind, gguf.config, kind), None, gguf.config, tensors.path)
    folder, name = (where, "config.json") if where.is_dir() else (where.parent, where.name)
    with quietly():
        config = read_config(folder, name)
        model = hollow_model(named_class(folder, config), config, kind)
    return LoadedModel(model, None, config, where)


def hollow_model(kind: Any, config: "PreTrainedConfig", dtype: torch.dtype | None = None) -> "PreTrainedModel":
    """Return the model of a class and a config, on the meta device."""
    twin = copy.deepcopy(config)
    with torch.device("meta"):
        model = kind.from_config(twin) if hasattr(kind, "from_config") else kind(twin)
    return model.to(dtype or getattr(config, "dtype", None) or torch.float32).eval()


def find_checkpoint(path: str | Path, *, weights: bool = True) -> Path:
    """Return the folder or file of a path, or of a name of the hub, such as HuggingFaceTB/SmolLM2-135M@main.

    weights  False fetches only the config, if the hub has one, and returns its path

    An existing path wins over a name; a text that begins with "./", and a Path, is never a name. Raises CannotRead as
    `hub.fetch` does, and for anything else.
    """
    where = Path(os.path.expanduser(path))
    if os.path.exists(where):
        return where
    if isinstance(path, str) and hub.is_hub_name(path):
        return hub.fetch(path, weights=weights)
    raise CannotRead(
        f"there is no file or folder {quote(str(path))}; give the folder of a checkpoint, a GGUF file, or a model of "
        f"the hub as owner/name"
    )


def dtype_of(name: torch.dtype | str | None) -> torch.dtype | None:
    """Return a dtype by its name."""
    dtype = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else name
    if dtype is not None and isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    if name is None:
        return None
    raise ValueError(f"dtype must be float32, bfloat16, float16 or float64, got '{name}'")


def require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise CannotRead("loading a model needs transformers; install it with `pip install 'posenc[hf]'`") from error


def load_folder(folder: Path, tensors: Tensors, dtype: torch.dtype | None, device: str) -> LoadedModel:
    import transformers

    # No link may lead transformers out of the folder.
    names = {file.name for file in [*regular_files(folder), *regular_files(folder, "additional_chat_templates/*")]}
    if "config.json" not in names:
        raise CannotRead("it has no config.json; without it the tensors are of no known model", file=folder)
    if "adapter_config.json" in names:
        raise CannotRead("an adapter lies beside the model", file=folder, remedy="load the model from a folder alone")
    with quietly():
        config = read_config(folder)
        kind = named_class(folder, config)
        check_model_size(folder, kind, config, tensors)
        options = {"config": config, "dtype": dtype or "auto", "local_files_only": True, "use_safetensors": True}
        # Shapes that do not fit are reported below, all together.
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        if device == AUTO:
            options["device_map"] = DEVICE_MAP
        if not any("pooler." in name for name in tensors):
            options |= without_pooler(kind)
        with reading_with("transformers", file=folder, remedy="the config or the tensors are those of no whole model"):
            # None: transformers' default for the class. The file's choice was removed from the config.
            model, info = kind.from_pretrained(folder, attn_implementation=None, **options)
        for name, stored_shape, config_shape in sorted(info["mismatched_keys"]):
            wrong = f"it has the shape {list(stored_shape)}, and by the config it has {list(config_shape)}"
            raise CannotRead(f"{wrong}; config and weights are not of the same model", file=folder, field=name)
        if missing_names := sorted(info["missing_keys"]):
            wrong = f"it lacks {missing_names[0]} (of {len(missing_names)}), which {type(model).__name__} needs"
            raise CannotRead(f"{wrong}; loaded as it is the model would have random numbers there", file=folder)
        tokenizer = None
        if names.intersection(TOKENIZER):
            with reading_with("transformers", file=folder, field="tokenizer", remedy="mend or remove its files"):
                options = {"local_files_only": True, "trust_remote_code": False}
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    return LoadedModel(model.eval(), tokenizer, model.config, folder)


CONFIG = {
    "architectures?": (None, [str]),
    "model_type": str,
    "dtype?": (None, str, dict),
    "torch_dtype?": (None, str, dict),
    "*": Any,
}
"""Keys of a config.json that decide how a model is built."""


def read_config(folder: Path, name: str = "config.json") -> "PreTrainedConfig":
    """Return transformers' config of a folder, its sizes within bounds, without keys that choose code."""
    import transformers

    file = folder / name
    keys = read_json(file, folder=folder)
    matches(keys, CONFIG, file=file)
    with naming(file):
        check_bounds(keys)
    for key in ("dtype", "torch_dtype"):
        if isinstance(keys.get(key), str):
            try:
                dtype_of(keys[key])
            except ValueError as error:
                raise CannotRead(str(error), file=file, field=key, remedy="correct it, or take it out") from None
    if keys.get("quantization_config") is not None:
        wrong = "its weights are quantised in a way that posenc does not load"
        remedy = "use the weights that it was made from, or a GGUF file"
        raise CannotRead(wrong, file=file, field="quantization_config", remedy=remedy)
    remedy = "a newer transformers may know it; or correct the file"
    with tempfile.TemporaryDirectory() as temporary, reading_with("transformers", file=file, remedy=remedy):
        (Path(temporary) / "config.json").write_text(json.dumps(without_code(keys)), encoding="utf-8")
        config = transformers.AutoConfig.from_pretrained(temporary, local_files_only=True, trust_remote_code=False)
        config.name_or_path = str(folder)
        return config


def check_model_size(folder: Path, kind: Any, config: "PreTrainedConfig", tensors: Tensors) -> None:
    """Raise CannotRead if the model, built on the meta device, would be far larger than the tensors."""
    file = folder / "config.json"
    with reading_with("transformers", file=file):
        model = hollow_model(kind, config)
    model_numbers = sum(parameter.numel() for parameter in model.parameters())
    stored_numbers = sum(math.prod(tensors.shape(name)) for name in tensors)
    if model_numbers > 2 * stored_numbers + (1 << 20):
        wrong = f"by it the model has {model_numbers:,} parameters, and the tensors have {stored_numbers:,} numbers"
        raise CannotRead(f"{wrong}; config and weights are not of the same model", file=file)


def named_class(folder: Path, config: "PreTrainedConfig") -> Any:
    """Return transformers' class for a config: the one that it names, or the bare model."""
    import transformers

    name = (config.architectures or [None])[0]
    if name is None:
        return transformers.AutoModel
    where: dict[str, Any] = {"file": folder / "config.json", "field": "architectures"}
    with reading_with("transformers", **where):
        kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        wrong = f"{quote(name)} is no model class of transformers {transformers.__version__}"
        raise CannotRead(f"{wrong}; the code that a checkpoint brings is never run", **where)
    if kind.config_class is None or not isinstance(config, kind.config_class):
        raise CannotRead(f"{name} is no model with a {type(config).__name__}", **where, remedy="correct one of them")
    return kind


def load_gguf(file: GGUFTensors, dtype: torch.dtype) -> LoadedModel:
    require_transformers()
    from posenc.checkpoints.formats.gguf.model import open_model

    with quietly(), naming(file.path):
        gguf = open_model(file)
        model = gguf.load_weights(dtype)
        tokenizer, notes = gguf.tokenizer()
    return LoadedModel(model.eval(), tokenizer, model.config, file.path, notes=(*gguf.notes, *notes))


@contextmanager
def quietly() -> Generator[None]:
    """Silence the warnings of transformers in this thread; posenc checks what matters of them."""
    thread = threading.get_ident()

    def is_shown(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.levelno >= logging.ERROR or not record.name.startswith("transformers")

    handlers = list(logging.getLogger("transformers").handlers)
    for handler in handlers:
        handler.addFilter(is_shown)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_shown)


def without_bars() -> None:
    """Switch off the progress bars of transformers in this process."""
    require_transformers()
    from transformers.utils import logging

    logging.disable_progress_bar()
