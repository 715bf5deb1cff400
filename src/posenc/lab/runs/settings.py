"""What to compare: encodings, tasks and seeds, as a command or a folder says it, and the runs that come of it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from posenc import catalogue, checks
from posenc.catalogue import parse
from posenc.encoding.base import Encoding, Shape
from posenc.foreign import CannotRead, form_of, matches, near, quoted
from posenc.lab import store
from posenc.lab.default_encodings import ENCODINGS
from posenc.lab.experiments import recipes
from posenc.lab.experiments.experiment import Experiment, takes_schedule
from posenc.lab.tasks import task_of

PRESETS: dict[str, dict[str, int]] = {
    "default": {"repeat": 3, "text": 1},
    "full": {"repeat": 3, "copy": 3, "reverse": 3, "sort": 3, "recall": 3, "text": 3},
}
"""What a preset asks for: its tasks, and the seeds of each. Exact matches beyond the trained length move by up to 56
points between seeds (docs/log.md); a run on text moves less and costs twice as much."""

SEEDS = 3
"""Those of a task that no preset names."""

NO_OPTION = "none"
"""What stands among maps and stretches for none of them."""


@dataclass(frozen=True)
class Settings:
    """What to compare. None leaves a choice to the preset, or to the recipe of each task.

    encodings     specs; "all" stands for every encoding that reads what the task has
    task_names    tasks, as specs
    preset        "default" (three seeds, one for text) or "full" (six tasks, three seeds)
    seeds         how many, from `seed_from` on
    maps          coordinate maps of the positions in training; "none" leaves tokens where they stand
    stretches     frequency schedules that rotary has beyond the trained length; "none" leaves it as it was trained
    rates         learning rates to choose from, for each encoding on each task by its loss on seeds of its own
    labels        spec -> what tables and figures call it
    changes       settings of Experiment, in place of the recipe's
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
        """The tasks that are asked for, each once. Raises ValueError for a preset that there is not."""
        if self.preset not in PRESETS:
            raise ValueError(
                f"no preset named {quoted(self.preset)}; there are: {', '.join(PRESETS)}"
                f"{near(self.preset, PRESETS.keys())}"
            )
        return list(dict.fromkeys(self.task_names or PRESETS[self.preset]))

    @property
    def first_seed(self) -> int:
        return recipes.FIRST_SEED if self.seed_from is None else self.seed_from

    def experiments(self) -> list[Experiment]:
        """All runs. Raises ValueError for anything that cannot be built, before a single step is trained."""
        runs = [run for task in self.tasks for run in self.on(task)]
        check_labels(self.labels, [" / ".join(run.specs) for run in runs])
        if "text" in self.changes and not any(run.text for run in runs):
            raise ValueError("--text is for a task on text; add text to the tasks, or leave --text out")
        if any(one != NO_OPTION for one in self.stretches or ()) and not any(run.stretch for run in runs):
            raise ValueError(
                f"--stretch is for encodings with frequencies whose spec leaves their schedule open, such as rotary; "
                f"none of {', '.join(self.encodings)} is one"
            )
        check_buildable([*runs, *(replace(run, rate=rate) for rate in self.rates or () for run in runs)])
        # The longest runs first, so that no core waits at the end.
        return sorted(runs, key=recipes.cost, reverse=True)

    def on(self, task: str) -> list[Experiment]:
        """The runs on one task."""
        made = task_of(task)
        changes = {name: value for name, value in self.changes.items() if name != "text" or hasattr(made, "path")}
        seeds = PRESETS[self.preset].get(task, SEEDS) if self.seeds is None else self.seeds
        maps = [None if one == NO_OPTION else one for one in self.maps or (NO_OPTION,)]
        runs = []
        for stretch in self.stretches or (NO_OPTION,):
            specs = all_named(self.encodings, made.axes)
            given = changes
            if stretch != NO_OPTION:
                specs = [spec for spec in specs if takes_schedule(parse(spec))]
                given = changes | {"stretch": stretch}
            if specs or not self.stretches:
                runs += recipes.comparison(specs, [task], seeds, maps, self.first_seed, **given)
        return runs


def check_labels(labels: Mapping[str, str], specs: Sequence[str]) -> None:
    """Raises ValueError for a label of what is not compared, for one that two encodings have, and for no name."""
    from posenc.lab.experiments.models import check_label

    for spec, label in labels.items():
        if spec not in specs:
            known = list(dict.fromkeys(specs))
            raise ValueError(f"--label names {quoted(spec)}, which is not compared; there are: {', '.join(known)}")
        check_label(label)
        if label in specs or list(labels.values()).count(label) > 1:
            raise ValueError(f"two encodings would be called {quoted(label)}; give each a label of its own")


