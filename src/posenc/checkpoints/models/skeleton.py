"""Models without their numbers: of a configuration, or of a live model, with shapes in place of large weights."""

import contextlib
import copy
import importlib
import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc.checkpoints.models.found import found
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign.text import told

LARGE = 1 << 22
"""From so many numbers on, a weight of a skeleton is a shape only; tables of positions are smaller."""


def without_pooler(kind: Any) -> dict[str, Any]:
    """What a class of transformers is made with besides its config to have no pooler, where it could have one."""
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(kind).parameters else {}


def with_own_keys(config: Any, layers: int) -> int:
    """How many of so many layers have keys of their own; those behind them attend to keys of others."""
    return layers - (getattr(config, "num_kv_shared_layers", 0) or 0)


def model_class(config: Any) -> type[nn.Module]:
    """The class of transformers that a configuration belongs to, without a head where there is one without.

    Of an encoder and a decoder it is the encoder's where the configuration says that there is no more. Raises
    CannotRead where it knows none.
    """
    from transformers import PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING, MODEL_MAPPING

    try:
        alone: Any = MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None)
        if alone is not None and config.architectures == [alone.__name__]:
            return alone
        known: Any = MODEL_MAPPING[type(config)]
        return known[0] if isinstance(known, tuple) else known
    except KeyError:
        pass
    except ValueError as error:
        # It is on transformers' list, and transformers does not have it.
        raise CannotRead(f"transformers has no model for {type(config).__name__}: {told(error)}") from error
    name = type(config).__module__.replace(".configuration_", ".modeling_")
    try:
        classes = vars(importlib.import_module(name)).values()
    except ImportError as error:
        raise CannotRead(f"transformers has no model for {type(config).__name__}: {error}") from error
    own = [
        c
        for c in classes
        if inspect.isclass(c)
        and issubclass(c, PreTrainedModel)
        and "forward" in vars(c)
        and c.__module__.rpartition(".")[0] == name.rpartition(".")[0]
    ]
    fitting = [c for c in own if getattr(c, "config_class", None) is type(config)]
    if not fitting:
        raise CannotRead(f"transformers has no model that is built from {type(config).__name__} alone")
    # Some files bring in parts of the model from others.
    return min(fitting, key=lambda c: c.__module__ != name)


EMPTY = {torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand, torch.full}
"""Functions of torch that make a tensor of a size; for the last one the size is one argument."""

MOST_TENSORS = 100_000
"""The most tensors that a model is made of: with each expert by itself the largest have some 50,000."""

FILLED = 1 << 28
"""How many bytes of zeros, ones and the like a skeleton holds in all; weights that are left empty take no memory."""

SMALL = 1 << 12
"""Up to so many numbers a tensor that is left empty holds zeros."""

COUNTED = 1 << 17
"""How far a skeleton counts: tables of sines for longer texts are shapes only."""

DRAWS = {
    *(Tensor.normal_, Tensor.uniform_, Tensor.random_, Tensor.bernoulli_, Tensor.exponential_, Tensor.geometric_),
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_),
}
"""Functions of torch that fill a tensor with random numbers."""


