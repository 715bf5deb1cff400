"""The comparison: every encoding on every task, then one table and one report."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from posenc import catalogue, specs
from posenc.encoding import Shape
from posenc.foreign import CannotRead, code, form_of, matches, near, quoted, regular
from posenc.lab import ENCODINGS, recipes, store, tasks
from posenc.lab.recipes import Experiment
from posenc.lab.sweep import Sweep, run_all

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"task_names": ("repeat", "text"), "seeds": 3, "text_seeds": 1},
    "full": {"task_names": ("repeat", "copy", "reverse", "sort", "recall", "text"), "seeds": 3, "text_seeds": 3},
}
"""What a preset asks for. Exact matches beyond the trained length move by up to 56 points between seeds (docs/log.md);
a run on text moves less and costs twice as much."""

MOST_THREADS = 1_024
"""The threads to compute with: far more than processors have cores, and few enough that the system can start them."""


@dataclass(frozen=True)
class Settings:
    """What to compare. None leaves a choice to the preset, or to the recipe of each task.

    encodings     specs; "all" stands for every encoding that reads a sequence
    task_names    tasks
    preset        "default" (three seeds, one for text) or "full" (all tasks, three seeds)
    maps          coordinate maps of the positions in training; "none" leaves tokens where they stand
    """

    encodings: tuple[str, ...] = ENCODINGS
    task_names: tuple[str, ...] | None = None
    preset: str = "default"
    seeds: int | None = None
    train_length: int | None = None
    test_lengths: tuple[int, ...] | None = None
    steps: int | None = None
    layers: int | None = None
    dim: int | None = None
    heads: int | None = None
    text: str | None = None
    maps: tuple[str, ...] | None = None

    def experiments(self) -> list[Experiment]:
        """All runs. Raises ValueError for anything that cannot be built, before a single step is trained."""
        if self.preset not in PRESETS:
            raise ValueError(
                f"no preset named {quoted(self.preset)}; there are: {', '.join(PRESETS)}"
                f"{near(self.preset, PRESETS.keys())}"
            )
        preset = PRESETS[self.preset]
        task_names = self.task_names or preset["task_names"]
        for name in task_names:
            tasks.find(name)
        encodings = all_named(self.encodings)
        named = ("train_length", "test_lengths", "steps", "layers", "dim", "heads")
        changes = {name: value for name in named if (value := getattr(self, name)) is not None}
        maps = [None if one == "none" else one for one in self.maps or ("none",)]
        runs: list[Experiment] = []
        for task in dict.fromkeys(task_names):
            given = changes | ({"text": self.text} if task == "text" and self.text else {})
            seeds = preset["text_seeds" if task == "text" else "seeds"] if self.seeds is None else self.seeds
            runs += recipes.comparison(encodings, [task], seeds, maps, **given)
        if self.text is not None and "text" not in task_names:
            raise ValueError("--text is for the text task; add it to the tasks, or leave --text out")
        check_buildable(runs)
        # The longest runs first, so that no core waits at the end.
        return sorted(runs, key=lambda run: -run.steps * recipes.STEP_COST.get(run.task, 1.0))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_buildable(runs: Sequence[Experiment]) -> None:
    """Raises ValueError for the first run whose text, lengths or encoding cannot be had."""
    from torch import Generator

    from posenc.lab.evaluate import check_held_out
    from posenc.lab.places import at_evaluation, in_training
    from posenc.lab.train import model_of, task_of

    seen = set()
    for run in runs:
        kind = (run.spec, run.task, run.map)
        if kind not in seen:
            seen.add(kind)
            task = task_of(run)
            model = model_of(run, task)
            for length in (run.train_length, *run.test_lengths):
                ids = task.batch(length, 1, Generator()).ids[:, :-1]
                if run.map is None:
                    continue
                # Whether the map has room for so many tokens, and a table rows for where it puts them.
                for place in (at_evaluation(run), *([in_training(run, 0)] if length == run.train_length else [])):
                    model(ids, positions=place(ids), only=slice(-1, None))
            if run.task == "text":
                check_held_out(task, max(run.train_length, *run.test_lengths, 0))


def compare(
    settings: Settings, folder: Path, *, show: Callable[[Sweep], None] = lambda sweep: None
) -> tuple[list[dict[str, Any]], Path, Sweep]:
    """Run what is missing, and write the report: (the records of these settings, the report's path, the sweep).

    Raises ValueError for bad settings and an unwritable folder, RuntimeError when every run failed.
    """
    from posenc.lab import record, report

    runs = settings.experiments()
    with store.held(folder):
        write_settings(settings, folder)
        sweep = run_all(runs, folder, show=show)
        keys = [key for key in sweep.runs if key not in sweep.failures]
        if not keys:
            raise RuntimeError(f"every run failed; the first: {next(iter(sweep.failures.values()))}")
        records = [record.read(folder / "records" / f"{key}.json") for key in keys]
        records = in_reading_order(records, settings.to_dict())
        failed = [f"{sweep.runs[key].words}: {reason}" for key, reason in sweep.failures.items()]
        return records, report.write(records, folder, settings.to_dict(), failed), sweep


def in_reading_order(records: Sequence[dict[str, Any]], settings: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Task by task and encoding by encoding, as the settings ask for them; what they do not name comes last."""
    if settings is None:
        return list(records)
    task_names = settings.get("task_names") or PRESETS[settings.get("preset", "default")]["task_names"]
    asked = all_named(settings.get("encodings") or ())

    def place(of: Sequence[str], name: Any) -> int:
        return list(of).index(name) if name in of else len(of)

    def key(record: dict[str, Any]) -> tuple[int, int, int]:
        run = record["experiment"]
        return place(task_names, run["task"]), place(asked, run["spec"]), run["seed"]

    return sorted(records, key=key)


def all_named(encodings: Sequence[str]) -> list[str]:
    """The specs asked for, with every encoding that reads a sequence in place of "all"."""
    grids = not_for_sequences() if "all" in encodings else []
    ships = [name for name in catalogue.names() if name not in grids]
    return [name for spec in encodings for name in (ships if spec == "all" else [spec])]


def not_for_sequences() -> list[str]:
    """The encodings that need a grid: they read several axes, and every task is a sequence."""
    shape, given = Shape.of(dim=64, heads=4, max_len=64), recipes.hints(64, 64)
    return [name for name in catalogue.names() if catalogue.build(name, shape, hints=given).axes > 1]


def write_settings(settings: Settings, folder: Path) -> None:
    store.write(folder / "settings.json", store.sealed(settings.to_dict(), indent=1))


def read_settings(folder: Path) -> dict[str, Any] | None:
    """The settings a folder was made with; None if there are none. Raises CannotRead when they are damaged."""
    path = folder / "settings.json"
    if not path.exists():
        return None
    try:
        settings, _ = store.read_json(path)
        matches(settings, form_of(Settings), file=path)
        if settings.get("preset", "default") not in PRESETS:
            raise CannotRead(
                f"expected {' or '.join(PRESETS)}, got {quoted(settings['preset'])}", file=path, field="preset"
            )
    except CannotRead as error:
        raise CannotRead(f"{error}; delete it, the records are what counts") from None
    return settings


def train_one(
    spec: str, task: str, seed: int, folder: Path, threads: int | None, say: Callable[[str], None], **changes: Any
) -> Any:
    """Train one encoding on one task into a checkpoint folder, or go on with what is there.

    Raises ValueError when the folder holds a checkpoint of other settings.
    """
    import torch

    parts = tuple(specs.split(spec))
    experiment = recipes.recipe(task, parts[0] if len(parts) == 1 else parts, seed, **changes)
    if threads is not None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"threads must lie between 1 and {MOST_THREADS:,}, got {quoted(threads, 40)}")
        torch.set_num_threads(threads)
    with store.held(folder):
        return train_in(folder, experiment, [path for path, _ in experiment.own_files or ()], say)


