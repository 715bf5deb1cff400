"""What a transformers model's own modules do about position, found and measured without knowing any of their names.

A skeleton is a model of its full size whose weights are shapes only: it takes no memory to speak of, and its tables of
frequencies are real. A dry run of it turns unit vectors by the model's own rotary code.
"""

import contextlib
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_any, tree_map

from posenc.checkpoints.vocabulary.reading import CannotRead

SPEAKS_OF_POSITION = re.compile(
    r"rotary|rope|alibi|posit|relative|sinus|distance_emb|timescale|inv_freq|bias_table"
    r"|(?<![a-z])(rel_)?pos(?![a-z])|(?<![a-z])pos_?(emb|enc|bias|conv)|(?<![a-z])ape(?![a-z])|omega|(?<![a-z])wpe(?![a-z])"
)
"""Names, in small letters with underscores, of modules and tensors that carry position."""

NOT_POSITION = re.compile(r"positionwise|position_wise|post_|position_ids|_index$|composition|temporal_pos_bias_none")
"""Names that speak of position and carry none: layers for each token alone, and plain counts."""

APPLIES_ROTARY = re.compile(r"apply_\w*(rot|rope)")
MAKES_SLOPES = re.compile(r"alibi")

IDLE = re.compile(r"\.(mlp|feed_forward|ffn) \w*(MLP|FeedForward|FFN)$|\.experts \w*Experts$|\.(mamba|linear_attn) ")
"""Paths and classes of layers without attention, which take a token's channels and give as many back."""

MOST_CHANNELS = 1024
"""The channels of a head whose turns are measured: each is turned by itself, which takes some 200 MB in all."""

LARGE = 1 << 22
"""From so many numbers on, a weight of a skeleton is a shape only; tables of positions are smaller."""


@dataclass(frozen=True)
class Found:
    """A tensor or module of a model that carries position.

    kind         "frequencies" (radians per position), "table" (trained), "fixed" (computed numbers), "module" (no
                 tensors of its own)
    path         its name in the model
    owner        the module that holds it
    values       the tensor; None for a module
    config       the configuration of the nearest module around it that has one
    label        for frequencies: which of several the module holds, such as "sliding_attention"
    temperature  for frequencies: what its cosines and sines are multiplied by
    """

    kind: str
    path: str
    owner: nn.Module
    values: Tensor | None
    config: Any
    label: str = ""
    temperature: float = 1.0


@dataclass(frozen=True)
class Turn:
    """What one layer's rotary code does to the channels it is given, as matrices.

    path      the module that called it, such as "layers.3.self_attn"
    matrices  [T, D, D], row i the image of unit vector i at each of T tokens
    """

    path: str
    matrices: Tensor

    @property
    def temperature(self) -> float:
        """What turned channels are multiplied by: the length of an image at the first token, which is at position 0."""
        lengths = self.matrices[0].norm(dim=-1)
        moved = self.moved
        return float(lengths[moved].mean()) if moved.any() else 1.0

    @cached_property
    def relative(self) -> Tensor:
        """The turn since the first token [T, D, D], in the order of the channels before any shuffle of the code."""
        return self.matrices.double() @ torch.linalg.inv(self.matrices[0].double())

    @property
    def moved(self) -> Tensor:
        """Which channels turn [D]: those whose image differs between tokens."""
        return (self.matrices - self.matrices[:1]).abs().amax((0, 2)) > 1e-6

    def pairs(self) -> list[tuple[int, int, float]]:
        """The pairs of channels that turn together, and the angle of each at the second token (radians).

        Raises CannotRead where channels do not turn in pairs.
        """
        turn, pairs, seen = self.relative[1], [], set()
        for first in self.moved.nonzero().flatten().tolist():
            if first in seen:
                continue
            partners = [int(c) for c in (turn[first].abs() > 1e-7).nonzero() if int(c) != first]
            if len(partners) != 1:
                raise CannotRead(f"channel {first} of {self.path} turns with {len(partners)} others, not in a pair")
            second = partners[0]
            seen |= {first, second}
            pairs.append((first, second, float(torch.atan2(turn[first, second], turn[first, first]))))
        return pairs

    @property
    def layout(self) -> str | None:
        """ "half" or "interleaved", or None where the pairs lie otherwise, or nothing turns at this token."""
        pairs = self.pairs()
        if not pairs:
            return None
        start = min(first for first, _, _ in pairs)
        last = max(second for _, second, _ in pairs)
        if all(second == first + 1 for first, second, _ in pairs):
            return "interleaved"
        # Slow pairs may turn too little to be seen, so the width is not the number of pairs that were.
        steps = {second - first for first, second, _ in pairs}
        half = steps.pop()
        return "half" if not steps and last - start <= 2 * half else None


