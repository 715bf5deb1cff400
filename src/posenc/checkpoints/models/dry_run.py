"""A dry run of a model: which tables it looks up by position, what its rotary code does, which slopes it makes."""

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

from posenc.checkpoints.models.added import Added
from posenc.checkpoints.models.attended import (
    APPLIES_ATTENTION,
    PRODUCTS,
    SOFTMAX,
    Attended,
    Attention,
    planted,
    projects,
)
from posenc.checkpoints.models.found import SPEAKS_OF_POSITION, carries_position
from posenc.checkpoints.models.inputs import inputs_for
from posenc.checkpoints.models.skeleton import LARGE, as_meta, is_shape
from posenc.checkpoints.models.turns import Turn, coded, functions, rotary_functions, turning, watched
from posenc.foreign.text import told

MAKES_SLOPES = re.compile(r"alibi")
MAKES_BUCKETS = re.compile(r"relative_position_bucket$")

FURTHEST = 2048
"""How far distances are put into buckets (positions), before a token and behind it."""


IDLE = re.compile(r"\.(mlp|feed_forward|ffn) \w*(MLP|FeedForward|FFN)$|\.experts \w*Experts$|\.(mamba|linear_attn) ")
"""Paths and classes of layers without attention, which take a token's channels and give as many back."""


