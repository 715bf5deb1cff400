"""What a person meets: it runs at all; the text of an encoding, its errors, its source."""

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
from posenc.encoding.base import BIASES, WIDTHS, Compose, Encoding, Shape, settings_of
from posenc.encoding.bound_kernel import BoundKernel
from posenc.encoding.chosen_heads import OnHeads
from posenc.encoding.keys import Keys
from posenc.model.seeding import seeded
from posenc.schedules import value_of
from posenc.testing.comparisons import same
from posenc.testing.contract import promise
from posenc.testing.subjects import (
    LONG,
    TOKENS,
    Net,
    Subject,
    count,
    inside,
    make,
    mask_name,
    on_axes,
    registered,
    tokens,
)
from posenc.tokens import masks
from posenc.tokens.positions import Positions, distance
from posenc.verdicts import NoMeaning, expect


@promise
def a_forward_pass_works(subject: Subject) -> None:
    """Each open door gives a tensor of the shape and the dtype that it has to, and attention finite numbers; float32.

    What breaks it would break nearly every other promise, each with words that lead elsewhere.
    """
    net, shape = subject.net().float(), subject.shape
    x, at = tokens(subject, TOKENS).float(), on_axes(count(TOKENS), net.axes)
    with seeded(2):
        heads = torch.randn(2, shape.heads, TOKENS, shape.head_dim)
    for encoding in net.used:
        if "embed" in encoding.doors:
            gives(f"embed of {encoding}", encoding.embed(x, at), x.shape, f"embeddings {list(x.shape)}")
        if "turn" in encoding.doors:
            q, k = encoding.turn(heads, at, "query"), encoding.turn(heads, at, "key")
            # An encoding may make heads wider, of queries and keys alike.
            wide = (*heads.shape[:-1], *(q.shape[-1:] if isinstance(q, Tensor) else heads.shape[-1:]))
            gives(f"turn of {encoding}, of queries,", q, wide, f"heads {list(heads.shape)}")
            asked = f"heads {list(heads.shape)}, whose queries become {list(wide)}"
            gives(f"turn of {encoding}, of keys,", k, wide, asked)
        if "by_distance" in encoding.doors:
            grid = distance(at, at, str(encoding), encoding.axes)
            # A row of the grid, as tokens in a row ask for it, and the grid, as any others do.
            for delta in (grid[0, 0], grid):
                distances = delta.shape if encoding.axes == 1 else delta.shape[:-1]
                asked, given = f"distances {list(delta.shape)} and {shape.heads} heads", encoding.by_distance(delta)
                gives(f"by_distance of {encoding}", given, (shape.heads, *distances), asked, dtype=None)
    for mask in (masks.causal(), masks.bidirectional()):
        out = net(x, None, mask)
        gives("attention", out, x.shape, f"embeddings {list(x.shape)}")
        wrong = int((~out.isfinite()).sum())
        expect(wrong == 0, f"attention, {mask_name(mask)}, gives NaN or inf in {wrong} numbers")


def gives(what: str, got: Any, shape: tuple[int, ...], asked: str, dtype: torch.dtype | None = torch.float32) -> None:
    """Raises AssertionError unless something is a tensor of a shape and, where one is named, of a dtype."""
    found = f"shape {list(got.shape)}" if isinstance(got, Tensor) else f"{type(got).__name__}"
    right = isinstance(got, Tensor) and got.shape == shape
    expect(right, f"{what} gave {found} for {asked}, expected shape {list(shape)}")
    expect(dtype in (None, got.dtype), f"{what} gave {got.dtype} for {dtype}; give the dtype that came in")


@promise
def the_spec_round_trips(subject: Subject) -> None:
    """build(repr(encoding), shape) gives the encoding back: its text, its options and what it computes."""
    for causal in (True, False):
        shape = replace(subject.shape, causal=causal)
        net = subject.net(shape=shape)
        again = []
        for encoding in net.used:
            twin = rebuilt(encoding, shape)
            kinds = f"builds a {type(twin).__name__}, expected a {type(encoding).__name__}"
            expect(type(twin) is type(encoding), f"'{encoding!r}' {kinds}")
            expect(repr(twin) == repr(encoding), f"'{encoding!r}' builds '{twin!r}'")
            # Other than the specs, the shape decides: a default that it fills in has to be said when it was chosen.
            turned = rebuilt(encoding, replace(shape, causal=not causal, max_len=shape.max_len + 4))
            for parts in zip(inside(encoding), inside(twin), inside(turned), strict=True):
                expected, got, elsewhere = map(settings_of, parts)
                expect(got == expected, f"'{encoding!r}' builds options {got}, expected {expected}")
                expect(
                    elsewhere == expected,
                    f"'{encoding!r}' builds options {elsewhere} for another model, expected {expected}; "
                    f"what the model would fill in belongs into the text",
                )
            again.append(twin)
        twins = Net(again, again, shape).double().eval()
        for mine, other in zip(net.used, again, strict=True):
            other.double().load_state_dict(mine.state_dict())
        twins.layers.load_state_dict(net.layers.state_dict())
        x, at = tokens(subject, subject.reach), count(subject.reach)
        if len(net.used) == 1:
            same(twins(x, at, masks.causal()), net(x, at, masks.causal()), "what the rebuilt encoding computes")


