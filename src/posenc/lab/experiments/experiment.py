"""Experiments: the settings of one training run, as records and checkpoints store them."""

import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from posenc import checks
from posenc.catalogue import Node, options_of, parse
from posenc.coordinate_maps import map_of
from posenc.foreign import CannotRead, code, form_of, matches, quote, suggestion
from posenc.lab.tasks import Task, task_of
from posenc.model.config import Config
from posenc.schedules import schedule_of
from posenc.specs.syntax import code_files

LARGEST_SIZES = {
    "train_length": 1_000_000, "layers": 1_000, "dim": 65_536, "heads": 65_536, "steps": 1_000_000_000,
    "batch": 1_000_000, "evaluate_every": 1_000_000_000,
}  # fmt: skip
"""The largest sizes of an experiment: far beyond this lab, and small enough for every check to finish."""

MOST_SEED = 1_000_000_000_000

MOST_LENGTHS = 100
"""The largest number of test lengths: a table has a column for each."""

RATE_SCHEDULES = ("cosine", "original")
DTYPES = ("float32", "bfloat16")
CONFIG_FIELDS = {field.name for field in fields(Config)}
"""The fields that an experiment shares with posenc.Config."""


@dataclass(frozen=True)
class Experiment:
    """The settings of one training run.

    spec           the encoding; a tuple is cycled over the layers
    task, text     the task, as a spec; for a task on text also a file or folder (None: the Python standard library)
    seed           of the weights and the data
    train_length   the longest trained length (the task's items; text: tokens of a window)
    test_lengths   the longer lengths that are tested
    layers, dim, heads, kv_heads, head_dim, window, dropout   the shape of the model, as in posenc.Config
    norm, norm_first, branch_norm, parallel_residual, residual_scale, embedding_norm, qk_norm, softcap, output_softcap,
    init, feed_forward, intermediate_size, bias   the blocks and their initialisation, as there
    model          path/to/mine.py:Mine, the user's own module in place of the task's decoder, encoder or both
    steps, batch   the largest number of steps, and the sequences of each
    tokens, seconds   other ends of the training: tokens read, CPU seconds; whichever comes first
    rate           the highest learning rate; warm-up over `warmup` steps, then a cosine down to `final_rate` of it
    schedule       "cosine", or "original": the rate of the original transformer, times `rate`
    matrix_rate    the highest rate of Muon on the matrices of the blocks (without weight decay); 0 leaves them to AdamW
    curriculum     the share of the training over which lengths grow from 2 to the trained length
    cool_down      after two learned points of the curve in a row, the rate falls over this many steps and the run ends;
                   0 trains to the end. Only for tasks with exact answers
    weight_decay   of AdamW
    evaluate_every   steps between two points of the learning curve
    map            a coordinate map of the positions in training, as in specs; None keeps the positions
    test_map       the map of held-out positions; None: the evaluation map of `map`
    stretch        a frequency schedule, such as yarn(factor=2), of rotary (RoPE) at lengths beyond the trained one only
    device, dtype  of the model, and of matrix products (weights stay float32)
    compile        whether training steps use torch.compile
    clip           the largest gradient norm; 0 clips nothing
    own_files      path and SHA-256 of each of the user's files that the specs name; None computes them now

    Raises ValueError for an unknown task, sizes that do not divide, numbers out of range, and a stretch for encodings
    without frequencies.
    """

    spec: str | tuple[str, ...]
    task: str
    text: str | None = None
    seed: int = 0
    train_length: int = 10
    test_lengths: tuple[int, ...] = (12, 15, 20)
    layers: int = 2
    dim: int = 64
    heads: int = 4
    steps: int = 1000
    batch: int = 16
    rate: float = 5e-3
    matrix_rate: float = 0.0
    warmup: int = 50
    final_rate: float = 0.05
    curriculum: float = 0.0
    cool_down: int = 0
    weight_decay: float = 0.01
    evaluate_every: int = 50
    map: str | None = None
    norm: str = "layer"
    norm_first: bool = True
    branch_norm: bool = False
    parallel_residual: bool = False
    residual_scale: float = 1.0
    embedding_norm: bool = False
    qk_norm: bool | str = False
    softcap: float | None = None
    output_softcap: float | None = None
    init: str = "torch"
    feed_forward: str = "gelu"
    intermediate_size: int | None = None
    bias: bool | tuple[str, ...] = True
    kv_heads: int | None = None
    head_dim: int | None = None
    window: int | tuple[int | None, ...] | None = None
    dropout: float = 0.0
    model: str | None = None
    tokens: int | None = None
    seconds: float | None = None
    schedule: str = "cosine"
    test_map: str | None = None
    stretch: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False
    clip: float = 1.0
    own_files: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        nodes = [parse(spec) for spec in self.specs]
        for map_spec in (self.map, self.test_map):
            if map_spec is not None:
                map_of(map_spec)
        if self.own_files is None:
            own_files = tuple((path, code.sha256(path)) for path in code_files(*self.names()))
            object.__setattr__(self, "own_files", own_files)
        self.check_task()
        checks.sizes(**{name: getattr(self, name) for name in LARGEST_SIZES})
        for name, limit in LARGEST_SIZES.items():
            if getattr(self, name) > limit:
                raise ValueError(f"{name} must be at most {limit:,}, got {quote(getattr(self, name), 40)}")
        check_seed(self.seed)
        self.config(1)
        too_short = [n for n in self.test_lengths if n <= self.train_length]
        if too_short:
            raise ValueError(f"test lengths must exceed the trained length {self.train_length}, got {too_short}")
        if too_long := [n for n in self.test_lengths if n > LARGEST_SIZES["train_length"]]:
            raise ValueError(f"test lengths go up to {LARGEST_SIZES['train_length']:,}, got {quote(too_long, 40)}")
        if len(self.test_lengths) > MOST_LENGTHS:
            raise ValueError(f"there may be at most {MOST_LENGTHS} test lengths, got {len(self.test_lengths)}")
        for name in ("rate", "tokens", "seconds"):
            checks.above(name, getattr(self, name), 0)
        for name in ("matrix_rate", "clip"):
            checks.at_least(name, getattr(self, name), 0)
        checks.one_of("schedule", self.schedule, RATE_SCHEDULES)
        checks.one_of("dtype", self.dtype, DTYPES)
        self.check_stretch(nodes)

    def check_task(self) -> None:
        """Raise ValueError for an unknown task, and for a text where the task reads none."""
        task = task_of(self.task)
        if self.text is None or getattr(task, "path", "") is None:
            return
        why = f"it has {quote(task.path)} already" if hasattr(task, "path") else "it reads none"
        raise ValueError(f"a text is for a task on text, without a path of its own; {self.task} cannot take one: {why}")

    def check_stretch(self, nodes: Collection[Node]) -> None:
        """Raise ValueError for a stretch that is no schedule, or that no encoding takes."""
        if self.stretch is None:
            return
        schedule_of(self.stretch)
        if not any(takes_schedule(node) for node in nodes):
            raise ValueError(
                f"stretch={self.stretch} is for encodings with frequencies whose spec leaves their schedule open, such "
                f"as rotary; got {' / '.join(self.specs)}"
            )

    @property
    def specs(self) -> tuple[str, ...]:
        """The specs, which are cycled over the layers."""
        return (self.spec,) if isinstance(self.spec, str) else self.spec

    def names(self) -> list[str]:
        """The settings that may name a file of the user's."""
        return [*self.specs, *filter(None, [self.task, self.map, self.test_map, self.stretch, self.model])]

    def config(self, max_len: int) -> Config:
        """The model's Config for a trained length in tokens. Raises ValueError for sizes that do not fit."""
        sizes = {f.name: getattr(self, f.name) for f in fields(self) if f.name in CONFIG_FIELDS}
        return Config(**sizes, max_len=max_len)

    def build_task(self) -> Task:
        """Build the task, on the experiment's text."""
        task = task_of(self.task)
        return task if self.text is None else replace(task, path=self.text)

    def changed_files(self) -> list[str]:
        """A sentence for each of the user's files that has changed since the experiment was made."""
        return [
            f"{path} is not what it was for this run (SHA-256 {digest[:16]} then, {now[:16]} now)"
            for path, digest in self.own_files or ()
            if (now := code.sha256(path)) != digest
        ]

    def to_dict(self) -> dict[str, Any]:
        """The settings for JSON, without newer settings at their defaults, and without files where there are none.

        A record's key depends on these settings, and older records lack the newer ones.
        """
        data = asdict(self)
        files = dict(data.pop("own_files"))
        for setting in fields(self)[[f.name for f in fields(self)].index("map") : -1]:
            if data[setting.name] == setting.default:
                del data[setting.name]
        return data | ({"own_files": files} if files else {})

    @classmethod
    def from_dict(
        cls, data: dict[str, Any], trusted_files: Collection[str | Path] = (), file: Path | None = None
    ) -> "Experiment":
        """The experiment of data from a file.

        trusted_files  the user's files that may be imported; no other is
        file           the source of the data, for errors

        Raises ValueError for unknown or missing names, and CannotRead, with the hashes, for a file that is not trusted.
        """
        data, names = rename_old_settings(data), [f.name for f in fields(cls)]
        for name in data:
            if name not in names:
                raise ValueError(
                    f"an experiment has no {quote(name)}; it has: {', '.join(names)}{suggestion(name, names)}"
                )
        json_data = {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}
        matches(json_data, EXPERIMENT)
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        hashes = plain.pop("own_files", {})
        # The file names are read before an Experiment is built, because building imports the files.
        bare = object.__new__(cls)
        for setting in fields(cls):
            object.__setattr__(bare, setting.name, plain.get(setting.name, setting.default))
        for path in (own_paths := code_files(*bare.names())):
            if not code.is_trusted(path, trusted_files):
                raise untrusted_file_error(path, hashes.get(path), file)
        return cls(**plain, own_files=tuple((path, hashes.get(path) or code.sha256(path)) for path in own_paths))


