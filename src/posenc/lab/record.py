"""Records: what a run leaves behind, one JSON line each. Reports and plots read nothing else."""

import hashlib
import json
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

import torch

import posenc
from posenc.catalogue import A_PATH, parameters_of
from posenc.encoding import Encoding, parts_of
from posenc.lab import data
from posenc.lab.ablate import ablate, without_position
from posenc.lab.evaluate import by_length
from posenc.lab.order import order_tests
from posenc.lab.recipes import Experiment
from posenc.lab.train import LEARNED, Run, learned_at
from posenc.positions import Positions

SCHEMA = 1


def key_of(experiment: Experiment) -> str:
    """The name of an experiment's record: readable, and different for different settings.

    It also differs when the text, or the file of an encoding of the user's own, has other content under the same name.
    """
    settings = json.dumps(experiment.to_dict() | contents_of(experiment), sort_keys=True)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
    spec = experiment.spec if isinstance(experiment.spec, str) else "-".join(experiment.spec)
    readable = re.sub(r"[^A-Za-z0-9]+", "-", spec).strip("-")[:40]
    return f"{experiment.task}-{readable}-seed{experiment.seed}-{digest}"


def contents_of(experiment: Experiment) -> dict[str, Any]:
    """Hashes of what an experiment names but does not hold: its text, and files with encodings."""
    spec = experiment.spec if isinstance(experiment.spec, str) else " ".join(experiment.spec)
    files = [Path(path) for path, _ in A_PATH.findall(spec)]
    found: dict[str, Any] = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    if experiment.task == "text":
        found["sha256 of the text"] = data.load(experiment.text).sha256
    return found


def of(run: Run, began: float) -> dict[str, Any]:
    """The record of a finished run that began at time.monotonic() = `began`."""
    measuring_from = time.process_time()
    experiment, model = run.experiment, run.model
    lengths = by_length(run)
    if experiment.task == "text":
        in_distribution = {"bits_per_byte": lengths[0]["bits_per_byte"]}
        learned = converged(run, in_distribution["bits_per_byte"])
    else:
        in_distribution = {name: lengths[0][name] for name in ("exact_match", "token_accuracy")}
        learned = in_distribution["exact_match"] >= LEARNED
    reached = learned_at(run)
    used = model.stack.encoding_of
    record = {
        "schema": SCHEMA,
        "key": key_of(experiment),
        "experiment": experiment.to_dict(),
        "encoding": " / ".join(dict.fromkeys(str(encoding) for encoding in used)),
        "parameters": {"model": parameters_of(model), "encoding": parameters_of(model.stack.encodings)},
        "versions": versions(),
        "text": run.task.text.facts() if experiment.task == "text" else None,
        "trained_tokens": run.task.tokens(experiment.train_length),
        "steps": run.step,
        "train_cpu_s": run.cpu_s,
        "steps_to_learned": reached["step"] if reached else None,
        "cpu_s_to_learned": reached["cpu_s"] if reached else None,
        "learned": learned,
        "curve": run.curve,
        "in_distribution": in_distribution,
        "lengths": lengths,
        "ablation": ablate(run),
        "order": order_tests(experiment.spec if isinstance(experiment.spec, str) else tuple(experiment.spec)),
        "attention": attention(run),
        "pictures": pictures(run),
    }
    cpu_s = run.cpu_s + time.process_time() - measuring_from
    return record | {"cpu_s": cpu_s, "wall_s": time.monotonic() - began}


def converged(run: Run, bits: float) -> bool:
    """Whether a language model has learned to use its context, and has settled.

    It beats a model that sees only the byte before, and over the last fifth of its steps the held-out loss fell by
    less than 5 %.
    """
    earlier = [point["score"] for point in run.curve if point["step"] <= 0.8 * run.step]
    settled = bool(earlier) and run.curve[-1]["score"] > 0.95 * earlier[-1]
    return settled and bits < run.task.text.bigram_bits


def versions() -> dict[str, Any]:
    return {
        "posenc": posenc.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "threads": torch.get_num_threads(),
    }


@torch.inference_mode()
def attention(run: Run) -> dict[str, Any]:
    """The attention weights of one held-out sequence of at most 32 tokens, with position and with it removed."""
    model, task = run.model.eval(), run.task
    if run.experiment.task == "text":
        ids = task.windows(task.text.test, torch.tensor([0]), min(run.experiment.train_length, 32)).ids[:, :-1]
    else:
        length = run.experiment.train_length
        while length > 1 and task.tokens(length) > 32:
            length -= 1
        ids = task.batch(length, 1, torch.Generator().manual_seed(0)).ids[:, :-1]
    _, intact = model(ids, weights=True)
    with without_position(model.stack):
        _, removed = model(ids, weights=True)
    words = ["^" if token == ids[0, 0] else task.decode([token]) for token in ids[0].tolist()]
    return {"tokens": words, "with": [rounded(w[0]) for w in intact], "without": [rounded(w[0]) for w in removed]}


@torch.inference_mode()
def pictures(run: Run) -> dict[str, Any]:
    """The numbers behind the pictures of the encoding, after training."""
    tokens = min(run.task.tokens(run.experiment.train_length), 64)
    first = run.model.stack.encoding_of[0]
    return describe(first, run.experiment.dim, tokens, run.model.stack.added())


@torch.inference_mode()
def describe(encoding: Encoding, dim: int, tokens: int, added: tuple[Encoding, ...] | None = None) -> dict[str, Any]:
    """What an encoding adds at the first `tokens` positions, its wavelengths, its bias and its rotation by distance."""
    parts = parts_of(encoding)
    added = tuple(part for part in parts if "embed" in part.doors) if added is None else added
    table = None
    if added:
        x = torch.zeros(1, tokens, dim)
        for part in added:
            x = part.embed(x, Positions.count(tokens))
        table = rounded(x[0])
    waves = next((part.wavelengths for part in [*added, *parts] if part.wavelengths is not None), None)
    turning = next((part for part in parts if "query" in part.doors and part.wavelengths is not None), None)
    distances = torch.arange(2 * tokens)
    heads = encoding.by_distance(distances) if "by_distance" in encoding.doors else None
    rotation = None
    if turning is not None:
        assert turning.wavelengths is not None
        rotation = rounded((distances[:, None] * (2 * torch.pi / turning.wavelengths)).cos().mean(1))
    return {
        "added": table,
        "wavelengths": None if waves is None else waves.tolist(),
        "bias": None if heads is None else {"distance": distances.tolist(), "heads": rounded(heads)},
        "rotation": rotation,
    }


def rounded(x: torch.Tensor) -> list:
    return (x.double() * 10_000).round().div(10_000).tolist()


def write(record: dict[str, Any], folder: Path) -> Path:
    """Write one record as one line into its own file, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['key']}.json"
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(record) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path


def read(path: Path) -> dict[str, Any]:
    """One record. Raises ValueError, naming the file, when it is damaged or of another schema."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        schema, key = record["schema"], record["key"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(
            f"{path} is not a whole record ({type(error).__name__}); delete it and run the same command again"
        ) from None
    if schema != SCHEMA:
        raise ValueError(
            f"{path} has schema {schema}, this version reads {SCHEMA}; run the comparison again into another folder"
        )
    if key != path.stem:
        raise ValueError(f"{path} holds the record of '{key}'; rename it back or delete it")
    return record


def read_all(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder. Raises ValueError when there is none, or one is damaged."""
    paths = sorted((folder / "records").glob("*.json"))
    if not paths:
        raise ValueError(f"no records in '{folder}'; make some with posenc compare --out {folder}")
    return [read(path) for path in paths]
