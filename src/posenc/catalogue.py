"""The catalogue of encodings: find them by name, parse and print specs, build them for a model.

The name of an encoding is its file name; there is no list to edit. A spec is a string that is parsed, never evaluated:
`rotary(base=500_000, schedule=yarn(factor=4)) + alibi`, `on(rotary, heads=(0, 1))`, `path/to/mine.py:Mine(option=3)`.
"""

import ast
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

import torch

from posenc import checks, schedules
from posenc.encoding.base import Compose, Encoding, Shape, parts_of
from posenc.encoding.chosen_heads import OnHeads
from posenc.foreign import code, one_line, quote, unparse
from posenc.foreign.text import shorten
from posenc.schedules import Schedule
from posenc.specs import syntax, words
from posenc.specs.registry import Registry

Spec: TypeAlias = str | Encoding
LayerSpec: TypeAlias = str | Encoding | Sequence[str | Encoding]

FILLED_IN = ("device", "dtype")


@dataclass(frozen=True)
class Node:
    """A parsed spec: a named encoding with options, a sum of parts, or an encoding on chosen heads."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    parts: tuple["Node", ...] = ()
    heads: tuple[int, ...] = ()


ENCODINGS = Registry("posenc.encodings", Encoding, "posenc.Encoding", "rotary(base=500_000) + alibi")
"""The encodings of posenc, by their names in specs; each is imported at its first use."""

find = ENCODINGS.find


def names() -> tuple[str, ...]:
    """Return the names of all encodings of posenc."""
    return tuple(ENCODINGS)


def parse(spec: str, trusted_files: Collection[str | Path] | None = None) -> Node:
    """Return the parsed form of a spec.

    trusted_files  the files that may be imported, for a spec that was read from a run or a config: those that the user
                   names besides, usually none; None for a spec that the user wrote

    Raises ValueError for no spec, an unknown name or option, or a value that is not plain; CannotRead for more than
    20,000 letters, numbers of more than 40 digits, more than 100 levels of nesting, and files that are not trusted.

    >>> parse("rotary(base=500) + alibi").parts[0].options
    (('base', 500),)
    """
    if not isinstance(spec, str):
        raise ValueError(f"expected a spec, such as 'rotary + alibi', got {quote(spec)}")
    return node_of(syntax.tree_of(spec, remedy=ENCODINGS.remedy, trusted_files=trusted_files), spec)


def node_of(tree: ast.expr, spec: str) -> Node:
    """Return the node for a part of the syntax tree of a spec."""
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
        left, right = node_of(tree.left, spec), node_of(tree.right, spec)
        flat = [part for node in (left, right) for part in (node.parts if node.name == "+" else (node,))]
        return Node("+", parts=tuple(flat))
    if name := syntax.name_of(tree):
        return node_of_name(name, (), (), spec)
    if isinstance(tree, ast.Call) and (name := syntax.name_of(tree.func)):
        if name == "on":
            return node_on_heads(tree, spec)
        options = tuple((word.arg or "**", schedules.value_of(word.value, spec)) for word in tree.keywords)
        return node_of_name(name, options, tree.args, spec)
    raise ValueError(f"{unparse(tree)} in {quote(spec)} is not an encoding; {ENCODINGS.remedy}")


def node_of_name(name: str, options: tuple[tuple[str, Any], ...], arguments: Sequence[ast.expr], spec: str) -> Node:
    cls = find(name)
    if arguments and not cls.wraps:
        raise ValueError(
            f"options in a spec have names, as in rotary(base=500_000); got {unparse(arguments[0])} for {name}"
        )
    if len(arguments) > 1:
        raise ValueError(f"{name} wraps one encoding, as in {name}({cls.wraps[0]}); got {len(arguments)}")
    words.check_option_names(name, [option for option, _ in options], options_of(name).keys(), quote(spec))
    if not cls.wraps:
        return Node(name, options)
    return Node(name, options, parts=(node_of(arguments[0], spec) if arguments else parse(cls.wraps[0]),))


def node_on_heads(tree: ast.Call, spec: str) -> Node:
    if len(tree.args) != 1 or [word.arg for word in tree.keywords] != ["heads"]:
        raise ValueError(f"on(...) takes one encoding and heads, as in on(rotary, heads=(0, 1)); got {unparse(tree)}")
    heads = schedules.value_of(tree.keywords[0].value, spec)
    heads = (heads,) if isinstance(heads, int) else heads
    if not isinstance(heads, tuple) or not all(isinstance(head, int) for head in heads):
        raise ValueError(f"heads are whole numbers, as in on(rotary, heads=(0, 1)); got {quote(heads)}")
    return Node("on", parts=(node_of(tree.args[0], spec),), heads=heads)


def build(
    spec: Spec,
    shape: Shape,
    *,
    hints: Mapping[str, Mapping[str, Any]] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Encoding:
    """Return the encoding of a spec, for a model of this shape.

    Constructor arguments that the spec leaves open come from `hints` (encoding name -> option -> value, such as those
    that suit a task), then from the fields of the shape by name, else from the defaults. Parameters are created on the
    device and in the dtype; an Encoding is moved there.

    Raises ValueError as `parse` does, and for an error of the encoding's constructor, with the spec named.

    >>> build("rotary(base=500)", Shape.of(dim=64, heads=4, max_len=128))
    rotary(base=500)
    """
    return Builder(shape, hints or {}, {"device": device, "dtype": dtype}).build(spec)


def build_layers(
    spec: LayerSpec,
    shape: Shape,
    layers: int,
    *,
    hints: Mapping[str, Mapping[str, Any]] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[list[Encoding], list[Encoding]]:
    """Return the encodings of a stack: the distinct ones, which own parameters, and the one of each layer.

    A tuple of specs is cycled over the layers. Equal specs share one instance, also as parts of different sums, unless
    their class is `per_layer`.
    """
    cycle = cast(list[Spec], list(spec) if isinstance(spec, (list, tuple)) else [spec])
    if not cycle:
        raise ValueError("a stack needs at least one encoding; use 'none' for no position")
    builder = Builder(shape, hints or {}, {"device": device, "dtype": dtype}, share=True)
    per_layer = [builder.build(cycle[layer % len(cycle)]) for layer in range(layers)]
    return builder.encodings, per_layer


class Builder:
    """Builds encodings; with `share`, equal ones that are not `per_layer` only once. `owned` lists them.

    factory  the device and the dtype of parameters; None keeps the default
    """

    def __init__(
        self, shape: Shape, hints: Mapping[str, Mapping[str, Any]], factory: Mapping[str, Any], *, share: bool = False
    ) -> None:
        self.shape, self.hints, self.share = shape, hints, share
        self.placement = {name: value for name, value in factory.items() if value is not None}
        self.encodings: list[Encoding] = []
        self.by_node: dict[Node, Encoding] = {}
        self.sums: dict[tuple[Encoding, ...], Encoding] = {}

    def build(self, spec: Spec) -> Encoding:
        if not isinstance(self.shape, Shape):
            raise ValueError(
                f"an encoding is built for a Shape, got {checks.display(self.shape)}; write "
                f"Shape.of(dim=64, heads=4, max_len=512)"
            )
        if isinstance(spec, Encoding):
            self.encodings.extend(part for part in parts_of(spec) if not any(part is old for old in self.encodings))
            return self.place(spec)
        return self.from_node(parse(spec), self.shape)

    def place(self, encoding: Encoding) -> Encoding:
        """Return the encoding on the device and in the dtype of the builder."""
        # Not moved without need: parameters on the meta device, which planning tools create, cannot be moved.
        return encoding.to(**self.placement) if self.placement else encoding

    def from_node(self, node: Node, shape: Shape) -> Encoding:
        if node.name == "+":
            parts = tuple(self.from_node(part, shape) for part in node.parts)
            return self.sums.setdefault(parts, Compose(*parts))
        if self.share and node in self.by_node:
            return self.by_node[node]
        if node.name == "on":
            fewer = Shape(shape.dim, len(node.heads) or 1, shape.head_dim, shape.max_len, shape.causal)
            inner = Builder(fewer, self.hints, self.placement).from_node(node.parts[0], fewer)
            encoding: Encoding = OnHeads(inner, node.heads, of=shape.heads)
        else:
            encoding = self.instance(node, shape)
        self.encodings.append(encoding)
        if not encoding.per_layer:
            self.by_node[node] = encoding
        return encoding

    def instance(self, node: Node, shape: Shape) -> Encoding:
        cls, options, length = find(node.name), dict(node.options), shape.max_len
        parameters = inspect.signature(cls.__init__).parameters
        for option, value in options.items():
            # A bare word is a string, and the string `false` would count as true.
            checks.kind(f"{node.name}: {option}", value, parameters[option].annotation)
        for source in (self.hints.get(node.name, {}), shape.options, self.placement):
            options = {name: value for name, value in source.items() if name in parameters} | options
        if node.parts:
            options["encoding"] = Builder(shape, self.hints, self.placement).from_node(node.parts[0], shape)
        try:
            if "schedule" in options and Schedule in get_args(parameters["schedule"].annotation):
                options["schedule"] = schedules.schedule_of(options["schedule"])  # a bare word needs the length too
            args = {k: v.with_trained_length(length) if isinstance(v, Schedule) else v for k, v in options.items()}
            encoding = code.instance(cls, args)
        except (ValueError, TypeError, OverflowError, MemoryError, RuntimeError) as error:
            # An absurd number of rows raises one of the last two.
            raise ValueError(f"{node.name}: {shorten(one_line(str(error)), 500)}") from error
        if "_modules" not in vars(encoding):
            raise ValueError(f"{node.name}: its __init__ has to begin with super().__init__()")
        return encoding if self.placement.keys() <= parameters.keys() else self.place(encoding)


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the constructor's parameters of an encoding, without the wrapped encoding, device and dtype."""
    parameters = inspect.signature(find(name).__init__).parameters
    return {option: p for option, p in parameters.items() if option not in ("self", "encoding", *FILLED_IN)}


def parameters_of(encoding: torch.nn.Module) -> int:
    """Return the number of trained numbers of an encoding."""
    return sum(p.numel() for p in encoding.parameters())
