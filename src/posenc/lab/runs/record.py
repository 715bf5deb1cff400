"""Records: what a run leaves behind, one JSON line each. Reports and plots read nothing else."""

import copy
import hashlib
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from posenc.catalogue import parameters_of
from posenc.encoding.base import Encoding, parts_of
from posenc.foreign import CannotRead, matches, quoted
from posenc.lab import store
from posenc.lab.evaluation.ablate import ablate
from posenc.lab.evaluation.evaluate import by_depth, by_length, context_gain
from posenc.lab.evaluation.order import order_tests
from posenc.lab.experiments.experiment import EXPERIMENT, MOST_LENGTHS, Experiment
from posenc.lab.experiments.experiment import MOST as MOST_OF
from posenc.lab.experiments.models import label_of, learned_by_encodings, stacks_of, weights_of, without_position
from posenc.lab.experiments.places import at_evaluation
from posenc.lab.runs.train import LEARNED, LEARNED_BITS, Run, learned_at
from posenc.lab.tasks import Batch
from posenc.tokens.positions import Positions

SCHEMA = 2

LEFT_OUT = ("attention", "pictures")
"""What summaries of many records do without: the pictures of one run, nine tenths of its bytes."""

MOST_WHOLE = 1_000
"""More records than these are summarised without the pictures of each run."""

# Positions, and rows of the order test: so many are drawn in reasonable time, and the lab writes far fewer.
MOST = 1_000
NUMBERS = (float, None)
FORM: dict[str, Any] = {
    "schema": int,
    "key": str,
    "experiment": EXPERIMENT,
    "encoding": str,
    "label?": (str, None),
    "parameters": {"model": int, "encoding": int},
    "versions": {"posenc": str, "torch": str, "python": str, "platform": str, "processor?": str, "threads": int},
    "text": ({"name": str, "sha256": str, "*": Any}, None),
    "trained_tokens": int,
    "steps": int,
    "train_cpu_s": float,
    "cpu_s": float,
    "wall_s": float,
    "steps_to_learned": NUMBERS,
    "cpu_s_to_learned": NUMBERS,
    "learned": bool,
    "curve": [{"step": int, "loss": float, "score": float, "cpu_s": float}],
    "in_distribution": {"*": NUMBERS},
    # The trained length is among them.
    "lengths": [{"length": int, "factor": float, "*": NUMBERS}, MOST_LENGTHS + 1],
    "depths?": [{"length": int, "depth": float, "*": NUMBERS}, MOST],
    "ablation": {"*": NUMBERS},
    "order": [{"attention": str, "layers": int, "position": bool, "*": NUMBERS}, MOST],
    "attention": ({"tokens": [str, MOST], "with": [[[[float]]]], "without": [[[[float]]]]}, None),
    "pictures": {
        "added": ([[float], MOST], None),
        "wavelengths": ([float, MOST_OF["dim"]], None),
        "bias": ({"distance": [int, MOST], "heads": [[float, MOST]]}, None),
        "rotation": ([float, MOST], None),
    },
}
"""What a record holds."""


class OtherSchema(CannotRead):
    """A record of a version that this one does not know."""


def key_of(experiment: Experiment) -> str:
    """The name of an experiment's record: readable, and different for different settings.

    It also differs when the text, or the file of an encoding of the user's own, has other content under the same name.
    """
    settings = json.dumps(experiment.to_dict() | dict(experiment.made_task().contents()), sort_keys=True)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
    spec = experiment.spec if isinstance(experiment.spec, str) else "-".join(experiment.spec)
    task, readable = (re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:40] for name in (experiment.task, spec))
    return f"{task}-{readable}-seed{experiment.seed}-{digest}"


