"""Open a checkpoint for conversion, and plan its changes."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.files.named_code import code_omissions
from posenc.checkpoints.files.tensors import GGUFTensors, open_tensors
from posenc.checkpoints.formats.load import find_checkpoint, load_gguf, untied_tensors
from posenc.checkpoints.inspection import configs
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading
from posenc.foreign import matches, quote, read_json, regular_files

WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|ckpt|gguf|h5|msgpack|onnx|ot)$|\.index\.json$")


@dataclass
class Source:
    """A checkpoint to convert.

    meta_tensors  shapes and dtypes of the tensors, on "meta"
    tensors       the tensors by name, each read on access
    files         other files, which are copied unchanged
    adapter       whether it is a LoRA adapter, whose config is not that of the model
    gguf          whether it is a GGUF file, whose tensors have transformers' names and layout here
    notes         what the user has to know, in sentences: code that is not copied, facts that a file lacks
    """

    config: dict[str, Any]
    reading: Reading
    meta_tensors: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]
    files: tuple[Path, ...] = ()
    adapter: bool = False
    gguf: bool = False
    notes: tuple[str, ...] = ()


@dataclass
class ConversionPlan:
    """The changes of tensors, of the config and of other JSON files, and notes for the user."""

    config: dict[str, Any]
    reading: Reading
    changes: dict[str, list[tuple[str, Callable[[Tensor], Tensor]]]] = field(default_factory=dict)
    edited_files: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def change(self, name: str, words: str, change: Callable[[Tensor], Tensor]) -> None:
        self.changes.setdefault(name, []).append((words, change))

    def apply(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            for _, change in self.changes.get(name, ()):
                tensor = change(tensor)
            yield name, tensor


def open_source(path: Path, base: str | Path | None, scratch: Path) -> Source:
    tensors = open_tensors(path)
    if isinstance(tensors, GGUFTensors):
        return open_gguf(tensors, scratch)
    folder = path if path.is_dir() else path.parent
    names = {file.name: file for file in regular_files(folder) if not WEIGHTS.search(file.name) and file.name[0] != "."}
    adapter = "adapter_config.json" in names and any("lora_" in name for name in tensors)
    config_name = "adapter_config.json" if adapter else "config.json"
    if config_name not in names:
        raise CannotRead(f"{folder} has no {config_name}, so nothing says which heads its tensors have")
    config = read_json(names[config_name])
    reading = configs.read(base_config(config, base, folder) if adapter else config, "transformers")
    files = tuple(file for name, file in names.items() if name != config_name)
    notes = tuple(code_omissions(names.values()))
    return Source(config, reading, tensors.meta_tensors(), tensors, files, adapter, notes=notes)


def open_gguf(file: GGUFTensors, scratch: Path) -> Source:
    """Open a GGUF file as transformers loads it, in float32, with its tokenizer if transformers can make one."""
    gguf = load_gguf(file, torch.float32)
    if gguf.tokenizer is not None:
        gguf.tokenizer.save_pretrained(scratch)
    tensors, config = dict(untied_tensors(gguf.model)), gguf.config_keys()
    reading = configs.read(config, "transformers")
    meta_tensors = {name: tensor.to("meta") for name, tensor in tensors.items()}
    return Source(config, reading, meta_tensors, tensors, tuple(regular_files(scratch)), gguf=True, notes=gguf.notes)


def base_config(config: Mapping[str, Any], base: str | Path | None, folder: Path) -> dict[str, Any]:
    """Return the config of the base model of an adapter."""
    if config.get("peft_type") != "LORA":
        kind = quote(config.get("peft_type"))
        raise CannotRead(f"{folder} is an adapter of the kind {kind}; posenc converts LORA")
    matches(config.get("base_model_name_or_path"), (None, str), file=folder, field="base_model_name_or_path")
    # A name in a file never starts a download.
    place = find_checkpoint(base, weights=False) if base else Path(config.get("base_model_name_or_path") or "")
    file = place if os.path.isfile(place) else place / "config.json"
    if not os.path.isfile(file):
        raise CannotRead(
            f"{folder} is an adapter, and its model is not at hand ('{place}'); give the model's folder or config.json "
            f"as base"
        )
    return read_json(file)