@dataclass
class Measured:
    """What a dry run saw.

    turns    the turns of each call of rotary code, in the order of the calls
    rows     path of a table that was looked up by position, one row further for each token -> the row of position 0
    slopes   the biases that code of ALiBi made, as it returned them
    failure  why the run ended early, or ""
    """

    turns: list[Turn] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    slopes: list[Tensor] = field(default_factory=list)
    failure: str = ""


def underscored(name: str) -> str:
    """A name in small letters: "Qwen2RotaryEmbedding" -> "qwen2_rotary_embedding"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def carries_position(name: str) -> bool:
    """Whether the name of a module or tensor speaks of position."""
    name = underscored(name)
    return bool(SPEAKS_OF_POSITION.search(name)) and not NOT_POSITION.search(name)


def model_class(config: Any) -> type[nn.Module]:
    """The class of transformers that a configuration belongs to, without a head where there is one without.

    Raises CannotRead where it knows none.
    """
    from transformers import PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    try:
        known: Any = MODEL_MAPPING[type(config)]
        return known[0] if isinstance(known, tuple) else known
    except KeyError:
        pass
    except ValueError as error:
        # It is on transformers' list, and transformers does not have it.
        raise CannotRead(f"transformers has no model for {type(config).__name__}: {in_short(error)}") from error
    name = type(config).__module__.replace(".configuration_", ".modeling_")
    try:
        classes = vars(importlib.import_module(name)).values()
    except ImportError as error:
        raise CannotRead(f"transformers has no model for {type(config).__name__}: {error}") from error
    own = [
        c
        for c in classes
        if inspect.isclass(c) and issubclass(c, PreTrainedModel) and c.__module__ == name and "forward" in vars(c)
    ]
    fitting = [c for c in own if getattr(c, "config_class", None) is type(config)]
    if not fitting:
        raise CannotRead(f"transformers has no model that is built from {type(config).__name__} alone")
    return fitting[0]


EMPTY = {torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand, torch.full}
"""Functions of torch that make a tensor of a size; for the last one the size is one argument."""

MOST_TENSORS = 100_000
"""The most tensors that a model is made of: with each expert by itself the largest have some 50,000."""

FILLED = 1 << 26
"""How many zeros, ones and the like a skeleton holds in all; they take memory, and weights that are left empty none."""

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
            self.filled += numbers if numbers <= LARGE and func is not torch.empty else 0
            if numbers > LARGE or self.filled > FILLED:
                kwargs = {**kwargs, "device": "meta"}
            func = {torch.randn: torch.zeros, torch.rand: torch.zeros}.get(func, func)
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
    try:
        with Hollow():
            model = cls(config)
    except Exception as error:
        raise CannotRead(
            f"transformers cannot build {cls.__name__} from its configuration: {in_short(error)}"
        ) from error
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


def initialise(model: Any, module: nn.Module) -> None:
    if not any(is_shape(param) for param in module.parameters(recurse=False)):
        with Hollow(), contextlib.suppress(Exception):
            model._init_weights(module)


def in_short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}"


def found(model: nn.Module, seen: "Measured | None" = None) -> list[Found]:
    """Everything in a model that carries position: by what its modules and tensors are called, and by what was seen.

    seen  a dry run, whose tables that were looked up by position count whatever they are called
    """
    out: list[Found] = []
    without: dict[str, Found] = {}
    by_position = set() if seen is None else set(seen.rows)
    for path, module, config in with_configs(model):
        speaks = carries_position(type(module).__name__)
        name = path.rpartition(".")[2]
        tensors = 0
        for tensor_name, values in [*module._parameters.items(), *module._buffers.items()]:
            if values is None or not values.is_floating_point() or "original" in tensor_name:
                continue
            full = f"{path}.{tensor_name}".lstrip(".")
            if tensor_name.endswith("inv_freq") and values.dim() == 1 and path:
                label = tensor_name.removesuffix("inv_freq").rstrip("_")
                out.append(Found("frequencies", full, module, values, config, label, temperature_of(module, label)))
                tensors += 1
            elif full in by_position or speaks or carries_position(tensor_name) or carries_position(name):
                kind = "table" if tensor_name in module._parameters else "fixed"
                out.append(Found(kind, full, module, values, config))
                tensors += 1
        if speaks and not tensors and not any(path.startswith(f"{empty}.") for empty in without):
            without[path] = Found("module", path, module, None, config)
    held = [item.path for item in out]
    return out + [item for path, item in without.items() if not any(h.startswith(f"{path}.") for h in held)]


def with_configs(model: nn.Module) -> Iterator[tuple[str, nn.Module, Any]]:
    """All modules with their paths, and the configuration of the nearest module around them that has one."""
    configs: dict[str, Any] = {}
    for path, module in model.named_modules():
        own = getattr(module, "config", None)
        configs[path] = own if own is not None and hasattr(own, "to_dict") else configs.get(path.rpartition(".")[0])
        yield path, module, configs[path]


def temperature_of(module: nn.Module, label: str) -> float:
    named = getattr(module, f"{label}_attention_scaling", None)
    return float(named if named is not None else getattr(module, "attention_scaling", 1.0))


MUCH_OF_LITTLE = {
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.baddbmm, torch.einsum),
    *(torch.add, Tensor.add, Tensor.__add__),
}
"""Functions of torch whose result may be far larger than what they are given: products, and sums over other axes."""


class Dry(TorchFunctionMode):
    """Whatever meets a shape becomes zeros of the shape that comes out, and so do projections; the rest is computed.

    What would come out large of little becomes a shape: attention among the patches of one image may take gigabytes.
    """

    def __init__(self, looked_up: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.looked_up = looked_up

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.embedding:
            self.looked_up(args[0], args[1])
        if func is nn.functional.linear:
            return torch.zeros(*args[0].shape[:-1], args[1].shape[0], dtype=args[0].dtype)
        if not tree_any(is_shape, (args, kwargs)):
            if func in MUCH_OF_LITTLE:
                out = func(*tree_map(as_meta, args), **tree_map(as_meta, kwargs))
                if out.numel() > LARGE:
                    return out
            return func(*args, **kwargs)
        if getattr(func, "__name__", "") == "__get__":
            out = func(*args, **kwargs)
            return torch.device("cpu") if isinstance(out, torch.device) else out
        to_meta = {"device": "meta"} if "device" in kwargs else {}
        out = func(*tree_map(as_meta, args), **{**tree_map(as_meta, kwargs), **to_meta})
        # What is large stays a shape: the experts of a mixture alone may take more memory than there is.
        return tree_map(lambda x: torch.zeros(x.shape, dtype=x.dtype) if is_shape(x) and x.numel() <= LARGE else x, out)


def is_shape(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_meta


def as_meta(x: object) -> object:
    return x.to("meta") if isinstance(x, Tensor) else x


@torch.no_grad()
def measure(model: nn.Module, inputs: Mapping[str, Tensor] | None = None) -> Measured:
    """Run a model, or a skeleton of one, and turn unit vectors by its own rotary code wherever that is called.

    inputs  what its `forward` is given; the default is what `usual_inputs` finds for it, a few tokens

    The first token has to stand at position 0. Its rotary code is every function of its modelling file whose name says
    that it applies rotary embeddings, called with the cosines and sines that the model made. Results do not depend on
    weights. A model that cannot be run is no error: `failure` says why, and what was seen before that is kept.
    """
    seen, stack = Measured(), [""]
    tables = {id(p): path for path, p in model.named_parameters()}

    def looked_up(indices: Tensor, weight: Tensor) -> None:
        path = tables.get(id(weight))
        if path and not is_shape(indices) and indices.numel() > 1:
            rows = indices.flatten() - indices.flatten()[0]
            if rows.equal(torch.arange(len(rows))):
                seen.rows.setdefault(path, int(indices.flatten()[0]))

    def enter(path: str) -> Callable[..., None]:
        return lambda module, args: stack.append(path)

    with ExitStack() as undo:
        for path, module in model.named_modules():
            undo.callback(module.register_forward_pre_hook(enter(path)).remove)
            undo.callback(module.register_forward_hook(lambda *_: stack.pop() and None).remove)
        for path, module in model.named_modules():
            chooses = any(name in ("experts", "router", "gate") for name, _ in module.named_children())
            if IDLE.search(f"{path} {type(module).__name__}") and not chooses and "forward" not in vars(module):
                module.forward = idle
                undo.callback(delattr, module, "forward")
        turned = {code: turning(function, stack, seen) for code, function in rotary_functions(model)}
        made = {code: keeping(seen) for code, _ in functions(model, MAKES_SLOPES)}
        undo.enter_context(watched(turned, made))
        try:
            given = usual_inputs(model) if inputs is None else inputs
            with Dry(looked_up):
                model(**given)
        except Exception as error:
            seen.failure = in_short(error)
    return seen


def idle(*args: Any, **kwargs: Any) -> Tensor:
    """What stands in for layers without attention, which would take the longest: what comes in goes out."""
    return next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))


def usual_inputs(model: nn.Module) -> dict[str, Any]:
    """Something to give to a model's `forward`: a few tokens, or an image of its own size; batch 1."""
    config: Any = model.config
    # As many tokens as nothing else in the model, or its heads could be taken for them.
    taken = set(whole_numbers(config.to_dict()))
    tokens = next(n for n in range(4, len(taken) + 5) if n not in taken)
    accepted = inspect.signature(model.forward).parameters
    name = getattr(model, "main_input_name", "input_ids")
    if "grid_thw" in accepted:
        rows, columns = 4, 8
        patch = getattr(config, "patch_size", 14)
        width = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
        width *= getattr(config, "temporal_patch_size", 1) * patch**2
        first = next(iter(accepted))
        return {first: torch.zeros(rows * columns, width), "grid_thw": torch.tensor([[1, rows, columns]])}
    inputs: dict[str, Any] = {}
    if name == "pixel_values":
        # Rotary towers take any image, and a small one tells as much.
        patch = getattr(config, "patch_size", None)
        small = isinstance(patch, int) and any(item.kind == "frequencies" for item in found(model))
        size = 4 * patch if small and patch else getattr(config, "image_size", 224) or 224
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        inputs[name] = torch.zeros(1, getattr(config, "num_channels", 3), height, width)
    elif name == "input_features" and isinstance(getattr(config, "num_mel_bins", None), int):
        frames = 2 * (getattr(config, "max_source_positions", None) or 50)
        inputs[name] = torch.zeros(1, config.num_mel_bins, frames)
    else:
        inputs["input_ids"] = torch.full((1, tokens), 7)
    if "decoder_input_ids" in accepted:
        inputs["decoder_input_ids"] = torch.full((1, tokens), 7)
    if "use_cache" in accepted:
        inputs["use_cache"] = False
    return inputs


