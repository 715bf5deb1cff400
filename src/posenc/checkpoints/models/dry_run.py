"""A dry run of a model: which tables it looks up by position, what its rotary code does, which slopes it makes."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_any, tree_map

from posenc.checkpoints.models.attended import (
    APPLIES_ATTENTION,
    PRODUCTS,
    SOFTMAX,
    Attended,
    Attention,
    planted,
    projects,
)
from posenc.checkpoints.models.found import found
from posenc.checkpoints.models.skeleton import LARGE, as_meta, is_shape
from posenc.checkpoints.models.turns import Turn, coded, functions, rotary_functions, turning, watched
from posenc.foreign.text import told

MAKES_SLOPES = re.compile(r"alibi")
MAKES_BUCKETS = re.compile(r"relative_position_bucket$")

FURTHEST = 2048
"""How far distances are put into buckets (positions), before a token and behind it."""

IDLE = re.compile(r"\.(mlp|feed_forward|ffn) \w*(MLP|FeedForward|FFN)$|\.experts \w*Experts$|\.(mamba|linear_attn) ")
"""Paths and classes of layers without attention, which take a token's channels and give as many back."""


NORM = re.compile(r"(?<!Ada)(Layer|RMS|L2)Norm$")
"""Classes of norms: in a dry run they leave what comes in, which is of length 1 already."""

NORMS = {nn.functional.layer_norm, nn.functional.rms_norm, nn.functional.normalize}


@dataclass(frozen=True)
class Bucketed:
    """What a method of a module makes of distances.

    path     the module
    name     the method
    buckets  those of the distances from -FURTHEST to FURTHEST, positive for keys behind their query
    numbers  what it was called with besides, and the whole numbers that its module has
    """

    path: str
    name: str
    buckets: Tensor
    numbers: tuple[Any, ...]


@dataclass
class Measured:
    """What a dry run saw.

    turns    the turns of each call of rotary code, in the order of the calls
    rows     path of a table that was looked up by position, one row further for each token -> the row of position 0
    ids      path of a module that was given consecutive ids, one for each token -> the first of them
    slopes   the biases that code of ALiBi made, as it returned them
    buckets  the buckets into which methods of modules put distances
    attended each attention that ran, in order
    skipped  whether it was too short for some mask with an edge to be made at all
    entered  the paths of the modules that ran
    turners  how many functions of rotary code the model has, whether they were called or not
    failure  why the run ended early, or ""
    """

    turns: list[Turn] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    slopes: list[Tensor] = field(default_factory=list)
    buckets: list["Bucketed"] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)
    skipped: bool = False
    entered: set[str] = field(default_factory=set)
    turners: int = 0
    failure: str = ""


MUCH_OF_LITTLE = {*PRODUCTS, torch.add, Tensor.add, Tensor.__add__}
"""Functions of torch whose result may be far larger than what they are given: products, and sums over other axes."""


class Dry(TorchFunctionMode):
    """Whatever meets a shape becomes zeros of the shape that comes out; the rest is computed.

    Projections give what is planted, norms leave it, and attention is followed from its product to its softmax. What
    would come out large of little becomes a shape: attention among the patches of one image may take gigabytes.
    """

    def __init__(self, looked_up: Callable[[Tensor, Tensor], None], attention: Attention) -> None:
        super().__init__()
        self.looked_up, self.attention = looked_up, attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.embedding:
            self.looked_up(args[0], args[1])
        if func is Tensor.index_select and args[1] == 0:
            self.looked_up(args[2], args[0])
        if func is nn.functional.linear:
            return planted(*args[0].shape[:-1], args[1].shape[0], dtype=args[0].dtype)
        if projects(func, args):
            out = func(*tree_map(as_meta, args), **tree_map(as_meta, kwargs))
            return planted(*out.shape, dtype=out.dtype)
        if func in NORMS:
            return args[0].clone()
        if not tree_any(is_shape, (args, kwargs)):
            if func in MUCH_OF_LITTLE:
                out = func(*tree_map(as_meta, args), **tree_map(as_meta, kwargs))
                if out.numel() > LARGE:
                    return out
            product = self.attention.product(func, args, kwargs) if func in PRODUCTS else None
            if product is not None:
                return product
            if func is nn.functional.scaled_dot_product_attention:
                self.attention.fused(*args, **kwargs)
            follows = self.attention.open and tree_any(asks_gradients, (args, kwargs))
            with torch.set_grad_enabled(bool(follows)):
                out = func(*args, **kwargs)
            if follows and func in SOFTMAX:
                self.attention.softmax(args[0], out := out.detach())
            return out
        if getattr(func, "__name__", "") == "__get__":
            out = func(*args, **kwargs)
            return torch.device("cpu") if isinstance(out, torch.device) else out
        to_meta = {"device": "meta"} if "device" in kwargs else {}
        out = func(*tree_map(as_meta, args), **{**tree_map(as_meta, kwargs), **to_meta})
        # What is large stays a shape: the experts of a mixture alone may take more memory than there is.
        return tree_map(lambda x: torch.zeros(x.shape, dtype=x.dtype) if is_shape(x) and x.numel() <= LARGE else x, out)


def asks_gradients(x: object) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


