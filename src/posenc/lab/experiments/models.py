"""The model of an experiment: the one that its task reads with, or a module of one's own; and how it is asked."""

import inspect
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from posenc.encoding.base import Encoding
from posenc.foreign import code, one_line, quoted
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.places import Places, counted
from posenc.lab.experiments.recipes import hints
from posenc.lab.tasks import Batch, Task
from posenc.model.config import Config
from posenc.model.decoder import Decoder
from posenc.model.encoder import Encoder
from posenc.model.encoder_decoder import EncoderDecoder
from posenc.model.stack import Stack
from posenc.schedules import schedule_of


class Tagger(nn.Module):
    """An encoder that says something at every token: Encoder's states through one linear layer.

    ids [B, T] -> logits [B, T, vocab]. The arguments are those of Encoder.

    >>> Tagger(11, Config(dim=32, heads=4, layers=2), encoding="rotary")(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 11])
    """

    def __init__(
        self, vocab: int, config: Config, encoding: str | tuple[str, ...], *, hints: dict | None = None
    ) -> None:
        super().__init__()
        self.encoder = Encoder(vocab, config, encoding=encoding, hints=hints)
        self.output = nn.Linear(config.dim, vocab)

    def forward(self, ids: Tensor, *, positions: Any = None, need_weights: Any = False) -> Any:
        """Logits, and with `need_weights` the attention weights of each layer."""
        states = self.encoder(ids, positions=positions, need_weights=need_weights)
        return (self.output(states[0]), states[1]) if need_weights else self.output(states)


OURS: dict[str, Any] = {"decoder": Decoder, "encoder": Tagger, "encoder_decoder": EncoderDecoder}


def model_of(experiment: Experiment, task: Task, *, stretched: bool = False) -> nn.Module:
    """The untrained model of an experiment: the same seed gives all encodings the same weights outside the encoding.

    stretched  whether rotary has the experiment's stretch

    A module of one's own is made with those of these arguments that its constructor names: vocab, encoding (a spec, or
    a tuple of them), config (posenc.Config), dim, heads, layers, max_len, hints.

    Raises ValueError for a module that needs anything else, or whose forward takes no positions.
    """
    torch.manual_seed(experiment.seed)
    trained = task.tokens(experiment.train_length)
    longest = max([trained, *(task.tokens(n) for n in experiment.test_lengths)])
    schedule = schedule_of(experiment.stretch) if stretched else None
    config = experiment.config(trained)
    given = {"vocab": task.vocab, "config": config, "max_len": trained}
    given |= {"dim": config.dim, "heads": config.heads, "layers": config.layers}
    make = OURS[task.reads] if experiment.model is None else own_module(experiment.model)

    def made(encoding: str | tuple[str, ...]) -> nn.Module:
        torch.manual_seed(experiment.seed)
        options = {"encoding": encoding, "hints": hints(trained, longest, task.axes, schedule)}
        return call(make, {**given, **options}, experiment)

    model = made(experiment.spec)
    # An encoding that draws its own first values would move the random numbers of everything built after it.
    model.load_state_dict(fitting(made("none"), model), strict=False)
    return model


