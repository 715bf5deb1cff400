"""Promises on the interface: a forward pass works, the spec, the errors, the source."""

import ast
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc import kernels
from posenc.catalogue import build
from posenc.encoding.base import BIASES, WIDTHS, Compose, Encoding, Shape, spec_options
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.chosen_heads import OnHeads
from posenc.encoding.keys import Keys
from posenc.model.seeding import local_seed
from posenc.schedules import value_of
from posenc.testing.comparisons import agree
from posenc.testing.contract import promise
from posenc.testing.subjects import (
    LONG,
    TOKENS,
    Net,
    Subject,
    arange,
    embeddings,
    is_in_catalogue,
    make,
    mask_name,
    on_axes,
    singles,
)
from posenc.tokens import masks
from posenc.tokens.positions import Positions, distance
from posenc.verdicts import NoMeaning, expect


@promise
def a_forward_pass_works(subject: Subject) -> None:
    """Each open door returns the right shape and dtype, and attention returns finite numbers; float32.

    A fault here would break nearly every other promise, with messages that mislead.
    """
    net, shape = subject.net().float(), subject.shape
    x, at = embeddings(subject, TOKENS).float(), on_axes(arange(TOKENS), net.axes)
    with local_seed(2):
        heads = torch.randn(2, shape.heads, TOKENS, shape.head_dim)
    for encoding in net.layer_encodings:
        if "embed" in encoding.doors:
            check_tensor(f"embed of {encoding}", encoding.embed(x, at), x.shape, f"embeddings {list(x.shape)}")
        if "turn" in encoding.doors:
            q, k = encoding.turn(heads, at, "query"), encoding.turn(heads, at, "key")
            # An encoding may widen the heads of queries and keys alike.
            wide = (*heads.shape[:-1], *(q.shape[-1:] if isinstance(q, Tensor) else heads.shape[-1:]))
            check_tensor(f"turn of {encoding}, of queries,", q, wide, f"heads {list(heads.shape)}")
            inputs = f"heads {list(heads.shape)}, whose queries become {list(wide)}"
            check_tensor(f"turn of {encoding}, of keys,", k, wide, inputs)
        if "by_distance" in encoding.doors:
            grid = distance(at, at, str(encoding), encoding.axes)
            # One row of the grid, as for consecutive tokens, and the whole grid, as for any others.
            for delta in (grid[0, 0], grid):
                distances = delta.shape if encoding.axes == 1 else delta.shape[:-1]
                inputs, bias = f"distances {list(delta.shape)} and {shape.heads} heads", encoding.by_distance(delta)
                check_tensor(f"by_distance of {encoding}", bias, (shape.heads, *distances), inputs, dtype=None)
    for mask in (masks.causal(), masks.bidirectional()):
        out = net(x, None, mask)
        check_tensor("attention", out, x.shape, f"embeddings {list(x.shape)}")
        wrong = int((~out.isfinite()).sum())
        expect(wrong == 0, f"attention, {mask_name(mask)}, gives NaN or inf in {wrong} numbers")


def check_tensor(
    label: str, result: Any, shape: tuple[int, ...], inputs: str, dtype: torch.dtype | None = torch.float32
) -> None:
    """Raise AssertionError unless the result is a tensor of this shape and, if named, this dtype."""
    description = f"shape {list(result.shape)}" if isinstance(result, Tensor) else f"{type(result).__name__}"
    right = isinstance(result, Tensor) and result.shape == shape
    expect(right, f"{label} gave {description} for {inputs}, expected shape {list(shape)}")
    expect(dtype in (None, result.dtype), f"{label} gave {result.dtype} for {dtype}; give the dtype that came in")


@promise
def the_spec_round_trips(subject: Subject) -> None:
    """build(repr(encoding), shape) gives the encoding back: its text, its options and what it computes."""
    for causal in (True, False):
        shape = replace(subject.shape, causal=causal)
        net = subject.net(shape=shape)
        again = []
        for encoding in net.layer_encodings:
            twin = rebuild(encoding, shape)
            kinds = f"builds a {type(twin).__name__}, expected a {type(encoding).__name__}"
            expect(type(twin) is type(encoding), f"'{encoding!r}' {kinds}")
            expect(repr(twin) == repr(encoding), f"'{encoding!r}' builds '{twin!r}'")
            # A default that depends on the shape must appear in the spec once it has been chosen.
            opposite = rebuild(encoding, replace(shape, causal=not causal, max_len=shape.max_len + 4))
            for parts in zip(singles(encoding), singles(twin), singles(opposite), strict=True):
                expected, actual, elsewhere = map(spec_options, parts)
                expect(actual == expected, f"'{encoding!r}' builds options {actual}, expected {expected}")
                expect(
                    elsewhere == expected,
                    f"'{encoding!r}' builds options {elsewhere} for another model, expected {expected}; "
                    f"what the model would fill in belongs into the text",
                )
            again.append(twin)
        twins = Net(again, again, shape).double().eval()
        for encoding, twin in zip(net.layer_encodings, again, strict=True):
            twin.double().load_state_dict(encoding.state_dict())
        twins.layers.load_state_dict(net.layers.state_dict())
        x, at = embeddings(subject, subject.reach), arange(subject.reach)
        if len(net.layer_encodings) == 1:
            agree(twins(x, at, masks.causal()), net(x, at, masks.causal()), "what the rebuilt encoding computes")


