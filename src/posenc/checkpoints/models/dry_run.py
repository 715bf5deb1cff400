"""Run a model dry, and record its position lookups, rotary (RoPE) code, masks and ALiBi slopes."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_any, tree_map

from posenc.checkpoints.models.added_tables import TableAdditions
from posenc.checkpoints.models.attention_trace import (
    APPLIES_ATTENTION,
    PRODUCTS,
    SOFTMAX,
    AttentionCall,
    AttentionTracer,
    multiplies_weights,
    probe_tensor,
)
from posenc.checkpoints.models.inputs import inputs_for
from posenc.checkpoints.models.position_items import SPEAKS_OF_POSITION, carries_position
from posenc.checkpoints.models.rotations import OnCall, Turn, by_code, functions, rotary_functions, turn_recorder, watch
from posenc.checkpoints.models.skeleton import LARGE, as_meta, is_shape
from posenc.foreign.text import error_text

Handlers: TypeAlias = dict[CodeType, Callable[..., None]]

MAKES_SLOPES = re.compile(r"alibi")
MAKES_BUCKETS = re.compile(r"relative_position_bucket$")

MAX_DISTANCE = 2048
"""The largest distance (positions) for which buckets are recorded, in both directions."""

IDLE = re.compile(r"\.(mlp|feed_forward|ffn) \w*(MLP|FeedForward|FFN)$|\.experts \w*Experts$|\.(mamba|linear_attn) ")
"""Paths and classes of layers without attention, whose output has the shape of their input."""

NORM = re.compile(r"(?<!Ada)(?<!Unweighted)(?<!Dropout)(Layer|RMS|L2)Norm$")
"""Classes of norms: a dry run skips them, because probe tensors have a mean square of 1. Norms that return the factor
alone, and those that project first, run."""

NORMS = {nn.functional.layer_norm, nn.functional.rms_norm, nn.functional.normalize}


@dataclass(frozen=True)
class BucketMethod:
    """A method of a module that sorts distances into buckets.

    path     the module
    name     the method
    buckets  the buckets of the distances -MAX_DISTANCE to MAX_DISTANCE; a positive distance is a key before its query
    numbers  the integers among its arguments and among the attributes of its module
    """

    path: str
    name: str
    buckets: Tensor
    numbers: tuple[Any, ...]


@dataclass
class Trace:
    """The record of a dry run.

    turns               the rotations of each call of rotary code, in call order
    first_rows          path of a table that was looked up by position, consecutive rows -> the row of position 0
    added_rows          path of a table with consecutive rows added unchanged -> the first of these rows
    patches             path of an added table, resampled or not -> its cells on each axis; () without a grid
    first_ids           path of a module that got consecutive ids, one for each token -> the first id
    scales              path of a module that returns scaled rows of its table -> the scale
    slopes              the biases that ALiBi code returned
    buckets             the methods that sort distances into buckets
    attentions          each attention that ran, in order
    too_short           whether the model left out a mask that it needs for longer inputs
    outputs             path of a module that is named for position -> its first output tensors
    softmax_paths       the paths of the modules that computed a softmax
    centres             path of a table that was looked up by distance, for pairs of tokens -> the row of distance 0
    function_names      the names of the functions that ran and are named for position
    entered_paths       the paths of the modules that ran
    rotary_count        the number of functions of rotary code, called or not
    inputs              the arguments of `forward`
    failure             the reason why the run ended early, or ""
    """

    turns: list[Turn] = field(default_factory=list)
    first_rows: dict[str, int] = field(default_factory=dict)
    added_rows: dict[str, int] = field(default_factory=dict)
    patches: dict[str, tuple[int, ...]] = field(default_factory=dict)
    first_ids: dict[str, int] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    slopes: list[Tensor] = field(default_factory=list)
    buckets: list["BucketMethod"] = field(default_factory=list)
    attentions: list[AttentionCall] = field(default_factory=list)
    too_short: bool = False
    outputs: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    softmax_paths: set[str] = field(default_factory=set)
    centres: dict[str, int] = field(default_factory=dict)
    function_names: set[str] = field(default_factory=set)
    entered_paths: set[str] = field(default_factory=set)
    rotary_count: int = 0
    inputs: dict[str, Any] = field(default_factory=dict)
    failure: str = ""


EXPANDING = {*PRODUCTS, torch.add, Tensor.add, Tensor.__add__}
"""Functions of torch whose result may be far larger than their arguments: products, and sums with broadcasting."""

CLAMPS = {torch.clamp, Tensor.clamp, Tensor.clamp_}


class DryMode(TorchFunctionMode):
    """Run torch functions on meta tensors where an argument is one, and return small results as zeros.

    Projections return probe tensors, norms return their input, and attention is traced from its product to its softmax.
    A large result of small arguments stays a meta tensor: attention among the patches of an image may take gigabytes.
    """

    def __init__(self, run: "DryRun") -> None:
        super().__init__()
        self.run, self.attention = run, run.attention

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        out = self.result(func, args, kwargs or {})
        self.run.additions(func, args, out)
        return out

    def result(self, func: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> object:
        if func is nn.functional.embedding:
            self.run.on_lookup(args[0], args[1])
        if func is Tensor.index_select and args[1] == 0:
            self.run.on_lookup(args[2], args[0])
        if func in SOFTMAX or func is nn.functional.scaled_dot_product_attention:
            self.run.trace.softmax_paths.add(self.run.stack[-1])
        if func is Tensor.__getitem__:
            first = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
            if isinstance(first, Tensor):
                self.run.on_lookup(first, args[0])
        if func is nn.functional.linear:
            return probe_tensor(*args[0].shape[:-1], args[1].shape[0], dtype=args[0].dtype)
        if multiplies_weights(func, args):
            out = func(*tree_map(as_meta, args), **tree_map(as_meta, kwargs))
            # A convolution has its channels before the tokens.
            axis = -2 if func is nn.functional.conv1d else -1
            return probe_tensor(*out.transpose(axis, -1).shape, dtype=out.dtype).transpose(axis, -1)
        if func in NORMS or (func in CLAMPS and args[0].is_floating_point() and self.attention.layer):
            # Probe tensors stay within the clips of queries and keys (OLMo, MPT), which bound outliers only.
            return args[0].clone(memory_format=torch.contiguous_format)
        if not tree_any(is_shape, (args, kwargs)):
            if func in EXPANDING:
                out = func(*tree_map(as_meta, args), **tree_map(as_meta, kwargs))
                if out.numel() > LARGE:
                    return out
            product = self.attention.product(func, args, kwargs) if func in PRODUCTS else None
            if product is not None:
                return product
            if func is nn.functional.scaled_dot_product_attention:
                self.attention.fused_attention(*args, **kwargs)
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
        # The experts of a mixture alone may take more memory than the machine has.
        return tree_map(lambda x: torch.zeros(x.shape, dtype=x.dtype) if is_shape(x) and x.numel() <= LARGE else x, out)


def run_dry(model: nn.Module, inputs: Mapping[str, Any] | None = None, *, attention_alone: bool = False) -> Trace:
    """Run a model dry on inputs for its `forward`, and return the trace.

    Without inputs, the usual ones are tried in turn. If all fail, the trace with the most attention is returned.
    """
    trace = Trace()
    try:
        for candidate in inputs_for(model) if inputs is None else (inputs,):
            again = DryRun(model, candidate).run(attention_alone)
            if not again.failure:
                return again
            trace = max(trace, again, key=lambda run: len(run.attentions)) if trace.failure else again
    except Exception as error:
        # A config may have sizes that no input can have.
        trace.failure = trace.failure or error_text(error)
    return trace


class DryRun:
    """One dry run of a model, or of a skeleton of one, whose hooks fill a trace.

    At each call of the model's rotary code, which are the functions of its modelling file that are named for it, that
    code also rotates unit vectors. Results do not depend on weights. The first token must be at position 0.

    inputs  the arguments of `forward`
    stack   the paths of the running modules, outermost first
    tokens  the number of input ids; 0 for other inputs
    """

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        self.model, self.inputs, self.stack, self.tokens = model, inputs, [""], 0
        self.trace = Trace(inputs=dict(inputs))
        padding = int((inputs["attention_mask"] == 0).sum()) if "attention_mask" in inputs else 0
        self.attention = AttentionTracer(self.stack, self.trace.turns, padding)
        self.trace.attentions = self.attention.records
        tensors = dict((*model.named_parameters(), *model.named_buffers()))
        self.tables, self.additions = {id(x): path for path, x in tensors.items()}, TableAdditions(tensors)
        self.trace.added_rows, self.trace.patches = self.additions.rows, self.additions.cells

    @torch.no_grad()
    def run(self, attention_alone: bool) -> Trace:
        """Run the model under all hooks, or those of attention. An error ends the trace, and is its `failure`."""
        with ExitStack() as undo:
            self.hook_modules(undo)
            undo.enter_context(watch(*self.watched_functions(attention_alone)))
            try:
                self.tokens = self.inputs["input_ids"].shape[1] if "input_ids" in self.inputs else 0
                with DryMode(self):
                    self.model(**self.inputs)
            except Exception as error:
                self.trace.failure = error_text(error)
        self.trace.too_short = self.attention.too_short
        return self.trace

    def hook_modules(self, undo: ExitStack) -> None:
        """Hook every module, and skip norms and layers without attention."""
        for path, module in self.model.named_modules():
            undo.callback(module.register_forward_pre_hook(partial(self.on_enter, path), with_kwargs=True).remove)
            undo.callback(module.register_forward_hook(self.on_leave).remove)
        for path, module in self.model.named_modules():
            chooses = any(name in ("experts", "router", "gate") for name, _ in module.named_children())
            norm = NORM.search(type(module).__name__) and not any(module.children())
            passes = norm or IDLE.search(f"{path} {type(module).__name__}")
            if passes and not chooses and "forward" not in vars(module):
                module.forward = identity
                undo.callback(delattr, module, "forward")

    def watched_functions(self, attention_alone: bool) -> tuple[Handlers, Handlers]:
        """Return the code of functions to watch, with what is called at each call, and at each return."""
        model, trace, stack, attention = self.model, self.trace, self.stack, self.attention
        turns = {code: turn_recorder(function, stack, trace.turns) for code, function in rotary_functions(model)}
        trace.rotary_count = len(turns)
        buckets = {code: bucket_recorder(model, function, stack, trace) for code, function in bucket_methods(model)}
        names = {code: lambda _, name=name: trace.function_names.add(name) for code, name in position_functions(model)}
        on_call = {code: attention.small_probe(f, LARGE) for code, f in functions(model, APPLIES_ATTENTION)}
        on_return: Handlers = {code: self.on_slopes for code, _ in functions(model, MAKES_SLOPES)}
        masks = sys.modules.get("transformers.masking_utils")
        if masks is not None:
            on_call[masks.eager_mask.__code__] = attention.start_mask
            on_return[masks.eager_mask.__code__] = attention.finish_mask
        return on_call if attention_alone else names | turns | buckets | on_call, on_return

    def first_id(self, ids: Tensor) -> int | None:
        """Return the first of consecutive ids; None for others."""
        # Some models lengthen their input: padding follows the tokens.
        ids = ids.flatten()[: self.tokens or None]
        if ids.is_floating_point() or ids.dtype == torch.bool or len(ids) < 2:
            return None
        return int(ids[0]) if (ids - ids[0]).equal(torch.arange(len(ids))) else None

    def on_lookup(self, indices: Tensor, weight: Tensor) -> None:
        path = self.tables.get(id(weight))
        # An index for each token is a position; in other lookups the table's name decides.
        by_position = path and (carries_position(path) or indices.numel() == self.tokens)
        if path and by_position and not is_shape(indices):
            start = self.first_id(indices)
            if start is not None:
                self.trace.first_rows.setdefault(path, start)
        if path and indices.dim() > 1 and indices.shape[-1] == indices.shape[-2] > 1 and not is_shape(indices):
            pairs = indices.reshape(-1, *indices.shape[-2:])[0]
            if pairs[1:, 1:].equal(pairs[:-1, :-1]):
                self.trace.centres.setdefault(path, int(pairs[0, 0]))

    def on_enter(self, path: str, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self.trace.entered_paths.add(path)
        self.stack.append(path)
        self.attention.enter(args, kwargs)
        ids = kwargs.get("position_ids", args[0] if args else None)
        start = self.first_id(ids if isinstance(ids, Tensor) and not is_shape(ids) else torch.zeros(0))
        if start is not None:
            self.trace.first_ids.setdefault(path, start)

    def on_leave(self, module: nn.Module, args: tuple, out: object) -> None:
        path = self.stack.pop()
        self.attention.leave()
        outputs = [x for x in (out if isinstance(out, tuple) else (out,)) if isinstance(x, Tensor)]
        if carries_position(type(module).__name__) and not any(is_shape(x) for x in outputs):
            self.trace.outputs.setdefault(path, tuple(outputs))
        for name, table in (*module._parameters.items(), *module._buffers.items()):
            row = self.trace.first_rows.get(f"{path}.{name}".lstrip("."))
            if row is None or table is None or not isinstance(out, Tensor) or is_shape(out) or table.dim() < 2:
                continue
            values = out.reshape(-1, out.shape[-1])[: self.tokens or None]
            rows = table.flatten(0, -2)[row : row + len(values)]
            scale = float(values.norm() / rows.norm().clamp(min=1e-12))
            if rows.any() and rows.shape == values.shape and torch.allclose(values, scale * rows, atol=1e-6):
                self.trace.scales[path] = scale

    def on_slopes(self, value: object) -> None:
        if isinstance(value, Tensor):
            self.trace.slopes.append(value.detach())


def identity(*args: object, **kwargs: object) -> Tensor:
    """Return the first tensor of the arguments: it replaces norms, and slow layers without attention."""
    tensor = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
    return tensor.clone(memory_format=torch.contiguous_format)


def bucket_methods(model: nn.Module) -> Iterator[tuple[CodeType, FunctionType]]:
    """Yield the methods of a model's modules that sort distances into buckets, by their code."""
    for cls in {base for module in model.modules() for base in type(module).__mro__}:
        methods = {name: getattr(value, "__func__", value) for name, value in vars(cls).items()}
        yield from by_code(methods, MAKES_BUCKETS)


