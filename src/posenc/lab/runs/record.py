"""Records of finished runs, one JSON line each. Reports and plots read nothing else."""

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
from posenc.foreign import CannotRead, matches, quote
from posenc.lab import store
from posenc.lab.evaluation.ablate import ablate
from posenc.lab.evaluation.evaluate import by_depth, by_length, context_gain
from posenc.lab.evaluation.order import order_tests
from posenc.lab.experiments.experiment import EXPERIMENT, LARGEST_SIZES, MOST_LENGTHS, Experiment
from posenc.lab.experiments.models import attention_weights, encoding_parameters, label_of, stacks_of, without_position
from posenc.lab.experiments.places import eval_places
from posenc.lab.runs.train import LEARNED_BITS, LEARNED_SCORE, Run, learned_at
from posenc.lab.tasks import Batch
from posenc.tokens.positions import Positions

SCHEMA = 2

PICTURE_KEYS = ("attention", "pictures")
"""The keys that summaries of many records leave out: pictures of one run, nine tenths of its bytes."""

MOST_WITH_PICTURES = 1_000
"""The largest number of records that are summarised with their pictures."""

# Positions, and rows of the order test: figures of so many take reasonable time, and the lab writes far fewer.
MOST_ROWS = 1_000
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
    "depths?": [{"length": int, "depth": float, "*": NUMBERS}, MOST_ROWS],
    "ablation": {"*": NUMBERS},
    "order": [{"attention": str, "layers": int, "position": bool, "*": NUMBERS}, MOST_ROWS],
    "attention": ({"tokens": [str, MOST_ROWS], "with": [[[[float]]]], "without": [[[[float]]]]}, None),
    "pictures": {
        "added": ([[float], MOST_ROWS], None),
        "wavelengths": ([float, LARGEST_SIZES["dim"]], None),
        "bias": ({"distance": [int, MOST_ROWS], "heads": [[float, MOST_ROWS]]}, None),
        "rotation": ([float, MOST_ROWS], None),
    },
}
"""The schema of a record."""


class OtherSchema(CannotRead):
    """A record with the schema of another version."""


def key_of(experiment: Experiment) -> str:
    """The key of an experiment's record: readable, and different for different settings.

    It also differs when the text, or the user's own encoding file, changes its content under the same name.
    """
    settings = json.dumps(experiment.to_dict() | dict(experiment.build_task().contents()), sort_keys=True)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
    spec = experiment.spec if isinstance(experiment.spec, str) else "-".join(experiment.spec)
    task, readable = (re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:40] for name in (experiment.task, spec))
    return f"{task}-{readable}-seed{experiment.seed}-{digest}"


def run_record(run: Run, began: float) -> dict[str, Any]:
    """The record of a finished run that began at time.monotonic() = `began`."""
    measuring_from = time.process_time()
    experiment, model = run.experiment, run.model
    lengths = by_length(run)
    if run.task.in_bits:
        gain = context_gain(model, run.task, experiment.train_length, eval_places(experiment))
        in_distribution = {"bits_per_byte": lengths[0]["bits_per_byte"], "context_gain": gain}
        learned = uses_context(**in_distribution, bigram_bits=run.task.text.bigram_bits)
    else:
        in_distribution = {name: lengths[0][name] for name in ("exact_match", "token_accuracy")}
        learned = in_distribution["exact_match"] >= LEARNED_SCORE
    learned_point = learned_at(run)
    encodings = [encoding for stack in stacks_of(model) for encoding in stack.encoding_of]
    record = {
        "schema": SCHEMA,
        "key": key_of(experiment),
        "experiment": experiment.to_dict(),
        "encoding": " / ".join(dict.fromkeys(str(encoding) for encoding in encodings)) or " / ".join(experiment.specs),
        "label": label_of(experiment, model),
        "parameters": {"model": parameters_of(model), "encoding": encoding_parameters(model)},
        "versions": store.versions(),
        "text": run.task.text.record_entry() if run.task.in_bits else None,
        "trained_tokens": run.task.tokens(experiment.train_length),
        "steps": run.step,
        "train_cpu_s": run.cpu_s,
        "steps_to_learned": learned_point["step"] if learned_point else None,
        "cpu_s_to_learned": learned_point["cpu_s"] if learned_point else None,
        "learned": learned,
        "curve": run.curve,
        "in_distribution": in_distribution,
        "lengths": lengths,
        "depths": by_depth(run),
        "ablation": ablate(run),
        "order": order_tests(experiment.spec) if run.task.axes == 1 else [],
        "attention": attention_record(run),
        "pictures": pictures(run),
    }
    cpu_s = run.cpu_s + time.process_time() - measuring_from
    return record | {"cpu_s": cpu_s, "wall_s": time.monotonic() - began}