@torch.no_grad()
def measure(model: nn.Module, inputs: Mapping[str, Tensor] | None = None, *, attention_alone: bool = False) -> Measured:
    """Run a model, or a skeleton of one, and turn unit vectors by its own rotary code wherever that is called.

    inputs           what its `forward` is given; the default is what `usual_inputs` finds for it, a few tokens
    attention_alone  whether only `attended` is asked for

    The first token has to stand at position 0. Its rotary code is every function of its modelling file whose name says
    that it applies rotary embeddings, called with the cosines and sines that the model made. Results do not depend on
    weights. A model that cannot be run is no error: `failure` says why, and what was seen before that is kept.
    """
    seen, stack = Measured(), [""]
    padding = 0 if inputs is None or "attention_mask" not in inputs else int((inputs["attention_mask"] == 0).sum())
    attention = Attention(stack, seen.turns, padding)
    seen.attended = attention.seen
    tables = {id(p): path for path, p in (*model.named_parameters(), *model.named_buffers())}
    tokens = 0

    def consecutive(ids: Tensor) -> int | None:
        # Some models lengthen their input; what follows the tokens is padding.
        ids = ids.flatten()[: tokens or None]
        if ids.is_floating_point() or ids.dtype == torch.bool or len(ids) < 2:
            return None
        return int(ids[0]) if (ids - ids[0]).equal(torch.arange(len(ids))) else None

    def looked_up(indices: Tensor, weight: Tensor) -> None:
        path = tables.get(id(weight))
        if path and not is_shape(indices):
            start = consecutive(indices)
            if start is not None:
                seen.rows.setdefault(path, start)

    def enter(path: str) -> Callable[..., None]:
        def entered(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            seen.entered.add(path)
            stack.append(path)
            attention.enter(args, kwargs)
            first = args[0] if args and isinstance(args[0], Tensor) and not is_shape(args[0]) else torch.zeros(0)
            start = consecutive(first)
            if start is not None:
                seen.ids.setdefault(path, start)

        return entered

    def left(*_: Any) -> None:
        stack.pop()
        attention.leave()

    with ExitStack() as undo:
        for path, module in model.named_modules():
            undo.callback(module.register_forward_pre_hook(enter(path), with_kwargs=True).remove)
            undo.callback(module.register_forward_hook(left).remove)
        for path, module in model.named_modules():
            chooses = any(name in ("experts", "router", "gate") for name, _ in module.named_children())
            passes = NORM.search(type(module).__name__) or IDLE.search(f"{path} {type(module).__name__}")
            if passes and not chooses and "forward" not in vars(module):
                module.forward = idle
                undo.callback(delattr, module, "forward")
        turned = {code: turning(function, stack, seen.turns) for code, function in rotary_functions(model)}
        seen.turners = len(turned)
        made = {code: keeping(seen) for code, _ in functions(model, MAKES_SLOPES)}
        sorted_out = {code: sorting(model, function, stack, seen) for code, function in bucket_methods(model)}
        attends = {code: attention.small(f, LARGE) for code, f in functions(model, APPLIES_ATTENTION)}
        masks = sys.modules.get("transformers.masking_utils")
        if masks is not None:
            attends[masks.eager_mask.__code__] = attention.makes_mask
            made[masks.eager_mask.__code__] = attention.made_mask
        undo.enter_context(watched(attends if attention_alone else turned | sorted_out | attends, made))
        try:
            given = usual_inputs(model) if inputs is None else inputs
            tokens = given["input_ids"].shape[1] if "input_ids" in given else 0
            with Dry(looked_up, attention):
                model(**given)
        except Exception as error:
            seen.failure = told(error)
    seen.skipped = attention.skipped
    return seen


def idle(*args: Any, **kwargs: Any) -> Tensor:
    """What stands in for norms, and for layers without attention, which take the longest: what comes in goes out."""
    return next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)).clone()


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


def bucket_methods(model: nn.Module) -> Iterator[tuple[CodeType, FunctionType]]:
    """Methods of a model's modules that put distances into buckets."""
    for cls in {base for module in model.modules() for base in type(module).__mro__}:
        named = {name: getattr(value, "__func__", value) for name, value in vars(cls).items()}
        yield from coded(named, MAKES_BUCKETS)


def sorting(
    model: nn.Module, function: FunctionType, stack: list[str], seen: Measured
) -> Callable[[dict[str, Any]], None]:
    """What keeps the buckets of distances, as a method was called to find them."""

    def called(given: dict[str, Any]) -> None:
        owner = given.get("self")
        path = stack[-1] if owner is None else next(p for p, module in model.named_modules() if module is owner)
        while not hasattr(model.get_submodule(path), function.__name__):
            path = path.rpartition(".")[0]
        if all(one.path != path for one in seen.buckets):
            numbers = [v for v in given.values() if type(v) is int]
            numbers += [v for v in vars(model.get_submodule(path)).values() if type(v) is int]
            buckets = bucketed(function, given)
            seen.buckets.append(Bucketed(path, function.__name__, buckets, tuple(numbers)))

    return called


@torch.no_grad()
def bucketed(function: Callable[..., Any], given: Mapping[str, Any]) -> Tensor:
    """The buckets [2 FURTHEST + 1] of distances, called as it was called with its first tensor."""
    name = next(key for key, value in given.items() if isinstance(value, Tensor))
    # A key's position less its query's, which is how T5 counts.
    with torch._C.DisableTorchFunction():
        return function(**{**given, name: -torch.arange(-FURTHEST, FURTHEST + 1)[None]})[0].cpu()


def keeping(seen: Measured) -> Callable[[Any], None]:
    """What keeps the slopes that a function returned."""

    def returned(result: Any) -> None:
        if isinstance(result, Tensor):
            seen.slopes.append(result.detach())

    return returned