def whole_numbers(values: Mapping[str, Any]) -> Iterator[int]:
    """Every whole number in a configuration, and in those within it."""
    for value in values.values():
        if isinstance(value, Mapping):
            yield from whole_numbers(value)
        elif isinstance(value, int):
            yield value


def functions(model: nn.Module, called: re.Pattern[str]) -> Iterator[tuple[CodeType, Callable[..., Any]]]:
    """The functions in the modelling files of a model whose names say something, by their code."""
    for file in sorted({type(module).__module__ for module in model.modules()}):
        if not file.startswith("torch."):
            yield from coded(vars(sys.modules[file]), called)


def rotary_functions(model: nn.Module) -> Iterator[tuple[CodeType, Callable[..., Any]]]:
    """Rotary code: functions of modelling files, and static methods of modules."""
    yield from functions(model, APPLIES_ROTARY)
    for cls in {type(module) for module in model.modules()}:
        static = {name: value.__func__ for name, value in vars(cls).items() if isinstance(value, staticmethod)}
        yield from coded(static, APPLIES_ROTARY)


def coded(names: Mapping[str, Any], called: re.Pattern[str]) -> Iterator[tuple[CodeType, Callable[..., Any]]]:
    for name, value in names.items():
        function = inspect.unwrap(value) if inspect.isroutine(value) and called.search(name.lower()) else None
        if inspect.isfunction(function):
            yield function.__code__, function