def of(run: Run, began: float) -> dict[str, Any]:
    """The record of a finished run that began at time.monotonic() = `began`."""
    measuring_from = time.process_time()
    experiment, model = run.experiment, run.model
    lengths = by_length(run)
    if run.task.in_bits:
        gain = context_gain(model, run.task, experiment.train_length, at_evaluation(experiment))
        in_distribution = {"bits_per_byte": lengths[0]["bits_per_byte"], "context_gain": gain}
        learned = uses_context(**in_distribution, bigram_bits=run.task.text.bigram_bits)
    else:
        in_distribution = {name: lengths[0][name] for name in ("exact_match", "token_accuracy")}
        learned = in_distribution["exact_match"] >= LEARNED
    reached = learned_at(run)
    used = [encoding for stack in stacks_of(model) for encoding in stack.encoding_of]
    record = {
        "schema": SCHEMA,
        "key": key_of(experiment),
        "experiment": experiment.to_dict(),
        "encoding": " / ".join(dict.fromkeys(str(encoding) for encoding in used)) or " / ".join(experiment.specs),
        "label": label_of(experiment, model),
        "parameters": {"model": parameters_of(model), "encoding": learned_by_encodings(model)},
        "versions": store.versions(),
        "text": run.task.text.facts() if run.task.in_bits else None,
        "trained_tokens": run.task.tokens(experiment.train_length),
        "steps": run.step,
        "train_cpu_s": run.cpu_s,
        "steps_to_learned": reached["step"] if reached else None,
        "cpu_s_to_learned": reached["cpu_s"] if reached else None,
        "learned": learned,
        "curve": run.curve,
        "in_distribution": in_distribution,
        "lengths": lengths,
        "depths": by_depth(run),
        "ablation": ablate(run),
        "order": order_tests(experiment.spec) if run.task.axes == 1 else [],
        "attention": attention(run),
        "pictures": pictures(run),
    }
    cpu_s = run.cpu_s + time.process_time() - measuring_from
    return record | {"cpu_s": cpu_s, "wall_s": time.monotonic() - began}


def uses_context(bits_per_byte: float, context_gain: float, bigram_bits: float) -> bool:
    """Whether a language model has learned: it is better by a margin than knowing the last byte can make it.

    Better than a table of byte pairs, and better than itself when it sees the last byte only.
    """
    return bigram_bits - bits_per_byte >= LEARNED_BITS and context_gain >= LEARNED_BITS


@torch.inference_mode()
def attention(run: Run) -> dict[str, Any] | None:
    """The attention weights of one held-out sequence of some 32 tokens, with position and with it removed."""
    task, place = run.task, at_evaluation(run.experiment)
    batch = one_of_some_32(run).to(run.experiment.device)
    intact = weights_of(run.model.eval(), batch, place)
    removed = weights_of(without_position(run.model, run.experiment, task), batch, place)
    if intact is None or removed is None:
        return None
    words = ["^" if token == batch.ids[0, 0] else task.decode([token]) for token in batch.ids[0].tolist()]
    return {"tokens": words, "with": [rounded(w[0]) for w in intact], "without": [rounded(w[0]) for w in removed]}


def one_of_some_32(run: Run) -> Batch:
    """A held-out sequence of the trained length, or of the longest that has no more than 32 tokens."""
    task, longest = run.task, run.experiment.train_length
    if task.in_bits:
        return task.windows(task.text.test, torch.tensor([0]), min(longest, 32))
    lengths = task.lengths(longest)
    length = max((n for n in lengths if task.tokens(n) <= 32), default=lengths[0])
    return task.batch(length, 1, torch.Generator().manual_seed(0))


@torch.inference_mode()
def pictures(run: Run) -> dict[str, Any]:
    """The numbers behind the pictures of the encoding, after training."""
    tokens = min(run.task.tokens(run.experiment.train_length), 64)
    if run.task.axes > 1 or not (stacks := stacks_of(run.model)):
        return dict.fromkeys(("added", "wavelengths", "bias", "rotation"))
    # Tables of a few positions; what a picture is made of lies on the CPU.
    stack = stacks[0] if run.experiment.device == "cpu" else copy.deepcopy(stacks[0]).cpu()
    return describe(stack.encoding_of[0], run.experiment.dim, tokens, stack.added)


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
    turning = next((part for part in parts if "turn" in part.doors and part.wavelengths is not None), None)
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
    """Write one record as one line into its own file, whole or not at all. Raises CannotWrite."""
    return store.write(folder / f"{record['key']}.json", store.sealed(record))


