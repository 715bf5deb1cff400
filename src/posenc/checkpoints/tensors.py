"""The tensors of a checkpoint on disk: read one at a time, written to a new folder that appears whole or not at all."""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.reading import CannotRead

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
# What safetensors itself allows; a longer header is a file of another kind, or hostile.
LONGEST_HEADER = 100_000_000
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
    """The tensors of a GGUF file under its own names, dequantised to float32 one at a time; `reader` has the rest."""

    def __init__(self, path: Path) -> None:
        self.reader = open_gguf(path)
        self.by_name = {tensor.name: tensor for tensor in self.reader.tensors}
        stored = {}
        for name, tensor in self.by_name.items():
            # GGUF counts its axes from the other end.
            shape = tuple(int(n) for n in reversed(tensor.shape))
            dtype = DTYPES.get(tensor.tensor_type.name, torch.float32)
            dtype = dtype if not dtype.is_floating_point else torch.float32
            kind = tensor.tensor_type.name
            stored[name] = Stored(path, kind, dtype, shape, int(tensor.data_offset), int(tensor.n_bytes))
        super().__init__(path, "gguf", stored, {})

    def __getitem__(self, name: str) -> Tensor:
        import gguf
        import numpy

        tensor, entry = self.by_name[name], self.stored[name]
        if not entry.dtype.is_floating_point or tensor.tensor_type.name == "F64":
            values = numpy.array(tensor.data)
        else:
            try:
                values = gguf.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                raise CannotRead(
                    f"{self.path}: the gguf package cannot dequantise {name}, stored as {entry.stored}; "
                    f"quantise the file to a type that it knows, such as Q8_0, or use the original weights"
                ) from error
        # Small files are mapped from disk: a copy, so that nobody can write into them.
        return torch.from_numpy(numpy.array(values)).to(entry.dtype).view(entry.shape)


def open_tensors(path: str | Path) -> Tensors:
    """The tensors of a safetensors file, of a folder in Hugging Face's form (sharded or not), or of a GGUF file.

    Where a folder has an index, that says which files count; others beside them are left alone.

    Raises CannotRead, with the file and the reason, for what is no checkpoint, an empty folder, a header that is
    truncated or corrupt, data that are missing or out of place, a shard that is missing or holds other tensors than
    the index says, a tensor that is there twice, and for pickles, because to unpickle is to run code.
    """
    path = Path(path)
    if not path.exists():
        raise CannotRead(f"{path}: there is no such file or folder")
    if path.is_dir():
        return open_folder(path)
    if path.name.endswith(".safetensors.index.json"):
        return open_index(path)
    if path.suffix == ".json":
        raise CannotRead(f"{path} is a JSON file, which holds no tensors; give the folder or the .safetensors file")
    with open(path, "rb") as file:
        start = file.read(4)
    if start == b"GGUF":
        return GGUFTensors(path)
    if path.suffix == ".safetensors":
        return join(path, [path])
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
        return join(folder, files)
    if len(ggufs) == 1:
        return GGUFTensors(ggufs[0])
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
    read = parse(index, index.read_bytes())
    held = read.get("weight_map")
    if not isinstance(held, dict) or not held or not all(isinstance(shard, str) for shard in held.values()):
        raise CannotRead(f"{index}: expected a weight_map from tensor names to files, got {held!r:.80}")
    shards = list(dict.fromkeys(held.values()))
    for shard in shards:
        if Path(shard).name != shard:
            raise CannotRead(f"{index} names {shard!r}, which is no file of its own folder; it was not opened")
        if not (folder / shard).is_file():
            raise CannotRead(f"{index} names the shard {shard}, which is missing; download it again")
    tensors = join(index, [folder / shard for shard in shards])
    for name, shard in held.items():
        if name not in tensors or tensors.stored[name].file.name != shard:
            raise CannotRead(f"{index} says that {shard} holds {name}, and it does not; index and shards do not match")
    for name in tensors:
        if name not in held:
            shard = tensors.stored[name].file.name
            raise CannotRead(f"{shard} holds {name}, which {index} does not name; index and shards do not match")
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
    missing = sorted(set(range(1, count + 1)) - {int(match[1]) for match, _ in numbered})
    if missing:
        raise CannotRead(f"{folder}: of the {count} shards of {stem} number {missing[0]} is missing; download it again")
    return files


