"""A cache in a safetensors file: what is held, and where; no room for tokens to come."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from posenc.cache.operations import noticed
from posenc.encoding.base import Moves
from posenc.encoding.keys import Keys
from posenc.foreign import CannotRead, matches, parse_json, quoted, reading_with, regular, whole_files
from posenc.tokens.positions import TENSORS, Positions

FORM = {"format": int, "layers": int, "slots": (int, None), "rolling": bool, "moves": [str], "unit_step": bool}
FORMAT = 2
"""The number of this form of file: others are refused."""

SPARE = 1 << 28
"""The memory of slots (bytes) that a file may ask for, or sixteen times its own, where the caller names no number."""


def write(file: str | Path, layers: Sequence[Keys], *, slots: int | None, rolling: bool) -> None:
    """Write the keys of layers that hold the same tokens. Raises CannotWrite: the file is then as it was."""
    save = safetensors().torch.save
    tensors = {f"at.{name}": fact for name, fact in layers[0].at.tensors().items()}
    for number, keys in enumerate(layers):
        tensors |= {f"{number}.{name}": fact for name, fact in keys.facts().items()}
        if keys.turned is not None:
            tensors[f"{number}.turned"] = keys.turned
    header: dict[str, Any] = {
        "format": FORMAT,
        "layers": len(layers),
        "slots": slots,
        "rolling": rolling,
        "moves": [keys.moves for keys in layers],
        "unit_step": layers[0].at.unit_step,
    }
    # Tensors may share memory, or have room behind them.
    tensors = {name: fact.contiguous().clone() for name, fact in tensors.items()}
    header["checksum"] = checksum(header, tensors)
    whole_files.write(Path(file), save(tensors, {"posenc": json.dumps(header)}))


def checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of all that a file says of a cache, and of every number in it."""
    digest = hashlib.sha256(json.dumps({**header, "checksum": None}, sort_keys=True).encode())
    for name, fact in sorted(tensors.items()):
        digest.update(f"{name} {fact.dtype} {list(fact.shape)}".encode())
        digest.update(memoryview(fact.cpu().contiguous().view(torch.uint8).numpy()))
    return digest.hexdigest()


def read(file: str | Path, slots: int | None = None) -> tuple[list[Keys], dict[str, Any]]:
    """The keys of each layer, and what else was said of them. Raises CannotRead for what is no such file.

    slots  how many the file may ask for; None: as SPARE has it
    """
    file = regular(file)
    with reading_with("safetensors", file=file), safetensors().safe_open(file, "pt") as found:
        said, tensors = found.metadata() or {}, {name: found.get_tensor(name) for name in found.keys()}
    if "posenc" not in said:
        raise CannotRead("it holds no cache of posenc", file=file, remedy="write one with cache.save(file)")
    header = parse_json(said["posenc"], file)
    if header.get("format") != FORMAT:
        raise CannotRead(f"it is of form {header.get('format')}, expected {FORMAT}", file=file, remedy="write it anew")
    matches(header, FORM | {"checksum": str}, file=file)
    if header["checksum"] != checksum(header, tensors):
        raise CannotRead("it does not fit its checksum: it was damaged or changed", file=file)
    if unknown := set(header["moves"]) - set(get_args(Moves)):
        raise CannotRead(f"keys move in no such way as {quoted(unknown.pop())}", file=file)
    if not 1 <= header["layers"] == len(header["moves"]):
        raise CannotRead(f"it says {header['layers']} layers and {len(header['moves'])} of them", file=file)
    try:
        facts = {name: tensors.pop(f"at.{name}", None) for name in TENSORS}
        at = noticed(Positions(**facts, unit_step=header["unit_step"]))
        layers = [layer(tensors, number, at, header["moves"][number]) for number in range(header["layers"])]
    except (KeyError, ValueError, TypeError) as error:
        raise CannotRead(f"its tensors do not fit one another ({error})", file=file, remedy="write it anew") from None
    size, slots_asked = sum(fact.nbytes for keys in layers for fact in keys.facts().values()), header["slots"]
    most = max(SPARE, 16 * size) * at.tokens // size if slots is None else slots
    if slots_asked is not None and not 1 <= slots_asked <= most:
        todo = "say how many it may have, as in Cache.load(file, slots=4096)"
        raise CannotRead(f"it asks for {slots_asked:,} slots, expected 1 to {most:,}", file=file, remedy=todo)
    return layers, header


def layer(tensors: Mapping[str, Tensor], number: int, at: Positions, way: str) -> Keys:
    """The keys of one layer. Raises KeyError or ValueError where they do not fit."""
    own = {name.removeprefix(f"{number}."): x for name, x in tensors.items() if name.startswith(f"{number}.")}
    k, v, turned = own.pop("k"), own.pop("v"), own.pop("turned", None)
    for name, fact in {"k": k, "v": v, **own}.items():
        wrong = fact.dim() < 3 or (fact.shape[0], fact.shape[2]) != (k.shape[0], at.tokens)
        if wrong or (name in "kv" and (fact.dim() != 4 or not fact.is_floating_point() or fact.shape[1] != k.shape[1])):
            raise ValueError(f"{name} of layer {number} has shape {list(fact.shape)}")
    if turned is not None and (turned.dim() != 3 or turned.shape[1:] != at.coords.shape[1:]):
        raise ValueError(f"turned of layer {number} has shape {list(turned.shape)}")
    if at.order.shape[0] not in (1, k.shape[0]):
        raise ValueError(f"positions of {at.order.shape[0]} rows for {k.shape[0]}")
    if unknown := [name for name in own if not name.startswith("memo ")]:
        raise ValueError(f"{unknown[0]} of layer {number} is not known")
    memo = {name.removeprefix("memo "): fact for name, fact in own.items()}
    return Keys(k, v, at, memo, turned=turned, moves=way)


def safetensors() -> Any:
    """The library. Raises ImportError with what to install where it is missing."""
    try:
        return import_module("safetensors.torch") and import_module("safetensors")
    except ImportError:
        raise ImportError("caches are kept in safetensors files; pip install safetensors") from None