class Hollow(TorchFunctionMode):
    """In this thread large new tensors are shapes only, and nothing is drawn at random.

    A tensor of no numbers is a shape too: by one, transformers asks whether there are any weights to initialise. Once
    so many numbers are filled in that no model of a sane size has them, so is every tensor.

    Raises CannotRead for more tensors than any model has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made = self.filled = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        if func is torch.tensor and len(args) == 1 and args[0] == []:
            return func([], **kwargs | {"device": "meta"})
        if func in EMPTY:
            size = kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args)
            numbers = math.prod(size) if all(isinstance(n, int) for n in size) else 0
            self.made += 1
            if self.made > MOST_TENSORS:
                raise CannotRead(f"it has more than {MOST_TENSORS:,} tensors")
            width = 1 if kwargs.get("dtype") in (bool, torch.bool) else 4
            self.filled += width * numbers if numbers <= LARGE and func is not torch.empty else 0
            if numbers > LARGE or self.filled > FILLED:
                kwargs = {**kwargs, "device": "meta"}
            # Sinks and biases that are left empty would hold whatever lay there.
            instead: dict[Any, Any] = {torch.randn: torch.zeros, torch.rand: torch.zeros}
            if numbers <= SMALL:
                instead[torch.empty] = torch.zeros
            func = instead.get(func, func)
        if func is torch.arange and max((abs(n) for n in args if isinstance(n, (int, float))), default=0) > COUNTED:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def skeleton(config: Any) -> nn.Module:
    """The model of a configuration, at its full size, with shapes in place of its large weights; nothing is computed.

    Other threads may build models meanwhile: nothing is changed but what this one makes, and no random number is drawn.
    Raises CannotRead, with the reason, where transformers cannot build it.
    """
    cls = model_class(config)
    # No file chooses the code that computes.
    config._attn_implementation = config._experts_implementation = "eager"
    in_float32(config)
    try:
        with Hollow():
            model = cls(config)
    except Exception as error:
        raise CannotRead(f"transformers cannot build {cls.__name__} from its configuration: {told(error)}") from error
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None and param.numel() > LARGE and not is_shape(param):
                # Old constructors, such as torch.Tensor(n, m), make memory that nobody has touched yet.
                module._parameters[name] = nn.Parameter(torch.empty_like(param, device="meta"))
    for param in model.parameters():
        param.requires_grad_(False)
    # Tables of sines that are trained no further are made when weights are initialised.
    for item in [item for item in found(model) if item.kind == "table"]:
        if item.values is not None and not is_shape(item.values):
            item.values.zero_()
        # Whisper's encoder fills the table that it holds.
        for path in dict.fromkeys((owner := item.path.rpartition(".")[0], owner.rpartition(".")[0])):
            initialise(model, model.get_submodule(path))
    return model.eval()


def in_float32(config: Any) -> None:
    """Say float32 in a configuration and in all within it: a part is built in the dtype that its own one names."""
    if hasattr(config, "to_dict"):
        config.dtype, config = torch.float32, vars(config)
    for inner in config.values() if isinstance(config, dict) else config if isinstance(config, (list, tuple)) else ():
        in_float32(inner)


def hollow(model: nn.Module) -> Any:
    """A copy of a live model, with shapes in place of its large tensors, the others in float32 on the CPU.

    It has no hooks, so that nobody is told of what is tried on it; the model is not touched. Raises CannotRead where
    it cannot be copied.
    """
    instead: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        of: dict[str, Any] = {"dtype": torch.float32} if tensor.is_floating_point() else {}
        small = tensor.numel() <= LARGE and not is_shape(tensor)
        value = tensor.detach().to("cpu", copy=True, **of) if small else torch.empty(tensor.shape, device="meta", **of)
        instead[id(tensor)] = nn.Parameter(value, requires_grad=False) if isinstance(tensor, nn.Parameter) else value
    try:
        copied: Any = copy.deepcopy(model, instead)
    except Exception as error:
        raise CannotRead(f"{type(model).__name__} cannot be copied to be looked at: {told(error)}") from error
    for module in copied.modules():
        for name, held in vars(module).items():
            if name.endswith("_hooks") and isinstance(held, dict):
                held.clear()
    copied.config._attn_implementation = copied.config._experts_implementation = "eager"
    return copied.eval()


def initialise(model: Any, module: nn.Module) -> None:
    if not any(is_shape(param) for param in module.parameters(recurse=False)):
        with Hollow(), contextlib.suppress(Exception):
            model._init_weights(module)


def is_shape(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_meta


def as_meta(x: object) -> object:
    # A tensor without axes is a number, such as a size.
    return x.to("meta") if isinstance(x, Tensor) and x.dim() else x