@contextmanager
def watched(
    called: Mapping[CodeType, Callable[[dict[str, Any]], None]], returned: Mapping[CodeType, Callable[[Any], None]]
) -> Generator[None]:
    """Be told, in this thread alone, what functions are called with and what they return; none of them is replaced.

    called    by a function's code, what is given its arguments by name when it is called
    returned  by a function's code, what is given its result
    """

    def profile(frame: FrameType, event: str, result: Any) -> None:
        if event == "call" and frame.f_code in called:
            names, _, keywords, values = inspect.getargvalues(frame)
            called[frame.f_code]({name: values[name] for name in names} | (values[keywords] if keywords else {}))
        elif event == "return" and frame.f_code in returned:
            returned[frame.f_code](result)

    before: Any = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        # A profiler of the caller's is an object that is switched on again, or a function.
        before.enable() if hasattr(before, "enable") else sys.setprofile(before)


def turning(function: Callable[..., Any], stack: list[str], seen: Measured) -> Callable[[dict[str, Any]], None]:
    """What turns unit vectors by a function of rotary code, in place of the first tensor that it was called to turn."""
    known: dict[Any, Tensor | None] = {}

    def called(given: dict[str, Any]) -> None:
        # Layers mostly share their cosines and sines.
        tensors = [x for x in given.values() if isinstance(x, Tensor)]
        key = tuple((tuple(x.shape), digest(x) if x.shape != tensors[0].shape else 0) for x in tensors)
        if key not in known:
            known[key] = images(function, given)
        matrices = known[key]
        if matrices is not None:
            seen.turns.append(Turn(stack[-1], matrices))

    return called


