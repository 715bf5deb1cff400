"""The contract every positional encoding owes, as promises that anybody can hold their own encoding to.

A promise is a function whose name is the sentence. It takes a Subject (or what makes one: a spec, an Encoding class, a
factory, a tuple of specs for the layers of a stack) and raises AssertionError where the sentence is not true. A test of
your own encoding is two lines:

    @pytest.mark.parametrize("promise", posenc.testing.PROMISES)
    def test_mine(promise): promise(Mine)

Where a promise has no meaning for a subject it raises NoMeaning, and where the encoding declares a gap KnownGap, each
with its reason: both are unittest's SkipTest, so a test report names them. A declared gap that is none any more fails.
"""

import ast
import copy
import functools
import inspect
import io
import math
import re
import textwrap
import unittest
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from posenc import kernels, masks
from posenc.attention import Attention
from posenc.biases import total
from posenc.cache import GrowingCache, LayerCache, SlotCache
from posenc.catalogue import build, build_layers, find, names
from posenc.chosen_heads import OnHeads
from posenc.encoding import BIASES, Compose, Encoding, Shape
from posenc.foreign import quoted
from posenc.kept_tables import KEPT, KeptTables
from posenc.kernels.block_sizes import SIZES
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Positions, distance, positions_for
from posenc.published import Published, Token
from posenc.schedules import SCHEDULES, Schedule, value_of
from posenc.score_mods import in_turn, index_grids

SHAPE = Shape(dim=15, heads=3, head_dim=6, max_len=21)
"""The default shape: odd sizes, and a width that is not heads times head_dim, so that no size can stand for another."""

TOKENS = 9
LONG = 47
"""Sequence lengths (tokens). LONG exceeds the trained length and, with small options, every reach about five times."""

FAR = (0, 1, 2, 4, 7, 12, 40, 333, 5000)
"""Positions whose distances exceed the reach of any encoding with usual options."""


class NoMeaning(unittest.SkipTest):
    """A promise says nothing about this subject; the message says why."""


class KnownGap(unittest.SkipTest):
    """A promise is broken, as the encoding itself declares in `gaps`."""


class StaleGap(AssertionError):
    """A promise is kept although the encoding declares a gap."""


Factory: TypeAlias = Callable[[Shape], Encoding]
Source: TypeAlias = "str | type[Encoding] | Factory | tuple[str | type[Encoding] | Factory, ...]"


@dataclass(frozen=True)
class Subject:
    """What is put to the test: how to build a fresh encoding for a shape.

    encoding  a spec, an Encoding class (its constructor arguments are filled from the shape by name), a factory
              `shape -> Encoding`, or a tuple of these, one for each layer of a stack
    shape     the model it is built for; its max_len must be served, past it an encoding may refuse with ValueError
    name      what verdicts and test reports call it
    """

    encoding: Any
    shape: Shape = SHAPE
    name: str = ""

    def __post_init__(self) -> None:
        parts = self.encoding if isinstance(self.encoding, tuple) else (self.encoding,)
        for part in parts:
            if isinstance(part, Encoding) or not (isinstance(part, str) or callable(part)):
                raise ValueError(
                    f"a subject is built afresh for each promise: give a spec, an Encoding class, a factory "
                    f"(shape -> Encoding) or a tuple of them, got {part!r}"
                )
        if not parts:
            raise ValueError("a subject needs at least one encoding, got an empty tuple")
        if not self.name:
            words = [part if isinstance(part, str) else getattr(part, "__name__", str(part)) for part in parts]
            object.__setattr__(self, "name", " | ".join(words))

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, given: "Subject | Source") -> "Subject":
        return given if isinstance(given, Subject) else cls(given)

    def build(self, shape: Shape | None = None) -> tuple[list[Encoding], list[Encoding]]:
        """The encodings to own, and the one that each layer uses."""
        shape = self.shape if shape is None else shape
        parts = self.encoding if isinstance(self.encoding, tuple) else (self.encoding,)
        if all(isinstance(part, str) for part in parts):
            return build_layers(parts, shape, len(parts))
        made = [build(part, shape) if isinstance(part, str) else make(part, shape) for part in parts]
        return made, made

    @property
    def axes(self) -> int:
        """How many coordinates its positions need; 1 where a sequence will do."""
        return max(1, *(encoding.axes for encoding in self.build()[1]))

    def net(self, *, perturbed: bool = True, shape: Shape | None = None, seed: int = 1, **options: Any) -> "Net":
        """A small network around fresh encodings, in float64. `perturbed` moves parameters off their initial values,
        because a table of zeros would agree with anything."""
        with seeded(seed):
            shape = self.shape if shape is None else shape
            net = Net(*self.build(shape), shape, **options).double()
            if perturbed:
                with torch.no_grad():
                    for encoding in net.encodings:
                        for parameter in encoding.parameters():
                            parameter += 0.3 * torch.randn_like(parameter)
            return net.eval()

    def encodings(self) -> list[Encoding]:
        """The single encodings inside, without sums and choices of heads."""
        owned, _ = self.build()
        inside = [module for own in owned for module in own.modules() if isinstance(module, Encoding)]
        return [encoding for encoding in inside if not isinstance(encoding, (Compose, OnHeads))]

    def gaps(self) -> dict[str, str]:
        """The gaps that its encodings declare: promise -> reason."""
        gaps: dict[str, str] = {}
        for encoding in self.encodings():
            for name, reason in encoding.gaps.items():
                if name not in _SENTENCES:
                    raise ValueError(
                        f"{encoding} declares a gap in '{name}', which is no promise; "
                        f"there are: {', '.join(_SENTENCES)}"
                    )
                gaps[name] = reason
        return gaps

    def serves(self, at: Positions) -> bool:
        """Whether the encoding speaks of these positions. Past the trained length it may refuse with a ValueError."""
        try:
            self.net()(tokens(self, at.tokens), at)
        except ValueError:
            return False
        return True

    @property
    def reach(self) -> int:
        """The longest sequence that promises are tried on (tokens): LONG, or max_len where more is refused."""
        return LONG if self.serves(count(LONG)) else self.shape.max_len


