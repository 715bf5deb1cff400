"""GGUF files written by hand, so that they can say what no honest writer would."""

import struct


def text(words: str) -> bytes:
    data = words.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, claimed: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, claimed) + items


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """What a header says of a tensor, its shape in the order of the file."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(*keys: bytes, tensors=(), version: int = 3, data: int = 0, count: int | None = None) -> bytes:
    """A file by hand: keys, what is said of tensors, and bytes of data behind the next multiple of 32."""
    many = len(keys) if count is None else count
    said = b"GGUF" + struct.pack("<IQQ", version, len(tensors), many) + b"".join([*keys, *tensors])
    return said + bytes(-len(said) % 32 + data)