def join(path: Path, files: list[Path]) -> Tensors:
    """The tensors of several safetensors files together; raises if one is there twice."""
    stored: dict[str, Stored] = {}
    metadata: dict[str, str] = {}
    for file in files:
        entries, said = read_header(file)
        for name, entry in entries.items():
            if name in stored:
                raise CannotRead(f"{name} is in {stored[name].file.name} and again in {file.name}; which one counts?")
            stored[name] = entry
        metadata |= said
    return Tensors(path, "safetensors", stored, metadata)


def read_header(file: Path) -> tuple[dict[str, Stored], dict[str, str]]:
    """The tensors of one safetensors file and its metadata, every promise of the header checked against the file."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        start = opened.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8:
            raise CannotRead(f"{file} is truncated: it has {size} bytes, and a safetensors file begins with 8")
        if start == b"version ":
            raise CannotRead(f"{file} is a Git LFS pointer, not the weights themselves; run `git lfs pull`")
        if length > LONGEST_HEADER:
            raise CannotRead(f"{file} is no safetensors file: it claims a header of {length} bytes")
        if length > size - 8:
            raise CannotRead(
                f"{file} is truncated: its header has {length} bytes, and after the first 8 the file has {size - 8}; "
                f"download it again"
            )
        header = parse(file, opened.read(length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CannotRead(f"{file}: expected __metadata__ to be a dictionary, got {metadata!r:.80}")
    data = 8 + length
    entries = {name: read_entry(file, name, entry, data) for name, entry in header.items()}
    end = data
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].nbytes)):
        if entry.start != end:
            raise CannotRead(
                f"{file} is corrupt: {name} begins at byte {entry.start - data} of the data, where {end - data} was "
                f"expected; tensors may not overlap nor leave gaps"
            )
        end = entry.start + entry.nbytes
    if end > size:
        raise CannotRead(
            f"{file} is truncated: its tensors need {end - data} bytes of data, and it has {size - data}; "
            f"download it again"
        )
    if end < size:
        raise CannotRead(f"{file} is corrupt: {size - end} bytes follow its last tensor")
    return entries, metadata


def read_entry(file: Path, name: str, entry: Any, data: int) -> Stored:
    try:
        stored, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(type(n) is int and n >= 0 for n in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise CannotRead(f"{file} is corrupt: {name} needs dtype, shape and two data_offsets, got {entry!r:.120}")
    if stored not in DTYPES:
        raise CannotRead(f"{file}: {name} is stored as {stored!r}, which posenc does not read; {', '.join(DTYPES)} are")
    dtype = DTYPES[stored]
    needed = math.prod(shape) * dtype.itemsize
    if end - start != needed:
        raise CannotRead(
            f"{file} is corrupt: {name} {list(shape)} of {stored} needs {needed} bytes, and its data_offsets "
            f"{start} to {end} give {end - start}"
        )
    return Stored(file, stored, dtype, shape, data + start, needed)


def parse(file: Path, text: bytes) -> dict[str, Any]:
    """A JSON object; raises CannotRead for anything else, and for a key that is there twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise CannotRead(f"{file} is corrupt: it names {twice} twice")
        return found

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        what = "its header is no JSON" if file.suffix == ".safetensors" else "it is no JSON"
        raise CannotRead(f"{file} is corrupt: {what} ({error})") from error
    if not isinstance(found, dict):
        raise CannotRead(f"{file} is corrupt: expected a JSON object, got {found!r:.80}")
    return found


