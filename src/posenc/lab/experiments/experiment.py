"""Experiments: one training run in plain numbers, as records and checkpoints hold it."""

import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from posenc import checks
from posenc.catalogue import Node, options_of, parse
from posenc.coordinate_maps import map_of
from posenc.foreign import CannotRead, code, form_of, matches, near, quoted
from posenc.lab.tasks import Task, task_of
from posenc.model.config import Config
from posenc.schedules import schedule_of
from posenc.specs.syntax import files_in

MOST = {
    "train_length": 1_000_000, "layers": 1_000, "dim": 65_536, "heads": 65_536, "steps": 1_000_000_000,
    "batch": 1_000_000, "evaluate_every": 1_000_000_000,
}  # fmt: skip
"""The largest numbers of an experiment: far beyond this laboratory, and small enough that each is refused or tried."""

MOST_SEED = 1_000_000_000_000

MOST_LENGTHS = 100
"""The lengths that one run is tested at: a table has a column for each."""

RATE_SCHEDULES = ("cosine", "original")
DTYPES = ("float32", "bfloat16")
OF_THE_MODEL = {one.name for one in fields(Config)}
"""The settings that are those of posenc.Config."""


@dataclass(frozen=True)
class Experiment:
    """One training run, in plain numbers.

    spec           the encoding; a tuple is cycled over the layers
    task, text     which task, as a spec; of a task on text also a file or folder (None: the Python standard library)
    seed           of the weights and the data
    train_length   the longest trained length (the task's items; text: tokens of a window)
    test_lengths   the longer lengths that are tested
    layers, dim, heads, kv_heads, head_dim, window, dropout   the shape of the model, as in posenc.Config
    norm, norm_first, branch_norm, parallel_residual, residual_scale, embedding_norm, qk_norm, softcap, output_softcap,
    init, feed_forward, intermediate_size, bias   what its blocks are made of and begin with, as there
    model          path/to/mine.py:Mine, a module of one's own in place of the task's decoder, encoder or both
    steps, batch   how long at most, and how many sequences a step
    tokens, seconds   other ends of the training: tokens that were read, CPU seconds; whichever comes first
    rate           the highest learning rate; warm-up over `warmup` steps, then a cosine down to `final_rate` of it
    schedule       "cosine", or "original": the rate of the original transformer, times `rate`
    matrix_rate    the highest rate of Muon on the matrices of the blocks (without weight decay); 0 leaves them to AdamW
    curriculum     the share of the training over which lengths grow from 2 to the trained length
    cool_down      once two points of the curve in a row are learned, the rate falls over this many steps and the run
                   ends; 0 trains to the end. Only for tasks with exact answers
    weight_decay   of AdamW
    evaluate_every   steps between two points of the learning curve
    map            a coordinate map of the positions in training, as in specs; None leaves tokens where they stand
    test_map       the map of held-out positions; None: what `map` takes there
    stretch        a frequency schedule, such as yarn(factor=2), that rotary has at lengths beyond the trained one alone
    device, dtype  where, and in what matrix products are computed (weights stay float32)
    compile        whether a training step goes through torch.compile
    clip           the largest norm of the gradient, longer ones are shortened to it; 0 shortens none
    own_files      of each file of one's own that the specs name, its path there and its SHA-256; None reads it now

    Raises ValueError for what cannot be run: an unknown task, sizes that do not divide, numbers out of range, a stretch
    for encodings without frequencies.
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
        for given in (self.map, self.test_map):
            if given is not None:
                map_of(given)
        if self.own_files is None:
            found = tuple((path, code.sha256(path)) for path in files_in(*self.names()))
            object.__setattr__(self, "own_files", found)
        self.check_task()
        checks.sizes(**{name: getattr(self, name) for name in MOST})
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most:,}, got {quoted(getattr(self, name), 40)}")
        check_seed(self.seed)
        self.config(1)
        too_short = [n for n in self.test_lengths if n <= self.train_length]
        if too_short:
            raise ValueError(f"test lengths must exceed the trained length {self.train_length}, got {too_short}")
        if too_long := [n for n in self.test_lengths if n > MOST["train_length"]]:
            raise ValueError(f"test lengths go up to {MOST['train_length']:,}, got {quoted(too_long, 40)}")
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
        """Raises ValueError for a task that there is not, and a text for one that reads none."""
        task = task_of(self.task)
        if self.text is None or getattr(task, "path", "") is None:
            return
        why = f"it has {quoted(task.path)} already" if hasattr(task, "path") else "it reads none"
        raise ValueError(f"a text is for a task on text, without a path of its own; {self.task} cannot take one: {why}")

    def check_stretch(self, nodes: Collection[Node]) -> None:
        """Raises ValueError for a stretch that is no schedule, or that no encoding would take."""
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
        """The specs that are cycled over the layers."""
        return (self.spec,) if isinstance(self.spec, str) else self.spec

    def names(self) -> list[str]:
        """Every text of the experiment that may name a file of one's own."""
        return [*self.specs, *filter(None, [self.task, self.map, self.test_map, self.stretch, self.model])]

    def config(self, max_len: int) -> Config:
        """How large the model is, for a trained length in tokens. Raises ValueError for sizes that do not fit."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name in OF_THE_MODEL}
        return Config(**given, max_len=max_len)

    def made_task(self) -> Task:
        """The task, on the text that is asked for."""
        task = task_of(self.task)
        return task if self.text is None else replace(task, path=self.text)

    def changed_files(self) -> list[str]:
        """A sentence for each file of one's own that no longer is what it was when the experiment was made."""
        return [
            f"{path} is not what it was for this run (SHA-256 {digest[:16]} then, {now[:16]} now)"
            for path, digest in self.own_files or ()
            if (now := code.sha256(path)) != digest
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON holds it, but for the newer settings that are left alone, and files where there are none.

        A record goes by the settings that it was made with, and older ones did not have those.
        """
        data = asdict(self)
        files = dict(data.pop("own_files"))
        for one in fields(self)[[f.name for f in fields(self)].index("map") : -1]:
            if data[one.name] == one.default:
                del data[one.name]
        return data | ({"own_files": files} if files else {})

    @classmethod
    def from_dict(
        cls, data: dict[str, Any], own: Collection[str | Path] = (), file: Path | None = None
    ) -> "Experiment":
        """The experiment that somebody's file tells of.

        own   the files of one's own that a person has named, and that may be imported; no other is
        file  where the data stood, for errors

        Raises ValueError for unknown or missing names, and CannotRead for a file that is not named, with its hashes.
        """
        data, known = in_new_names(data), [f.name for f in fields(cls)]
        for name in data:
            if name not in known:
                raise ValueError(f"an experiment has no {quoted(name)}; it has: {', '.join(known)}{near(name, known)}")
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}
        matches(listed, EXPERIMENT)
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        recorded = plain.pop("own_files", {})
        # Names are read before anything is made of them: none of the files is imported yet.
        bare = object.__new__(cls)
        for one in fields(cls):
            object.__setattr__(bare, one.name, plain.get(one.name, one.default))
        for path in (named := files_in(*bare.names())):
            if not code.is_named(path, own):
                raise not_named(path, recorded.get(path), file)
        return cls(**plain, own_files=tuple((path, recorded.get(path) or code.sha256(path)) for path in named))


EXPERIMENT = form_of(Experiment) | {"own_files?": {"*": str}, "hidden?": (int, None)}  # the latter of 0.2
"""The form in which a file holds an experiment."""


def in_new_names(data: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run, where they are those of version 0.2 by the names that they have now."""
    data = {("intermediate_size" if name == "hidden" else name): value for name, value in data.items()}
    if data.get("norm") in ("pre", "post"):
        data["norm_first"] = data.pop("norm") == "pre"
    return data


def takes_schedule(node: Node) -> bool:
    """Whether a spec has an encoding with frequencies that leaves their schedule open."""
    if node.name not in ("+", "on") and "schedule" in options_of(node.name) and "schedule" not in dict(node.options):
        return True
    return any(takes_schedule(part) for part in node.parts)


def not_named(path: str, recorded: str | None, file: Path | None) -> CannotRead:
    """What is said of a file whose code somebody's data asks for, and which no person has named."""
    try:
        now: str | None = code.sha256(path)
    except CannotRead:
        now = None
    hashes = [f"SHA-256 {recorded[:16]} in the run" if recorded else "", f"SHA-256 {now[:16]} here" if now else "gone"]
    folder = shlex.quote(str(file.parent)) if file else "FOLDER"
    return CannotRead(
        f"it asks for code from the file {quoted(path)} ({', '.join(filter(None, hashes))}), and none is run that you "
        f"have not named yourself",
        file=file,
        remedy=f"read the file, and if you trust it: posenc generate {folder} --trust {shlex.quote(path)}",
    )


def check_seed(seed: int) -> None:
    """Raises ValueError for a seed below 0, and for one that torch might not take."""
    if not 0 <= seed <= MOST_SEED:
        raise ValueError(f"seed must lie between 0 and {MOST_SEED:,}, got {quoted(seed, 40)}")