def uses_context(bits_per_byte: float, context_gain: float, bigram_bits: float) -> bool:
    """Whether a language model beats a bigram table, and itself with one byte of context, each by LEARNED_BITS."""
    return bigram_bits - bits_per_byte >= LEARNED_BITS and context_gain >= LEARNED_BITS


@torch.inference_mode()
def attention_record(run: Run) -> dict[str, Any] | None:
    """The attention weights of one held-out sequence of at most about 32 tokens, with and without position."""
    task, place = run.task, eval_places(run.experiment)
    batch = short_batch(run).to(run.experiment.device)
    intact = attention_weights(run.model.eval(), batch, place)
    bare = attention_weights(without_position(run.model, run.experiment, task), batch, place)
    if intact is None or bare is None:
        return None
    words = ["^" if token == batch.ids[0, 0] else task.decode([token]) for token in batch.ids[0].tolist()]
    return {"tokens": words, "with": [to_list(w[0]) for w in intact], "without": [to_list(w[0]) for w in bare]}


def short_batch(run: Run) -> Batch:
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
    # The tables are small, and figures are drawn from CPU tensors.
    stack = stacks[0] if run.experiment.device == "cpu" else copy.deepcopy(stacks[0]).cpu()
    return encoding_numbers(stack.encoding_of[0], run.experiment.dim, tokens, stack.input_encodings)


@torch.inference_mode()
def encoding_numbers(
    encoding: Encoding, dim: int, tokens: int, inputs: tuple[Encoding, ...] | None = None
) -> dict[str, Any]:
    """An encoding's vectors at the first `tokens` positions, its wavelengths, and its bias and rotation by distance."""
    parts = parts_of(encoding)
    inputs = tuple(part for part in parts if "embed" in part.doors) if inputs is None else inputs
    table = None
    if inputs:
        x = torch.zeros(1, tokens, dim)
        for part in inputs:
            x = part.embed(x, Positions.count(tokens))
        table = to_list(x[0])
    waves = next((part.wavelengths for part in [*inputs, *parts] if part.wavelengths is not None), None)
    turning = next((part for part in parts if "turn" in part.doors and part.wavelengths is not None), None)
    distances = torch.arange(2 * tokens)
    heads = encoding.by_distance(distances) if "by_distance" in encoding.doors else None
    rotation = None
    if turning is not None:
        assert turning.wavelengths is not None
        rotation = to_list((distances[:, None] * (2 * torch.pi / turning.wavelengths)).cos().mean(1))
    return {
        "added": table,
        "wavelengths": None if waves is None else waves.tolist(),
        "bias": None if heads is None else {"distance": distances.tolist(), "heads": to_list(heads)},
        "rotation": rotation,
    }


def to_list(x: torch.Tensor) -> list:
    """The values of a tensor, rounded to four decimals."""
    return (x.double() * 10_000).round().div(10_000).tolist()


def write(record: dict[str, Any], folder: Path) -> Path:
    """Write one record as one line into its own file, atomically. Raises CannotWrite."""
    return store.write(folder / f"{record['key']}.json", store.dump_json(record))