def check_buildable(runs: Sequence[Experiment]) -> None:
    """Raises ValueError for the first run whose text, lengths, model or encoding cannot be had."""
    from torch import Generator

    from posenc.lab.evaluation.evaluate import check_held_out
    from posenc.lab.experiments.models import label_of, logits_of, model_of
    from posenc.lab.experiments.places import at_evaluation, in_training

    seen = set()
    for run in runs:
        kind = replace(run, seed=0)
        if kind not in seen:
            seen.add(kind)
            checks.device(run.device)
            task = run.made_task()
            model = model_of(run, task)
            label_of(run, model)
            for length in (run.train_length, *run.test_lengths):
                batch = task.batch(length, 1, Generator()).to(run.device)
                flat = all(one.axes <= 1 for one in model.modules() if isinstance(one, Encoding))
                if run.map is None and run.test_map is None and run.model is None and task.axes == 1 and flat:
                    continue
                # Whether the map has room for so many tokens, and a table rows for where it puts them; whether an
                # encoding reads so many axes, and a model of one's own takes what it is given.
                for place in (at_evaluation(run), *([in_training(run, 0)] if length == run.train_length else [])):
                    got = list(logits_of(model, batch, place, first=batch.ids.shape[1] - 1).shape)
                    if got != (expected := [len(batch.ids), 1, task.vocab]):
                        raise ValueError(
                            f"{run.model} must give logits [batch, tokens, vocab={task.vocab}] for ids [batch, "
                            f"tokens]; for the last token it gave {got} where {expected} was expected"
                        )
            if task.in_bits:
                check_held_out(task, max(run.train_length, *run.test_lengths, 0))


def in_reading_order(records: Sequence[dict[str, Any]], settings: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Task by task and encoding by encoding, as the settings ask for them, with their labels; others come last."""
    if settings is None:
        return list(records)
    task_names = settings.get("task_names") or list(PRESETS[settings.get("preset", "default")])
    asked = all_named(settings.get("encodings") or ())

    def place(of: Sequence[str], name: Any) -> int:
        return list(of).index(name) if name in of else len(of)

    def key(record: dict[str, Any]) -> tuple[int, int, int]:
        run = record["experiment"]
        return place(task_names, run["task"]), place(asked, run["spec"]), run["seed"]

    return with_labels(sorted(records, key=key), settings.get("labels") or {})


def with_labels(records: Sequence[dict[str, Any]], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The records, with the labels of these specs in place of their own."""

    def label_of(spec: str | list[str]) -> str | None:
        return labels.get(spec if isinstance(spec, str) else " / ".join(spec))

    return [run | {"label": label} if (label := label_of(run["experiment"]["spec"])) else run for run in records]


def all_named(encodings: Sequence[str], axes: int = 1) -> list[str]:
    """The specs asked for, with every encoding that reads so many axes in place of "all"."""
    others = not_for(axes) if "all" in encodings else []
    ships = [name for name in catalogue.names() if name not in others]
    return [name for spec in encodings for name in (ships if spec == "all" else [spec])]


def not_for(axes: int = 1) -> list[str]:
    """The encodings that read another number of axes: those that need a grid, where the tokens are a sequence."""
    shape, given = Shape.of(dim=64, heads=4, max_len=64), recipes.hints(64, 64, axes)
    return [name for name in catalogue.names() if not reads(catalogue.build(name, shape, hints=given), axes)]


def reads(encoding: Encoding, axes: int) -> bool:
    """Whether an encoding can be asked about tokens with so many coordinates; one that reads none takes any."""
    if axes == 1:
        return encoding.axes <= 1
    return encoding.axes == axes or not encoding.doors


FORM = form_of(Settings) | {"changes?": {"*": Any}, "labels?": {"*": str}, "until?": (float, None)}  # of 0.2


def write_settings(settings: Settings, folder: Path) -> None:
    store.write(folder / "settings.json", store.sealed(asdict(settings), indent=1))


def read_settings(folder: Path) -> dict[str, Any] | None:
    """The settings a folder was made with; None if there are none. Raises CannotRead when they are damaged."""
    path = folder / "settings.json"
    if not path.exists():
        return None
    try:
        settings = store.read_json(path)
        matches(settings, FORM, file=path)
        if settings.get("preset", "default") not in PRESETS:
            raise CannotRead(
                f"expected {' or '.join(PRESETS)}, got {quoted(settings['preset'])}", file=path, field="preset"
            )
    except CannotRead as error:
        raise CannotRead(f"{error}; delete it, the records are what counts") from None
    return settings
