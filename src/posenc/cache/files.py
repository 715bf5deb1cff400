"""Caches in safetensors files: keys and positions, without the free slots."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from posenc.cache.operations import with_inferred_fields
from posenc.encoding.base import Moves
from posenc.encoding.keys import Keys
from posenc.foreign import CannotRead, matches, parse_json, quote, reading_with, regular_file, whole_files
from posenc.tokens.positions import TENSOR_FIELDS, Positions

HEADER_SCHEMA = {"format": int, "layers": int, "slots": (int, None), "rolling": bool, "moves": [str], "unit_step": bool}
FORMAT_VERSION = 2
"""The version of the file format; other versions are refused."""

SPARE_BYTES = 1 << 28
"""Bytes of slots that a file may request if the caller sets no limit; a larger file may request 16 times its size."""


def write(file: str | Path, layers: Sequence[Keys], *, slots: int | None, rolling: bool) -> None:
    """Write the keys of layers that hold the same tokens. Raises CannotWrite and leaves the file as it was."""
    save = safetensors().torch.save
    tensors = {f"at.{name}": fact for name, fact in layers[0].at.tensors().items()}
    for number, keys in enumerate(layers):
        tensors |= {f"{number}.{name}": fact for name, fact in keys.facts().items()}
        if keys.turned is not None:
            tensors[f"{number}.turned"] = keys.turned
    header: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "layers": len(layers),
        "slots": slots,
        "rolling": rolling,
        "moves": [keys.moves for keys in layers],
        "unit_step": layers[0].at.unit_step,
    }
    # Tensors may share memory, or be views of a larger buffer.
    tensors = {name: fact.contiguous().clone() for name, fact in tensors.items()}
    header["checksum"] = checksum(header, tensors)
    whole_files.write(Path(file), save(tensors, {"posenc": json.dumps(header)}))


def checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the header and all tensors of a file."""
    digest = hashlib.sha256(json.dumps({**header, "checksum": None}, sort_keys=True).encode())
    for name, fact in sorted(tensors.items()):
        digest.update(f"{name} {fact.dtype} {list(fact.shape)}".encode())
        digest.update(memoryview(fact.cpu().contiguous().view(torch.uint8).numpy()))
    return digest.hexdigest()


def read(file: str | Path, slots: int | None = None) -> tuple[list[Keys], dict[str, Any]]:
    """Return the keys of each layer, and the header. Raises CannotRead for any other file.

    slots  the most that the file may request; None: as many as fit in SPARE_BYTES
    """
    file = regular_file(file)
    with reading_with("safetensors", file=file), safetensors().safe_open(file, "pt") as archive:
        metadata, tensors = archive.metadata() or {}, {name: archive.get_tensor(name) for name in archive.keys()}
    if "posenc" not in metadata:
        raise CannotRead("it holds no cache of posenc", file=file, remedy="write one with cache.save(file)")
    header = parse_json(metadata["posenc"], file)
    if (version := header.get("format")) != FORMAT_VERSION:
        raise CannotRead(f"its format is {version}, expected {FORMAT_VERSION}", file=file, remedy="write it anew")
    matches(header, HEADER_SCHEMA | {"checksum": str}, file=file)
    if header["checksum"] != checksum(header, tensors):
        raise CannotRead("it does not fit its checksum: it was damaged or changed", file=file)
    if unknown := set(header["moves"]) - set(get_args(Moves)):
        raise CannotRead(f"keys move in no such way as {quote(unknown.pop())}", file=file)
    if not 1 <= header["layers"] == len(header["moves"]):
        raise CannotRead(f"it says {header['layers']} layers and {len(header['moves'])} of them", file=file)
    try:
        facts = {name: tensors.pop(f"at.{name}", None) for name in TENSOR_FIELDS}
        at = with_inferred_fields(Positions(**facts, unit_step=header["unit_step"]))
        layers = [layer_keys(tensors, number, at, header["moves"][number]) for number in range(header["layers"])]
    except (KeyError, ValueError, TypeError) as error:
        raise CannotRead(f"its tensors do not fit one another ({error})", file=file, remedy="write it anew") from None
    size, requested_slots = sum(fact.nbytes for keys in layers for fact in keys.facts().values()), header["slots"]
    max_slots = max(SPARE_BYTES, 16 * size) * at.tokens // size if slots is None else slots
    if requested_slots is not None and not 1 <= requested_slots <= max_slots:
        todo = "say how many it may have, as in Cache.load(file, slots=4096)"
        raise CannotRead(f"it asks for {requested_slots:,} slots, expected 1 to {max_slots:,}", file=file, remedy=todo)
    return layers, header


def layer_keys(tensors: Mapping[str, Tensor], number: int, at: Positions, moves: str) -> Keys:
    """Return the keys of one layer. Raises KeyError or ValueError if their shapes do not fit."""
    facts = {name.removeprefix(f"{number}."): x for name, x in tensors.items() if name.startswith(f"{number}.")}
    k, v, rotated_at = facts.pop("k"), facts.pop("v"), facts.pop("turned", None)
    for name, fact in {"k": k, "v": v, **facts}.items():
        bad = fact.dim() < 3 or (fact.shape[0], fact.shape[2]) != (k.shape[0], at.tokens)
        if bad or (name in "kv" and (fact.dim() != 4 or not fact.is_floating_point() or fact.shape[1] != k.shape[1])):
            raise ValueError(f"{name} of layer {number} has shape {list(fact.shape)}")
    if rotated_at is not None and (rotated_at.dim() != 3 or rotated_at.shape[1:] != at.coords.shape[1:]):
        raise ValueError(f"turned of layer {number} has shape {list(rotated_at.shape)}")
    if at.order.shape[0] not in (1, k.shape[0]):
        raise ValueError(f"positions of {at.order.shape[0]} rows for {k.shape[0]}")
    if unknown := [name for name in facts if not name.startswith("memo ")]:
        raise ValueError(f"{unknown[0]} of layer {number} is not known")
    memo = {name.removeprefix("memo "): fact for name, fact in facts.items()}
    return Keys(k, v, at, memo, turned=rotated_at, moves=moves)


def safetensors() -> Any:
    """Return the library safetensors. Raises ImportError, with the package to install, if it is missing."""
    try:
        return import_module("safetensors.torch") and import_module("safetensors")
    except ImportError:
        raise ImportError("caches are stored in safetensors files; pip install safetensors") from None
