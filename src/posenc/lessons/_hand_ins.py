"""Reads other work than answers: a trained model, numbers measured with one, or the learner's own code.

A lesson that takes such work defines HAND_IN: a reader, and the promises that it checks. No file of numbers or weights
can name code; the learner's file runs because it was named on the command line.
"""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc.foreign import CannotRead, code, open_regular, quote, read, read_json, shorten


@dataclass(frozen=True)
class HandIn:
    """The work handed in, as named on the command line.

    what     a run's folder, path/to/file.py:Name, or a file of numbers
    weights  the state dict of path/to/file.py:Name
    run      the folder of the run in which the numbers were measured
    text     the training text of a language model path/to/file.py:Name
    """

    what: str
    weights: str | None = None
    run: str | None = None
    text: str | None = None

    def check(self, expected: str, fits: bool, *options: str) -> None:
        """Raise ValueError if the lesson takes other work, or an option is missing or has no effect."""
        if not fits:
            raise ValueError(f"this lesson takes answers (.py, .ipynb) or {expected}, got {quote(self.what)}")
        for name in ("weights", "run", "text"):
            if (getattr(self, name) is not None) != (name in options):
                problem = f"{quote(self.what)} needs --{name}" if name in options else f"--{name} has no use here"
                raise ValueError(f"{problem}; this lesson takes {expected}")


@dataclass(frozen=True)
class TrainedModel:
    """A trained model in evaluation mode, with its run. A learner's class has no run, but the text."""

    module: nn.Module
    run: Any = None
    text: str | None = None

    def scores(self, ids: Tensor) -> Tensor:
        """Return scores [B, T, vocab] of ids [B, T]; of a tuple, its first element."""
        result = self.module(ids)
        return result[0] if isinstance(result, tuple) else result


@dataclass(frozen=True)
class Numbers:
    """Named numbers, and the run in which they were measured."""

    named: dict[str, Tensor]
    run: Any

    def take(self, name: str) -> Tensor:
        """Return the numbers with a name. Raises AssertionError if they are missing."""
        assert name in self.named, f"there is no {name!r} in it; it has {', '.join(self.named) or 'nothing'}"
        return self.named[name]


def run_of(folder: str | Path) -> Any:
    from posenc.lab.runs import checkpoint

    run = checkpoint.load(Path(folder), to_train=False)
    run.model.eval()
    return run


def read_model(hand_in: HandIn, of_text: bool = False) -> TrainedModel:
    """Return the model of a run's folder, or of path/to/file.py:Class and its weights.

    of_text  whether the lesson needs a language model, which belongs to a text
    """
    expected = f"a run's folder, or path/to/mine.py:Class with --weights FILE{' and --text FILE' * of_text}"
    if Path(hand_in.what).is_dir():
        hand_in.check(expected, True)
        run = run_of(hand_in.what)
        if run.task.in_bits != of_text:
            kind = "a language model" if of_text else "a model that reverses"
            task = run.experiment.task
            raise ValueError(f"this lesson asks for {kind}, and {quote(hand_in.what)} is a run of {task}")
        return TrainedModel(run.model, run)
    hand_in.check(expected, code.is_class_path(hand_in.what), "weights", *["text"] * of_text)
    model_class = code.load(hand_in.what, nn.Module, "module", "torch.nn.Module")
    try:
        module = model_class().eval()
    except TypeError as error:
        raise ValueError(f"{hand_in.what} has to be built without arguments ({error}); give defaults") from None
    try:
        module.load_state_dict(read_tensors(str(hand_in.weights)))
    except RuntimeError as error:
        raise ValueError(
            f"{hand_in.weights} does not fit {hand_in.what}: {shorten(' '.join(str(error).split()), 200)}"
        ) from None
    return TrainedModel(module, None, hand_in.text)


def read_numbers(hand_in: HandIn) -> Numbers:
    """Return the numbers of a file, with their run."""
    fits = Path(hand_in.what).suffix in READERS
    hand_in.check(f"numbers by their names ({', '.join(READERS)}) with --run FOLDER, of which they are", fits, "run")
    return Numbers(read_tensors(hand_in.what), run_of(str(hand_in.run)))


def definition(hand_in: HandIn) -> Callable[..., Any]:
    """Return the function or class path/to/file.py:Name."""
    hand_in.check("path/to/mine.py:Name, a function or class of yours", code.is_class_path(hand_in.what))
    path, _, name = hand_in.what.rpartition(":")
    function_or_class = getattr(code.import_file(path), name, None)
    if not callable(function_or_class):
        raise ValueError(f"{quote(path)} has no function or class named {quote(name)}")
    return function_or_class


def read_tensors(path: str) -> dict[str, Tensor]:
    """Return the tensors of a file by name. Raises CannotRead unless the file holds numbers only."""
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
    """Return the columns of a CSV file, by the names in its first line."""
    rows = list(csv.DictReader(io.StringIO(read(path).decode())))
    return {name: [float(row[name]) for row in rows] for name in (rows[0] if rows else ())}


def weights_file(path: str) -> dict[str, Tensor]:
    from posenc.lab import safetensors_file

    entries, _ = safetensors_file.read_header(Path(path))
    return {name: safetensors_file.read_tensor(entry) for name, entry in entries.items()}


def arrays(path: str) -> dict[str, Any]:
    import numpy

    with open_regular(path) as file:
        return dict(numpy.load(file))


def torch_file(path: str) -> dict[str, Tensor]:
    with open_regular(path) as file:
        return torch.load(file, map_location="cpu", weights_only=True)


READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    ".safetensors": weights_file, ".pt": torch_file, ".pth": torch_file, ".npz": arrays, ".json": read_json,
    ".csv": columns,
}  # fmt: skip
"""The reader of a file of numbers, by the suffix of its name."""