def rebuild(encoding: Encoding, shape: Shape) -> Encoding:
    """Build an encoding from its repr; a class outside the catalogue, from the options in it.

    Raises NoMeaning for a sum or a choice of heads with a part outside the catalogue.
    """
    foreign = [part for part in singles(encoding) if not is_in_catalogue(type(part))]
    if not foreign:
        return build(repr(encoding), shape)
    if isinstance(encoding, (Compose, OnHeads)):
        raise NoMeaning(f"{foreign[0]} has no name in the catalogue, so no text of a composition with it can be read")
    tree = ast.parse(repr(encoding), mode="eval").body
    name, words = (tree.func, tree.keywords) if isinstance(tree, ast.Call) else (tree, [])
    class_name = type(encoding).__name__
    expect(ast.unparse(name) == class_name, f"the text '{encoding!r}' names {ast.unparse(name)}, expected {class_name}")
    options = {str(word.arg): value_of(word.value, repr(encoding)) for word in words}
    return make(type(encoding), shape, **options)


@promise
def bad_arguments_get_a_clear_error(subject: Subject) -> None:
    """What does not fit is refused with a ValueError that names it: sizes, values, widths, positions."""
    shape, at = subject.shape, arange(TOKENS)
    for encoding in subject.encodings():
        cls = type(encoding)
        for option, parameter in inspect.signature(cls.__init__).parameters.items():
            bad: dict[Any, list[Any]] = {int: [math.nan], float: [math.nan], str: ["no_such_word"]}
            is_size = option in (*WIDTHS, "max_len", "trained_length")
            for value in [0, -1] if is_size else bad.get(parameter.annotation, []):
                check_refused(f"{cls.__name__}({option}={value!r})", option, make, cls, shape, **{option: value})
            if is_in_catalogue(cls) and option != "self" and parameter.annotation in (int, float, bool):
                spec = f"{cls.spec_name}({option}=no_such_word)"
                check_refused(spec, option, build, spec, shape)
        if is_in_catalogue(cls):
            spec = f"{cls.spec_name}(no_such_option=1)"
            check_refused(spec, "no_such_option", build, spec, shape)
    for encoding in subject.net().layer_encodings:
        # Only an encoding that was built for a width can refuse another one.
        sizes = {
            option for single in singles(encoding) for option in inspect.signature(type(single).__init__).parameters
        }
        if "embed" in encoding.doors and "dim" in sizes:
            x, there = torch.zeros(2, TOKENS, shape.dim + 1).double(), on_axes(at, subject.axes)
            check_refused("embeddings that are too wide", str(shape.dim + 1), encoding.embed, x, there)
        if "embed" not in encoding.doors and ("turn" not in encoding.doors or encoding.turns == "each"):
            x = torch.zeros(2, TOKENS, shape.dim)
            check_refused("embeddings given to an encoding that adds nothing", "nothing", encoding, x)
        if "turn" not in encoding.doors:
            q = torch.zeros(1, 3, 4, 6)
            check_refused("heads given to an encoding that turns none", "not turn", encoding, q, q)
        if not encoding.doors & BIASES:
            check_refused("the bias of an encoding without one", "no bias", encoding.bias, TOKENS)
        q, there = torch.zeros(2, shape.heads, TOKENS, shape.head_dim + 2).double(), on_axes(at, subject.axes)
        kernel = kernels.bind("auto", encoding, scale=1.0)
        # A bias by distance never reads the heads.
        widths = [single for single in singles(encoding) if "by_distance" not in single.doors and not single.wraps]
        knows = any("head_dim" in inspect.signature(type(single).__init__).parameters for single in widths)
        if knows and encoding.doors & {"turn", "biases", "attend"} and "remember" not in encoding.doors:
            check_refused("heads that are too wide", str(shape.head_dim + 2), attend_alone, encoding, q, there, kernel)
        if "by_distance" in encoding.doors:
            extra_heads = torch.zeros(2, shape.heads + 1, TOKENS, shape.head_dim).double()
            arguments = encoding, extra_heads, there, Keys(extra_heads, extra_heads, there), masks.causal()
            check_refused("a head more than the bias has", str(shape.heads + 1), kernel, *arguments)
    net, grid = subject.net(), Positions.grid(3, 3)
    if not subject.serves(grid):
        check_refused("positions with two axes", "axes", net, embeddings(subject, 9), grid)
    if subject.reach < LONG:
        check_refused(f"{LONG} tokens", str(LONG - 1), net, embeddings(subject, LONG), arange(LONG))


def attend_alone(encoding: Encoding, q: Tensor, at: Positions, kernel: BoundKernel) -> Tensor:
    return encoding.attend(encoding.query(q, at), at, Keys(q, q, at), masks.causal(), kernel)[0]


def check_refused(label: str, cause: str, attempt: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Raise AssertionError unless a call raises a ValueError that names the cause."""
    try:
        attempt(*arguments, **options)
    except ValueError as error:
        if cause not in str(error):
            raise AssertionError(f"{label}: the error should name '{cause}', got '{error}'") from error
        return
    except Exception as error:
        raise AssertionError(f"{label}: expected a ValueError, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"{label} was accepted; expected a ValueError that says what to do")


@promise
def has_a_source(subject: Subject) -> None:
    """Its class names the publication, and its docstring begins with a sentence about the idea."""
    for encoding in subject.encodings():
        cls = type(encoding)
        message = f"{cls.__name__}.source has to give authors, year and where to find it, got '{cls.source}'"
        expect(re.search(r"(19|20)\d\d", cls.source) is not None, message)
        begin = (cls.__doc__ or "").strip().splitlines()[:1]
        message = f"the docstring of {cls.__name__} has to begin with a sentence about the idea, got '{begin}'"
        expect(bool(begin) and begin[0].rstrip().endswith("."), message)
