"""Build a model from a configuration, or copy a live one, with large weights on the meta device."""

import contextlib
import copy
import importlib
import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc.checkpoints.models.position_items import position_items
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign.text import error_text

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LARGE = 1 << 22
"""A weight of more numbers is on the meta device; tables of positions are smaller."""


def without_pooler(kind: type[nn.Module]) -> dict[str, Any]:
    """Return the arguments that build a model of a class without its optional pooler."""
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(kind).parameters else {}


def layers_with_own_keys(config: "PreTrainedConfig", layers: int) -> int:
    """Return the number of leading layers with their own K and V. Later layers share an earlier layer's (Gemma 3n)."""
    return layers - (getattr(config, "num_kv_shared_layers", 0) or 0)


def bare_model_class(config: "PreTrainedConfig") -> type[nn.Module]:
    """Return the class of transformers for a configuration, without a head if possible.

    The class is the encoder alone if the configuration names it. Raises CannotRead for an unknown configuration.
    """
    from transformers import PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING, MODEL_MAPPING

    try:
        text_encoder: Any = MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None)
        if text_encoder is not None and config.architectures == [text_encoder.__name__]:
            return text_encoder
        mapped_class: Any = MODEL_MAPPING[type(config)]
        return mapped_class[0] if isinstance(mapped_class, tuple) else mapped_class
    except KeyError:
        pass
    except ValueError as error:
        # transformers' table names a class that its package lacks.
        raise CannotRead(f"transformers has no model for {type(config).__name__}: {error_text(error)}") from error
    name = type(config).__module__.replace(".configuration_", ".modeling_")
    try:
        classes = vars(importlib.import_module(name)).values()
    except ImportError as error:
        raise CannotRead(f"transformers has no model for {type(config).__name__}: {error}") from error
    models = (c for c in classes if inspect.isclass(c) and issubclass(c, PreTrainedModel) and "forward" in vars(c))
    package = name.rpartition(".")[0]
    fitting = [c for c in models if c.__module__.rpartition(".")[0] == package]
    fitting = [c for c in fitting if getattr(c, "config_class", None) is type(config)]
    if not fitting:
        raise CannotRead(f"transformers has no model that is built from {type(config).__name__} alone")
    # Some files import parts of the model from other files.
    return min(fitting, key=lambda c: c.__module__ != name)


EMPTY = {torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand, torch.full}
"""Functions of torch that create a tensor of a size."""

MAX_TENSORS = 100_000
"""The most tensors of a model: the largest, with each expert by itself, have some 50,000."""

MAX_FILLED_BYTES = 1 << 28
"""The most bytes of zeros, ones and the like in a skeleton; empty weights take no memory."""

SMALL = 1 << 12
"""An empty tensor of at most so many numbers is filled with zeros."""

MAX_ARANGE = 1 << 17
"""The longest arange of a skeleton: longer tables of sines are on the meta device."""

DRAWS = {
    *(Tensor.normal_, Tensor.uniform_, Tensor.random_, Tensor.bernoulli_, Tensor.exponential_, Tensor.geometric_),
    *(nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_),
}
"""Functions of torch that fill a tensor with random numbers, which a skeleton skips."""


