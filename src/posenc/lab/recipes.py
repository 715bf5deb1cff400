"""Experiments: what to train, how, and on what; and which options of an encoding suit a task."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from posenc import catalogue
from posenc.catalogue import options_of, parse
from posenc.coordinate_maps import map_of
from posenc.encoding import divisors_in_words
from posenc.foreign import CannotRead, code, form_of, matches, near, quoted
from posenc.lab import ENCODINGS, tasks
from posenc.specs import files_in

MOST = {
    "train_length": 1_000_000,
    "layers": 1_000,
    "dim": 65_536,
    "heads": 65_536,
    "steps": 1_000_000_000,
    "batch": 1_000_000,
    "evaluate_every": 1_000_000_000,
}
"""The largest numbers of an experiment: far beyond this laboratory, and small enough that each is refused or tried."""

MOST_SEED = 1_000_000_000_000

MOST_SEEDS = 10_000

SEARCHED = range(100)
"""The seeds that recipes are searched on. Evidence for others begins behind them."""

MOST_LENGTHS = 100
"""The lengths that one run is tested at: a table has a column for each."""


@dataclass(frozen=True)
class Experiment:
    """One training run, in plain numbers.

    spec           the encoding; a tuple is cycled over the layers
    task, text     which task; for the text task a file or folder (None: the Python standard library)
    seed           of the weights and the data
    train_length   the longest trained length (the task's items; text: tokens of a window)
    test_lengths   the longer lengths that are tested
    layers, dim, heads   the shape of the decoder
    steps, batch   how long at most, and how many sequences a step
    rate           the highest learning rate; warm-up over `warmup` steps, then a cosine down to `final_rate` of it
    matrix_rate    the highest rate of Muon on the matrices of the blocks (without weight decay); 0 leaves them to AdamW
    curriculum     the share of the steps over which lengths grow from 2 to the trained length
    cool_down      once two points of the curve in a row are learned, the rate falls over this many steps and the run
                   ends; 0 trains to the end. Only for tasks with exact answers
    weight_decay   of AdamW
    evaluate_every   steps between two points of the learning curve
    map            a coordinate map of the positions in training, as in specs; None leaves tokens where they stand.
                   Evaluation takes what the map takes there
    own_files      of each file of one's own that specs and map name, its path there and its SHA-256; None reads it now
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
    own_files: tuple[tuple[str, str], ...] | None = None

    def __post_init__(self) -> None:
        for spec in self.specs:
            parse(spec)
        if self.map is not None:
            map_of(self.map)
        if self.own_files is None:
            files = files_in(*self.specs, *filter(None, [self.map]))
            object.__setattr__(self, "own_files", tuple((path, code.sha256(path)) for path in files))
        tasks.find(self.task)
        for name, most in MOST.items():
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
            if getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most:,}, got {quoted(getattr(self, name), 40)}")
        check_seed(self.seed)
        if self.dim % self.heads:
            raise ValueError(f"heads must divide dim={self.dim}, got heads={self.heads}; {divisors_in_words(self.dim)}")
        too_short = [n for n in self.test_lengths if n <= self.train_length]
        if too_short:
            raise ValueError(f"test lengths must exceed the trained length {self.train_length}, got {too_short}")
        if too_long := [n for n in self.test_lengths if n > MOST["train_length"]]:
            raise ValueError(f"test lengths go up to {MOST['train_length']:,}, got {quoted(too_long, 40)}")
        if len(self.test_lengths) > MOST_LENGTHS:
            raise ValueError(f"there may be at most {MOST_LENGTHS} test lengths, got {len(self.test_lengths)}")
        if not self.rate > 0:
            raise ValueError(f"rate must be above 0, got {self.rate}")
        if not self.matrix_rate >= 0:
            raise ValueError(f"matrix_rate must be 0 or more, got {self.matrix_rate}")

    @property
    def specs(self) -> tuple[str, ...]:
        """The specs that are cycled over the layers."""
        return (self.spec,) if isinstance(self.spec, str) else self.spec

    def changed_files(self) -> list[str]:
        """A sentence for each file of one's own that no longer is what it was when the experiment was made."""
        return [
            f"{path} is not what it was for this run (SHA-256 {digest[:16]} then, {now[:16]} now)"
            for path, digest in self.own_files or ()
            if (now := code.sha256(path)) != digest
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON holds it; without a map, or files of one's own, nothing is said of any."""
        data = asdict(self)
        files = dict(data.pop("own_files"))
        if data["map"] is None:
            # A record goes by the settings that it was made with, of which older ones had no map.
            del data["map"]
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
        known = [f.name for f in fields(cls)]
        for name in data:
            if name not in known:
                raise ValueError(f"an experiment has no {quoted(name)}; it has: {', '.join(known)}{near(name, known)}")
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}
        matches(listed, EXPERIMENT)
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        specs = (plain["spec"],) if isinstance(plain["spec"], str) else plain["spec"]
        recorded = plain.pop("own_files", {})
        for path in (named := files_in(*specs, *filter(None, [plain.get("map")]))):
            if not code.is_named(path, own):
                raise not_named(path, recorded.get(path), file)
        return cls(**plain, own_files=tuple((path, recorded.get(path) or code.sha256(path)) for path in named))