def digest(x: Tensor) -> int:
    return (
        0 if is_shape(x) else hash(torch.view_as_real(x).numpy().tobytes() if x.is_complex() else x.numpy().tobytes())
    )


def images(function: Callable[..., Any], given: Mapping[str, Any]) -> Tensor | None:
    """The images [T, D, D] of unit vectors, one a row, under rotary code as it was called; None where none came out.

    Raises CannotRead where what it was called with is too large to be turned.
    """
    if any(is_shape(x) or x.numel() > LARGE for x in given.values() if isinstance(x, Tensor)):
        raise CannotRead(f"its rotary code was called with tensors of more than {LARGE:,} numbers")
    # Here all numbers count: none may become a shape, as elsewhere in a dry run, or the zeros of one.
    with torch._C.DisableTorchFunction():
        return turned_units(function, given)


def turned_units(function: Callable[..., Any], given: Mapping[str, Any]) -> Tensor | None:
    out = function(**given)
    turned = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, Tensor)]
    # The queries are the first tensor that comes out with the shape that it went in.
    name = next((n for n, x in given.items() if isinstance(x, Tensor) and turned and x.shape == turned[0].shape), None)
    if name is None:
        return None
    like = given[name]
    channels, tokens = like.shape[-1], token_axis(like, given)
    if channels > MOST_CHANNELS:
        raise CannotRead(f"a head has {channels:,} channels; the turns of at most {MOST_CHANNELS:,} are measured")
    unit, rows = torch.eye(channels), []
    if like.dim() == 4 and like.shape[0] == 1 and tokens:
        # As many unit vectors as memory is meant for at once, in the place of the batch.
        for some in unit.split(max(1, LARGE // like.numel())):
            image = function(**{**given, name: some[:, None, None].expand(-1, *like.shape[1:]).contiguous()})
            image = image[0] if isinstance(image, tuple) else image
            rows.append(image.movedim(tokens, 1)[:, :, 0])
        return torch.cat(rows).movedim(0, 1)
    for row in unit:
        image = function(**{**given, name: row.expand(like.shape).contiguous()})
        image = image[0] if isinstance(image, tuple) else image
        image = image.movedim(tokens, 0)
        while image.dim() > 2:
            image = image[:, 0]
        rows.append(image)
    return torch.stack(rows, 1)


def token_axis(like: Tensor, given: Mapping[str, Any]) -> int:
    """Which axis of the queries counts tokens: the longest that cosines, or whatever came with them, has too."""
    tables = [x for n, x in given.items() if isinstance(x, Tensor) and x is not like and x.shape != like.shape]
    sizes = {n for x in tables for n in x.shape[:-1]} or set(like.shape[:-1])
    axes = [axis for axis in range(like.dim() - 1) if like.shape[axis] in sizes and like.shape[axis] > 1]
    return axes[-1] if axes else like.dim() - 2


def keeping(seen: Measured) -> Callable[[Any], None]:
    """What keeps the slopes that a function returned."""

    def returned(result: Any) -> None:
        if isinstance(result, Tensor):
            seen.slopes.append(result.detach())

    return returned