NORM = re.compile(r"(?<!Ada)(?<!Unweighted)(?<!Dropout)(Layer|RMS|L2)Norm$")
"""Classes of norms: in a dry run they leave what comes in, which is of length 1 already. Some without weights give the
factor alone, and none of those needs to be passed by; nor do those that project before."""

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
    added    path of a table whose rows were added as they stand, all of them or some in a row -> the first of them
    patches  path of a table that was added, resampled or not -> its cells on each axis, () where no grid was seen
    ids      path of a module that was given consecutive ids, one for each token -> the first of them
    scaled   path of a module that gives the rows of its table multiplied -> by how much
    slopes   the biases that code of ALiBi made, as it returned them
    buckets  the buckets into which methods of modules put distances
    attended each attention that ran, in order
    skipped  whether it was too short for some mask with an edge to be made at all
    made     path of a module that speaks of position -> the tensors that it gave out first
    attend   the paths of the modules that took a softmax
    centres  path of a table that was looked up by distance, a row for each pair of tokens -> the row of distance 0
    spoke    the names of functions that speak of position and ran
    entered  the paths of the modules that ran
    turners  how many functions of rotary code the model has, whether they were called or not
    inputs   what the model was given
    failure  why the run ended early, or ""
    """

    turns: list[Turn] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    patches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    scaled: dict[str, float] = field(default_factory=dict)
    slopes: list[Tensor] = field(default_factory=list)
    buckets: list["Bucketed"] = field(default_factory=list)
    attended: list[Attended] = field(default_factory=list)
    skipped: bool = False
    made: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    attend: set[str] = field(default_factory=set)
    centres: dict[str, int] = field(default_factory=dict)
    spoke: set[str] = field(default_factory=set)
    entered: set[str] = field(default_factory=set)
    turners: int = 0
    inputs: dict[str, Any] = field(default_factory=dict)
    failure: str = ""


MUCH_OF_LITTLE = {*PRODUCTS, torch.add, Tensor.add, Tensor.__add__}
"""Functions of torch whose result may be far larger than what they are given: products, and sums over other axes."""

CLAMPS = {torch.clamp, Tensor.clamp, Tensor.clamp_}


class Dry(TorchFunctionMode):
    """Whatever meets a shape becomes zeros of the shape that comes out; the rest is computed.

    Projections give what is planted, norms leave it, and attention is followed from its product to its softmax. What
    would come out large of little becomes a shape: attention among the patches of one image may take gigabytes.
    """

    def __init__(
        self,
        looked_up: Callable[[Tensor, Tensor], None],
        called: Callable[[Any, tuple, Any], None],
        attends: Callable[[], None],
        attention: Attention,
    ) -> None:
        super().__init__()
        self.looked_up, self.called, self.attends, self.attention = looked_up, called, attends, attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self.computed(func, args, kwargs or {})
        self.called(func, args, out)
        return out

    def computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is nn.functional.embedding:
            self.looked_up(args[0], args[1])
        if func is Tensor.index_select and args[1] == 0:
            self.looked_up(args[2], args[0])
        if func in SOFTMAX or func is nn.functional.scaled_dot_product_attention:
            self.attends()
        if func is Tensor.__getitem__:
            first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
            if isinstance(first, Tensor):
                self.looked_up(first, args[0])
        if func is nn.functional.linear:
            return planted(*args[0].shape[:-1], args[1].shape[0], dtype=args[0].dtype)
        if projects(func, args):
            out = func(*tree_map(as_meta, args), **tree_map(as_meta, kwargs))
            # Channels come before tokens where a convolution projects.
            axis = -2 if func is nn.functional.conv1d else -1
            return planted(*out.transpose(axis, -1).shape, dtype=out.dtype).transpose(axis, -1)
        if func in NORMS or (func in CLAMPS and args[0].is_floating_point() and self.attention.layer):
            # Nothing is cut off what is planted; clips of queries and keys (OLMo, MPT) bound outliers alone.
            return args[0].clone(memory_format=torch.contiguous_format)
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
            follows = self.attention.open and tree_any(lambda x: getattr(x, "requires_grad", False), (args, kwargs))
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


def measure(model: nn.Module, inputs: Mapping[str, Any] | None = None, *, attention_alone: bool = False) -> Measured:
    """What a dry run of a model sees; `inputs` is what its `forward` is given, by default what it may want.

    Of several that fail it is the one in which most attention ran.
    """
    seen = Measured()
    try:
        for given in inputs_for(model) if inputs is None else (inputs,):
            again = dry_run(model, given, attention_alone)
            if not again.failure:
                return again
            seen = max(seen, again, key=lambda run: len(run.attended)) if seen.failure else again
    except Exception as error:
        # Keys may say sizes that no input can have.
        seen.failure = seen.failure or told(error)
    return seen


@torch.no_grad()
def dry_run(model: nn.Module, inputs: Mapping[str, Any], attention_alone: bool = False) -> Measured:
    """Run a model, or a skeleton of one, and turn unit vectors by its own rotary code wherever that is called.

    inputs           what its `forward` is given
    attention_alone  whether only `attended` is asked for

    The first token has to stand at position 0. Its rotary code is every function of its modelling file whose name says
    that it applies rotary embeddings, called with the cosines and sines that the model made. Results do not depend on
    weights. A model that cannot be run is no error: `failure` says why, and what was seen before that is kept.
    """
    seen, stack = Measured(inputs=dict(inputs)), [""]
    padding = int((inputs["attention_mask"] == 0).sum()) if "attention_mask" in inputs else 0
    attention = Attention(stack, seen.turns, padding)
    seen.attended = attention.seen
    tensors = dict((*model.named_parameters(), *model.named_buffers()))
    tables, added = {id(x): path for path, x in tensors.items()}, Added(tensors)
    seen.added, seen.patches = added.rows, added.cells
    tokens = 0

    def consecutive(ids: Tensor) -> int | None:
        # Some models lengthen their input; what follows the tokens is padding.
        ids = ids.flatten()[: tokens or None]
        if ids.is_floating_point() or ids.dtype == torch.bool or len(ids) < 2:
            return None
        return int(ids[0]) if (ids - ids[0]).equal(torch.arange(len(ids))) else None

    def looked_up(indices: Tensor, weight: Tensor) -> None:
        path = tables.get(id(weight))
        # What is looked up in a row for each token is a position; other rows may be whatever they are called.
        named = path and (carries_position(path) or indices.numel() == tokens)
        if path and named and not is_shape(indices):
            start = consecutive(indices)
            if start is not None:
                seen.rows.setdefault(path, start)
        if path and indices.dim() > 1 and indices.shape[-1] == indices.shape[-2] > 1 and not is_shape(indices):
            pairs = indices.reshape(-1, *indices.shape[-2:])[0]
            if pairs[1:, 1:].equal(pairs[:-1, :-1]):
                seen.centres.setdefault(path, int(pairs[0, 0]))

    def enter(path: str) -> Callable[..., None]:
        def entered(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            seen.entered.add(path)
            stack.append(path)
            attention.enter(args, kwargs)
            given = kwargs.get("position_ids", args[0] if args else None)
            start = consecutive(given if isinstance(given, Tensor) and not is_shape(given) else torch.zeros(0))
            if start is not None:
                seen.ids.setdefault(path, start)

        return entered

    def leave(module: nn.Module, args: tuple, out: Any) -> None:
        path = stack.pop()
        attention.leave()
        made = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, Tensor)]
        if carries_position(type(module).__name__) and not any(is_shape(x) for x in made):
            seen.made.setdefault(path, tuple(made))
        for name, table in (*module._parameters.items(), *module._buffers.items()):
            row = seen.rows.get(f"{path}.{name}".lstrip("."))
            if row is None or table is None or not isinstance(out, Tensor) or is_shape(out) or table.dim() < 2:
                continue
            given = out.reshape(-1, out.shape[-1])[: tokens or None]
            rows = table.flatten(0, -2)[row : row + len(given)]
            times = float(given.norm() / rows.norm().clamp(min=1e-12))
            if rows.any() and rows.shape == given.shape and torch.allclose(given, times * rows, atol=1e-6):
                seen.scaled[path] = times

    def slopes(found: Any) -> None:
        if isinstance(found, Tensor):
            seen.slopes.append(found.detach())

    with ExitStack() as undo:
        for path, module in model.named_modules():
            undo.callback(module.register_forward_pre_hook(enter(path), with_kwargs=True).remove)
            undo.callback(module.register_forward_hook(leave).remove)
        for path, module in model.named_modules():
            chooses = any(name in ("experts", "router", "gate") for name, _ in module.named_children())
            norm = NORM.search(type(module).__name__) and not any(module.children())
            passes = norm or IDLE.search(f"{path} {type(module).__name__}")
            if passes and not chooses and "forward" not in vars(module):
                module.forward = idle
                undo.callback(delattr, module, "forward")
        turned = {code: turning(function, stack, seen.turns) for code, function in rotary_functions(model)}
        seen.turners = len(turned)
        made: dict[CodeType, Callable[..., None]] = {code: slopes for code, _ in functions(model, MAKES_SLOPES)}
        sorted_out = {code: sorting(model, function, stack, seen) for code, function in bucket_methods(model)}
        spoken = {code: lambda _, name=name: seen.spoke.add(name) for code, name in speakers(model)}
        attends = {code: attention.small(f, LARGE) for code, f in functions(model, APPLIES_ATTENTION)}
        masks = sys.modules.get("transformers.masking_utils")
        if masks is not None:
            attends[masks.eager_mask.__code__] = attention.makes_mask
            made[masks.eager_mask.__code__] = attention.made_mask
        undo.enter_context(watched(attends if attention_alone else spoken | turned | sorted_out | attends, made))
        try:
            tokens = inputs["input_ids"].shape[1] if "input_ids" in inputs else 0
            with Dry(looked_up, added, lambda: seen.attend.add(stack[-1]), attention):
                model(**inputs)
        except Exception as error:
            seen.failure = told(error)
    seen.skipped = attention.skipped
    return seen


def idle(*args: Any, **kwargs: Any) -> Tensor:
    """What stands in for norms, and for layers without attention, which take the longest: what comes in goes out."""
    held = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
    return held.clone(memory_format=torch.contiguous_format)


def bucket_methods(model: nn.Module) -> Iterator[tuple[CodeType, FunctionType]]:
    """Methods of a model's modules that put distances into buckets."""
    for cls in {base for module in model.modules() for base in type(module).__mro__}:
        named = {name: getattr(value, "__func__", value) for name, value in vars(cls).items()}
        yield from coded(named, MAKES_BUCKETS)