EXPERIMENT = form_of(Experiment) | {"own_files?": {"*": str}}
"""The form in which a file holds an experiment."""


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
    """Raises ValueError for a seed that torch might not take."""
    if abs(seed) > MOST_SEED:
        raise ValueError(f"seed must lie between -{MOST_SEED:,} and {MOST_SEED:,}, got {quoted(seed, 40)}")


def recipe(task: str, spec: str | tuple[str, ...], seed: int = 0, **changes: Any) -> Experiment:
    """The settings that learn a task soonest on a small CPU, with changes."""
    chosen: dict[str, Any] = {"task": task, "spec": spec, "seed": seed}
    if task == "text":
        chosen |= {"train_length": 32, "test_lengths": (64, 128, 256), "steps": 800}
    elif task == "recall":
        chosen |= {"train_length": 8, "test_lengths": longer(task, 8), "steps": 1000, "batch": 64}
        chosen |= {"rate": 2e-3, "curriculum": 0.24, "cool_down": 200}
    elif task != "repeat":
        # Repeat trains to the end, because how far it carries depends on that; the others stop when they are learned.
        chosen |= {"steps": 2500, "batch": 32, "curriculum": 0.16, "cool_down": 200}
    chosen |= changes
    if "train_length" in changes and "test_lengths" not in changes:
        chosen["test_lengths"] = longer(task, changes["train_length"])
    return Experiment(**chosen)


STEP_COST = {"repeat": 1.0, "copy": 1.3, "reverse": 1.3, "sort": 1.3, "recall": 2.0, "text": 1.8}
"""What a step of a recipe costs, relative to one of repeat, roughly: for the order of runs and the time left."""


def longer(task: str, train_length: int) -> tuple[int, ...]:
    """The lengths tested beyond a trained one: 1.2, 1.5 and 2 times; for text 2, 4 and 8 times."""
    factors = (2, 4, 8) if task == "text" else (1.2, 1.5, 2)
    return tuple(sorted({max(round(train_length * f), train_length + 1) for f in factors}))


def comparison(
    encodings: Sequence[str] = ENCODINGS,
    task_names: Sequence[str] = ("repeat", "text"),
    seeds: int = 1,
    maps: Sequence[str | None] = (None,),
    **changes: Any,
) -> list[Experiment]:
    """Every encoding on every task, under every map, with every seed; the longest runs come first."""
    if not encodings or not task_names:
        raise ValueError("a comparison needs at least one encoding and one task")
    if seeds < 1:
        raise ValueError(f"seeds must be 1 or more, got {seeds}")
    if seeds > MOST_SEEDS:
        raise ValueError(f"seeds must be at most {MOST_SEEDS:,}, got {quoted(seeds, 40)}")
    runs = [
        recipe(task, spec, seed, map=one, **changes)
        for seed in range(seeds)
        for task in sorted(task_names, key=lambda name: name != "text")
        for spec in encodings
        for one in maps
    ]
    return list(dict.fromkeys(runs))


def hints(tokens: int, longest: int) -> dict[str, dict[str, Any]]:
    """Options that suit a small model trained on sequences of up to `tokens` tokens and asked about up to `longest`.

    They fill in what a spec leaves open; whatever a spec says stands.
    """
    given: dict[str, dict[str, Any]] = {
        # Rows past the trained length exist, untrained, so that the table can be asked about them.
        "learned": {"max_len": longest},
        "tupe": {"max_len": longest},
        "learned_factorised": {"max_len": longest},
        # Buckets past the trained length would never be trained, and T5 would look like a bad extrapolator.
        "t5_bias": {"max_distance": min(max(tokens - 2, 17), 128), "std": 0.02},
        # A window or chunk that no training sequence fills would leave nothing to map.
        "rerope": {"window": max(tokens // 2, 1)},
        "self_extend": {"window": max(tokens // 2, 1), "group": 4},
        "dual_chunk": {"chunk": max(3 * tokens // 4, 1), "longest": max(tokens, 2)},
    }
    given |= on_one_axis()
    for name, cls in catalogue.ENCODINGS.items():
        options = options_of(name)
        # A head of 16 channels has 8 pairs; with the usual base half of them would not complete a turn in a short
        # window.
        if (
            tokens <= 128
            and "turn" in cls.doors
            and cls.turns != "queries"
            and "base" in options
            and options["base"].default == 10_000.0
        ):
            given.setdefault(name, {})["base"] = 1000.0
    return given


def on_one_axis() -> dict[str, dict[str, Any]]:
    """What makes encodings of any number of axes read a sequence."""
    return {name: {"axes": 1} for name, _ in catalogue.ENCODINGS.items() if "axes" in options_of(name)}


def original(
    model: torch.nn.Module, dim: int, warmup: int = 4000
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
    """The original transformer's optimiser: Adam(0.9, 0.98), and a rate that warms up and then falls as 1/sqrt(step).

    rate(step) = dim^-1/2 min(step^-1/2, step warmup^-3/2), for step = 1, 2, ...; call scheduler.step() after each step.
    Raises ValueError for a width or warm-up below 1.
    Source: Vaswani et al. 2017, arXiv:1706.03762, section 5.3.
    """
    if dim < 1 or warmup < 1:
        raise ValueError(f"dim and warmup must be 1 or more, got {dim} and {warmup}")
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: dim**-0.5 * min((done + 1) ** -0.5, (done + 1) * warmup**-1.5)
    )
    return optimizer, scheduler
