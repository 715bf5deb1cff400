"""The model of an experiment: the task's decoder or encoder, or the user's own module; and its logits."""

import inspect
import re
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from posenc.encoding.base import Encoding
from posenc.foreign import code, one_line, quote
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.places import Place, natural
from posenc.lab.experiments.recipes import hints
from posenc.lab.tasks import Batch, Task
from posenc.model.config import Config
from posenc.model.decoder import Decoder
from posenc.model.encoder import Encoder
from posenc.model.encoder_decoder import EncoderDecoder
from posenc.model.stack import Stack
from posenc.schedules import schedule_of


class Tagger(nn.Module):
    """An encoder with logits at every token: Encoder's states through one linear layer.

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


MODEL_CLASSES: dict[str, Any] = {"decoder": Decoder, "encoder": Tagger, "encoder_decoder": EncoderDecoder}


def model_of(experiment: Experiment, task: Task, *, with_stretch: bool = False) -> nn.Module:
    """The untrained model of an experiment; one seed gives all encodings the same weights outside the encoding.

    with_stretch  whether rotary has the experiment's stretch

    The user's own module gets those of these arguments that its constructor names: vocab, encoding (a spec, or a tuple
    of them), config (posenc.Config), dim, heads, layers, max_len, hints.

    Raises ValueError for a module that needs anything else, or whose forward takes no positions.
    """
    torch.manual_seed(experiment.seed)
    trained_tokens = task.tokens(experiment.train_length)
    longest = max([trained_tokens, *(task.tokens(n) for n in experiment.test_lengths)])
    schedule = schedule_of(experiment.stretch) if with_stretch else None
    config = experiment.config(trained_tokens)
    arguments = {"vocab": task.vocab, "config": config, "max_len": trained_tokens}
    arguments |= {"dim": config.dim, "heads": config.heads, "layers": config.layers}
    make = MODEL_CLASSES[task.reads] if experiment.model is None else own_module(experiment.model)

    def build(encoding: str | tuple[str, ...]) -> nn.Module:
        torch.manual_seed(experiment.seed)
        options = {"encoding": encoding, "hints": hints(trained_tokens, longest, task.axes, schedule)}
        return construct(make, {**arguments, **options}, experiment)

    model = build(experiment.spec)
    # An encoding that draws its initial values would change the random numbers of all modules after it.
    model.load_state_dict(matching_weights(build("none"), model), strict=False)
    return model


def construct(make: Any, arguments: dict[str, Any], experiment: Experiment) -> nn.Module:
    """Construct the module with the arguments that it names. Raises ValueError where it needs others."""
    if experiment.model is None:
        return make(arguments["vocab"], arguments["config"], encoding=arguments["encoding"], hints=arguments["hints"])
    parameters = inspect.signature(make).parameters
    required_names = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    missing_names = [name for name in required_names if name not in arguments]
    if missing_names or "encoding" not in parameters:
        problem = f"needs {', '.join(missing_names)}" if missing_names else "does not take encoding, its spec"
        raise ValueError(f"{experiment.model} {problem}; a model is made with any of {', '.join(arguments)}, by name")
    if "positions" not in inspect.signature(make.forward).parameters:
        raise ValueError(
            f"the forward of {experiment.model} takes no positions; it is called as model(ids, positions=Positions), "
            f"and gives logits [batch, tokens, vocab]"
        )
    return make(**{name: value for name, value in arguments.items() if name in parameters})


def own_module(name: str) -> type[nn.Module]:
    """The class of path/to/mine.py:Mine. Raises ValueError for another text, and as `code.load` does."""
    if not code.is_class_path(name):
        raise ValueError(f"model must be a module of your own, path/to/mine.py:Mine, got {quote(name)}")
    return code.load(name, nn.Module, "module", "torch.nn.Module")


def label_of(experiment: Experiment, model: nn.Module) -> str | None:
    """Return the spec with the user's own classes named by their `label`; None if no class has one.

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
    """Raise ValueError for a label that does not fit into tables and figures."""
    if not isinstance(label, str) or label != one_line(label) or not 0 < len(label) <= 40:
        raise ValueError(f"a label must be one line of 1 to 40 letters, got {quote(label)}")


def matching_weights(source: nn.Module, model: nn.Module) -> dict[str, Tensor]:
    """The weights of `source` that `model` has too, in the same shape."""
    state = model.state_dict()
    return {
        name: value for name, value in source.state_dict().items() if name in state and value.shape == state[name].shape
    }


def without_position(model: nn.Module, experiment: Experiment, task: Task) -> nn.Module:
    """The trained model without position: its weights around the encoding `none`."""
    return replace_encoding(model, experiment, task, "none")


def replace_encoding(model: nn.Module, experiment: Experiment, task: Task, spec: str) -> nn.Module:
    """The trained model's weights around another encoding, which it has not been trained with."""
    changed_model = model_of(replace(experiment, spec=spec, stretch=None), task)
    changed_model.load_state_dict(matching_weights(model, changed_model), strict=False)
    return changed_model.to(experiment.device).eval()


def stretched_model(model: nn.Module, experiment: Experiment, task: Task) -> nn.Module:
    """The trained model with the experiment's stretch, which it has not been trained with."""
    longer = model_of(experiment, task, with_stretch=True)
    longer.load_state_dict(model.state_dict())
    return longer.to(experiment.device).eval()


def logits_of(model: Any, batch: Batch, place: Place = natural, *, first: int = 0) -> Tensor:
    """Return the logits [B, T - first, vocab] of a model, compiled or not, from token `first` on."""
    at = place(batch.ids, batch.positions)
    if batch.source is not None:
        source_at = place(batch.source, batch.source_positions)
        return model(batch.source, batch.ids, positions=at, source_positions=source_at, only=slice(first, None))
    if isinstance(unwrap_model(model), Decoder):
        return model(batch.ids, positions=at, only=slice(first, None))
    return model(batch.ids, positions=at)[:, first:]


def unwrap_model(model: Any) -> Any:
    """The model inside torch.compile's and DistributedDataParallel's wrappers."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def attention_weights(model: nn.Module, batch: Batch, place: Place = natural) -> list[Tensor] | None:
    """The attention weights [B, heads, T, S] of each layer; None for the user's own module."""
    at = place(batch.ids, batch.positions)
    if isinstance(model, EncoderDecoder):
        assert batch.source is not None
        source_at = place(batch.source, batch.source_positions)
        _, weights = model(batch.source, batch.ids, positions=at, source_positions=source_at, need_weights=True)
        return [layer["self"] for layer in weights]
    if isinstance(model, (Decoder, Tagger)):
        return list(model(batch.ids, positions=at, need_weights=True)[1])
    return None


def encoding_parameters(model: nn.Module) -> int:
    """The number of parameters of a model's encodings, each counted once."""
    parameters = {id(p): p for stack in stacks_of(model) for p in stack.encodings.parameters()}
    return sum(p.numel() for p in parameters.values())


def stacks_of(model: nn.Module) -> list[Stack]:
    """The stacks of blocks of a model."""
    return [module for module in model.modules() if isinstance(module, Stack)]
