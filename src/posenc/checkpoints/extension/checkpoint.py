"""The extended checkpoint: written, loaded again, and held to what was measured."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.checkpoints.extension.choice import ranked
from posenc.checkpoints.extension.runs import Kept
from posenc.checkpoints.extension.stretch import FirstLosses, Stretch
from posenc.foreign import CannotRead, read_json

CHECKPOINT = "checkpoint"
"""The folder, in the folder of a run, that holds the extended checkpoint."""

RECORD = "record.json"
"""What a run tells of itself, and of the checkpoint that lies beside it."""


def written(stretch: Stretch, record: Mapping[str, Any], where: Path, losses: FirstLosses) -> dict[str, Any]:
    """Write the checkpoint of the method that was chosen and hold it to what was measured; {"path", "words", ...}.

    What is not so is taken away again, and the error goes on; and so is what lies there of another method, which won
    when other ones were asked.
    """
    name = record["winner"]
    method = next(method for method in stretch.methods if method.name == name)
    entry = next(one for one in record["methods"] if one["name"] == name)
    fingerprint = Kept.key({key: entry[key] for key in ("name", "spec", "config")})
    gone = ""
    if where.exists() and fingerprint != fingerprint_in(where.parent / RECORD):
        # Without a record, what a run leaves that is cut before it writes its own is nobody's.
        (where.parent / RECORD).unlink(missing_ok=True)
        shutil.rmtree(where)
        gone = " The checkpoint that lay there was of another method, and is gone."
    if name == "none":
        return {"path": None, "words": f"Nothing was written: the model stays as it is.{gone}"}
    if method.config is None:
        words = f"Nothing was written for {name}: {method.why_not}."
        if other := [one["name"] for one in ranked(record) if one["config"] is not None]:
            words += f" Of those that can be written, {other[0]} comes first: --method {other[0]} writes it here."
        return {"path": None, "words": words + gone}
    if not where.exists():
        stretch.write(method, where)
    try:
        found = stretch.verify(method, where, losses)
    except Exception:
        shutil.rmtree(where)
        raise
    return {"path": str(where), "method": name, "fingerprint": fingerprint, **found, "words": found["words"] + gone}


def fingerprint_in(record: Path) -> str | None:
    """Of the checkpoint that lies beside a record; None where no record says."""
    try:
        found = read_json(record, within=record.parent)
    except CannotRead:
        return None
    return found["written"].get("fingerprint")
