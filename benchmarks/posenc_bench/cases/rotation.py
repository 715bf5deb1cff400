"""Rotary: the cost of rotating q and k, compared with copying them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posenc import masks
from posenc.catalogue import build
from posenc.encoding.base import Encoding, Shape
from posenc.kernels.rotation import native
from posenc.model.attention import Attention
from posenc.tokens.positions import Positions
from posenc_bench import peers
from posenc_bench.measure import Group, difference

BASE = 10_000.0
COPY, CLONE = "copy_ of q and k", "clone of q and k"
TWO_COPIES = "two copies of q and k"

TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 0.2}
"""The tolerances, which allow float32 angles and bfloat16 products but no different result."""


@dataclass(frozen=True)
class Case:
    """q [batch, heads, tokens, head_dim] and k with kv_heads, from position `start` on.

    tokens_first  whether the memory layout is [B, T, H, D], as projections produce it
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    tokens: int
    head_dim: int
    dtype: torch.dtype
    start: int = 0
    tokens_first: bool = False

    def __str__(self) -> str:
        memory = ", [B, T, H, D] in memory" if self.tokens_first else ""
        return f"{self.name}, {word(self.dtype)}{memory}"

    @property
    def facts(self) -> dict[str, Any]:
        q = [self.batch, self.heads, self.tokens, self.head_dim]
        return {"q": q, "k": [q[0], self.kv_heads, *q[2:]], "dtype": word(self.dtype), "start": self.start}

    def inputs(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return newly drawn q and k."""
        generator = torch.Generator().manual_seed(seed)

        def draw(heads: int) -> Tensor:
            if self.tokens_first:
                shape = (self.batch, self.tokens, heads, self.head_dim)
                return torch.randn(shape, generator=generator).to(self.dtype).transpose(1, 2)
            return torch.randn((self.batch, heads, self.tokens, self.head_dim), generator=generator).to(self.dtype)

        return draw(self.heads), draw(self.kv_heads)


def word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


PREFILL, TRAINING, DECODING = (1, 32, 8, 4096, 128), (8, 12, 12, 1024, 64), (1, 32, 8, 1, 128)


def groups(shapes: str, with_peers: bool) -> Iterator[Group]:
    """Yield every rotation case, built only when it is reached."""
    full = shapes == "full"
    for dtype in (torch.float32, torch.bfloat16):
        yield forward(Case("prefill", *PREFILL, dtype), with_peers, full)
        if full:
            yield forward(Case("prefill", *PREFILL, dtype, tokens_first=True), with_peers, full)
        yield forward(Case("training", *TRAINING, dtype), with_peers, full)
        yield with_backward(Case("training", *TRAINING, dtype), with_peers, full)
        if full:
            yield with_backward(Case("prefill", *PREFILL, dtype), with_peers, full)
        yield decoding(Case("decoding", *DECODING, dtype, start=4000), with_peers, full)
    yield tables(Case("tables", *PREFILL, torch.float32))
    for backward in (False, True) if full else (False,):
        yield in_a_layer(backward, with_peers, full)


def rotary(head_dim: int, layout: str = "half", base: float = BASE) -> Encoding:
    return build(f"rotary(base={base}, layout='{layout}')", Shape.of(head_dim, 1, 1))


def without_native_code(turn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the rotation with PyTorch's operators, as if the native library were not built."""
    empty_library = native.Native(None, why_not="the benchmark leaves it out")

    def call(*inputs: Any, **options: Any) -> Any:
        load = native.load
        native.load = lambda: empty_library  # ty: ignore[invalid-assignment]
        try:
            return turn(*inputs, **options)
        finally:
            native.load = load

    return call


def forward(case: Case, with_peers: bool, full: bool) -> Group:
    """Measure rotating q and k out of place, without gradients."""
    group = Group("rotation", f"{case}: forward", COPY, facts=case.facts | {"pass": "forward"}, heap=heap_of(case))
    at = Positions.count(case.tokens, case.start)
    q, k = case.inputs()
    kept_q, kept_k = torch.empty_like(q), torch.empty_like(k)
    group.add(COPY, "limit", lambda: (kept_q.copy_(q), kept_k.copy_(k)))
    group.add(CLONE, "limit", lambda: (q.clone(), k.clone()))
    turn = partial(rotary(case.head_dim), positions=at)
    add_rotation(group, "rotary, into new tensors", "posenc", case, turn, "half", (q, k))
    add_rotation(group, "rotary without C, into new tensors", "posenc", case, without_native_code(turn), "half", (q, k))
    pairs = partial(rotary(case.head_dim, "interleaved"), positions=at)
    add_rotation(group, "rotary, interleaved, into new tensors", "posenc", case, pairs, "interleaved", (q, k))
    if full:
        add_rotation(group, "rotary, compiled", "posenc", case, torch.compile(turn), "half", (q, k))
    add_others(group, case, (q, k), with_peers, full)
    return group


def with_backward(case: Case, with_peers: bool, full: bool) -> Group:
    """Measure forward and backward out of place, compared with two copies."""
    facts = case.facts | {"pass": "forward and backward"}
    group = Group("rotation", f"{case}: forward and backward", TWO_COPIES, facts=facts, grad=True, heap=heap_of(case))
    q, k = (x.requires_grad_() for x in case.inputs())
    upstream = case.inputs(seed=1)
    inputs = [torch.empty_like(x, requires_grad=False) for x in (q, k)]
    with torch.no_grad():
        plain = (q.detach(), k.detach())

    def two_copies() -> None:
        for _ in range(2):
            for target, x in zip(inputs, plain, strict=True):
                target.copy_(x)

    def both_ways(turn: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(turn(q, k), (q, k), upstream)

    def error_of(turn: Callable[..., tuple[Tensor, Tensor]], layout: str) -> Callable[[], float]:
        # The gradient is the upstream gradient under the inverse rotation.
        return lambda: difference(
            [some_heads(x) for x in torch.autograd.grad(turn(q, k), (q, k), upstream)],
            [rotate_in_double(some_heads(x), case, layout, -1) for x in upstream],
        )

    def add(name: str, kind: str, turn: Callable[..., Any], layout: str) -> None:
        tolerance = TOLERANCE[case.dtype]
        group.add(name, kind, both_ways(turn), error=error_of(turn, layout), tolerance=tolerance)

    at = Positions.count(case.tokens, case.start)
    group.add(TWO_COPIES, "limit", two_copies)
    add("rotary", "posenc", partial(rotary(case.head_dim), positions=at), "half")
    add("rotary, interleaved", "posenc", partial(rotary(case.head_dim, "interleaved"), positions=at), "interleaved")
    add("rotary without C", "posenc", without_native_code(partial(rotary(case.head_dim), positions=at)), "half")
    if full:
        add("rotary, compiled", "posenc", torch.compile(partial(rotary(case.head_dim), positions=at)), "half")
    for name, kind, outputs in peer_rotations(group, case, with_peers, full):
        add(name, kind, outputs.rotate, outputs.layout)
    return group


def decoding(case: Case, with_peers: bool, full: bool) -> Group:
    """Measure rotating one decoded token's q and k, with a new position object per call."""
    group = Group("rotation", f"{case}: one token at {case.start}", COPY, facts=case.facts | {"pass": "forward"})
    q, k = case.inputs()
    kept_q, kept_k = torch.empty_like(q), torch.empty_like(k)
    group.add(COPY, "limit", lambda: (kept_q.copy_(q), kept_k.copy_(k)))
    rope = rotary(case.head_dim)
    turn = partial(rope, offset=case.start)
    add_rotation(group, "rotary", "posenc", case, turn, "half", (q, k))
    at = Positions.count(case.tokens, case.start)
    # A model pass creates positions once for all its layers; peers likewise receive ready tables.
    in_a_model = partial(rope.turn_both, at=at, keys_at=at)
    add_rotation(group, "rotary, positions given", "posenc", case, in_a_model, "half", (q, k))
    add_rotation(group, "rotary without C", "posenc", case, without_native_code(turn), "half", (q, k))
    add_others(group, case, (q, k), with_peers, full)
    return group


def tables(case: Case) -> Group:
    """Measure building the tables, once per forward pass and without any cache."""
    with_cached_tables = "rotary, tables kept"
    group = Group("rotation", f"tables of {case.tokens} x {case.head_dim}", with_cached_tables, facts=case.facts)
    q, k = case.inputs()
    rope, at = rotary(case.head_dim), Positions.count(case.tokens)
    bases = iter(range(10_000, 10_000_000))

    def from_nothing() -> None:
        # Each base needs its own tables, so no cached table can be used.
        anew = Positions.count(case.tokens)
        rotary(case.head_dim, base=float(next(bases))).turn_both(q, k, anew, anew)

    def each_forward() -> None:
        anew = Positions.count(case.tokens)
        rope.turn_both(q, k, anew, anew)

    group.add(with_cached_tables, "limit", lambda: rope.turn_both(q, k, at, at))
    group.add("rotary, positions new in each call", "posenc", each_forward)
    group.add("rotary, tables from nothing", "posenc", from_nothing)
    return group


def in_a_layer(backward: bool, with_peers: bool, full: bool) -> Group:
    """Measure the rotation's share in an attention layer with projections."""
    batch, heads, tokens, head_dim = 2, 12, 1024, 64
    case = Case("layer", batch, heads, heads, tokens, head_dim, torch.float32)
    passes = "forward and backward" if backward else "forward"
    bare = "attention without rotation"
    group = Group("rotation", f"a layer of attention, float32: {passes}", bare, grad=backward)
    group.facts = case.facts | {"pass": passes}
    at = Positions.count(tokens)
    x = torch.randn(batch, tokens, heads * head_dim, generator=torch.Generator().manual_seed(0), requires_grad=backward)
    torch.manual_seed(0)
    layer = Attention(heads * head_dim, heads)

    def call(encoding: Encoding) -> Callable[[], Any]:
        def once() -> Any:
            output = layer(x, positions=at, mask=masks.causal(), encoding=encoding)
            return torch.autograd.grad(output.sum(), (x, *layer.parameters())) if backward else output

        return once

    group.add(bare, "limit", call(Encoding()))
    group.add("rotary", "posenc", call(rotary(head_dim)))
    for name, kind, rotary_layer in peer_rotations(group, case, with_peers, full):
        group.add(name, kind, call(PeerRotation(rotary_layer.rotate)))
    return group


class PeerRotation(Encoding):
    """A peer's rotation as an encoding of posenc, inside the same layer."""

    def __init__(self, rotate: peers.Rotate) -> None:
        super().__init__()
        self.rotate = rotate

    def turn_both(self, q: Tensor, k: Tensor, at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor]:
        return self.rotate(q, k)


def peer_rotations(group: Group, case: Case, with_peers: bool, full: bool) -> Iterator[tuple[str, str, peers.Rotation]]:
    """Yield the rotations of every installed peer, and the usual hand-written one.

    Building tables costs peers little except with a single token; `full` includes it everywhere.
    """
    ids = torch.arange(case.start, case.start + case.tokens)
    made_for = (case.heads, case.head_dim, ids, case.dtype, BASE)
    for name, make in peers.ROTATIONS.items() if with_peers else ():
        if name == peers.MAKING_TABLES and case.tokens > 1 and not full:
            continue
        try:
            yield name, "peer", make(*made_for)
        except peers.AbsentPeer as reason:
            group.absent[name] = str(reason)
    yield "by hand, tables made in each call", "naive", peers.by_hand(*made_for)


def add_others(group: Group, case: Case, inputs: tuple[Tensor, Tensor], with_peers: bool, full: bool) -> None:
    for name, kind, rotation in peer_rotations(group, case, with_peers, full):
        add_rotation(group, name, kind, case, rotation.rotate, rotation.layout, inputs)


def add_rotation(
    group: Group,
    name: str,
    kind: str,
    case: Case,
    rotate: Callable[[Tensor, Tensor], Any],
    layout: str,
    heads: tuple[Tensor, Tensor],
) -> None:
    """Add a rotation of q and k."""
    q, k = heads

    def error() -> float:
        return difference(
            [some_heads(x) for x in rotate(q, k)], [rotate_in_double(some_heads(x), case, layout) for x in heads]
        )

    group.add(name, kind, lambda: rotate(q, k), error=error, tolerance=TOLERANCE[case.dtype])


def heap_of(case: Case) -> int:
    """Return how much freed memory the heap keeps: little if q takes 32 MiB or more, always newly allocated."""
    size = case.batch * case.heads * case.tokens * case.head_dim * case.dtype.itemsize
    return 64 << 20 if size >= 32 << 20 else 1 << 30


def some_heads(x: Tensor) -> Tensor:
    """Return the last batch row's first and last head, enough to reveal a mistake."""
    return x[-1:, [0, -1]]


def rotate_in_double(x: Tensor, case: Case, layout: str, way: int = 1) -> Tensor:
    """Rotate x [B, H, T, D] in float64 with complex pairs. `way` -1 is the inverse."""
    x = x.detach().double()
    half = case.head_dim // 2
    pairs = (
        torch.complex(x[..., :half], x[..., half:]) if layout == "half" else torch.complex(x[..., ::2], x[..., 1::2])
    )
    frequencies = BASE ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(case.start, case.start + case.tokens, dtype=torch.float64)[:, None] * frequencies * way
    out = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((out.real, out.imag), -1) if layout == "half" else torch.view_as_real(out).flatten(-2)
