"""No field for one: what all encodings pass through has no field, and no switch, that a single encoding uses."""

import ast
import functools
import inspect
from collections import defaultdict
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import posenc
from posenc import Encoding, Keys, Positions
from posenc.encoding.bound_kernel import BoundKernel
from posenc.kernels.request import Inputs, Request
from posenc.model.attention import Call
from posenc.tokens.masks import Mask

HOME = Path(posenc.__file__).parent
RECORDS = (Call, BoundKernel, Request, Inputs, Keys, Mask, Positions, Encoding)


@functools.cache
def readers() -> dict[str, set[Path]]:
    """Each name that is read of something, set on something or in a class -> the files that do so."""
    names: dict[str, set[Path]] = defaultdict(set)
    for file in HOME.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                names[node.attr].add(file)
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                for target in [*getattr(part, "targets", ()), getattr(part, "target", None)]:
                    if isinstance(target, ast.Name):
                        names[target.id].add(file)
    return names


def names_of(record: type) -> list[str]:
    if is_dataclass(record):
        return [field.name for field in fields(record)]
    if hasattr(record, "_fields"):
        return list(record._fields)
    return [name for name, value in vars(record).items() if not (name.startswith("_") or callable(value))]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_each_field_is_used_by_more_than_one_encoding_or_by_what_carries_all(record: type) -> None:
    home, users = Path(inspect.getfile(record)), readers()
    for name in names_of(record):
        files = users[name] - {home}
        of_encodings = {file for file in files if "encodings" in file.relative_to(HOME).parts}
        encodings = name in ("logits_on_grid", "take_values", "shared_biases")  # what the record's own methods read
        assert encodings or len(of_encodings) > 1 or len(files - of_encodings) > 1, f"{record.__name__}.{name}: {files}"
