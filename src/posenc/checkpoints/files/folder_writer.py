"""Write a checkpoint to a new folder, which appears whole or not at all."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from posenc.checkpoints.files.named_code import is_code, is_config, without_code
from posenc.foreign import open_regular, read_json
from posenc.lab import store
from posenc.lab.safetensors_file import DTYPES, file_pieces


def check_target(target: Path) -> None:
    """Raise ValueError if the target exists."""
    if os.path.lexists(target):
        raise ValueError(f"{target} exists; nothing was written. Give a folder that does not exist yet")


def write_folder(
    target: str | Path,
    config: dict[str, Any],
    tensors: Iterable[tuple[str, Tensor]],
    *,
    shard_bytes: int = 2_000_000_000,
    copy: Iterable[Path] = (),
    adapter: bool = False,
    edited_files: Mapping[str, dict[str, Any]] | None = None,
    check: Callable[[Path], None] | None = None,
) -> Path:
    """Write a checkpoint in Hugging Face's form to a new folder, which appears when it is whole.

    target       the new folder
    config       becomes config.json
    tensors      names and tensors, taken one after another; no more than a shard and the next tensor are in memory.
                 Their files are called model.safetensors, or model-00001-of-00002.safetensors with an index
    shard_bytes  how large a file of tensors may grow (bytes); a single tensor beyond that has a file of its own
    copy         files to copy under their own names, such as those of a tokenizer, except code
    adapter      whether the files are called adapter_model and adapter_config.json
    edited_files further JSON files, name -> content
    check        is called with the whole folder before it is renamed; if it raises, the folder is removed

    Keys of a config that name code are left out, see `named_code`.

    Everything is written to a hidden folder beside the target, flushed to disk, and renamed at the end. Until then no
    folder has the target's name: an error removes the hidden folder; after a kill, the next write there removes it.

    Raises ValueError if the target exists, before anything is read, for a tensor that comes twice and for two files
    of one name; CannotWrite where the disk refuses.
    """
    target = Path(target).absolute()
    check_target(target)
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes must be 1 or more, got {shard_bytes}")
    stem, config_name = ("adapter_model", "adapter_config.json") if adapter else ("model", "config.json")
    with store.new_folder(target) as hidden:
        for name, content in ({config_name: config} | dict(edited_files or {})).items():
            write_json(hidden / name, without_code(content))
        write_into(hidden, tensors, shard_bytes, [file for file in copy if not is_code(file)], stem)
        if check is not None:
            check(hidden)
    return target


def write_into(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int, copy: Iterable[Path], stem: str
) -> None:
    for file in copy:
        if (folder / file.name).exists() or file.name.endswith((".safetensors", ".safetensors.index.json")):
            raise ValueError(f"{file} cannot be copied: the new folder has a {file.name} of its own")
        if is_config(file) and without_code(config := read_json(file)) != config:
            write_json(folder / file.name, without_code(config))
        else:
            with open_regular(file) as data:
                store.put(folder / file.name, iter(lambda data=data: data.read(1 << 20), b""))
    shards: list[list[str]] = []
    written_names: set[str] = set()
    total = shard_size = 0
    shard: dict[str, Tensor] = {}

    def flush() -> None:
        nonlocal shard_size
        shards.append(list(shard))
        write_shard(folder / f"{len(shards)}.safetensors", shard)
        shard.clear()
        shard_size = 0

    for name, tensor in tensors:
        if name in written_names:
            raise ValueError(f"the tensor {name} comes twice; nothing was written")
        if shard and shard_size + tensor.nbytes > shard_bytes:
            flush()
        written_names.add(name)
        shard[name] = tensor.cpu().contiguous()
        shard_size += tensor.nbytes
        total += tensor.nbytes
    if shard or not shards:
        flush()
    files = [f"{stem}-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        files = [f"{stem}.safetensors"]
    for number, file in enumerate(files, 1):
        (folder / f"{number}.safetensors").rename(folder / file)
    if len(shards) > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_json(folder / f"{stem}.safetensors.index.json", index, sort_keys=True)


def write_json(file: Path, content: Mapping[str, Any], sort_keys: bool = False) -> None:
    store.put(file, [(json.dumps(content, indent=2, sort_keys=sort_keys) + "\n").encode()])


def write_shard(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file."""
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values():
            raise ValueError(f"{name} is of {tensor.dtype}, which safetensors does not hold; convert it first")
    store.put(file, file_pieces(tensors))
