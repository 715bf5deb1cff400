"""GGUF files written by hand, with contents that no honest writer would write."""

import struct


def text(words: str) -> bytes:
    data = words.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + items


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """Return the header's entry of a tensor, with its shape in file order."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(*keys: bytes, tensors=(), version: int = 3, data: int = 0, count: int | None = None) -> bytes:
    """Return a file: keys, the entries of tensors, and zero bytes of data from the next multiple of 32."""
    key_count = len(keys) if count is None else count
    data_before = b"GGUF" + struct.pack("<IQQ", version, len(tensors), key_count) + b"".join([*keys, *tensors])
    return data_before + bytes(-len(data_before) % 32 + data)