def read_bytes(entry: Stored) -> Tensor:
    if not entry.nbytes:
        return torch.empty(entry.shape, dtype=entry.dtype)
    # A buffer of its own, not a map of the file: nobody can write through it, and a file that shrinks is no crash.
    buffer = bytearray(entry.nbytes)
    with open(entry.file, "rb") as file:
        file.seek(entry.start)
        got = file.readinto(buffer)
    if got != entry.nbytes:
        raise CannotRead(f"{entry.file} has changed since it was opened: {got} of {entry.nbytes} bytes could be read")
    return torch.frombuffer(buffer, dtype=entry.dtype).view(entry.shape)


def open_gguf(path: Path) -> Any:
    """The gguf package's reader of a file, checked to be whole."""
    try:
        import gguf
    except ImportError as error:
        raise CannotRead(
            f"{path} is a GGUF file, which the gguf package reads; install it with `pip install 'posenc[hf]'`"
        ) from error
    if match := SHARD.search(path.stem):
        raise CannotRead(
            f"{path} is one of {int(match[2])} parts of a split GGUF file; join them first with llama.cpp's "
            f"`llama-gguf-split --merge`"
        )
    try:
        return gguf.GGUFReader(path)
    # It reads without bounds: what a truncated or corrupt file makes of that is an error of any of these kinds.
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError) as error:
        raise CannotRead(f"{path} is no whole GGUF file: {error}; it may be truncated, download it again") from error


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
    copy         files to take along, under their own names, such as those of a tokenizer
    stem         the files are called STEM.safetensors, or STEM-00001-of-00002.safetensors with an index
    config_name  what the config is called: adapter_config.json for an adapter
    edited       further JSON files, name -> what they say

    Everything is written to a hidden folder beside the target, brought to disk, and renamed at the end. Whatever
    happens before, no folder has the target's name: after an error the hidden one is removed, after a crash it stays
    behind as .TARGET.unfinished-NUMBER and may be deleted.

    Raises ValueError if the target exists, before anything is read, for a tensor that comes twice and for two files
    of one name; OSError with a clear message where the disk refuses.
    """
    target = Path(target).absolute()
    check_target(target)
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes must be 1 or more, got {shard_bytes}")
    hidden = target.parent / f".{target.name}.unfinished-{os.getpid()}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden.mkdir()
        for name, said in (({} if config is None else {config_name: config}) | dict(edited or {})).items():
            (hidden / name).write_text(json.dumps(said, indent=2) + "\n")
        write_into(hidden, tensors, shard_bytes, copy, stem)
        for file in hidden.iterdir():
            to_disk(file)
        to_disk(hidden)
        # Somebody else may have made it meanwhile; renaming would replace an empty folder.
        check_target(target)
        hidden.rename(target)
        to_disk(target.parent)
    except BaseException as error:
        shutil.rmtree(hidden, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(f"no room to write {target}: {error.strerror}; what was written is removed") from error
        raise
    return target


def write_into(
    folder: Path, tensors: Iterable[tuple[str, Tensor]], shard_bytes: int, copy: Iterable[Path], stem: str
) -> None:
    for file in copy:
        if (folder / file.name).exists() or file.name.endswith((".safetensors", ".safetensors.index.json")):
            raise ValueError(f"{file} cannot be copied: the new folder has a {file.name} of its own")
        shutil.copyfile(file, folder / file.name)
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
        shard[name] = tensor
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
        (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def write_shard(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write one safetensors file, tensor by tensor."""
    kinds = {dtype: name for name, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in kinds:
            raise ValueError(f"{name} is of {tensor.dtype}, which safetensors does not hold; convert it first")
    # The widest first, so that each begins at a multiple of its own width, as readers that map the file want.
    ordered = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name in ordered:
        tensor = tensors[name]
        offsets = [start, start + tensor.nbytes]
        header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        start += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "xb") as opened:
        opened.write(len(text).to_bytes(8, "little"))
        opened.write(text)
        for name in ordered:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                opened.write(flat.view(torch.uint8).numpy())


def to_disk(path: Path) -> None:
    """Return when a file or folder is on the disk, not only on its way there."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
