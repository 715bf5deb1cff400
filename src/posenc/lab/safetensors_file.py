"""Read and write safetensors files tensor by tensor, and check their headers."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posenc.foreign import CannotRead, matches, open_regular, parse_json, quote, shape
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
class TensorEntry:
    """A stored tensor: its file, stored dtype ("BF16", "Q4_1"), dtype when read, shape, and byte range."""

    file: Path
    stored_dtype: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int


def read_header(file: Path, folder: Path | None = None) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """The tensor entries and the metadata of a safetensors file, checked against the size of the file.

    Only the header is read. Memory: some 20 bytes for each byte of it.
    """
    remedy = "download it again"
    with open_regular(file, folder) as data:
        size = os.fstat(data.fileno()).st_size
        start = data.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8:
            message = f"it is truncated: it has {size} bytes, and a safetensors file begins with 8"
            raise CannotRead(message, file=file, remedy=remedy)
        if start == b"version ":
            raise CannotRead("a Git LFS pointer, not the weights themselves", file=file, remedy="run `git lfs pull`")
        if length > size - 8:
            message = f"it is truncated: its header has {length} bytes, and after the first 8 the file has {size - 8}"
            raise CannotRead(message, file=file, remedy=remedy)
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
        message = f"it is truncated: its tensors need {end - first} bytes of data, and it has {size - first}"
        raise CannotRead(message, file=file, remedy=remedy)
    if end < size:
        raise CannotRead(f"it is corrupt: {size - end} bytes follow its last tensor", file=file, remedy=remedy)
    return entries, metadata


def read_entry(file: Path, name: str, entry: Any, first: int) -> TensorEntry:
    if len(name) > LONGEST_NAME:
        raise CannotRead(f"{quote(name)} is the name of no tensor: at most {LONGEST_NAME} letters are read", file=file)
    matches(entry, {"dtype": str, "shape": [int], "data_offsets": [int]}, file=file, field=name)
    stored_dtype, offsets = entry["dtype"], entry["data_offsets"]
    if stored_dtype not in DTYPES:
        message = f"it is stored as {quote(stored_dtype, 40)}, which posenc does not read; {', '.join(DTYPES)} are"
        raise CannotRead(message, file=file, field=name)
    sizes, dtype = shape(entry["shape"], name, file=file), DTYPES[stored_dtype]
    nbytes = math.prod(sizes) * dtype.itemsize
    if len(offsets) != 2 or offsets[0] < 0 or offsets[1] - offsets[0] != nbytes:
        message = f"{list(sizes)} of {stored_dtype} needs {nbytes} bytes, and its data_offsets are {quote(offsets, 80)}"
        raise CannotRead(message, file=file, field=name)
    return TensorEntry(file, stored_dtype, dtype, sizes, first + offsets[0], nbytes)


def read_tensor(entry: TensorEntry) -> Tensor:
    if not entry.nbytes:
        return torch.empty(entry.shape, dtype=entry.dtype)
    # A buffer, not a memory map: writes do not reach the file, and a truncated file is no crash.
    buffer = bytearray(entry.nbytes)
    with open_regular(entry.file) as file:
        file.seek(entry.start)
        count = file.readinto(buffer)
    if count != entry.nbytes:
        message = f"it has changed since it was opened: {count} of {entry.nbytes} bytes could be read"
        raise CannotRead(message, file=entry.file)
    return torch.frombuffer(buffer, dtype=entry.dtype).view(entry.shape)


def sort_by_width(tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """The tensors in file order: the widest dtypes first, so that each is aligned to its item size."""
    return sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))


def file_pieces(
    tensors: Mapping[str, Tensor], gather: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[bytes | bytearray]:
    """Yield the bytes of a safetensors file: the header, then each tensor, so that one is in memory.

    gather  returns the full tensor of a shard

    Its metadata says {"format": "pt"}, which transformers requires.

    Source: github.com/huggingface/safetensors, "Format".
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in sort_by_width(tensors):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    header_bytes += b" " * (-len(header_bytes) % 8)
    yield len(header_bytes).to_bytes(8, "little") + header_bytes
    for _, tensor in sort_by_width(tensors):
        values = gather(tensor).detach().cpu().reshape(-1)
        buffer = bytearray(values.nbytes)
        if buffer:
            torch.frombuffer(buffer, dtype=values.dtype).copy_(values)
        yield buffer