EXPERIMENT = form_of(Experiment) | {"own_files?": {"*": str}, "hidden?": (int, None)}  # the latter of 0.2
"""The schema of an experiment in a file."""


def rename_old_settings(data: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run under their present names; version 0.2 had other ones."""
    data = {("intermediate_size" if name == "hidden" else name): value for name, value in data.items()}
    if data.get("norm") in ("pre", "post"):
        data["norm_first"] = data.pop("norm") == "pre"
    return data


def takes_schedule(node: Node) -> bool:
    """Whether a spec has an encoding with frequencies and no schedule yet."""
    if node.name not in ("+", "on") and "schedule" in options_of(node.name) and "schedule" not in dict(node.options):
        return True
    return any(takes_schedule(part) for part in node.parts)


def untrusted_file_error(path: str, old_hash: str | None, file: Path | None) -> CannotRead:
    """The error for a file whose code the data needs, and which the user has not trusted."""
    try:
        now: str | None = code.sha256(path)
    except CannotRead:
        now = None
    hashes = [f"SHA-256 {old_hash[:16]} in the run" if old_hash else "", f"SHA-256 {now[:16]} here" if now else "gone"]
    folder = shlex.quote(str(file.parent)) if file else "FOLDER"
    return CannotRead(
        f"it asks for code from the file {quote(path)} ({', '.join(filter(None, hashes))}), and none is run that you "
        f"have not named yourself",
        file=file,
        remedy=f"read the file, and if you trust it: posenc generate {folder} --trust {shlex.quote(path)}",
    )


def check_seed(seed: int) -> None:
    """Raise ValueError for a seed below 0, or above the largest that torch surely takes."""
    if not 0 <= seed <= MOST_SEED:
        raise ValueError(f"seed must lie between 0 and {MOST_SEED:,}, got {quote(seed, 40)}")
