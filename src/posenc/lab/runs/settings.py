"""The settings of a comparison (encodings, tasks, seeds), and the runs that they expand to."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from posenc import catalogue, checks
from posenc.catalogue import parse
from posenc.encoding.base import Encoding, Shape
from posenc.foreign import CannotRead, form_of, matches, quote, suggestion
from posenc.lab import store
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.experiments import recipes
from posenc.lab.experiments.experiment import Experiment, takes_schedule
from posenc.lab.tasks import task_of

PRESETS: dict[str, dict[str, int]] = {
    "default": {"repeat": 3, "text": 1},
    "full": {"repeat": 3, "copy": 3, "reverse": 3, "sort": 3, "recall": 3, "text": 3},
}
"""The tasks of each preset, and how many seeds each has. Exact matches beyond the trained length move by up to 56
points between seeds (docs/log.md); a run on text moves less and costs twice as much."""

SEEDS = 3
"""How many seeds a task has that no preset names."""

NO_OPTION = "none"
"""The word for no map or no stretch."""


@dataclass(frozen=True)
class Settings:
    """The settings of a comparison. None leaves a choice to the preset, or to the recipe of each task.

    encodings     specs; "all" stands for every encoding that reads what the task has
    task_names    tasks, as specs
    preset        "default" (three seeds, one for text) or "full" (six tasks, three seeds)
    seeds         how many, from `seed_from` on
    maps          coordinate maps of the positions in training; "none" keeps the positions
    stretches     frequency schedules of rotary (RoPE) beyond the trained length; "none" keeps the trained frequencies
    rates         learning rates to choose from for each encoding and task, by the loss on separate seeds
    labels        spec -> its name in tables and figures
    changes       settings of Experiment that replace the recipe's
    """

    encodings: tuple[str, ...] = ENCODINGS
    task_names: tuple[str, ...] | None = None
    preset: str = "default"
    seeds: int | None = None
    seed_from: int | None = None
    maps: tuple[str, ...] | None = None
    stretches: tuple[str, ...] | None = None
    rates: tuple[float, ...] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tasks(self) -> list[str]:
        """The tasks, each once. Raises ValueError for an unknown preset."""
        if self.preset not in PRESETS:
            raise ValueError(
                f"no preset named {quote(self.preset)}; there are: {', '.join(PRESETS)}"
                f"{suggestion(self.preset, PRESETS.keys())}"
            )
        return list(dict.fromkeys(self.task_names or PRESETS[self.preset]))

    @property
    def first_seed(self) -> int:
        return recipes.FIRST_SEED if self.seed_from is None else self.seed_from

    def experiments(self) -> list[Experiment]:
        """All runs. Raises ValueError for a run that cannot be built, before any training."""
        runs = [run for task in self.tasks for run in self.task_experiments(task)]
        check_labels(self.labels, [" / ".join(run.specs) for run in runs])
        if "text" in self.changes and not any(run.text for run in runs):
            raise ValueError("--text is for a task on text; add text to the tasks, or leave --text out")
        if any(stretch != NO_OPTION for stretch in self.stretches or ()) and not any(run.stretch for run in runs):
            raise ValueError(
                f"--stretch is for encodings with frequencies whose spec leaves their schedule open, such as rotary; "
                f"none of {', '.join(self.encodings)} is one"
            )
        check_buildable([*runs, *(replace(run, rate=rate) for rate in self.rates or () for run in runs)])
        # The longest runs come first, so that no core is idle at the end.
        return sorted(runs, key=recipes.cost, reverse=True)

    def task_experiments(self, task: str) -> list[Experiment]:
        """All runs on one task."""
        built_task = task_of(task)
        changes = {name: value for name, value in self.changes.items() if name != "text" or hasattr(built_task, "path")}
        seeds = PRESETS[self.preset].get(task, SEEDS) if self.seeds is None else self.seeds
        maps = [None if map_spec == NO_OPTION else map_spec for map_spec in self.maps or (NO_OPTION,)]
        runs = []
        for stretch in self.stretches or (NO_OPTION,):
            specs = expand_all(self.encodings, built_task.axes)
            stretch_changes = changes
            if stretch != NO_OPTION:
                specs = [spec for spec in specs if takes_schedule(parse(spec))]
                stretch_changes = changes | {"stretch": stretch}
            if specs or not self.stretches:
                runs += recipes.comparison(specs, [task], seeds, maps, self.first_seed, **stretch_changes)
        return runs


def check_labels(labels: Mapping[str, str], specs: Sequence[str]) -> None:
    """Raise ValueError for a label that is no name, is used twice, or belongs to no compared spec."""
    from posenc.lab.experiments.models import check_label

    for spec, label in labels.items():
        if spec not in specs:
            names = list(dict.fromkeys(specs))
            raise ValueError(f"--label names {quote(spec)}, which is not compared; there are: {', '.join(names)}")
        check_label(label)
        if label in specs or list(labels.values()).count(label) > 1:
            raise ValueError(f"two encodings would be called {quote(label)}; give each a label of its own")


def check_buildable(runs: Sequence[Experiment]) -> None:
    """Raise ValueError for the first run whose text, lengths, model or encoding cannot be built."""
    from torch import Generator

    from posenc.lab.evaluation.evaluate import check_held_out
    from posenc.lab.experiments.models import label_of, logits_of, model_of
    from posenc.lab.experiments.places import eval_places, train_places

    checked_kinds = set()
    for run in runs:
        kind = replace(run, seed=0)
        if kind not in checked_kinds:
            checked_kinds.add(kind)
            checks.device(run.device)
            task = run.build_task()
            model = model_of(run, task)
            label_of(run, model)
            for length in (run.train_length, *run.test_lengths):
                batch = task.batch(length, 1, Generator()).to(run.device)
                flat = all(module.axes <= 1 for module in model.modules() if isinstance(module, Encoding))
                if run.map is None and run.test_map is None and run.model is None and task.axes == 1 and flat:
                    continue
                # A map may be too short for the tokens, a table for the mapped positions; an encoding may read another
                # number of axes, and the user's own model may fail.
                for place in (eval_places(run), *([train_places(run, 0)] if length == run.train_length else [])):
                    shape = list(logits_of(model, batch, place, first=batch.ids.shape[1] - 1).shape)
                    if shape != (expected := [len(batch.ids), 1, task.vocab]):
                        raise ValueError(
                            f"{run.model} must give logits [batch, tokens, vocab={task.vocab}] for ids [batch, "
                            f"tokens]; for the last token it gave {shape} where {expected} was expected"
                        )
            if task.in_bits:
                check_held_out(task, max(run.train_length, *run.test_lengths, 0))


def sort_by_settings(records: Sequence[dict[str, Any]], settings: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The records in the settings' order of tasks and encodings, with their labels; others come last."""
    if settings is None:
        return list(records)
    task_names = settings.get("task_names") or list(PRESETS[settings.get("preset", "default")])
    specs = expand_all(settings.get("encodings") or ())

    def place(names: Sequence[str], name: Any) -> int:
        return list(names).index(name) if name in names else len(names)

    def key(record: dict[str, Any]) -> tuple[int, int, int]:
        run = record["experiment"]
        return place(task_names, run["task"]), place(specs, run["spec"]), run["seed"]

    return with_labels(sorted(records, key=key), settings.get("labels") or {})