def call(make: Any, given: dict[str, Any], experiment: Experiment) -> nn.Module:
    """The module, made with what it asks for. Raises ValueError where it needs something else."""
    if experiment.model is None:
        return make(given["vocab"], given["config"], encoding=given["encoding"], hints=given["hints"])
    parameters = inspect.signature(make).parameters
    needed = [
        name
        for name, one in parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    missing = [name for name in needed if name not in given]
    if missing or "encoding" not in parameters:
        wanted = f"needs {', '.join(missing)}" if missing else "does not take encoding, the spec that it is to have"
        raise ValueError(f"{experiment.model} {wanted}; a model is made with any of {', '.join(given)}, by name")
    if "positions" not in inspect.signature(make.forward).parameters:
        raise ValueError(
            f"the forward of {experiment.model} takes no positions; it is called as model(ids, positions=Positions), "
            f"and gives logits [batch, tokens, vocab]"
        )
    return make(**{name: value for name, value in given.items() if name in parameters})


def own_module(name: str) -> type[nn.Module]:
    """The class of path/to/mine.py:Mine. Raises ValueError for what is no such path, and as `code.load` does."""
    if not code.is_own(name):
        raise ValueError(f"model must be a module of your own, path/to/mine.py:Mine, got {quoted(name)}")
    return code.load(name, nn.Module, "module", "torch.nn.Module")


def label_of(experiment: Experiment, model: nn.Module) -> str | None:
    """The spec with the `label` of each class of the user's own in place of its name; None where no class has one.

    Raises ValueError for a label that is no name.
    """
    spec = " / ".join(experiment.specs)
    text = spec
    for cls in {type(module) for module in model.modules() if isinstance(module, Encoding)}:
        if label := getattr(cls, "label", None):
            check_label(label)
            text = re.sub(rf"[^\s+(),=]*\.py:{cls.__name__}\b", lambda _, label=label: label, text)
    return text if text != spec else None


def check_label(label: Any) -> None:
    """Raises ValueError for what is no name for tables and figures."""
    if not isinstance(label, str) or label != one_line(label) or not 0 < len(label) <= 40:
        raise ValueError(f"a label must be one line of 1 to 40 letters, got {quoted(label)}")


def fitting(source: nn.Module, model: nn.Module) -> dict[str, Tensor]:
    """Those weights of one model that another has too, in the same shape."""
    there = model.state_dict()
    return {
        name: value for name, value in source.state_dict().items() if name in there and value.shape == there[name].shape
    }


def without_position(model: nn.Module, experiment: Experiment, task: Task) -> nn.Module:
    """The trained model with no position at all: its own weights around the encoding `none`."""
    return around(model, experiment, task, "none")


def around(model: nn.Module, experiment: Experiment, task: Task, spec: str) -> nn.Module:
    """The trained model with another encoding, which it has not seen in training: its own weights around that one."""
    other = model_of(replace(experiment, spec=spec, stretch=None), task)
    other.load_state_dict(fitting(model, other), strict=False)
    return other.to(experiment.device).eval()


def stretched(model: nn.Module, experiment: Experiment, task: Task) -> nn.Module:
    """The trained model with the experiment's stretch, which it has not seen in training."""
    longer = model_of(experiment, task, stretched=True)
    longer.load_state_dict(model.state_dict())
    return longer.to(experiment.device).eval()


def logits_of(model: Any, batch: Batch, place: Places = counted, *, first: int = 0) -> Tensor:
    """What a model, or a function that was made of it, says at the tokens from `first` on: [B, T - first, vocab]."""
    at = place(batch.ids, batch.positions)
    if batch.source is not None:
        source_at = place(batch.source, batch.source_positions)
        return model(batch.source, batch.ids, positions=at, source_positions=source_at, only=slice(first, None))
    if isinstance(inside(model), Decoder):
        return model(batch.ids, positions=at, only=slice(first, None))
    return model(batch.ids, positions=at)[:, first:]


def inside(model: Any) -> Any:
    """The model itself, within what PyTorch's compiler and its data parallelism have made of it."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def weights_of(model: nn.Module, batch: Batch, place: Places = counted) -> list[Tensor] | None:
    """The attention weights [B, heads, T, S] of each layer; None of a module of one's own, which need not have any."""
    at = place(batch.ids, batch.positions)
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        source_at = place(batch.source, batch.source_positions)
        _, seen = model(batch.source, batch.ids, positions=at, source_positions=source_at, need_weights=True)
        return [layer["self"] for layer in seen]
    if isinstance(model, (Decoder, Tagger)):
        return list(model(batch.ids, positions=at, need_weights=True)[1])
    return None


def learned_by_encodings(model: nn.Module) -> int:
    """How many trained numbers the encodings of a model have, each counted once."""
    owned = {id(p): p for stack in stacks_of(model) for p in stack.encodings.parameters()}
    return sum(p.numel() for p in owned.values())


def stacks_of(model: nn.Module) -> list[Stack]:
    """The stacks of blocks that a model is made of."""
    return [module for module in model.modules() if isinstance(module, Stack)]
