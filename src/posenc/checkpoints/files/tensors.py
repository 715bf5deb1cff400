"""The tensors of a checkpoint on disk, read one at a time."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.foreign import CannotRead, opened, quoted, read_json
from posenc.foreign.gguf import read_gguf
from posenc.lab.safetensors_file import DTYPES, Stored, read_bytes, read_header

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# A pickle by its first byte; a zip, which is how torch.save writes one.
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")
# Some 300,000 tensors in all.
LONGEST_INDEX = 32 << 20
SHARD = re.compile(r"-(\d{5,})-of-(\d{5,})$")


class Tensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, each read from disk when it is asked for, and never kept.

    path    what was opened
    stored  name -> where a tensor lies, and as what

    Opening reads headers only, and checks all of them: nothing that opens is truncated, and no shard is missing.
    """

    def __init__(self, path: Path, stored: dict[str, Stored]) -> None:
        self.path, self.stored = path, stored

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that the tensor is read as; quantised tensors of a GGUF are read as float32."""
        return self.stored[name].dtype

    def described(self) -> dict[str, Tensor]:
        """Every tensor without its numbers, on the "meta" device: shapes and dtypes for those who only ask for them."""
        return {n: torch.empty(e.shape, dtype=e.dtype, device="meta") for n, e in self.stored.items()}

    def __getitem__(self, name: str) -> Tensor:
        return read_bytes(self.stored[name])

    def __contains__(self, name: object) -> bool:
        # A mapping's own way would read the tensor.
        return name in self.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


class GGUFTensors(Tensors):
    """The tensors of a GGUF file under its own names; those that are quantised have a shape and cannot be read here.

    said   its keys, such as "general.architecture", and what they say
    """

    def __init__(self, path: Path, within: Path | None = None) -> None:
        if match := SHARD.search(path.stem):
            raise CannotRead(
                f"{path} is one of {int(match[2])} parts of a split GGUF file; join them first with llama.cpp's "
                f"`llama-gguf-split --merge`"
            )
        header = read_gguf(path, within)
        self.said, self.order = header.values, header.order
        stored = {}
        for name, lies in header.tensors.items():
            dtype = DTYPES.get(lies.stored, torch.float32)
            dtype = torch.float32 if dtype.is_floating_point else dtype
            stored[name] = Stored(path, lies.stored, dtype, lies.shape, lies.start, lies.nbytes or 0)
        super().__init__(path, stored)

    def __getitem__(self, name: str) -> Tensor:
        entry = self.stored[name]
        if entry.stored not in DTYPES or self.order != sys.byteorder:
            wrong = f"it is stored as {entry.stored} in {self.order}-endian order, which is not unpacked here"
            todo = "load the model, which transformers unpacks, or take the original weights"
            raise CannotRead(wrong, file=self.path, field=name, remedy=todo)
        return read_bytes(replace(entry, dtype=DTYPES[entry.stored])).to(entry.dtype)


def package(path: Path) -> Any:
    """The gguf package, by which transformers unpacks such files."""
    try:
        import gguf
    except ImportError:
        remedy = "install it with `pip install 'posenc[hf]'`"
        raise CannotRead(
            "it takes the gguf package to read the tensors of this file", file=path, remedy=remedy
        ) from None
    return gguf


def open_tensors(path: str | Path) -> Tensors:
    """The tensors of a safetensors file, of a folder in Hugging Face's form (sharded or not), or of a GGUF file.

    Where a folder has an index, that says which files count; others beside them are left alone.

    Raises CannotRead, with the file and the reason, for what is no checkpoint, an empty folder, a header that is
    truncated or corrupt, data that are missing or out of place, a shard that is missing or holds other tensors than
    the index says, a tensor that is there twice, and for pickles, because to unpickle is to run code.
    """
    path = Path(path)
    if path.is_dir():
        return open_folder(path)
    if path.name.endswith(".safetensors.index.json"):
        return open_index(path)
    if path.suffix == ".json":
        raise CannotRead(f"{path} is a JSON file, which holds no tensors; give the folder or the .safetensors file")
    with opened(path) as file:
        start = file.read(4)
    if start == b"GGUF":
        return GGUFTensors(path)
    if path.suffix == ".safetensors":
        return join(path, [path], None)
    if path.suffix in PICKLES or start.startswith(PICKLE_STARTS):
        raise refused(path)
    raise CannotRead(
        f"{path} is no checkpoint that posenc knows; expected a .safetensors file, a GGUF file or a folder of them"
    )


def open_folder(folder: Path) -> Tensors:
    indices = sorted(folder.glob("*.safetensors.index.json"))
    files = sorted(folder.glob("*.safetensors"))
    ggufs = sorted(folder.glob("*.gguf"))
    if len(indices) == 1:
        return open_index(indices[0])
    if len(indices) > 1:
        raise CannotRead(f"{folder} has several indices ({names(indices)}); give the path of the one you mean")
    # Some releases hold the same weights a second time, under the names of another library.
    whole = [file for file in files if file.name == "model.safetensors"]
    if not whole and (len(files) > 1 or any(SHARD.search(file.stem) for file in files)):
        wrong = f"{folder} has no index that says which of its safetensors files count ({names(files)})"
        raise CannotRead(f"{wrong}; download it, or give the path of one file")
    files = whole or files
    if files:
        return join(folder, files, folder)
    if len(ggufs) == 1:
        return GGUFTensors(ggufs[0], folder)
    if ggufs:
        raise CannotRead(f"{folder} has several GGUF files ({names(ggufs)}); give the path of the one you mean")
    pickles = sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise refused(pickles[0])
    if not any(folder.iterdir()):
        raise CannotRead(f"{folder} is empty; expected config.json and safetensors, or a GGUF file")
    raise CannotRead(f"{folder} holds no tensors: no .safetensors and no .gguf file is in it")


def open_index(index: Path) -> Tensors:
    folder = index.parent
    held = read_json(index, within=folder, most=LONGEST_INDEX).get("weight_map")
    if not isinstance(held, dict) or not held or not all(isinstance(shard, str) for shard in held.values()):
        raise CannotRead(f"expected a weight_map from tensor names to files, got {quoted(held, 80)}", file=index)
    shards = list(dict.fromkeys(held.values()))
    for shard in shards:
        if Path(shard).name != shard:
            raise CannotRead(f"it names {quoted(shard)}, which is no file of its own folder; not opened", file=index)
        if not os.path.lexists(folder / shard):
            raise CannotRead(f"it names the shard {quoted(shard)}, which is missing; download it again", file=index)
    tensors = join(index, [folder / shard for shard in shards], folder)
    unlike = "index and shards do not match"
    for name, shard in held.items():
        if name not in tensors or tensors.stored[name].file.name != shard:
            raise CannotRead(
                f"it says that {quoted(shard)} holds this, and it does not; {unlike}", file=index, field=name
            )
    for name in tensors:
        if name not in held:
            shard = tensors.stored[name].file.name
            raise CannotRead(f"{shard} holds this, and it is not in the index; {unlike}", file=index, field=name)
    return tensors


def join(path: Path, files: list[Path], within: Path | None) -> Tensors:
    """The tensors of several safetensors files together; raises if one is there twice."""
    stored: dict[str, Stored] = {}
    for file in files:
        entries, _ = read_header(file, within)
        for name, entry in entries.items():
            if name in stored:
                twice = f"it is in {stored[name].file.name} and again in {file.name}; which one counts?"
                raise CannotRead(twice, file=path, field=name)
            stored[name] = entry
    return Tensors(path, stored)


def refused(file: Path) -> CannotRead:
    return CannotRead(
        f"{file} is a pickle, and to unpickle is to run whatever code it holds, so posenc does not",
        remedy=f'convert it where you trust it: weights = torch.load({str(file)!r}, map_location="cpu", '
        f"weights_only=True); safetensors.torch.save_file({{name: weight.contiguous().clone() for name, weight in "
        f"weights.items()}}, {str(file.with_suffix('.safetensors'))!r})",
    )


def names(files: list[Path]) -> str:
    shown = ", ".join(file.name for file in files[:3])
    return shown if len(files) <= 3 else f"{shown} and {len(files) - 3} more"