def rebuilt(encoding: Encoding, shape: Shape) -> Encoding:
    """What the text of an encoding builds.

    A class that stands outside the catalogue is built from the options in its text.
    Raises NoMeaning for a sum or a choice of heads with a part that has no name in the catalogue.
    """
    foreign = [part for part in inside(encoding) if not registered(type(part))]
    if not foreign:
        return build(repr(encoding), shape)
    if isinstance(encoding, (Compose, OnHeads)):
        raise NoMeaning(f"{foreign[0]} has no name in the catalogue, so no text of a composition with it can be read")
    tree = ast.parse(repr(encoding), mode="eval").body
    name, words = (tree.func, tree.keywords) if isinstance(tree, ast.Call) else (tree, [])
    wanted = type(encoding).__name__
    expect(ast.unparse(name) == wanted, f"the text '{encoding!r}' names {ast.unparse(name)}, expected {wanted}")
    options = {str(word.arg): value_of(word.value, repr(encoding)) for word in words}
    return make(type(encoding), shape, **options)


@promise
def bad_arguments_get_a_clear_error(subject: Subject) -> None:
    """What does not fit is refused with a ValueError that names it: sizes, values, widths, positions."""
    shape, at = subject.shape, count(TOKENS)
    for encoding in subject.encodings():
        cls = type(encoding)
        for option, parameter in inspect.signature(cls.__init__).parameters.items():
            bad: dict[Any, list[Any]] = {int: [math.nan], float: [math.nan], str: ["no_such_word"]}
            is_size = option in (*WIDTHS, "max_len", "trained_length")
            for value in [0, -1] if is_size else bad.get(parameter.annotation, []):
                refused(f"{cls.__name__}({option}={value!r})", option, make, cls, shape, **{option: value})
            if registered(cls) and option != "self" and parameter.annotation in (int, float, bool):
                spec = f"{cls.spec_name}({option}=no_such_word)"
                refused(spec, option, build, spec, shape)
        if registered(cls):
            spec = f"{cls.spec_name}(no_such_option=1)"
            refused(spec, "no_such_option", build, spec, shape)
    for encoding in subject.net().used:
        # Only what was built for a width can know that another one is wrong.
        sizes = {option for one in inside(encoding) for option in inspect.signature(type(one).__init__).parameters}
        if "embed" in encoding.doors and "dim" in sizes:
            x, there = torch.zeros(2, TOKENS, shape.dim + 1).double(), on_axes(at, subject.axes)
            refused("embeddings that are too wide", str(shape.dim + 1), encoding.embed, x, there)
        if "embed" not in encoding.doors and ("turn" not in encoding.doors or encoding.turns == "each"):
            x = torch.zeros(2, TOKENS, shape.dim)
            refused("embeddings given to an encoding that adds nothing", "nothing", encoding, x)
        if "turn" not in encoding.doors:
            q = torch.zeros(1, 3, 4, 6)
            refused("heads given to an encoding that turns none", "not turn", encoding, q, q)
        if not encoding.doors & BIASES:
            refused("the bias of an encoding without one", "no bias", encoding.bias, TOKENS)
        q, there = torch.zeros(2, shape.heads, TOKENS, shape.head_dim + 2).double(), on_axes(at, subject.axes)
        kernel = kernels.bind("auto", encoding, scale=1.0)
        # A bias by distance never sees the heads.
        widths = [one for one in inside(encoding) if "by_distance" not in one.doors and not one.wraps]
        knows = any("head_dim" in inspect.signature(type(one).__init__).parameters for one in widths)
        if knows and encoding.doors & {"turn", "biases", "attend"} and "remember" not in encoding.doors:
            refused("heads that are too wide", str(shape.head_dim + 2), attend, encoding, q, there, kernel)
        if "by_distance" in encoding.doors:
            more = torch.zeros(2, shape.heads + 1, TOKENS, shape.head_dim).double()
            given = encoding, more, there, Keys(more, more, there), masks.causal()
            refused("a head more than the bias has", str(shape.heads + 1), kernel, *given)
    net, grid = subject.net(), Positions.grid(3, 3)
    if not subject.serves(grid):
        refused("positions with two axes", "axes", net, tokens(subject, 9), grid)
    if subject.reach < LONG:
        refused(f"{LONG} tokens", str(LONG - 1), net, tokens(subject, LONG), count(LONG))


def attend(encoding: Encoding, q: Tensor, at: Positions, kernel: BoundKernel) -> Tensor:
    return encoding.attend(encoding.query(q, at), at, Keys(q, q, at), masks.causal(), kernel)[0]


def refused(what: str, named: str, attempt: Callable[..., Any], *given: Any, **options: Any) -> None:
    """Raises AssertionError unless a call ends in a ValueError that names what was wrong."""
    try:
        attempt(*given, **options)
    except ValueError as error:
        if named not in str(error):
            raise AssertionError(f"{what}: the error should name '{named}', got '{error}'") from error
        return
    except Exception as error:
        raise AssertionError(f"{what}: expected a ValueError, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} was accepted; expected a ValueError that says what to do")


@promise
def has_a_source(subject: Subject) -> None:
    """Its class says where it was published, and its docstring begins with a sentence about the idea."""
    for encoding in subject.encodings():
        cls = type(encoding)
        told = f"{cls.__name__}.source has to give authors, year and where to find it, got '{cls.source}'"
        expect(re.search(r"(19|20)\d\d", cls.source) is not None, told)
        begin = (cls.__doc__ or "").strip().splitlines()[:1]
        told = f"the docstring of {cls.__name__} has to begin with a sentence about the idea, got '{begin}'"
        expect(bool(begin) and begin[0].rstrip().endswith("."), told)
