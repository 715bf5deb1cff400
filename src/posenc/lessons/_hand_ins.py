"""What learners hand in beside answers: a trained model, numbers that they measured of one, code of their own.

A lesson that takes one says so in HAND_IN: who reads it, and the promises that it is held to. No file of numbers or
weights can name code; the learner's file runs because it was named on the command line.
"""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc.foreign import CannotRead, code, opened, quoted, read, read_json, shortened


@dataclass(frozen=True)
class HandIn:
    """What stands on the command line.

    what     a run's folder, path/to/file.py:Name, or a file of numbers
    weights  the state dict of path/to/file.py:Name
    run      the folder of the run of which the numbers are
    text     what a language model of path/to/file.py:Name was trained on
    """

    what: str
    weights: str | None = None
    run: str | None = None
    text: str | None = None

    def check(self, wanted: str, fits: bool, *options: str) -> None:
        """Raises ValueError where it is not what the lesson takes, or an option is missing or has no use."""
        if not fits:
            raise ValueError(f"this lesson takes answers (.py, .ipynb) or {wanted}, got {quoted(self.what)}")
        for name in ("weights", "run", "text"):
            if (getattr(self, name) is not None) != (name in options):
                more = f"{quoted(self.what)} needs --{name}" if name in options else f"--{name} has no use here"
                raise ValueError(f"{more}; this lesson takes {wanted}")


@dataclass(frozen=True)
class TrainedModel:
    """A trained model in evaluation; the run that it is of, or of a class of one's own None and its text."""

    module: nn.Module
    run: Any = None
    text: str | None = None

    def scores(self, ids: Tensor) -> Tensor:
        """Scores [B, T, vocab] of ids [B, T]; where a model gives a loss besides, they come first."""
        given = self.module(ids)
        return given[0] if isinstance(given, tuple) else given


@dataclass(frozen=True)
class Numbers:
    """Numbers by their names, and the run of which they are."""

    named: dict[str, Tensor]
    run: Any

    def take(self, name: str) -> Tensor:
        """Those of a name. Raises AssertionError where they are missing."""
        assert name in self.named, f"there is no {name!r} in it; it has {', '.join(self.named) or 'nothing'}"
        return self.named[name]


def run_of(folder: str | Path) -> Any:
    from posenc.lab.runs import checkpoint

    run = checkpoint.load(Path(folder), to_train=False)
    run.model.eval()
    return run


def model_of(hand_in: HandIn, of_text: bool = False) -> TrainedModel:
    """The model of a run's folder, or of path/to/file.py:Class and its weights.

    of_text  whether the lesson asks for a language model, which belongs to a text
    """
    wanted = f"a run's folder, or path/to/mine.py:Class with --weights FILE{' and --text FILE' * of_text}"
    if Path(hand_in.what).is_dir():
        hand_in.check(wanted, True)
        run = run_of(hand_in.what)
        if run.task.in_bits != of_text:
            kind = "a language model" if of_text else "a model that reverses"
            raise ValueError(
                f"this lesson asks for {kind}, and {quoted(hand_in.what)} is a run of {run.experiment.task}"
            )
        return TrainedModel(run.model, run)
    hand_in.check(wanted, code.is_own(hand_in.what), "weights", *["text"] * of_text)
    made = code.load(hand_in.what, nn.Module, "module", "torch.nn.Module")
    try:
        module = made().eval()
    except TypeError as error:
        raise ValueError(f"{hand_in.what} has to be built without arguments ({error}); give defaults") from None
    try:
        module.load_state_dict(tensors(str(hand_in.weights)))
    except RuntimeError as error:
        raise ValueError(
            f"{hand_in.weights} does not fit {hand_in.what}: {shortened(' '.join(str(error).split()), 200)}"
        ) from None
    return TrainedModel(module, None, hand_in.text)


def numbers(hand_in: HandIn) -> Numbers:
    """Numbers of a file, and the run of which they are."""
    fits = Path(hand_in.what).suffix in READERS
    hand_in.check(f"numbers by their names ({', '.join(READERS)}) with --run FOLDER, of which they are", fits, "run")
    return Numbers(tensors(hand_in.what), run_of(str(hand_in.run)))


def definition(hand_in: HandIn) -> Callable[..., Any]:
    """The function or class of path/to/file.py:Name."""
    hand_in.check("path/to/mine.py:Name, a function or class of yours", code.is_own(hand_in.what))
    path, _, name = hand_in.what.rpartition(":")
    made = getattr(code.imported(path), name, None)
    if not callable(made):
        raise ValueError(f"{quoted(path)} has no function or class named {quoted(name)}")
    return made


def tensors(path: str) -> dict[str, Tensor]:
    """The tensors of a file by their names. Raises CannotRead for what is no file of numbers alone."""
    suffix = Path(path).suffix
    if suffix not in READERS:
        raise CannotRead(
            f"numbers are in a file of {', '.join(READERS)}", file=path, remedy="save them as one of these"
        )
    try:
        return {str(name): torch.as_tensor(value) for name, value in READERS[suffix](path).items()}
    except CannotRead:
        raise
    except Exception:  # each library has its own for what it cannot read
        remedy = "save a dict of tensors, such as model.state_dict()" if suffix in (".pt", ".pth") else "write it anew"
        raise CannotRead(
            "it does not hold numbers by their names, and nothing else", file=path, remedy=remedy
        ) from None


def columns(path: str) -> dict[str, list[float]]:
    """The columns of a CSV file, by the names in its first line."""
    rows = list(csv.DictReader(io.StringIO(read(path).decode())))
    return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else ())}


def weights_file(path: str) -> dict[str, Tensor]:
    from posenc.lab import safetensors_file

    entries, _ = safetensors_file.read_header(Path(path))
    return {name: safetensors_file.read_bytes(entry) for name, entry in entries.items()}


def arrays(path: str) -> dict[str, Any]:
    import numpy

    with opened(path) as file:
        return dict(numpy.load(file))


def torch_file(path: str) -> dict[str, Tensor]:
    with opened(path) as file:
        return torch.load(file, map_location="cpu", weights_only=True)


READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    ".safetensors": weights_file, ".pt": torch_file, ".pth": torch_file, ".npz": arrays, ".json": read_json,
    ".csv": columns,
}  # fmt: skip
"""How files of numbers are read, by the endings of their names."""