def speakers(model: nn.Module) -> Iterator[tuple[CodeType, str]]:
    """The functions and methods in the modelling files of a model whose names speak of position."""
    for file in {
        type(module).__module__ for module in model.modules() if not type(module).__module__.startswith("torch.")
    }:
        held = {
            name: value for name, value in vars(sys.modules[file]).items() if getattr(value, "__module__", "") == file
        }
        for names in (held, *(vars(value) for value in held.values() if isinstance(value, type))):
            for code, function in coded({n: getattr(v, "__func__", v) for n, v in names.items()}, SPEAKS_OF_POSITION):
                if carries_position(function.__name__):
                    yield code, function.__qualname__


def sorting(
    model: nn.Module, function: FunctionType, stack: list[str], seen: Measured
) -> Callable[[dict[str, Any]], None]:
    """What keeps the buckets of distances, as a method was called to find them."""

    def called(given: dict[str, Any]) -> None:
        owner = given.get("self")
        path = stack[-1] if owner is None else next(p for p, module in model.named_modules() if module is owner)
        while path and not hasattr(model.get_submodule(path), function.__name__):
            path = path.rpartition(".")[0]
        # Some belong to a class of which no module that is running is one.
        if hasattr(model.get_submodule(path), function.__name__) and all(one.path != path for one in seen.buckets):
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