def with_labels(records: Sequence[dict[str, Any]], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The records, relabelled by spec."""

    def label_of(spec: str | list[str]) -> str | None:
        return labels.get(spec if isinstance(spec, str) else " / ".join(spec))

    return [run | {"label": label} if (label := label_of(run["experiment"]["spec"])) else run for run in records]


def expand_all(encodings: Sequence[str], axes: int = 1) -> list[str]:
    """The specs, with "all" replaced by every encoding that reads `axes` axes."""
    excluded_names = encodings_of_other_axes(axes) if "all" in encodings else []
    ships = [name for name in catalogue.names() if name not in excluded_names]
    return [name for spec in encodings for name in (ships if spec == "all" else [spec])]


def encodings_of_other_axes(axes: int = 1) -> list[str]:
    """The encodings that cannot read `axes` axes, such as those of a grid for a sequence."""
    shape, hints = Shape.of(dim=64, heads=4, max_len=64), recipes.hints(64, 64, axes)
    return [name for name in catalogue.names() if not reads_axes(catalogue.build(name, shape, hints=hints), axes)]


def reads_axes(encoding: Encoding, axes: int) -> bool:
    """Whether an encoding reads tokens with `axes` coordinates; one that reads no coordinates takes any number."""
    if axes == 1:
        return encoding.axes <= 1
    return encoding.axes == axes or not encoding.doors


FORM = form_of(Settings) | {"changes?": {"*": Any}, "labels?": {"*": str}, "until?": (float, None)}  # of 0.2


def write_settings(settings: Settings, folder: Path) -> None:
    store.write(folder / "settings.json", store.dump_json(asdict(settings), indent=1))


def read_settings(folder: Path) -> dict[str, Any] | None:
    """The settings that a folder was made with, or None. Raises CannotRead when they are damaged."""
    path = folder / "settings.json"
    if not path.exists():
        return None
    try:
        settings = store.read_checked_json(path)
        matches(settings, FORM, file=path)
        if settings.get("preset", "default") not in PRESETS:
            raise CannotRead(
                f"expected {' or '.join(PRESETS)}, got {quote(settings['preset'])}", file=path, field="preset"
            )
    except CannotRead as error:
        raise CannotRead(f"{error}; delete it, the records are what counts") from None
    return settings
