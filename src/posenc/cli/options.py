"""What several verbs take: how help writes what an option takes, and the settings of a run."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from tyro.conf import Positional, arg, subcommand
else:
    try:
        from tyro.conf import Positional, arg, subcommand
    except ModuleNotFoundError:

        class Mark:
            """What stands beside a type where tyro is not installed."""

            def __init__(self, *given: str, name: str | None = None, **told: Any) -> None:
                self.name = name

        class Positional(Mark):
            def __class_getitem__(cls, kind: Any) -> Any:
                return Annotated[kind, cls]

        arg = subcommand = Mark

__all__ = ["Positional", "subcommand"]


def unless_empty(default: str) -> str:
    """What help says of a default: nothing of one that is empty, because then the words beside it say what happens."""
    return "(optional)" if default in ("", "''", "None") else f"(default: {default})"


def taking(metavar: str) -> Any:
    """An option that help writes with a word for what it takes: PATH, NAME, SPEC (an encoding), TEXT, INT, FLOAT."""
    return arg(metavar=metavar, help_behavior_hint=unless_empty)


Whole = Annotated[int | None, taking("INT")]
Number = Annotated[float | None, taking("FLOAT")]
Name = Annotated[str | None, taking("NAME")]
OneSpec = Annotated[str | None, taking("SPEC")]
Folder = Annotated[Path | None, taking("PATH")]
# Every verb has a method of this name.
run_option = arg(name="run", metavar="PATH", help_behavior_hint=unless_empty)
Comparison = Annotated[Path | None, run_option]
Wholes = Annotated[tuple[int, ...], taking("INT ...")]
Numbers = Annotated[tuple[float, ...], taking("FLOAT ...")]
Names = Annotated[tuple[str, ...], taking("NAME ...")]
Labels = Annotated[tuple[str, ...], taking("SPEC=NAME ...")]
Specs = Annotated[tuple[str, ...], taking("SPEC ...")]
Files = Annotated[tuple[str, ...], taking("PATH ...")]
Texts = Annotated[tuple[str, ...], taking("TEXT ...")]
Source = Annotated[str, taking("PATH")]
File = Annotated[str | None, taking("PATH")]
Paths = Annotated[tuple[Path, ...], taking("PATH ...")]


@dataclass(kw_only=True)
class OfExperiment:
    """The settings of a run, as in posenc.lab.experiments.experiment.Experiment; what is left out is the recipe's."""

    train_length: Whole = None
    """The longest trained length (items of the task; text: tokens of a window)."""
    test_lengths: Wholes = ()
    """The longer lengths to test."""
    steps: Whole = None
    """Training steps."""
    tokens: Whole = None
    """Train until so many tokens were read, in place of steps."""
    seconds: Number = None
    """Train for so many CPU seconds, in place of steps."""
    batch: Whole = None
    """Sequences a step."""
    rate: Number = None
    """The highest learning rate."""
    matrix_rate: Number = None
    """The highest rate of Muon on the matrices of the blocks, such as 0.02; without it AdamW has them too."""
    schedule: Name = None
    """How the rate goes: cosine, or original (as in the original transformer, times the rate)."""
    layers: Whole = None
    """Layers of the model."""
    dim: Whole = None
    """Width of the model (channels)."""
    heads: Whole = None
    """Heads of the model."""
    kv_heads: Whole = None
    """Heads of keys and values."""
    head_dim: Whole = None
    """Width of a head (channels)."""
    hidden: Whole = None
    """Width of the feed-forward layers (channels)."""
    norm: Name = None
    """pre or post: where the layer norms are."""
    window: Wholes = ()
    """How many tokens a layer sees back; several are cycled over the layers, 0 sees all."""
    dropout: Number = None
    """The share of channels and weights that is dropped in training."""
    model: Name = None
    """path/to/mine.py:Mine, a torch module of your own in place of ours: Mine(vocab, encoding, ...)(ids, positions)."""
    text: File = None
    """A text file or a folder of them for tasks on text. Default: the Python standard library's own text."""
    test_map: OneSpec = None
    """A coordinate map of held-out positions. Default: what the map of training takes there."""
    device: Name = None
    """Where to compute: cpu, cuda, cuda:1, mps."""
    dtype: Name = None
    """float32 or bfloat16: what matrix products are computed in. Weights stay float32."""
    compile: bool = False
    """Put training steps through torch.compile: a graph for each trained length, of some ten seconds each."""

    def changes(self) -> dict[str, Any]:
        """What was given, by the names of Experiment."""
        given = {one.name: getattr(self, one.name) for one in fields(OfExperiment)}
        given["window"] = tuple(size or None for size in self.window) or None
        given["compile"] = self.compile or None
        given["test_lengths"] = self.test_lengths or None
        return {name: value for name, value in given.items() if value is not None}
