"""Read the header of a GGUF file: its keys, and the offsets of its tensors.

Every count is checked against the bytes that are left, before it is looped over or allocated by. A header has a size
limit of its own: reading it takes at most some 100 nanoseconds and 10 bytes of memory for each of its bytes.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, and what llama.cpp makes of it.
"""

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from posenc.foreign.files import open_regular
from posenc.foreign.text import CannotRead, quote, visible
from posenc.foreign.values import shape

LONGEST_HEADER = 64 << 20
"""The bytes before the tensors; the longest of released models, a vocabulary of 262,144 with its merges, has 20 MB."""

MOST_ITEMS = 4_000_000
"""The items of all arrays together; the largest of released models have some 800,000."""

LONGEST_NAME = 1_000
"""The bytes of a key or of a tensor's name; the longest of released models have some 100."""

LONGEST_TEXT = 1 << 20
"""The bytes of one text; the longest of released models are templates and licences of some 50 kB."""

DEEPEST = 4
"""How deep arrays may stand within each other; llama.cpp itself takes none within another."""

REMEDY = "it is no whole GGUF file; download it again"

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

# Number of a type -> its name, values in a block, and bytes of a block; from ggml.h.
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""The types of tensors; a file may have newer ones."""


@dataclass(frozen=True)
class Extent:
    """Where a tensor lies: its type, shape, first byte and number of bytes. Types are "Q4_1", or "type 99" if unknown.

    The shape begins with the axis that changes slowest, in reverse of the file. `nbytes` is None for an unknown type.
    """

    type_name: str
    shape: tuple[int, ...]
    start: int
    nbytes: int | None


@dataclass(frozen=True)
class Header:
    """The header of a GGUF file.

    values   its keys, general.architecture and so on; strings without control characters, but for the tokenizer's
    tensors  name -> its place, in the order of the file
    order    of the bytes of its numbers: "little" or "big"
    """

    values: Mapping[str, Any]
    tensors: Mapping[str, Extent]
    order: Literal["little", "big"]


def read_gguf(path: str | Path, folder: str | Path | None = None) -> Header:
    """Return the header of a GGUF file, with every count checked against the size of the file.

    Raises CannotRead as `open_regular` does, for an incomplete or other file, for version 1, for duplicate keys and
    tensors, and for tensors that reach past the end of the file.
    """
    with open_regular(path, folder) as file:
        return Reader(file, Path(path)).header()


class Reader:
    """Reads a header from its first byte to its last, and never beyond the end of the file."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self.size = os.fstat(file.fileno()).st_size
        self.whole = min(self.size, LONGEST_HEADER)
        self.left = self.whole
        self.items_left = MOST_ITEMS
        self.order: Literal["little", "big"] = "little"

    def wrong(self, words: str, field: str = "", remedy: str = REMEDY) -> CannotRead:
        return CannotRead(words, file=self.path, field=field, remedy=remedy)

    def header(self) -> Header:
        if self.take(4, "the first bytes") != b"GGUF":
            raise self.wrong("it does not begin with GGUF")
        # A version has no use for its higher half, unless the file was written for the other kind of machine.
        version = int.from_bytes(self.take(4, "the version"), "little")
        if version & 0xFFFF == 0:
            self.order, version = "big", int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (2, 3):
            old = "convert the original model again with llama.cpp of today"
            raise self.wrong(f"it has version {version} of the format, and posenc reads 2 and 3", remedy=old)
        tensors, keys = self.numbers("QQ", "the counts")
        self.claims(keys, "keys", 13)
        values: dict[str, Any] = {}
        for _ in range(keys):
            key = self.name("a key")
            if key in values:
                raise self.wrong("the key is there twice", key)
            (kind,) = self.numbers("I", key)
            values[key] = self.value(kind, key)
        self.claims(tensors, "tensors", 24)
        entries = [self.tensor() for _ in range(tensors)]
        return Header(values, self.extents(entries, values), self.order)

    def take(self, count: int, field: str) -> bytes:
        self.claims(count, "bytes", 1, field)
        self.left -= count
        data = self.file.read(count)
        if len(data) < count:
            raise self.wrong("the file became shorter while it was read", field)
        return data

    def claims(self, count: int, noun: str, least: int, field: str = "") -> None:
        """Check a claimed count against the bytes that are left, at `least` bytes for each item."""
        if count * least <= self.left:
            return
        if self.whole < self.size:
            raise self.wrong(f"its header is longer than {LONGEST_HEADER:,} bytes, the most that posenc reads", field)
        raise self.wrong(f"it claims {count:,} {noun}, and {self.left:,} bytes are left in the file", field)

    def numbers(self, form: str, field: str) -> tuple[Any, ...]:
        form = ("<" if self.order == "little" else ">") + form
        return struct.unpack(form, self.take(struct.calcsize(form), field))

    def text(self, field: str, limit: int = LONGEST_TEXT) -> str:
        (length,) = self.numbers("Q", field)
        self.claims(length, "bytes", 1, field)
        if length > limit:
            raise self.wrong(f"a text of {length:,} bytes, of which at most {limit:,} are read", field, remedy="")
        try:
            return self.take(length, field).decode()
        except UnicodeDecodeError as error:
            raise self.wrong(f"it is no text: byte {error.start} is no UTF-8", field) from None

    def name(self, field: str) -> str:
        return visible(self.text(field, LONGEST_NAME))

    def value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.numbers(SCALARS[kind], key)[0]
        if kind == STRING:
            # Tokens keep their control characters, since they are never printed.
            text = self.text(key)
            return text if key.startswith("tokenizer.") else visible(text)
        if kind == ARRAY:
            return self.array(key, depth + 1)
        raise self.wrong(f"its value is of type {kind}, which the format does not have", key)

    def array(self, key: str, depth: int) -> list[Any]:
        if depth > DEEPEST:
            raise self.wrong(f"its arrays are nested more than {DEEPEST} deep", key)
        kind, count = self.numbers("IQ", key)
        self.claims(count, "items", struct.calcsize(f"<{SCALARS[kind]}") if kind in SCALARS else 8, key)
        if count > self.items_left:
            raise self.wrong(
                f"with its {count:,} items the arrays hold more than {MOST_ITEMS:,} together", key, remedy=""
            )
        self.items_left -= count
        if kind in SCALARS:
            return list(self.numbers(f"{count}{SCALARS[kind]}", key))
        return [self.value(kind, key, depth) for _ in range(count)]

    def tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self.name("the name of a tensor")
        (axes,) = self.numbers("I", name)
        self.claims(axes, "axes", 8, name)
        sizes = shape(list(reversed(self.numbers(f"{axes}Q", name))), name, file=self.path)
        kind, offset = self.numbers("IQ", name)
        return name, kind, sizes, offset

    def extents(
        self, rows: list[tuple[str, int, tuple[int, ...], int]], values: Mapping[str, Any]
    ) -> dict[str, Extent]:
        """Return the place of each tensor. Raises CannotRead for one past the end of the file, or on another one."""
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.wrong(f"expected a power of two, got {quote(alignment)}", "general.alignment")
        data = math.ceil((self.whole - self.left) / alignment) * alignment
        by_name: dict[str, Extent] = {}
        for name, kind, sizes, offset in rows:
            type_name, values_in, bytes_of = TYPES.get(kind, (f"type {kind}", 1, None))
            if name in by_name:
                raise self.wrong("the tensor is there twice", name)
            if offset % alignment:
                raise self.wrong(f"it begins at byte {offset}, which is no multiple of the alignment {alignment}", name)
            if sizes and sizes[-1] % values_in:
                raise self.wrong(f"its rows have {sizes[-1]} values, and {type_name} has blocks of {values_in}", name)
            size = None if bytes_of is None else math.prod(sizes) // values_in * bytes_of
            if data + offset + (size or 0) > self.size:
                needs = f"{list(sizes)} of {type_name} from byte {data + offset:,}"
                raise self.wrong(f"the tensor {needs} does not lie in the file, which has {self.size:,}", name)
            by_name[name] = Extent(type_name, sizes, data + offset, size)
        end, previous = 0, ""
        for name, lies in sorted(by_name.items(), key=lambda item: (item[1].start, item[1].nbytes or 0)):
            if lies.start < end and lies.nbytes:
                raise self.wrong(f"its bytes are also those of {quote(previous)}", name)
            if lies.nbytes:
                end, previous = lies.start + lies.nbytes, name
        return by_name
