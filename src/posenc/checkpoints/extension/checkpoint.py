"""The extended checkpoint: written, loaded again, and held to what was measured."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.checkpoints.extension.choice import ranked
from posenc.checkpoints.extension.stretch import FirstLosses, Stretch

CHECKPOINT = "checkpoint"
"""The folder, in the folder of a run, that holds the extended checkpoint."""

RECALIBRATED = "recalibrated"
"""And the one with a folder for each method that is tuned before it is measured."""


def written(stretch: Stretch, record: Mapping[str, Any], where: Path, losses: FirstLosses) -> dict[str, Any]:
    """Write the checkpoint of the method that was chosen and hold it to what was measured; {"path", "words", ...}.

    What is not so is taken away again, and the error goes on.
    """
    name = record["winner"]
    method = next(method for method in stretch.methods if method.name == name)
    if name == "none":
        return {"path": None, "words": "Nothing was written: the model stays as it is."}
    if method.config is None:
        other = [one["name"] for one in ranked(record) if one["config"] is not None]
        hint = f" Of those that can be written, {other[0]} comes first: --method {other[0]} writes it." if other else ""
        return {"path": None, "words": f"Nothing was written for {name}: {method.why_not}.{hint}"}
    if not where.exists():
        stretch.write(method, where)
    try:
        found = stretch.verify(method, where, losses)
    except Exception:
        shutil.rmtree(where)
        raise
    return {"path": str(where), "method": name, **found}