def train_in(folder: Path, experiment: Experiment, own: Collection[str], say: Callable[[str], None]) -> Any:
    """Train in a folder that is held, or go on with what is there; `own` are the files of one's own that were named."""
    from posenc.lab import train

    if train.is_there(folder):
        run = train.load(folder, own)
        if kept := store.generations(folder):
            store.forget(folder, (train.MODEL, train.OPTIMIZER, train.FACTS), kept)
        if changed := run.experiment.changed_files():
            raise ValueError(f"{changed[0]}; put the old file back, or choose another folder with --out")
        if run.experiment != experiment:
            before, now = vars(run.experiment), vars(experiment)
            other = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in now if before[name] != now[name])
            raise ValueError(f"'{folder}' holds a run of other settings ({other}); choose another folder with --out")
        if run.text and run.text != run.task.text.sha256:
            raise ValueError(
                f"{run.task.text.name} is another text than the one that '{folder}' was trained on; put that one back, "
                f"or choose another folder with --out"
            )
        say(f"going on at step {run.step} of {experiment.steps}")
        if other := store.other_versions(run.versions):
            say(f"the checkpoint was made with {other}; the end may differ in its last digits")
    else:
        run = train.start(experiment)

    def progress(run: Any) -> None:
        train.save(run, folder)
        point = run.curve[-1]
        what = "bits per byte" if experiment.task == "text" else "exact match"
        left = run.cpu_s / run.step * (experiment.steps - run.step)
        say(
            f"step {run.step}/{experiment.steps}  loss {point['loss']:.3f}  {what} {point['score']:.3f}  "
            f"about {left:.0f} CPU s left"
        )

    return train.train(run, progress)


def continue_prompt(
    folder: Path,
    prompt: str,
    tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    own: Sequence[str] = (),
    say: Callable[[str], None] = lambda words: None,
) -> str:
    """The prompt and what the model of a checkpoint makes of it.

    own  the files of one's own whose code the checkpoint may ask for; `say` is told where one has changed
    """
    import torch

    from posenc.lab import train
    from posenc.lab.places import at_evaluation, counted

    recipes.check_seed(seed)
    for file in own:
        regular(code.file_of(file))
    run = train.load(folder, own, to_train=False)
    for changed in run.experiment.changed_files():
        say(changed)
    if at_evaluation(run.experiment) is not counted:
        raise ValueError(
            f"generation counts its tokens 0, 1, 2, ..., and the model of '{folder}' was trained on the places that "
            f"{run.experiment.map} gives to whole sequences; ask it yourself: "
            f"posenc.lab.train.load(folder).model(ids, positions=...)"
        )
    ids = torch.tensor([run.task.encode(prompt)])
    stop = tasks.END if run.experiment.task != "text" else None
    out = run.model.generate(ids, tokens, temperature=temperature, top_k=top_k, stop=stop, seed=seed)
    return run.task.decode(out[0, 1:].tolist())