class Net(nn.Module):
    """What a model does with an encoding, and no more: add it once, then attention with a residual in each layer."""

    def __init__(
        self,
        owned: list[Encoding],
        used: list[Encoding],
        shape: Shape,
        *,
        kv_heads: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.encodings = nn.ModuleList(owned)
        self.used, self.shape = tuple(used), shape
        self.axes = max(1, *(encoding.axes for encoding in used))
        self.layers = nn.ModuleList(
            Attention(shape.dim, shape.heads, head_dim=shape.head_dim, kv_heads=kv_heads, scale=scale, encoding=None)
            for _ in used
        )

    def apart(self) -> "Net":
        """This network, without what the process keeps: as in one that has just begun."""
        for module in self.modules():
            if isinstance(module, Encoding):
                module.kept_tables = KeptTables(KEPT.limit)
        return self

    @property
    def attentions(self) -> list[Attention]:
        return cast(list[Attention], list(self.layers))

    @property
    def kernels(self) -> list[str]:
        """The kernels that can serve these encodings where gradients are wanted, the readable one first."""
        q = torch.empty(1, self.shape.heads, 1, self.shape.head_dim, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            able = [
                name
                for name in kernels.KERNELS
                if all(kernels.why_not(name, encoding, q=q) is None for encoding in self.used)
            ]
        return sorted(able, key=lambda name: name != "reference")

    def through(self, kernel: str) -> "Net":
        """This network, attending through a named kernel from now on."""
        for layer in self.attentions:
            layer.kernel = kernel
        return self

    def added(self, x: Tensor, at: Positions) -> Tensor:
        for encoding in cast(list[Encoding], list(self.encodings)):
            x = encoding.embed(x, at)
        return x

    def forward(
        self,
        x: Tensor,
        at: Positions | None = None,
        mask: Mask | Tensor | None = None,
        caches: Sequence[LayerCache] | None = None,
    ) -> Tensor:
        at = on_axes(positions_for(x.shape[1], at, device=x.device), self.axes)
        x = self.added(x, at)
        for index, (layer, encoding) in enumerate(zip(self.attentions, self.used, strict=True)):
            cache = None if caches is None else caches[index]
            x = x + layer(x, positions=at, mask=mask, cache=cache, encoding=encoding)
        return x

    def across(self, x: Tensor, at: Positions, other: Tensor, keys_at: Positions, mask: Mask) -> Tensor:
        """The same with keys and values from another sequence."""
        at, keys_at = on_axes(at, self.axes), on_axes(keys_at, self.axes)
        x, other = self.added(x, at), self.added(other, keys_at)
        for layer, encoding in zip(self.attentions, self.used, strict=True):
            x = x + layer(x, other, positions=at, key_positions=keys_at, mask=mask, encoding=encoding)
        return x


_SENTENCES: dict[str, Callable[..., None]] = {}


def name_of(function: Any) -> str:
    """The name of a promise."""
    return function.__name__


def promise(hold: Callable[[Subject], None]) -> Callable[..., None]:
    """Make a promise of a function: it takes whatever makes a subject, and knows about declared gaps."""

    @functools.wraps(hold)
    def kept(subject: "Subject | Source") -> None:
        subject = Subject.of(subject)
        reason = subject.gaps().get(name_of(hold))
        if reason is None:
            return hold(subject)
        try:
            hold(subject)
        except NoMeaning:
            raise
        except Exception as error:
            raise KnownGap(f"known gap: {reason} ({first_line(error)})") from error
        raise StaleGap(f"{subject} declares a gap in {name_of(hold)} ({reason}), but keeps it; delete it from `gaps`")

    _SENTENCES[name_of(hold)] = kept
    return kept


@promise
def says_what_the_paper_says(subject: Subject) -> None:
    """The fast path gives what the scalar formulas give: every head and pair, all kinds of positions, float64.

    Held to 1e-7, since a bias that is no parameter may be computed in float32.
    """
    for encoding in subject.encodings():
        formulas = type(encoding).formula_logit, type(encoding).formula_logits
        if "remember" in encoding.doors and formulas == (Published.formula_logit, Published.formula_logits):
            raise NoMeaning(f"{encoding} remembers facts of other tokens and states no formula_logits that reads them")
    reach = subject.reach
    for causal in (True, False):
        net = subject.net(shape=replace(subject.shape, causal=causal))
        mask = masks.Mask(causal=causal)
        for name, at in some_positions(subject):
            x = tokens(subject, at.tokens)
            expected = by_formula(net, x, at, x, at, mask)
            for kernel in net.kernels:
                what = f"{name}, {mask_name(mask)}, kernel {kernel}, against the formula"
                same(net.through(kernel)(x, at, mask), expected, what, 1e-7)
            cross_at = at.rows(slice(1, 6))
            x, other = tokens(subject, 5, seed=2), tokens(subject, at.tokens, seed=3)
            expected = by_formula(net, x, cross_at, other, at, masks.bidirectional())
            for kernel in net.kernels:
                got = net.through(kernel).across(x, cross_at, other, at, masks.bidirectional())
                same(got, expected, f"{name}, cross-attention, kernel {kernel}, against the formula", 1e-7)
        # Past every reach, tokens in a row: the last queries see all distances.
        at, x = count(reach), tokens(subject, reach, batch=1)
        expected = by_formula(net, x, at, x, at, masks.bidirectional(), queries=range(0, reach, 9))
        for kernel in net.kernels:
            got = net.through(kernel)(x, at, masks.bidirectional())
            if len(net.used) == 1:
                same(got[:, ::9], expected[:, ::9], f"{reach} tokens, kernel {kernel}, against the formula", 1e-7)


@promise
def evaluators_and_kernels_agree(subject: Subject) -> None:
    """Every way to evaluate a bias, and every kernel, give the same values and gradients, in blocks of any size."""
    net = subject.net()
    for encoding in net.used:
        evaluators_agree(encoding, subject)
    reach = subject.reach
    with seeded(5):
        given = torch.randn(TOKENS, TOKENS, dtype=torch.float64)
        seen = torch.rand(2, 1, TOKENS, TOKENS) < 0.6
    padding = torch.ones(2, TOKENS).index_put_((torch.tensor(1), torch.tensor([0, 1, 4])), torch.tensor(0.0))
    plain, long = count(TOKENS), count(reach)
    cases = [
        ("causal", plain, masks.causal()),
        ("bidirectional", plain, masks.bidirectional()),
        (f"causal, {reach} tokens", long, masks.causal()),
        ("window", plain, masks.window(3)),
        ("window both ways", plain, masks.window(3, causal=False)),
        ("prefix", plain, masks.prefix(4)),
        ("boolean mask with empty rows", plain, Mask(given=seen)),
        ("added mask", plain, Mask(causal=True, given=given)),
        ("padding inside", far_enough(Positions.padded(padding)), masks.causal()),
        ("packed", far_enough(Positions.packed([4, 5])), masks.bidirectional()),
        ("one query", far_enough(plain.rows(slice(4, 5))), masks.causal()),
    ]
    for scale, cut in ((None, False), (0.7, True)):
        net = subject.net(scale=scale)
        for name, at, mask in cases:
            x = tokens(subject, at.tokens)
            expected = with_gradients(net.through("reference"), x, at, mask)
            for kernel in net.kernels if cut else net.kernels[1:]:
                with small_blocks() if cut else nullcontext():
                    got = with_gradients(net.through(kernel), x, at, mask)
                for what, value in expected.items():
                    blocks = " in small blocks" if cut else ""
                    same(got[what], value, f"{name}, kernel {kernel}{blocks} against reference, {what}")


@promise
def a_cache_changes_nothing(subject: Subject) -> None:
    """A KV cache gives what one pass gives: growing, static or rolling, for several ways to cut."""
    reach = subject.reach
    for kv_heads in (subject.shape.heads, 1):
        try:
            net = subject.net(kv_heads=kv_heads)
            net(tokens(subject, 2), count(2))
        except ValueError:
            if chooses_heads(subject):
                continue
            raise
        for kernel in net.kernels:
            net.through(kernel)
            for T, cuts in (
                (TOKENS, (1,) * 9),
                (TOKENS, (8, 1)),
                (TOKENS, (1, 8)),
                (TOKENS, (4, 1, 3, 1)),
                (reach, (5, reach - 7, 1, 1)),
            ):
                at, x = count(T), tokens(subject, T)
                expected = net(x, at, masks.causal())
                for name, cache in (("growing", GrowingCache), ("static", lambda T=T: SlotCache(T + 2))):
                    got = in_chunks(net, x, at, cuts, masks.causal(), cache)
                    same(got, expected, f"{name} cache, {T} tokens cut {cuts}, kernel {kernel}, {kv_heads} key heads")
            at, x, window = count(reach), tokens(subject, reach), masks.window(4)
            cuts = (3,) * (reach // 3) + (1,) * (reach % 3)
            got = in_chunks(net, x, at, cuts, window, lambda: SlotCache(4 + 3 - 1, rolling=True))
            same(got, net(x, at, window), f"rolling cache under a window, kernel {kernel}, {kv_heads} key heads")
    # Positions that are only known as tensors, and a prompt padded on the left that goes on without padding.
    mask = torch.ones(2, TOKENS)
    mask[0, :3] = 0
    net = subject.net()
    prompt, x = far_enough(Positions.padded(mask)), tokens(subject, TOKENS + 3)
    for name, cache in (("growing", GrowingCache), ("static", lambda: SlotCache(TOKENS + 3))):
        caches = [cache() for _ in net.layers]
        got, at = [net(x[:, :TOKENS], prompt, masks.causal(), caches)], prompt
        for t in range(TOKENS, TOKENS + 3):
            at = at.next()
            got.append(net(x[:, t : t + 1], at, masks.causal(), caches))
        for row, start in ((0, 3), (1, 0)):
            alone = x[row : row + 1, start:]
            expected = net(alone, count(alone.shape[1]), masks.causal())
            same(torch.cat(got, 1)[row : row + 1, start:], expected, f"{name} cache behind left padding, row {row}")
    loose = Positions.of(count(TOKENS).coords[..., 0]).with_length(LONG)
    x = tokens(subject, TOKENS)
    for cache in (GrowingCache, lambda: SlotCache(TOKENS)):
        same(
            in_chunks(net, x, loose, (2, 3, 4), masks.causal(), cache),
            net(x, loose, masks.causal()),
            "cut positions given as tensors",
        )


@promise
def left_padding_changes_nothing(subject: Subject) -> None:
    """A row gives what it gives alone, wherever its padding stands and whatever the padding holds."""
    net = subject.net()
    padding = torch.ones(3, TOKENS)
    padding[0, :4] = 0
    padding[1, [0, 1, 5, 8]] = 0
    x = tokens(subject, TOKENS, batch=3)
    # Large and different in every channel: constant padding might close every gate that reads it.
    x = torch.where(padding[..., None] == 0, 40 * tokens(subject, TOKENS, batch=3, seed=1), x)
    at = far_enough(Positions.padded(padding))
    for mask in (masks.causal(), masks.bidirectional(), masks.window(3)):
        for kernel in net.kernels:
            together = with_gradients(net.through(kernel), x, at, mask, rows=padding)
            for row in range(3):
                real = padding[row] == 1
                alone = with_gradients(net, x[row : row + 1, real], count(int(real.sum())), mask)
                what = f"row {row} of a padded batch, {mask_name(mask)}, kernel {kernel}"
                same(together["output"][row : row + 1, real], alone["output"], what)
                same(together["gradient of x"][row : row + 1, real], alone["gradient of x"], f"{what}, gradient")
    empty = far_enough(Positions.padded(torch.zeros(1, 4)))
    if not bool(net(tokens(subject, 4, batch=1), empty, masks.causal()).isfinite().all()):
        raise AssertionError("a row that is nothing but padding gives NaN; it has to give finite numbers")


@promise
def packing_changes_nothing(subject: Subject) -> None:
    """Documents packed behind one another give what each gives alone."""
    net, lengths = subject.net(), [4, 1, 9, 3]
    x = tokens(subject, sum(lengths))
    at = far_enough(Positions.packed(lengths))
    for mask in (masks.causal(), masks.bidirectional(), masks.window(3)):
        for kernel in net.kernels:
            packed, start = net.through(kernel)(x, at, mask), 0
            for document, n in enumerate(lengths):
                piece = slice(start, start + n)
                start += n
                same(
                    packed[:, piece],
                    net(x[:, piece], count(n), mask),
                    f"document {document} of a packed row, {mask_name(mask)}, kernel {kernel}",
                )
    # A packed row goes through a cache too, its cuts across the borders of documents.
    for cache in (GrowingCache, lambda: SlotCache(sum(lengths))):
        same(
            in_chunks(net, x, at, (3, 4, 1, 9), masks.causal(), cache),
            net(x, at, masks.causal()),
            "a packed row through a cache",
        )


@promise
def a_neighbour_in_the_batch_changes_nothing(subject: Subject) -> None:
    """A row gives what it gives alone, whatever positions, padding and horizon its neighbours have."""
    net, T, end = subject.net(), TOKENS, subject.shape.max_len
    coords = torch.stack((torch.arange(T), torch.arange(T) + end - T, torch.arange(T).flip(0) * 2)).clamp(max=end - 1)
    order = torch.arange(T).repeat(3, 1)
    order[1, :2] = -1
    order[1, 2:] -= 2
    document = torch.tensor([[0] * T, [0] * T, [0] * 5 + [1] * (T - 5)])
    length = torch.tensor([end, LONG, 2 * LONG])
    at = Positions(coords[..., None], order, document, length)
    x = tokens(subject, T, batch=3)
    for mask in (masks.causal(), masks.bidirectional()):
        for kernel in net.kernels:
            together = net.through(kernel)(x, at, mask)
            for row in range(3):
                one = slice(row, row + 1)
                alone = net(x[one], Positions(coords[one, :, None], order[one], document[one], length[one]), mask)
                real = order[row] >= 0
                same(
                    together[one, real],
                    alone[:, real],
                    f"row {row} beside other rows, {mask_name(mask)}, kernel {kernel}",
                )
            moved = torch.tensor([2, 0, 1])
            there = Positions(coords[moved, :, None], order[moved], document[moved], length[moved])
            real = order[moved] >= 0
            same(
                net(x[moved], there, mask)[real],
                together[moved][real],
                f"rows in another order, {mask_name(mask)}, kernel {kernel}",
            )


@promise
def the_future_is_invisible(subject: Subject) -> None:
    """Under a causal mask no token reads a later one, and it makes no difference whether later ones are there."""
    net, reach = subject.net(), subject.reach
    for T in (TOKENS, reach):
        x, at = tokens(subject, T), count(T)
        for kernel in net.kernels:
            net.through(kernel)
            whole = net(x, at, masks.causal())
            for cut in (1, T // 2, T - 1):
                other = torch.cat((x[:, :cut], 7 - 3 * x[:, cut:]), 1)
                same(
                    net(other, at, masks.causal())[:, :cut],
                    whole[:, :cut],
                    f"tokens from {cut} on were changed, kernel {kernel}",
                )
                first = net(x[:, :cut], count(cut), masks.causal())
                same(first, whole[:, :cut], f"only the first {cut} of {T} tokens were given, kernel {kernel}")
                given = x.clone().requires_grad_()
                (slope,) = torch.autograd.grad(net(given, at, masks.causal())[:, :cut].sum(), given)
                same(
                    slope[:, cut:],
                    torch.zeros_like(slope[:, cut:]),
                    f"gradient of the first {cut} outputs in later tokens, kernel {kernel}",
                )
    # Earlier and later go by order, wherever the tokens stand in the tensor and whatever their coordinates are.
    shuffle = torch.tensor([5, 0, 3, 8, 1, 7, 2, 6, 4])
    x, at = tokens(subject, TOKENS), count(TOKENS)
    shuffled = Positions(at.coords[:, shuffle], at.order[:, shuffle], length=at.length)
    for kernel in net.kernels:
        expected = net.through(kernel)(x, at, masks.causal())[:, shuffle]
        same(
            net(x[:, shuffle], shuffled, masks.causal()),
            expected,
            f"the same tokens in another place of the tensor, kernel {kernel}",
        )


@promise
def the_order_of_calls_changes_nothing(subject: Subject) -> None:
    """An encoding that was used before gives what a fresh one gives, whatever the calls before were."""
    reach, far = subject.reach, far_positions(subject)
    shared = count(TOKENS)

    def call(net: Net, which: int) -> Tensor:
        double = torch.float64
        if which == 0:
            return net(tokens(subject, TOKENS), shared, masks.causal())
        if which == 1:
            return net(tokens(subject, reach), count(reach), masks.bidirectional())
        if which == 2:
            return net(tokens(subject, 1), count(1, 4), masks.causal())
        if which == 3:
            with torch.inference_mode():
                return net(tokens(subject, TOKENS), shared, masks.bidirectional()).clone()
        if which == 4:
            out = net.float()(tokens(subject, TOKENS).float(), shared, masks.causal())
            net.to(double)
            return out
        if which == 5:
            return in_chunks(net, tokens(subject, TOKENS), count(TOKENS), (4, 5), masks.causal(), GrowingCache)
        return net(tokens(subject, far.tokens, batch=1), far, masks.bidirectional())

    # Through float32 and back once, so that a used network and a fresh one hold the same numbers.
    fresh = [call(subject.net().float().double(), which) for which in range(7)]
    for seed in range(3):
        used = subject.net().float().double()
        with seeded(seed):
            sequence = torch.randperm(14).remainder(7).tolist()
        for step, which in enumerate(sequence):
            tolerance = 1e-5 if which == 4 else 1e-10
            same(call(used, which), fresh[which], f"call {which} after calls {sequence[:step]}", tolerance)


@promise
def others_of_its_kind_change_nothing(subject: Subject) -> None:
    """Encodings that differ in one option, in turns on the positions that they share and in several dtypes, give what
    each gives alone."""
    family = [subject, *kin(subject)]
    # By how many coordinates they read: positions on as many axes are shared.
    shared: dict[int, Positions] = {}

    def call(net: Net, dtype: torch.dtype, places: dict[int, Positions]) -> Tensor:
        at = places.setdefault(net.axes, on_axes(count(TOKENS), net.axes))
        return net.to(dtype)(tokens(subject, TOKENS, batch=1).to(dtype), at, masks.causal())

    turns = [(one, dtype) for dtype in (torch.float32, torch.float64) for one in family]
    with torch.no_grad():
        got = [call(one.net(), dtype, shared) for one, dtype in turns]
        for (one, dtype), given in zip(turns, got, strict=True):
            alone = call(one.net().apart(), dtype, {})
            same(
                given,
                alone,
                f"{one} in {dtype}, after others on the same positions",
                1e-5 if dtype == torch.float32 else 1e-10,
            )


@promise
def half_precision_stays_near_double(subject: Subject) -> None:
    """In bfloat16 and float16 the result is off by rounding only, also for many tokens at far positions; and gradients
    in the embeddings and in every parameter have the direction and the length of those in double precision."""
    both = (masks.causal(), masks.bidirectional())
    late, many = count(TOKENS, 5000), count(300)
    placed = [("near", count(TOKENS), both), ("in a row", count(subject.reach), both)]
    if subject.serves(late):
        placed.append(("far", late, both))
    if subject.serves(many):
        # Sums over many small numbers stop growing in half precision.
        placed.append(("many tokens", many, (masks.causal(),)))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad():
            net = subject.net().to(dtype)
            exact = copy.deepcopy(net).double()
            for name, at, under in placed:
                x = tokens(subject, at.tokens, batch=1).to(dtype)
                for mask in under:
                    expected = exact(x.double(), at, mask)
                    for kernel in net.kernels:
                        got = net.through(kernel)(x, at, mask)
                        what = f"{name}, {mask_name(mask)}, {dtype}, kernel {kernel}"
                        if got.dtype != dtype:
                            raise AssertionError(
                                f"{what}: the result is {got.dtype}; results have the dtype of the input"
                            )
                        near(got, expected, what)
        at, x = count(TOKENS), tokens(subject, TOKENS, batch=1).to(dtype)
        for mask in both:
            expected = with_gradients(exact, x.double(), at, mask)
            for kernel in net.kernels:
                got = with_gradients(net.through(kernel), x, at, mask)
                for what, slope in expected.items():
                    if what != "output":
                        alike(got[what], slope, f"{what}, {mask_name(mask)}, {dtype}, kernel {kernel}")


@promise
def casts_and_copies_change_nothing(subject: Subject) -> None:
    """Casts, autocast, meta, deepcopy, saving, and inference mode before training leave an encoding what it is."""
    at, x = count(subject.reach), tokens(subject, subject.reach)
    net = subject.net()
    expected = net(x, at, masks.causal())

    extra = net.state_dict().keys() - dict(net.named_parameters()).keys()
    if extra:
        raise AssertionError(
            f"the state holds {sorted(extra)}, which are no parameters; what can be derived is computed, not kept"
        )
    same(copy.deepcopy(net)(x, at, masks.causal()), expected, "a deep copy")

    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = subject.net(seed=2)
    other.load_state_dict(torch.load(file))
    same(other(x, at, masks.causal()), expected, "saved and loaded into a fresh one")

    with torch.device("meta"):
        empty = Net(*subject.build(), subject.shape).double().eval()
    empty.to_empty(device="cpu").load_state_dict(net.state_dict())
    same(empty(x, at, masks.causal()), expected, "built on meta, made real, and loaded")

    for dtype in (torch.bfloat16, torch.float16):
        # What a cast may change is the rounding of the parameters, and nothing else.
        rounded = subject.net(seed=2)
        rounded.load_state_dict({name: value.to(dtype).double() for name, value in net.state_dict().items()})
        back = copy.deepcopy(net).to(dtype).double()
        same(back(x, at, masks.causal()), rounded(x, at, masks.causal()), f"to {dtype} and back")

    for name, got in doors(net, subject, count(at.tokens)):
        if name != "by_distance" and got.dtype != torch.float32:
            raise AssertionError(f"{name}, float32 given, parameters in double: {got.dtype} came out")

    single = copy.deepcopy(net).float()
    with torch.autocast("cpu", torch.bfloat16):
        near(single(x.float(), at, masks.causal()), expected, "under autocast", torch.bfloat16)
        inside = doors(single, subject, count(at.tokens))
    for (name, got), (_, outside) in zip(inside, doors(single, subject, count(at.tokens)), strict=True):
        same(got, outside, f"{name} under autocast, float32 given", 1e-6)

    for grad in (torch.inference_mode(), torch.no_grad()):
        used = copy.deepcopy(net)
        with grad:
            used(x, at, masks.causal())
        got, fresh = with_gradients(used, x, at, masks.causal()), with_gradients(net, x, at, masks.causal())
        for what, value in fresh.items():
            same(got[what], value, f"training after {type(grad).__name__}, {what}")


@promise
def compiles_to_one_graph(subject: Subject) -> None:
    """torch.compile takes the whole forward pass as one graph, with at most one more when the length first changes."""
    from torch._dynamo.testing import CompileCounter

    # The second way is for what only given Positions bring into the graph, and one length shows it.
    for name, place, mask, lengths in (
        ("no positions given", None, masks.causal(), (TOKENS, 13, 17)),
        ("Positions given", count, masks.bidirectional(), (TOKENS,)),
    ):
        net = subject.net()
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(net, backend=counter, fullgraph=True)
        for T in lengths:
            x, at = tokens(subject, T), None if place is None else place(T)
            same(compiled(x, at, mask), net(x, at, mask), f"compiled, {name}, {T} tokens, {mask_name(mask)}")
        if counter.frame_count > 2:
            raise AssertionError(
                f"{counter.frame_count} graphs for the lengths {lengths} ({name}); expected one, and one for any length"
            )
    torch._dynamo.reset()


@promise
def every_way_of_running_is_served(subject: Subject) -> None:
    """An empty batch, tensors without data (meta, fake), a written-down graph (make_fx), the transforms of torch.func,
    and gradients of gradients give what one would expect.

    The empty batch goes through every kernel and cache, the rest through the kernel that "auto" chooses.
    """
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    net, x, mask = subject.net(), tokens(subject, TOKENS), masks.window(4)

    def run(x: Tensor) -> Tensor:
        return net(x, None, mask)

    expected = run(x)
    empty, nobody = x[:0].clone().requires_grad_(), Positions.padded(torch.ones(0, TOKENS))
    for kernel in net.kernels:
        for at in (None, nobody.with_length(LONG)):
            out = net.through(kernel)(empty, at, mask)
            out.sum().backward()
            same(out, expected[:0], f"an empty batch, kernel {kernel}")
    net.through("auto")
    for cache in (GrowingCache, lambda: SlotCache(TOKENS), lambda: SlotCache(6, rolling=True)):
        with torch.no_grad():
            same(in_chunks(net, empty, count(3), (3, 3, 3), mask, cache), expected[:0], "an empty batch, with a cache")

    # What this process keeps would hide a table that is made on the wrong device.
    KEPT.clear()
    with torch.device("meta"):
        same(run(x), expected, "tensors with data, in the context of a device without")
        absent = Net(*subject.build(), subject.shape).double()
        shape = absent(torch.empty_like(x, device="meta"), None, mask).shape
    if shape != expected.shape:
        raise AssertionError(f"tensors without data give shape {list(shape)}, expected {list(expected.shape)}")

    with FakeTensorMode():
        fake, given = Net(*subject.build(), subject.shape), torch.zeros(x.shape)
        for at in (None, Positions.padded(torch.ones(x.shape[:2])).with_length(LONG)):
            fake(given, at, mask).sum().backward()
        with torch.no_grad():
            shape = in_chunks(fake, given, count(TOKENS), (5, 1, 3), mask, lambda: SlotCache(8, rolling=True)).shape
    if shape != expected.shape:
        raise AssertionError(f"fake tensors give shape {list(shape)}, expected {list(expected.shape)}")

    other = tokens(subject, TOKENS, seed=4)
    with torch.no_grad():
        same(make_fx(run)(x)(other), run(other), "other tokens, through a graph of the operators (make_fx)")

    direction, step = tokens(subject, TOKENS, seed=3), 1e-6
    measured = (run(x + step * direction) - run(x - step * direction)) / (2 * step)
    same(torch.func.jvp(run, (x,), (direction,))[1], measured, "the slope along a direction, by torch.func.jvp", 1e-5)
    gradient = torch.func.grad(lambda x: run(x).sum())(x)
    same((gradient * direction).sum(), measured.sum(), "the gradient by torch.func.grad, along a direction", 1e-5)
    same(torch.func.vmap(lambda row: run(row[None])[0])(x), expected, "row by row with torch.func.vmap")

    def loss(x: Tensor) -> Tensor:
        return run(x).tanh().sum()

    slope = torch.func.grad(loss)
    curvature = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)
    same(
        torch.func.jvp(slope, (x,), (direction,))[1], curvature, "the curvature along a direction, by torch.func", 1e-5
    )
    net.through("reference")
    twice = torch.autograd.functional.vhp(loss, x, direction)[1]
    same(twice, curvature, "the curvature along a direction, by gradients of gradients", 1e-5)


@promise
def gradients_are_those_of_small_steps(subject: Subject) -> None:
    """The gradients in the embeddings and in every parameter are the slopes that small steps measure, float64."""
    net, at, step = subject.net(), count(TOKENS), 1e-6
    with seeded(8):
        upstream = torch.randn(2, TOKENS, subject.shape.dim, dtype=torch.float64)
    for mask in (masks.causal(), masks.bidirectional()):
        x = tokens(subject, TOKENS).requires_grad_()
        leaves = {"x": x, **dict(net.encodings.named_parameters())}

        def loss(x: Tensor = x, mask: Mask = mask) -> Tensor:
            return (net(x, at, mask) * upstream).sum()

        slopes = torch.autograd.grad(loss(), list(leaves.values()), allow_unused=True)
        for (name, leaf), slope in zip(leaves.items(), slopes, strict=True):
            with seeded(7), torch.no_grad():
                direction = torch.randn_like(leaf)
                expected = torch.zeros(()) if slope is None else (slope * direction).sum()
                ends = []
                for sign in (1, -1):
                    leaf += sign * step * direction
                    ends.append(loss())
                    leaf -= sign * step * direction
                measured = (ends[0] - ends[1]) / (2 * step)
            same(expected, measured, f"gradient of {name} along a random direction, {mask_name(mask)}", 1e-5)


@promise
def every_parameter_learns(subject: Subject) -> None:
    """From its initial values every parameter gets a finite gradient, and within two steps one that is not zero."""
    net = subject.net(perturbed=False)
    parameters = [(name, p) for name, p in net.encodings.named_parameters()]
    if not parameters:
        raise NoMeaning(f"{subject} has no parameters")
    at = count(subject.reach)
    moved: set[str] = set()
    for step in range(2):
        x = tokens(subject, subject.reach, seed=step)
        out = net.train()(x, at, masks.causal())
        with seeded(9):
            wanted = torch.randn_like(out)
        net.zero_grad()
        (out - wanted).square().sum().backward()
        for name, parameter in parameters:
            if parameter.grad is None:
                continue
            if not bool(parameter.grad.isfinite().all()):
                raise AssertionError(f"the gradient of {name} is not finite")
            if bool((parameter.grad != 0).any()):
                moved.add(name)
        with torch.no_grad():
            for _, parameter in parameters:
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
    still = [name for name, _ in parameters if name not in moved]
    if still:
        raise AssertionError(f"no gradient reaches {', '.join(still)}")


@promise
def the_spec_round_trips(subject: Subject) -> None:
    """build(repr(encoding), shape) gives the encoding back: its text, its options and what it computes."""
    for causal in (True, False):
        shape = replace(subject.shape, causal=causal)
        net = subject.net(shape=shape)
        again = []
        for encoding in net.used:
            twin = rebuilt(encoding, shape)
            if type(twin) is not type(encoding):
                raise AssertionError(
                    f"'{encoding!r}' builds a {type(twin).__name__}, expected a {type(encoding).__name__}"
                )
            if repr(twin) != repr(encoding):
                raise AssertionError(f"'{encoding!r}' builds '{twin!r}'")
            for one, other in zip(inside(encoding), inside(twin), strict=True):
                if one.options() != other.options():
                    raise AssertionError(f"'{encoding!r}' builds options {other.options()}, expected {one.options()}")
            again.append(twin)
        # Other than the specs, the shape decides: a default that the shape fills in has to be said when it was chosen.
        for encoding in net.used:
            turned = rebuilt(encoding, replace(shape, causal=not causal, max_len=shape.max_len + 4))
            for one, other in zip(inside(encoding), inside(turned), strict=True):
                if one.options() != other.options():
                    raise AssertionError(
                        f"'{encoding!r}' builds options {other.options()} for another model, expected {one.options()}; "
                        f"what the model would fill in belongs into the text"
                    )
        twins = Net(again, again, shape).double().eval()
        for mine, other in zip(net.used, again, strict=True):
            other.double().load_state_dict(mine.state_dict())
        twins.layers.load_state_dict(net.layers.state_dict())
        x, at = tokens(subject, subject.reach), count(subject.reach)
        if len(net.used) == 1:
            same(twins(x, at, masks.causal()), net(x, at, masks.causal()), "what the rebuilt encoding computes")


@promise
def bad_arguments_get_a_clear_error(subject: Subject) -> None:
    """What does not fit is refused with a ValueError that names it: sizes, values, widths, positions."""
    shape, at = subject.shape, count(TOKENS)
    for encoding in subject.encodings():
        cls = type(encoding)
        for option, parameter in inspect.signature(cls.__init__).parameters.items():
            bad: list[Any] = []
            if option in ("dim", "heads", "head_dim", "max_len"):
                bad = [0, -1]
            elif parameter.annotation in (int, float):
                bad = [math.nan]
            elif parameter.annotation is str:
                bad = ["no_such_word"]
            for value in bad:
                refused(
                    lambda cls=cls, option=option, value=value: make(cls, shape, **{option: value}),
                    f"{cls.__name__}({option}={value!r})",
                    option,
                )
            if registered(cls) and option != "self" and parameter.annotation in (int, float, bool):
                name = cls.spec_name
                spec = f"{name}({option}=no_such_word)"
                refused(lambda spec=spec: build(spec, shape), spec, option)
        if registered(cls):
            spec = f"{cls.spec_name}(no_such_option=1)"
            refused(lambda spec=spec: build(spec, shape), spec, "no_such_option")
    for encoding in subject.net().used:
        # Only what was built for a width can know that another one is wrong.
        sizes = {option for one in inside(encoding) for option in inspect.signature(type(one).__init__).parameters}
        if "embed" in encoding.doors and "dim" in sizes:
            refused(
                lambda e=encoding: e.embed(torch.zeros(2, TOKENS, shape.dim + 1).double(), on_axes(at, subject.axes)),
                "embeddings that are too wide",
                str(shape.dim + 1),
            )
        if "embed" not in encoding.doors and encoding.turns == "each":
            refused(
                lambda e=encoding: e(torch.zeros(2, TOKENS, shape.dim)),
                "embeddings given to an encoding that adds nothing",
                "nothing",
            )
        if "turn" not in encoding.doors:
            refused(
                lambda e=encoding: e(torch.zeros(1, 3, 4, 6), torch.zeros(1, 3, 4, 6)),
                "heads given to an encoding that turns none",
                "not turn",
            )
        if not encoding.doors & BIASES:
            refused(lambda e=encoding: e.bias(TOKENS), "the bias of an encoding without one", "no bias")
        heads = torch.zeros(2, shape.heads, TOKENS, shape.head_dim + 2).double()
        keys = Keys(heads, heads, on_axes(at, subject.axes))
        # A bias by distance never sees the heads.
        widths = [one for one in inside(encoding) if "by_distance" not in one.doors and not one.wraps]
        knows = any("head_dim" in inspect.signature(type(one).__init__).parameters for one in widths)
        if knows and encoding.doors & {"turn", "biases", "attend"} and "remember" not in encoding.doors:
            kernel = kernels.bind("auto", encoding, scale=1.0)
            refused(
                lambda e=encoding, h=heads, k=keys, kernel=kernel: e.attend(
                    e.query(h, k.at), k.at, k, masks.causal(), kernel
                ),
                "heads that are too wide",
                str(shape.head_dim + 2),
            )
        if "by_distance" in encoding.doors:
            more = torch.zeros(2, shape.heads + 1, TOKENS, shape.head_dim).double()
            kernel = kernels.bind("auto", encoding, scale=1.0)
            refused(
                lambda e=encoding, m=more, k=kernel, t=keys.at: k(e, m, t, Keys(m, m, t), masks.causal()),
                "a head more than the bias has",
                str(shape.heads + 1),
            )
    if not subject.serves(Positions.grid(3, 3)):
        refused(lambda: subject.net()(tokens(subject, 9), Positions.grid(3, 3)), "positions with two axes", "axes")
    if subject.reach < LONG:
        refused(lambda: subject.net()(tokens(subject, LONG), count(LONG)), f"{LONG} tokens", str(LONG - 1))


@promise
def has_a_source(subject: Subject) -> None:
    """Its class says where it was published, and its docstring begins with a sentence about the idea."""
    for encoding in subject.encodings():
        cls = type(encoding)
        if not re.search(r"(19|20)\d\d", cls.source):
            raise AssertionError(
                f"{cls.__name__}.source has to give authors, year and where to find it, got '{cls.source}'"
            )
        lines = (cls.__doc__ or "").strip().splitlines()
        if not lines or not lines[0].rstrip().endswith("."):
            raise AssertionError(
                f"the docstring of {cls.__name__} has to begin with a sentence about the idea, got '{lines[:1]}'"
            )


@promise
def nothing_given_is_changed(subject: Subject) -> None:
    """No tensor that is given, no parameter and no random state is changed, and any strides will do."""
    net = subject.net()
    at, shape = on_axes(count(TOKENS), net.axes), subject.shape
    with seeded(3):
        given = torch.randn(2, TOKENS, shape.heads, shape.head_dim, dtype=torch.float64)
    x = tokens(subject, TOKENS)
    held = {"x": x, "q": given, "coords": at.coords, "order": at.order, **dict(net.named_parameters())}
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    random = torch.get_rng_state()
    for encoding in net.used:
        q = given.transpose(1, 2)  # [B, H, T, D], not contiguous
        turned = encoding.query(q, at), encoding.key(q, at), encoding.embed(x, at)
        biases = [] if "remember" in encoding.doors else encoding.biases(q, at, Keys(q, q, at))
        for modify in (bias.closure() for bias in biases):
            score = torch.zeros(2, shape.heads, TOKENS, TOKENS, dtype=torch.float64)
            modify(score, *index_grids(score))
            if bool((score != 0).any()):
                raise AssertionError(f"a bias of {encoding} changes the scores it was given")
        unchanged(held, before)
        row, wide = q.contiguous(), x.transpose(0, 1).contiguous().transpose(0, 1)
        for door, got, one in zip(("query", "key", "embed"), turned, (row, row, wide), strict=True):
            same(getattr(encoding, door)(one, at), got, f"{door} of {encoding} with other strides")
    for kernel in net.kernels:
        net.through(kernel)(x, at, masks.causal())
    unchanged(held, before)
    if not torch.get_rng_state().equal(random):
        raise AssertionError("the global random state was used; draw from a generator with a seed of your own")

    # A growing cache hands out what it holds: the next step must not reach into it.
    caches = [GrowingCache() for _ in net.layers]
    net(x, at, masks.causal(), caches)
    old = [cache.keys for cache in caches if cache.keys is not None]
    copies = [keys.k.clone() for keys in old]
    net(x[:, :2], count(2, TOKENS), masks.causal(), caches)
    for keys, kept in zip(old, copies, strict=True):
        same(keys.k, kept, "the keys of an earlier step")


@promise
def grouped_query_heads_agree(subject: Subject) -> None:
    """With fewer key heads than query heads the result is that of the same key heads, each repeated for its group."""
    for heads, kv_heads in ((3, 1), (6, 2), (6, 3)):
        shape = replace(subject.shape, heads=heads)
        grouped = subject.net(shape=shape, kv_heads=kv_heads)
        full = subject.net(shape=shape)
        group = heads // kv_heads
        for few, many in zip(grouped.layers, full.layers, strict=True):
            state = few.state_dict()
            for name in ("to_key.weight", "to_key.bias", "to_value.weight", "to_value.bias"):
                state[name] = state[name].unflatten(0, (kv_heads, -1)).repeat_interleave(group, 0).flatten(0, 1)
            many.load_state_dict(state)
        full.encodings.load_state_dict(grouped.encodings.state_dict())
        x, at = tokens(subject, TOKENS), count(TOKENS)
        for mask in (masks.causal(), masks.bidirectional()):
            for kernel in grouped.kernels:
                try:
                    got = grouped.through(kernel)(x, at, mask)
                except ValueError as error:
                    if chooses_heads(subject):
                        raise NoMeaning(f"the chosen heads cut through a group of query heads ({error})") from error
                    raise
                same(
                    got,
                    full.through(kernel)(x, at, mask),
                    f"{heads} heads on {kv_heads} key heads, {mask_name(mask)}, kernel {kernel}",
                )


PROMISES: tuple[Callable[..., None], ...] = tuple(_SENTENCES.values())
"""All promises; the name of each is the sentence."""


@dataclass(frozen=True)
class Verdict:
    """What came out of one promise for one subject.

    kept     whether the promise is kept; None where it has no meaning for the subject
    gap      the reason of the gap that the encoding declares for it, or None
    message  the first failure, or why there is no meaning; empty when all is well
    """

    subject: str
    promise: str
    kept: bool | None
    gap: str | None = None
    message: str = ""

    @property
    def good(self) -> bool:
        """Whether nothing is to be done: kept without a gap, broken with one, or no meaning."""
        return self.kept is None or self.kept == (self.gap is None)

    @property
    def word(self) -> str:
        if self.kept is None:
            return "no meaning"
        if self.kept:
            return "kept" if self.gap is None else "stale gap"
        return "broken" if self.gap is None else "known gap"


def check(subject: "Subject | Source", promises: Iterable[str | Callable[..., None]] | None = None) -> list[Verdict]:
    """Hold a subject to promises (default: all) and say what came out; nothing is raised for a broken one.

    promises  promises or their names
    Raises ValueError for an unknown promise, and for a spec, class or factory that builds nothing.

    >>> [verdict.word for verdict in check("alibi", ["has_a_source", "every_parameter_learns"])]
    ['kept', 'no meaning']
    """
    subject = Subject.of(subject)
    gaps = subject.gaps()
    verdicts = []
    for hold in _SENTENCES.values() if promises is None else map(sentence, promises):
        name = name_of(hold)
        gap = gaps.get(name)
        try:
            hold(subject)
            verdicts.append(Verdict(subject.name, name, True))
        except NoMeaning as reason:
            verdicts.append(Verdict(subject.name, name, None, gap, str(reason)))
        except KnownGap as reason:
            verdicts.append(Verdict(subject.name, name, False, gap, str(reason)))
        except StaleGap as error:
            verdicts.append(Verdict(subject.name, name, True, gap, str(error)))
        except Exception as error:
            verdicts.append(Verdict(subject.name, name, False, None, first_line(error)))
    return verdicts


def sentence(promise: str | Callable[..., None]) -> Callable[..., None]:
    """The promise of a name.

    Raises ValueError for a name that is none.
    """
    name = promise if isinstance(promise, str) else name_of(promise)
    if name not in _SENTENCES:
        raise ValueError(f"no promise named {quoted(name)}; there are: {', '.join(_SENTENCES)}")
    return _SENTENCES[name]


def cases(
    subjects: Iterable["Subject | Source"], promises: Iterable[str | Callable[..., None]] | None = None
) -> list[Any]:
    """Every promise for every subject as parameters for pytest.mark.parametrize("promise, subject", ...).

    They are made without building anything, so that a broken encoding fails its tests and not their collection.
    """
    import pytest

    chosen = PROMISES if promises is None else [sentence(one) for one in promises]
    return [
        pytest.param(hold, subject, id=f"{name_of(hold)}-{subject}")
        for subject in map(Subject.of, subjects)
        for hold in chosen
    ]


def state_machine(subject: "Subject | Source") -> Any:
    """Hypothesis' RuleBasedStateMachine for a subject: calls of it and of others of its kind, copies, casts, caches.

    Each step is compared with fresh objects. Its `TestCase` is a test for unittest and pytest.
    Raises ImportError where Hypothesis is not installed.
    """
    from posenc.testing.states import machine_of

    return machine_of(subject)


def variants(name: str) -> list[str]:
    """Specs of an encoding of the catalogue: plain, with other numbers, and with every other choice besides.

    Numbers are made small where they are whole, so that test lengths exceed the reach. Words are tried from the
    constants of the encoding's module (LAYOUTS, OVERRUN), truth values are turned, and every schedule has its turn.
    What does not let itself be built is left out.
    """
    cls = find(name)
    numbers, choices = changes(cls)

    def spec(options: dict[str, Any], wrapped: str = (*cls.wraps, "")[0]) -> str:
        words = [*filter(None, [wrapped]), *(f"{option}={value}" for option, value in options.items())]
        return f"{name}({', '.join(words)})" if words else name

    wanted = [spec({}), spec(numbers), *(spec({}, other) for other in cls.wraps[1:])]
    for option, value in choices:
        both, alone = spec(numbers | {option: value}), spec({option: value})
        wanted.append(both if builds(both) else alone)
    return [one for one in dict.fromkeys(wanted) if builds(one)]


def changes(cls: type[Encoding]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Other values for the options of an encoding: one for each number, and each other choice besides.

    Words are tried from the constants of the class's module.
    """
    module = inspect.getmodule(cls)
    words = [w for v in vars(module).values() if isinstance(v, tuple) and all(isinstance(w, str) for w in v) for w in v]
    numbers: dict[str, Any] = {}
    choices: list[tuple[str, Any]] = []
    for option, parameter in inspect.signature(cls.__init__).parameters.items():
        default, kind = parameter.default, parameter.annotation
        if option in ("self", "encoding", "dim", "heads", "head_dim", "max_len", "device", "dtype"):
            continue
        if option == "axes":
            choices.extend((option, axes) for axes in (1, 2, 3) if axes != default)
        elif kind is bool:
            choices.append((option, not default))
        elif kind is str:
            choices.extend((option, word) for word in words if word != default)
        elif kind is int:
            numbers[option] = 8 + len(numbers)
        elif kind is float and isinstance(default, float):
            numbers[option] = 0.67 if default == 1 else 3 * default or 0.5
        elif "Schedule" in str(kind):
            choices.extend((option, read_value(schedule.example)) for schedule in SCHEDULES.values())
        elif default is None and str(kind).startswith(("int |", "float |")):
            choices.append((option, 5 if str(kind).startswith("int") else 2.5))
    return numbers, choices


def kin(subject: Subject) -> list[Subject]:
    """Subjects that differ from this one in one option of one encoding, each option once."""
    found: dict[tuple[int, int, str], Subject] = {}
    parts = subject.encoding if isinstance(subject.encoding, tuple) else (subject.encoding,)
    for place, encoding in enumerate(subject.build()[1]):
        for member, single in enumerate(inside(encoding)):
            numbers, choices = changes(type(single))
            for option, value in [*numbers.items(), *choices]:
                if getattr(single, option) != value and (place, member, option) not in found:
                    other = functools.partial(with_option, parts[place], member, option, value)
                    name = f"{subject} with {option}={value}"
                    one = replace(subject, encoding=(*parts[:place], other, *parts[place + 1 :]), name=name)
                    if one.serves(count(TOKENS)):
                        found[place, member, option] = one
    return list(found.values())


def with_option(
    source: "str | type[Encoding] | Factory", member: int, option: str, value: Any, shape: Shape
) -> Encoding:
    """A fresh encoding from a source, with one option of one of its single encodings changed."""
    encoding = build(source, shape) if isinstance(source, str) else make(source, shape)
    if isinstance(value, Schedule):
        value = value.with_trained_length(shape.max_len)
    return changed(encoding, inside(encoding)[member], option, value)


def changed(encoding: Encoding, single: Encoding, option: str, value: Any) -> Encoding:
    """An encoding made like this one, and from its parts, but for an option of one single encoding inside."""
    if not any(one is single for one in inside(encoding)):
        return encoding
    if isinstance(encoding, Compose):
        return Compose(*(changed(part, single, option, value) for part in encoding.parts))
    if isinstance(encoding, OnHeads):
        return OnHeads(changed(encoding.encoding, single, option, value), encoding.heads, encoding.of)
    given = {
        name: getattr(encoding, name)
        for name in inspect.signature(type(encoding).__init__).parameters
        if name not in ("self", "device", "dtype")
    }
    if "encoding" in given:
        given["encoding"] = changed(given["encoding"], single, option, value)
    return type(encoding)(**given | ({option: value} if encoding is single else {}))


def read_value(text: str) -> Any:
    """The value that an option of a spec says, such as a schedule."""
    return value_of(ast.parse(text, mode="eval").body, text)


def builds(spec: str) -> bool:
    try:
        build(spec, SHAPE)
    except ValueError:
        return False
    return True


def describe(verdicts: Sequence[Verdict]) -> str:
    """Verdicts as a table for people: one line for each promise, and a count at the end.

    >>> print(describe(check("none", ["has_a_source"])))
    none
      kept        has a source
    1 promise: 1 kept
    """
    lines: list[str] = []
    last = None
    for verdict in verdicts:
        if verdict.subject != last:
            lines.append(verdict.subject)
            last = verdict.subject
        lines.append(f"  {verdict.word:<10}  {verdict.promise.replace('_', ' ')}")
        lines.extend(textwrap.wrap(verdict.message, 100, initial_indent=" " * 14, subsequent_indent=" " * 14))
    counts = {
        word: sum(v.word == word for v in verdicts)
        for word in ("kept", "broken", "known gap", "stale gap", "no meaning")
    }
    total = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    lines.append(f"{len(verdicts)} promise{'' if len(verdicts) == 1 else 's'}: {total}")
    return "\n".join(lines)


def make(source: "type[Encoding] | Factory", shape: Shape, **options: Any) -> Encoding:
    """An encoding from a class, its arguments filled from the shape by name, or from a factory."""
    if not (inspect.isclass(source) and issubclass(source, Encoding)):
        made = source(shape)
        if not isinstance(made, Encoding):
            raise ValueError(f"a factory gives an Encoding, got {type(made).__name__}")
        return made
    wanted = inspect.signature(source.__init__).parameters
    filled = {name: value for name, value in vars(shape).items() if name in wanted}
    if source.wraps:
        filled["encoding"] = build(source.wraps[0], shape)
    return source(**filled | options)


def small_blocks() -> AbstractContextManager[None]:
    """Kernels that go through queries in blocks cut them so small that a few tokens are many blocks."""
    forwards = {"rows": 4, "pairs": 100, "pairs_of_content": 60, "pairs_of_rules": 100}
    return SIZES.set_to(**forwards, rows_backwards=3, pairs_backwards=50, narrowest=2, far=2)


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Random numbers from a seed of our own; the caller's go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed every other device as well, which is not put back, and is slow without one.
        torch.default_generator.manual_seed(seed)
        yield


def tokens(subject: Subject, T: int, *, batch: int = 2, seed: int = 0) -> Tensor:
    """Random embeddings [batch, T, dim], float64. Longer ones do not begin with shorter ones: cut them yourself."""
    with seeded(100 + seed):
        return torch.randn(batch, T, subject.shape.dim, dtype=torch.float64)


def count(T: int, start: int = 0) -> Positions:
    """start, start + 1, ...; the declared horizon is the same in all promises, so that cuts and alone mean the same."""
    return Positions.count(T, start).with_length(max(LONG, start + T))


def far_enough(at: Positions) -> Positions:
    """The same positions with the horizon that `count` declares."""
    return at.with_length(LONG)


def far_positions(subject: Subject) -> Positions:
    """Positions past every reach, or, where they are refused, as far as the trained length goes."""
    far = Positions.of(torch.tensor(FAR)).with_length(FAR[-1] + 1)
    if subject.serves(far):
        return far
    last = subject.shape.max_len - 1
    return Positions.of(torch.tensor([min(p, last) for p in FAR])).with_length(last + 1)


def some_positions(subject: Subject) -> Iterator[tuple[str, Positions]]:
    """Named positions of nine tokens each: in a row, later, fractional, in any order, different in each row, far."""
    last = subject.shape.max_len - 1
    yield "counted", count(TOKENS)
    yield "counted from the middle", count(TOKENS, subject.shape.max_len - TOKENS)
    fractional = torch.tensor([0.0, 0.5, 1.25, 2.0, 3.75, 6.5, 7.0, 11.125, last - 0.5], dtype=torch.float64)
    yield "fractional", Positions.of(fractional).with_length(LONG)
    in_rows = torch.stack((torch.arange(TOKENS).flip(0), torch.arange(TOKENS) * last // (TOKENS - 1)))
    yield "different in each row", Positions.of(in_rows).with_length(LONG)
    yield "far", far_positions(subject)
    declared = Positions.of(torch.arange(TOKENS).repeat(2, 1)).with_length(torch.tensor([LONG, 3 * LONG]))
    yield "with two horizons", declared


def by_formula(
    net: Net,
    x: Tensor,
    at: Positions,
    other: Tensor,
    keys_at: Positions,
    mask: Mask,
    queries: Iterable[int] | None = None,
) -> Tensor:
    """What the network gives, with everything about position taken from the scalar formulas, in plain loops."""
    cross = other is not x
    at, keys_at = on_axes(at, net.axes), on_axes(keys_at, net.axes)
    try:
        with torch.no_grad():
            x = x + added_by_formula(net, at, x)
            other = other + added_by_formula(net, keys_at, other) if cross else x
            for layer, encoding in zip(net.attentions, net.used, strict=True):
                x = x + attention_by_formula(layer, encoding, x, at, other if cross else x, keys_at, mask, queries)
    except NotImplementedError as reason:
        raise NoMeaning(str(reason)) from reason
    return x


def added_by_formula(net: Net, at: Positions, x: Tensor) -> Tensor:
    encodings = cast(list[Encoding], list(net.encodings))
    rows = [
        [[math.fsum(e.formula_added(p, c) for e in encodings) for c in range(x.shape[2])] for p in where]
        for where in places(at)
    ]
    return torch.tensor(rows, dtype=x.dtype)


def places(at: Positions) -> list[list[Any]]:
    """The coordinate of each token of each row as formulas take it: a number, or a tuple for several axes."""
    if at.axes == 1:
        return at.coords[..., 0].tolist()
    return [[tuple(place) for place in row] for row in at.coords.tolist()]


def attention_by_formula(
    layer: Attention,
    encoding: Encoding,
    x: Tensor,
    at: Positions,
    other: Tensor,
    keys_at: Positions,
    mask: Mask,
    queries: Iterable[int] | None,
) -> Tensor:
    B, T, _ = x.shape
    v = layer.split(layer.to_value(other), layer.heads).tolist()
    turned = tokens_of(encoding, layer, layer.to_query, x, at), tokens_of(encoding, layer, layer.to_key, other, keys_at)
    allowed = mask.allowed(at, keys_at).expand(B, 1, T, -1).tolist()
    out = torch.zeros(B, T, layer.heads * layer.head_dim, dtype=x.dtype)
    for b in range(B):
        for h in range(layer.heads):
            asking, asked = (tokens[b][h] for tokens in turned)
            for i in range(T) if queries is None else queries:
                seen = [j for j in range(len(asked)) if allowed[b][0][i][j]]
                if not seen:
                    continue
                keys = [asked[j] for j in seen]
                logits = encoding.formula_logits(asking[i], keys, h, layer.scale)
                weights = encoding.formula_weights(logits, asking[i], keys)
                for c in range(layer.head_dim):
                    values = (encoding.formula_value(v[b][h][j], asking[i].at, asked[j].at, c) for j in seen)
                    out[b, i, h * layer.head_dim + c] = math.fsum(
                        w * value for w, value in zip(weights, values, strict=True)
                    )
    return layer.to_output(out)


def tokens_of(
    encoding: Encoding, layer: Attention, project: nn.Module, x: Tensor, at: Positions
) -> list[list[list[Token]]]:
    """The tokens [B][H][T] of a sequence x [B, T, dim] in scalars, with what the encoding remembers of each."""
    vectors = layer.split(project(x), layer.heads)
    B, H = vectors.shape[:2]
    memo = encoding.remember(x, at, layer.projections())
    facts = {name: fact.expand(B, H, *fact.shape[2:]).tolist() for name, fact in memo.items()}
    where = places(at) * (B if at.coords.shape[0] == 1 else 1)
    order = at.order.expand(B, -1).tolist()
    length = [None] * B if at.length is None else at.length.expand(B).tolist()
    return [
        [
            [
                Token(
                    vector, where[b][t], order[b][t], {name: fact[b][h][t] for name, fact in facts.items()}, length[b]
                )
                for t, vector in enumerate(row)
            ]
            for h, row in enumerate(heads)
        ]
        for b, heads in enumerate(vectors.tolist())
    ]


def on_axes(at: Positions, axes: int) -> Positions:
    """The same tokens on several axes, as a fixed function of their coordinate, for encodings that read several."""
    if axes == 1 or at.axes != 1:
        return at
    # Other strides on every axis, and short enough for tables of the trained length.
    further = [at.coords * (2 * axis + 1) % (2 * axis + 5) for axis in range(1, axes)]
    return at.with_coords(torch.cat((at.coords, *further), -1))


def evaluators_agree(encoding: Encoding, subject: Subject) -> None:
    """Door 3 evaluated densely, as a closure on grids and on single numbers, and through distances, with gradients."""
    if not encoding.doors & BIASES or "remember" in encoding.doors:
        # What reads remembered facts has no bias apart from attention, where kernels are compared.
        return
    shape = subject.shape
    for name, at in [*some_positions(subject), (f"{subject.reach} tokens", count(subject.reach))]:
        at = on_axes(at, subject.axes)
        for keys_at in (at, at.rows(slice(0, at.tokens - 2))):
            with seeded(4):
                q = torch.randn(2, shape.heads, at.tokens, shape.head_dim, dtype=torch.float64, requires_grad=True)
                k = torch.randn(2, shape.heads, keys_at.tokens, shape.head_dim, dtype=torch.float64)
                upstream = torch.randn(2, shape.heads, at.tokens, keys_at.tokens, dtype=torch.float64)
            keys, leaves = Keys(k, k, keys_at), [q, *encoding.parameters()]

            def slopes(values: Tensor, leaves: list = leaves, upstream: Tensor = upstream) -> list[Tensor]:
                values = values.expand_as(upstream)
                if not values.requires_grad:
                    return []
                found = torch.autograd.grad((values * upstream).sum(), leaves, allow_unused=True, retain_graph=True)
                return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]

            biases = encoding.biases(q, at, keys)
            modify = in_turn([bias.closure() for bias in biases])
            assert modify is not None, f"{encoding} opens door 3, and biases gives none"
            zero = torch.zeros_like(upstream)
            grid = modify(zero, *index_grids(zero))
            dense = total(biases, torch.float64)
            assert dense is not None
            ways = {"the dense bias": dense}
            # The public tensor, with the mask's -inf taken out again: the mask of these positions is not its subject.
            public = encoding.bias(at, keys_at, q=q, k=k, dtype=torch.float64)
            ways["bias()"] = torch.where(public == -torch.inf, grid, public)
            if "by_distance" in encoding.doors:
                values = encoding.by_distance(distance(at, keys_at, str(encoding), encoding.axes))
                assert values is not None
                ways["by_distance"] = values.movedim(0, 1)
            for way, values in ways.items():
                what = f"{way} against its closure on grids, {name}"
                same(values.expand_as(grid), grid, what)
                for mine, other in zip(slopes(values), slopes(grid), strict=False):
                    same(mine, other, f"{what}, gradient")
            for b, h, i, j in ((0, 0, 0, 0), (1, 2, 5, 1), (1, 1, 8, 6), (0, 2, 3, keys_at.tokens - 1)):
                one = modify(torch.zeros((), dtype=torch.float64), *map(torch.tensor, (b, h, i, j)))
                same(one, grid[b, h, i, j], f"a closure on single numbers, {name}")


def doors(net: Net, subject: Subject, at: Positions) -> list[tuple[str, Tensor]]:
    """What doors 1 to 3 give for float32 input, each with its name; door 3 only where no matrix product is inside."""
    shape, out, at = subject.shape, [], on_axes(at, net.axes)
    with seeded(6), torch.no_grad():
        q = torch.randn(2, shape.heads, at.tokens, shape.head_dim)
        x = torch.randn(2, at.tokens, shape.dim)
    for encoding in net.used:
        out += [("embed", encoding.embed(x, at)), ("query", encoding.query(q, at)), ("key", encoding.key(q, at))]
        if "by_distance" in encoding.doors and "biases" not in encoding.doors:
            delta = torch.arange(-5, 70)
            values = encoding.by_distance(delta if encoding.axes == 1 else delta[:, None].expand(-1, net.axes))
            assert values is not None
            out.append(("by_distance", values))
    return out


def in_chunks(
    net: Net, x: Tensor, at: Positions, cuts: Sequence[int], mask: Mask, cache: Callable[[], LayerCache]
) -> Tensor:
    """The network's output for tokens that come in chunks of the sizes `cuts`, through one cache for each layer."""
    caches, out, start = [cache() for _ in net.layers], [], 0
    for n in cuts:
        # Counted positions stay counted, as a caller would give them; others are cut.
        chunk = (
            replace(Positions.count(n, start), length=at.length) if at.contiguous else at.rows(slice(start, start + n))
        )
        out.append(net(x[:, start : start + n], chunk, mask, caches))
        start += n
    return torch.cat(out, 1)


def with_gradients(net: Net, x: Tensor, at: Positions, mask: Mask, *, rows: Tensor | None = None) -> dict[str, Tensor]:
    """The output, and the gradients of a loss in x and in every parameter. `rows` says which tokens count for it."""
    x = x.clone().requires_grad_()
    out = net(x, at, mask)
    # A loss that is a sum over tokens, so that other tokens do not enter a token's gradient.
    loss = out.tanh() if rows is None else out.tanh() * rows[..., None]
    named = {name: p for name, p in net.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss.sum(), [x, *named.values()], allow_unused=True)
    slopes = {f"gradient of {name}": g for name, g in zip(("x", *named), found, strict=True) if g is not None}
    return {"output": out.detach(), **slopes}


def same(got: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    """Raises AssertionError, with place and size of the largest difference, unless both are equal up to rounding."""
    if got.shape != expected.shape:
        raise AssertionError(f"{what}: got shape {list(got.shape)}, expected {list(expected.shape)}")
    off = (got.detach().double() - expected.detach().double()).abs()
    allowed = tolerance * (1 + expected.detach().double().abs())
    wrong = ~(off <= allowed)
    if not bool(wrong.any()):
        return
    worst = int(torch.where(wrong, off.nan_to_num(torch.inf, torch.inf), -1.0).argmax())
    place = [int(i) for i in torch.unravel_index(torch.tensor(worst), off.shape)] if off.dim() else []
    raise AssertionError(
        f"{what}: differs in {int(wrong.sum())} of {off.numel()} numbers, most at {place}: "
        f"got {got.detach().flatten()[worst].item():.6g}, expected {expected.detach().flatten()[worst].item():.6g}"
    )


def near(got: Tensor, expected: Tensor, what: str, dtype: torch.dtype | None = None) -> None:
    """Raises AssertionError unless the two differ by roundings of a low precision, on average and in each token."""
    epsilon = torch.finfo(got.dtype if dtype is None else dtype).eps
    got, expected = got.detach(), expected.detach()
    off = (got.double() - expected).square().mean(-1).sqrt() / expected.square().mean(-1).sqrt()
    worst, average = float(off.max()), float(off.square().mean().sqrt())
    if not (worst <= 12 * epsilon and average <= 3 * epsilon):
        raise AssertionError(
            f"{what}: off by {average:.2g} on average and by {worst:.2g} in the worst token, relative to the exact "
            f"result; rounding explains {3 * epsilon:.2g} and {12 * epsilon:.2g}"
        )


def alike(got: Tensor, expected: Tensor, what: str) -> None:
    """Raises AssertionError unless two gradients have one direction and one length, up to roundings of half
    precision."""
    mine, exact = got.detach().double().flatten(), expected.detach().flatten()
    length, wanted = float(mine.norm()), float(exact.norm())
    # What adds up to almost nothing is rounding alone.
    if wanted < 1e-2:
        return
    cosine, ratio = float(mine @ exact) / (length * wanted) if length else 0.0, length / wanted
    if not (cosine > 0.9 and 0.8 < ratio < 1.25):
        raise AssertionError(
            f"{what}: {ratio:.3g} times as long as in double precision, at a cosine of {cosine:.3g} to it; "
            f"expected 0.8 to 1.25, and more than 0.9"
        )


def unchanged(held: dict[str, Tensor], before: dict[str, Tensor]) -> None:
    """Raises AssertionError if a tensor is not what it was before."""
    for name, tensor in held.items():
        if not tensor.equal(before[name]):
            raise AssertionError(f"{name} was changed in place")


def refused(attempt: Callable[[], Any], what: str, named: str) -> None:
    """Raises AssertionError unless the attempt ends in a ValueError that names what was wrong."""
    try:
        attempt()
    except ValueError as error:
        if named not in str(error):
            raise AssertionError(f"{what}: the error should name '{named}', got '{error}'") from error
        return
    except Exception as error:
        raise AssertionError(f"{what}: expected a ValueError, got {type(error).__name__}: {error}") from error
    raise AssertionError(f"{what} was accepted; expected a ValueError that says what to do")


def registered(cls: type[Encoding]) -> bool:
    """Whether the class is one that the catalogue finds, by its name or by path/to/file.py:Class."""
    return (cls.spec_name in names() or ":" in cls.spec_name) and find(cls.spec_name) is cls


def rebuilt(encoding: Encoding, shape: Shape) -> Encoding:
    """What the text of an encoding builds.

    A class that stands outside the catalogue is built from the options in its text.
    Raises NoMeaning for a sum or a choice of heads with a part that has no name in the catalogue.
    """
    foreign = [part for part in inside(encoding) if not registered(type(part))]
    if not foreign:
        return build(repr(encoding), shape)
    if isinstance(encoding, (Compose, OnHeads)):
        raise NoMeaning(
            f"{foreign[0]} has no name in the catalogue, so the text of a composition with it cannot be read"
        )
    tree = ast.parse(repr(encoding), mode="eval").body
    name = ast.unparse(tree.func if isinstance(tree, ast.Call) else tree)
    if name != type(encoding).__name__:
        raise AssertionError(f"the text '{encoding!r}' names {name}, expected {type(encoding).__name__}")
    words = tree.keywords if isinstance(tree, ast.Call) else []
    options = {str(word.arg): value_of(word.value, repr(encoding)) for word in words}
    return make(type(encoding), shape, **options)


def inside(encoding: Encoding) -> list[Encoding]:
    """The single encodings in a sum, a choice of heads or a wrapper, with the wrapper; or the encoding itself."""
    if isinstance(encoding, Compose):
        return [single for part in encoding.parts for single in inside(part)]
    if isinstance(encoding, OnHeads):
        return inside(encoding.encoding)
    return [encoding, *(inside(cast(Any, encoding).encoding) if encoding.wraps else [])]


def chooses_heads(subject: Subject) -> bool:
    """Whether a part of it stands on chosen heads, which grouped key heads may not allow."""
    owned, _ = subject.build()
    return any(isinstance(module, OnHeads) for own in owned for module in own.modules())


def mask_name(mask: Mask) -> str:
    return "window" if mask.window else "causal" if mask.causal else "bidirectional"


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return (
        (text.splitlines()[0] if text else type(error).__name__)
        if isinstance(error, AssertionError)
        else f"{type(error).__name__}: {text[:300]}"
    )
