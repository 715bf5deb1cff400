"""A safetensors file, read and written tensor by tensor; every promise of its header is checked against the file."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.foreign import CannotRead, matches, opened, parse_json, quoted, shape
from posenc.foreign.gguf import LONGEST_NAME

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64, "BOOL": torch.bool,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
}  # fmt: skip
"""The dtypes of safetensors, by the names that its headers use."""

# Some 140,000 tensors in one file.
LONGEST_HEADER = 16 << 20


@dataclass(frozen=True)
class Stored:
    """Where a tensor lies: its file, what it is stored as ("BF16", "Q4_1"), the dtype that it is read as, and bytes."""

    file: Path
    stored: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int


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
            place = f"it begins at byte {entry.start - first} of the data, where {end - first} was expected"
            raise CannotRead(f"{place}; tensors may not overlap nor leave gaps", file=file, field=name)
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


def in_order(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The tensors as they lie in a file: the widest numbers first, so that each begins at a multiple of its width."""
    return sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))


def pieces(
    tensors: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor] = lambda held: held
) -> Iterator[bytes | bytearray]:
    """The bytes of a file of these tensors: a piece for each, made when it is asked for, so that one is in memory.

    whole  gives all of a tensor of which this process may hold a shard

    The file says that it is PyTorch's, as transformers asks of one.

    Source: github.com/huggingface/safetensors, "Format".
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in in_order(tensors):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    said = json.dumps(header, separators=(",", ":")).encode()
    said += b" " * (-len(said) % 8)
    yield len(said).to_bytes(8, "little") + said
    for _, tensor in in_order(tensors):
        values = whole(tensor).detach().cpu().reshape(-1)
        buffer = bytearray(values.nbytes)
        if buffer:
            torch.frombuffer(buffer, dtype=values.dtype).copy_(values)
        yield buffer
