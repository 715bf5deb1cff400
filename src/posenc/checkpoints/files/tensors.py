"""The tensors of a checkpoint on disk: read one at a time, written to a new folder that appears whole or not at all."""

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.files.named_code import harmless, is_code, is_config
from posenc.foreign import CannotRead, matches, opened, parse_json, quoted, read_json, shape
from posenc.foreign.gguf import LONGEST_NAME, read_gguf
from posenc.lab import store

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The dtypes of safetensors, by the names that its headers use."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# A pickle by its first byte; a zip, which is how torch.save writes one.
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")
# Some 140,000 tensors in one file; and some 300,000 in all.
LONGEST_HEADER = 16 << 20
LONGEST_INDEX = 32 << 20
SHARD = re.compile(r"-(\d{5,})-of-(\d{5,})$")


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: its file, what it is stored as ("BF16", "Q4_1"), the dtype that it is read as, and bytes."""

    file: Path
    stored: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Tensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, each read from disk when it is asked for, and never kept.

    path      what was opened
    format    "safetensors" or "gguf"
    files     the files that hold them
    metadata  what the safetensors files say beside their tensors, such as {"format": "pt"}

    Opening reads headers only, and checks all of them: nothing that opens is truncated, and no shard is missing.
    """

    def __init__(self, path: Path, format: str, stored: dict[str, Stored], metadata: dict[str, str]) -> None:
        self.path, self.format, self.stored, self.metadata = path, format, stored, metadata
        self.files = tuple(dict.fromkeys(entry.file for entry in stored.values()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.stored)

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
    """The tensors of a GGUF file under its own names, dequantised to float32 one at a time.

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
        super().__init__(path, "gguf", stored, {})

    def __getitem__(self, name: str) -> Tensor:
        entry = self.stored[name]
        if entry.stored not in DTYPES:
            return self.dequantised(name)
        values = read_bytes(replace(entry, dtype=DTYPES[entry.stored]))
        if self.order != sys.byteorder:
            turned = values.flatten().view(torch.uint8).view(-1, values.itemsize).flip(-1)
            values = turned.view(values.dtype).view(entry.shape)
        return values.to(entry.dtype)

    def dequantised(self, name: str) -> Tensor:
        entry, gguf = self.stored[name], package(self.path)
        kind = gguf.GGMLQuantizationType.__members__.get(entry.stored)
        if kind is None or self.order != sys.byteorder:
            raise self.unknown(name)
        if not entry.nbytes:
            return torch.empty(entry.shape, dtype=entry.dtype)
        blocks = read_bytes(replace(entry, dtype=torch.uint8, shape=(*entry.shape[:-1], -1)))
        try:
            values = gguf.dequantize(blocks.numpy(), kind)
        except NotImplementedError:
            raise self.unknown(name) from None
        return torch.from_numpy(values).to(entry.dtype).view(entry.shape)

    def unknown(self, name: str) -> CannotRead:
        return CannotRead(
            f"it is stored as {self.stored[name].stored} in {self.order}-endian order, which the gguf package cannot "
            f"dequantise here",
            file=self.path,
            field=name,
            remedy="quantise the file to a type that it knows, such as Q8_0, or use the original weights",
        )


def cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in another dtype. Raises ValueError for numbers that are larger than the dtype holds."""
    made = tensor.to(dtype)
    if made.isinf().sum() > tensor.isinf().sum():
        raise ValueError(
            f"{name} has numbers up to {tensor[tensor.isfinite()].abs().max():.6g}, and {dtype} ends at "
            f"{torch.finfo(dtype).max:.6g}; choose bfloat16 or float32"
        )
    return made


def package(path: Path) -> Any:
    """The gguf package, which knows how tensors are quantised and what they are called."""
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
    if len(files) > 1 or any(SHARD.search(file.stem) for file in files):
        files = whole or complete(folder, files)
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


def complete(folder: Path, files: list[Path]) -> list[Path]:
    """The shards among several files of a folder without an index; raises unless they are one whole set."""
    numbered = [(match, file) for file in files if (match := SHARD.search(file.stem))]
    sets = {(file.stem[: match.start()], int(match[2])) for match, file in numbered}
    if len(sets) != 1 or len(numbered) != len(files):
        raise CannotRead(
            f"{folder} has several safetensors files and no index ({names(files)}); give the path of the one you mean"
        )
    ((stem, count),) = sets
    held = {int(match[1]) for match, _ in numbered}
    missing = next(number for number in range(1, len(held) + 2) if number not in held)
    if missing <= count:
        lacks = f"of the {count} shards of {stem} number {missing} is missing"
        raise CannotRead(lacks, file=folder, remedy="download it again")
    return files


def join(path: Path, files: list[Path], within: Path | None) -> Tensors:
    """The tensors of several safetensors files together; raises if one is there twice."""
    stored: dict[str, Stored] = {}
    metadata: dict[str, str] = {}
    for file in files:
        entries, said = read_header(file, within)
        for name, entry in entries.items():
            if name in stored:
                twice = f"it is in {stored[name].file.name} and again in {file.name}; which one counts?"
                raise CannotRead(twice, file=path, field=name)
            stored[name] = entry
        metadata |= said
    return Tensors(path, "safetensors", stored, metadata)


def read_header(file: Path, within: Path | None = None) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of one safetensors file and its metadata, every promise of the header checked against the file.

    Only the header is read, in time and memory in proportion to it: some 20 bytes for each of its own.
    """
    again = "download it again"
    with opened(file, within) as data:
        size = os.fstat(data.fileno()).st_size
        start = data.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8:
            short = f"it is truncated: it has {size} bytes, and a safetensors file begins with 8"
            raise CannotRead(short, file=file, remedy=again)
        if start == b"version ":
            raise CannotRead("a Git LFS pointer, not the weights themselves", file=file, remedy="run `git lfs pull`")
        if length > size - 8:
            short = f"it is truncated: its header has {length} bytes, and after the first 8 the file has {size - 8}"
            raise CannotRead(short, file=file, remedy=again)
        if length > LONGEST_HEADER:
            raise CannotRead(f"its header has {length:,} bytes; posenc reads at most {LONGEST_HEADER:,}", file=file)
        header = parse_json(data.read(length), file)
    metadata = header.pop("__metadata__", {})
    matches(metadata, {"*": str}, file=file, field="__metadata__")
    first = 8 + length
    entries = {name: read_entry(file, name, entry, first) for name, entry in header.items()}
    end = first
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start != end:
            raise CannotRead(
                f"it begins at byte {entry.start - first} of the data, where {end - first} was expected; tensors may "
                f"not overlap nor leave gaps",
                file=file,
                field=name,
            )
        end = entry.start + entry.nbytes
    if end > size:
        short = f"it is truncated: its tensors need {end - first} bytes of data, and it has {size - first}"
        raise CannotRead(short, file=file, remedy=again)
    if end < size:
        raise CannotRead(f"it is corrupt: {size - end} bytes follow its last tensor", file=file, remedy=again)
    return entries, metadata


def read_entry(file: Path, name: str, entry: Any, first: int) -> Stored:
    if len(name) > LONGEST_NAME:
        raise CannotRead(f"{quoted(name)} is the name of no tensor: at most {LONGEST_NAME} letters are read", file=file)
    matches(entry, {"dtype": str, "shape": [int], "data_offsets": [int]}, file=file, field=name)
    stored, offsets = entry["dtype"], entry["data_offsets"]
    if stored not in DTYPES:
        what = f"it is stored as {quoted(stored, 40)}, which posenc does not read; {', '.join(DTYPES)} are"
        raise CannotRead(what, file=file, field=name)
    sizes, dtype = shape(entry["shape"], name, file=file), DTYPES[stored]
    needed = math.prod(sizes) * dtype.itemsize
    if len(offsets) != 2 or offsets[0] < 0 or offsets[1] - offsets[0] != needed:
        what = f"{list(sizes)} of {stored} needs {needed} bytes, and its data_offsets are {quoted(offsets, 80)}"
        raise CannotRead(what, file=file, field=name)
    return Stored(file, stored, dtype, sizes, first + offsets[0], needed)


def read_bytes(entry: Stored) -> Tensor:
    if not entry.nbytes:
        return torch.empty(entry.shape, dtype=entry.dtype)
    # A buffer of its own, not a map of the file: nobody can write through it, and a file that shrinks is no crash.
    buffer = bytearray(entry.nbytes)
    with opened(entry.file) as file:
        file.seek(entry.start)
        got = file.readinto(buffer)
    if got != entry.nbytes:
        changed = f"it has changed since it was opened: {got} of {entry.nbytes} bytes could be read"
        raise CannotRead(changed, file=entry.file)
    return torch.frombuffer(buffer, dtype=entry.dtype).view(entry.shape)


def refused(file: Path) -> CannotRead:
    return CannotRead(
        f"{file} is a pickle, and to unpickle is to run whatever code it holds, so posenc does not; convert it where "
        f"you trust it: torch.load(..., weights_only=True), then safetensors.torch.save_file"
    )


def names(files: list[Path]) -> str:
    shown = ", ".join(file.name for file in files[:3])
    return shown if len(files) <= 3 else f"{shown} and {len(files) - 3} more"


# Writing


def check_target(target: Path) -> None:
    """Raise ValueError if a folder cannot become new there: something of that name exists."""
    if os.path.lexists(target):
        raise ValueError(f"{target} exists; nothing was written. Give a folder that does not exist yet")


def write_folder(
    target: str | Path,
    config: dict[str, Any] | None,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    shard_bytes: int = 2_000_000_000,
    copy: Iterable[Path] = (),
    stem: str = "model",
    config_name: str = "config.json",
    edited: Mapping[str, dict[str, Any]] | None = None,
) -> Path:
    """Write a checkpoint in Hugging Face's form to a new folder, which appears when it is whole and not before.

    target       the new folder
    config       becomes config.json; None writes no config
    tensors      names and tensors, taken one after another; no more than a shard and the next tensor are in memory
    shard_bytes  how large a file of tensors may grow (bytes); a single tensor beyond that has a file of its own
    copy         files to take along, under their own names, such as those of a tokenizer; code among them stays behind
    stem         the files are called STEM.safetensors, or STEM-00001-of-00002.safetensors with an index
    config_name  what the config is called: adapter_config.json for an adapter
    edited       further JSON files, name -> what they say

    No key of a config that names code goes along, see `named_code`.

    Everything is written to a hidden folder beside the target, brought to disk, and renamed at the end. Whatever
    happens before, no folder has the target's name: after an error the hidden one is removed, after a kill by the
    next one that is written there.

    Raises ValueError if the target exists, before anything is read, for a tensor that comes twice and for two files
    of one name; CannotWrite where the disk refuses.
    """
    target = Path(target).absolute()
    check_target(target)
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes must be 1 or more, got {shard_bytes}")
    with store.appearing(target) as hidden:
        for name, said in (({} if config is None else {config_name: config}) | dict(edited or {})).items():
            write_json(hidden / name, harmless(said))
        write_into(hidden, tensors, shard_bytes, [file for file in copy if not is_code(file)], stem)
    return target


def write_into(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int, copy: Iterable[Path], stem: str
) -> None:
    for file in copy:
        if (folder / file.name).exists() or file.name.endswith((".safetensors", ".safetensors.index.json")):
            raise ValueError(f"{file} cannot be copied: the new folder has a {file.name} of its own")
        if is_config(file) and harmless(said := read_json(file)) != said:
            write_json(folder / file.name, harmless(said))
        else:
            store.put(folder / file.name, pieces_of(file))
    shards: list[list[str]] = []
    seen: set[str] = set()
    total = held = 0
    shard: dict[str, Tensor] = {}

    def flush() -> None:
        nonlocal held
        shards.append(list(shard))
        write_shard(folder / f"{len(shards)}.safetensors", shard)
        shard.clear()
        held = 0

    for name, tensor in tensors:
        if name in seen:
            raise ValueError(f"the tensor {name} comes twice; nothing was written")
        if shard and held + tensor.nbytes > shard_bytes:
            flush()
        seen.add(name)
        shard[name] = tensor.cpu().contiguous()
        held += tensor.nbytes
        total += tensor.nbytes
    if shard or not shards:
        flush()
    files = [f"{stem}-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    if len(shards) == 1:
        files = [f"{stem}.safetensors"]
    for number, file in enumerate(files, 1):
        (folder / f"{number}.safetensors").rename(folder / file)
    if len(shards) > 1:
        held_by = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": held_by}
        write_json(folder / f"{stem}.safetensors.index.json", index, sort_keys=True)


def write_json(file: Path, said: Mapping[str, Any], sort_keys: bool = False) -> None:
    store.put(file, [(json.dumps(said, indent=2, sort_keys=sort_keys) + "\n").encode()])


def write_shard(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file, of tensors whose numbers lie in a row."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    apart: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES.values():
            raise ValueError(f"{name} is of {tensor.dtype}, which safetensors does not hold; convert it first")
        # The library refuses tensors that share memory.
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    with store.told(file):
        try:
            save_file(apart, file, {"format": "pt"})
        except SafetensorError as error:
            # What the system said stands in its words alone.
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else 0, str(error)) from None
        # It makes the file for its owner alone; the folder has the rights that are given to what is new.
        file.chmod(file.parent.stat().st_mode & 0o666)


def pieces_of(file: Path) -> Iterator[bytes]:
    with opened(file) as data:
        while piece := data.read(1 << 20):
            yield piece