def read(path: Path) -> dict[str, Any]:
    """Read one record and check its checksum and schema.

    Raises CannotRead, which names the file, where it is damaged; OtherSchema where another version wrote it.
    """
    record = store.read_checked_json(path)
    schema = record.get("schema")
    if type(schema) is int and schema != SCHEMA:
        raise OtherSchema(f"it has schema {schema}, this version reads {SCHEMA}", file=path)
    matches(record, FORM, file=path)
    if record["key"] != path.stem:
        raise CannotRead(f"it holds the record of {quote(record['key'])}", file=path)
    return record


def made_by(record: dict[str, Any]) -> str:
    """The versions that made a record, as text."""
    return store.version_words(record.get("versions") or {})


def version_differences(records: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences on the versions that made the records, where they differ."""
    makers: dict[str, list[str]] = {}
    for record in records:
        run = record.get("experiment") or {}
        makers.setdefault(made_by(record), []).append(f"{run.get('spec')} on {run.get('task')}, seed {run.get('seed')}")
    if len(makers) < 2:
        return []
    now = made_by({"versions": store.versions()})
    usual_maker = now if now in makers else max(makers, key=lambda maker: len(makers[maker]))
    exceptions = [f"{maker} made {'; '.join(runs)}" for maker, runs in makers.items() if maker != usual_maker]
    return [
        "These results were not all made by the same versions, and may differ for that reason alone. "
        f"{'. '.join(exceptions)}. All others were made by {usual_maker}."
    ]


class Failure(NamedTuple):
    """A run without a record: the reason, and its encoding and task where they are known."""

    words: str
    spec: str = ""
    task: str = ""


def write_failure(folder: Path, key: str, failure: Failure) -> None:
    """Write why a run has no record; the file stays until it has one."""
    facts = {"failed": failure.words, "spec": failure.spec, "task": failure.task}
    store.write(folder / f"{key}.failed", store.dump_json(facts))


def forget_failure(folder: Path, key: str) -> None:
    (folder / f"{key}.failed").unlink(missing_ok=True)


def failures(folder: Path) -> dict[str, Failure]:
    """The failures of a folder by key, for runs without a record."""
    failures_by_key = {}
    for path in sorted((folder / "records").glob("*.failed")):
        # A process that was killed in between has written the record and not removed the failure.
        if path.with_suffix(".json").exists():
            continue
        try:
            facts = store.read_checked_json(path)
            matches(facts, {"failed": str, "spec?": str, "task?": str}, file=path)
            failures_by_key[path.stem] = Failure(facts.pop("failed"), **facts)
        except CannotRead as error:
            failures_by_key[path.stem] = Failure(str(error))
    return failures_by_key


def record_keys(folder: Path) -> list[str]:
    """The keys of all records of a folder. Raises ValueError when there are none."""
    if keys := sorted(path.stem for path in (folder / "records").glob("*.json")):
        return keys
    raise ValueError(f"no records in '{folder}'; make some with posenc compare --out {folder}")


def read_all(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder. Raises ValueError when there are none, or one is damaged."""
    return [read_key(folder, key) for key in record_keys(folder)]


def summary_records(folder: Path, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The records of a folder, or of some keys; without pictures where they are more than 1,000.

    Raises ValueError when there are none, CannotRead when one is damaged.
    """
    keys = record_keys(folder) if keys is None else keys
    left_out = PICTURE_KEYS if len(keys) > MOST_WITH_PICTURES else ()
    return [{name: x for name, x in read_key(folder, key).items() if name not in left_out} for key in keys]


def read_key(folder: Path, key: str) -> dict[str, Any]:
    """The record of a key in a folder. Raises CannotRead, with a remedy, when it is damaged."""
    try:
        return read(record_path(folder, key))
    except CannotRead as error:
        raise CannotRead(
            f"{error}; move it out of the folder, or give the posenc compare again that made it: it sets the file "
            f"aside and makes the run again"
        ) from None


def record_path(folder: Path, key: str) -> Path:
    """The path of a key's record in a folder."""
    return folder / "records" / f"{key}.json"
