"""A checkpoint that is converted: as it is opened, and what will be changed of it."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.files.named_code import left_out
from posenc.checkpoints.files.tensors import GGUFTensors, open_tensors
from posenc.checkpoints.formats.load import find, load_gguf, untied
from posenc.checkpoints.inspection import configs
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading
from posenc.foreign import files_of, matches, quoted, read_json

WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|ckpt|gguf|h5|msgpack|onnx|ot)$|\.index\.json$")


@dataclass
class Source:
    """A checkpoint that is read: its config, its tensors, what is known of its positions, and what goes along with it.

    described   shapes and dtypes of the tensors, on "meta"
    tensors     as they are to be written; they are read when they are asked for
    files       files to copy as they are
    adapter     whether it is a LoRA adapter, whose config is not that of the model
    gguf        whether it is a GGUF file, whose tensors have been turned as transformers has them
    notes       what a person has to know, in sentences: which code does not go along, what a file leaves open
    """

    config: dict[str, Any]
    reading: Reading
    described: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]
    files: tuple[Path, ...] = ()
    adapter: bool = False
    gguf: bool = False
    notes: tuple[str, ...] = ()


@dataclass
class Plan:
    """What will be changed: of tensors, of the config and of other JSON files; and what is to be said about it."""

    config: dict[str, Any]
    reading: Reading
    changes: dict[str, list[tuple[str, Callable[[Tensor], Tensor]]]] = field(default_factory=dict)
    edited: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def change(self, name: str, words: str, change: Callable[[Tensor], Tensor]) -> None:
        self.changes.setdefault(name, []).append((words, change))

    def apply(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            for _, change in self.changes.get(name, ()):
                tensor = change(tensor)
            yield name, tensor


def open_source(path: Path, base: str | Path | None, made: Path) -> Source:
    tensors = open_tensors(path)
    if isinstance(tensors, GGUFTensors):
        return open_gguf(tensors, made)
    folder = path if path.is_dir() else path.parent
    names = {file.name: file for file in files_of(folder) if not WEIGHTS.search(file.name) and file.name[0] != "."}
    adapter = "adapter_config.json" in names and any("lora_" in name for name in tensors)
    config_name = "adapter_config.json" if adapter else "config.json"
    if config_name not in names:
        raise CannotRead(f"{folder} has no {config_name}, so nothing says which heads its tensors have")
    config = read_json(names[config_name])
    reading = configs.read(base_config(config, base, folder) if adapter else config, "transformers")
    return Source(
        config,
        reading,
        tensors.described(),
        tensors,
        tuple(file for name, file in names.items() if name != config_name),
        adapter,
        notes=tuple(left_out(names.values())),
    )


def open_gguf(file: GGUFTensors, made: Path) -> Source:
    """A GGUF file as transformers has it, in float32; its tokenizer goes along where transformers makes one."""
    loaded = load_gguf(file, torch.float32)
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(made)
    tensors, config = dict(untied(loaded.model)), loaded.said()
    reading = configs.read(config, "transformers")
    described = {name: tensor.to("meta") for name, tensor in tensors.items()}
    return Source(config, reading, described, tensors, tuple(files_of(made)), gguf=True, notes=loaded.notes)


def base_config(config: Mapping[str, Any], base: str | Path | None, folder: Path) -> dict[str, Any]:
    """The config of the model that an adapter belongs to."""
    if config.get("peft_type") != "LORA":
        kind = quoted(config.get("peft_type"))
        raise CannotRead(f"{folder} is an adapter of the kind {kind}; posenc converts LORA")
    matches(config.get("base_model_name_or_path"), (None, str), file=folder, field="base_model_name_or_path")
    # What a file names is never fetched.
    place = find(base, weights=False) if base else Path(config.get("base_model_name_or_path") or "")
    file = place if os.path.isfile(place) else place / "config.json"
    if not os.path.isfile(file):
        raise CannotRead(
            f"{folder} is an adapter, and its model is not at hand ('{place}'); give the model's folder or config.json "
            f"as base"
        )
    return read_json(file)