class HollowMode(TorchFunctionMode):
    """A mode of this thread that creates large tensors on the meta device, and draws no random numbers.

    `torch.tensor([])` is there too, because transformers tests by one whether there are weights to initialise; after
    MAX_FILLED_BYTES every new tensor is.

    Raises CannotRead after MAX_TENSORS tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensor_count = self.filled_bytes = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        if func is torch.tensor and len(args) == 1 and args[0] == []:
            return func([], **kwargs | {"device": "meta"})
        if func in EMPTY:
            size = kwargs.get("size", args[0] if args and not isinstance(args[0], int) else args)
            numbers = math.prod(size) if all(isinstance(n, int) for n in size) else 0
            self.tensor_count += 1
            if self.tensor_count > MAX_TENSORS:
                raise CannotRead(f"it has more than {MAX_TENSORS:,} tensors")
            width = 1 if kwargs.get("dtype") in (bool, torch.bool) else 4
            self.filled_bytes += width * numbers if numbers <= LARGE and func is not torch.empty else 0
            if numbers > LARGE or self.filled_bytes > MAX_FILLED_BYTES:
                kwargs = {**kwargs, "device": "meta"}
            # Empty sinks and biases would have arbitrary numbers.
            instead: dict[Any, Any] = {torch.randn: torch.zeros, torch.rand: torch.zeros}
            if numbers <= SMALL:
                instead[torch.empty] = torch.zeros
            func = instead.get(func, func)
        if func is torch.arange and max((abs(n) for n in args if isinstance(n, (int, float))), default=0) > MAX_ARANGE:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def skeleton(config: "PreTrainedConfig") -> nn.Module:
    """Build the model of a configuration at its full size, with its large weights on the meta device.

    Other threads may build models at the same time, and no random number is drawn. Raises CannotRead, with the reason,
    if transformers cannot build it.
    """
    cls = bare_model_class(config)
    # A file must not choose the code that runs.
    config._attn_implementation = config._experts_implementation = "eager"
    set_float32(config)
    try:
        with HollowMode():
            model = cls(config)
    except Exception as error:
        raise CannotRead(f"transformers cannot build {cls.__name__} from its config: {error_text(error)}") from error
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None and param.numel() > LARGE and not is_shape(param):
                # Old constructors, such as torch.Tensor(n, m), allocate memory that is not written yet.
                module._parameters[name] = nn.Parameter(torch.empty_like(param, device="meta"))
    for param in model.parameters():
        param.requires_grad_(False)
    # Frozen tables of sines are computed when weights are initialised.
    for item in [item for item in position_items(model) if item.kind == "table"]:
        if item.values is not None and not is_shape(item.values):
            item.values.zero_()
        # Whisper's encoder fills its own table.
        for path in dict.fromkeys((owner := item.path.rpartition(".")[0], owner.rpartition(".")[0])):
            initialise(model, model.get_submodule(path))
    return model.eval()


def set_float32(config: object) -> None:
    """Set float32 in a configuration and in nested ones, each of which sets the dtype of a part."""
    if hasattr(config, "to_dict"):
        settings: Any = config
        settings.dtype, config = torch.float32, vars(settings)
    for inner in config.values() if isinstance(config, dict) else config if isinstance(config, (list, tuple)) else ():
        set_float32(inner)


def hollow_copy(model: nn.Module) -> nn.Module:
    """Copy a live model. Its large tensors are on the meta device, the others in float32 on the CPU.

    The copy has no hooks, so a dry run of it calls none; the model does not change. Raises CannotRead if it cannot be
    copied.
    """
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        dtype = torch.float32 if tensor.is_floating_point() else None
        value = torch.empty(tensor.shape, dtype=dtype, device="meta")
        if tensor.numel() <= LARGE and not is_shape(tensor):
            value = tensor.detach().to("cpu", dtype, copy=True)
        memo[id(tensor)] = nn.Parameter(value, requires_grad=False) if isinstance(tensor, nn.Parameter) else value
    try:
        twin: Any = copy.deepcopy(model, memo)
    except Exception as error:
        raise CannotRead(f"{type(model).__name__} cannot be copied to be looked at: {error_text(error)}") from error
    for module in twin.modules():
        for name, hooks in vars(module).items():
            if name.endswith("_hooks") and isinstance(hooks, dict):
                hooks.clear()
    twin.config._attn_implementation = twin.config._experts_implementation = "eager"
    return twin.eval()


def initialise(model: nn.Module, module: nn.Module) -> None:
    if not any(is_shape(param) for param in module.parameters(recurse=False)):
        with HollowMode(), contextlib.suppress(Exception):
            getattr(model, "_init_weights")(module)  # noqa: B009


def is_shape(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_meta


def as_meta(x: object) -> object:
    # A tensor without axes is a number, such as a size.
    return x.to("meta") if isinstance(x, Tensor) and x.dim() else x