def position_functions(model: nn.Module) -> Iterator[tuple[CodeType, str]]:
    """Yield the functions and methods in the modelling files of a model that are named for position."""
    for file in {name for module in model.modules() if not (name := type(module).__module__).startswith("torch.")}:
        items = {n: v for n, v in vars(sys.modules[file]).items() if getattr(v, "__module__", "") == file}
        for names in (items, *(vars(value) for value in items.values() if isinstance(value, type))):
            for code, function in by_code({n: getattr(v, "__func__", v) for n, v in names.items()}, SPEAKS_OF_POSITION):
                if carries_position(function.__name__):
                    yield code, function.__qualname__


def bucket_recorder(model: nn.Module, function: FunctionType, stack: list[str], trace: Trace) -> OnCall:
    """Return a function that records the buckets of a method, with the arguments of its call."""

    def record(arguments: dict[str, Any]) -> None:
        owner = arguments.get("self")
        path = stack[-1] if owner is None else next(p for p, module in model.named_modules() if module is owner)
        while path and not hasattr(model.get_submodule(path), function.__name__):
            path = path.rpartition(".")[0]
        # A method may belong to a class without a running module.
        if hasattr(model.get_submodule(path), function.__name__) and all(item.path != path for item in trace.buckets):
            numbers = [v for v in arguments.values() if type(v) is int]
            numbers += [v for v in vars(model.get_submodule(path)).values() if type(v) is int]
            buckets = bucket_row(function, arguments)
            trace.buckets.append(BucketMethod(path, function.__name__, buckets, tuple(numbers)))

    return record


@torch.no_grad()
def bucket_row(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Tensor:
    """Return the buckets [2 MAX_DISTANCE + 1] of distances, which replace the first tensor of the arguments."""
    name = next(key for key, value in arguments.items() if isinstance(value, Tensor))
    # T5 counts a key's position minus its query's.
    with torch._C.DisableTorchFunction():
        return function(**{**arguments, name: -torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)[None]})[0].cpu()
