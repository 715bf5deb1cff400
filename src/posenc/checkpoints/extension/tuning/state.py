"""How far a fine-tune has come, in a folder, from which it goes on as if it had never stopped."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from posenc.foreign import CannotRead, matches, opened
from posenc.lab import safetensors_file, store
from posenc.lab.runs.checkpoint import hashed

TENSORS, FACTS = "tuning.safetensors", "tuning.json"
BLOCK = 1 << 20


def save(
    folder: Path, weights: Sequence[Tensor], optimiser: torch.optim.Optimizer, losses: Sequence[float], seconds: float
) -> None:
    """Keep the trained weights, what the optimiser knows of them, and the losses so far; it appears whole.

    Raises CannotWrite; what was kept before is then still there.
    """
    tensors = {f"{place}.weight": weight for place, weight in enumerate(weights)}
    for place, known in optimiser.state_dict()["state"].items():
        tensors |= {f"{place}.{name}": value for name, value in known.items()}
    digest = hashlib.sha256()
    pieces = hashed(safetensors_file.pieces(tensors, lambda tensor: tensor), digest)
    # Written last, when the checksum of the tensors is known.
    facts = (
        store.sealed({"losses": list(losses), "seconds": seconds, "tensors": digest.hexdigest()}) for _ in range(1)
    )
    store.add_generation(folder, len(losses), {TENSORS: pieces, FACTS: facts}, keep=1)


def load(folder: Path, weights: Sequence[Tensor], optimiser: torch.optim.Optimizer) -> tuple[list[float], float]:
    """Put back what was kept; the losses so far, and the seconds that they took. Nothing where nothing was kept.

    Raises CannotRead for what is damaged, and says how to begin again.
    """
    if not (kept := store.generations(folder)):
        return [], 0.0
    step = folder / kept[-1]
    try:
        facts, _ = store.read_json(step / FACTS)
        matches(facts, {"losses": [float], "seconds": float, "tensors": str}, file=step / FACTS)
        with opened(step / TENSORS, within=folder) as data:
            store.expect_checksum(iter(partial(data.read, BLOCK), b""), facts["tensors"], step / TENSORS)
        stored, _ = safetensors_file.read_header(step / TENSORS, within=folder)
    except CannotRead as error:
        remedy = f"delete '{folder}', and the same command tunes from the first step"
        raise CannotRead(error.wrong, file=error.file, field=error.field, remedy=remedy) from None
    with torch.no_grad():
        for name, entry in stored.items():
            place, _, what = name.partition(".")
            weight, value = weights[int(place)], safetensors_file.read_bytes(entry)
            if what == "weight":
                weight.copy_(value)
            else:
                # Counts of steps stay on the CPU, as the optimiser makes them.
                optimiser.state[weight][what] = value.to(weight.device) if value.dim() else value
    return facts["losses"], facts["seconds"]
