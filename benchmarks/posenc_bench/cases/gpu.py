"""GPU cases: the Triton rotation, and attention through FlexAttention, compared with other libraries.

`run.py bench gpu` fills the table in one call on a machine with a GPU; elsewhere it gives one row that says so.
`groups(..., device="cpu")` runs the same lines with small shapes, so that they are tested without a GPU.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import kernels, masks
from posenc.catalogue import build
from posenc.encoding.base import Encoding, Shape
from posenc.encoding.keys import Keys
from posenc.tokens.positions import Positions
from posenc_bench import peers
from posenc_bench.cases.rotation import BASE, CLONE, TOLERANCE, rotate_in_double, some_heads, word
from posenc_bench.cases.rotation import Case as RotationCase
from posenc_bench.measure import Group, Row, difference

PLAIN = "plain causal SDPA"
HEADS, HEAD_DIM = 16, 64
WHY_NOT = "there is no CUDA device"

LENGTHS = {"quick": (1024, 4096, 16384), "full": (1024, 4096, 16384, 65536)}
LONGEST_AS_MATRIX = 4096
"""The largest length for a matrix of all pairs, which takes gigabytes beyond it."""
FUSED_KERNELS = (
    "none",
    "alibi",
    "t5_bias",
    "kerple",
    "sandwich",
    "mlp_bias",
    "forgetting",
    "alibi + forgetting",
    "fire",
)
"""Biases that a fused kernel supports: distance tables, and closures over sums and table entries."""

SHAPES = {
    "quick": (("prefill", 1, 32, 8, 4096, 128), ("training", 8, 12, 12, 1024, 64)),
    "full": (("prefill", 1, 32, 8, 4096, 128), ("training", 8, 12, 12, 1024, 64), ("long", 1, 32, 8, 65536, 128)),
}


def rows(shapes: str, with_peers: bool, threads: int = 1) -> Iterator[Row]:
    """Yield one row that says that nothing could be measured, if there is no GPU."""
    if not torch.cuda.is_available():
        yield Row("gpu", "all", "all", "posenc", "", threads, note=WHY_NOT)


def groups(shapes: str, with_peers: bool, device: str = "cuda") -> Iterator[Group]:
    """Yield every case, built only when it is reached; none if the device is missing."""
    if device == "cuda" and not torch.cuda.is_available():
        return
    for dtype in (torch.bfloat16, torch.float32):
        for shape in SHAPES[shapes]:
            for backward in (False, True):
                yield rotation(RotationCase(*shape, dtype), backward, with_peers, device)
    for tokens in LENGTHS[shapes]:
        for backward in (False, True):
            yield attention(tokens, backward, device)


def rotation(case: RotationCase, backward: bool, with_peers: bool, device: str) -> Group:
    """Measure rotating q and k out of place, by Triton and by PyTorch's compiler."""
    passes = "forward and backward" if backward else "forward"
    facts = case.facts | {"pass": passes}
    group = Group("gpu", f"rotation, {case}: {passes}", CLONE, facts=facts, grad=backward, device=device)
    q, k = (x.to(device).requires_grad_(backward) for x in case.inputs())
    upstream = tuple(x.to(device) for x in case.inputs(seed=1))
    at = Positions.count(case.tokens, case.start, device=device)
    rope = build(f"rotary(base={BASE})", Shape.of(case.head_dim, 1, 1))

    def both_ways(turn: Callable[[Tensor, Tensor], Any]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(turn(q, k), (q, k), upstream) if backward else turn(q, k)

    def add(name: str, kind: str, turn: Callable[[Tensor, Tensor], Any]) -> None:
        def error() -> float:
            inputs, way = (upstream, -1) if backward else ((q, k), 1)
            right = [rotate_in_double(some_heads(x).cpu(), case, "half", way) for x in inputs]
            # Liger rotates in place.
            here = [x.detach().clone().requires_grad_(backward) for x in (q, k)]
            outputs = turn(*here)
            outputs = torch.autograd.grad(outputs, here, upstream) if backward else outputs
            return difference([some_heads(x).cpu() for x in outputs], right)

        group.add(name, kind, both_ways(turn), error=error, tolerance=TOLERANCE[case.dtype])

    group.add(CLONE, "limit", both_ways(lambda q, k: (q.clone(), k.clone())))
    add("rotary", "posenc", functools.partial(rope, positions=at))
    add("rotary, compiled", "posenc", torch.compile(functools.partial(rope, positions=at)))
    ids = torch.arange(case.start, case.start + case.tokens, device=device)
    made_for = (case.heads, case.head_dim, ids, case.dtype, BASE)
    for name, make in {"transformers": peers.transformers, "Liger": peers.liger}.items() if with_peers else ():
        try:
            add(name, "peer", make(*made_for).rotate)
        except peers.AbsentPeer as reason:
            group.absent[name] = str(reason)
    by_hand = peers.by_hand(*made_for).rotate
    add("by hand, compiled", "naive", torch.compile(by_hand))
    return group


def attention(tokens: int, backward: bool, device: str) -> Group:
    """Measure causal attention with each bias, through FlexAttention and, if it fits, as a matrix."""
    passes = "forward and backward" if backward else "forward"
    facts = {"tokens": tokens, "heads": HEADS, "head_dim": HEAD_DIM, "dtype": word(torch.bfloat16), "pass": passes}
    group = Group("gpu", f"attention, T {tokens}: {passes}", PLAIN, facts=facts, grad=backward, device=device)
    generator = torch.Generator().manual_seed(0)
    q, k, v, upstream = (
        torch.randn(1, HEADS, tokens, HEAD_DIM, generator=generator).to(device, torch.bfloat16) for _ in range(4)
    )
    for x in (q, k, v):
        x.requires_grad_(backward)

    def add(name: str, kind: str, call: Callable[[], Tensor], spec: str = "", error: Any = None) -> None:
        def once() -> Any:
            return torch.autograd.grad(call(), (q, k, v), upstream) if backward else call()

        group.add(name, kind, once, error=error, tolerance=0.1, subject=spec)

    def attend(encoding: Encoding, memo: dict[str, Tensor], kernel: str) -> Tensor:
        at = Positions.count(tokens, device=device)
        keys = Keys(k, v, at, memo, memo)
        bound = kernels.bind(kernel, encoding, scale=HEAD_DIM**-0.5)
        return encoding.attend(q, at, keys, masks.causal(), bound)[0]

    add(PLAIN, "limit", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    for spec in FUSED_KERNELS:
        torch.manual_seed(2)
        encoding = build(spec, Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, tokens)).to(device).requires_grad_(False)
        memo = {}
        if "remember" in encoding.doors:
            memo = {"forgetting": -torch.rand(1, HEADS, tokens, generator=generator).to(device)}
        call = functools.partial(attend, encoding, memo)

        def error(call: Callable[[str], Tensor] = call) -> float:
            with torch.no_grad():
                return difference(call("flex")[:, :, -64:].cpu(), call("sdpa")[:, :, -64:].cpu())

        specs = tokens <= LONGEST_AS_MATRIX
        add(f"{spec}, flex", "posenc", functools.partial(call, "flex"), spec, error if specs else None)
        if specs:
            add(f"{spec}, sdpa", "posenc", functools.partial(call, "sdpa"), spec)
    return group