def read(path: Path) -> dict[str, Any]:
    """One record, held to its checksum and to its whole form.

    Raises CannotRead, naming the file, where it is damaged; OtherSchema where another version wrote it.
    """
    record = store.read_json(path)
    schema = record.get("schema")
    if type(schema) is int and schema != SCHEMA:
        raise OtherSchema(f"it has schema {schema}, this version reads {SCHEMA}", file=path)
    matches(record, FORM, file=path)
    if record["key"] != path.stem:
        raise CannotRead(f"it holds the record of {quoted(record['key'])}", file=path)
    return record


def made_by(record: dict[str, Any]) -> str:
    """In words, what a record was made by."""
    return store.made_by(record.get("versions") or {})


def told_apart(records: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences on what made the records, where that is not one and the same."""
    makers: dict[str, list[str]] = {}
    for record in records:
        run = record.get("experiment") or {}
        makers.setdefault(made_by(record), []).append(f"{run.get('spec')} on {run.get('task')}, seed {run.get('seed')}")
    if len(makers) < 2:
        return []
    now = made_by({"versions": store.versions()})
    most = now if now in makers else max(makers, key=lambda maker: len(makers[maker]))
    others = [f"{maker} made {'; '.join(runs)}" for maker, runs in makers.items() if maker != most]
    return [
        "These results were not all made by the same versions, and may differ for that reason alone. "
        f"{'. '.join(others)}. All others were made by {most}."
    ]


class Failure(NamedTuple):
    """Which run has no record and why, in words; its encoding and task by their names, where they were kept."""

    words: str
    spec: str = ""
    task: str = ""


def write_failure(folder: Path, key: str, failure: Failure) -> None:
    """Keep why a run has no record, until it has one."""
    facts = {"failed": failure.words, "spec": failure.spec, "task": failure.task}
    store.write(folder / f"{key}.failed", store.sealed(facts))


def forget_failure(folder: Path, key: str) -> None:
    (folder / f"{key}.failed").unlink(missing_ok=True)


def failures(folder: Path) -> dict[str, Failure]:
    """The failures of a folder, by the keys of their runs, of all that have no record."""
    found = {}
    for path in sorted((folder / "records").glob("*.failed")):
        # A process that was killed beside it has made the record and not forgotten the failure.
        if path.with_suffix(".json").exists():
            continue
        try:
            facts = store.read_json(path)
            matches(facts, {"failed": str, "spec?": str, "task?": str}, file=path)
            found[path.stem] = Failure(facts.pop("failed"), **facts)
        except CannotRead as error:
            found[path.stem] = Failure(str(error))
    return found


def keys_in(folder: Path) -> list[str]:
    """The keys of all records of a folder. Raises ValueError when there is none."""
    if keys := sorted(path.stem for path in (folder / "records").glob("*.json")):
        return keys
    raise ValueError(f"no records in '{folder}'; make some with posenc compare --out {folder}")


def read_all(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder. Raises ValueError when there is none, or one is damaged."""
    return [read_key(folder, key) for key in keys_in(folder)]


def for_summaries(folder: Path, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The records of a folder, or those of these keys; where they are more than 1,000, without the pictures of each.

    Raises ValueError when there is none, CannotRead when one is damaged.
    """
    keys = keys_in(folder) if keys is None else keys
    left_out = LEFT_OUT if len(keys) > MOST_WHOLE else ()
    return [{name: x for name, x in read_key(folder, key).items() if name not in left_out} for key in keys]


def read_key(folder: Path, key: str) -> dict[str, Any]:
    """The record of a key in a folder. Raises CannotRead, which says what to do, when it is damaged."""
    try:
        return read(file_of(folder, key))
    except CannotRead as error:
        raise CannotRead(
            f"{error}; move it out of the folder, or give the posenc compare again that made it: it sets the file "
            f"aside and makes the run again"
        ) from None


def file_of(folder: Path, key: str) -> Path:
    """Where the record of a key lies in a folder."""
    return folder / "records" / f"{key}.json"
