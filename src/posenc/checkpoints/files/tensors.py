"""The tensors of a checkpoint on disk, read one at a time."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from posenc.foreign import CannotRead, open_regular, quote, read_json
from posenc.foreign.gguf import read_gguf
from posenc.lab.safetensors_file import DTYPES, TensorEntry, read_header, read_tensor

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# A pickle by its first byte; a zip, which is how torch.save writes one.
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")
# Some 300,000 tensors in all.
LONGEST_INDEX = 32 << 20
SHARD = re.compile(r"-(\d{5,})-of-(\d{5,})$")


class Tensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, each read from disk at every access.

    path     of the file or folder
    entries  name -> the place and the type of a tensor

    Opening reads headers only, and checks all of them: no file is truncated, and no shard is missing.
    """

    def __init__(self, path: Path, entries: dict[str, TensorEntry]) -> None:
        self.path, self.entries = path, entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of the tensor once it is read; quantised tensors of a GGUF are float32."""
        return self.entries[name].dtype

    def meta_tensors(self) -> dict[str, Tensor]:
        """Return every tensor on the meta device: its shape and dtype without its values."""
        return {n: torch.empty(e.shape, dtype=e.dtype, device="meta") for n, e in self.entries.items()}

    def __getitem__(self, name: str) -> Tensor:
        return read_tensor(self.entries[name])

    def __contains__(self, name: object) -> bool:
        # Mapping's own method would read the tensor.
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class GGUFTensors(Tensors):
    """The tensors of a GGUF file under its own names. Quantised tensors have a shape, but cannot be read here.

    metadata  its keys, such as "general.architecture", and their values
    """

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        if match := SHARD.search(path.stem):
            raise CannotRead(
                f"{path} is one of {int(match[2])} parts of a split GGUF file; join them first with llama.cpp's "
                f"`llama-gguf-split --merge`"
            )
        header = read_gguf(path, folder)
        self.metadata, self.order = header.values, header.order
        entries = {}
        for name, entry in header.tensors.items():
            dtype = DTYPES.get(entry.type_name, torch.float32)
            dtype = torch.float32 if dtype.is_floating_point else dtype
            entries[name] = TensorEntry(path, entry.type_name, dtype, entry.shape, entry.start, entry.nbytes or 0)
        super().__init__(path, entries)

    def __getitem__(self, name: str) -> Tensor:
        entry = self.entries[name]
        if entry.stored_dtype not in DTYPES or self.order != sys.byteorder:
            wrong = f"it is stored as {entry.stored_dtype} in {self.order}-endian order, which is not unpacked here"
            todo = "load the model, which transformers unpacks, or take the original weights"
            raise CannotRead(wrong, file=self.path, field=name, remedy=todo)
        return read_tensor(replace(entry, dtype=DTYPES[entry.stored_dtype])).to(entry.dtype)


def import_gguf(path: Path) -> ModuleType:
    """Import the gguf package, by which transformers unpacks such files."""
    try:
        import gguf
    except ImportError:
        remedy = "install it with `pip install 'posenc[hf]'`"
        words = "it takes the gguf package to read the tensors of this file"
        raise CannotRead(words, file=path, remedy=remedy) from None
    return gguf


def open_tensors(path: str | Path) -> Tensors:
    """Open the tensors of a safetensors file, a GGUF file, or a folder in Hugging Face's form.

    A folder may be sharded: its index, if there is one, decides which files count, and other files are ignored.

    Raises CannotRead, with the file and the reason, for what is no checkpoint, an empty folder, a truncated or corrupt
    header, missing or misplaced data, a shard that is missing or differs from the index, a tensor that is there twice,
    and for pickles, because to unpickle is to run code.
    """
    path = Path(path)
    if path.is_dir():
        return open_folder(path)
    if path.name.endswith(".safetensors.index.json"):
        return open_index(path)
    if path.suffix == ".json":
        raise CannotRead(f"{path} is a JSON file, which holds no tensors; give the folder or the .safetensors file")
    with open_regular(path) as file:
        start = file.read(4)
    if start == b"GGUF":
        return GGUFTensors(path)
    if path.suffix == ".safetensors":
        return join_files(path, [path], None)
    if path.suffix in PICKLES or start.startswith(PICKLE_STARTS):
        raise pickle_error(path)
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
        raise CannotRead(f"{folder} has several indices ({format_names(indices)}); give the path of the one you mean")
    # Some releases hold the same weights again, under the names of another library.
    whole = [file for file in files if file.name == "model.safetensors"]
    if not whole and (len(files) > 1 or any(SHARD.search(file.stem) for file in files)):
        wrong = f"{folder} has no index that says which of its safetensors files count ({format_names(files)})"
        raise CannotRead(f"{wrong}; download it, or give the path of one file")
    files = whole or files
    if files:
        return join_files(folder, files, folder)
    if len(ggufs) == 1:
        return GGUFTensors(ggufs[0], folder)
    if ggufs:
        raise CannotRead(f"{folder} has several GGUF files ({format_names(ggufs)}); give the path of the one you mean")
    pickles = sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise pickle_error(pickles[0])
    if not any(folder.iterdir()):
        raise CannotRead(f"{folder} is empty; expected config.json and safetensors, or a GGUF file")
    raise CannotRead(f"{folder} holds no tensors: no .safetensors and no .gguf file is in it")


def open_index(index: Path) -> Tensors:
    folder = index.parent
    weight_map = read_json(index, folder=folder, limit=LONGEST_INDEX).get("weight_map")
    is_map = isinstance(weight_map, dict) and weight_map and all(isinstance(file, str) for file in weight_map.values())
    if not is_map:
        raise CannotRead(f"expected a weight_map from tensor names to files, got {quote(weight_map, 80)}", file=index)
    shards = list(dict.fromkeys(weight_map.values()))
    for shard in shards:
        if Path(shard).name != shard:
            raise CannotRead(f"it names {quote(shard)}, which is no file of its own folder; not opened", file=index)
        if not os.path.lexists(folder / shard):
            raise CannotRead(f"it names the shard {quote(shard)}, which is missing; download it again", file=index)
    tensors = join_files(index, [folder / shard for shard in shards], folder)
    advice = "index and shards do not match"
    for name, shard in weight_map.items():
        if name not in tensors or tensors.entries[name].file.name != shard:
            raise CannotRead(
                f"it says that {quote(shard)} holds this, and it does not; {advice}", file=index, field=name
            )
    for name in tensors:
        if name not in weight_map:
            shard = tensors.entries[name].file.name
            raise CannotRead(f"{shard} holds this, and it is not in the index; {advice}", file=index, field=name)
    return tensors


def join_files(path: Path, files: list[Path], folder: Path | None) -> Tensors:
    """Return the tensors of several safetensors files; raises CannotRead if one is there twice."""
    entries: dict[str, TensorEntry] = {}
    for file in files:
        header, _ = read_header(file, folder)
        for name, entry in header.items():
            if name in entries:
                twice = f"it is in {entries[name].file.name} and again in {file.name}; which one counts?"
                raise CannotRead(twice, file=path, field=name)
            entries[name] = entry
    return Tensors(path, entries)


def pickle_error(file: Path) -> CannotRead:
    return CannotRead(
        f"{file} is a pickle, and to unpickle is to run whatever code it holds, so posenc does not",
        remedy=f'convert it where you trust it: weights = torch.load({str(file)!r}, map_location="cpu", '
        f"weights_only=True); safetensors.torch.save_file({{name: weight.contiguous().clone() for name, weight in "
        f"weights.items()}}, {str(file.with_suffix('.safetensors'))!r})",
    )


def format_names(files: list[Path]) -> str:
    listing = ", ".join(file.name for file in files[:3])
    return listing if len(files) <= 3 else f"{listing} and {len(files) - 3} more"
